"""Chapter 07, live: whether tokens that a step boosts are worth more, on the policy in hand, over ten policies (H7)."""

from __future__ import annotations

import altair as alt
import pandas as pd

from workbook.policies.copies import private_copy
from workbook.probes.step import logps, matched_lr, update
from workbook.probes.value_gaps import exact_pool, pool_change
from workbook.rollouts.sample import sample_rollouts
from workbook.statistics import unit_curve
from workbook.studies.claim import FAMILY
from workbook.tasks.chain import SEED_CLASSES
from workbook.topics.credit.exact_gaps import SMALL_NATS, gap_rows, permuted
from workbook.training.progress import progress, show_partial
from workbook.views.explorer import log_slider, menu, power_slider, slider
from workbook.views.figures import rule
from workbook.views.live_study import LiveStudy
from workbook.views.style import ACCENT, NEUTRAL, describe_rows, panel_title, require, titled

ADVANTAGES = {"own": "as rewarded", "permuted": "permuted"}
SIGNS = {"positive": "right rollouts", "negative": "failing rollouts"}
POOLS = {"training": "prompts of the step", "held-out": "held-out prompts"}
MATCHED = [("prompt and position", "position"), ("prompt", "prompt"), ("prompt and word frequency", "token")]
GAP_IN = [("value", "value"), ("credit", "credit")]
RULES = [("grpo", "grpo"), ("dr_grpo", "dr_grpo"), ("positive only", "positive_only"), ("reinforce", "reinforce")]
HELD_OUT, HELD_OUT_CLASS = 32, 5  # prompts on which a step is judged as well, and their class of seeds
GAP = "boosted − suppressed (reward)"
KEYS = ["sign", "pool", "advantages"]


def compute_live_gap(
    policy,
    task,
    prompts: int = 16,
    group_size: int = 8,
    rule: str = "grpo",
    optimizer: str = "sgd",
    nats: float = SMALL_NATS,
    matched: str = "position",
    of: str = "value",
    seed: int = 0,
) -> dict[str, pd.DataFrame]:
    """Gap between boosted and suppressed tokens after one step, by sign and pool: {"study": committed, "live": now}.

    Columns: sign, pool, advantages (as rewarded, permuted), gap, low, high (study: 95 % t intervals over policies).
    nats: root mean square movement of the batch's tokens.  matched: what is alike in tokens that are compared.
    of: value or credit.  Raises ValueError where no group has different rewards.
    """
    study = committed_gaps(matched, of)
    show_partial(study=study, live=study.iloc[:0])
    own, other = SEED_CLASSES * seed, SEED_CLASSES * seed + HELD_OUT_CLASS  # seeds whose prompts differ
    rollouts = sample_rollouts(policy, task, prompts, group_size, seed=own, max_new_tokens=48, estimator=rule)
    if not rollouts.advantages.any():
        raise ValueError(f"{prompts} prompts have no group of different rewards with seed={seed}; take more.")
    held_out = sample_rollouts(policy, task, HELD_OUT, 4, seed=other, max_new_tokens=48)
    pools = {"training": exact_pool(policy, task, rollouts), "held-out": exact_pool(policy, task, held_out)}
    lr, rows = matched_lr(policy, rollouts, optimizer, nats), []
    before = {name: logps(policy, pool[0]) for name, pool in pools.items()}
    for name, pushing in progress({"own": rollouts, "permuted": permuted(rollouts, seed)}.items(), "steps"):
        mine = private_copy(policy)
        update(mine, pushing, optimizer, lr)
        tables = {pool: pool_change(mine, pools[pool], before[pool]) for pool in pools}
        rows += [{"pool": pool, "advantages": name, **row} for pool in pools for row in gap_rows(tables[pool], seed)]
        show_partial(live=_named(pd.DataFrame(rows), matched, of))
    return {"study": study, "live": _named(pd.DataFrame(rows), matched, of)}


def committed_gaps(matched: str = "position", of: str = "value") -> pd.DataFrame:
    """The study's gaps, t intervals over its policies: columns sign, pool, advantages, gap, low, high, units."""
    table = _named(FAMILY["value_gap/gaps"], matched, of)
    curves = [
        unit_curve(part.assign(place=0), "place", "gap").assign(**dict(zip(KEYS, names, strict=True)))
        for names, part in table.groupby(KEYS, sort=False)
    ]
    return pd.concat(curves, ignore_index=True).rename(columns={"mean": "gap"})[[*KEYS, "gap", "low", "high", "units"]]


def _named(table: pd.DataFrame, matched: str, of: str) -> pd.DataFrame:
    """The rows of one comparison, with the names that a page shows."""
    rows = table[(table["matched"] == matched) & (table["of"] == of) & table["rollouts"].isin(SIGNS)]
    names = {"sign": rows["rollouts"].map(SIGNS), "pool": rows["pool"].map(POOLS)}
    return rows.assign(**names, advantages=rows["advantages"].map(ADVANTAGES)).reset_index(drop=True)


def live_gap_chart(study: pd.DataFrame, live: pd.DataFrame) -> alt.FacetChart:
    """Gaps by sign of the rollout (rows) and by pool (columns): intervals of ten policies, and rings measured now."""
    require(study, [*KEYS, "gap", "low", "high"], "live_gap_chart")
    y = alt.Y("advantages:N", sort=list(ADVANTAGES.values()), title=None).scale(domain=list(ADVANTAGES.values()))
    x = alt.X("gap:Q", title=GAP).axis(format="+.2f", tickCount=5)
    shown = [*(f"{name}:N" for name in KEYS), alt.Tooltip("gap:Q", format="+.4f")]
    base, own = alt.Chart(study).encode(y=y), alt.Chart(live).encode(y=y, x=x, tooltip=shown)
    layers = {
        "line": base.mark_rule(size=5, opacity=0.45, color=NEUTRAL).encode(x=alt.X("low:Q", title=GAP), x2="high:Q"),
        "dot": base.mark_point(filled=True, size=60, color=NEUTRAL, opacity=1).encode(x=x, tooltip=shown),
        "ring": own.mark_point(filled=False, size=110, strokeWidth=2.5, color=ACCENT, shape="diamond"),
    }
    panels = []
    for sign in SIGNS.values():
        row = []
        for pool in POOLS.values():
            here = f"datum.sign == '{sign}' && datum.pool == '{pool}'"
            parts = [layer.transform_filter(here) for layer in layers.values()]
            title = panel_title(f"{sign}, {pool}")
            row.append(alt.layer(rule(0, "x"), *parts).properties(width=250, height=64, title=title))
        panels.append(alt.hconcat(*row).resolve_scale(x="shared"))
    return titled(
        alt.vconcat(*panels).resolve_scale(x="shared"),
        "Are the tokens that a step boosts worth more?",
        "grey: ten policies, mean and 95 % t interval; diamonds: one step of this policy, now",
        describe_rows(study, *KEYS, value="gap", form="+.3f", interval=True),
    )


def describe_live_gap(study: pd.DataFrame, live: pd.DataFrame) -> str:
    """The gaps that were measured now, on the prompts of the step."""
    if live.empty:
        return ""
    gaps = live[live["pool"] == POOLS["training"]].set_index(["sign", "advantages"])["gap"]
    words = "; ".join(
        f"{sign} {gaps[sign, 'as rewarded']:+.3f} (permuted {gaps[sign, 'permuted']:+.3f})" for sign in SIGNS.values()
    )
    return f"Boosted minus suppressed, now, on the step's prompts: {words}."


def live_value_gap(policy, task, prompts: int = 16) -> LiveStudy:
    """Sizes, rule, optimizer, size of the step, matching and seed of one real step of a copy of a policy."""
    controls = {
        "prompts": power_slider(prompts, 32, "prompts in the step", least=2),
        "group_size": power_slider(8, 16, "rollouts per prompt", least=2),
        "rule": menu("grpo", RULES, "rule"),
        "optimizer": menu("sgd", [("SGD", "sgd"), ("AdamW", "adamw")], "optimizer"),
        "nats": log_slider(SMALL_NATS, -4, -1, "step (nats, rms)"),
        "matched": menu("position", MATCHED, "alike in"),
        "of": menu("value", GAP_IN, "gap in"),
        "seed": slider(0, 0, 19, 1, "seed of prompts, rollouts"),
    }
    study = committed_gaps()
    variables = {"policy": private_copy(policy), "task": task}
    start = {"study": study, "live": study.iloc[:0]}
    return LiveStudy(compute_live_gap, live_gap_chart, controls, start, describe_live_gap, variables)
