"""Chapter 05, live: what shared words keep of a step, one step at any setting, and whose pushes move which words."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from workbook.policies.restoring import private_copy
from workbook.probes.block_tables import DRAWS, step_changes
from workbook.probes.blocks import Blocks
from workbook.probes.dose import IDENTITIES
from workbook.probes.step import ONE_STEP_OPTIMIZERS, STEP_NATS, matched_lr
from workbook.rollouts.sample import sample_rollouts
from workbook.statistics import unit_curve
from workbook.theory.coupling import NEARLY_CERTAIN
from workbook.topics.flips.charts import STUDY_LINE, describe_flips, flips_chart
from workbook.topics.flips.contrasts import contrasts
from workbook.topics.flips.dose import ADVANTAGES, live_curves, pushing_prompts, with_signs
from workbook.topics.flips.dose_charts import KEPT, NET_SUBTITLE, NET_TITLES, PAPER, PROMPTS, compute_net
from workbook.topics.flips.live import FAMILY, NOW
from workbook.topics.flips.probe import eps_curve, flip_shares, frequency_matched, token_flips
from workbook.topics.flips.settings import EPSILONS, compute_flips
from workbook.views.curves import curve_chart
from workbook.views.explorer import log_slider, menu, power_slider, slider, switch
from workbook.views.live_study import LiveStudy

SHOWN = [name for name in IDENTITIES if name != "position-shared"]  # of which too few tokens are unsure
CLASSES = ("result", "style")  # the words of the bundled task that are not forced


# --- whose pushes move which words


def own_share(blocks: Blocks, doses=(1, 2, 4, 8), draws: int = DRAWS, seed: int = 0) -> pd.DataFrame:
    """How much of a step's movement a token's own prompt makes, by class: own / (own + others), rms of both.

    Tokens of probability below NEARLY_CERTAIN. Columns category, prompts, mean, low, high (t interval over the measured
    prompts), units.
    """
    tables = []
    for dose in doses:
        table = step_changes(blocks, dose, draws, seed)
        table = table[(table["logp"] < np.log(NEARLY_CERTAIN)) & table["category"].isin(CLASSES)]
        squares = table.assign(own=table["own"] ** 2, others=(table["change"] - table["own"]) ** 2)
        rms = squares.groupby(["group", "category"])[["own", "others"]].mean() ** 0.5
        tables.append((rms["own"] / rms.sum(axis=1)).rename("share").reset_index().assign(prompts=dose))
    return unit_curve(pd.concat(tables), "prompts", "share", unit="group", by="category")


def own_share_chart(curve: pd.DataFrame) -> alt.LayerChart:
    """Lines of `own_share`, a class each."""
    return curve_chart(
        curve,
        "prompts",
        series="category",
        x_title=PROMPTS,
        y_title="own prompt's part of the movement",
        title="Style words answer to the whole batch sooner than results do",
        subtitle="rms by the own prompt / (own + others); bands: 95 % t interval over the prompts of this step",
        reference=[(0.5, "the other prompts move it as far")],
        names=list(CLASSES),
        scale={"domain": [0, 1]},
    )


# --- what shared words keep


def compute_live_net(
    policy,
    task,
    prompts: int = 16,
    group_size: int = 8,
    identity: str = "sign-shared",
    asked: str = "less than half",
    matched: bool = False,
    signs: str = "by reward",
    seed: int = 0,
) -> dict[str, pd.DataFrame]:
    """What shared tokens keep of specific ones' net change, by prompts per step: the family's curve and this policy's.

    Columns series, prompts, mean, low, high, units.  identity: how words are shared.  asked, matched: as in
    `compute_net`.  signs: "by reward", or "permuted" within each group.
    Raises ValueError for unknown choices, and where no prompt has different rewards.
    """
    family = family_net(identity, asked, matched)
    net = live_curves(policy, task, prompts, seed, group_size=group_size, signs=signs)["net"]
    rows = contrasts(net[net["identity"] == identity].assign(seed=0), KEPT[asked], matched)
    own = unit_curve(rows, "prompts", "contrast").assign(series=NOW)
    return {"curve": pd.concat([family, own], ignore_index=True)}


def family_net(identity: str = "sign-shared", asked: str = "less than half", matched: bool = False) -> pd.DataFrame:
    """The committed curve of one way of sharing."""
    curve = compute_net(asked, matched)["curve"]
    if identity not in SHOWN:
        raise ValueError(f"identity={identity!r:.60} is unknown: choose one of {', '.join(SHOWN)}.")
    return curve[curve["series"] == identity].assign(series=FAMILY)


def live_net_chart(curve: pd.DataFrame) -> alt.LayerChart:
    """The contrast of shared with specific tokens against prompts per step; table of `compute_live_net`."""
    return curve_chart(
        curve,
        "prompts",
        series="series",
        x_title=PROMPTS,
        paper=PAPER,
        subtitle=f"{NET_SUBTITLE}; violet band: 95 % t interval over policies",
        scale={"domain": [-0.5, 0.75], "clamp": True},
        names=[FAMILY, NOW],
        **NET_TITLES,
    )


def live_net(policy, task, prompts: int = 16) -> LiveStudy:
    """How words are shared, what is asked of them, and whose signs push, in small steps on a copy of a policy."""
    controls = {
        "prompts": power_slider(prompts, 32, "prompts at most", least=2),
        "group_size": power_slider(8, 16, "rollouts per prompt", least=2),
        "identity": menu("sign-shared", SHOWN, "words are"),
        "asked": menu("less than half", list(KEPT), "shared tokens keep"),
        "matched": switch(False, "at equal confidence"),
        "signs": menu("by reward", list(ADVANTAGES), "advantages"),
        "seed": slider(0, 0, 19, 1, "seed of prompts, rollouts"),
    }
    variables = {"policy": private_copy(policy), "task": task}
    return LiveStudy(compute_live_net, live_net_chart, controls, {"curve": family_net()}, variables=variables)


# --- one step at any setting


def compute_live_flips(
    policy,
    task,
    optimizer: str = "adamw",
    nats: float = STEP_NATS,
    prompts: int = 16,
    group_size: int = 8,
    eps: float = 0.01,
    signs: str = "by reward",
    matched: bool = False,
    seed: int = 0,
) -> dict[str, pd.DataFrame]:
    """Shares of boosted, suppressed and stable tokens by sign after one real step, and their distance against eps.

    nats: the step's root mean square movement.  signs: "by reward", or "permuted" within each group.  matched: tokens
    matched by frequency (R1).  Tables as of `compute_flips`, the curve with a column series.
    """
    sampled = pushing_prompts(sample_rollouts(policy, task, prompts + 4, group_size, seed, max_new_tokens=48), prompts)
    rollouts = with_signs(sampled, signs, seed)
    table = token_flips(policy, rollouts, optimizer, matched_lr(policy, rollouts, optimizer, nats))
    table = frequency_matched(table, seed) if matched else table
    shares = flip_shares(table, eps).query("quantity != 'difference'").rename(columns={"quantity": "sign"})
    nearest = min(EPSILONS, key=lambda measured: abs(np.log(measured / eps)))
    curve = eps_curve(table, EPSILONS).query("quantity == 'distance'").drop(columns="quantity").assign(series=NOW)
    curve = pd.concat([_before(), curve.assign(chosen=np.isclose(curve["eps"], nearest))], ignore_index=True)
    return {"shares": shares.reset_index(drop=True), "curve": curve}


def _before() -> pd.DataFrame:
    """The distance that the study measured at its own setting."""
    return compute_flips()["curve"].assign(chosen=False, series=STUDY_LINE)


def describe_live_flips(shares: pd.DataFrame, curve: pd.DataFrame) -> str:
    """The distance of this policy's step at the chosen eps, in words."""
    return describe_flips(shares, curve, "interval over prompts") if curve["chosen"].any() else ""


def live_flips(policy, task, prompts: int = 16) -> LiveStudy:
    """Optimizer, length, batch, eps and signs of one real step on a copy of a policy, beside what was measured."""
    controls = {
        "optimizer": menu("adamw", list(ONE_STEP_OPTIMIZERS), "optimizer"),
        "nats": log_slider(STEP_NATS, -3, 0, "step (nats, rms)", step=0.25),
        "prompts": power_slider(prompts, 64, "prompts in the batch"),
        "group_size": power_slider(8, 16, "rollouts per prompt, G", least=2),
        "eps": log_slider(0.01, -3, 0, "eps (nats)", step=0.05),
        "signs": menu("by reward", list(ADVANTAGES), "advantages"),
        "matched": switch(False, "match frequencies (R1)"),
        "seed": slider(0, 0, 19, 1, "seed of prompts, rollouts"),
    }
    variables = {"policy": private_copy(policy), "task": task}
    tables = {"shares": compute_flips()["shares"], "curve": _before()}
    return LiveStudy(compute_live_flips, flips_chart, controls, tables, describe_live_flips, variables)
