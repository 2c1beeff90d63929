"""The claims ledger as a page of the book: every claim, its falsifier, what was measured, and how to measure it again.

The page needs neither scripts nor the net: formulas are MathML, the figure is a picture with its Vega-Lite
specification beside it.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pandas as pd
from jinja2 import Environment
from latex2mathml.converter import convert

from workbook.claims import CLAIMS, SCALES, summary
from workbook.claims.text import format_effect
from workbook.views import ledger_chart
from workbook.views.ledger import SCALE_NAMES, VERDICT_MARKS
from workbook.views.renderer import picture
from workbook.views.style import NEUTRAL

PAGE = Path(__file__).with_name("ledger.html")  # the template
TITLE = "The claims ledger"
QUESTION = "What was measured of each claim of the two papers, and does it replicate?"
MARKS = {"triangle-right": "▶", "triangle-left": "◀", "circle": "●", "square": "■", "diamond": "◆"}
PAIRED = r"\bar{d} = \frac{1}{S} \sum_{s=1}^{S} \left( y_s^{\text{chosen}} - y_s^{\text{baseline}} \right)"
DISTANCE = r"z = \pm \frac{\text{estimate} - \text{threshold}}{\text{half of the interval}}"
PAPERS = {
    "H": "The Cancellation Hypothesis in Critic-Free RL (arXiv 2605.08666)",
    "D": "Design Conditions for Intra-Group Learning of Sequence-Level Rewards: Token Gradient Cancellation "
    "(arXiv 2604.13088)",
    "R": "What a referee of the first paper found missing",
    "P": "A neighbour: GRPO is Secretly a Process Reward Model (arXiv 2509.21154)",
}


def ledger_page(table: pd.DataFrame, links: str = "") -> str:
    """The page of a `workbook.claims.ledger`, as HTML; links: a line of links for its top and bottom, as HTML."""
    verdicts = summary(table)
    claims = []
    for name, part in table.groupby("claim", sort=False):
        scales = [_scale(scale, rows) for scale, rows in part.groupby("scale", sort=False)]
        fails = "Met" if name.endswith("falsifier") else "Refuted"
        claims.append({"name": name, "claim": CLAIMS[name], "fails": fails, "scales": scales})
    grid = verdicts.set_index(["claim", "scale"])
    scales = [scale for scale in SCALES if scale in set(table["scale"])]
    cells = {
        name: [_cell(*grid.loc[(name, scale), ["verdict", "fragile"]]) for scale in scales]
        for name in CLAIMS
        if name in set(verdicts["claim"])
    }
    page = Environment(autoescape=True).from_string(PAGE.read_text(encoding="utf-8"))
    return page.render(
        title=TITLE,
        question=QUESTION,
        links=links,
        papers={key: title for key, title in PAPERS.items() if key in set(verdicts["paper"])},
        claims=claims,
        scales=[SCALE_NAMES[scale] for scale in scales],
        cells=cells,
        figure=_figure(table),
        paired=convert(PAIRED, display="block"),
        distance=convert(DISTANCE, display="block"),
    )


def _scale(scale: str, rows: pd.DataFrame) -> dict:
    """What a page shows of one claim at one scale."""
    measured = [
        {
            "measured": row.measured,
            "effect": format_effect(row),
            "stated": row.stated or "–",
            "seeds": f"{row.seeds:.0f}",
            "n": f"{row.n:.0f}",
            "reason": row.reason,
            **_cell(row.verdict, row.fragile),
        }
        for row in rows[np.isfinite(rows["mean"])].itertuples()
    ]
    missing = rows.loc[rows["mean"].isna()].groupby("reason", sort=False)["measured"].agg(list).to_dict()
    return {
        "name": SCALE_NAMES[scale],
        "rows": measured,
        "missing": missing,
        "commands": [text for text in dict.fromkeys(rows["command"]) if text],
    }


def _cell(verdict: str, fragile: bool) -> dict:
    color, shape = VERDICT_MARKS.get(verdict, (NEUTRAL, ""))
    return {"verdict": verdict, "mark": MARKS.get(shape, ""), "color": color, "fragile": fragile}


def _figure(table: pd.DataFrame) -> dict | None:
    """The chart as a picture with its description and specification; None if nothing was measured."""
    if table["mean"].isna().all():
        return None
    spec = ledger_chart(table).to_dict()
    data, about = picture(spec)
    return {
        "png": data["image/png"],
        **about["image/png"],
        "spec": base64.b64encode(json.dumps(spec).encode()).decode(),
    }
