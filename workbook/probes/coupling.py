"""Probes of token coupling: what a push on one token does to others.

Tokens share weights, so raising one token's probability moves others. Two measures of that, both
first order in the learning rate:

    K_ij = <grad_W log pi(i), grad_W log pi(j)>            the output layer alone: the proxy
    P_ij = <grad_theta log pi(i), grad_theta log pi(j)>    all trained weights (or the LoRA weights)

K is known in closed form, and `coupling_by_confidence` takes it of all pairs, group by group. P of
all pairs would need the gradient of every token: `gradient_products` samples anchor tokens i
instead, takes g_i by one backward pass, and gets P_ij for every j of the group at once, as the
derivative of log pi(j) when the weights move along g_i (forward-mode automatic differentiation).
`masked_update` takes a real step in which chosen tokens alone push, beside the output layer's own
step in closed form.

Letters: B rollouts, T completion tokens, N tokens of one prompt, M of them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbook.messages import InvalidValue, progress
from workbook.policies.models import private_copy
from workbook.probes.directions import Along
from workbook.probes.step import logp_change, output_layer_step
from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import in_batches, token_scores
from workbook.rollouts.states import OutputStates, output_states
from workbook.theory.coupling import BELOW_HALF
from workbook.theory.decomposition import context_index

CONFIDENCE_CUTS = (BELOW_HALF,)  # of probabilities, into bins
WHERE = ("itself", "same context", "within a rollout", "across rollouts")
PAIR_SIGNS = ("same", "opposite", "none")  # of both rollouts' advantages; none: one of them is 0
PAIR_COLUMNS = ["group", "same", "where", "signs", "less_sure", "more_sure"]
FOLLOWER_KINDS = (
    "pushing",
    "same context",
    "same token, unsure",
    "same token, sure",
    "different, unsure",
    "different, sure",
)
_ROWS_AT_ONCE = 256  # of a strip of the kernel, whose pairs' kinds are held at a time


# --- pairs of a prompt's tokens


@dataclass(frozen=True)
class GroupTokens:
    """The N completion tokens of one prompt's rollouts, and how any two of them relate.

    Attributes:
        group: the prompt.
        rows: (N,) of the whole token table.
        rollouts: those of the prompt.
        states: what the output layer saw at each token.
        p: (N,) probability of each token.
        bins: (N,) of p, 0 the least sure.
        rollout, context, sign: (N,) its rollout, its prefix by number, its advantage's sign.
    """

    group: int
    rows: np.ndarray
    rollouts: Rollouts
    states: OutputStates
    p: Float[Tensor, " N"]
    bins: Int[Tensor, " N"]
    rollout: Int[Tensor, " N"]
    context: Int[Tensor, " N"]
    sign: Int[Tensor, " N"]

    def relations(self, i: Int[Tensor, " M"], first: int = 0) -> dict[str, Int[Tensor, "M L"]]:
        """How each token of i relates to every one from `first` on, L in all.

        same: whether they are one token id.  where, signs: places in WHERE and PAIR_SIGNS.
        less_sure, more_sure: the smaller and the larger of both bins.
        """

        def pairwise(combine, values: Tensor) -> Tensor:
            return combine(values[i][:, None], values[None, first:])

        # later conditions overwrite earlier ones: the closest relation counts
        where = torch.where(pairwise(torch.eq, self.rollout), 2, 3)
        where = torch.where(pairwise(torch.eq, self.context), 1, where)
        where[torch.arange(len(i)), i - first] = 0
        sign_product = pairwise(torch.mul, self.sign)
        signs = torch.where(sign_product < 0, 1, 2)
        signs = torch.where(sign_product > 0, 0, signs)
        return {
            "same": pairwise(torch.eq, self.states.tokens).long(),
            "where": where,
            "signs": signs,
            "less_sure": pairwise(torch.minimum, self.bins),
            "more_sure": pairwise(torch.maximum, self.bins),
        }


def group_tokens(
    policy, rollouts: Rollouts, cuts: Sequence[float] = CONFIDENCE_CUTS
) -> Iterator[GroupTokens]:
    """The groups one at a time; a caller that drops each one holds one group's states at most."""
    cuts = torch.tensor(list(cuts), dtype=torch.float64)
    inside = (cuts > 0) & (cuts < 1)
    if len(cuts) == 0 or not inside.all() or (cuts.diff() <= 0).any():
        raise InvalidValue(
            "cuts", cuts.tolist(), "probabilities between 0 and 1, each above the one before"
        )
    rollouts = rollouts.to(policy.model.device)
    table = rollouts.token_table()[["group", "rollout", "advantage"]]
    for group, tokens in progress(list(table.groupby("group")), "coupling, group by group"):
        part = rollouts.select(rollouts.group_ids == group)
        # no name here holds on to what is yielded
        yield _tokens_of_group(policy, part, int(group), tokens, cuts)


def _tokens_of_group(
    policy, rollouts: Rollouts, group: int, tokens: pd.DataFrame, cuts: Float[Tensor, " K"]
) -> GroupTokens:
    """The tokens of one prompt's rollouts; tokens: their rows of the table."""
    # (N, D) and (N, V), by far the largest of what is kept
    states = output_states(policy, rollouts)
    logps, _ = token_scores(states.logits[None], states.tokens[None], entropies=False)
    p = logps[0].double().exp()  # (N,)
    advantages = tokens["advantage"].to_numpy(dtype=float)
    return GroupTokens(
        group=group,
        rows=tokens.index.to_numpy(),
        rollouts=rollouts,
        states=states,
        p=p,
        bins=torch.bucketize(p, cuts.to(p.device), right=True),
        rollout=torch.tensor(tokens["rollout"].tolist(), device=p.device),
        context=token_contexts(rollouts),
        # advantages that are not known have no sign
        sign=torch.tensor(np.sign(advantages), device=p.device).nan_to_num(0).long(),
    )


def token_contexts(rollouts: Rollouts) -> Int[Tensor, " N"]:
    """A number for each token's prompt and prefix: equal numbers, equal hidden states."""
    index = context_index(rollouts.group_ids, rollouts.completion_ids, rollouts.completion_mask)
    return index[rollouts.completion_mask.bool()]


@in_batches
def coupling_by_confidence(
    policy, rollouts: Rollouts, cuts: Sequence[float] = CONFIDENCE_CUTS
) -> pd.DataFrame:
    """Mean coupling of token pairs of a prompt's group, a row per prompt and kind of pair.

    Columns: group, same (token), where (of WHERE; same context: behind the same tokens), signs (of
    PAIR_SIGNS), less_sure and more_sure (bins of both probabilities, 0 the least sure), pairs, mean
    (of K_ij), size (mean of |K_ij|). Kinds that do not occur have no row. A pair counts once, and
    no token is paired with itself.  cuts: of probabilities into bins, ascending inside (0, 1), else
    ValueError.  Memory: N x V for the N tokens of one group at a time, and strips of N x N.
    """
    # how many values each relation of a pair can take
    levels = (2, len(WHERE), len(PAIR_SIGNS), len(cuts) + 1, len(cuts) + 1)
    tables = []
    for tokens in group_tokens(policy, rollouts, cuts):
        device = tokens.p.device
        # pairs, and sums of K and of |K| over them, by kind
        sums = torch.zeros(3, math.prod(levels), dtype=torch.float64, device=device)
        for i, strip in tokens.states.strips():
            for start in range(i, i + len(strip), _ROWS_AT_ONCE):
                part = strip[start - i : start - i + _ROWS_AT_ONCE, start - i :]
                rows = torch.arange(start, start + len(part), device=device)
                relations = tokens.relations(rows, start)
                # each relation is a digit of the kind's number
                kind = torch.zeros_like(part, dtype=torch.long)
                for values, level in zip(relations.values(), levels, strict=True):
                    kind = kind * level + values

                # above the diagonal each pair stands once
                once = torch.ones_like(part, dtype=torch.bool).triu(1)
                kinds = kind[once]
                couplings = part[once].double()
                for row, weights in enumerate((None, couplings, couplings.abs())):
                    sums[row] += torch.bincount(kinds, weights, sums.shape[1])

        occurring = sums[0].nonzero().squeeze(1)
        pairs, coupling, size = sums[:, occurring]
        digits = torch.unravel_index(occurring, levels)
        columns = dict(zip(relations, digits, strict=True))
        columns |= {"pairs": pairs.long(), "mean": coupling / pairs, "size": size / pairs}
        tables.append(_pair_table(columns, tokens.group))
        # else the states are held beside those of the next group
        del tokens
    return pd.concat(tables, ignore_index=True)[[*PAIR_COLUMNS, "pairs", "mean", "size"]]


@in_batches
def gradient_products(
    policy,
    rollouts: Rollouts,
    anchors: int = 8,
    parameters: str | Sequence[torch.nn.Parameter] | None = None,
    cuts: Sequence[float] = CONFIDENCE_CUTS,
    method: str = "auto",
    seed: int = 0,
) -> pd.DataFrame:
    """Gradient inner products of sampled anchor tokens with every token of their group.

    A row per pair. Columns: anchor and other (rows of the token table), those of
    `coupling_by_confidence` that name a kind, p_anchor and p_other, kernel (K, the proxy), product
    (P, all trained weights), method. The pair of an anchor with itself has where = "itself": its
    product is the squared norm of its gradient.

    anchors: tokens per group, drawn in turn from the bins of confidence that the group has, so that
    rare kinds are seen.  parameters: None all that require gradients, "lora" the adapters, or a
    list.  method: "jvp", exact; "difference", a central difference, for layers without a forward
    mode (off by up to a few percent of the largest product); "auto", the first that works. Cost per
    anchor: a backward pass of its rollout, and one forward-mode (or four to eight plain) passes of
    its group.

    Raises ValueError for what can't be, and for differences that depend on their step, as between a
    model's experts.
    """
    if not isinstance(anchors, int) or anchors < 1:
        raise InvalidValue("anchors", anchors, "a whole number of 1 or more")
    generator = np.random.default_rng(seed)
    along = Along(policy, parameters, method)
    tables = []
    for tokens in group_tokens(policy, rollouts, cuts):
        n = len(tokens.p)
        chosen = _draw_anchors(tokens.bins, anchors, generator)  # (M,) places among the N tokens
        alive = tokens.rollouts.completion_mask.bool()
        places = alive.nonzero()  # (N, 2): rollout and position
        ones = torch.ones_like(tokens.p, dtype=torch.float32)
        kernels = []
        products = []
        # a backward pass and a forward-mode pass of each anchor
        for i in chosen:
            kernels.append(tokens.states.coupled(int(i), ones)["coupling"].to_numpy())
            row, position = places[i].tolist()
            gradient = along.gradient(tokens.rollouts.select([row]), (0, position))
            products.append(along.change(tokens.rollouts, gradient)[alive])

        columns = {name: values.flatten() for name, values in tokens.relations(chosen).items()}
        columns["product"] = torch.stack(products).flatten().double()
        columns["p_anchor"] = tokens.p[chosen].repeat_interleave(n)
        columns["p_other"] = tokens.p.repeat(len(chosen))
        table = _pair_table(columns, tokens.group)
        table["kernel"] = np.concatenate(kernels).astype(float)
        table["anchor"] = np.repeat(tokens.rows[chosen.cpu().numpy()], n)
        table["other"] = np.tile(tokens.rows, len(chosen))
        tables.append(table.assign(method=along.method))
    names = ["anchor", "other", *PAIR_COLUMNS, "p_anchor", "p_other", "kernel", "product", "method"]
    return pd.concat(tables, ignore_index=True)[names]


def _draw_anchors(
    bins: Int[Tensor, " N"], anchors: int, generator: np.random.Generator
) -> Int[Tensor, " M"]:
    """Places of so many tokens, drawn from one bin after the other in turn."""
    own_bin = bins.cpu().numpy()
    shuffled = generator.permutation(len(own_bin))
    # the first of each bin has turn 0, the second turn 1
    turn = pd.Series(own_bin[shuffled]).groupby(own_bin[shuffled]).cumcount().to_numpy()
    in_turn = shuffled[np.argsort(turn, kind="stable")]
    return torch.tensor(in_turn[:anchors], device=bins.device)


def _pair_table(columns: dict[str, Tensor], group: int) -> pd.DataFrame:
    """A table of the columns, with names for the numbers of `GroupTokens.relations`."""
    table = pd.DataFrame({name: values.cpu().numpy() for name, values in columns.items()})
    return table.astype({"same": bool, "less_sure": int, "more_sure": int}).assign(
        group=group,
        where=table["where"].map(dict(enumerate(WHERE))),
        signs=table["signs"].map(dict(enumerate(PAIR_SIGNS))),
    )


# --- masked updates


def choose_tokens(
    rollouts: Rollouts,
    token_id: int,
    confidence: tuple[float, float] = (0.0, 1.0),
    sign: int | None = None,
) -> Bool[Tensor, "B T"]:
    """Mask of the completion tokens that are this token and fit every condition given.

    confidence: low < p <= high under the sampling policy.  sign: of its advantage.  ValueError
    where none fits.
    """
    low, high = confidence
    p = rollouts.old_logps.exp()
    chosen = rollouts.completion_mask.bool() & (rollouts.completion_ids == token_id)
    # as it was when it was sampled
    chosen &= (p > low) & (p <= high)
    if sign is not None:
        chosen &= (rollouts.advantages.sign() == sign).view(len(rollouts), -1)
    if not chosen.any():
        raise ValueError(
            f"No token fits token_id={token_id}, confidence={confidence}, sign={sign}."
        )
    return chosen


def shared_token(rollouts: Rollouts, confidence: tuple[float, float]) -> int | None:
    """The token id that occurs most often under both signs of the advantage, or None.

    Ranked by the smaller of both signs' counts of occurrences with low < p <= high, then by their
    sum, then by id.
    """
    low, high = confidence
    table = rollouts.token_table()
    p = np.exp(table["logp"])
    inside = table[(p > low) & (p <= high) & (table["advantage"] != 0)]
    # a row per token id, a column per sign
    counts = inside.groupby(["token_id", inside["advantage"] > 0]).size().unstack(fill_value=0)
    counts = counts.reindex(columns=[False, True], fill_value=0)
    ranking = pd.DataFrame({"both": counts.min(axis=1), "all": counts.sum(axis=1)}).sort_index()
    ranking = ranking.sort_values(["both", "all"], ascending=False, kind="stable")
    if ranking.empty or ranking["both"].iloc[0] == 0:
        return None
    return int(ranking.index[0])


@in_batches
def masked_update(
    policy,
    rollouts: Rollouts,
    chosen: Bool[Tensor, "B T"],
    optimizer: str = "sgd",
    lr: float = 0.1,
    **settings,
) -> pd.DataFrame:
    """The token table after a real step in which the chosen tokens alone push.

    Columns chosen; dlogp, the change of log-probability, nats; predicted, what a step of SGD with
    this lr on the output layer alone would do, by `predicted_delta_logp` in closed form, exact.
    settings: more of `update`.
    """
    moved = logp_change(private_copy(policy), rollouts, optimizer, lr, chosen=chosen, **settings)
    aggregate = settings.get("aggregate", "dr_grpo")
    # the closed form beside the real step, of the same tokens
    predicted = output_layer_step(policy, rollouts, lr, chosen, aggregate)
    alive = rollouts.completion_mask.bool()
    return rollouts.token_table().assign(
        chosen=chosen[alive].cpu().numpy(),
        dlogp=moved.cpu()[alive.cpu()].numpy(),
        predicted=predicted.cpu().numpy(),
    )


def followers(rollouts: Rollouts, moved: pd.DataFrame) -> pd.DataFrame:
    """Spillover of a single-token update: columns kind, tokens, dlogp, size, predicted (nats).

    moved: the table of `masked_update` on one prompt's rollouts, whose chosen tokens all are the
    same token id.
    kind: of `kinds_of`.  size: mean of |dlogp|.  Raises ValueError for several prompts, and if not
    one token pushes.
    """
    pushing_ids = moved.loc[moved["chosen"], "token_id"].unique()
    if len(pushing_ids) != 1 or moved["group"].nunique() != 1:
        raise ValueError(
            f"followers needs one prompt and one pushing token; {len(pushing_ids)} tokens push"
            " here."
        )
    kind = kinds_of(rollouts, moved, moved["chosen"].to_numpy())
    table = moved.assign(kind=kind, size=moved["dlogp"].abs())
    return (
        table.groupby("kind")
        .agg(
            tokens=("size", "size"),
            dlogp=("dlogp", "mean"),
            size=("size", "mean"),
            predicted=("predicted", "mean"),
        )
        .reset_index()
    )


def kinds_of(
    rollouts: Rollouts, table: pd.DataFrame, pushing: Bool[np.ndarray, " N"]
) -> np.ndarray:
    """What each token of one prompt is to the pushing ones: of FOLLOWER_KINDS, (N,).

    The pushing tokens are one token id. Same context: behind the same prefix as one of them; the
    rest by token and by probability.
    """
    context = token_contexts(rollouts).cpu().numpy()
    same_context = np.isin(context, context[pushing])
    same_token = table["token_id"] == table.loc[pushing, "token_id"].iloc[0]
    unsure = table["logp"] < np.log(BELOW_HALF)
    # the first condition that holds decides
    conditions = [pushing, same_context, same_token & unsure, same_token, unsure]
    *kinds, otherwise = FOLLOWER_KINDS
    return np.select(conditions, kinds, otherwise)
