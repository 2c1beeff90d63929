"""What the book found, how sure that is, and what to do: sentences that follow from the ledger's outcomes.

Findings come in three layers: proved, measured here, open. A sentence in data/book/findings.yaml names the rows that it
rests on, and the outcomes under which it holds; its numbers are read from those rows. Where an outcome is another one,
or a measured sentence cites a row that is neither primary nor clear among all (q_all), the question and the outcomes
stand in its place.
Below: the papers, figure by figure (chapter 14), from data/book/figures.yaml.
"""

import html
import re
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace

import numpy as np
import pandas as pd
from IPython.display import Markdown

from workbook.claims.ledger import claim_of, format_effect, kept_ledger, measured_of, predictions, registered
from workbook.claims.sentences import outcome_badge, plain_outcome
from workbook.colab import addresses_markdown
from workbook.places import data_path, parse_yaml
from workbook.statistics import unit_curve
from workbook.studies.record import load_measured
from workbook.terminal import laid_out

NUMBER = re.compile(r"\{([^{}:]+)(:%)?\}")
LAYERS = {  # layer: what stands above its sentences
    "proved": "**Proved**, by a few lines of algebra:",
    "measured": "**Measured here**, in worlds that a line names, on policies of some 100,000 parameters or on SmolLM2:",
    "open": "**Open**:",
}
OWN = ("family", "smollm2:sums", "smollm2:ramble")  # scales whose rows have keys of their own
CLEAR = 0.05  # q over all judged rows below which a sentence may cite a row that is not primary
SIGNS = {"proved": "🟦", "measured": "🟩", "open": "⬜"}
FOLD = "<details><summary>{sign} {number}. <b>{line}</b></summary>\n\n{rest} *{sure}.*\n\n</details>"
GRID = "display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 340px), 1fr)); gap: 12px"
CARD = "border: 1px solid #8886; border-radius: 6px; padding: 10px 14px; line-height: 1.4; overflow-wrap: break-word"
PART = '<p style="margin: 0 0 6px">{}</p>'
BLOCK = r"(<!-- {0} -->\n).*?(<!-- /{0} -->)"  # of README


@dataclass(frozen=True)
class Finding:
    """A sentence and what it rests on; of a decision also the trainer's settings, what to do, and where it stops.

    layer: of LAYERS, of a finding.  before: whether its rows were chosen before their units were measured.  sure: what
    is said of a sentence that rests on no row.
    """

    question: str = ""
    when: Mapping[str, str] = field(default_factory=dict)
    says: str = ""
    setting: Sequence[str] = ()
    stops: str = ""
    layer: str = ""
    before: bool = False
    sure: str = ""

    def holds(self) -> bool:
        """Whether all outcomes are those that the sentence was written for, and no row is cited that must not be."""
        return all(row_of(key).outcome == outcome for key, outcome in self.when.items()) and not self.unclear()

    def unclear(self) -> list[str]:
        """Rows that a measured sentence cites though they are neither primary nor clear among all rows."""
        cited = [*self.when, *(key for key, _ in NUMBER.findall(self.says))]
        rows = [row_of(key) for key in dict.fromkeys(cited)] if self.layer == "measured" else []
        return [row.key for row in rows if row.role != "primary" and not row.q_all < CLEAR]

    def sentence(self) -> str:
        """The sentence with its numbers, or the question with the outcomes as they are."""
        if self.holds():
            return NUMBER.sub(lambda match: _number(match[1], percent=bool(match[2])), self.says)
        rows = [row_of(key) for key in self.when]
        found = [", ".join(dict.fromkeys((row.outcome, format_effect(row)))) for row in rows]  # once, if not measured
        outcomes = "; ".join(f"{measured_of(row)}: {what}" for row, what in zip(rows, found, strict=True))
        return f"**{self.question}** {outcomes}."

    def certainty(self) -> str:
        """How sure: the outcomes of the rows with their keys, on how many units, when rows were chosen and changed."""
        if not self.when:
            return self.sure
        rows = [row_of(key) for key in self.when]
        outcomes = {row.outcome: [key for key in self.when if row_of(key).outcome == row.outcome] for row in rows}
        sizes = [row.units for row in rows if row.units]  # what is void has none
        fewest, most = min(sizes, default=0), max(sizes, default=0)
        units = f"{most}" if fewest == most else f"{fewest} to {most}"
        few = [f"{row.policies:.0f}" for row in rows if row.policies < row.units]
        judged = "; ".join(f"{outcome} ({', '.join(keys)})" for outcome, keys in outcomes.items())
        judged = judged.replace("@worlds", " over worlds").replace("@", " in ")
        parts = [judged, f"{units} units" + (f" on {few[0]} policies" if few else "")]
        if self.layer:
            parts.append(f"rows chosen {'before the units' if self.before else 'after the data'}")
            since = ", ".join(row.key for row in rows if row.registration not in ("matches", ""))
            parts += [f"measured under an earlier text of the registration: {since}"] if since else []
            seen = ", ".join(row.key for row in rows if row.changed)
            parts += [f"changed when earlier numbers were known: {seen}"] if seen else []
        return "; ".join(parts)


@cache
def read_findings() -> dict:
    """The findings, the decisions, and under rows a sentence on all rows, with places for its numbers."""
    records = parse_yaml(data_path("book", "findings.yaml").read_text(encoding="utf-8"))
    decisions = [Finding(row.pop("do"), **row) for row in records["decisions"]]
    return records | {"findings": [Finding(**row) for row in records["findings"]], "decisions": decisions}


def findings_markdown(folded: bool = False) -> str:
    """What we found, and how sure: a numbered line each, layer by layer, and a last one on what no row decides.

    folded: a bold line each, with all else below it in HTML that opens; a text otherwise.
    """
    lines, layer = [], ""
    for i, one in enumerate(read_findings()["findings"], 1):
        lines += ["", LAYERS[one.layer], ""] if one.layer != layer else []
        line, rest = one.sentence().removeprefix("**").split("**", 1)
        parts = {"sign": SIGNS[one.layer], "number": i, "line": line, "rest": rest.strip(), "sure": one.certainty()}
        lines.append(FOLD.format(**parts) if folded else f"{i}. {one.sentence()} *{one.certainty()}.*")
        layer = one.layer
    primary = kept_ledger().query("role == 'primary'")
    rows, others = primary[primary["scale"] == "family"], primary[primary["scale"] != "family"]
    counts, elsewhere = (
        ", ".join(f"{count} {outcome}" for outcome, count in part["outcome"].value_counts().items())
        for part in (rows, others)
    )
    older = (rows["registration"] == "superseded").sum()
    rates = load_measured("dose_llm", "smollm2_plain", "rates").query("tokens == 'moved'")
    curve = unit_curve(rates, "prompts", "follows")
    chances = [f"{row['mean']:.2f} [{row['low']:.2f}, {row['high']:.2f}]" for _, row in curve.iterrows()]
    facts = {"rows": len(rows), "counts": counts, "elsewhere": elsewhere, "older": older}
    facts |= {"prompts": curve["prompts"].max(), "draws": curve["units"].min(), "one": chances[0]}
    facts |= {"predictions": predictions(kept_ledger())}
    facts |= {"all": chances[-1], "width": _number("S1 width", False), "q": f"{registered()['S1 width'].q_all:.2g}"}
    last = read_findings()["rows"].format(**facts)
    if folded:
        last = f"<details><summary>How many rows, and how sure</summary>\n\n{last}\n\n</details>"
    return "\n".join([*lines[1:], "", last])


def decisions_text() -> str:
    """What to do, setting of TRL or of the trainer by setting: what we would do, why, where it stops, how sure."""
    parts = []
    for one in read_findings()["decisions"]:
        why = one.sentence() if one.holds() else "outcomes have changed since this was written: " + one.sentence()
        parts += [", ".join(f"`{name}`" for name in one.setting), f"  **{one.question}**", f"  Why: {why}"]
        parts += [f"  Where it stops: {one.stops}", f"  *{one.certainty()}*", ""]
    return "\n".join(parts[:-1])


def findings() -> Markdown:
    """Show what the book found, computed from the ledger, in a notebook."""
    return Markdown(findings_markdown(folded=True))


class Decisions:
    """What to do about it, computed from the ledger: a card a setting on a page, text in a terminal."""

    def __repr__(self) -> str:
        return laid_out(decisions_text())

    def _repr_html_(self) -> str:
        return f'<div class="cards" style="{GRID}">{"".join(map(_card, read_findings()["decisions"]))}</div>'


def decisions() -> Decisions:
    """Show what to do about it, in a notebook."""
    return Decisions()


def _card(one: Finding) -> str:
    """A decision as a card: what to do first and in bold, then why, and where that stops."""
    settings = ", ".join(f"<code>{html.escape(name)}</code>" for name in one.setting)
    do = f"<b>{_inline(one.question)}</b>" if one.holds() else "<b>Outcomes have changed since this was written.</b>"
    parts = [settings, do, f"Why: {_inline(one.sentence())}", f"Where it stops: {_inline(one.stops)}"]
    parts.append(f"<i>{_inline(one.certainty())}</i>")
    return f'<div style="{CARD}">{"".join(map(PART.format, parts))}</div>'


def _inline(text: str) -> str:
    """A sentence as HTML, its **bold** and `code` as such."""
    text = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", html.escape(text))
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text)


def undecided() -> pd.DataFrame:
    """Primary rows that decide nothing, with the units at which the detectable effect would be the one of interest.

    The detectable effect (80 % power) goes as 1 / sqrt(units). NaN where a row is not inconclusive.
    """
    rows = [row for row in registered().values() if row.role == "primary"]
    open_ = [row for row in rows if row.outcome in ("inconclusive", "not testable here", "not comparable")]
    names = ["claim", "statement", "outcome", "mean", "low", "high", "smallest_effect", "detectable", "units"]
    table = pd.DataFrame([[getattr(row, name) for name in names] for row in open_], columns=names)
    table["claim"] = [f"{row.claim} {row.words}" for row in open_]
    needed = np.ceil(table["units"] * (table["detectable"] / table["smallest_effect"]) ** 2)
    return table.assign(**{"units needed": needed.where(table["outcome"] == "inconclusive")})


def write_readme(path) -> bool:
    """Write the findings, and the addresses once there are some, between a file's marks; whether it changed."""
    text = new = path.read_text(encoding="utf-8")
    blocks = {"findings": f"{findings_markdown(folded=True)}\n", "addresses": addresses_markdown()}
    for name, block in blocks.items():
        new = re.sub(BLOCK.format(name), lambda match, block=block: match[1] + block + match[2], new, flags=re.DOTALL)
    if new != text:
        path.write_text(new, encoding="utf-8")
    return new != text


def row_of(key: str):
    """A row of the family or of fine-tunes by its key, by key@world one of a world or @worlds."""
    name, _, world = key.partition("@")
    if not world:
        return ChainMap(*map(registered, OWN))[name]
    return registered(world if world == "worlds" else f"world:{world}")[name]


def _number(key: str, percent: bool) -> str:
    """A row's mean and interval as text."""
    row = row_of(key)
    if not percent:
        return format_effect(row, 2)
    return f"{100 * row.mean:.0f} % [{100 * row.low:.0f}, {100 * row.high:.0f}]"


READING = "[reading] "


def figures() -> dict[str, SimpleNamespace]:
    """Read the records of data/book/figures.yaml, whose first lines say what the fields are, by their names."""
    records = parse_yaml(data_path("book", "figures.yaml").read_text(encoding="utf-8"))
    given = {"live": [], "measured": [], "controls": [], "keys": [], "reading": False}
    return {record["figure"]: SimpleNamespace(**given | record) for record in records}


class FigureCard:
    """A figure's record as a card on the page, and as text in a terminal."""

    def __init__(self, figure: SimpleNamespace):
        self.figure = figure
        self.outcomes = [registered()[key] for key in figure.keys]
        shows = READING * figure.reading + figure.shows
        self.lines = {f"Paper {figure.figure[-1]}, {figure.names}": shows, "Here": figure.here}
        self.lines |= {"Controls": ", ".join(figure.controls)} if figure.controls else {}
        self.lines |= {"What differs": figure.differs}

    def __repr__(self) -> str:
        lines = [f"{name}: {text}" for name, text in self.lines.items()]
        rows = [f"  {row.key}: {row.outcome}, {format_effect(row)} {row.unit}".rstrip() for row in self.outcomes]
        return "\n".join([*lines, *(["Outcomes:"] if rows else []), *rows])

    def _repr_html_(self) -> str:
        lines = "".join(f"<p><b>{html.escape(name)}.</b> {html.escape(text)}</p>" for name, text in self.lines.items())
        rows = ""
        for row in self.outcomes:
            number = html.escape(f"{format_effect(row)} {row.unit}".rstrip() + f" ({claim_of(row)})")
            measured = f'<abbr title="{html.escape(row.key)}">{html.escape(measured_of(row))}</abbr>'
            rows += f"<li>{outcome_badge(row.outcome)} {measured}: {number}</li>"
        more = f'<p>More: <a href="{self.figure.chapter}.ipynb">chapter {self.figure.chapter[:2]}</a></p>'
        return lines + (f"<p><b>What the ledger says.</b></p><ul>{rows}</ul>" if rows else "") + more


def show_figure(name: str) -> FigureCard:
    """Show what the paper has, what stands for it here with which controls, what differs, and the ledger's outcomes."""
    if name not in (known := figures()):
        raise ValueError(f"figure={name!r} is not in the gallery; there are {', '.join(known)}.")
    return FigureCard(known[name])


def gallery_table() -> pd.DataFrame:
    """All figures at a glance: what the paper shows, whether it is computed anew, and the first row's outcome."""
    rows = [
        (one.figure, READING * one.reading + one.shows, "yes" if one.live else "no", outcome_word(one.keys))
        for one in figures().values()
    ]
    columns = ["figure", "paper shows", "computed live", "outcome"]
    return pd.DataFrame(rows, columns=columns).set_index("figure")


def outcome_word(keys: list[str]) -> str:
    """The plain word for the outcome of the first of some rows of the ledger."""
    return plain_outcome(registered()[keys[0]].outcome)[0] if keys else "no counterpart"
