"""The evidence on one page: experiments of data/book/evidence.yaml, with the ledger's numbers."""

from pathlib import Path

import numpy as np
import pandas as pd

from workbook.ledger import (
    CANNOT,
    OPEN,
    experiments,
    format_effect,
    format_number,
    kept_ledger,
    read_book,
    row_of,
)
from workbook.studies.storage import read_manifest

# from data/book
_CHAPTERS = "../../notebooks/"
_ALL_WORLDS = "worlds"


def evidence_markdown() -> str:
    """The page: what holds for all experiments, then each of them."""
    table = kept_ledger()
    primary_rows = [row_of(one["primary"]) for one in experiments().values()]
    predicted = table[table["predicted_low"].notna() & table["mean"].notna()]
    opening = read_book("evidence")["opening"].format(
        tested=sum(bool(np.isfinite(row.p_holm)) for row in primary_rows),
        rows=len(predicted),
        seen=int((predicted["seen_before"] != "no").sum()),
    )
    sections = [_section(name, one) for name, one in experiments().items()]
    return "\n".join([opening, *sections])


def evidence_table() -> pd.DataFrame:
    """A row an experiment: its question, word, number with its interval, and count of units."""
    rows = []
    for one in experiments().values():
        row = row_of(one["primary"])
        rows.append((one["question"], row.outcome, format_number(row, 2), row.units))
    table = pd.DataFrame(rows, columns=["question", "outcome", "number", "units"])
    return table.set_index("question")


def _section(name: str, one: dict) -> str:
    """An experiment: question, word, number, controls, figure, commands, what would change it."""
    row = row_of(one["primary"])
    units = f"{row.units} units"
    if row.policies < row.units:
        units += f" on {row.policies:.0f} policies"
    side = "above" if row.toward > 0 else "below"
    claim = f"{side} {row.threshold:g} ± {row.smallest_effect:g}"
    holm = f", Holm's p {row.p_holm:.2g}" if np.isfinite(row.p_holm) else ""
    number = f"{format_number(row, 2)}, {units} ({row.scale})"
    controls = [
        f"{kind} control: {_rows(one[kind.lower()])}"
        for kind in ("Positive", "Negative")
        if one[kind.lower()]
    ]
    figure = f"[{one['figure']}]({_CHAPTERS}{one['chapter']}.ipynb)"
    note = f" {one['note']}" if "note" in one else ""

    lines = [f'<a id="{name}"></a>', "", f"## {one['question']}", ""]
    lines.append(f"**{row.outcome}**: {number}. Claim: {claim}. Row {one['primary']}{holm}.")
    if row.outcome in (CANNOT, OPEN):
        lines.append(f"Why: {row.reason}.")
    lines += ["", f"- {' '.join(controls)}"]
    if one.get("beside"):
        lines.append(f"- Beside it: {_rows(one['beside'])}")
    lines.append(f"- Figure: {figure}. Pilot: {one['seen']}.{note}")
    lines.append(f"- Again: {'; '.join(_commands(one, row))}.")
    lines += [f"- Would change our mind: {one['change']}", ""]
    return "\n".join(lines)


def _rows(rows: dict[str, str]) -> str:
    """Rows as a list in a sentence."""
    parts = []
    for key, text in rows.items():
        row = row_of(key)
        parts.append(f"{text}: {format_effect(row, 2)}, *{row.outcome}*")
    return "; ".join(parts) + "."


def _commands(one: dict, row) -> list[str]:
    """The commands that measure an experiment's studies again, with the minutes that they take."""
    return [
        f"`measure {study} --scale {row.scale}` ({format_minutes(minutes(study, row.scale))})"
        for study in one.get("studies", [row.study])
    ]


def minutes(study: str, scale: str) -> float:
    """How long the units of a study took at a scale, by their manifest; "worlds" is all worlds."""
    rows = read_manifest(study)
    own = rows["scale"].str.startswith("world:") if scale == _ALL_WORLDS else rows["scale"] == scale
    return float(rows.loc[own, "seconds"].sum() / 60)


def format_minutes(count: float) -> str:
    """Minutes in words: "1 minute", "1,532 minutes"."""
    return f"{count:,.0f} minute{'' if round(count) == 1 else 's'}"


def write_evidence(path: Path) -> bool:
    """Write the page to a file; whether it changed."""
    text = evidence_markdown()
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    path.write_text(text, encoding="utf-8")
    return True
