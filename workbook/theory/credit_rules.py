"""Published credit rules: each turns a CreditBatch into advantages, per rollout or per token.

Plain GRPO gives every token of a rollout the same advantage. Each rule here changes that for a
reason of its paper's: count a shared prefix once (`lambda_grpo`), spare what right rollouts say,
too (`gtpo`, `nthr`), weaken the loudest gradients (`advantage_reweighting`), let failures lead
(`w_reinforce`), make long and short rollouts even (`balanced_aggregation`), weigh tokens by how
well they tell right from wrong (`delta`). All are trained with as `advantage_estimator: NAME`.

A rule gives advantages (B,) or (B, T), 0 outside the mask, in the unit of those that it starts
from. `advantages` is what it starts from: an estimator of group_advantages, or a tensor (B,) of
one's own. Where all of these are 0, as in a group of equal rewards or of one rollout, so is the
result. Other numbers are keyword arguments at the published values; to set others, write a rule
that calls ours:

    # credit.py, trained with as advantage_estimator: own:credit.py:gentle
    from workbook.theory import advantage_reweighting

    def gentle(batch):
        return advantage_reweighting(batch, alpha=0.05, advantages="dr_grpo")

    gentle.each_step = True  # evaluated with the log-probs of each step, as ours is

Letters: B rollouts, G group size, T completion tokens, N tokens in the mask, V vocabulary, D width.
"""

from collections.abc import Iterable, Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbook.messages import InvalidValue, require_one_of

from .advantages import group_index, group_size, group_sum, prefix_advantages
from .choices import ESTIMATORS, FORMER_RULE_NAMES, OWN
from .coupling import predicted_delta_logp
from .credit import (
    CREDIT_RULES,
    CreditBatch,
    Rule,
    Start,
    credit_rule,
    sampled_logps,
    spread_over_tokens,
    start_from,
)
from .credit_controls import coin_reward, known_credit, permuted
from .credit_edits import edit_mask, ibpo
from .credit_masks import shared_by_place, shared_by_word, specific_by_place, specific_by_word

__all__ = [
    "CREDIT_RULES",
    "RULES",
    "check_estimator",
    "coin_reward",
    "credit_table",
    "edit_mask",
    "ibpo",
    "known_credit",
    "permuted",
    "shared_by_place",
    "shared_by_word",
    "specific_by_place",
    "specific_by_word",
]

# -- from prefixes: rollouts that begin alike


@credit_rule("prefix_credit", paper="arXiv 2509.21154", fidelity="our reading")
def prefix_credit(batch: CreditBatch, fallback: str = "dr_grpo") -> Float[Tensor, "B T"]:
    """Mean reward of the rollouts that took this step, minus that of all that stood before it.

    See `workbook.theory.advantages.prefix_advantages`. Source: the hidden process reward of arXiv
    2509.21154. Our reading: the gain of a step over its own prefix, where the paper compares with
    the group.

    >>> rewards, ids = torch.tensor([1.0, 0.0]), torch.tensor([[5, 1], [5, 2]])
    >>> batch = CreditBatch(rewards, torch.zeros(2), ids, torch.ones(2, 2))
    >>> prefix_credit(batch).tolist()
    [[0.0, 0.5], [0.0, -0.5]]
    """
    return prefix_advantages(
        batch.rewards, batch.completion_ids, batch.mask, batch.group_ids, fallback
    )


@credit_rule("lambda_grpo", paper="arXiv 2509.21154")
def lambda_grpo(batch: CreditBatch, advantages: Start = "grpo") -> Float[Tensor, "B T"]:
    """Divide each token's advantage by the size of its process set.

        A_it = A_i / n_it

    with n_it the number of the group's rollouts, i too, that have i's tokens up to and including t
    (lambda-GRPO, arXiv 2509.21154, eq. 9: a prefix that many rollouts share is one step of a
    process, and GRPO counts it n_it times).

    >>> rewards, ids = torch.tensor([1.0, 0.0]), torch.tensor([[5, 1], [5, 2]])
    >>> batch = CreditBatch(rewards, torch.zeros(2), ids, torch.ones(2, 2))
    >>> lambda_grpo(batch, "dr_grpo").tolist()
    [[0.25, 0.5], [-0.25, -0.5]]
    """
    sizes = process_set_size(batch).clamp(min=1)  # 0 outside the mask
    return spread_over_tokens(batch, start_from(batch, advantages)) / sizes


def process_set_size(batch: CreditBatch) -> Int[Tensor, "B T"]:
    """Number of the group's rollouts that share the tokens up to and including each token.

    0 outside the mask.
    """
    sizes = torch.zeros_like(batch.completion_ids)
    for rows in batch.groups():
        ids = batch.completion_ids[rows]
        mask = batch.mask[rows]
        # every rollout beside every other: (G, G, T)
        same = (ids[:, None] == ids) & (mask[:, None] == mask)
        # 1 as long as all tokens so far are the same
        sizes[rows] = same.cumprod(2).sum(1) * mask
    return sizes


# -- from conflicts: tokens that rollouts of both signs have at one position


@credit_rule("gtpo", paper="arXiv 2508.03772", fidelity="our reading")
def gtpo(
    batch: CreditBatch, boost: float = 2.0, advantages: Start = "grpo"
) -> Float[Tensor, "B T"]:
    """Leave conflict tokens of negative rollouts alone and push those of positive rollouts harder.

        A_it = 0          on conflict tokens where A_i < 0
        A_it = boost A_i  on conflict tokens where A_i > 0
        A_it = A_i        on all others

    A conflict token stands at the same position, counted from the start or from the end, in a
    positive and in a negative rollout of the group, and so do all tokens of its rollout before it
    (from the end: after it). It is the opposite of letting them cancel.

    Source: GTPO (arXiv 2508.03772), runs from both ends as in its authors' code. Our reading: the
    boost counts once for a token in both runs; their entropy filter, the entropy that they take off
    each advantage, and their division by the number of conflict tokens are not part of it.

    >>> ids = torch.tensor([[1, 2, 3], [1, 5, 3]])
    >>> batch = CreditBatch(torch.tensor([1.0, 0.0]), torch.zeros(2), ids, torch.ones(2, 3))
    >>> gtpo(batch, advantages="dr_grpo").tolist()
    [[1.0, 0.5, 1.0], [0.0, -0.5, 0.0]]
    """
    started = start_from(batch, advantages)
    in_conflict = boost * started.clamp(min=0)  # (B,)
    conflict = conflict_tokens(batch, started)  # (B, T)
    return torch.where(conflict, in_conflict.unsqueeze(1), spread_over_tokens(batch, started))


def conflict_tokens(batch: CreditBatch, advantages: Float[Tensor, " B"]) -> Bool[Tensor, "B T"]:
    """Mask of GTPO's conflict tokens, of rollouts of either sign."""
    # the mask's tokens first, holes and padding last
    order = (~batch.mask).to(torch.uint8).argsort(dim=1, stable=True)
    ids = batch.completion_ids.gather(1, order)  # (B, T)
    lengths = batch.mask.sum(1, keepdim=True)  # (B, 1)
    position = torch.arange(ids.shape[1], device=ids.device)
    alive = position < lengths
    # reads each rollout from its end on; done twice, it undoes itself
    backwards = (lengths - 1 - position).clamp(min=0)

    conflict = torch.zeros_like(alive)
    for rows in batch.groups():
        signs = advantages[rows].sign()
        from_start = _conflict_run(ids[rows], alive[rows], signs)
        reversed_ids = ids[rows].gather(1, backwards[rows])
        from_end = _conflict_run(reversed_ids, alive[rows], signs).gather(1, backwards[rows])
        conflict[rows] = (from_start | from_end) & alive[rows]
    # back to where the tokens stood
    return torch.zeros_like(conflict).scatter(1, order, conflict)


def _conflict_run(
    ids: Int[Tensor, "G T"], alive: Bool[Tensor, "G T"], signs: Float[Tensor, " G"]
) -> Bool[Tensor, "G T"]:
    """Mask of the tokens from the start on that rollouts of both signs have at their positions."""
    # every rollout beside every other: (G, G, T)
    same = (ids[:, None] == ids) & alive[:, None] & alive
    in_positive = (same & (signs == 1)[:, None]).any(1)
    in_negative = (same & (signs == -1)[:, None]).any(1)
    # 1 until the first token that stands on one side alone
    return (in_positive & in_negative).cumprod(1).bool()


# -- from probabilities: how likely a token was


@credit_rule("advantage_reweighting", paper="arXiv 2505.12929", needs=("logps",), each_step=True)
def advantage_reweighting(
    batch: CreditBatch, alpha: float = 0.2, advantages: Start = "grpo"
) -> Float[Tensor, "B T"]:
    """Weaken the push on tokens of low probability, whose gradients are the largest.

        A_it = A_i (alpha p_it + 1 - alpha)

    with p_it the probability of the token under the policy of now, so the rule is evaluated again
    in every micro-batch (AR, arXiv 2505.12929, eq. 4; alpha = 0.2 in its authors' script for 7B).
    Their code takes p_it when sampled, which is the same for one optimizer step per generation
    batch.
    """
    factor = alpha * batch.logps.exp() + 1 - alpha  # (B, T)
    return spread_over_tokens(batch, start_from(batch, advantages)) * factor


@credit_rule(
    "lopti", paper="arXiv 2505.12929", needs=("old_logps",), fidelity="our reading", each_step=True
)
def lopti(
    batch: CreditBatch, threshold: float = 0.5, advantages: Start = "grpo"
) -> Float[Tensor, "B T"]:
    """Train tokens of low probability and all others in separate optimizer steps.

    A_it = A_i where (p_it < threshold) = (batch.step is even), else 0: Lopti (arXiv 2505.12929,
    section 4.2, threshold 0.5) updates first on tokens of low probability, then, with the policy
    that comes of it, on the others.

    Our reading: a weight cannot make two updates of one, so the optimizer step decides whose turn
    it is, and p_it is the probability when sampled, so that each token has one turn. With
    num_iterations: 2 and one optimizer step per iteration both turns fall on the same rollouts, as
    published; with 1 they fall on rollouts of alternate steps.
    """
    improbable = sampled_logps(batch).exp() < threshold  # (B, T)
    # even steps are those of improbable tokens
    waiting = improbable != (batch.step % 2 == 0)
    return spread_over_tokens(batch, start_from(batch, advantages)).masked_fill(waiting, 0.0)


@credit_rule("w_reinforce", paper="arXiv 2506.01347", fidelity="our reading", per_token=False)
def w_reinforce(
    batch: CreditBatch, positive: float = 0.1, advantages: Start = "grpo"
) -> Float[Tensor, " B"]:
    """Weigh positive rollouts by 0.1, so that the negative ones lead.

    A_i = positive A_i where A_i > 0, else A_i. Source: W-REINFORCE (arXiv 2506.01347, lambda =
    0.1). Our reading: group advantages take the place of its rewards +1 and -1, so that a group of
    equal rewards still pushes nothing.
    """
    started = start_from(batch, advantages)
    return torch.where(started > 0, positive * started, started)


@credit_rule(
    "negative_token_filtering",
    paper="arXiv 2606.17250",
    needs=("old_logps",),
    fidelity="our reading",
)
def negative_token_filtering(
    batch: CreditBatch, keep: float = 0.1, advantages: Start = "grpo"
) -> Float[Tensor, "B T"]:
    """Push down only the least probable tokens of negative rollouts.

    A_it = A_i on the ceil(keep T_i) tokens of lowest probability of a rollout with A_i < 0, 0 on
    its other tokens, and A_i everywhere where A_i > 0; the loss still divides by all T_i tokens
    (arXiv 2606.17250, keep = 0.1 for agents).

    Our reading: group advantages take the place of its batch-wide +1 and -1. To train without
    groups, as it does, give `advantages=batch.rewards - batch.rewards.mean()`.
    """
    started = start_from(batch, advantages)
    # padding ranks last
    logps = sampled_logps(batch).masked_fill(~batch.mask, torch.inf)
    rank = logps.argsort(dim=1, stable=True).argsort(dim=1)  # 0 for the least probable
    kept = rank < (keep * batch.mask.sum(1, keepdim=True)).ceil()
    negative = (started < 0).unsqueeze(1)
    return spread_over_tokens(batch, started).masked_fill(negative & ~kept, 0.0)


# -- from lengths


@credit_rule("balanced_aggregation", paper="arXiv 2605.04077", per_token=False)
def balanced_aggregation(batch: CreditBatch, advantages: Start = "grpo") -> Float[Tensor, " B"]:
    """Balance long against short: take the mean over tokens for each sign's rollouts alone.

        A_i L / L_s

    with L the mean length of the batch's rollouts (in training, of those of i's
    process) and L_s that of the rollouts of i's sign in i's group. Under a loss that weighs all
    tokens alike (dapo, bnpo, dr_grpo) a group's objective is then, up to a constant, (n_+ mean over
    positive tokens + n_- mean over negative tokens) / n, as in Balanced Aggregation (arXiv
    2605.04077). With loss_type grpo, which divides by T_i already, it is not.

    >>> mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    >>> batch = CreditBatch(torch.tensor([1.0, 0.0]), torch.zeros(2), torch.ones(2, 3).int(), mask)
    >>> balanced_aggregation(batch, "dr_grpo").tolist()
    [0.3333333432674408, -1.0]
    """
    started = start_from(batch, advantages)
    lengths = batch.mask.sum(1).to(started.dtype)  # (B,)
    # a side: the rollouts of one sign in one group
    index, _ = group_index(batch.group_ids, len(batch))
    side, sides = group_index(3 * index + started.sign().long(), len(batch))
    mean = group_sum(lengths, side, sides) / group_size(side, sides)  # (sides,)
    factor = torch.where(mean > 0, lengths.mean() / mean, 0.0)
    return started * factor[side]


# -- from token coupling: how much a token's update moves the log-probability of right rollouts

# The influence of token t of rollout i on the right rollouts of its group is
#
#     s_it = sum_j K_(it)j    over their tokens j, with K_ij = <h_i, h_j> <e_i - p_i, e_j - p_j>
#
# (`workbook.theory.coupling`). It is the first-order change of the token by a step on all of those,
# so it is computed without any N x N: memory is one V x D and the states of one group. A rollout is
# right where its group advantage is positive and wrong where it is negative. A group that has no
# tokens of right or none of wrong rollouts keeps its advantages as they are.


@credit_rule("nthr", paper="arXiv 2505.18830", needs=("states",))
def nthr(
    batch: CreditBatch, beta: float = 1.0, eta: float | None = None, advantages: Start = "grpo"
) -> Float[Tensor, "B T"]:
    """Push less on tokens of wrong rollouts whose penalty would take right rollouts down with them.

        A_it = eta A_i    on tokens of wrong rollouts with s_it > beta min_j mean_t s_jt
        A_it = A_i        on all others

    j over the right rollouts; eta = 2 |0.5 - p| with p the share of right rollouts in the group,
    unless given. s is the negative token hidden reward, sum over right tokens of K (arXiv
    2505.18830, eq. 7 and algorithm 1, beta = 1).

    The states are those of the policy of now: the sampler's own on the first update.
    """
    started = start_from(batch, advantages)
    reweighted = spread_over_tokens(batch, started)  # (B, T)
    for rows in _mixed_groups(batch, started):
        influence, threshold = _influence(batch, rows, started)
        # the more even the group, the more is spared
        right = float((started[rows] > 0).double().mean())
        factor = 2 * abs(0.5 - right) if eta is None else eta
        wrong = (started[rows] < 0).unsqueeze(1)
        spared = wrong & (influence > beta * threshold)  # (G, T)
        reweighted[rows] = torch.where(spared, factor * reweighted[rows], reweighted[rows])
    return reweighted


@credit_rule(
    "token_hidden_reward", paper="arXiv 2510.03669", needs=("states",), fidelity="our reading"
)
def token_hidden_reward(
    batch: CreditBatch, p: float = 0.1, dominant: bool = True, advantages: Start = "grpo"
) -> Float[Tensor, "B T"]:
    """Train on the tokens that move right rollouts most, and lean to exploitation or exploration.

        A_it = A_i (1 + p sign(THR_it))    where |THR_it| > min_j mean_t s_jt
        A_it = 0                           elsewhere

    j over the right rollouts, with the token hidden reward THR_it = sign(A_i) s_it: positive where
    the update makes right rollouts likelier. p > 0 leans to exploitation, p < 0 to exploration. In
    s each right rollout counts by its mean over tokens. dominant False leaves the threshold out.
    Source: arXiv 2510.03669, p = 0.1 or -0.1 there.

    Our reading: the threshold is NTHR's, its forerunner's, on this s; "following" it is all that is
    known here.
    """
    started = start_from(batch, advantages)
    reweighted = spread_over_tokens(batch, started)  # (B, T)
    for rows in _mixed_groups(batch, started):
        influence, threshold = _influence(batch, rows, started, mean=True)
        hidden_reward = influence * started[rows].sign().unsqueeze(1)  # (G, T)
        leaning = reweighted[rows] * (1 + p * hidden_reward.sign())
        if dominant:
            kept = hidden_reward.abs() > threshold
            leaning = leaning.masked_fill(~kept, 0.0)
        reweighted[rows] = leaning
    return reweighted


@credit_rule("delta", paper="arXiv 2605.21467", needs=("states",), fidelity="our reading")
def delta(
    batch: CreditBatch, low: float = 0.8, high: float = 1.2, advantages: Start = "dr_grpo"
) -> Float[Tensor, "B T"]:
    """Weigh tokens by how well their gradient tells the positive side from the negative one.

        A_it = w_it A_i,    w_it = low + (high - low) sigmoid(d_it / sd of d)

    and w is divided by its mean over the tokens of i's sign; d of `discrimination`. Source: DelTA
    (arXiv 2605.21467): coefficients from .8 to 1.2, in a self-normalized surrogate, by a proxy of
    the token's gradient in the output layer. Our reading: the form of its soft assignment is not
    known to us.
    """
    started = start_from(batch, advantages)
    evidence = discrimination(batch, started)  # (B, T)
    pushing = batch.mask & (started != 0).unsqueeze(1)
    if not pushing.any():
        return spread_over_tokens(batch, started)

    # soft assignment of each token to its own side
    spread = evidence[pushing].std(correction=0).clamp(min=1e-12)
    weights = low + (high - low) * torch.sigmoid(evidence / spread)

    # self-normalized: neither side gains or loses as a whole
    for sign in (1, -1):
        side = batch.mask & (started.sign() == sign).unsqueeze(1)
        if side.any():
            weights = torch.where(side, weights / weights[side].mean(), weights)
    return spread_over_tokens(batch, started) * weights


def discrimination(batch: CreditBatch, advantages: Float[Tensor, " B"]) -> Float[Tensor, "B T"]:
    """How well each token's gradient tells its own side from the other; in [-2, 2].

        d_it = cos(g_it, c_own) - cos(g_it, c_other)
        c_s  = sum_j |A_j| g_j / sum_j |A_j|,    over tokens j of sign s

    with g the gradient of log pi by the output layer's weights: DelTA's view of an update. 0
    outside the mask, and where a sign is missing.
    """
    mask = batch.mask
    of_token = advantages.unsqueeze(1).expand(mask.shape)[mask]  # (N,)
    signs = of_token.sign()
    sizes = of_token.abs()
    states = batch.states
    cap = getattr(states, "cap", None)

    # length of each token's gradient, |h| |e - p|
    score = states.logits.float().softmax(-1)  # (N, V), p, then p - e
    score[torch.arange(len(score)), states.tokens] -= 1
    lengths = states.hidden.float().norm(dim=1) * score.norm(dim=1)  # (N,)

    cosines = {}
    for sign in (1, -1):
        weights = torch.where(signs == sign, sizes, 0.0)
        if not weights.any():
            return torch.zeros_like(spread_over_tokens(batch, advantages))
        weights = (weights / weights.sum()).to(states.hidden.device)
        # (N,): each gradient times the side's centroid
        products = predicted_delta_logp(
            states.hidden, states.logits, states.tokens, weights, lr=1.0, cap=cap
        )
        centroid_length = (weights * products).sum().clamp(min=0).sqrt()
        cosine = products / (lengths * centroid_length).clamp(min=1e-12)
        cosines[sign] = cosine.to(advantages)

    evidence = torch.zeros(mask.shape, dtype=advantages.dtype, device=advantages.device)
    evidence[mask] = torch.where(signs == 0, 0.0, signs * (cosines[1] - cosines[-1]))
    return evidence


def _mixed_groups(batch: CreditBatch, advantages: Float[Tensor, " B"]) -> list[Tensor]:
    """Groups with tokens of right and of wrong rollouts: the others have nothing to compare."""
    # a rollout without tokens is neither
    signs = advantages.sign() * batch.mask.any(1)
    return [rows for rows in batch.groups() if (signs[rows] > 0).any() and (signs[rows] < 0).any()]


def _influence(
    batch: CreditBatch, rows: Tensor, advantages: Float[Tensor, " B"], mean: bool = False
) -> tuple[Float[Tensor, "G T"], Float[Tensor, ""]]:
    """s of one group's tokens, 0 outside the mask, and the least mean of s over a right rollout.

    mean: s is the sum over right rollouts of their means over tokens, not of their sums.
    """
    mask = batch.mask[rows]  # (G, T)
    right = advantages[rows] > 0  # (G,)
    lengths = mask.sum(1).clamp(min=1)

    # states of the group's tokens; those of the batch lie in row-major order of its mask
    number = batch.mask.flatten().cumsum(0).view_as(batch.mask) - 1  # (B, T)
    states = batch.states.select(number[rows][mask])

    # a step on all tokens of right rollouts, and what it does to each token of the group
    weights = (right / lengths if mean else right).to(advantages.dtype)
    sources = weights.unsqueeze(1).expand_as(mask)[mask].to(states.logits.device)
    moved = predicted_delta_logp(
        states.hidden,
        states.logits,
        states.tokens,
        sources,
        lr=1.0,
        cap=getattr(states, "cap", None),
    )
    influence = advantages.new_zeros(mask.shape)
    influence[mask] = moved.to(influence)

    means = influence.sum(1) / lengths
    return influence, means[right & mask.any(1)].min()


# -- the rules by their names


def _is_control(name: str) -> bool:
    """Whether a rule is one of `credit_controls`."""
    return CREDIT_RULES[name].function.__module__.endswith("controls")


# every rule, controls last
RULES = tuple(sorted(CREDIT_RULES, key=_is_control))
# former names are valid, and not offered
CREDIT_RULES.update({old: CREDIT_RULES[new] for old, new in FORMER_RULE_NAMES.items()})


def check_estimator(value: object) -> None:
    """Raise ValueError unless `value` names an estimator, a credit rule or one of the reader's own.

    >>> check_estimator("own:credit.py:my_rule")
    """
    if value in (*ESTIMATORS, *CREDIT_RULES):
        return
    if isinstance(value, str) and OWN.fullmatch(value):
        return
    valid = f"{', '.join((*ESTIMATORS, *RULES))}, or own:<file.py>:<function>"
    raise InvalidValue("advantage_estimator", value, f"one of {valid}")


def credit_table(
    batch: CreditBatch, rules: Iterable[str] | Mapping[str, Rule] | None = None
) -> dict[str, Float[Tensor, "B T"]]:
    """Advantages per token of several rules on one batch, 0 outside the mask, by name.

    rules: names of CREDIT_RULES or ESTIMATORS, or functions by name; None takes every rule of
    CREDIT_RULES whose needs the batch knows. Each rule draws from batch.generator as if it were
    alone. Raises ValueError for an unknown name.

    >>> rewards, ids = torch.tensor([1.0, 0.0]), torch.tensor([[5, 1], [5, 2]])
    >>> batch = CreditBatch(rewards, torch.zeros(2), ids, torch.ones(2, 2))
    >>> table = credit_table(batch, ["dr_grpo", "prefix_credit"])
    >>> table["dr_grpo"].tolist(), table["prefix_credit"].tolist()
    ([[0.5, 0.5], [-0.5, -0.5]], [[0.0, 0.5], [0.0, -0.5]])
    """
    if rules is None:
        rules = [name for name in RULES if CREDIT_RULES[name].applies(batch)]
    if not isinstance(rules, Mapping):
        rules = {name: _rule_function(name) for name in rules}

    draws = batch.generator.get_state()
    table = {}
    for name, function in rules.items():
        batch.generator.set_state(draws)
        advantages = function(batch)
        if advantages.ndim == 1:
            advantages = spread_over_tokens(batch, advantages)
        table[name] = advantages.masked_fill(~batch.mask, 0.0)
    return table


def _rule_function(name: str) -> Rule:
    """The function of a credit rule, or that of a plain estimator."""
    require_one_of("rule", name, (*ESTIMATORS, *CREDIT_RULES))
    if name in CREDIT_RULES:
        return CREDIT_RULES[name].function
    return lambda batch: batch.group_advantages(name)
