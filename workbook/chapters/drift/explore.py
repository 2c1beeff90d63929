"""The live study of chapters 09 and 14: two objectives along training."""

from collections.abc import Iterator

import altair as alt
import pandas as pd

from workbook.chapters.drift.charts import CURVE_OUTCOMES, outcome_panels
from workbook.chapters.drift.objectives import ARMS, LR, training_curves
from workbook.tasks.task import SEED_CLASSES
from workbook.views.explorer import log_slider, menu, power_slider, slider, switch
from workbook.views.live_study import LiveStudy, live_tables
from workbook.views.measured import measured_table
from workbook.views.style import NEUTRAL, SERIES

_PERMUTED = ", permuted"  # what the name of a run without information ends with
MEASURED = ", six policies"  # what the committed lines' names end with
EACH_ITS_OWN = "each its own"
LIVE_OUTCOMES = {name: CURVE_OUTCOMES[name] for name in ("value", "tax")}
_RUN_COLORS = [SERIES[2], SERIES[3], NEUTRAL]  # first objective, second, twin


# --- live


def measure_curves(
    policy,
    task,
    first: str = "GSPO",
    second: str = "min-replace",
    twin: bool = False,
    lr: float = LR,
    epsilon: str | float = EACH_ITS_OWN,
    group_size: int = 2,
    batches: int = 4,
    seed: int = 1,
) -> Iterator[dict[str, pd.DataFrame]]:
    """Train two objectives on this policy, read after every batch: table curves with series, batch,
    outcome, mean.

    twin: train the first once more, with advantages permuted within their groups.  epsilon: half
    the clip range of both.  Raises ValueError as `training_curves` does.
    """
    settings = {"batches": batches, "group_size": group_size, "lr": lr, "seed": SEED_CLASSES * seed}
    settings["epsilon"] = None if epsilon == EACH_ITS_OWN else float(epsilon)
    lines = []
    for name in run_names(first, second, twin):
        arm = name.removesuffix(_PERMUTED)
        run = training_curves(policy, task, [arm], permuted=name != arm, **settings)
        lines.append(
            run.melt(["arm", "batch"], list(CURVE_OUTCOMES), "outcome", "mean").assign(series=name)
        )
        yield {"curves": pd.concat(lines, ignore_index=True)}


def run_names(first: str, second: str, twin: bool) -> list[str]:
    """What is trained: the first objective, the second where it is another, and the first with
    permuted advantages.
    """
    return list(dict.fromkeys([first, second, *([first + _PERMUTED] if twin else [])]))


def committed_curves(
    first: str, second: str, twin: bool, group_size: int
) -> dict[str, pd.DataFrame]:
    """The same arms' means over the family, in pairs or else in groups of eight; what was not
    measured is missing.
    """
    curves = measured_table("drift/curves")
    curves = curves[curves["group_size"] == (2 if group_size == 2 else 8)]
    curves = curves[curves["outcome"].isin(CURVE_OUTCOMES)]
    parts = [
        curves[curves["arm"] == name].assign(series=name + MEASURED)
        for name in run_names(first, second, twin)
    ]
    columns = ["arm", "batch", "outcome", "mean", "series"]
    return {"curves": pd.concat(parts, ignore_index=True)[columns]}


def live_curves(policy, task, batches: int = 4, group_size: int = 2) -> LiveStudy:
    """Two objectives, their rate, clip range, group size, batches and seed: runs on a copy of a
    policy.
    """

    def chart(curves):
        title = "Value rises by reward alone; style words drift in every run"
        subtitle = "bold: trained now, on this policy; pale: means over six policies"
        # no domain: the legend has the runs that are drawn, in their order
        color = alt.Color(
            "objective:N",
            sort=None,
            legend=alt.Legend(title=None, orient="bottom", symbolOpacity=1),
            scale=alt.Scale(range=_RUN_COLORS),
        )
        pale = alt.condition(f"test(/{MEASURED}/, datum.series)", alt.value(0.4), alt.value(1))
        more = {"detail": "series:N", "opacity": pale}
        look = {"color": color, "spread": None, "shape": False}
        parts = outcome_panels(curves, LIVE_OUTCOMES, "series", title, subtitle, more, **look)
        named = f"replace(datum.series, '{MEASURED}', '')"
        return parts.transform_calculate(objective=named)

    def describe(curves) -> str:
        ends = curves[~curves["series"].str.endswith(MEASURED)]
        ends = ends[ends["batch"] == ends["batch"].max()].pivot_table(
            "mean", "series", "outcome", sort=False
        )
        words = [
            f"{name}: value {row['value']:.3f}, tax {row['tax']:.4f} nats a word"
            for name, row in ends.iterrows()
        ]
        return "; ".join(words) + "."

    controls = {
        "first": menu("GSPO", list(ARMS), "first objective"),
        "second": menu("min-replace", list(ARMS), "second objective"),
        "twin": switch(False, "twin with permuted advantages"),
        "lr": log_slider(LR, -4, -2.5, "learning rate"),
        "epsilon": menu(
            EACH_ITS_OWN, [EACH_ITS_OWN, 0.003, 0.01, 0.03, 0.1, 0.2, 0.5], "clip range"
        ),
        "group_size": power_slider(group_size, 16, "rollouts per prompt", least=2),
        "batches": slider(batches, 1, 12, 1, "generation batches"),
        "seed": slider(1, 0, 19, 1, "seed of prompts, rollouts"),
    }
    return live_tables(
        measure_curves, committed_curves, chart, controls, policy, task, describe, now=None
    )
