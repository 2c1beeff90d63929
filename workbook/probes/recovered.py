"""Credit recovered: how much of one step's movement is the credit that the policy gradient asks
for.

A step with pushes u_c on the logits of its contexts moves the log-probability of token i by

    dlogp_i = lr sum_c <J_c^T (e_i - p), J_c'^T u_c'> summed over contexts c'        J: Jacobian of logits by weights

Each push is signal, bias and noise (`workbook.theory.decomposition`), and c' is the token's own
context or another one, from where it comes by coupling. That makes six parts, which add up to the
change exactly: gradients are those of the whole network, and a token's change is a directional
derivative, not a finite difference.

    shares of a class of tokens    <part, change> / <change, change>, which add up to 1

*Credit recovered* is the own-prompt share of signal, from a token's own context and coupled: of
what one step moves, the part that the gradient of the step's own prompts asks for. It is not the
*population share of signal* (`studies.worlds.outcomes.signal_share`), of which the gradient over
all prompts is the measure: there a batch's choice of prompts is noise.

In the weights' space the same pushes are three directions, whose sum is the update; its cosine with
the exact policy gradient says how well the step points.

Letters: B rollouts, T tokens, C contexts, V vocabulary, D trained weights, G group size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from workbook.messages import InvalidValue
from workbook.policies.models import private_copy
from workbook.probes.directions import derivative
from workbook.probes.values import TokenValues, context_logits, exact_values, expected_reward
from workbook.rollouts.credit import credit_batch
from workbook.rollouts.likelihood import FIELDS, passes
from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import in_batches
from workbook.theory.choices import ESTIMATORS, FORMER_RULE_NAMES
from workbook.theory.credit_rules import CREDIT_RULES
from workbook.theory.decomposition import (
    GAIN_RULES,
    PushParts,
    context_index,
    expected_gain,
    ideal_pushes,
    realised_pushes,
    split_pushes,
)
from workbook.training.optimizers import trained_weights

PARTS = ("signal", "bias", "noise")
SIX = tuple(f"{where}_{part}" for where in ("own", "coupled") for part in PARTS)
PER_CLASS = 64  # tokens measured of each class unless told otherwise
CANCELLED = 1e-8  # share of its parts' squares below which a movement counts as none


@dataclass(frozen=True)
class CreditRecovered:
    """What one step of a rule recovers of known credit.

    scale: the batch's constant k.  tokens: a row per measured token with its six parts and change
    (nats per unit of learning rate, of J = the mean over rollouts) and weight, the number of tokens
    of its class that it stands for.
    shares: as of `class_shares`.  update: signal, bias and noise as shares of the update's squared
    length in the weights' space; cosine of the update, and of its expectation given the visits,
    with the exact gradient, NaN where that is not known; oracle_rollouts, of which an update by
    known credit would be as noisy.  directions: signal, bias, noise, the oracle's noise and the
    exact gradient, vectors (D,).
    """

    rule: str
    scale: float
    tokens: pd.DataFrame
    shares: pd.DataFrame
    update: dict[str, float]
    directions: dict[str, Float[Tensor, " D"]]

    def __str__(self) -> str:
        everything = self.shares.set_index("category").loc["all"]
        own = ", ".join(f"{everything[f'own_{part}']:.0%} {part}" for part in PARTS)
        coupled = ", ".join(f"{everything[f'coupled_{part}']:.0%} {part}" for part in PARTS)
        return (
            f"{self.rule}: {everything['signal']:.0%} of the squared movement is signal of the"
            f" step's own prompts. From a token's own context come {own}; from other contexts"
            f" {coupled}. Cosine of the update with the exact gradient:"
            f" {self.update['cosine']:.2f}."
        )


@in_batches
def credit_recovered(
    policy,
    rollouts: Rollouts,
    rule: str = "grpo",
    task=None,
    values: TokenValues | None = None,
    exact: Float[Tensor, " D"] | None = None,
    tokens: int | None = PER_CLASS,
    seed: int = 0,
) -> CreditRecovered:
    """Split one step of a rule into signal, bias and noise, own and coupled; of tasks with known
    values, no larger LLM.

    The step's objective is J = 1/B sum_it A_it log pi_it: one gradient step, ratios of 1, no clip.
    rule: one of GAIN_RULES, whose expectation over redrawn groups is exact.  values: value after
    every word (`exact_values` of the task, if not given).  exact: the exact gradient of the mean
    expected reward (of `expected_reward`, if a task is given).  tokens: how many of each class are
    measured, drawn by seed at random from as many rollouts; None: all.

    Raises ValueError for another rule, rewards other than 0 and 1, groups of unequal size, and
    without task or values.
    """
    check_gains(rollouts, rule)
    if values is None:
        if task is None:
            raise InvalidValue(
                "task", None, "one whose exact values can be computed, or give values="
            )
        values = exact_values(policy, task, rollouts)
    if exact is None and task is not None:
        exact = exact_gradient(policy, task, list(dict.fromkeys(rollouts.prompts)))
    with sdpa_kernel(SDPBackend.MATH):
        pushes = Pushes(policy, rollouts, values)
        return measure_parts(pushes, pushes.split(rule, seed), rule, exact, tokens, seed)


def measure_parts(
    pushes: Pushes,
    parts: PushParts,
    rule: str,
    exact: Float[Tensor, " D"] | None = None,
    tokens: int | None = PER_CLASS,
    seed: int = 0,
) -> CreditRecovered:
    """What the parts of some pushes do to tokens and weights; arguments as of `credit_recovered`."""
    rollouts, wanted = (
        pushes.rollouts,
        [parts.signal, parts.bias, parts.noise, pushes.oracle_noise()],
    )
    with sdpa_kernel(SDPBackend.MATH):
        directions = dict(zip((*PARTS, "oracle_noise"), pushes.directions(wanted), strict=True))
        chosen = _chosen(rollouts, tokens, seed)
        own = pushes.own_changes(chosen, parts)
        whole = np.stack([pushes.changes(chosen, directions[part]) for part in PARTS], axis=1)
    table = rollouts.token_table().iloc[chosen["row"]][["rollout", "position", "token"]]
    table = table.assign(category=chosen["category"].to_numpy(), weight=chosen["weight"].to_numpy())
    table[list(SIX)] = np.concatenate([own, whole - own], axis=1)
    table["change"] = whole.sum(1)
    directions["exact"] = exact
    update = _in_weights(directions, parts.scale, len(rollouts))
    return CreditRecovered(rule, parts.scale, table, class_shares(table), update, directions)


def check_gains(rollouts: Rollouts, rule: str) -> int:
    """Return the group size; ValueError where the expectation of a rule's pushes has no closed
    form.
    """
    if FORMER_RULE_NAMES.get(rule, rule) not in GAIN_RULES:
        raise InvalidValue(
            "rule", rule, f"one with an expectation in closed form: {', '.join(GAIN_RULES)}"
        )
    rewards = rollouts.rewards
    if (odd := rewards[(rewards != 0) & (rewards != 1)]).numel():
        raise InvalidValue("rewards", float(odd[0]), "0 or 1")
    sizes = rollouts.group_ids.unique(return_counts=True)[1]
    if (sizes != sizes[0]).any():
        raise InvalidValue(
            "group_ids",
            rollouts.group_ids.tolist(),
            "groups of one size",
            f"group_ids has groups of {int(sizes.min())} to {int(sizes.max())} rollouts; all must"
            " have equally many.",
        )
    return int(sizes[0])


def exact_gradient(policy, task, prompts: list[str]) -> Float[Tensor, " D"]:
    """Gradient of the mean expected reward of the prompts by the trained weights, without sampling."""
    value = expected_reward(policy, task, list(prompts), differentiable=True).mean()
    with torch.enable_grad():
        return flat_gradient(policy, value)


def flat_gradient(policy, objective: Tensor, keep_graph: bool = False) -> Float[Tensor, " D"]:
    """The objective's gradient by all trained weights, as one vector."""
    weights = list(trained_weights(policy).values())
    if not objective.requires_grad:  # of advantages that are all 0
        return torch.cat([torch.zeros_like(w).flatten() for w in weights])
    parts = torch.autograd.grad(objective, weights, retain_graph=keep_graph, materialize_grads=True)
    return torch.cat([part.flatten() for part in parts])


def rule_advantages(
    policy, rollouts: Rollouts, rule: str, values: TokenValues, seed: int = 0
) -> Float[Tensor, "B T"]:
    """Advantages of a named rule on rollouts, one per token; rules that need known credit are given
    exact values.
    """
    batch = credit_batch(policy, rollouts, seed=seed, known_credit=values.credit)
    advantages = (
        batch.group_advantages(rule) if rule in ESTIMATORS else CREDIT_RULES[rule].function(batch)
    )
    advantages = (
        advantages
        if advantages.dim() == 2
        else advantages[:, None].expand_as(rollouts.completion_ids)
    )
    return advantages.masked_fill(~rollouts.completion_mask.bool(), 0.0)


class Pushes:
    """The contexts of some rollouts, their probabilities and values, and what pushes there do to
    the weights.
    """

    def __init__(self, policy, rollouts: Rollouts, values: TokenValues):
        self.policy, self.rollouts, self.values = (
            private_copy(policy, weights=False),
            rollouts,
            values,
        )
        self.model, self.weights = self.policy.model, trained_weights(self.policy)
        self.mask = rollouts.completion_mask.bool()
        prompts = torch.where(rollouts.prompt_mask.bool(), rollouts.prompt_ids, -1)
        prompt = torch.unique(prompts, dim=0, return_inverse=True)[1]
        self.context = context_index(prompt, rollouts.completion_ids, self.mask)  # (B, T)
        flat = self.context.flatten()
        self.visits = flat[flat >= 0].bincount()  # (C,)
        # where each context is first visited, as b T + t
        self.home = torch.full_like(self.visits, flat.numel())
        places = torch.arange(flat.numel(), device=flat.device)
        self.home.scatter_reduce_(0, flat[flat >= 0], places[flat >= 0], "amin")
        with torch.no_grad():
            probs = torch.cat(
                [self._logits(rows).softmax(-1) for rows in passes(self.policy, rollouts)]
            )
        self.probs = probs.flatten(0, 1)[self.home]  # (C, V)
        self.q = values.dense(probs.shape[2]).to(probs).flatten(0, 1)[self.home]

    def split(self, rule: str, seed: int) -> PushParts:
        """Parts of the rule's pushes; the ideal ones and their gain stay here."""
        size, count = check_gains(self.rollouts, rule), len(self.rollouts)
        advantages = (
            rule_advantages(self.policy, self.rollouts, rule, self.values, seed)[self.mask] / count
        )
        tokens = self.rollouts.completion_ids[self.mask]
        self.realised = realised_pushes(advantages, tokens, self.context[self.mask], self.probs)
        self.ideal = ideal_pushes(self.visits, self.probs, self.q) / count
        labels, group = self.rollouts.group_ids.unique(return_inverse=True)
        value = self.values.prompt.new_zeros(len(labels)).index_put((group,), self.values.prompt)
        gains = expected_gain(rule, value.to(self.probs), size)
        self.gain = gains[group[self.home // self.mask.shape[1]]]  # (C,)
        return split_pushes(self.realised, self.ideal, self.gain)

    def oracle_noise(self) -> Float[Tensor, "C V"]:
        """Noise of the pushes that known credit as advantage would give."""
        credit = self.values.credit.to(self.probs)[self.mask] / len(self.rollouts)
        tokens = self.rollouts.completion_ids[self.mask]
        return realised_pushes(credit, tokens, self.context[self.mask], self.probs) - self.ideal

    def directions(self, pushes: list[Float[Tensor, "C V"]]) -> list[Float[Tensor, " D"]]:
        """Gradients sum_c J_c^T push_c by the trained weights, one for each set of pushes."""
        weights, sums = list(self.weights.values()), [0.0] * len(pushes)
        for rows in passes(self.policy, self.rollouts):
            here = torch.isin(self.home // self.mask.shape[1], rows)
            places = self.home[here] - int(rows[0]) * self.mask.shape[1]
            with torch.enable_grad():
                logits = self._logits(rows)
            for i, push in enumerate(pushes):
                cotangent = (
                    torch.zeros_like(logits)
                    .flatten(0, 1)
                    .index_put((places,), push[here].to(logits))
                )
                cotangent = cotangent.view_as(logits)
                parts = torch.autograd.grad(
                    logits, weights, cotangent, retain_graph=True, materialize_grads=True
                )
                sums[i] = sums[i] + torch.cat([part.flatten() for part in parts])
        return sums

    def changes(self, chosen: pd.DataFrame, direction: Float[Tensor, " D"]) -> np.ndarray:
        """Directional derivative of the chosen tokens' log-probabilities (n,) along a direction of
        the weights.
        """
        sizes = [p.numel() for p in self.weights.values()]
        parts = zip(self.weights.items(), direction.split(sizes), strict=True)
        tangent = {name: part.view_as(p) for (name, p), part in parts}
        rollout, position = torch.tensor(chosen[["rollout", "position"]].to_numpy()).T
        change = torch.zeros(len(chosen), dtype=direction.dtype)
        for rows in passes(self.policy, self.rollouts, rollout.unique()):
            places = torch.searchsorted(rows, rollout).clamp(max=len(rows) - 1)
            here = rows[places] == rollout

            def logps(weights, rows=rows, places=places[here], at=position[here]):
                call = lambda **inputs: functional_call(self.model, weights, kwargs=inputs)  # noqa: E731
                return self._logits(rows, call)[places, at].log_softmax(-1)

            slopes = derivative(logps, self.weights, tangent)  # (n, V)
            tokens = self.rollouts.completion_ids[rollout[here], position[here]]
            change[here] = slopes.gather(1, tokens.unsqueeze(1)).squeeze(1)
        return change.numpy()

    def own_changes(self, chosen: pd.DataFrame, parts: PushParts) -> np.ndarray:
        """Changes (n, 3) of the chosen tokens by the signal, bias and noise at their own context.

        A change is the product <J^T score, J^T push> of what a token's score and the push there do
        to the weights.
        """
        changes, weights = np.zeros((len(chosen), 3)), list(self.weights.values())
        for rollout, rows in chosen.reset_index(drop=True).groupby("rollout"):
            at = torch.tensor(rows["position"].to_numpy())  # (n,)
            context = self.context[rollout, at]
            token = torch.nn.functional.one_hot(
                self.rollouts.completion_ids[rollout, at], self.probs.shape[1]
            )
            with torch.enable_grad():
                logits = self._logits(torch.tensor([rollout]))  # (1, T, V)
            vectors = [
                token - self.probs[context],
                *(getattr(parts, part)[context] for part in PARTS),
            ]
            vectors = torch.stack(vectors).to(logits)  # (1 + 3, n, V)
            cotangents = logits.new_zeros(*vectors.shape[:2], *logits.shape)
            cotangents[:, torch.arange(len(at)), 0, at] = vectors
            batched = torch.autograd.grad(
                logits, weights, cotangents.flatten(0, 1), is_grads_batched=True, allow_unused=True
            )
            products = logits.new_zeros(3, len(at))
            for gradient in batched:
                if gradient is not None:
                    first, *others = gradient.flatten(1).view(len(vectors), len(at), -1)
                    products += torch.stack([(first * other).sum(1) for other in others])
            changes[rows.index] = products.T.numpy()
        return changes

    def _logits(self, rows: Int[Tensor, " b"], call=None) -> Float[Tensor, "b T V"]:
        return context_logits(
            self.model, *(getattr(self.rollouts, name)[rows] for name in FIELDS), call=call
        )


def class_shares(tokens: pd.DataFrame) -> pd.DataFrame:
    """Shares of each token class's squared change, and of all tokens': <part, change> / <change,
    change>.

    tokens: six parts, change, category and weight.  Columns: category, tokens, change_rms (nats per
    unit of learning rate), the six parts, signal, bias and noise of both places, coupling. NaN
    where nothing is pushed.
    """
    rows = []
    for category, part in [*tokens.groupby("category", sort=True), ("all", tokens)]:
        weighted = part["weight"] * part["change"]
        total = (weighted * part["change"]).sum()
        parts = part[list(SIX)].pow(2).mul(part["weight"], axis=0).to_numpy().sum()
        # else all rewards of a group are alike, and what is left is rounding
        moves = total > CANCELLED * parts
        six = {name: (weighted * part[name]).sum() / total if moves else np.nan for name in SIX}
        both = {name: six[f"own_{name}"] + six[f"coupled_{name}"] for name in PARTS}
        coupling = sum(six[f"coupled_{name}"] for name in PARTS)
        rms = float(np.sqrt(total / part["weight"].sum()))
        rows.append(
            {
                "category": category,
                "tokens": len(part),
                "change_rms": rms,
                **six,
                **both,
                "coupling": coupling,
            }
        )
    return pd.DataFrame(rows)


def _chosen(rollouts: Rollouts, tokens: int | None, seed: int) -> pd.DataFrame:
    """The measured tokens: row of the token table, rollout, position, category, and how many each
    stands for.
    """
    rollout, position = rollouts.completion_mask.bool().nonzero(as_tuple=True)
    table = (
        pd.DataFrame({"rollout": rollout.numpy(), "position": position.numpy()})
        .rename_axis("row")
        .reset_index()
    )
    known = (
        [c for row in rollouts.categories for c in row]
        if rollouts.categories
        else [None] * len(table)
    )
    table["category"] = ["token" if category is None else category for category in known]
    kept = table.sample(frac=1, random_state=seed)
    if tokens is not None:
        kept = (
            kept[kept["rollout"].isin(kept["rollout"].unique()[:tokens])]
            .groupby("category")
            .head(tokens)
        )
    weight = table["category"].value_counts() / kept["category"].value_counts()
    return kept.assign(weight=kept["category"].map(weight)).sort_values("row")


def _in_weights(
    directions: dict[str, Tensor | None], scale: float, rollouts: int
) -> dict[str, float]:
    """Shares of the update's squared length, cosines with the exact gradient, and the oracle's
    rollouts.
    """

    def cosine(a: Tensor) -> float:
        return (
            np.nan
            if exact is None
            else float(torch.nn.functional.cosine_similarity(a, exact, dim=0))
        )

    total, exact = sum(directions[part] for part in PARTS), directions["exact"]
    square, noise = float(total.square().sum()), float(directions["noise"].square().sum())
    moves = square > CANCELLED * noise
    update = {part: float(directions[part] @ total) / square if moves else np.nan for part in PARTS}
    update["cosine"] = cosine(total) if moves else np.nan
    update |= {
        "expected_cosine": cosine(directions["signal"] + directions["bias"]),
        "norm": square**0.5,
    }
    ratio = scale**2 * float(directions["oracle_noise"].square().sum()) / noise if noise else np.nan
    return update | {"oracle_rollouts": rollouts * ratio}
