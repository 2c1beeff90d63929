"""One batch: its ratios over epochs on it, what objectives leave on shared tokens, and how much
energy these have.

Exchangeable weights can only cancel what all rollouts of a group share. A token's *energy* is the
squared size of its push on the logits, A^2 |e_y - p|^2. Of a token with probability p the rest of
its group shares it with p^(G - 1), and a token that is sure to be shared has no energy left. Of a
slot of two words the share is `two_word_share`: at most about 1/(e G), 5 % for groups of eight;
only a pair can share a quarter.
"""

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbook.messages import require_one_of
from workbook.policies.models import evaluating, private_copy
from workbook.probes.recovered import Pushes, measure_parts, rule_advantages
from workbook.probes.step import logps, optimizer_of, progress, scores, update
from workbook.probes.values import exact_values
from workbook.rollouts.credit import output_states
from workbook.rollouts.sample import Rollouts
from workbook.theory import objective
from workbook.theory.advantages import (
    group_extreme,
    group_index,
    group_size,
    group_sum,
    shared_places,
)
from workbook.theory.choices import CLIPPINGS as BOUNDED
from workbook.theory.choices import TRANSFORMS
from workbook.theory.decomposition import PushParts, realised_pushes
from workbook.theory.weights import cancellation_residual

CLIPPINGS = ("none", *BOUNDED)
RULE, PARTS_TOKENS = "grpo", 32  # of `parts_at_reuse`; tokens measured of each class
EQUAL = "equal weights"
AT_REUSE = {  # level, clipping, epsilon, transform
    EQUAL: ("token", "none", 0.2, "none"),
    "PPO: token ratios, clip 0.2": ("token", "asymmetric", 0.2, "none"),
    "sequence ratio, no clip": ("sequence", "none", 0.03, "none"),
    "GSPO: sequence ratio, clip 0.03": ("sequence", "asymmetric", 0.03, "none"),
    "GSPO with min-replace": ("sequence", "asymmetric", 0.03, "min_replace"),
}
PANELS = {"result": "result words", "style": "style words"}


def reuse_path(
    policy,
    rollouts: Rollouts,
    times: int = 8,
    lr: float = 5e-4,
    optimizer: str = "adamw",
    minibatches: int = 2,
) -> Float[Tensor, "times1 B T"]:
    """Log-probabilities of a batch before and after each epoch on it, in nats; the policy stays as
    it was.

    An epoch: one optimizer step is taken on each of `minibatches` parts, whole groups in order, all
    ratios taken as 1.

    Raises ValueError if the groups can't be divided so, or a part pushes nothing.
    """
    groups = rollouts.group_ids.unique()
    if minibatches < 1 or len(groups) % minibatches:
        raise ValueError(
            f"minibatches={minibatches} does not divide the {len(groups)} groups of these rollouts."
        )
    halves = groups.split(len(groups) // minibatches)
    parts = [rollouts.select(torch.isin(rollouts.group_ids, chosen)) for chosen in halves]
    mine = private_copy(policy)
    stepper, path = optimizer_of(mine, optimizer, lr), [logps(mine, rollouts)]
    for _ in progress(range(times), "epochs on the batch"):
        for part in parts:
            update(mine, part, stepper)
        path.append(logps(mine, rollouts))
    return torch.stack(path)


def objective_weights(
    rollouts: Rollouts,
    now: Float[Tensor, "B T"],
    level: str = "token",
    clipping: str = "asymmetric",
    epsilon: float = 0.2,
    transform: str = "none",
) -> Float[Tensor, "B T"]:
    """The weight of each token under an objective, as CancellationTrainer gives it, before the
    loss's normalizer.

    now: log-probabilities of the policy that is being trained; the rollouts' own are those of the
    policy that sampled. level, clipping, epsilon: as in `surrogate_weights`; clipping "none" leaves
    ratios free.  transform: "none" or one of TRANSFORMS; it sees ratios held inside the clip range,
    by either clipping.  Shapes (B, T).
    """
    require_one_of("clipping", clipping, CLIPPINGS)
    require_one_of("transform", transform, ("none", *TRANSFORMS))
    batch = (
        now,
        rollouts.old_logps,
        rollouts.completion_mask.bool(),
        rollouts.advantages,
        rollouts.group_ids,
    )
    return objective.objective_weights(
        *batch,
        level,
        clip=None if clipping == "none" else (epsilon, epsilon),
        clipping="symmetric" if clipping == "symmetric" else "asymmetric",
        transform=None if transform == "none" else transform,
    )


def shared_tokens(rollouts: Rollouts) -> pd.DataFrame:
    """The token table with a column shared: whether all of the group has this token at this
    position.
    """
    shared = shared_places(rollouts.completion_ids, rollouts.completion_mask, rollouts.group_ids)
    return rollouts.token_table().assign(
        shared=shared[rollouts.completion_mask.bool()].cpu().numpy()
    )


def left_on_shared(rollouts: Rollouts, weights: Float[Tensor, "B T"]) -> pd.DataFrame:
    """Residual that an objective leaves, by group: a row for each group whose rewards differ.

    Columns: group; residual, |sum w A| / sum |w A| at a shared place, averaged over the group's
    shared places (0 cancels, 1 adds up); silent, the share of shared tokens with weight 0; own, the
    size of the group's pushes |w A| on the tokens it does not share, relative to weights of 1.
    """
    mask, advantages = rollouts.completion_mask.bool(), rollouts.advantages[:, None]
    shared = shared_places(rollouts.completion_ids, rollouts.completion_mask, rollouts.group_ids)
    own, index = mask & ~shared, group_index(rollouts.group_ids, len(rollouts))
    places = group_extreme(shared.long(), *index, "amax")  # (groups, T)
    residual = (
        cancellation_residual(weights, rollouts.advantages, rollouts.group_ids) * places
    ).sum(1)

    def total(values: Tensor) -> Tensor:
        return group_sum(values.double().sum(1), *index)

    usual = total(advantages.abs() * own)
    columns = {
        "group": rollouts.group_ids.unique(),
        "residual": residual / places.sum(1),
        "silent": total((weights == 0) & shared) / total(shared),
        "own": total((weights * advantages).abs() * own) / usual,
    }
    table = pd.DataFrame({name: values.cpu().numpy() for name, values in columns.items()})
    return table[((usual > 0) & (places.sum(1) > 0)).cpu().numpy()].reset_index(drop=True)


# --- energy on shared tokens


def two_word_share(p: float, group_size: int) -> float:
    """Share of a two-word slot's energy on tokens that a whole group has, on-policy, in
    expectation.

    p: probability of one of the words.  group_size: rollouts per prompt G >= 2.

    >>> [round(two_word_share(p, 8), 3) for p in (0.998, 0.875, 0.8)]
    [0.002, 0.049, 0.042]
    """
    return p ** (group_size - 1) * (1 - p) + (1 - p) ** (group_size - 1) * p


def token_energy(policy, rollouts: Rollouts) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Energy A^2 |e_y - p|^2 of every token, and what its group is expected to share of it; 0
    outside the mask.

    Expected: the energy times p_y^(G-1), as if every other rollout of the group drew from the same
    softmax.
    """
    states, alive = output_states(policy, rollouts), rollouts.completion_mask.bool()
    p = states.logits.float().softmax(-1)  # (N, V)
    own = p.gather(-1, states.tokens[:, None]).squeeze(-1)
    size = 1 - 2 * own + p.square().sum(-1)  # |e_y - p|^2
    index, groups = group_index(rollouts.group_ids, len(rollouts))
    others = (group_size(index, groups)[index] - 1)[:, None].expand_as(alive)[alive]
    advantages = rollouts.advantages[:, None].expand(alive.shape)
    energy, expected = torch.zeros(alive.shape), torch.zeros(alive.shape)
    energy[alive] = size * advantages[alive].square()
    expected[alive] = energy[alive] * own**others
    return energy, expected


def shared_energy(policy, rollouts: Rollouts) -> pd.DataFrame:
    """Energy that whole groups share, by class of token: a row for each class, and one for all of
    them, "all".

    Columns category; tokens, the class's share of all tokens; shared, the share of its tokens that
    a whole group has; energy, the class's share of all energy; shared_energy, that of its shared
    tokens, as a share of *all* energy; expected, the same by the tokens' probabilities
    (`token_energy`); unsure, entropy at its tokens (mean, nats).
    """
    energy, expected = token_energy(policy, rollouts)
    shared = shared_places(rollouts.completion_ids, rollouts.completion_mask, rollouts.group_ids)
    alive = rollouts.completion_mask.bool()
    table = rollouts.token_table()[["category", "entropy"]].assign(
        shared=shared[alive].numpy(), energy=energy[alive].numpy(), expected=expected[alive].numpy()
    )
    table["on_shared"] = table["energy"] * table["shared"]
    whole, rows = table["energy"].sum(), []
    for category, part in [*table.groupby("category"), ("all", table)]:
        sums = part[["energy", "on_shared", "expected"]].sum() / whole
        rows.append(
            (category, len(part) / len(table), part["shared"].mean(), *sums, part["entropy"].mean())
        )
    columns = ["category", "tokens", "shared", "energy", "shared_energy", "expected", "unsure"]
    return pd.DataFrame(rows, columns=columns)


def residual_by_energy(
    rollouts: Rollouts,
    weights: Float[Tensor, "B T"],
    energy: Float[Tensor, "B T"],
    shared: Bool[Tensor, "B T"],
) -> float:
    """Residual |sum w A| / sum |w A| on shared tokens, averaged over the groups' shared places by
    their energy.

    A mean over places alone would speak of sure words, which cannot move; 0 cancels, 1 adds up. A
    place where all weights are 0 has residual 0. NaN where no shared token has energy.
    """
    index, groups = group_index(rollouts.group_ids, len(rollouts))
    places = group_sum(energy * shared, index, groups).double()  # (groups, T)
    residual = cancellation_residual(weights, rollouts.advantages, rollouts.group_ids).double()
    return float((residual * places).sum() / places.sum()) if places.sum() > 0 else float("nan")


def shared_gradient(
    policy, rollouts: Rollouts, weights: Float[Tensor, "B T"], chosen: Bool[Tensor, "B T"]
) -> float:
    """Residual of the chosen tokens' update in the space of all weights: the policy's own
    gradients, no proxy.

    With g_i = sum over rollout i's chosen tokens of w_it grad log pi(y_it), averaged over groups by
    its denominator:

        |sum_i A_i g_i| / sum_i |A_i g_i|        over the rollouts of one group; 0 cancels, 1 adds up

    Equal words behind different prefixes have different gradients, so this need not be 0 where
    weights are equal.
    Memory: two gradients. NaN where nothing pushes.
    """
    index, groups = group_index(rollouts.group_ids, len(rollouts))
    pushes = (weights * rollouts.advantages[:, None]).masked_fill(~chosen, 0.0)
    trained = [p for p in policy.model.parameters() if p.requires_grad]
    net = gross = 0.0
    with torch.enable_grad(), evaluating(policy.model):
        for group in range(groups):
            total, sizes = None, 0.0
            for row in ((index == group) & pushes.any(1)).nonzero().flatten().tolist():
                scored = scores(policy.model, rollouts.select([row]))
                parts = torch.autograd.grad(
                    (pushes[[row]] * scored).sum(), trained, allow_unused=True
                )
                own = torch.cat([part.flatten() for part in parts if part is not None])
                sizes, total = sizes + float(own.norm()), own if total is None else total + own
            if total is not None:
                net, gross = net + float(total.norm()), gross + sizes
    return net / gross if gross > 0 else float("nan")


# --- signal, noise and bias at reuse


def parts_at_reuse(
    policy, task, rollouts: Rollouts, path: Float[Tensor, "times1 B T"], times: int = 1
) -> pd.DataFrame:
    """What moves classes of tokens under each objective of AT_REUSE, after some epochs on a batch.

    Equal weights split a push into signal and noise (`theory.decomposition`). Weights w add a third
    part: with wbar, the equal weight that is nearest in the squares of w A,

        sum_j w_j A_j (e_y - p)  =  wbar (signal + noise)  +  sum_j (w_j - wbar) A_j (e_y - p) [bias: unequal weights]

    Scores, values and changes are those of the policy that sampled, so that nothing but the weights
    differs.

    path: as from `reuse_path`.  Columns panel (the class), category (the objective), part, order,
    and share of the class's squared movement under equal weights, so that shares add up to how much
    less or more an objective moves.
    """
    from workbook.views.charts import parts_table  # draws, which the ledger need not wait for

    pushes, tables = Pushes(policy, rollouts, exact_values(policy, task, rollouts)), []
    split, mask = pushes.split(RULE, 0), pushes.mask
    advantages = rule_advantages(policy, rollouts, RULE, pushes.values, 0)[mask] / len(rollouts)
    tokens, context = rollouts.completion_ids[mask], pushes.context[mask]
    for name, settings in AT_REUSE.items():
        weights = objective_weights(rollouts, path[0] if name == EQUAL else path[times], *settings)[
            mask
        ].to(advantages)
        equal = float((weights * advantages.square()).sum() / advantages.square().sum())
        unequal = realised_pushes((weights - equal) * advantages, tokens, context, pushes.probs)
        scaled = [equal * part for part in (split.signal, split.bias, split.noise)]
        weighed = PushParts(scaled[0], scaled[1] + unequal, scaled[2], equal * split.scale)
        shares = measure_parts(pushes, weighed, RULE, None, PARTS_TOKENS).shares
        table = parts_table(shares[shares["category"].isin(PANELS)]).drop(columns="size")
        tables.append(table.assign(panel=table["category"], category=name))
    table = pd.concat(tables, ignore_index=True)
    base = table[table["category"] == EQUAL].groupby("panel")["change_rms"].first()
    share = table["share"] * (table["change_rms"] / table["panel"].map(base)) ** 2
    table = table.assign(share=share, panel=table["panel"].map(PANELS))
    return table[["panel", "category", "part", "order", "share"]]
