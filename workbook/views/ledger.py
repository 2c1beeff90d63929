"""The claims ledger as a picture: how far each primary row lies from its threshold, and on which side."""

import textwrap

import altair as alt
import numpy as np
import pandas as pd

from workbook.views.figures import forest, rule, series
from workbook.views.style import NEUTRAL, SERIES, describe_rows, require, titled

MAX_DISTANCE = 100.0  # distances beyond are drawn here; the tooltip has the numbers
OUTCOME_MARKS = {  # outcome: colour, shape
    "supported": (SERIES[5], "triangle-right"),
    "equivalent to none": (SERIES[4], "square"),
    "not zero, too small to matter here": (SERIES[4], "triangle-up"),
    "at its threshold": (SERIES[4], "triangle-down"),
    "contradicted": (SERIES[1], "triangle-left"),
    "inconclusive": (NEUTRAL, "circle"),
    "not comparable": (SERIES[0], "diamond"),
    "not testable here": (NEUTRAL, "cross"),
    "not measured": (NEUTRAL, "stroke"),
}
HOLLOW = ("not comparable", "not testable here", "not measured")
TICKS = [-100, -30, -10, -3, -1, 0, 1, 3, 10, 30, 100]
SCALE_NAMES = {
    "family": "family of policies",
    "bundled": "bundled policy",
    "smollm2_chat": "SmolLM2-135M, chat",
    "smollm2_plain": "SmolLM2-135M, plain",
    "gemma3_plain": "Gemma 3 270M, plain",
}
REQUIRED = (
    *("claim", "words", "role", "scale", "measured", "outcome", "units", "mean", "low", "high"),
    *("threshold", "smallest_effect", "toward", "log"),
)
TITLE = "How far each claim's primary number lies from its threshold"
SUBTITLE = [
    "Right: towards the claim; left: away from it. Shaded: smaller than the smallest effect of interest.",
    "Line: 95 % t interval over units (policy x seed), symmetric logarithm. Hollow: no outcome follows.",
]


def standardized(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of a ledger with a threshold and an interval, with z, z_low and z_high beside them.

        z = s (estimate - threshold) / smallest effect of interest,  s = +1 if the claim lies above, else -1

    for a ratio (column log) in logarithms, to either end of its zone. So nearer than 1 to 0 is equivalent to none. Cut
    off at `MAX_DISTANCE`.
    """
    rows = table[table["low"].notna() & table["toward"].notna() & table["smallest_effect"].notna()]
    log, c, d = rows["log"].to_numpy(bool), *(rows[n].to_numpy(float) for n in ("threshold", "smallest_effect"))
    with np.errstate(invalid="ignore", divide="ignore"):
        far = rows[["mean", "low", "high"]].to_numpy(float).T - c
        z = np.where(log, np.log1p(far / c) / abs(np.log1p(np.sign(far) * d / c)), far / d)
    z = np.clip(z * rows["toward"].to_numpy(float), -MAX_DISTANCE, MAX_DISTANCE)
    return rows.assign(**dict(zip(("z", "z_low", "z_high"), z, strict=True)))


def ledger_chart(table: pd.DataFrame) -> alt.LayerChart:
    """A line per primary row that was measured: dot and interval at their `standardized` distance from the threshold.

    table: of `workbook.claims.ledger`.  Raises ValueError if a column is missing, or no primary row was measured.
    """
    require(table, REQUIRED, "ledger_chart")
    rows = standardized(table[table["role"] == "primary"])
    if rows.empty:
        raise ValueError("ledger_chart needs a measured primary row; this table has none.")
    many = rows["scale"].nunique() > 1
    scales = rows["scale"].map(lambda name: " · " + SCALE_NAMES.get(name, name.replace("_", " "))) if many else ""
    order = {name: place for place, name in enumerate(OUTCOME_MARKS)}
    rows = rows.sort_values("outcome", key=lambda names: names.map(order), kind="stable")
    effect = [f"{row.mean:.4g} [{row.low:.4g}, {row.high:.4g}]" for row in rows.itertuples()]
    rows = rows.assign(
        label=rows["claim"] + " " + rows["words"] + scales, effect=effect, judged=~rows["outcome"].isin(HOLLOW)
    )
    missing = [claim for claim in dict.fromkeys(table["claim"]) if claim not in set(rows["claim"])]
    gaps = textwrap.wrap(f"Not measured: {', '.join(missing)}.", 105) if missing else []
    counts = ", ".join(f"{count} {outcome}" for outcome, count in rows["outcome"].value_counts().items())
    described = "; ".join(f"{row.label}: {row.effect}, {row.outcome}" for row in rows.itertuples())
    return titled(_rows(rows), TITLE, [*SUBTITLE, *gaps], f"{counts}. {described}")


def _rows(rows: pd.DataFrame) -> alt.LayerChart:
    """Dots and intervals over the shaded zone of equivalence."""
    rows = rows[[*REQUIRED[:7], "label", "effect", "judged", "z", "z_low", "z_high"]]
    span = alt.Scale(type="symlog", constant=1, domain=[-MAX_DISTANCE, MAX_DISTANCE], nice=False)
    ticks = alt.Axis(values=TICKS, grid=False, title="smallest effects of interest from the threshold")
    x, low = (alt.X(f"{name}:Q", scale=span, axis=ticks) for name in ("z", "z_low"))
    names = alt.Axis(grid=True, gridColor="#ececec", ticks=False, domain=False, labelLimit=420)
    y = alt.Y("label:N", sort=None, title=None, axis=names)
    legend = alt.Legend(title=None, orient="bottom", symbolSize=90, columns=2, labelLimit=0)
    kept = {name: marks for name, marks in OUTCOME_MARKS.items() if name in set(rows["outcome"])}
    look = [{"domain": list(kept), "range": [marks[i] for marks in kept.values()]} for i in (0, 1)]
    stroke, fill = (channel("outcome:N", legend=legend).scale(**look[0]) for channel in (alt.Stroke, alt.Fill))
    shape = alt.Shape("outcome:N", legend=legend).scale(**look[1])
    tooltip = ["claim:N", "measured:N", "effect:N", "units:Q", "outcome:N"]
    base = alt.Chart(rows).encode(y=y, tooltip=tooltip)
    points = base.mark_point(size=70, strokeWidth=1.8, opacity=1).encode(x=x, stroke=stroke, shape=shape)
    zone = alt.Chart(pd.DataFrame({"z": [-1.0], "to": [1.0]})).mark_rect(color="#ececec")
    layers = [
        zone.encode(x=x, x2="to:Q"),
        rule(0, "x", dashed=True, color=NEUTRAL),
        base.mark_rule(size=2.5, opacity=0.6).encode(x=low, x2="z_high:Q", stroke=stroke),
        points.transform_filter("datum.judged").encode(fill=fill),
        points.transform_filter("!datum.judged").encode(fill=alt.value("white")),
    ]
    return alt.layer(*layers).properties(height=alt.Step(20))


def units_needed_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Units that a row has, and those at which the detectable effect would be the smallest one of interest.

    table: of `workbook.book.undecided`, a row each: claim, units, units needed.
    """
    require(table, ["claim", "units", "units needed"], "units_needed_chart")
    rows = table.sort_values("units needed", ascending=False)
    rows = rows.assign(mean=rows["units needed"], low=rows["units"], high=rows["units needed"])
    x = alt.X("mean:Q", title="units (policy x seed), logarithmic").scale(type="log", nice=True)
    return titled(
        forest(rows, "claim", x, number="d", form="d"),
        "How many units it would take to decide what is open",
        "line: from the units measured to those at which 80 % power reaches the smallest effect of interest (dot)",
        describe_rows(rows, "claim", value="units needed", form=".0f"),
    )


def coverage_chart(curve: pd.DataFrame, placed: pd.DataFrame) -> alt.LayerChart:
    """How often an interval holds the truth against how skewed its units are, and where the ledger's rows lie.

    curve, placed: rows `skewness` and `placed` of data/results/coverage/coverage.intervals.parquet.
    """
    require(curve, ["units", "skewness", "coverage"], "coverage_chart")
    require(placed, ["units", "rows", "skewness", "coverage"], "coverage_chart")
    lines = curve[curve["units"].isin(placed["units"])].assign(name=lambda table: table["units"].map("{} units".format))
    marks = placed.assign(name=placed["units"].map("{} units".format), text=placed["rows"].map("{:.0f} rows".format))
    x = alt.X("skewness:Q", title="skewness of the units (0: normal, 2: exponential)")
    y = alt.Y("coverage:Q", title="share of intervals that hold the truth").scale(zero=False).axis(format=".0%")
    dots = alt.Chart(marks).encode(x=x, y=y, tooltip=["name", "skewness", "coverage", "rows"])
    rings = [
        dots.mark_point(size=120, strokeWidth=2.5, fill="white", opacity=1).encode(color="name:N"),
        dots.mark_text(align="right", dx=-10, dy=12).encode(text="text:N"),
    ]
    look = {"spread": None, "points": False, "names": marks["name"].tolist(), "over": rings, "threshold": 0.95}
    return titled(
        series(lines, x, y, "name", form=".2f", **look),
        "How often a 95 % interval holds the truth",
        "lines: simulated t intervals; rings: where the ledger's rows lie, by the skewness that their units show",
        describe_rows(marks, "text", "name", value="coverage", form=".1%"),
    )
