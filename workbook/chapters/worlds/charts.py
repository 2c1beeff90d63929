"""Charts of worlds: value over tokens, rules, the price over an update's signal, group sizes, a
trainer's settings.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import altair as alt
import numpy as np
import pandas as pd

from workbook.statistics import t_interval, unit_curve
from workbook.studies.record import Tables
from workbook.studies.worlds.outcomes import EXACT, PLAIN, Law, lead, unit_outcomes, world_name
from workbook.studies.worlds.question_claims import AHEAD, BIAS, SIGNAL, TAX
from workbook.studies.worlds.questions import ASKED, GROUPS, PAIRS, TWINS
from workbook.views.figures import INTERVAL, bars, cells, panels, rule, series
from workbook.views.style import SERIES, describe_rows, diverging, finish, limit, titled, tooltips

NAMES = {
    EXACT: "known credit",
    PLAIN: "plain",
    "positive_only": "positive-only",
    "negative_token_filtering": "filtering",
    "edit_mask": "edit mask",
    "entropy_minimization": "entropy",
    "sequence_logp": "log p",
    "majority_vote": "majority vote",
    "permuted": "permuted",
}
SHOWN = (EXACT, PLAIN, "positive_only", "entropy_minimization")
COLUMNS = 4  # panels of a row
KINDS = ("measured", "held out: what came", "what an earlier line had said of it")


def map_table(runs: Mapping[str, pd.DataFrame], arms: Sequence[str] = SHOWN) -> pd.DataFrame:
    """Table of `map_chart` from worlds' runs: world, rule, batch, thousands of tokens, value's
    mean, low, high.
    """
    parts = []
    for world, table in runs.items():
        rows = table[table["arm"].isin(arms)]
        tokens = rows.groupby(["arm", "batch"])["sampled_tokens"].mean().rename("tokens") / 1000
        curve = unit_curve(rows, "batch", "value", by="arm").join(tokens, on=["arm", "batch"])
        parts.append(curve.assign(world=world_name(world)))
    table = pd.concat(parts, ignore_index=True)
    return table.assign(
        rule=pd.Categorical(table["arm"].map(NAMES), [NAMES[arm] for arm in arms]).astype(str)
    )


def map_chart(table: pd.DataFrame):
    """A panel per world: exact held-out value against sampled tokens, a line per rule with its
    interval.
    """
    names = [name for name in NAMES.values() if name in set(table["rule"])]
    x, charts = alt.X("tokens:Q", title="sampled tokens, thousands").axis(tickCount=2), []
    look = {"by": "rule", "names": names, "points": False, "clip": True, "height": 110}
    for place, (world, rows) in enumerate(table.groupby("world", sort=False)):
        y = alt.Y("mean:Q", title=None if place % COLUMNS else "value").scale(domain=[0, 1])
        charts.append(series(rows, x, y, **look, title=world))
    described = describe_rows(table[table["batch"] == table["batch"].max()], "world", "rule")
    return panels(
        [alt.hconcat(*charts[k : k + COLUMNS], spacing=14) for k in range(0, len(charts), COLUMNS)],
        f"What each rule reaches in {table['batch'].max()} batches, by sampled tokens and world",
        "exact value on held-out prompts, each rule at its own rate; bands: 95 % t intervals over"
        " policies",
        f"Value at the end. {described}",
        vertical=True,
    )


def rules_table(ends: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Table of `rules_chart` from worlds' `run_ends`: world, rule, octaves of tokens to half-way
    less than plain's with their interval low to high, the share of runs that were `censored`,
    units."""
    rows = []
    for world, table in ends.items():
        tokens, missed = (
            table.pivot(index="seed", columns="arm", values="tokens"),
            table.groupby("arm")["censored"],
        )
        for arm, name in NAMES.items():
            if arm in tokens and arm != PLAIN:
                spread = t_interval(np.log2(tokens[PLAIN] / tokens[arm]))
                named = {
                    "world": world_name(world),
                    "rule": name,
                    "censored": missed.mean()[arm],
                    "units": len(tokens),
                }
                rows.append(named | dict(zip(("octaves", "low", "high"), spread, strict=True)))
    return pd.DataFrame(rows)


def rules_chart(table: pd.DataFrame):
    """Rules against worlds: octaves of tokens by which a rule is ahead of plain; intervals are in
    the tooltips.
    """
    worlds, names = (table[name].drop_duplicates().tolist() for name in ("world", "rule"))
    most = limit(table["octaves"])
    x = alt.X("rule:N", sort=names, title=None).axis(labelAngle=-30, orient="top")
    color = (
        alt.Color("octaves:Q", title="octaves")
        .scale(diverging(most))
        .legend(gradientLength=20 * len(worlds))
    )
    look = {"dark": f"abs(datum.octaves) > {0.6 * most}", "form": ".2f", "height": alt.Step(24)}
    look |= {"shown": ["world", "rule", "octaves", "low", "high", "censored", "units"]}
    text = alt.Text("octaves:Q", format="+.2f")
    chart = cells(table, x, alt.Y("world:N", sort=worlds, title=None), color, text, **look)
    note = (
        "log2 of plain's sampled tokens over the rule's, censored at the budget; above 0 the rule"
        " is ahead of plain"
    )
    described = describe_rows(table, "world", "rule", value="octaves", form="+.2f")
    return titled(chart, "Tokens to half-way, against plain", note, f"Octaves. {described}")


def price_chart(points: pd.DataFrame, line: Law, predicted: pd.DataFrame):
    """The price against 1 / signal share: a point a world, the line, what earlier lines said of
    others.

    points, predicted: as of `outcomes.points`, worlds held out included or not, and
    `outcomes.predicted`.
    """
    came = points.dropna().rename(columns={"price": "mean"})
    came = came.assign(kind=np.where(came["world"].isin(predicted["world"]), KINDS[1], KINDS[0]))
    came = came.assign(near=came["x"].round(1)).sort_values(
        ["near", "mean"], ascending=[True, False]
    )
    # where a world's name stands, so that neighbours' do not meet
    came["below"] = np.arange(len(came)) % 2
    table = pd.concat([came, predicted.assign(kind=KINDS[2])], ignore_index=True)
    x = alt.X("x:Q", title="log2 of (signal + noise) / signal in plain's first batch").scale(
        zero=False, padding=25
    )
    y = alt.Y("mean:Q", title="price, octaves of tokens to half-way")
    look = {"title": None, "sort": KINDS, "legend": alt.Legend(orient="bottom", labelLimit=320)}
    color = alt.Color("kind:N", **look).scale(domain=KINDS, range=SERIES[:3])
    hints = tooltips(table, "world", "kind", "x", "mean", "low", "high", form=".2f")
    base = alt.Chart(table).encode(x=x, y=y, color=color, tooltip=hints)
    named, spans = (
        base.encode(text="world:N", color=alt.value("black")),
        base.encode(y=alt.Y("low:Q"), y2="high:Q"),
    )
    drawn = pd.DataFrame(
        [{"x": end, "mean": line.predict(end).mean} for end in (table["x"].min(), table["x"].max())]
    )
    said = f"datum.kind == '{KINDS[2]}'"
    layers = [
        rule(0, "y"),
        spans.transform_filter(said).mark_rule(size=14, opacity=0.25),
        alt.Chart(drawn).mark_line(color="black", strokeDash=[5, 4]).encode(x=x, y=y),
        spans.transform_filter(f"!({said})").mark_rule(size=3, opacity=0.5),
        base.mark_point(size=70, filled=True, opacity=1).encode(
            shape=alt.Shape("kind:N", **look).scale(domain=KINDS)
        ),
        *(
            named.transform_filter(f"datum.below === {k}").mark_text(
                align="left", dx=9, dy=18 * k - 6
            )
            for k in (0, 1)
        ),
    ]
    note = (
        f"dashed: {line.intercept:.2f} + {line.slope:.2f} x, least squares over {line.worlds}"
        " worlds; bars: 95 % t"
    )
    described = describe_rows(table, "world", "kind", interval=True)
    return finish(
        alt.layer(*layers), "The price of one reward per rollout", note, described, height=280
    )


def groups_table(worlds: Sequence[Tables]) -> pd.DataFrame:
    """Table of `groups_chart`, with columns as of `rules_table`; a rule is what a group size gains
    over pairs.
    """
    rows = []
    for tables in worlds:
        start = tables["worlds_groups/runs"].query("batch == 0")["value"].mean()
        missed = unit_outcomes(tables, "worlds_groups").groupby("arm")["censored"].mean()
        for gain, measure in (
            ("tokens", partial(lead, base=PAIRS, study="worlds_groups")),
            ("signal", SIGNAL),
        ):
            for size in [*GROUPS][1:]:
                values = measure(tables, arm=size)
                named = {
                    "world": f"{world_name(tables.scale)}, from {start:.2f}",
                    "rule": f"{gain}, G = {size}",
                }
                named |= {"censored": missed[size], "units": len(values)}
                rows.append(
                    named | dict(zip(("octaves", "low", "high"), t_interval(values), strict=True))
                )
    return pd.DataFrame(rows)


def groups_chart(table: pd.DataFrame):
    """Start values against group sizes: octaves ahead of pairs in tokens to half-way and in an
    update's signal.
    """
    note = (
        "octaves ahead of pairs at as many rollouts: in tokens to half-way, and in the signal's"
        " share of one batch"
    )
    described = describe_rows(table, "world", "rule", value="octaves", form="+.2f")
    return titled(
        rules_chart(table), "Rollouts to a prompt, over start values", note, f"Octaves. {described}"
    )


def defaults_table(worlds: Sequence[Tables]) -> pd.DataFrame:
    """Table of `defaults_chart`: default (a setting) with its world, weights, part, and its mean,
    low and high.
    """
    rows = []
    for tables in worlds:
        for name in ASKED.get(tables.scale, TWINS):
            for weights, arm in (("its own weights", name), ("equal weights", TWINS[name])):
                named = {"default": f"{name}, {world_name(tables.scale)}", "weights": weights}
                parts = {"bias, share of the expected update": BIAS(tables, arm=arm)}
                parts["noise, share of one batch's"] = 1 - BIAS(
                    tables, part="mean2", whole="total2", arm=arm
                )
                parts |= {
                    "tax, over plain's": TAX(tables, arm),
                    "value, minus plain's": AHEAD(tables, arm),
                }
                for part, values in parts.items():
                    ends = np.exp(t_interval(values)) if "tax" in part else t_interval(values)
                    rows.append(named | {"part": part} | dict(zip(INTERVAL, ends, strict=True)))
    return pd.DataFrame(rows)


def defaults_chart(table: pd.DataFrame):
    """A panel each for bias, noise, tax and value: a setting beside the same run with equal
    weights.
    """
    charts, look = [], {"number": ".2f", "height": alt.Step(20)}
    for part, rows in table.groupby("part", sort=False):
        y = alt.Y("default:N", sort=None, title=None).axis(labels=len(charts) % 2 == 0)
        charts.append(bars(rows, y, alt.X("mean:Q", title=part), "weights", **look))
    note = (
        "beside length and clip equal weights, beside the others plain; bars: 95 % t intervals over"
        " policies"
    )
    described = describe_rows(table, "part", "default", "weights", interval=True)
    rows = [alt.hconcat(*charts[k : k + 2], spacing=14) for k in range(0, len(charts), 2)]
    return panels(rows, "What four settings leave", note, described, vertical=True)
