"""Live studies of chapters 05 and 14: the policy in hand beside ten of the family."""

from collections.abc import Iterator

import pandas as pd

from workbook.chapters.coupling import charts
from workbook.messages import progress
from workbook.probes.coupling import (
    choose_tokens,
    followers,
    masked_update,
    shared_token,
)
from workbook.probes.pair_mass import pair_sums
from workbook.probes.step import ONE_STEP_OPTIMIZERS
from workbook.rollouts.sample import sample_rollouts
from workbook.theory.coupling import BELOW_HALF, NEARLY_CERTAIN
from workbook.views.explorer import menu, power_slider, slider, switch
from workbook.views.live_study import LiveStudy, live_curve, live_tables
from workbook.views.measured import measured_table

# learning rates of a push
RATES = {"sgd": (0.01, 0.1, 0.3, 1.0), "adamw": (1e-4, 1e-3, 3e-3, 1e-2)}
# of the token that pushes
CONFIDENCE = {"unsure": (0.0, BELOW_HALF), "sure": (NEARLY_CERTAIN, 1.0)}
SIGNS = {"better rollouts": 1, "worse rollouts": -1}
SPARE = 3  # times as many prompts are sampled, since not every one has such a token
NEW_TOKENS = 48  # at most, of the bundled task
THIS_POLICY = " (this policy)"  # in the names of lines


def _sampling(prompts: int, most: int = 32) -> dict:
    """Controls of what is sampled."""
    return {
        "prompts": power_slider(prompts, most, "prompts"),
        "group_size": power_slider(8, 16, "rollouts per prompt", least=2),
        "seed": slider(0, 0, 19, 1, "seed of prompts, rollouts"),
    }


def measure_push(
    policy,
    task,
    pushing="unsure",
    side="better rollouts",
    optimizer="sgd",
    prompts=4,
    group_size=8,
    seed=0,
) -> Iterator[tuple]:
    """How far tokens move when one token of a prompt pushes: (learning rate, kind, movement / the
    pushing tokens').

    pushing: of CONFIDENCE.  side: of SIGNS, whose occurrences push.  prompts: of which the mean is
    taken, at most. Raises ValueError where no prompt has such a token under both signs.
    """
    rollouts = sample_rollouts(
        policy, task, SPARE * prompts, group_size, seed, max_new_tokens=NEW_TOKENS
    )
    groups = []
    for group in rollouts.group_ids.unique().tolist():
        part = rollouts.select(rollouts.group_ids == group)
        if (token := shared_token(part, CONFIDENCE[pushing])) is not None:
            groups.append(
                (part, choose_tokens(part, token, confidence=CONFIDENCE[pushing], sign=SIGNS[side]))
            )
    if not groups:
        raise ValueError(
            f"No prompt has {pushing} tokens under both signs with seed={seed}; take more rollouts."
        )
    for rate in progress(RATES[optimizer], "learning rates"):
        moved = []
        for part, chosen in groups[:prompts]:
            kinds = followers(part, masked_update(policy, part, chosen, optimizer, rate)).set_index(
                "kind"
            )
            moved.append(kinds["size"] / kinds.loc["pushing", "size"])
        means = pd.concat(moved, axis=1).mean(axis=1)
        for kind in charts.FOLLOWERS:
            if kind in means:
                yield rate, charts.kind_name(kind) + THIS_POLICY, means[kind]


def family_push(optimizer: str = "sgd") -> pd.DataFrame:
    """The family's spillover before training, the same at every rate since its steps were small."""
    before = measured_table("coupling/training").query("panel == 'followers' and step == 0")
    before = before[["series", "mean", "low", "high", "units"]]
    before = before.assign(series=before["series"].map(charts.kind_name))
    return pd.concat([before.assign(lr=rate) for rate in RATES[optimizer]], ignore_index=True)


def live_push(policy, task, prompts: int = 4) -> LiveStudy:
    """What pushes, the optimizer, prompts, rollouts and seed of masked updates on a copy of a
    policy.
    """
    controls = {
        "pushing": menu(
            "unsure",
            [("a token below one half", "unsure"), ("a sure token", "sure")],
            "what pushes",
        ),
        "side": menu("better rollouts", list(SIGNS), "pushing in"),
        "optimizer": menu("sgd", list(ONE_STEP_OPTIMIZERS), "optimizer"),
        **_sampling(prompts, 16),
    }
    presets = {
        "a sure token pushes": {"pushing": "sure"},
        "worse rollouts push": {"side": "worse rollouts"},
        "AdamW": {"optimizer": "adamw"},
    }
    kinds = [charts.kind_name(kind) for kind in charts.FOLLOWERS]
    return live_curve(
        *(measure_push, family_push, controls, policy, task),
        x="lr",
        presets=presets,
        now=[kind + THIS_POLICY for kind in kinds],
        names=[*kinds, *(kind + THIS_POLICY for kind in kinds)],
        x_title="learning rate (log scale)",
        y_title="movement / the pushing tokens'",
        title="The same unlikely word follows fully, other words far less",
        subtitle=(
            "one word below one half pushes; the other lines: ten policies, small steps; band: 95 %"
            " t interval"
        ),
    )


def measure_mass(
    policy,
    task,
    weights="output layer",
    signs="any",
    same_context=True,
    prompts=8,
    group_size=8,
    anchors=8,
    seed=0,
) -> dict[str, pd.DataFrame]:
    """`mass_shares` of this policy now, of the strongest kinds of pair and the rest.

    anchors: tokens of each prompt whose gradient of all weights is taken.
    """
    rollouts = sample_rollouts(policy, task, prompts, group_size, seed, max_new_tokens=NEW_TOKENS)
    pairs = pair_sums(policy, rollouts, prompts, anchors, seed).assign(seed=0)
    shares = charts.mass_shares(pairs, weights, signs, same_context)
    return {name: charts.strongest_and_rest(table) for name, table in shares.items()}


def live_mass(policy, task, prompts: int = 8) -> LiveStudy:
    """Controls over the pairs of a policy: weights, signs, contexts, prompts, rollouts, anchors."""
    controls = {
        "weights": menu("output layer", list(charts.WEIGHTS), "gradients of"),
        "signs": menu("any", list(charts.SIGNS), "signs of the rollouts"),
        "same_context": switch(True, "pairs in the same context, too"),
        **_sampling(prompts),
        "anchors": power_slider(8, 32, "anchor tokens of a prompt"),
    }
    presets = {
        "through all weights": {"weights": "all weights"},
        "rollouts of opposite signs": {"signs": "opposite"},
    }
    shown = charts.compute_mass, charts.mass_chart, controls
    return live_tables(measure_mass, *shown, policy, task, charts.describe_mass, presets=presets)
