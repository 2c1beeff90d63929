"""The chart of the cancelled share, over the rollouts of a prompt."""

import altair as alt
import numpy as np
import pandas as pd

from workbook.views.charts import curve_chart


def ceiling_chart(table: pd.DataFrame) -> alt.LayerChart:
    """The cancelled share in the toy against the rollouts of a prompt; table of `toy.ceiling`."""
    lines = table.assign(
        mean=table["share"], low=np.nan, high=np.nan, line=table["kind"] + ", " + table["rewards"]
    )
    return curve_chart(
        lines,
        "rollouts",
        series="line",
        x_title="rollouts of a prompt",
        y_title="cancelled share: what the other sign takes",
        title="The cancelled share tends to 0 even where pushes cancel exactly",
        subtitle=(
            "chapter 02's toy, where pushes in one context cancel exactly; permuted: with shuffled"
            " rewards"
        ),
        reference=[(0.0, "nothing taken")],
        spread=None,
    )
