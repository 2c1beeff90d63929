"""The claims ledger as a page of the book: every claim, its falsifier, what was measured, and how to measure it again.

The page needs neither scripts nor the net: formulas are MathML, the figure is a picture with its Vega-Lite
specification beside it.
"""

from __future__ import annotations

import base64
import json

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
    page = Environment(autoescape=True).from_string(PAGE)
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


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{{ title }}</title>
<style>
body { margin: 0; font: 1rem/1.5 system-ui, sans-serif; color: #222 }
main { max-width: 64rem; margin: 0 auto; padding: 0 1rem } h2 { margin: 2.2rem 0 .2rem; font-size: 1.15rem }
h3 { margin: 1rem 0 .2rem; font-size: 1rem } p { margin: .3rem 0 }
nav.book { display: flex; justify-content: space-between; gap: 1rem; max-width: 60rem; margin: 1rem auto;
  padding: 0 1rem; font: 0.95rem/1.4 system-ui, sans-serif }
a { color: #1f5f96 } a:focus-visible, summary:focus-visible { outline: 2px solid #1f5f96; outline-offset: 2px }
img { max-width: 100%; height: auto } .wide { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-size: .92rem } th { font-weight: 600 }
th, td { text-align: left; vertical-align: top; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid #e4e4e4 }
td.number { white-space: nowrap; font-variant-numeric: tabular-nums }
.verdict { white-space: nowrap } small, .reason { color: #595959 }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #f6f6f6; padding: .5rem; font-size: .82rem }
math[display="block"] { margin: .8em 0; overflow-x: auto; overflow-y: hidden; padding: .25em 0 }
</style></head><body>{{ links | safe }}
{%- macro marked(cell) %}<span class="verdict"><span aria-hidden="true" style="color:{{ cell.color }}">{{ cell.mark }}
</span> {{ cell.verdict }}</span>{% if cell.fragile %} <small>fragile</small>{% endif %}{% endmacro %}
<main><h1>{{ title }}</h1>
<p>{{ question }} Everything here is computed from the tables of the studies, nothing is typed. Each threshold was
written down before its measurement. A verdict is <em>replicates</em> if the whole 95 % interval lies on the claim's
side of it, <em>does not replicate</em> if the whole interval lies on the other side, else <em>inconclusive</em>; a
falsifier is <em>met</em> or <em>not met</em>. A claim of several measurements is as good as its worst. A verdict is
<em>fragile</em> if leaving out some single seed would change it.</p>
<p>Runs of one seed share their prompts, so a setting's effect is the mean over S seeds of the difference that it makes
to an outcome y, and its interval comes from resampling seeds (and the prompts within, where a study has them):</p>
{{ paired | safe }}
{% if figure %}
<p>The figure shows each measurement at its distance from the threshold, towards the paper's claim counting up, in units
of that half of its interval which points to the threshold:</p>
{{ distance | safe }}
<p><img src="data:image/png;base64,{{ figure.png }}" width="{{ figure.width }}" height="{{ figure.height }}"
 alt="{{ figure.alt }}"></p>
<p><a download="ledger.vl.json" href="data:application/json;base64,{{ figure.spec }}">Its Vega-Lite
 specification</a></p>
{% endif %}
<h2>At a glance</h2>
<div class="wide"><table><tr><th>claim</th>{% for scale in scales %}<th>{{ scale }}</th>{% endfor %}</tr>
{% for name, row in cells.items() %}<tr><td><a href="#{{ name }}">{{ name }}</a></td>
{% for cell in row %}<td>{{ marked(cell) }}</td>{% endfor %}</tr>
{% endfor %}</table></div>
<p>{% for key, title in papers.items() %}{{ key }}: {{ title }}. {% endfor %}</p>
{% for claim in claims %}
<section id="{{ claim.name }}"><h2>{{ claim.name }}: {{ claim.claim.statement }}</h2>
<p>{{ claim.fails }} if {{ claim.claim.refuted_if }}.</p>
{% for scale in claim.scales %}<h3>{{ scale.name }}</h3>
{% if scale.rows %}<div class="wide"><table>
<tr><th>measured</th><th>effect, 95 % interval</th><th>stated</th><th>seeds</th><th>n</th><th>verdict</th></tr>
{% for row in scale.rows %}<tr><td>{{ row.measured }}</td><td class="number">{{ row.effect }}</td>
<td class="number">{{ row.stated }}</td><td class="number">{{ row.seeds }}</td><td class="number">{{ row.n }}</td>
<td>{{ marked(row) }}{% if row.reason %} <span class="reason">({{ row.reason }})</span>{% endif %}</td></tr>
{% endfor %}</table></div>{% endif %}
{% for reason, missing in scale.missing.items() %}
<p class="reason">Not measured: {{ missing | join("; ") }} – {{ reason }}</p>{% endfor %}
<details><summary>To measure it again</summary><pre>{{ scale.commands | join("\n") }}</pre></details>
{% endfor %}</section>{% endfor %}
</main>{{ links | safe }}</body></html>
"""
