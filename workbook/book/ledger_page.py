"""The claims ledger as a page: a card a claim, with what was measured, what follows, and how to measure it again.

It needs neither scripts nor the net: formulas are MathML, and the intervals are drawn with boxes of HTML, so that their
words stay readable on a phone. It is a page of the book, and one that stands alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from jinja2 import Environment
from latex2mathml.converter import convert

from workbook.claims import CLAIMS
from workbook.claims.judge import DESCRIBED
from workbook.claims.text import format_checks, format_effect, format_origin, format_stated, format_units
from workbook.views.ledger import OUTCOME_MARKS, scale_name
from workbook.views.style import NEUTRAL

BODY = Path(__file__).with_name("ledger.html")  # the template
STYLES = [Path(__file__).with_name("static") / name for name in ("book.css", "ledger.css")]
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{styles}</style></head>
<body><div class="page"><main>{body}</main></div></body></html>
"""
TITLE = "The claims ledger"
QUESTION = "What exactly was measured of each claim of the two papers, and what follows?"
INTERVAL = r"\bar{x} \pm t_{n-1} \, \frac{s}{\sqrt{n}}"
PSEUDO = r"x_i = n \hat{\theta} - (n - 1) \hat{\theta}_{(i)}"
PAPERS = {
    "H": "The Cancellation Hypothesis in Critic-Free RL (arXiv 2605.08666)",
    "D": "Design Conditions for Intra-Group Learning of Sequence-Level Rewards: Token Gradient Cancellation "
    "(arXiv 2604.13088)",
    "R": "What a machine review of the first paper found missing",
    "P": "Neighbours: prefix credit and others",
    "S": "Questions of our own: how much of credit one reward per rollout recovers",
    "A": "Questions of our own: credit rules under one budget",
}


def ledger_page(table: pd.DataFrame, chapters: Mapping[str, Sequence[tuple[str, str]]] | None = None) -> str:
    """The page of a `workbook.claims.ledger`, as HTML that stands alone; chapters: as in `ledger_body`."""
    styles = "".join(path.read_text(encoding="utf-8") for path in STYLES)
    return PAGE.format(title=TITLE, styles=styles, body=ledger_body(table, chapters))


def ledger_body(table: pd.DataFrame, chapters: Mapping[str, Sequence[tuple[str, str]]] | None = None) -> str:
    """What stands on the page of a `workbook.claims.ledger`, as HTML.

    chapters: {claim: [(page, title)]} of the chapters that cover the claims.
    """
    cards = [_card(name, part, (chapters or {}).get(name, ())) for name, part in table.groupby("claim", sort=False)]
    primary = table[table["role"] == "primary"]
    counts = primary["outcome"].value_counts()
    body = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        BODY.read_text(encoding="utf-8")
    )
    return body.render(
        title=TITLE,
        question=QUESTION,
        papers={key: title for key, title in PAPERS.items() if key in set(table["paper"])},
        cards=cards,
        counts=[(_outcome(name), int(counts[name])) for name in OUTCOME_MARKS if name in counts],
        interval=convert(INTERVAL),
        pseudo=convert(PSEUDO),
    )


def _card(name: str, rows: pd.DataFrame, chapters: Sequence[tuple[str, str]]) -> dict:
    """What a card shows of one claim: primary rows, those beside them, and those of one policy."""
    shown = [_row(row) for row in rows[rows["role"] != DESCRIBED].itertuples()]
    primary = [row for row in shown if row["role"] == "primary"]
    described = [
        {"scale": scale_name(row.scale), "measured": row.measured, "effect": format_effect(row)}
        for row in rows[rows["role"] == DESCRIBED].itertuples()
    ]
    return {
        "name": name,
        "claim": CLAIMS[name],
        "fails": "Met" if name.endswith("falsifier") else "Refuted",
        "outcomes": list({row["outcome"]["name"]: row["outcome"] for row in primary}.values()),
        "primary": primary,
        "others": [row for row in shown if row["role"] != "primary"],
        "described": described,
        "chapters": chapters,
        "commands": [text for text in dict.fromkeys(rows["command"]) if text],
    }


def _row(row) -> dict:
    """One registered row: words, numbers and the places of its picture."""
    measured = bool(row.values)
    return {
        "role": row.role,
        "scale": scale_name(row.scale),
        "measured": row.measured,
        "outcome": _outcome(row.outcome),
        "reason": row.reason,
        "effect": f"{format_effect(row)} {row.unit}".strip() if measured else "",
        "units": format_units(row) if measured else "",
        "stated": format_stated(row),
        "paper": row.paper_effect,
        "place": row.place,
        "comparable": row.comparable,
        "checks": format_checks(row),
        "origin": format_origin(row) if row.study else [],
        "warn": row.clean is False or row.registration == "changed since" or bool(row.added),
        "strip": strip(row) if measured and np.isfinite(row.threshold) else None,
    }


def _outcome(name: str) -> dict:
    color, _, mark = OUTCOME_MARKS.get(name, (NEUTRAL, "", "·"))
    return {"name": name, "color": color, "mark": mark}


def strip(row) -> dict:
    """Places of a row's picture in per cent of its width: interval, estimate, units, threshold, zone of equivalence.

    A ratio's axis is logarithmic. What is drawn spans 6 to 94 %.
    """
    scaled = np.log if row.log else np.asarray
    units = np.array(list(row.values.values()), dtype=float)  # logarithms already, if log
    c, d = row.threshold, row.smallest_effect
    named = {"mean": row.mean, "low": row.low, "high": row.high, "threshold": c, "from": c - d, "to": c + d}
    with np.errstate(invalid="ignore", divide="ignore"):
        ends = {name: float(scaled(value)) for name, value in named.items()}
    drawn = [value for value in [*ends.values(), *units] if np.isfinite(value)]
    least, width = min(drawn), max(max(drawn) - min(drawn), 1e-12)

    def place(value: float) -> float:
        return round(6 + 88 * (value - least) / width, 2)

    places = {name: place(value) if np.isfinite(value) else None for name, value in ends.items()}
    words = f"{format_effect(row)} {row.unit}, threshold {c:g}, smallest effect of interest {d:g}"
    return places | {"units": [place(value) for value in units], "words": words, "at": f"{c:g}"}
