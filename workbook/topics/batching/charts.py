"""Charts of chapter 08: what cancels inside a step, two ways through a batch, orders against shuffled mini-batches."""

from __future__ import annotations

import altair as alt
import pandas as pd

from workbook.topics.batching.toy import NAMES
from workbook.views.figures import forest, panels, series
from workbook.views.style import SERIES, describe_rows, require

OTHERS = [name for strategy, name in NAMES.items() if strategy != "shuffled"]
WALKS = ["SGD", "SGD, norm clipped", "SGD, momentum", "AdamW", "AdamW, no momentum"]
FRACTION = "datum.value < 1 ? '1/' + format(1 / datum.value, '.0f') : '1'"
TOKENS = ("all", "shared")  # of the rollouts, or the words that both signs of a group hold


def mechanism_chart(table: pd.DataFrame, subtitle: str) -> alt.HConcatChart:
    """What cancels inside a step and the cosine of the two signs' gradients, by strategy.

    table: columns measure, strategy (of STRATEGIES), tokens (of TOKENS), mean, low, high.
    """
    require(table, ("measure", "strategy", "tokens", "mean", "low", "high"), "mechanism_chart")
    rows = table.assign(name=table["strategy"].map(NAMES), tokens=table["tokens"] + " tokens")
    look = {"names": [f"{name} tokens" for name in TOKENS], "number": "+.2f", "number_at": "end", "zero": True}
    name, charts = alt.Y("name:N", sort=None, title=None).scale(domain=list(NAMES.values())).axis(labelLimit=200), []
    for measure, part in rows.groupby("measure", sort=False):
        x = alt.X("mean:Q", title=measure).scale(padding=44)
        charts.append(forest(part, name, x, "tokens", labels=not charts, width=220, height=190, **look))
    words = describe_rows(rows, "measure", "name", "tokens", form=".2f")
    return panels(charts, "What meets its opposite inside an optimizer step", subtitle, words)


def endpoints_chart(same: pd.DataFrame, other: pd.DataFrame) -> alt.HConcatChart:
    """Distance between the ends of two ways through one batch against the learning rate, logarithmic, of two changes.

    same, other: columns optimizer, factor (learning rate over the largest), distance, slope (of the line, log-log) and
    label (where the slope is written), as `measure_walks` makes them.
    """
    factors, charts = [1 / 64, 1 / 16, 1 / 4, 1], []
    x = alt.X("factor:Q", title="learning rate ÷ the largest")
    x = x.scale(type="log", base=4, domain=[factors[0] / 1.3, 3]).axis(values=factors, labelExpr=FRACTION)
    y = alt.Y("distance:Q", title="distance of the weights").scale(type="log")
    y = y.axis(format=".0e", values=[10.0**k for k in range(-8, 2)])
    color = alt.Color("optimizer:N", sort=WALKS).scale(domain=WALKS, range=SERIES)
    look = {"names": WALKS, "spread": None, "legend": {"columns": 3}, "dash": "optimizer", "form": ".2e"}
    for table, title in ((same, "the same mini-batches, in reverse"), (other, "other mini-batches")):
        require(table, ("optimizer", "factor", "distance", "slope", "label"), "endpoints_chart")
        last = alt.Chart(table).transform_filter("isValid(datum.label)").mark_text(align="left", dx=8, fontSize=11)
        place = alt.Y("label:Q", title="distance of the weights").scale(type="log")
        text = last.encode(x=x, y=place, color=color, text=alt.Text("slope:Q", format=".1f"))
        charts.append(series(table, x, y, "optimizer", over=[text], title=title, width=250, height=250, **look))
    slopes = pd.concat([same.assign(change="same"), other.assign(change="other")])
    slopes = slopes.dropna(subset="slope").drop_duplicates(["change", "optimizer"])
    return panels(
        charts,
        "One generation batch, walked through in two ways: how far apart are the ends?",
        "distance of the weights after the steps of one batch; both axes logarithmic; the number is a line's slope",
        "; ".join(f"{row.change} mini-batches, {row.optimizer}: slope {row.slope:.2f}" for row in slopes.itertuples())
        or "Distance against the learning rate, a line for each optimizer, in two panels.",
    )
