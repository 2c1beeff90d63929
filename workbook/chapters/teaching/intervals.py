"""What the ledger's intervals leave: units that it would take to decide what is open, and how far
to trust few.
"""

import altair as alt
import pandas as pd

from workbook.views.figures import forest, series
from workbook.views.style import describe_rows, require_columns, titled


def units_needed_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Units that a row has, and those at which the detectable effect would be the smallest one of
    interest.

    table: of `workbook.book.undecided`; a row each: claim, units, units needed.
    """
    require_columns(table, ["claim", "units", "units needed"], "units_needed_chart")
    rows = table.sort_values("units needed", ascending=False)
    rows = rows.assign(mean=rows["units needed"], low=rows["units"], high=rows["units needed"])
    x = alt.X("mean:Q", title="units (policy x seed), logarithmic").scale(type="log", nice=True)
    return titled(
        forest(rows, "claim", x, number="d", form="d"),
        "How many units it would take to decide what is open",
        "line: from the units measured to those at which 80 % power reaches the smallest effect of"
        " interest (dot)",
        describe_rows(rows, "claim", value="units needed", form=".0f"),
    )


def coverage_chart(table: pd.DataFrame) -> alt.LayerChart:
    """How often an interval holds the truth against how skewed its units are, and where the
    ledger's rows lie.

    table: teaching/coverage; units, skewness and coverage of the simulated curve, and of the
    ledger's rows, whose number stands in `rows`.
    """
    require_columns(table, ["units", "rows", "skewness", "coverage"], "coverage_chart")
    curve, placed = table[table["rows"].isna()], table.dropna(subset="rows")
    lines = curve[curve["units"].isin(placed["units"])].assign(
        name=lambda table: table["units"].map("{} units".format)
    )
    marks = placed.assign(
        name=placed["units"].map("{} units".format), text=placed["rows"].map("{:.0f} rows".format)
    )
    x = alt.X("skewness:Q", title="skewness of the units (0: normal, 2: exponential)")
    y = (
        alt.Y("coverage:Q", title="share of intervals that hold the truth")
        .scale(zero=False)
        .axis(format=".0%")
    )
    dots = alt.Chart(marks).encode(x=x, y=y, tooltip=["name", "skewness", "coverage", "rows"])
    rings = [
        dots.mark_point(size=120, strokeWidth=2.5, fill="white", opacity=1).encode(color="name:N"),
        dots.mark_text(align="right", dx=-10, dy=12).encode(text="text:N"),
    ]
    look = {
        "spread": None,
        "points": False,
        "names": marks["name"].tolist(),
        "over": rings,
        "threshold": 0.95,
    }
    return titled(
        series(lines, x, y, "name", form=".2f", **look),
        "How often a 95 % interval holds the truth",
        "lines: simulated t intervals; rings: where the ledger's rows lie, by the skewness that"
        " their units show",
        describe_rows(marks, "text", "name", value="coverage", form=".1%"),
    )
