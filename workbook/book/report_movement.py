"""Sections of a report on what weights and steps did: ratios, residuals, movement, length, and a model's couplings."""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbook.book.report_charts import movement_chart, residual_chart
from workbook.book.report_parts import TOP, Section, interval_text, numbers, table_of, token_texts
from workbook.probes.report import Report, percent
from workbook.probes.report_tokens import against_share, mean_residual
from workbook.views.style import visible

QUANTITIES = {"ratio": "The ratio to the policy that sampled", "importance": "The importance ratio to the sampler"}
PERCENTILES = {"p1": "1st percentile", "p25": "25th", "p50": "median", "p75": "75th", "p99": "99th percentile"}
MOVED = {  # column: its title and format
    "entropy": ("entropy (nats)", ".3f"),
    "change": ("change of log p (nats)", "+.4f"),
    "against": ("against own push", ".0%"),
}


def ratios_section(report: Report) -> Section:
    """Spread of the ratios, and the residual of exchangeability."""
    section = Section("ratios", "Ratios, and what unequal weights leave")
    section.how = [
        "residual of a place = |sum of push| / sum of |push| over the rollouts that have the same token there (D1 of "
        "arXiv 2604.13088). Ratios, clips and masks that differ between rollouts keep shared tokens from cancelling."
    ]
    section.missing = [report.missing["ratios"]] if "ratios" in report.missing else []
    table = report.ratios
    for row in table.itertuples():
        section.lead.append(
            f"{QUANTITIES[row.quantity]} averages {row.mean:.3f}; the middle 98 % reach from {row.p1:.3f} to "
            f"{row.p99:.3f}."
        )
    if len(table):
        columns = {
            "quantity": table["quantity"],
            "tokens": numbers(table["n"], ","),
            "mean": numbers(table["mean"], ".3f"),
        }
        columns |= {title: numbers(table[name], ".3f") for name, title in PERCENTILES.items()}
        section.tables = [table_of("Spread over tokens with an advantage", columns)]
    if len(report.residuals):
        derived = "ratios" in report.missing
        section.lead += _residual_sentences(report.residuals, derived)
        if len(report.residuals) > 1 and not derived:
            section.figures = [residual_chart(report.residuals)]
    return section


def _residual_sentences(table: pd.DataFrame, derived: bool) -> list[str]:
    """What remains in shared places; derived: weights are not known, and were taken as equal."""
    mean, equal = mean_residual(table, "residual"), mean_residual(table, "equal")
    start = f"In the {table['places'].sum():,} places that several rollouts of a group share,"
    if derived:
        return [f"{start} {equal:.3f} of the push remains if weights are equal; what they were is not in the file."]
    sentences = [f"{start} {mean:.3f} of the push remains on average; equal weights would leave {equal:.3f}."]
    if count := int(table["whole"].sum()):
        whole, equal = mean_residual(table, "whole_residual"), mean_residual(table, "whole_equal")
        sentences.append(
            f"In the {count:,} that all of a group share, {whole:.4f} remains; equal weights: {equal:.4f}."
        )
    return sentences


def movement_section(report: Report) -> Section:
    """Entropy and movement of log-probabilities."""
    section = Section("movement", "Entropy and movement")
    section.missing = [report.missing[name] for name in ("entropy", "movement") if name in report.missing]
    table = report.movement
    if table.empty:
        return section
    steps = table.groupby("step").mean(numeric_only=True)
    if "change" in table:
        change = table.groupby("sign")["change"].mean().sort_index(ascending=False)
        parts = [f"{mean:+.4f} nats on tokens of {sign} advantage" for sign, mean in change.items()]
        share = against_share(table)  # NaN where no pushed token moved
        own = f"; {percent(share)} of the pushed tokens that moved went against their own push" * (share >= 0)
        section.lead.append(f"A step changed log p by {' and '.join(parts)}{own}.")
    if "entropy" in table:
        first, last = steps["entropy"].iloc[0], steps["entropy"].iloc[-1]
        fall = f" at step {steps.index[-1]}; at step {steps.index[0]} it was {first:.3f}" if len(steps) > 1 else ""
        section.lead.append(f"Entropy is {last:.3f} nats per token{fall}.")
    if len(steps) > 1:
        section.figures = [movement_chart(table, name) for name in ("entropy", "change") if name in table]
    columns = {"step": table["step"], "advantage": table["sign"]}
    columns |= {title: numbers(table[name], form) for name, (title, form) in MOVED.items() if name in table}
    section.tables = [table_of("Mean over tokens with an advantage", columns)]
    return section


def lengths_section(report: Report) -> Section:
    """Length against sign."""
    section = Section("lengths", "Length against sign")
    section.how = [
        "A loss that divides by each rollout's own length (1/T) gives the tokens of long rollouts less push. Where "
        "length goes with the sign, shared tokens then no longer cancel, and long failures are punished less."
    ]
    table, gap = report.lengths, report.length_gap
    if table.empty:
        section.lead = ["No rollout has an advantage."]
        return section
    parts = [f"{row.length:.1f} tokens with {row.sign} advantage ({row.rollouts:,})" for row in table.itertuples()]
    section.lead = [f"Rollouts have on average {' and '.join(parts)}."]
    if gap is not None and np.isfinite(gap.mean):
        section.lead.append(
            f"Within a group the negative ones are longer by {gap.mean:+.1f} tokens{interval_text(gap, '+.1f')}."
        )
    columns = {
        "advantage": table["sign"],
        "rollouts": numbers(table["rollouts"], ","),
        "mean length": numbers(table["length"], ".1f"),
        "mean |push| of a token": numbers(table["push"], ".3g"),
    }
    section.tables = [table_of("Length and push by the sign of a rollout's advantage", columns)]
    return section


def model_section(report: Report) -> Section:
    """What negative tokens pull down, by the model."""
    model = report.model
    section = Section("model", "Which correct tokens negative ones pull down")
    section.how = [
        "pull = sum over pairs of K_ij push_j, in nats per unit of learning rate of a step on the output layer, with "
        "K_ij = <h_i, h_j> <e_i - p_i, e_j - p_j> (arXiv 2605.08666). Correct tokens are those of positive rollouts."
    ]
    section.lead = [_scored_sentence(report)]
    for same, where in ((False, "elsewhere in the group"), (True, "at the same position")):
        part = model.pulls[model.pulls["same_place"] == same].head(TOP)
        if len(part):
            columns = {
                "negative token": token_texts(part["negative"]),
                "pulls down": token_texts(part["positive"]),
                "pairs": numbers(part["pairs"], ","),
                "pull": numbers(part["pull"], ".3g"),
            }
            caption = f"Negative tokens and the correct tokens that they pull down, {where}"
            section.tables.append(table_of(caption, columns, ("negative token", "pulls down")))
    worst = model.undone[model.undone["down"] < 0].head(TOP)
    if len(worst):
        columns = {"correct token": token_texts(worst["token"])}
        columns |= {"up": numbers(worst["up"], "+.3g"), "down": numbers(worst["down"], "+.3g")}
        columns |= {"taken back": numbers(worst["undone"], ".0%")}
        caption = "What positive rollouts of the group do for correct tokens, and what negative ones take back"
        section.tables.append(table_of(caption, columns, ("correct token",)))
    return section


def _scored_sentence(report: Report) -> str:
    scored, name = report.model.scored, visible(report.model.name, 100, " ")
    sentence = (
        f"{name} scored the {len(scored):,} tokens of the newest groups: log p is {scored['model_logp'].mean():.3f} "
        f"and entropy {scored['model_entropy'].mean():.3f} nats on average"
    )
    for column, what in (("logp", "before the step"), ("old_logp", "when it was sampled")):
        if column in scored and scored[column].notna().any():
            gap = (scored["model_logp"] - scored[column]).abs().mean()
            return f"{sentence}; the file's log p {what} differs from it by {gap:.4f} nats on average."
    return f"{sentence}."
