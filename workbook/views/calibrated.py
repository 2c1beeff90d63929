"""Calibration: how often a reader's predictions held, against how sure the reader was of them."""

from __future__ import annotations

import altair as alt
import pandas as pd
from IPython.display import display
from scipy.stats import binomtest

from workbook.statistics import t_interval
from workbook.views.folding import fold
from workbook.views.guesses import RANGE, Choice, Curve, Number
from workbook.views.predictions import Prediction, read_predictions
from workbook.views.style import ACCENT, NEUTRAL, SERIES, finish, typeset

NAMES = {Number: "80 % ranges", Choice: "choices", Curve: "curves"}
MY_PREDICTION, ANSWER = "your prediction", "answer"
BANDS = (0.0, 0.6, 0.75, 0.9, 1.0)  # of confidence, whose choices are counted together
MIN_VALUES = 6  # of an interval of a mean
NONE_YET = (
    "No prediction that counts is recorded yet: a chapter's prediction counts once its button was pressed before the "
    "answer was shown, and the answer was shown after it."
)


def calibration_table(predictions: dict[str, Prediction]) -> pd.DataFrame:
    """One row per prediction that counts: chapter, key, kind, sure, held, distance in shares of the scale."""
    rows = []
    for mine in predictions.values():
        if mine.counts:
            compared = mine.compared()
            held = compared.get("inside", compared.get("right"))
            sure = compared.get("sure", RANGE if isinstance(mine.kind, Number) else None)
            row = {"chapter": mine.chapter, "key": mine.key, "kind": NAMES[type(mine.kind)]}
            rows.append(row | {"sure": sure, "held": held, "distance": compared["distance"]})
    columns = ["chapter", "key", "kind", "sure", "held", "distance"]
    return pd.DataFrame(rows, columns=columns).sort_values(["chapter", "key"], ignore_index=True)


def calibration_bands(table: pd.DataFrame) -> pd.DataFrame:
    """How many held, by kind and stated confidence: sure (mean), held, count, mean with a 95 % Wilson interval."""
    judged = table[table["held"].notna()].astype({"sure": float, "held": bool})
    rows = []
    for (kind, _), part in judged.groupby(["kind", pd.cut(judged["sure"], BANDS)], observed=True):
        count, held = len(part), int(part["held"].sum())
        low, high = binomtest(held, count).proportion_ci(method="wilson")
        row = {"kind": kind, "sure": part["sure"].mean(), "held": held, "count": count}
        rows.append(row | {"mean": held / count, "low": low, "high": high})
    return pd.DataFrame(rows, columns=["kind", "sure", "held", "count", "mean", "low", "high"])


def chapter_distances(table: pd.DataFrame) -> pd.DataFrame:
    """Per chapter: predictions, those that held, mean distance of numbers and curves, mean Brier score of choices."""
    of_choices = table["kind"] == NAMES[Choice]
    table = table.assign(
        distance=table["distance"].where(~of_choices), brier=table["distance"].where(of_choices), one=1
    )
    parts = table.groupby("chapter").agg(
        predictions=("one", "sum"), held=("held", "sum"), distance=("distance", "mean"), brier=("brier", "mean")
    )
    return parts.astype({"held": int}).round(3)


def calibration_text(table: pd.DataFrame) -> str:
    """The reader's calibration in a few sentences."""
    if table.empty:
        return NONE_YET
    sentences = [f"{len(table)} prediction{'s' * (len(table) > 1)} that count{'s' * (len(table) == 1)}."]
    for band in calibration_bands(table).to_dict("records"):
        what = "80 % ranges" if band["kind"] == NAMES[Number] else f"choices at {_percent(band['sure'])} on average"
        ends = f"95 % interval {_percent(band['low'])} to {_percent(band['high'])}"
        sentences.append(f"Of your {what}, {band['held']} of {band['count']} held ({ends}).")
    choices = table["kind"] == NAMES[Choice]
    sentences.append(_mean(table.loc[choices, "distance"], "Brier score of your choices", "0 best, 1 worst"))
    sentences.append(_mean(table.loc[~choices, "distance"], "distance of your numbers and curves", "1: a whole scale"))
    return typeset(" ".join(filter(None, sentences)))


def _mean(values: pd.Series, name: str, unit: str) -> str:
    """A mean, with its t interval from MIN_VALUES values on; "" where there is none."""
    if values.empty:
        return ""
    interval = t_interval(values.to_numpy(float)) if len(values) >= MIN_VALUES else None
    ends = f" [{interval.low:.2f}, {interval.high:.2f}]" if interval else ""
    return f"Mean {name}: {values.mean():.2f}{ends} ({unit})."


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def calibration_chart(bands: pd.DataFrame):
    """Share that held against stated confidence, with Wilson intervals; on the diagonal one is as right as one says."""
    unit = {"scale": alt.Scale(domain=[0, 1]), "axis": alt.Axis(format="%", tickCount=5)}
    x, y = alt.X("place:Q", title="how sure you were", **unit), alt.Y("mean:Q", title="share that held", **unit)
    beside = bands["kind"].map({NAMES[Number]: -0.008, NAMES[Choice]: 0.008})  # so that neither hides the other
    bands = bands.assign(place=bands["sure"] + beside)
    color = alt.Color("kind:N", title=None, scale=alt.Scale(domain=list(NAMES.values())[:2], range=SERIES[:2]))
    shape = alt.Shape("kind:N", title=None, scale=alt.Scale(domain=list(NAMES.values())[:2]))
    hints = ["kind", "held", "count", *(alt.Tooltip(f"{name}:Q", format=".0%") for name in ("sure", "low", "high"))]
    ends = alt.Chart(pd.DataFrame({"place": [0.0, 1.0], "mean": [0.0, 1.0]}))
    chart = alt.layer(
        ends.mark_line(color=NEUTRAL, strokeDash=[4, 4]).encode(x=x, y=y),
        alt.Chart(bands).mark_rule(size=2, opacity=0.6).encode(x=x, y="low:Q", y2="high:Q", color=color, tooltip=hints),
        alt.Chart(bands)
        .mark_point(size=90, filled=True, opacity=1)
        .encode(x=x, y=y, color=color, shape=shape, tooltip=hints),
    )
    words = "; ".join(
        f"{band['kind']} at {_percent(band['sure'])}: {band['held']} of {band['count']} held"
        for band in bands.to_dict("records")
    )
    title, below = (
        "How often you were right, by how sure you were",
        "dashed: as right as you said; bars: 95 % intervals",
    )
    return finish(chart, title, below, words, width=360, height=300)


def calibration() -> None:
    """Show how well the reader's predictions held: sentences, a chart, and a folded table by chapter."""
    predictions, problem = read_predictions()
    table = calibration_table(predictions)
    print(" ".join(filter(None, (calibration_text(table), problem))))
    if table.empty:
        return
    bands = calibration_bands(table)
    if len(bands):
        display(calibration_chart(bands))
    display(fold(chapter_distances(table), "Your predictions, chapter by chapter"))


def curve_against_answer(mine: Prediction, answer: list[float], question: str):
    """A predicted curve and the answer in one chart."""
    kind, guess = mine.kind, (mine.latest or mine.first)["y"]
    heights = {MY_PREDICTION: guess, ANSWER: answer}
    table = pd.DataFrame(
        [
            {"x": x, "y": y, "curve": name}
            for name, values in heights.items()
            for x, y in zip(kind.x, values, strict=True)
        ]
    )
    low, high = min([kind.y[0], *answer]), max([kind.y[1], *answer])
    color = alt.Color("curve:N", title=None, scale=alt.Scale(domain=list(heights), range=[ACCENT, "#222222"]))
    chart = alt.Chart(table).encode(
        x=alt.X("x:O", title=kind.x_title, axis=alt.Axis(labelAngle=0)),
        y=alt.Y("y:Q", title=kind.y_title, scale=alt.Scale(domain=[low, high])),
        color=color,
        tooltip=["curve", "x", alt.Tooltip("y:Q", format=".3g")],
    )
    dash = alt.StrokeDash("curve:N", title=None, scale=alt.Scale(domain=list(heights), range=[[5, 4], [1, 0]]))
    layers = alt.layer(
        chart.mark_line(size=2).encode(strokeDash=dash), chart.mark_point(filled=True, size=60, opacity=1)
    )
    words = "; ".join(f"{name}: {', '.join(f'{value:.3g}' for value in values)}" for name, values in heights.items())
    return finish(layers, "Your prediction and the answer", question[:110], words, width=380, height=200)
