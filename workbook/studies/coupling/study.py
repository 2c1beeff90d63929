"""Study mass of chapter 05: where coupling goes by mass (H2), opposite signs (R2), and H3, H4 along
real training.

Sums over pairs: `workbook.probes.pair_mass`.

What was registered, and what is judged by it: data/results/dose/registration.yaml,
`workbook.studies.coupling.claims`.
"""

from itertools import product

import numpy as np
import pandas as pd
import torch

from workbook.probes.blocks import block_coupling, coupling_by_mass
from workbook.probes.coupling import (
    choose_tokens,
    kinds_of,
    masked_update,
    shared_token,
)
from workbook.probes.pair_mass import opposed_signs, pair_sums
from workbook.probes.step import MOVED, along_training, matched_lr
from workbook.rollouts.sample import Rollouts
from workbook.studies.unit import StudyUnit
from workbook.theory.coupling import BELOW_HALF, NEARLY_CERTAIN

_STEP = 0.03  # nats, root mean square, of the full step that is compared with the output layer's
# products: prompts, anchors of each.  masked: prompts.  training: steps, every, prompts, rate
SIZES = {
    "tiny": {"prompts": 6, "products": (2, 4), "masked": 3, "training": (2, 1, 4, 1e-3)},
    "family": {"prompts": 24, "products": (10, 8), "masked": 8, "training": (40, 4, 16, 1e-3)},
}


def mass_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Tables pairs, blocks, opposed, adam and training of one unit."""
    sizes, policy, scale = SIZES[unit.setting.name], unit.policy, unit.setting
    rollouts = unit.sample(sizes["prompts"], unit.data_seed)
    blocks = block_coupling(policy, rollouts, blocks="sign")
    # at each checkpoint of a run: what moves with a pushing token (H3), and the output layer as a
    # proxy (H4)
    training, (steps, every, prompts, lr) = [], sizes["training"]
    run = {"every": every, "seed": unit.data_seed, "max_new_tokens": scale.max_new_tokens}
    for step, trained, batch in along_training(
        policy, unit.task, steps, prompts, scale.group_size, lr, **run
    ):
        if batch.advantages.any():
            tables = pd.concat(
                [spillover(trained, batch, sizes["masked"]), proxy_signs(trained, batch)]
            )
            training.append(tables.assign(step=step, reward=float(batch.rewards.mean())))
    return {
        "pairs": pair_sums(policy, rollouts, *sizes["products"], seed=unit.number),
        "blocks": coupling_by_mass(blocks),
        "opposed": opposed_signs(policy, rollouts, blocks),
        "adam": first_steps(policy, rollouts, sizes["masked"]),
        "training": pd.concat(training, ignore_index=True),
    }


# --- H10: an identity, shown


def first_steps(policy, rollouts: Rollouts, prompts: int) -> pd.DataFrame:
    """H10: mean |change| of the tokens that do not push, when an unsure or a sure token does: a row
    per optimizer.

    Columns optimizer, pushing, size (nats, mean over prompts that have both kinds of token),
    prompts.
    """
    rows = []
    for group in rollouts.group_ids.unique().tolist():
        part = rollouts.select(rollouts.group_ids == group)
        ids = {
            "unsure": shared_token(part, (0.0, BELOW_HALF)),
            "sure": shared_token(part, (NEARLY_CERTAIN, 1.0)),
        }
        if None in ids.values() or len({row["group"] for row in rows}) == prompts:
            continue
        for (pushing, token), (optimizer, lr) in product(
            ids.items(), (("sgd", 1e-3), ("adamw", 1e-6))
        ):
            confidence = (0.0, BELOW_HALF) if pushing == "unsure" else (NEARLY_CERTAIN, 1.0)
            chosen = choose_tokens(part, token, confidence=confidence, sign=1)
            moved = masked_update(policy, part, chosen, optimizer, lr)
            size = float(moved.loc[~moved["chosen"], "dlogp"].abs().mean())
            rows.append({"group": group, "optimizer": optimizer, "pushing": pushing, "size": size})
    table = pd.DataFrame(rows, columns=["group", "optimizer", "pushing", "size"])
    return (
        table.groupby(["optimizer", "pushing"])["size"]
        .agg(size="mean", prompts="size")
        .reset_index()
    )


# --- H3 and H4 along training


def spillover(policy, rollouts: Rollouts, prompts: int) -> pd.DataFrame:
    """H3: change of other tokens of a prompt when its commonest unsure token pushes in positive
    rollouts alone.

    A small step for each of the first `prompts` that have such a token. Columns quantity, one of
    FOLLOWER_KINDS; size (mean |change|) and net (mean change), both in units of the pushing tokens'
    mean change; tokens.
    """
    labels = torch.full_like(rollouts.completion_ids, -1)
    for group in rollouts.group_ids.unique().tolist():
        rows = (rollouts.group_ids == group).nonzero().squeeze(1)
        part = rollouts.select(rows)
        token = shared_token(part, (0.0, BELOW_HALF))
        if token is not None and int(labels.max()) + 1 < prompts:
            chosen = choose_tokens(part, token, confidence=(0.0, BELOW_HALF), sign=1)
            labels[rows] = torch.where(chosen, int(labels.max()) + 1, labels[rows])
    if not (labels >= 0).any():
        return pd.DataFrame(columns=["quantity", "size", "net", "tokens"])
    groups = rollouts.group_ids[(labels >= 0).any(1)].unique().tolist()
    blocks = block_coupling(policy, rollouts, blocks=labels, measured=groups)
    tables = []
    for k, group in blocks.blocks["group"].items():
        tokens = blocks.tokens[blocks.tokens["group"] == group]
        pushing = (tokens["block"] == k).to_numpy()
        change = blocks.changes[k, tokens.index].astype(float)
        change = change / change[pushing].mean()
        kinds = kinds_of(rollouts.select(rollouts.group_ids == group), tokens, pushing)
        tables.append(pd.DataFrame({"quantity": kinds, "change": change, "size": abs(change)}))
    table = pd.concat(tables)
    means = {"size": ("size", "mean"), "net": ("change", "mean"), "tokens": ("size", "size")}
    return table.groupby("quantity").agg(**means).reset_index()


def proxy_signs(policy, rollouts: Rollouts) -> pd.DataFrame:
    """H4: share of tokens whose change has one sign in a full step of SGD and in one of the output
    layer alone.

    Column quantity: "agreement, all", "..., unsure" or "..., moved" (beyond MOVED of the step's
    rms); size: the share.
    """
    everything = rollouts.completion_mask.bool()
    moved = masked_update(
        policy, rollouts, everything, "sgd", matched_lr(policy, rollouts, "sgd", _STEP)
    )
    agree = np.sign(moved["dlogp"]) == np.sign(moved["predicted"])
    far = moved["dlogp"].abs() > MOVED * float((moved["dlogp"] ** 2).mean() ** 0.5)
    sets = {
        "all": np.ones(len(moved), dtype=bool),
        "unsure": moved["logp"] < np.log(BELOW_HALF),
        "moved": far,
    }
    rows = [
        (f"agreement, {name}", float(agree[here].mean()), int(here.sum()))
        for name, here in sets.items()
    ]
    return pd.DataFrame(rows, columns=["quantity", "size", "tokens"])
