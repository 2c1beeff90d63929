"""Pictures of a step's batch: how it is cut into optimizer steps, and how much of it is signal."""

import altair as alt
import pandas as pd

from workbook.training.layout import batch_layout
from workbook.views.figures import series
from workbook.views.style import ACCENT, WIDTH, require_columns, titled

# heights of the bands, in units of the y axis: sampled, micro-batches, steps
_SAMPLED, _MICRO, _STEPS, _GAP = 1.0, 1.0, 1.5, 0.35
_PIXELS_PER_UNIT = 30
# of the plot, beside the names of its bands
_PLOT_WIDTH = WIDTH - 150
_MAX_PASSES = 3  # over a batch that are drawn
_MAX_CELLS = 160  # rollouts that are drawn one by one
_MICRO_GAP, _PROCESS_GAP = 0.05, 0.015  # of a micro-batch's width
_FRESH, _OLD = "#f2f2f2", "#dccfb8"  # steps at ratio 1, and steps of an older policy


def draw_batch(config=None, *, processes: int | None = None, **settings) -> alt.LayerChart:
    """Draw how a trainer cuts its rollouts into optimizer steps, coloured by prompt: a schematic.

        draw_batch(per_device_train_batch_size=16, num_generations=8, steps_per_generation=4)

    Top: what is sampled at once. Middle: the micro-batches, in which TRL has shuffled it. Bottom:
    the optimizer steps, and whether their ratios are 1. Places within the shuffle are an example.

    config, processes, settings: as in `workbook.training.batch_layout`, which makes the table and
    raises InvalidValue for what TRL refuses.
    """
    table = batch_layout(config, processes=processes, **settings)
    cells, names, height = _cells(table)
    texts = _runs(cells)
    steps = _step_boxes(table, names)

    columns = round(float(cells["x2"].max()))  # micro-batches beside one another
    x = alt.X("x:Q", axis=None).scale(domain=[0, columns], nice=False)
    axis = alt.Axis(
        values=list(names),
        labelExpr=" : ".join(f"datum.value == {at} ? '{name}'" for at, name in names.items())
        + " : ''",
        grid=False,
        ticks=False,
        domain=False,
        labelLimit=150,
    )
    y = alt.Y("y:Q", title=None, axis=axis).scale(domain=[height, 0], nice=False)
    prompts = int(table["prompt"].max()) + 1
    color = alt.Color("prompt:O", legend=None).scale(
        scheme="viridis", domain=list(range(1, prompts + 1))
    )
    boxes = alt.Chart(steps).encode(x=x, x2="x2:Q", y=y, y2="y2:Q")
    fill = alt.when("datum.updates > 0").then(alt.value(_OLD)).otherwise(alt.value(_FRESH))
    layers = [boxes.mark_rect(stroke="#888").encode(color=fill)]
    if len(table) <= _MAX_CELLS:
        shapes, line = cells, 0.6
    else:
        shapes, line = texts, 0.3
    shown = alt.Chart(shapes).encode(x=x, x2="x2:Q", y=y, y2="y2:Q")
    layers.append(
        shown.mark_rect(stroke="white", strokeWidth=line).encode(color=color, tooltip=["prompt:O"])
    )

    # the number of a prompt where there is room for it
    digits = 4 + 7 * texts["prompt"].astype(str).str.len()
    per_unit = _PLOT_WIDTH / columns
    roomy = texts[(texts["x2"] - texts["x"]) * per_unit >= digits]
    ink = (
        alt.when(f"datum.prompt <= {0.65 * prompts}")
        .then(alt.value("white"))
        .otherwise(alt.value("black"))
    )
    numbers = alt.Chart(_middles(roomy)).encode(x=x, y=y, text="prompt:O", color=ink)
    layers.append(numbers.mark_text(fontSize=12))
    layers += _step_texts(steps, per_unit, x, y)

    title, subtitle = _batch_title(table)
    chart = alt.layer(*layers).properties(
        width=_PLOT_WIDTH,
        height=height * _PIXELS_PER_UNIT,
        view=alt.ViewBackground(stroke=None),
    )
    words = "; ".join(
        f"step {step + 1}: {len(part)} rollouts of {part['prompt'].nunique()} prompts"
        for step, part in list(table.groupby("optimizer_step"))[:16]
    )
    return titled(chart, title, subtitle, words)


def _cells(table: pd.DataFrame) -> tuple[pd.DataFrame, dict[float, str], float]:
    """A rectangle per rollout, sampled and in each pass; {middle of a band: its name}; the height.

    One unit of x is a micro-batch of all processes.
    """
    processes = int(table["process"].max()) + 1
    micro = table.groupby(["micro_batch", "process"]).size()
    width = int(micro.iloc[0])
    first = table[table["iteration"] == 0]
    parts = first.groupby("generation_batch")["micro_batch"].nunique().iloc[0]

    def at(micro_batch, process, place):
        inner = (1 - 2 * _MICRO_GAP) / processes
        slot = (inner - _PROCESS_GAP) / width
        left = micro_batch + _MICRO_GAP + inner * process
        return left + slot * place, left + slot * (place + 1)

    # sampled: groups side by side over the whole generation batch
    sampled = first.sort_values(["generation_batch", "prompt", "rollout"]).copy()
    order = sampled.groupby("generation_batch").cumcount()
    size = first.groupby("generation_batch").size().iloc[0]
    sampled["x"] = sampled["generation_batch"] * parts + _MICRO_GAP
    span = (parts - 2 * _MICRO_GAP) / size
    sampled["x"] += order * span
    sampled["x2"] = sampled["x"] + span
    bands = [sampled.assign(y=0.0, y2=_SAMPLED)]
    names = {_SAMPLED / 2: "sampled at once"}

    top = _SAMPLED + _GAP
    for iteration, part in table.groupby("iteration"):
        if iteration == _MAX_PASSES:
            break
        # by prompt within a micro-batch: the order there does not matter
        part = part.sort_values(["micro_batch", "process", "prompt"]).copy()
        place = part.groupby(["micro_batch", "process"]).cumcount()
        column = part["generation_batch"] * parts + part["micro_batch"] % parts
        part["x"], part["x2"] = at(column, part["process"], place)
        bands.append(part.assign(y=top, y2=top + _MICRO))
        of = f"micro-batches of {width}" + (f" × {processes}" if processes > 1 else "")
        names[top + _MICRO / 2] = of if not iteration else f"the same, pass {iteration + 1}"
        names[top + _MICRO + _STEPS / 2] = "optimizer steps"
        top += _MICRO + _STEPS + _GAP
    top -= _GAP
    cells = pd.concat(bands, ignore_index=True)
    cells["prompt"] += 1
    return cells[["prompt", "micro_batch", "process", "x", "x2", "y", "y2"]], names, top


def _runs(cells: pd.DataFrame) -> pd.DataFrame:
    """Neighbouring rollouts of one prompt as one rectangle."""
    # `sampled` lies on one row of y and is no matter of micro-batches
    sampled = cells["y"] == 0
    keys = ["y", "prompt", "micro_batch", "process"]
    rows = cells.assign(
        micro_batch=cells["micro_batch"].where(~sampled, -1),
        process=cells["process"].where(~sampled, -1),
    )
    return rows.groupby(keys, as_index=False).agg({"x": "min", "x2": "max", "y2": "first"})


def _middles(rectangles: pd.DataFrame) -> pd.DataFrame:
    middle = rectangles.assign(
        x=(rectangles["x"] + rectangles["x2"]) / 2, y=(rectangles["y"] + rectangles["y2"]) / 2
    )
    return middle.drop(columns=["x2", "y2"])


def _step_boxes(table: pd.DataFrame, names: dict[float, str]) -> pd.DataFrame:
    """A box per optimizer step below its micro-batches; two where it goes on in the next pass."""
    first = table[table["iteration"] == 0]
    parts = first.groupby("generation_batch")["micro_batch"].nunique().iloc[0]
    sizes = table.groupby("optimizer_step").agg(
        rollouts=("prompt", "size"), prompts=("prompt", "nunique"), updates=("updates", "max")
    )
    table = table.assign(
        column=table["generation_batch"] * parts + table["micro_batch"] % parts,
    )
    rows = []
    # a step that spans several batches, or passes, has a box in each row
    for (iteration, step), part in table.groupby(["iteration", "optimizer_step"]):
        if iteration >= _MAX_PASSES:
            continue
        top = _SAMPLED + _GAP + iteration * (_MICRO + _STEPS + _GAP) + _MICRO
        rows.append(
            {
                "step": step + 1,
                "x": part["column"].min() + _MICRO_GAP / 2,
                "x2": part["column"].max() + 1 - _MICRO_GAP / 2,
                "y": top + 0.1,
                "y2": top + _STEPS,
                **sizes.loc[step].to_dict(),
            }
        )
    return pd.DataFrame(rows)


def _step_texts(steps: pd.DataFrame, per_unit: float, x, y) -> list[alt.Chart]:
    """What a step is made of, in as many words as its box has room for."""
    room = float((steps["x2"] - steps["x"]).min()) * per_unit
    ratio = steps["updates"].map(lambda count: "ratios differ from 1" if count else "all ratios 1")
    number = steps["step"].astype(str)
    rollouts = steps["rollouts"].astype(str) + " rollouts"
    if room >= 130:
        prompts = steps["prompts"].map(lambda count: f", {count} prompt{'s' * (count > 1)}")
        lines = ["step " + number, rollouts + prompts, ratio]
    elif room >= 65:
        lines = ["step " + number, rollouts]
    elif room >= 14:
        lines = [number]
    else:
        lines = []
    layers = []
    spread = 0.42
    for row, text in enumerate(lines):
        middle = _middles(steps.assign(text=text))
        middle["y"] += (row - (len(lines) - 1) / 2) * spread
        weight = "bold" if row == 0 else "normal"
        marks = alt.Chart(middle).mark_text(fontSize=12, fontWeight=weight, color="black")
        layers.append(marks.encode(x=x, y=y, text="text:N"))
    return layers


def _batch_title(table: pd.DataFrame) -> tuple[str, str]:
    """What the settings come to, and which prompts' rollouts meet in a step."""
    batches = int(table["generation_batch"].max()) + 1
    passes = int(table["iteration"].max()) + 1
    first = table[table["iteration"] == 0]
    prompts = table["prompt"].nunique() // batches
    group_size = int(table["rollout"].max()) + 1
    steps = table["optimizer_step"].nunique()
    size = len(table) // steps
    old = int((table.groupby("optimizer_step")["updates"].max() > 0).sum())

    what = f"{prompts} prompts × {group_size} rollouts"
    if prompts == 1:
        what = what.replace("prompts", "prompt")
    if batches > 1:
        what = f"{batches} batches of {what}"
    if passes > 1:
        what += f", used {passes} times"
    made = f"{steps} steps of {size} rollouts"
    if steps == 1:
        made = f"one step of {size} rollouts"
    if not old:
        ratios = "all ratios are 1"
    elif batches == 1:
        ratios = "ratios differ from 1 after the first"
    else:
        ratios = f"ratios differ from 1 in {old} of {steps}"

    apart = int((first.groupby("prompt")["optimizer_step"].nunique() > 1).sum())
    total = first["prompt"].nunique()
    if not apart:
        meeting = "All rollouts of a prompt meet in one step"
    elif apart == total:
        meeting = "Every prompt's rollouts are spread over several steps"
    else:
        meeting = f"{apart} of {total} prompts' rollouts are spread over several steps"
    processes = int(table["process"].max()) + 1
    if processes > 1:
        meeting += f". {processes} processes share each micro-batch"
    hidden = f"; {passes - _MAX_PASSES} more passes not drawn" if passes > _MAX_PASSES else ""
    return f"{what}: {made}; {ratios}", f"{meeting}. Colour and number: the prompt{hidden}"


def noise_share_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Draw `workbook.noise_share`: the share of a step that is signal, against prompts a step.

    table: columns prompts, share, low, high, halves. Line and band: estimated for any number of
    prompts. Dots: two halves of the batch beside one another, where they were measured.
    """
    require_columns(table, ["prompts", "share", "low", "high", "halves"], "noise_share_chart")
    measured = table.dropna(subset="halves")
    # the largest step that the batch itself makes
    batch = int(table.attrs.get("batch", measured["prompts"].max() * 2))
    here = table.iloc[(table["prompts"] - batch).abs().argmin()]
    size = int(here["prompts"])
    interval = f"{here['low']:.0%} to {here['high']:.0%}"
    if here["low"] > 0:
        title = f"About {here['share']:.0%} of a step on {size} prompts is signal ({interval})"
    else:
        title = f"{size} prompts can't tell what share of a step is signal: {interval}"

    x = alt.X("prompts:Q", title="prompts in a step")
    x = x.scale(type="log", base=2, nice=False, padding=12)
    x = x.axis(values=table["prompts"].tolist(), format=",d", labelOverlap=True, grid=False)
    y = alt.Y("share:Q", title="population share of signal").scale(domain=[0, 1]).axis(format="%")
    curve = table.rename(columns={"halves": "_"})
    dots = alt.Chart(measured.assign(share=measured["halves"].clip(0, 1)))
    dots = dots.mark_point(filled=True, size=70, opacity=1, color="black").encode(x=x, y=y)
    chart = series(curve, x, y, points=False, color=alt.value(ACCENT), over=[dots], form=".1%")
    note = (
        "line: predicted, with its 95 % interval; dots: cosine of two such steps within the batch"
    )
    words = "; ".join(
        f"{row.prompts} prompts: {row.share:.0%} [{row.low:.0%}, {row.high:.0%}]"
        for row in table.itertuples()
    )
    return titled(chart, title, note, words)
