"""A ledger as text: one line per claim, or every measurement of a claim."""

from __future__ import annotations

import pandas as pd

from workbook.claims.ledger import summary


def format_summary(table: pd.DataFrame) -> str:
    """A `ledger` as text, one line per claim: its verdict at each scale, and what it states."""
    claims = summary(table)
    scales = list(claims["scale"].unique())
    claims["marked"] = [_marked(*row) for row in zip(claims["verdict"], claims["fragile"], strict=True)]
    rows = [["claim", *scales, "states that"]]
    for claim, of_claim in claims.groupby("claim", sort=False):
        marked = of_claim.set_index("scale")["marked"]
        rows.append([claim, *(marked.get(scale, "") for scale in scales), of_claim["statement"].iloc[0]])
    widths = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)]
    widths[-1] = 0
    return "\n".join("".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)) for row in rows)


def format_ledger(table: pd.DataFrame, commands: bool = False) -> str:
    """A `ledger` as text, claim by claim and scale by scale; commands: with those that recompute each measurement."""
    claims = summary(table).set_index(["claim", "scale"])
    lines = []
    for claim, part in table.groupby("claim", sort=False):
        row = part.iloc[0]
        lines += [
            "",
            f"{claim}  {row['statement']}",
            f"    {'met' if claim.endswith('falsifier') else 'refuted'} if {row['falsifier']}",
        ]
        for scale, rows in part.groupby("scale", sort=False):
            lines.append(f"    {scale:<10}{_marked(*claims.loc[(claim, scale), ['verdict', 'fragile']])}")
            measured = rows[rows["mean"].notna()]
            lines += [line for row in measured.itertuples() for line in _measurement(row)]
            missing = rows.loc[rows["mean"].isna(), "reason"].value_counts()
            lines += [f"        {reason} ({count} of {len(rows)})" for reason, count in missing.items()]
            if commands:
                lines += [f"        $ {text}" for text in dict.fromkeys(rows["command"]) if text]
    return "\n".join(lines[1:])


def format_effect(row, digits: int = 3) -> str:
    """Mean and interval of a row of the ledger."""
    return f"{row.mean:.{digits}g} [{row.low:.{digits}g}, {row.high:.{digits}g}]"


def _measurement(row) -> list[str]:
    """A measurement on two lines: what, and how it came out."""
    reason = f" ({row.reason})" if row.reason else ""
    size = f"{row.seeds:.0f} seeds, n = {row.n:.0f}"
    outcome = f"{row.stated or 'no threshold'}; {size}: {_marked(row.verdict, row.fragile)}{reason}"
    return [f"        {row.measured}", f"            {format_effect(row)}; {outcome}"]


def _marked(verdict: str, fragile: bool) -> str:
    return f"{verdict}, fragile" if fragile else verdict
