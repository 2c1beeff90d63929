"""Drawings of paths: the book's, with the reader's place, and a prompt's rollouts, that meet."""

import altair as alt
import pandas as pd

from workbook.messages import require_one_of
from workbook.views.charts import PART_COLORS
from workbook.views.style import NEGATIVE, NEUTRAL, POSITIVE, finish, require_columns

# {part of a step, or coupling, by which some of each comes: colour}
_PART_COLORS = {
    "signal": PART_COLORS[0],
    "noise": PART_COLORS[4],
    "bias": PART_COLORS[2],
    "coupling": "#9a9a9a",
    "the whole": "#ffffff",
}
# {chapter: (what it does with the prompt, the part of a step that it treats most)}
STATIONS = {
    "00": ("its\npush", "the whole"),
    "01": ("its\ncoupling", "coupling"),
    "02": ("its\ngroup", "signal"),
    "03": ("its\nweights", "bias"),
    "04": ("its\npolicy", "signal"),
    "05": ("who\nmoves it", "coupling"),
    "06": ("its\nvalue", "signal"),
    "07": ("what\nteaches", "noise"),
    "08": ("its mini-\nbatch", "coupling"),
    "09": ("its\nlosses", "bias"),
    "10": ("a real\nmodel", "the whole"),
    "11": ("one\nGPU", "the whole"),
    "12": ("your\nrun", "the whole"),
    "13": ("what to\ndo", "the whole"),
    "14": ("the\npapers", "the whole"),
}
HEIGHT = 132
# pixels from the middle to a station
RISE = 18


def book_path(here: str | None = None) -> alt.LayerChart:
    """The chapters as stations of a path, coloured by the part of a step that they treat.

    here: the chapter where the reader is.  Raises ValueError for a chapter that does not exist.
    """
    if here is not None:
        require_one_of("here", here, STATIONS)
    rows = [(chapter, does, part) for chapter, (does, part) in STATIONS.items()]
    table = pd.DataFrame(rows, columns=["chapter", "does", "part"])
    # stations stand above and below the middle in turn
    table["place"] = range(len(table))
    table["y"] = [RISE if place % 2 else -RISE for place in table["place"]]
    is_here = table["chapter"] == here
    table["size"] = is_here.map({True: 700, False: 330})
    table["edge"] = is_here.map({True: NEGATIVE, False: NEUTRAL})
    is_light = table["part"].isin(["coupling", "the whole"])
    table["ink"] = is_light.map({True: "black", False: "white"})
    x = alt.X("place:Q", axis=None, scale=alt.Scale(domain=[-0.6, len(table) - 0.4], nice=False))
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[-HEIGHT / 2, HEIGHT / 2], nice=False))
    base = alt.Chart(table).encode(x=x, y=y)
    way = base.mark_line(interpolate="monotone", color="#c8c8c8", strokeWidth=6)
    legend = alt.Legend(title=None, orient="bottom", symbolType="circle", symbolStrokeColor=NEUTRAL)
    colors = alt.Scale(domain=[*_PART_COLORS], range=[*_PART_COLORS.values()])
    dots = base.mark_circle(opacity=1, strokeWidth=3).encode(
        size=alt.Size("size:Q", scale=None),
        color=alt.Color("part:N", scale=colors, legend=legend),
        stroke=alt.Stroke("edge:N", scale=None),
    )
    numbers = base.mark_text(fontWeight="bold").encode(
        text="chapter:N", color=alt.Color("ink:N", scale=None)
    )
    # above a station or below it, on the side that the path leaves free
    words = []
    for side, shift in ((">", -38), ("<", 26)):
        text = base.transform_filter(f"datum.y {side} 0").mark_text(
            lineBreak="\n", lineHeight=13, color="black", baseline="middle", dy=shift
        )
        words.append(text.encode(text="does:N"))
    title = "The way through the book"
    if here:
        title = f"You are here: {here}, {STATIONS[here][0]}"
    return finish(
        alt.layer(way, dots, numbers, *words).configure_view(strokeOpacity=0),
        title.replace("-\n", "-").replace("\n", " "),
        "what each chapter does with 5 - 6 + 3 =; a step is signal + noise + bias, some of it by"
        " coupling",
        "; ".join(
            f"{name}: {', '.join(table.loc[table['part'] == name, 'chapter'])}"
            for name in _PART_COLORS
        ),
        height=HEIGHT,
    ).properties(usermeta={"figure": False})


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
