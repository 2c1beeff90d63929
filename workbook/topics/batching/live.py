"""Chapter 08, live: two orders of the same batches, trained now, over what thirty paired units of the study said."""

from __future__ import annotations

import altair as alt
import pandas as pd

from workbook.policies.copies import private_copy
from workbook.studies.loop import Loop, Readings, sample_batch, train_in_memory
from workbook.studies.registration import registered_outcome
from workbook.tasks.chain import SEED_CLASSES
from workbook.topics.batching.charts import compute_batching
from workbook.topics.batching.composition import HELD_OUT, PROMPTS, rates
from workbook.topics.batching.cut import CUT_MENU, NAMES
from workbook.training.progress import progress, show_partial
from workbook.views.explorer import log_slider, menu, power_slider, slider, switch
from workbook.views.figures import forest, rule
from workbook.views.live_study import LiveStudy
from workbook.views.style import ACCENT, NEUTRAL, describe_rows, require, titled

READ_PROMPTS = HELD_OUT // 2  # held-out prompts whose exact value is read
VALUE_SEED = 5  # of these prompts, of which no unit trains on any
AXIS_END = 0.05  # reward, on both sides
OPTIMIZER_MENU = [("AdamW", "adamw"), ("AdamW, no momentum", "adamw_no_momentum"), ("SGD", "sgd")]
ORDERS = [pair for pair in CUT_MENU if pair[1] != "shuffled"]
TRAINED = ["strategy", "unit", "mean", "shuffled", "other"]


def compute_orders(
    policy,
    task,
    order: str = "sign_partitioned",
    prompts: int = 8,
    group_size: int = 8,
    minibatches: int = 4,
    batches: int = 2,
    optimizer: str = "adamw",
    rate: float = 1e-4,
    matched: bool = True,
    units: int = 3,
    seed: int = 0,
) -> dict[str, pd.DataFrame]:
    """Train with an order and with shuffled mini-batches: tables live (a row per unit) and study (the committed rows).

    live: strategy, unit (the seed of prompts, rollouts and orders), mean (exact held-out value at the end, order minus
    shuffled), shuffled and other (the two gains).  study: strategy, mean, low, high (8 prompts' worth, norm matched).
    rate: of the optimizer.  matched: whether every mini-batch's gradient is rescaled to length 1.

    Raises ValueError, in one sentence, for what no loop can do.
    """
    study = compute_batching()["effects"]
    show_partial(study=study, live=_trained([]))
    loops = {
        name: Loop(
            prompts,
            group_size,
            batches,
            minibatches,
            name,
            optimizer=optimizer,
            lr=rate,
            match="grad_norm" if matched else None,
        )
        for name in ("shuffled", order)
    }
    readings, made = Readings(policy, task, task.dataset(READ_PROMPTS, VALUE_SEED)["prompt"][:]), []
    for unit in progress(range(seed, seed + units), "units"):
        own = SEED_CLASSES * unit
        rows = task.dataset(prompts * batches, own).select(range(prompts))
        first = sample_batch(policy, task, loops["shuffled"], rows, own)
        runs = [train_in_memory(policy, task, loop, own, readings, batches, first) for loop in loops.values()]
        shuffled, other = (float(run["value"].iloc[-1] - run["value"].iloc[0]) for run in runs)
        made.append((NAMES[order], unit, other - shuffled, shuffled, other))
        show_partial(live=_trained(made))
    return {"study": study, "live": _trained(made)}


def _trained(rows: list[tuple]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=TRAINED)


def orders_chart(study: pd.DataFrame, live: pd.DataFrame) -> alt.LayerChart:
    """The study's intervals of each order against shuffled, and over them one ring for each pair trained now."""
    require(study, ("strategy", "mean", "low", "high"), "orders_chart")
    names = [NAMES[order] for _, order in ORDERS]
    strategy = alt.Y("strategy:N", sort=names, title=None).scale(domain=names).axis(labelLimit=200)
    x = alt.X("mean:Q", title="exact held-out value at the end, minus shuffled").scale(
        domain=[-AXIS_END, AXIS_END], clamp=True
    )
    rings = alt.Chart(live).mark_point(size=90, strokeWidth=2, filled=False, color=ACCENT)
    shown = ["strategy:N", "unit:Q", *(alt.Tooltip(f"{name}:Q", format="+.4f") for name in TRAINED[2:])]
    smallest = registered_outcome("batch_composition", "H11").smallest_effect
    bounds = [rule(bound, "x", dashed=True, color=NEUTRAL) for bound in (-smallest, smallest)]
    chart = forest(
        study,
        strategy,
        x,
        zero=True,
        color=alt.value(NEUTRAL),
        under=bounds,
        over=[rings.encode(y=strategy, x=x, tooltip=shown)],
        number="+.3f",
        form="+.4f",
        height=alt.Step(44),
    )
    return titled(
        chart,
        "What an order of mini-batches adds to what training learns",
        "grey: thirty units, 95 % t interval over policies; dashed: smallest effect of interest; rings: pairs, now",
        describe_rows(study, "strategy", form="+.4f", interval=True),
    )


def describe_orders(study: pd.DataFrame, live: pd.DataFrame) -> str:
    """The pairs trained now, and how far apart shuffled runs lie of one another."""
    if live.empty:
        return ""
    name, spread = live["strategy"].iloc[0], live["shuffled"].max() - live["shuffled"].min()
    pairs = ", ".join(f"{difference:+.3f}" for difference in live["mean"])
    return (
        f"{name.capitalize()} minus shuffled, now: {pairs}. Shuffled runs alone gain {live['shuffled'].mean():.3f}, "
        f"and differ by {spread:.3f} from seed to seed."
    )


def live_orders(policy, task, units: int = 3) -> LiveStudy:
    """Order, sizes, optimizer, rate and seed of paired runs of a copy of a policy, over the study's intervals."""
    controls = {
        "order": menu("sign_partitioned", ORDERS, "order, against shuffled"),
        "prompts": power_slider(8, PROMPTS, "prompts of a batch", least=2),
        "group_size": power_slider(8, 16, "rollouts per prompt", least=2),
        "minibatches": power_slider(4, 16, "mini-batches"),
        "batches": slider(2, 1, 6, 1, "generation batches"),
        "optimizer": menu("adamw", OPTIMIZER_MENU, "optimizer"),
        "rate": log_slider(rates()[2], -5, 0, "learning rate"),
        "matched": switch(True, "gradients of one length"),
        "units": slider(units, 1, 6, 1, "pairs"),
        "seed": slider(0, 0, 19, 1, "first seed"),
    }
    start = {"study": compute_batching()["effects"], "live": _trained([])}
    variables = {"policy": private_copy(policy), "task": task}
    return LiveStudy(compute_orders, orders_chart, controls, start, describe_orders, variables)
