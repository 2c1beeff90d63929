"""Credit recovered: the share of one step's movement that the policy gradient asks for.

A rollout's one reward pushes all of its tokens alike. In which of them does the step move the
policy as known credit would? A step with pushes u_c on the logits of its contexts moves the
log-probability of token i, which stands in context c, by

    dlogp_i = lr sum over contexts c' of <J_c^T (e_i - p_c), J_c'^T u_c'>

with J_c the Jacobian of the logits in context c by the weights. Each push u_c' is a sum of signal,
bias and noise (`workbook.theory.decomposition`), and c' is the token's own context or another one,
from where a push arrives by coupling. That makes six parts, which add up to the change exactly:
gradients are those of the whole network, and a token's change is a directional derivative, not a
finite difference. In a class of tokens a part has the share

    <part, change> / <change, change>        which add up to 1 over the six parts

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
from workbook.probes.values import TokenValues, exact_values, expected_reward
from workbook.rollouts.credit_batches import credit_batch
from workbook.rollouts.likelihood import FIELDS, context_logits, passes
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

PUSH_PARTS = ("signal", "bias", "noise")
SIX_PARTS = tuple(f"{where}_{part}" for where in ("own", "coupled") for part in PUSH_PARTS)
_PER_CLASS = 64  # tokens measured of each class unless told otherwise
_NO_MOVEMENT = 1e-8  # share of its parts' squares below which a movement counts as none


@dataclass(frozen=True)
class CreditRecovered:
    """What one step of a rule recovers of known credit.

    scale: the batch's constant k.

    tokens: a row per measured token with its six parts and change (nats per unit of learning rate,
    of J = the mean over rollouts) and weight, the number of tokens of its class that it stands for.

    shares: as of `class_shares`.

    update: signal, bias and noise as shares of the update's squared length in the weights' space;
    cosine of the update, and of its expectation given the visits (expected_cosine), with the exact
    gradient, NaN where that is not known; norm; oracle_rollouts, of which an update by known credit
    would be as noisy.

    directions: signal, bias, noise, the oracle's noise and the exact gradient, vectors (D,).
    """

    rule: str
    scale: float
    tokens: pd.DataFrame
    shares: pd.DataFrame
    update: dict[str, float]
    directions: dict[str, Float[Tensor, " D"]]

    def __str__(self) -> str:
        everything = self.shares.set_index("category").loc["all"]
        own = ", ".join(f"{everything[f'own_{part}']:.0%} {part}" for part in PUSH_PARTS)
        coupled = ", ".join(f"{everything[f'coupled_{part}']:.0%} {part}" for part in PUSH_PARTS)
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
    tokens: int | None = _PER_CLASS,
    seed: int = 0,
) -> CreditRecovered:
    """Split one step of a rule into signal, bias and noise, own and coupled.

    The step's objective is J = 1/B sum_it A_it log pi_it: one gradient step, ratios of 1, no clip.
    It needs a task with known values, and a policy that is no larger LLM.

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
    # forward mode and batched gradients need attention in plain operations
    with sdpa_kernel(SDPBackend.MATH):
        pushes = Pushes(policy, rollouts, values)
        return measure_parts(pushes, pushes.split(rule, seed), rule, exact, tokens, seed)


def measure_parts(
    pushes: Pushes,
    parts: PushParts,
    rule: str,
    exact: Float[Tensor, " D"] | None = None,
    tokens: int | None = _PER_CLASS,
    seed: int = 0,
) -> CreditRecovered:
    """Movement of tokens and weights by the parts of some pushes, as of `credit_recovered`."""
    rollouts = pushes.rollouts
    of_parts = [getattr(parts, part) for part in PUSH_PARTS]
    chosen = _chosen_tokens(rollouts, tokens, seed)
    with sdpa_kernel(SDPBackend.MATH):
        gradients = pushes.directions([*of_parts, pushes.oracle_noise()])
        directions = dict(zip((*PUSH_PARTS, "oracle_noise"), gradients, strict=True))
        # (n, 3) each: by the token's own context, and by all contexts
        own = pushes.own_changes(chosen, parts)
        changes = [pushes.changes(chosen, directions[part]) for part in PUSH_PARTS]
        whole = np.stack(changes, axis=1)

    table = rollouts.token_table().iloc[chosen["row"]][["rollout", "position", "token"]]
    table = table.assign(category=chosen["category"].to_numpy(), weight=chosen["weight"].to_numpy())
    table[list(SIX_PARTS)] = np.concatenate([own, whole - own], axis=1)
    table["change"] = whole.sum(1)
    directions["exact"] = exact
    return CreditRecovered(
        rule=rule,
        scale=parts.scale,
        tokens=table,
        shares=class_shares(table),
        update=_update_shares(directions, parts.scale, len(rollouts)),
        directions=directions,
    )


def check_gains(rollouts: Rollouts, rule: str) -> int:
    """Group size of rollouts whose pushes under a rule have an expectation in closed form.

    Raises ValueError where they have none: another rule, rewards other than 0 and 1, groups of
    unequal size.
    """
    if FORMER_RULE_NAMES.get(rule, rule) not in GAIN_RULES:
        raise InvalidValue(
            "rule", rule, f"one with an expectation in closed form: {', '.join(GAIN_RULES)}"
        )
    rewards = rollouts.rewards
    others = rewards[(rewards != 0) & (rewards != 1)]
    if others.numel():
        raise InvalidValue("rewards", float(others[0]), "0 or 1")
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
    """Gradient of the prompts' mean expected reward by the trained weights, without sampling."""
    value = expected_reward(policy, task, list(prompts), differentiable=True).mean()
    with torch.enable_grad():
        return flat_gradient(policy, value)


def flat_gradient(policy, objective: Tensor, keep_graph: bool = False) -> Float[Tensor, " D"]:
    """The objective's gradient by all trained weights, as one vector."""
    weights = list(trained_weights(policy).values())
    # advantages that are all 0 leave no graph
    if not objective.requires_grad:
        return torch.cat([torch.zeros_like(w).flatten() for w in weights])
    parts = torch.autograd.grad(objective, weights, retain_graph=keep_graph, materialize_grads=True)
    return torch.cat([part.flatten() for part in parts])


def rule_advantages(
    policy, rollouts: Rollouts, rule: str, values: TokenValues, seed: int = 0
) -> Float[Tensor, "B T"]:
    """Advantages of a named rule on rollouts, one per token.

    Rules that need known credit are given exact values.
    """
    batch = credit_batch(policy, rollouts, seed=seed, known_credit=values.credit)
    if rule in ESTIMATORS:
        advantages = batch.group_advantages(rule)
    else:
        advantages = CREDIT_RULES[rule].function(batch)
    # a number a rollout is one for each of its tokens
    if advantages.dim() == 1:
        advantages = advantages[:, None].expand_as(rollouts.completion_ids)
    return advantages.masked_fill(~rollouts.completion_mask.bool(), 0.0)


class Pushes:
    """Contexts of some rollouts, their probabilities and values, and what pushes there do.

    context: (B, T), the number of each token's context, -1 outside the mask.  visits: (C,), tokens
    drawn in each.  home: (C,), where each is first visited, as b T + t.  probs, q: (C, V), the
    policy's probability of each word there, and the value after it.
    """

    def __init__(self, policy, rollouts: Rollouts, values: TokenValues):
        # modules of its own with the policy's very weights
        self.policy = private_copy(policy, weights=False)
        self.model = self.policy.model
        self.weights = trained_weights(self.policy)
        self.rollouts = rollouts
        self.values = values
        self.mask = rollouts.completion_mask.bool()

        # rollouts have one prompt if its tokens are the same, whatever stands under the padding
        prompt_tokens = torch.where(rollouts.prompt_mask.bool(), rollouts.prompt_ids, -1)
        prompt = torch.unique(prompt_tokens, dim=0, return_inverse=True)[1]
        self.context = context_index(prompt, rollouts.completion_ids, self.mask)
        context = self.context.flatten()
        visited = context >= 0
        self.visits = context[visited].bincount()
        places = torch.arange(context.numel(), device=context.device)
        self.home = torch.full_like(self.visits, context.numel())
        self.home.scatter_reduce_(0, context[visited], places[visited], "amin")

        with torch.no_grad():
            parts = passes(self.policy, rollouts)
            probs = torch.cat([self._logits(rows).softmax(-1) for rows in parts])  # (B, T, V)
        q = values.dense(probs.shape[2]).to(probs)
        self.probs = probs.flatten(0, 1)[self.home]
        self.q = q.flatten(0, 1)[self.home]

    def split(self, rule: str, seed: int) -> PushParts:
        """Split the rule's pushes into parts; realised, ideal and gain stay here as attributes."""
        group_size = check_gains(self.rollouts, rule)
        count = len(self.rollouts)
        advantages = rule_advantages(self.policy, self.rollouts, rule, self.values, seed)
        self.realised = realised_pushes(
            advantages[self.mask] / count,
            self.rollouts.completion_ids[self.mask],
            self.context[self.mask],
            self.probs,
        )
        self.ideal = ideal_pushes(self.visits, self.probs, self.q) / count

        # s_c of a context is that of its prompt
        labels, group = self.rollouts.group_ids.unique(return_inverse=True)
        prompt_value = self.values.prompt.new_zeros(len(labels))
        prompt_value = prompt_value.index_put((group,), self.values.prompt)  # (P,)
        gains = expected_gain(rule, prompt_value.to(self.probs), group_size)
        self.gain = gains[group[self.home // self.mask.shape[1]]]  # (C,)
        return split_pushes(self.realised, self.ideal, self.gain)

    def oracle_noise(self) -> Float[Tensor, "C V"]:
        """Noise of the pushes that known credit as advantage would give."""
        credit = self.values.credit.to(self.probs)[self.mask] / len(self.rollouts)
        tokens = self.rollouts.completion_ids[self.mask]
        return realised_pushes(credit, tokens, self.context[self.mask], self.probs) - self.ideal

    def directions(self, pushes: list[Float[Tensor, "C V"]]) -> list[Float[Tensor, " D"]]:
        """Gradients sum_c J_c^T push_c by the trained weights, one for each set of pushes."""
        weights = list(self.weights.values())
        length = self.mask.shape[1]
        sums = [0.0] * len(pushes)
        for rows in passes(self.policy, self.rollouts):
            # each context pushes once, at its home; a pass holds whole rows in order
            here = torch.isin(self.home // length, rows)
            places = self.home[here] - int(rows[0]) * length
            with torch.enable_grad():
                logits = self._logits(rows)  # (b, T, V)
            for i, push in enumerate(pushes):
                cotangent = torch.zeros_like(logits).flatten(0, 1)
                cotangent = cotangent.index_put((places,), push[here].to(logits))
                parts = torch.autograd.grad(
                    logits,
                    weights,
                    cotangent.view_as(logits),
                    retain_graph=True,
                    materialize_grads=True,
                )
                sums[i] = sums[i] + torch.cat([part.flatten() for part in parts])
        return sums

    def changes(self, chosen: pd.DataFrame, direction: Float[Tensor, " D"]) -> np.ndarray:
        """Derivatives (n,) of the chosen tokens' log-probabilities along a direction."""
        sizes = [p.numel() for p in self.weights.values()]
        parts = zip(self.weights.items(), direction.split(sizes), strict=True)
        tangent = {name: part.view_as(p) for (name, p), part in parts}
        rollout, position = torch.tensor(chosen[["rollout", "position"]].to_numpy()).T
        change = torch.zeros(len(chosen), dtype=direction.dtype)
        for rows in passes(self.policy, self.rollouts, rollout.unique()):
            # the chosen tokens of this pass: row of the pass and position, (n,) each
            row = torch.searchsorted(rows, rollout).clamp(max=len(rows) - 1)
            here = rows[row] == rollout

            def logps(weights, rows=rows, row=row[here], position=position[here]):
                def call(**inputs):
                    return functional_call(self.model, weights, kwargs=inputs)

                return self._logits(rows, call)[row, position].log_softmax(-1)

            slopes = derivative(logps, self.weights, tangent)  # (n, V)
            tokens = self.rollouts.completion_ids[rollout[here], position[here]]
            change[here] = slopes.gather(1, tokens.unsqueeze(1)).squeeze(1)
        return change.numpy()

    def own_changes(self, chosen: pd.DataFrame, parts: PushParts) -> np.ndarray:
        """Changes (n, 3) of the chosen tokens by the signal, bias and noise at their own context.

        A change is the product <J^T score, J^T push> of what a token's score and the push there do
        to the weights.
        """
        weights = list(self.weights.values())
        changes = np.zeros((len(chosen), len(PUSH_PARTS)))
        for rollout, rows in chosen.reset_index(drop=True).groupby("rollout"):
            position = torch.tensor(rows["position"].to_numpy())  # (n,)
            context = self.context[rollout, position]
            tokens = self.rollouts.completion_ids[rollout, position]
            one_hot = torch.nn.functional.one_hot(tokens, self.probs.shape[1])
            score = one_hot - self.probs[context]  # (n, V)
            pushes = [getattr(parts, part)[context] for part in PUSH_PARTS]

            # one batched backward pass takes J^T of all of them, each at its token's position
            with torch.enable_grad():
                logits = self._logits(torch.tensor([rollout]))  # (1, T, V)
            vectors = torch.stack([score, *pushes]).to(logits)  # (1 + 3, n, V)
            cotangents = logits.new_zeros(*vectors.shape[:2], *logits.shape)  # (1 + 3, n, 1, T, V)
            cotangents[:, torch.arange(len(position)), 0, position] = vectors
            gradients = torch.autograd.grad(
                logits, weights, cotangents.flatten(0, 1), is_grads_batched=True, allow_unused=True
            )
            products = logits.new_zeros(len(pushes), len(position))
            for gradient in gradients:
                # a weight that these logits do not depend on
                if gradient is None:
                    continue
                of_score, *of_pushes = gradient.flatten(1).view(len(vectors), len(position), -1)
                products += torch.stack([(of_score * of_push).sum(1) for of_push in of_pushes])
            changes[rows.index] = products.T.numpy()
        return changes

    def _logits(self, rows: Int[Tensor, " b"], call=None) -> Float[Tensor, "b T V"]:
        """Logits of the contexts of some rollouts' tokens."""
        inputs = (getattr(self.rollouts, name)[rows] for name in FIELDS)
        return context_logits(self.model, *inputs, call=call)


def class_shares(tokens: pd.DataFrame) -> pd.DataFrame:
    """Shares of each token class's squared change, and of all tokens' in a row "all".

        <part, change> / <change, change>

    tokens: six parts, change, category and weight.  Columns: category, tokens, change_rms (nats per
    unit of learning rate), the six parts, signal, bias and noise of both places, coupling. NaN
    where nothing is pushed.
    """
    rows = []
    for category, part in [*tokens.groupby("category", sort=True), ("all", tokens)]:
        weighted = part["weight"] * part["change"]
        square = (weighted * part["change"]).sum()
        squares_of_parts = part[list(SIX_PARTS)].pow(2).mul(part["weight"], axis=0)
        # where all rewards of a group are alike, what is left of the change is rounding
        moves = square > _NO_MOVEMENT * squares_of_parts.to_numpy().sum()

        six = dict.fromkeys(SIX_PARTS, np.nan)
        if moves:
            six = {name: (weighted * part[name]).sum() / square for name in SIX_PARTS}
        both_places = {name: six[f"own_{name}"] + six[f"coupled_{name}"] for name in PUSH_PARTS}
        row = {
            "category": category,
            "tokens": len(part),
            "change_rms": float(np.sqrt(square / part["weight"].sum())),
            **six,
            **both_places,
            "coupling": sum(six[f"coupled_{name}"] for name in PUSH_PARTS),
        }
        rows.append(row)
    return pd.DataFrame(rows)


def _chosen_tokens(rollouts: Rollouts, tokens: int | None, seed: int) -> pd.DataFrame:
    """The measured tokens, in order.

    Columns: row of the token table, rollout, position, category, and weight, how many tokens of its
    class each stands for.
    """
    rollout, position = rollouts.completion_mask.bool().nonzero(as_tuple=True)
    table = pd.DataFrame({"rollout": rollout.numpy(), "position": position.numpy()})
    table = table.rename_axis("row").reset_index()
    if rollouts.categories:
        categories = [category for row in rollouts.categories for category in row]
    else:
        categories = [None] * len(table)
    # one class where nobody annotated
    table["category"] = ["token" if category is None else category for category in categories]

    chosen = table.sample(frac=1, random_state=seed)
    if tokens is not None:
        few_rollouts = chosen["rollout"].unique()[:tokens]
        chosen = chosen[chosen["rollout"].isin(few_rollouts)].groupby("category").head(tokens)
    weight = table["category"].value_counts() / chosen["category"].value_counts()
    return chosen.assign(weight=chosen["category"].map(weight)).sort_values("row")


def _update_shares(
    directions: dict[str, Tensor | None], scale: float, rollouts: int
) -> dict[str, float]:
    """The field `update` of CreditRecovered; directions as there."""
    exact = directions["exact"]

    def cosine(direction: Tensor) -> float:
        if exact is None:
            return np.nan
        return float(torch.nn.functional.cosine_similarity(direction, exact, dim=0))

    update = sum(directions[part] for part in PUSH_PARTS)  # (D,)
    square = float(update.square().sum())
    noise = float(directions["noise"].square().sum())
    oracle_noise = float(directions["oracle_noise"].square().sum())
    moves = square > _NO_MOVEMENT * noise
    shares = dict.fromkeys(PUSH_PARTS, np.nan)
    if moves:
        shares = {part: float(directions[part] @ update) / square for part in PUSH_PARTS}
    return {
        **shares,
        "cosine": cosine(update) if moves else np.nan,
        "expected_cosine": cosine(directions["signal"] + directions["bias"]),
        "norm": square**0.5,
        # noise falls with the number of rollouts
        "oracle_rollouts": rollouts * (scale**2 * oracle_noise / noise if noise else np.nan),
    }
