"""Probes of token coupling, beside the study since other rooms use them: what a push on one token
does to others.

Two measures of the same thing, first order in the learning rate:

    K_ij = <grad_W log pi(i), grad_W log pi(j)>            the output layer alone, in closed form: the proxy
    P_ij = <grad_theta log pi(i), grad_theta log pi(j)>    all trained weights (or the LoRA weights)

`coupling_by_confidence` takes K of all pairs, group by group. P of all pairs would need the
gradient of every token: `gradient_products` samples anchor tokens i instead, takes g_i by one
backward pass, and gets P_ij for every j of the group at once, as the derivative of log pi(j) when
the weights move along g_i (forward-mode automatic differentiation). `masked_update` takes a real
step in which chosen tokens alone push, beside the output layer's own step in closed form.
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
from workbook.rollouts.credit import OutputStates, output_states
from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import in_batches, token_scores
from workbook.theory.coupling import BELOW_HALF
from workbook.theory.decomposition import context_index

CUTS = (BELOW_HALF,)  # of probabilities, into bins
WHERE = ("itself", "same context", "within a rollout", "across rollouts")
PAIR_SIGNS = ("same", "opposite", "none")  # of both rollouts' advantages; none: one of them is 0
KINDS = (
    "pushing",
    "same context",
    "same token, unsure",
    "same token, sure",
    "different, unsure",
    "different, sure",
)
ROWS = 256  # of a strip, whose pairs' kinds are held at a time
CELL = ["group", "same", "where", "signs", "less_sure", "more_sure"]


@dataclass(frozen=True)
class GroupTokens:
    """The N completion tokens of one prompt's rollouts, what the output layer saw there, and how
    any two relate.
    """

    group: int
    rows: np.ndarray  # of the whole token table
    rollouts: Rollouts
    states: OutputStates
    p: Float[Tensor, " N"]
    bins: Int[Tensor, " N"]
    rollout: Int[Tensor, " N"]
    context: Int[Tensor, " N"]
    sign: Int[Tensor, " N"]

    def relations(self, i: Int[Tensor, " M"], first: int = 0) -> dict[str, Tensor]:
        """For each token of i (rows) and every one from `first` on: same token, where, signs, and
        bins of both.
        """

        def pair(values, combine):
            return combine(values[i][:, None], values[None, first:])

        product = pair(self.sign, torch.mul)
        across = torch.where(pair(self.rollout, torch.eq), 2, 3)
        where = torch.where(pair(self.context, torch.eq), 1, across)
        where[torch.arange(len(i)), i - first] = 0
        return {
            "same": pair(self.states.tokens, torch.eq).long(),
            "where": where,
            "signs": torch.where(product > 0, 0, torch.where(product < 0, 1, 2)),
            "less_sure": pair(self.bins, torch.minimum),
            "more_sure": pair(self.bins, torch.maximum),
        }


@in_batches
def coupling_by_confidence(
    policy, rollouts: Rollouts, cuts: Sequence[float] = CUTS
) -> pd.DataFrame:
    """Mean coupling of token pairs of a prompt's group, by kind of pair: one row for each prompt
    and kind that occurs.

    Columns: group, same (token), where (of WHERE; same context: behind the same tokens), signs (of PAIR_SIGNS),
    less_sure and more_sure (bins of both probabilities, 0 the least sure), pairs, mean (of K_ij), size (mean of
    |K_ij|). A pair counts once, and no token is paired with itself.  cuts: of probabilities into bins, ascending inside
    (0, 1), else ValueError.  Memory: N x V for the N tokens of one group at a time, and strips of N x N.
    """
    tables, levels = [], (2, len(WHERE), len(PAIR_SIGNS), len(cuts) + 1, len(cuts) + 1)
    for tokens in group_tokens(policy, rollouts, cuts):
        sums = 0  # (3, kinds): pairs, and the sums of K and |K| over them
        for i, strip in tokens.states.strips():
            for start in range(i, i + len(strip), ROWS):
                part = strip[start - i : start - i + ROWS, start - i :]
                once, kind = torch.ones_like(part, dtype=torch.bool).triu(1), 0
                relations = tokens.relations(
                    torch.arange(start, start + len(part), device=part.device), start
                )
                for values, level in zip(relations.values(), levels, strict=True):
                    kind = kind * level + values
                kind, couplings = kind[once], part[once].double()
                sums = sums + torch.stack(
                    [
                        torch.bincount(kind, x, math.prod(levels)).double()
                        for x in (None, couplings, couplings.abs())
                    ]
                )
        there = sums[0].nonzero().squeeze(1)
        pairs, mean, size = sums[:, there]
        columns = dict(zip(relations, torch.unravel_index(there, levels), strict=True))
        columns |= {"pairs": pairs.long(), "mean": mean / pairs, "size": size / pairs}
        cells = pd.DataFrame({name: values.cpu().numpy() for name, values in columns.items()})
        tables.append(_named(cells, tokens.group)[[*CELL, "pairs", "mean", "size"]])
        del tokens  # else held beside the next ones
    return pd.concat(tables, ignore_index=True)


@in_batches
def gradient_products(
    policy,
    rollouts: Rollouts,
    anchors: int = 8,
    parameters: str | Sequence[torch.nn.Parameter] | None = None,
    cuts: Sequence[float] = CUTS,
    method: str = "auto",
    seed: int = 0,
) -> pd.DataFrame:
    """Gradient inner products of sampled anchor tokens with every token of their group: one row per
    pair.

    Columns: anchor and other (rows of the token table), those of `coupling_by_confidence` that name
    a kind, p_anchor and p_other, kernel (K, the proxy), product (P, all trained weights), method.
    The pair of an anchor with itself is there, with where = "itself": its product is the squared
    norm of its gradient.

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
    generator, along, tables = np.random.default_rng(seed), Along(policy, parameters, method), []
    for tokens in group_tokens(policy, rollouts, cuts):
        # anchors, (M,) places among the group's N tokens: shuffled, then one bin after the other in
        # turn
        bins = tokens.bins.cpu().numpy()
        shuffled = generator.permutation(len(bins))
        turn = pd.Series(bins[shuffled]).groupby(bins[shuffled]).cumcount().to_numpy()
        chosen = torch.tensor(
            shuffled[np.argsort(turn, kind="stable")[:anchors]], device=tokens.bins.device
        )
        alive = tokens.rollouts.completion_mask.bool()
        places, ones = alive.nonzero(), torch.ones_like(tokens.p, dtype=torch.float32)
        kernels, products = [], []
        for i in chosen:
            kernels.append(tokens.states.coupled(int(i), ones)["coupling"].to_numpy())
            row, position = places[i].tolist()
            direction = along.gradient(tokens.rollouts.select([row]), (0, position))
            products.append(along.change(tokens.rollouts, direction)[alive])
        columns = {name: values.flatten() for name, values in tokens.relations(chosen).items()}
        columns |= {
            "product": torch.stack(products).flatten(),
            "p_anchor": tokens.p[chosen].repeat_interleave(len(tokens.p)),
            "p_other": tokens.p.repeat(len(chosen)),
        }
        table = pd.DataFrame(
            {name: values.double().cpu().numpy() for name, values in columns.items()}
        )
        table["kernel"] = np.concatenate(kernels).astype(float)
        table["anchor"] = np.repeat(tokens.rows[chosen.cpu().numpy()], len(tokens.p))
        table["other"] = np.tile(tokens.rows, len(chosen))
        tables.append(_named(table, tokens.group).assign(method=along.method))
    first = ["anchor", "other", *CELL, "p_anchor", "p_other", "kernel", "product", "method"]
    return pd.concat(tables, ignore_index=True)[first]


def group_tokens(policy, rollouts: Rollouts, cuts: Sequence[float] = CUTS) -> Iterator[GroupTokens]:
    """The groups one at a time, so that no more than one group's states are held by who lets go of
    each.
    """
    cuts = torch.tensor(list(cuts), dtype=torch.float64)
    if len(cuts) == 0 or not ((cuts > 0) & (cuts < 1)).all() or (cuts.diff() <= 0).any():
        raise InvalidValue(
            "cuts", cuts.tolist(), "probabilities between 0 and 1, each above the one before"
        )
    rollouts = rollouts.to(policy.model.device)
    table = rollouts.token_table()[["group", "rollout", "advantage"]]
    for group, rows in progress(list(table.groupby("group")), "coupling, group by group"):
        part = rollouts.select(rollouts.group_ids == group)
        states = output_states(policy, part)
        p = (
            token_scores(states.logits[None], states.tokens[None], entropies=False)[0][0]
            .double()
            .exp()
        )
        sign = (
            torch.tensor(np.sign(rows["advantage"].to_numpy(dtype=float)), device=p.device)
            .nan_to_num(0)
            .long()
        )
        rollout = torch.tensor(rows["rollout"].tolist(), device=p.device)
        bins = torch.bucketize(p, cuts.to(p.device), right=True)
        given = [
            GroupTokens(
                int(group),
                rows.index.to_numpy(),
                part,
                states,
                p,
                bins,
                rollout,
                contexts(part),
                sign,
            )
        ]
        del states  # from now on the caller's
        yield given.pop()


def contexts(part: Rollouts) -> Int[Tensor, " N"]:
    """A number for the prefix of each token, within one prompt: equal numbers, equal hidden states."""
    index = context_index(part.group_ids, part.completion_ids, part.completion_mask)
    return index[part.completion_mask.bool()]


def _named(table: pd.DataFrame, group: int) -> pd.DataFrame:
    """Names for the numbers of kinds."""
    names = {"where": dict(enumerate(WHERE)), "signs": dict(enumerate(PAIR_SIGNS))}
    named = {column: table[column].astype(int).map(words) for column, words in names.items()}
    table = table.astype({"same": bool, "less_sure": int, "more_sure": int})
    return table.assign(group=group, **named)


# --- masked updates


def choose_tokens(
    rollouts: Rollouts,
    token_id: int,
    confidence: tuple[float, float] = (0.0, 1.0),
    sign: int | None = None,
) -> Bool[Tensor, "B T"]:
    """The completion tokens that are this token and fit every condition given: (B, T), false
    outside the mask.

    confidence: low < p <= high under the sampling policy.  sign: of its advantage.  ValueError
    where none fits.
    """
    p = rollouts.old_logps.exp()
    chosen = rollouts.completion_mask.bool() & (rollouts.completion_ids == token_id)
    chosen &= (p > confidence[0]) & (p <= confidence[1])
    if sign is not None:
        chosen &= (rollouts.advantages.sign() == sign).view(len(rollouts), -1)
    if not chosen.any():
        raise ValueError(
            f"No token fits token_id={token_id}, confidence={confidence}, sign={sign}."
        )
    return chosen


def shared_token(rollouts: Rollouts, confidence: tuple[float, float]) -> int | None:
    """The token id that occurs most often under both signs of the advantage; None if none occurs
    under both.

    Ranked by the smaller of both signs' counts of occurrences with low < p <= high, then by their
    sum, then by id.
    """
    table = rollouts.token_table()
    p = np.exp(table["logp"])
    inside = table[(p > confidence[0]) & (p <= confidence[1]) & (table["advantage"] != 0)]
    counts = inside.groupby(["token_id", inside["advantage"] > 0]).size().unstack(fill_value=0)
    counts = counts.reindex(columns=[False, True], fill_value=0)
    ranked = pd.DataFrame({"both": counts.min(axis=1), "all": counts.sum(axis=1)}).sort_index()
    ranked = ranked.sort_values(["both", "all"], ascending=False, kind="stable")
    return int(ranked.index[0]) if len(ranked) and ranked["both"].iloc[0] > 0 else None


@in_batches
def masked_update(
    policy,
    rollouts: Rollouts,
    chosen: Bool[Tensor, "B T"],
    optimizer: str = "sgd",
    lr: float = 0.1,
    **settings,
) -> pd.DataFrame:
    """The token table with columns chosen, dlogp (a real step in which the chosen tokens alone
    push) and predicted.

    predicted: what a step of SGD with this lr on the output layer alone would do, by
    `predicted_delta_logp` in closed form, exact.  settings: more of `update`.
    """
    moved = logp_change(private_copy(policy), rollouts, optimizer, lr, chosen=chosen, **settings)
    alive = rollouts.completion_mask.bool()
    predicted = output_layer_step(
        policy, rollouts, lr, chosen, settings.get("aggregate", "dr_grpo")
    )
    columns = {"chosen": chosen[alive], "dlogp": moved.cpu()[alive.cpu()], "predicted": predicted}
    return rollouts.token_table().assign(
        **{name: values.cpu().numpy() for name, values in columns.items()}
    )


def followers(rollouts: Rollouts, moved: pd.DataFrame) -> pd.DataFrame:
    """Spillover of a single-token update: columns kind, tokens, dlogp, size, predicted (nats).

    moved: the table of `masked_update` on one prompt's rollouts, whose chosen tokens all are the
    same token id.
    kind: of `kinds_of`.  size: mean of |dlogp|.  Raises ValueError for several prompts, and if not
    one token pushes.
    """
    ids = moved.loc[moved["chosen"], "token_id"].unique()
    if len(ids) != 1 or moved["group"].nunique() != 1:
        raise ValueError(
            f"followers needs one prompt and one pushing token; {len(ids)} tokens push here."
        )
    kind = kinds_of(rollouts, moved, moved["chosen"].to_numpy())
    columns = moved[["dlogp", "predicted"]].assign(kind=kind, tokens=1, size=moved["dlogp"].abs())
    means = dict.fromkeys(("dlogp", "size", "predicted"), "mean")
    return columns.groupby("kind").agg({"tokens": "sum", **means}).reset_index()


def kinds_of(rollouts: Rollouts, table: pd.DataFrame, pushing: np.ndarray) -> np.ndarray:
    """Of KINDS, what each token of one prompt's table is to those that push (N,), which are one
    token.

    Same context: behind the same prefix as one of them; the rest by token and by probability.
    """
    context = contexts(rollouts).cpu().numpy()
    same = table["token_id"] == table.loc[pushing, "token_id"].iloc[0]
    unsure = table["logp"] < np.log(BELOW_HALF)
    conditions = [pushing, np.isin(context, context[pushing]), same & unsure, same, unsure]
    return np.select(conditions, KINDS[:5], KINDS[5])
