"""What the book found, how sure that is, and what to do: sentences that follow from the ledger's outcomes.

A sentence in data/book/findings.yaml names the rows that it rests on, and the outcomes under which it holds. Numbers in
it are read from those rows, or from the arena's table. Where an outcome is another one, the question and the outcomes
are shown in its place, so that no sentence survives the measurement that made it true.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
import yaml

from workbook.claims.ledger import kept_ledger
from workbook.claims.text import format_effect, registered
from workbook.places import data_path
from workbook.statistics import unit_curve
from workbook.studies.record import load_measured

SOURCE = data_path("book", "findings.yaml")
NUMBER = re.compile(r"\{([^{}:]+)(:%)?\}")
ARENA = "arena "  # {arena RULE} is a rule's exact value minus that of plain advantages
BLOCK = re.compile(r"(<!-- findings -->\n).*?(<!-- /findings -->)", re.DOTALL)  # of README


@dataclass(frozen=True)
class Finding:
    """A sentence and what it rests on; of a decision also the trainer's settings, what to do, and where it stops."""

    question: str
    when: Mapping[str, str]
    says: str
    setting: Sequence[str] = ()
    stops: str = ""

    def holds(self) -> bool:
        """Whether all outcomes are those that the sentence was written for."""
        return all(registered()[key].outcome == outcome for key, outcome in self.when.items())

    def sentence(self) -> str:
        """The sentence with its numbers, or the question with the outcomes as they are."""
        if self.holds():
            return NUMBER.sub(lambda match: _number(match[1], percent=bool(match[2])), self.says)
        rows = [registered()[key] for key in self.when]
        outcomes = "; ".join(f"{row.measured}: {row.outcome}, {format_effect(row)}" for row in rows)
        return f"**{self.question}** {outcomes}."

    def certainty(self) -> str:
        """How sure: the outcomes of the rows with their keys, and how many units they rest on."""
        rows = [registered()[key] for key in self.when]
        outcomes = {row.outcome: [r.key for r in rows if r.outcome == row.outcome] for row in rows}
        fewest, most = min(row.units for row in rows), max(row.units for row in rows)
        units = f"{most}" if fewest == most else f"{fewest} to {most}"
        return "; ".join(f"{outcome} ({', '.join(keys)})" for outcome, keys in outcomes.items()) + f"; {units} units"


@cache
def read_findings() -> dict[str, list[Finding]]:
    """The findings and the decisions of `SOURCE`."""
    records = yaml.safe_load(SOURCE.read_text(encoding="utf-8"))
    decisions = [
        Finding(row["do"], row["when"], row["says"], row["setting"], row["stops"]) for row in records["decisions"]
    ]
    return {"findings": [Finding(**row) for row in records["findings"]], "decisions": decisions}


def findings_markdown() -> str:
    """What we found, and how sure: a numbered line each, and a last one on what no row decides."""
    lines = [f"{i}. {one.sentence()} *{one.certainty()}.*" for i, one in enumerate(read_findings()["findings"], 1)]
    return "\n".join([*lines, "", open_markdown()])


def open_markdown() -> str:
    """What the ledger leaves open, in numbers."""
    rows = kept_ledger().query("role == 'primary' and scale == 'family'")
    counts = ", ".join(f"{count} {outcome}" for outcome, count in rows["outcome"].value_counts().items())
    return (
        "All of it was measured on policies of some 136 thousand parameters and one synthetic task: of its "
        f"{len(rows)} primary rows {counts}. {described_markdown()} Intervals are 95 % t intervals over policy x seed."
    )


def described_markdown() -> str:
    """Finding 4 on a real language model, whose units are no sample of models and so decide nothing."""
    rates = load_measured("dose_llm", "smollm2_plain", "rates").query("tokens == 'moved'")
    curve = unit_curve(rates, "prompts", "follows")
    chances = [f"{row['mean']:.2f} [{row['low']:.2f}, {row['high']:.2f}]" for _, row in curve.iterrows()]
    return (
        "Larger language models are described, and decide nothing: on SmolLM2-135M, over "
        f"{curve['units'].min()} draws of prompts and rollouts from one task, a token that moves goes where its own "
        f"rollout's sign says with a chance of {chances[0]} where its prompt pushes alone, and of {chances[-1]} where "
        f"{curve['prompts'].max()} do."
    )


def decisions_markdown() -> str:
    """What to do, as a table: setting of TRL or of the trainer, what we would do, why, how sure, and where it stops."""
    lines = ["| setting | do | why | how sure | where it stops |", "|---|---|---|---|---|"]
    for one in read_findings()["decisions"]:
        names = ", ".join(f"`{name}`" for name in one.setting)
        why = one.sentence() if one.holds() else "outcomes have changed since this was written: " + one.sentence()
        lines.append(f"| {names} | {one.question} | {why} | {one.certainty()} | {one.stops} |")
    return "\n".join(lines)


def findings():
    """Show what the book found, computed from the ledger, in a notebook."""
    from IPython.display import Markdown

    return Markdown(findings_markdown())


def decisions():
    """Show what to do about it, computed from the ledger, in a notebook."""
    from IPython.display import Markdown

    return Markdown(decisions_markdown())


def undecided() -> pd.DataFrame:
    """Primary rows that decide nothing: interval, smallest effect of interest, detectable effect, units had and needed.

    Units needed are those at which, with the spread as it is, the detectable effect (at 80 % power) would shrink to the
    smallest one of interest: it goes as 1 / sqrt(units). NaN where a row is not inconclusive: units would not help.
    """
    rows = [row for row in registered().values() if row.role == "primary"]
    open_ = [row for row in rows if row.outcome in ("inconclusive", "not testable here", "not comparable")]
    names = ["claim", "statement", "outcome", "mean", "low", "high", "smallest_effect", "detectable", "units"]
    table = pd.DataFrame([[getattr(row, name) for name in names] for row in open_], columns=names)
    needed = np.ceil(table["units"] * (table["detectable"] / table["smallest_effect"]) ** 2)
    return table.assign(**{"units needed": needed.where(table["outcome"] == "inconclusive")})


def write_readme(path) -> bool:
    """Write the findings between a file's marks; whether it changed. Raises ValueError for a file without them."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if not BLOCK.search(text):
        raise ValueError(f"{path} has no line <!-- findings --> with <!-- /findings --> below it to write between.")
    new = BLOCK.sub(lambda match: f"{match[1]}{findings_markdown()}\n{match[2]}", text)
    if new != text:
        path.write_text(new, encoding="utf-8")
    return new != text


def _number(key: str, percent: bool) -> str:
    """A row's mean and interval as text."""
    if key.startswith(ARENA):
        row = _arena().loc[key.removeprefix(ARENA)]
        return f"{row['over_plain']:+.3f} [{row['over_plain_low']:.3f}, {row['over_plain_high']:.3f}]"
    row = registered()[key]
    if not percent:
        return format_effect(row, 2)
    return f"{100 * row.mean:.0f} % [{100 * row.low:.0f}, {100 * row.high:.0f}]"


@cache
def _arena() -> pd.DataFrame:
    """The table of the arena, by rule."""
    from workbook.topics.arena import measured_table

    return measured_table().set_index("rule")
