"""A ledger as text: one line per claim, or every measurement of a claim with what decided it."""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbook.claims.judge import DESCRIBED
from workbook.claims.ledger import summary


def format_summary(table: pd.DataFrame) -> str:
    """A `ledger` as text, one line per claim: the outcome of its primary row at each scale, and what it states."""
    claims = summary(table)
    scales = list(dict.fromkeys(claims["scale"]))
    rows = [["claim", *scales, "states that"]]
    for claim, of_claim in claims.groupby("claim", sort=False):
        outcomes = of_claim.set_index("scale")["outcome"]
        rows.append([claim, *(outcomes.get(scale, "–") for scale in scales), of_claim["statement"].iloc[0]])
    widths = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)]
    widths[-1] = 0
    lines = ["".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)) for row in rows]
    counts = ", ".join(f"{count} {outcome}" for outcome, count in claims["outcome"].value_counts().items())
    return "\n".join([*lines, "", f"{len(claims)} primary rows: {counts}."])


def format_ledger(table: pd.DataFrame, commands: bool = False, checks: bool = True) -> str:
    """A `ledger` as text, claim by claim and scale by scale.

    commands: with those that recompute each measurement.  checks: with what was computed beside each interval, the
    paper's setting and where the threshold came from; without, as a chapter shows it.
    """
    lines = []
    for claim, part in table.groupby("claim", sort=False):
        row = part.iloc[0]
        lines += ["", f"{claim}  {row['statement']}"]
        lines += [f"    {'met' if claim.endswith('falsifier') else 'refuted'} if {row['falsifier']}"]
        for scale, rows in part.groupby("scale", sort=False):
            deciding, described = rows[rows["role"] != DESCRIBED], rows[rows["role"] == DESCRIBED]
            lines += ["", f"    {scale}"]
            for one in deciding.itertuples():
                lines += _deciding(one, checks)
            lines += ["        described, decides nothing:"] if len(described) else []
            lines += [f"            {one.measured}: {format_effect(one)}" for one in described.itertuples()]
            if commands:
                lines += [f"        $ {text}" for text in dict.fromkeys(rows["command"]) if text]
    return "\n".join(lines[1:])


def format_effect(row, digits: int = 3) -> str:
    """Mean and interval of a row of the ledger; the mean alone where there is no interval."""
    if not np.isfinite(row.mean):
        return "not measured"
    if not np.isfinite(row.low):
        return f"{row.mean:.{digits}g}"
    return f"{row.mean:.{digits}g} [{row.low:.{digits}g}, {row.high:.{digits}g}]"


def format_stated(row) -> str:
    """Threshold, side and smallest effect of interest of a row, in words; empty for one that decides nothing."""
    if not np.isfinite(row.toward) or not np.isfinite(row.threshold):
        return ""
    zone = f", smallest effect of interest {row.smallest_effect:g}" if np.isfinite(row.smallest_effect) else ""
    return f"the claim: {'above' if row.toward > 0 else 'below'} {row.threshold:g}{zone}"


def format_units(row) -> str:
    """How many units a row rests on, and how many policies where these are fewer."""
    shared = f" on {row.policies:.0f} policies, whose means are judged" if row.policies < row.units else ""
    return f"{row.units} of {row.registered_units} registered units{shared}"


def format_checks(row) -> list[str]:
    """What was computed beside the interval of a judged row, a phrase each."""
    if not np.isfinite(row.p):
        return []
    thing = ("policy", "policies") if row.policies < row.units else ("unit", "units")
    fewest = f"decided by {row.decided_by:.0f} {thing[row.decided_by > 1]}"
    return [
        f"p = {row.p:.2g}" + (f", q = {row.q:.2g}" if np.isfinite(row.q) else ""),
        f"sign flips p = {row.p_flips:.2g}",
        *([f"as if all units were independent p = {row.p_units:.2g}"] if row.policies < row.units else []),
        f"equivalence p = {row.p_equivalent:.2g}",
        f"minimum detectable effect {row.detectable:.2g}",
        f"one {thing[0]} left out {row.without_low:.3g} to {row.without_high:.3g}",
        fewest if np.isfinite(row.decided_by) else f"no removal of {thing[1]} changes it",
    ]


def format_origin(row) -> list[str]:
    """Where a row's threshold and tables came from, a phrase each."""
    clean = {True: "clean tree", False: "a modified tree"}.get(row.clean, "tree not known")
    phrases = [f"source: {row.source}", f"seen before: {row.seen_before}", f"tables from {clean}"]
    phrases += [f"registration {row.registration}"] if row.registration else []
    phrases += [f"{row.dropped} units without a number"] if row.dropped else []
    if row.looked:
        phrases += [f"units {row.looked[0]} to {row.looked[-1]} were measured after the earlier ones' outcome was seen"]
    return phrases + ([f"units added after registration: {', '.join(map(str, row.added))}"] if row.added else [])


def _deciding(row, checks: bool) -> list[str]:
    """A registered measurement, on several lines."""
    lines = [f"        {row.role}: {row.outcome.upper()}" + (f" ({row.reason})" if row.reason else "")]
    if not row.measured:
        return lines
    lines += [f"            {row.measured}"]
    effect = f"{format_effect(row)} {row.unit}".rstrip()
    lines += [f"            {effect}; {format_units(row)}; {format_stated(row)}"] if row.values else []
    if not checks:
        return lines
    lines += [f"            {'; '.join(format_checks(row))}"] if format_checks(row) else []
    paper = f"{row.paper_effect or 'not known'}; comparable: {row.comparable}"
    lines += [f"            paper: {paper}" + (f"; place: {row.place}" if row.place else "")]
    return [*lines, f"            {'; '.join(format_origin(row))}"]
