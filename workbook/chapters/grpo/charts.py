"""The chart of chapter 04's training from scratch: the policy's value as it goes."""

import altair as alt
import pandas as pd

from workbook.views.figures import series
from workbook.views.style import describe_rows, require_columns, titled


def value_curves(table: pd.DataFrame, title: str) -> alt.LayerChart:
    """Value of the policy over training steps, a line per run; columns run, step, value.

    value: expected reward of held-out prompts, computed, not sampled.
    """
    require_columns(table, ("run", "step", "value"), "value_curves")
    x = alt.X("step:Q", title="training step")
    y = alt.Y("value:Q", title="value: expected reward").scale(domain=[0, 1])
    return titled(
        series(table, x, y, "run", spread=None, form=".3f"),
        title,
        "on prompts that no run trains on; computed, not sampled",
        describe_rows(table, "run", "step", value="value", form=".2f"),
    )
