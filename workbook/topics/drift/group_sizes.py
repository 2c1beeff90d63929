"""Rollouts per prompt at a fixed budget: held-out value after training on 128 rollouts a batch, by group size.

The committed runs are those of the study `confidence` at template confidence 0.8; each unit's value is compared with
its own in pairs (G = 2), so that what its policy can reach drops out. Live, the same runs on the policy in hand.
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from workbook.policies.copies import private_copy
from workbook.statistics import unit_curve
from workbook.studies.claim import FAMILY, Tables
from workbook.tasks.chain import SEED_CLASSES
from workbook.topics.drift.arms import ARMS, RATES, ROLLOUTS, FreeWords, run_arm
from workbook.topics.drift.confidence import COMPARED
from workbook.topics.drift.curves import HELD_OUT_SEED
from workbook.topics.drift.effects import gain_by_group, places_on
from workbook.training.progress import progress, show_partial
from workbook.views.curves import curve_chart
from workbook.views.explorer import log_slider, menu, slider
from workbook.views.live_study import LiveStudy

SIZES = (2, 4, 8, 16)
READ_PROMPTS = 16  # held-out prompts whose exact value is read
NOW = "now, on this policy"


def group_size_gaps(tables: Tables = FAMILY) -> pd.DataFrame:
    """Exact held-out value at the end minus that in pairs, at 128 rollouts a batch: a row per arm and group size.

    Columns arm, group_size, mean, low, high (95 % t intervals over units), units; 0 at G = 2 by construction.
    """
    rows = []
    for arm in COMPARED:
        for size, units in places_on(tables, "group_size").items():
            pairs = places_on(tables, "group_size")[SIZES[0]]
            rows += [(seed, size, arm, gain_by_group(arm, path, pairs[seed])) for seed, path in units.items()]
    table = pd.DataFrame(rows, columns=["seed", "group_size", "arm", "number"])
    return unit_curve(table, "group_size", "number", by="arm")


def compute_live_group_sizes(
    policy, task, arm: str = "GSPO", lr: float = 6e-4, epsilon: float = 0.01, batches: int = 4, seeds: int = 2
) -> dict[str, pd.DataFrame]:
    """Train an arm with 2, 4, 8 and 16 rollouts per prompt, 128 a batch: {"curve": series, group_size, mean ...}.

    Live rows are means over seeds of the exact held-out value minus that in pairs; one policy has no interval.
    """
    committed = _committed()
    show_partial(curve=committed)
    readings, ends = FreeWords(policy, task, task.dataset(READ_PROMPTS, HELD_OUT_SEED)["prompt"][:]), []
    for seed, size in progress([(seed, size) for seed in range(seeds) for size in SIZES], "runs"):
        run = run_arm(policy, task, readings, arm, size, SEED_CLASSES * seed, False, batches, lr=lr, epsilon=epsilon)
        ends.append((seed, size, run["value"].iloc[-1]))
        show_partial(curve=_with(committed, ends))
    return {"curve": _with(committed, ends)}


def _with(committed: pd.DataFrame, ends: list[tuple]) -> pd.DataFrame:
    wide = pd.DataFrame(ends, columns=["seed", "group_size", "value"]).pivot(
        index="seed", columns="group_size", values="value"
    )
    now = wide.sub(wide[SIZES[0]], axis=0).mean().rename("mean").reset_index()
    return pd.concat([committed, now.assign(series=NOW, low=now["mean"], high=now["mean"], units=1)], ignore_index=True)


def _committed() -> pd.DataFrame:
    return group_size_gaps().assign(series=lambda table: table["arm"] + ", the family").drop(columns="arm")


def live_group_sizes_chart(curve: pd.DataFrame) -> alt.LayerChart:
    """Held-out value against rollouts per prompt at a fixed budget; table of `compute_live_group_sizes`."""
    return curve_chart(
        curve,
        "group_size",
        series="series",
        names=[*(f"{arm}, the family" for arm in COMPARED), NOW],
        x_title=f"rollouts per prompt G ({ROLLOUTS} rollouts a batch)",
        y_title="held-out value minus that at G = 2",
        title="At a fixed budget sixteen rollouts per prompt are no better than two",
        subtitle="after four generation batches; bands: 95 % t intervals over 6 units, p = 0.8; rates tuned at G = 2",
        reference=[0.0],
        form="+.3f",
    )


def describe_live_group_sizes(curve: pd.DataFrame) -> str:
    """The ends of the live line, and of the committed one of GSPO."""
    words = []
    for name in (f"{COMPARED[0]}, the family", NOW):
        last = curve[(curve["series"] == name) & (curve["group_size"] == SIZES[-1])]
        for row in last.itertuples():
            interval = f" [{row.low:+.3f}, {row.high:+.3f}]" if row.units > 1 else ""
            words.append(f"{name}: {row.mean:+.3f}{interval} at G = {SIZES[-1]}")
    return "; ".join(words) + "."


def live_group_sizes(policy, task, batches: int = 4, seeds: int = 2) -> LiveStudy:
    """Objective, rate, clip range, batches and seeds of runs at four group sizes, on a copy of a policy."""
    lr, epsilon = RATES["GSPO"]
    controls = {
        "arm": menu("GSPO", list(ARMS), "objective"),
        "lr": log_slider(lr, -4, -2.5, "learning rate"),
        "epsilon": log_slider(epsilon, -2.5, 0, "clip range"),
        "batches": slider(batches, 1, 8, 1, "generation batches"),
        "seeds": slider(seeds, 1, 6, 1, "seeds"),
    }
    variables = {"policy": private_copy(policy), "task": task}
    tables = {"curve": _committed()}
    return LiveStudy(
        compute_live_group_sizes, live_group_sizes_chart, controls, tables, describe_live_group_sizes, variables
    )
