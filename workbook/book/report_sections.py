"""Sections of a report on what was pushed: groups with signal, tokens, what cancelled, what was stopped."""

from __future__ import annotations

import pandas as pd

from workbook.book.report_charts import signal_chart, tokens_chart
from workbook.book.report_parts import TOP, Section, interval_text, numbers, table_of, token_texts
from workbook.probes.report import MIN_SAMPLE, Report, percent
from workbook.probes.report_tokens import SHARED

MIN_PUSH = 0.02  # of all |push|: what cancels in rarer tokens is not worth a row
REASONS = {"": "trained on", "tool": "another's turn (tool, user)"}


def signal_section(report: Report) -> Section:
    """Which groups carried signal."""
    section = Section("signal", "Which groups carried signal")
    section.how = [
        "A group is one prompt's rollouts in one step. Its advantages compare its rollouts, so a group in which all "
        "have one reward has none."
    ]
    if report.signal.empty:
        section.missing = [report.missing["signal"]]
        return section
    table, share = report.signal, report.signal_share
    groups = table["groups"].sum()
    means = {name: float((table[name] * table["groups"]).sum() / groups) for name in ("highest", "lowest")}
    parts = [f"{percent(mean)} have the {name} reward throughout" for name, mean in means.items() if mean]
    others = f"; {' and '.join(parts)}" if parts else ""
    section.lead = [
        f"{percent(share.mean)}{interval_text(share)} of {groups:,} groups have an advantage to learn from{others}."
    ]
    if share.low < share.high:
        section.how.append(
            f"In brackets: 95 % t interval over steps, or over groups where there are fewer than {MIN_SAMPLE} steps."
        )
    if len(table) > 1:
        section.figures = [signal_chart(table)]
    columns = {"step": table["step"], "groups": numbers(table["groups"], ",")}
    for name, title in {
        "signal": "with an advantage",
        "highest": "highest reward only",
        "lowest": "lowest reward only",
    }.items():
        columns[title] = numbers(table[name], ".0%")
    section.tables = [table_of("Groups by step: shares with an advantage, and without one by their reward", columns)]
    return section


def tokens_section(report: Report) -> Section:
    """Which tokens were pushed most."""
    section = Section("tokens", "Which tokens were pushed")
    section.how = [
        "push = -d loss / d log p = weight x advantage, summed over places. Positive and negative count places by the "
        "sign of the advantage."
    ]
    table = report.tokens[report.tokens["total"] > 0]
    if table.empty:
        section.lead = ["No token was pushed."]
        return section
    furthest = table.reindex(table["net"].abs().sort_values(ascending=False).index).head(TOP)
    first = furthest.iloc[0]
    section.lead = [
        f"The largest net push, {first['net']:+.3g} of a sum of |push| of {first['total']:.3g} in {first['count']:,} "
        f"places, is on {token_texts([first['token']])[0]}"  # last: a token may be written from right to left
    ]
    section.figures = [tokens_chart(table.head(TOP))]
    columns = {"token": token_texts(furthest["token"])}
    for name, title in {"count": "places", "positive": "positive", "negative": "negative"}.items():
        columns[title] = numbers(furthest[name], ",")
    columns |= {"net push": numbers(furthest["net"], "+.3g"), "sum of |push|": numbers(furthest["total"], ".3g")}
    section.tables = [table_of("Tokens by net push", columns, ("token",))]
    return section


def cancelled_section(report: Report) -> Section:
    """How much of |push| cancels, and in which tokens."""
    section = Section("cancelled", "What cancelled")
    section.how = [
        "cancelled = 1 - |sum of push| / sum of |push|, 100 % if nothing is left. That is right for tokens to which no "
        "reward is due, such as a template's, and a loss of signal for the others."
    ]
    if report.shared.empty:
        section.missing = [report.missing["signal"]]
    else:
        section.lead = [_shared_sentence(report.shared)]
        columns = {"tokens of a group": report.shared["shared"]}
        for name, title in {"tokens": "of all tokens", "push": "of all |push|", "cancelled": "cancels of it"}.items():
            columns[title] = numbers(report.shared[name], ".0%")
        section.tables.append(table_of("How much cancels, by what a token shares with others of its group", columns))
    tokens = report.tokens
    common = tokens[(tokens["total"] >= MIN_PUSH * tokens["total"].sum()) & (tokens["total"] > 0)]
    common = common.sort_values("cancelled", ascending=False, kind="stable").head(TOP)
    if len(common):
        columns = {"token": token_texts(common["token"])}
        columns |= {name: numbers(common[name], "+.3g") for name in ("up", "down", "net")}
        columns |= {"cancelled": numbers(common["cancelled"], ".0%"), "places": numbers(common["count"], ",")}
        caption = f"Tokens that cancel most, over all groups, of those with at least {percent(MIN_PUSH)} of all |push|"
        section.tables.append(table_of(caption, columns, ("token",)))
    return section


def _shared_sentence(shared: pd.DataFrame) -> str:
    whole = float((shared["push"] * shared["cancelled"]).sum())
    place = shared.set_index("shared").loc[SHARED[0]]
    return (
        f"{percent(whole)} of |push| cancels inside its group. Tokens that several rollouts have at the same position "
        f"hold {percent(place['push'])} of it, and {percent(place['cancelled'])} of that cancels."
    )


def stopped_section(report: Report) -> Section:
    """What clipping and masks took away."""
    section = Section("stopped", "What clipping and masks took away")
    section.how = [
        "Clipping stops a token whose ratio has left its range in the direction of its advantage. Masks stop tokens of "
        "truncated rollouts, of tools, of low entropy, or too far off-policy."
    ]
    if "stopped" in report.missing:
        section.missing = [report.missing["stopped"]]
        return section
    if report.stopped.empty:
        section.lead = ["No token has an advantage, so there was nothing to take away."]
        return section
    table = report.stopped
    mass = table[table["reason"] != ""].groupby("sign")["mass"].sum()
    up, down = mass.get("positive", 0.0), mass.get("negative", 0.0)
    section.lead = ["Clipping and masks took nothing: every token with an advantage met its gradient."]
    if len(mass):
        section.lead = [
            f"{percent(up + down, 1)} of all advantage met no gradient: {percent(up, 1)} on tokens of positive "
            f"advantage, {percent(down, 1)} on those of negative advantage."
        ]
    columns = {
        "tokens": [REASONS.get(reason, reason) for reason in table["reason"]],
        "advantage": table["sign"],
        "number": numbers(table["count"], ","),
        "of all tokens": numbers(table["tokens"], ".1%"),
        "of sum |advantage|": numbers(table["mass"], ".1%"),
    }
    section.tables = [table_of("Tokens and advantage by what stopped the gradient, and by sign", columns)]
    return section
