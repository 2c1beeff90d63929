"""The evidence on one page: the dozen experiments of data/book/evidence.yaml, with the numbers of
the kept ledger.
"""

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

CHAPTERS = "../../notebooks/"  # from data/book
WORLDS = "worlds"


def evidence_markdown() -> str:
    """The page: what holds for all experiments, then each of them."""
    table, tested = kept_ledger(), [row_of(one["primary"]) for one in experiments().values()]
    known = table[table["predicted_low"].notna() & table["mean"].notna()]
    facts = {"tested": sum(bool(np.isfinite(row.p_holm)) for row in tested)}
    facts |= {"rows": len(known), "seen": int((known["seen_before"] != "no").sum())}
    return "\n".join(
        [
            read_book("evidence")["opening"].format(**facts),
            *(_section(name, one) for name, one in experiments().items()),
        ]
    )


def evidence_table() -> pd.DataFrame:
    """A row an experiment: its question, the word, the number with its interval, and how many
    units.
    """
    rows = []
    for one in experiments().values():
        row = row_of(one["primary"])
        rows.append((one["question"], row.outcome, format_number(row, 2), row.units))
    return pd.DataFrame(rows, columns=["question", "outcome", "number", "units"]).set_index(
        "question"
    )


def _section(name: str, one: dict) -> str:
    """An experiment: question, word and number, controls, what lies beside, figure, command, what
    would change it.
    """
    row = row_of(one["primary"])
    units = f"{row.units} units" + (
        f" on {row.policies:.0f} policies" if row.policies < row.units else ""
    )
    claim = f"{'above' if row.toward > 0 else 'below'} {row.threshold:g} ± {row.smallest_effect:g}"
    tested = f", Holm's p {row.p_holm:.2g}" if np.isfinite(row.p_holm) else ""
    lines = [f'<a id="{name}"></a>', "", f"## {one['question']}", ""]
    number = f"{format_number(row, 2)}, {units} ({row.scale})"
    lines += [f"**{row.outcome}**: {number}. Claim: {claim}. Row {one['primary']}{tested}."]
    lines += [f"Why: {row.reason}."] if row.outcome in (CANNOT, OPEN) else []
    controls = [
        f"{kind} control: {_rows(one[kind.lower()])}"
        for kind in ("Positive", "Negative")
        if one[kind.lower()]
    ]
    lines += ["", f"- {' '.join(controls)}"]
    lines += [f"- Beside it: {_rows(one['beside'])}"] if one.get("beside") else []
    figure = f"[{one['figure']}]({CHAPTERS}{one['chapter']}.ipynb)"
    lines += [
        f"- Figure: {figure}. Pilot: {one['seen']}.{' ' + one['note'] if 'note' in one else ''}"
    ]
    lines += [
        f"- Again: {'; '.join(_commands(one, row))}.",
        f"- Would change our mind: {one['change']}",
        "",
    ]
    return "\n".join(lines)


def _rows(rows: dict[str, str]) -> str:
    """Rows as a list in a sentence."""
    parts = [
        f"{text}: {format_effect(row_of(key), 2)}, *{row_of(key).outcome}*"
        for key, text in rows.items()
    ]
    return "; ".join(parts) + "."


def _commands(one: dict, row) -> list[str]:
    """The commands that measure an experiment's studies again, with the minutes that their units
    took.
    """
    return [
        f"`measure {study} --scale {row.scale}` ({format_minutes(minutes(study, row.scale))})"
        for study in one.get("studies", [row.study])
    ]


def minutes(study: str, scale: str) -> float:
    """How long the units of a study took at a scale, by their manifests; of all worlds together for
    "worlds".
    """
    rows = read_manifest(study)
    own = rows["scale"].str.startswith("world:") if scale == WORLDS else rows["scale"] == scale
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
