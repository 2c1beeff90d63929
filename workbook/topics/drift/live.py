"""Chapter 09, live: an arm and its twin with permuted advantages, trained now, over the paths of the study."""

from __future__ import annotations

import altair as alt
import pandas as pd

from workbook.policies.restoring import private_copy
from workbook.studies.claim import FAMILY
from workbook.topics.drift.arms import ARMS, RATES, FreeWords, run_arm
from workbook.topics.drift.effects import mean_paths
from workbook.training.progress import progress, show_partial
from workbook.views.explorer import log_slider, menu, power_slider, slider
from workbook.views.live_study import LiveStudy
from workbook.views.style import SERIES, finish, require

READ_PROMPTS, READ_SEED = 16, 5  # held-out prompts on which value and tax are read
LINES = ["as rewarded", "advantages permuted"]
COLUMNS = ["advantages", "batch", "free_tax", "value"]


def compute_live_twins(
    policy,
    task,
    arm: str = "GSPO",
    lr: float = 6e-4,
    epsilon: float = 0.01,
    group_size: int = 2,
    batches: int = 4,
    seed: int = 8,
) -> dict[str, pd.DataFrame]:
    """Train an arm and its twin on this policy: tables committed and live, columns advantages, batch, free_tax, value.

    arm: of ARMS.  lr, epsilon: of both, where the arm has a clip range.  batches: generation batches of 128 rollouts.
    committed: the arm's mean path in the study, on members of the family, at its tuned rate.
    """
    committed = _committed(arm)
    show_partial(committed=committed, live=committed.iloc[:0])
    readings, runs = FreeWords(policy, task, task.dataset(READ_PROMPTS, seed=READ_SEED)["prompt"][:]), []
    for permuted in progress((False, True), "the arm, then its twin"):
        run = run_arm(policy, task, readings, arm, group_size, seed, permuted, batches, lr=lr, epsilon=epsilon)
        runs.append(_lines(run))
        show_partial(live=pd.concat(runs, ignore_index=True))
    return {"committed": committed, "live": pd.concat(runs, ignore_index=True)}


def _committed(arm: str) -> pd.DataFrame:
    paths = mean_paths(FAMILY)
    return _lines(paths[paths["arm"] == arm])


def _lines(runs: pd.DataFrame) -> pd.DataFrame:
    kind = runs["permuted"].map({False: LINES[0], True: LINES[1]})
    return runs.assign(advantages=kind)[COLUMNS].reset_index(drop=True)


def live_twins_chart(committed: pd.DataFrame, live: pd.DataFrame) -> alt.LayerChart:
    """Tax of free words by generation batch: dashed as committed, solid as trained now; of `compute_live_twins`."""
    require(committed, COLUMNS, "live_twins_chart")
    x = alt.X("batch:Q", title="generation batches").axis(tickMinStep=1, format="d")
    y = alt.Y("free_tax:Q", title="tax of free words (nats)")
    color = alt.Color("advantages:N", sort=LINES, title=None).scale(domain=LINES, range=SERIES[:2])
    shown = ["advantages:N", "batch:Q", *(alt.Tooltip(f"{name}:Q", format=".4f") for name in ("free_tax", "value"))]
    before = alt.Chart(committed).mark_line(strokeDash=[4, 3], opacity=0.7).encode(x=x, y=y, color=color)
    now = alt.Chart(live).encode(x=x, y=y, color=color, tooltip=shown)
    return finish(
        alt.layer(before, now.mark_line(strokeWidth=2.5), now.mark_point(filled=True, size=45)),
        "What an arm and its twin move that no reward asked for",
        "solid: trained now, on this policy; dashed: the study's mean path, on the family in pairs, p = 0.8",
        f"{len(live)} points of both runs.",
        height=260,
    )


def describe_live_twins(committed: pd.DataFrame, live: pd.DataFrame) -> str:
    """Where both runs end: tax and value."""
    ends = live.sort_values("batch").groupby("advantages", sort=False).tail(1).set_index("advantages")
    start = live.loc[live["batch"] == 0, "value"].iloc[0]
    words = "; ".join(f"{name}: tax {row.free_tax:.4f} nats, value {row.value:.3f}" for name, row in ends.iterrows())
    return f"From a value of {start:.3f}. {words}."


def live_twins(policy, task, batches: int = 4) -> LiveStudy:
    """Arm, rate, clip range, group size, batches and seed of two runs on a copy of a policy."""
    lr, epsilon = RATES["GSPO"]
    controls = {
        "arm": menu("GSPO", list(ARMS), "objective"),
        "lr": log_slider(lr, -4, -2.5, "learning rate"),
        "epsilon": log_slider(epsilon, -2.5, 0, "clip range"),
        "group_size": power_slider(2, 16, "rollouts per prompt", least=2),
        "batches": slider(batches, 1, 8, 1, "generation batches"),
        "seed": slider(8, 0, 19, 1, "seed"),
    }
    committed = _committed("GSPO")
    tables = {"committed": committed, "live": committed.iloc[:0]}
    variables = {"policy": private_copy(policy), "task": task}
    return LiveStudy(compute_live_twins, live_twins_chart, controls, tables, describe_live_twins, variables)
