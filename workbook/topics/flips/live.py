"""Chapters 05 and 10, live: whose sign a token follows, measured now on the policy in hand, over committed curves."""

from __future__ import annotations

import altair as alt
import pandas as pd

from workbook.policies.restoring import private_copy
from workbook.probes.blocks import block_coupling
from workbook.probes.dose import DOSES, dose_curve
from workbook.rollouts.sample import sample_rollouts
from workbook.statistics import unit_curve
from workbook.topics.flips.backbones import BACKBONES, BANDS, TOKENS, compute_backbones
from workbook.topics.flips.dose import ADVANTAGES, live_curves, pushing_prompts
from workbook.topics.flips.dose_charts import MEASURED, PAPER, PROMPTS, TOKEN_MENU, compute_dose
from workbook.views.curves import curve_chart
from workbook.views.explorer import menu, power_slider, slider
from workbook.views.live_study import LiveStudy

NOW, FAMILY = "this policy, now", "the family"
SUBTITLE = "family: mean of ten policies, band 95 % t interval; this policy: one policy, one draw of prompts"
QUESTIONS = 8  # of chapter 10's task, of which the first that push are taken


def compute_live_dose(
    policy,
    task,
    prompts: int = 16,
    group_size: int = 8,
    tokens: str = "unsure",
    signs: str = "by reward",
    seed: int = 0,
) -> dict[str, pd.DataFrame]:
    """Whose sign tokens follow, by prompts per step: {"curve": series, prompts, mean, low, high, units}.

    series: FAMILY, the committed curve of ten policies; NOW, small steps of this policy on prompts sampled with `seed`.
    prompts: that push at most.  signs: "by reward", or "permuted" within each group.
    Raises ValueError where no prompt has different rewards.
    """
    live = live_curves(policy, task, prompts, seed, group_size=group_size, signs=signs)["rates"]
    own = unit_curve(live[live["tokens"] == tokens].assign(seed=0), "prompts", "follows").assign(series=NOW)
    return {"curve": pd.concat([_family(tokens), own], ignore_index=True)}


def _family(tokens: str) -> pd.DataFrame:
    curve = compute_dose(tokens)["curve"]
    return curve[curve["series"] == MEASURED].assign(series=FAMILY)


def live_dose_chart(curve: pd.DataFrame) -> alt.LayerChart:
    """Chance that a token goes where its rollout's sign says, by prompts per step, of `compute_live_dose`."""
    return _follows_chart(
        curve, [FAMILY, NOW], "The more prompts push, the less a token follows its own rollout", paper=PAPER
    )


def _follows_chart(
    curve: pd.DataFrame, names: list[str], title: str, subtitle: str = SUBTITLE, **look
) -> alt.LayerChart:
    return curve_chart(
        curve,
        "prompts",
        series="series",
        x_title=PROMPTS,
        y_title="chance to follow the own sign",
        title=title,
        reference=[(0.5, "the sign says nothing")],
        subtitle=subtitle,
        scale={"domain": [0.4, 1.0], "clamp": True},
        names=names,
        **look,
    )


def describe_live(curve: pd.DataFrame) -> str:
    """Where this policy's line starts and ends, beside the first of the other lines at the same prompts."""
    own = curve[curve["series"] == NOW]
    if own.empty:
        return ""
    other = curve[curve["series"] != NOW]
    name = other["series"].iloc[0]
    beside = other[other["series"] == name].set_index("prompts")["mean"]
    ends = [
        f"{row.mean:.3f} with {row.prompts} prompt{'s' * (row.prompts > 1)}"
        + (f" ({name}: {beside[row.prompts]:.3f})" if row.prompts in beside else "")
        for row in own.iloc[[0, -1]].drop_duplicates().itertuples()
    ]
    return f"This policy now: {', '.join(ends)}."


def live_dose(policy, task, prompts: int = 16) -> LiveStudy:
    """Prompts, rollouts, kind of token and seed of small steps on a copy of a policy, over the family's curve."""
    controls = {
        "prompts": power_slider(prompts, 32, "prompts at most", least=2),
        "group_size": power_slider(8, 16, "rollouts per prompt", least=2),
        "tokens": menu("unsure", TOKEN_MENU, "tokens"),
        "signs": menu("by reward", list(ADVANTAGES), "advantages"),
        "seed": slider(0, 0, 19, 1, "seed of prompts, rollouts"),
    }
    variables = {"policy": private_copy(policy), "task": task}
    start = {"curve": _family("unsure")}
    return LiveStudy(compute_live_dose, live_dose_chart, controls, start, describe_live, variables)


def compute_live_backbones(
    policy, task, prompts: int = 4, group_size: int = 8, max_tokens: int = 20, tokens: str = "moved", seed: int = 1
) -> dict[str, pd.DataFrame]:
    """The same for a language model in hand, over the curves of the models measured before: {"curve": ...}.

    Every prompt is one small step; the tokens of the first that pushes are measured.  Raises ValueError where none of
    the task's first QUESTIONS prompts has different rewards.
    """
    rollouts = sample_rollouts(policy, task, QUESTIONS, group_size, seed, max_tokens)
    chosen = pushing_prompts(rollouts, prompts)
    blocks = block_coupling(policy, chosen, blocks="prompt", measured=[int(chosen.group_ids[0])])
    doses = sorted({dose for dose in DOSES if dose < blocks.prompts} | {blocks.prompts})
    rates = dose_curve(blocks, doses)
    own = unit_curve(rates[rates["tokens"] == tokens].assign(seed=0), "prompts", "follows").assign(series=NOW)
    return {"curve": pd.concat([compute_backbones(tokens)["curve"], own], ignore_index=True)}


def live_backbones_chart(curve: pd.DataFrame) -> alt.LayerChart:
    """Lines of `compute_live_backbones`."""
    names = [name for name in BACKBONES.values() if name in set(curve["series"])]
    return _follows_chart(curve, [*names, NOW], "Whose sign a token follows, on the model in hand now", BANDS)


def live_backbones(policy, task, max_tokens: int = 20) -> LiveStudy:
    """Prompts, rollouts, length and seed of small steps on the language model in hand, over the committed curves."""
    controls = {
        "prompts": power_slider(2, 8, "prompts at most"),
        "group_size": power_slider(8, 16, "rollouts per prompt", least=2),
        "max_tokens": slider(max_tokens, 4, 64, 1, "tokens at most"),
        "tokens": menu("moved", list(TOKENS), "tokens"),
        "seed": slider(1, 0, 19, 1, "seed of rollouts"),
    }
    variables = {"policy": private_copy(policy), "task": task}
    return LiveStudy(
        compute_live_backbones, live_backbones_chart, controls, compute_backbones(), describe_live, variables
    )
