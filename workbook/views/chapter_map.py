"""Drawings of paths: the book's, with the reader's place, and a prompt's rollouts, that meet."""

import altair as alt
import pandas as pd

from workbook.messages import require_one_of
from workbook.views.canvas import SMALL, Canvas
from workbook.views.style import ACCENT, NEUTRAL, POSITIVE, finish, require_columns

# {stretch of the way, as its lines: {chapter: what it is about}}
STRETCHES = {
    "a toy": {"00": "why", "01": "softmax", "02": "a group", "03": "weights"},
    "a policy\nyou can\nknow": {
        "04": "GRPO",
        "05": "who moves",
        "06": "worth",
        "07": "teaches",
        "08": "batches",
        "09": "drift",
    },
    "your\nmodel": {"10": "real LLM", "11": "one GPU", "12": "your run"},
    "what to\nbelieve": {"13": "advice", "14": "papers"},
}
STATIONS = {chapter: word for part in STRETCHES.values() for chapter, word in part.items()}
# pixels of a station, and from one to the next
_WIDE, _HIGH, _COLUMN, _ROW = 92, 48, 98, 62
# {stretch: (row, column of its name)}
_PLACES = dict(zip(STRETCHES, [(0, 0), (1, 0), (2, 0), (2, 4)], strict=True))


def book_path(here: str | None = None) -> alt.LayerChart:
    """The chapters as stations of a path in four stretches, the present one filled.

    here: the chapter where the reader is.  Raises ValueError for a chapter that does not exist.
    """
    if here is not None:
        require_one_of("here", here, STATIONS)
    canvas = Canvas(height=3 * _ROW)
    for name, stations in STRETCHES.items():
        row, column = _PLACES[name]
        middle = row * _ROW + _ROW / 2
        left = 6 + _COLUMN * column
        canvas.text(left, middle, name, SMALL, bold=True, align="left")
        for place, (chapter, word) in enumerate(stations.items()):
            x = left + _COLUMN * (place + 1)
            is_here = chapter == here
            fill, ink = (ACCENT, "white") if is_here else ("#f1f1f1", "black")
            if place:
                canvas.line((x - 8, middle), (x + 2, middle))
            canvas.box(x, middle - _HIGH / 2, _WIDE, _HIGH, fill=fill, edge=ACCENT, on_top=True)
            canvas.text(x + _WIDE / 2, middle - 11, chapter, SMALL, ink, bold=True)
            canvas.text(x + _WIDE / 2, middle + 11, word, 16, ink)
    title = f"You are here: {here}, {STATIONS[here]}" if here else "The way through the book"
    lines = [
        f"{' '.join(name.split())}: {', '.join(f'{key} {word}' for key, word in part.items())}"
        for name, part in STRETCHES.items()
    ]
    chart = canvas.chart(title, "; ".join(lines))
    return chart.properties(usermeta={"figure": False})


def meeting_paths_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Rollouts as paths over states; in each state the mean reward of all that pass it.

    table: columns rollout, step, value (the state at that step) and reward. An edge is wide where
    many rollouts take it.
    """
    require_columns(table, ["rollout", "step", "value", "reward"], "meeting_paths_chart")
    # an edge leads from a rollout's state to its next one
    after = table.assign(step=table["step"] - 1)[["rollout", "step", "value"]]
    moves = table.merge(after, on=["rollout", "step"], suffixes=("", "_next"))
    edges = moves.groupby(["step", "value", "value_next"]).size().rename("rollouts").reset_index()
    edges["next"] = edges["step"] + 1
    states = table.groupby(["step", "value"])["reward"].agg(["mean", "size"]).reset_index()
    steps = sorted(map(int, table["step"].unique()))
    x = alt.X("step:Q", title="steps done").axis(values=steps, format="d", grid=False)
    x = x.scale(padding=30, nice=False)
    y = alt.Y("value:Q", title="running value").axis(values=list(range(10)), format="d")
    y = y.scale(domain=[-0.7, 9.7], nice=False)
    width = alt.StrokeWidth("rollouts:Q", scale=alt.Scale(range=[1, 10]), title="rollouts")
    ways = alt.Chart(edges).mark_rule(color=NEUTRAL, opacity=0.6)
    ways = ways.encode(x=x, y=y, x2="next:Q", y2="value_next:Q", strokeWidth=width)
    here = alt.Chart(states).encode(
        x=x, y=y, tooltip=["step", "value", alt.Tooltip("mean:Q", format=".2f"), "size"]
    )
    fill = alt.Color(
        "mean:Q",
        scale=alt.Scale(range=["white", POSITIVE], domain=[0, 1], interpolate="rgb"),
        legend=None,
    )
    dots = here.mark_circle(size=700, opacity=1, stroke="black").encode(color=fill)
    means = here.mark_text().encode(
        text=alt.Text("mean:Q", format=".2f"),
        color=alt.condition("datum.mean > 0.6", alt.value("white"), alt.value("black")),
    )
    alt_text = "; ".join(
        f"step {row.step}, value {row.value}: {row.mean:.2f} of {row.size}"
        for row in states.itertuples()
    )
    return finish(
        alt.layer(ways, dots, means),
        "Where paths meet, their rewards say what the state is worth",
        "each circle: a state, with the mean reward of all rollouts that pass it",
        alt_text,
        height=330,
    )
