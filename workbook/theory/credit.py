"""Credit rules: what a rule is given, a CreditBatch, and the decorator that declares it.

One reward per rollout says nothing of which of its tokens earned it. A *credit rule* distributes
it: a function of one argument, `rule(batch) -> Tensor`, that returns one advantage per rollout (B,)
or one per token (B, T). The shortest one gives every token of a rollout the same:

    @credit_rule("plain", paper="GRPO")
    def plain(batch):
        'Give every token the advantage of its rollout.'
        return spread_over_tokens(batch, batch.group_advantages("grpo"))

and is trained with as `advantage_estimator: plain`. Outside the mask advantages count for nothing.
What is dear to compute (output states, another pass through the policy, continuations) is computed
when a rule first asks the batch for it and is kept then, so a rule that does not ask pays nothing.

Rules estimate credit from rewards. Where credit is known, Q - V is computed elsewhere: under the
demonstrator by a task's `annotate` (`tasks.chain`), under the policy by `exact_values`
(`probes.values`).

Letters: B rollouts, G group size, T completion tokens (right-padded), N tokens in the mask in
row-major order, D width, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from workbook.messages import InvalidValue

from .advantages import active, group_advantages, group_index

Rule = Callable[["CreditBatch"], Tensor]
Start = str | Float[Tensor, " B"]  # an estimator's name, or advantages
# what is computed on first access, by the name of the attribute
LAZY = (
    "old_logps",
    "logps",
    "entropies",
    "states",
    "tokens",
    "places",
    "prompts",
    "answers",
    "known_credit",
)
_PER_TOKEN = ("old_logps", "logps", "entropies", "places", "known_credit")


class CreditBatch:
    """B rollouts in whole groups, as a credit rule sees them.

    Args:
        rewards: (B,) finite numbers.
        group_ids: (B,) any labels.
        completion_ids: (B, T).
        mask: (B, T), 1 on completion tokens.
        step: optimizer steps done so far.
        generator: source of every random draw of a rule, on the CPU; None makes one seeded with
            `step`.
        continuation: function (rollouts (n,), prefixes) -> (n rewards, number of tokens sampled),
            for `continue_from`.
        lazy: values of LAZY, or functions of no argument that compute them on first access:
            old_logps (B, T), nats, of the policy that sampled;
            logps (B, T) and entropies (B, T), nats, of the policy of now;
            states, an object with hidden (N, D), logits (N, V), tokens (N,), kernel() and
            select(index);
            tokens, a list of strings per rollout, of its tokens in the mask;
            places (B, T), whole numbers, where the task's grammar has each token (`token_places`);
            prompts, a string per rollout;
            answers, what each rollout states as its answer, or None;
            known_credit (B, T), Q - V of each token, on tasks that know it.
            Per-token values are 0 outside the mask.

    Raises ValueError for shapes that do not agree, rewards that are not finite, and, on access, for
    what the caller did not give.

    >>> rewards, groups = torch.tensor([1.0, 0.0]), torch.zeros(2)
    >>> batch = CreditBatch(rewards, groups, torch.tensor([[5, 1], [5, 2]]), torch.ones(2, 2))
    >>> batch.group_advantages().tolist()
    [0.5, -0.5]
    >>> batch.knows("known_credit")
    False
    """

    def __init__(
        self,
        rewards: Float[Tensor, " B"],
        group_ids: Shaped[Tensor, " B"],
        completion_ids: Int[Tensor, "B T"],
        mask: Shaped[Tensor, "B T"],
        step: int = 0,
        generator: torch.Generator | None = None,
        continuation: Callable[[Tensor, list[list[int]]], tuple[Any, int]] | None = None,
        **lazy: Any,
    ):
        unknown = sorted(set(lazy) - set(LAZY))
        if unknown:
            raise InvalidValue(
                unknown[0],
                lazy[unknown[0]],
                LAZY,
                f"CreditBatch has no {unknown[0]!r}; what may be given is {', '.join(LAZY)}.",
            )
        if completion_ids.ndim != 2 or len(completion_ids) != len(rewards):
            raise InvalidValue(
                "completion_ids.shape",
                tuple(completion_ids.shape),
                f"({len(rewards)}, T), a row per reward",
            )
        # one label per rollout, else raises
        group_index(group_ids, len(rewards))
        if not rewards.isfinite().all():
            raise InvalidValue("rewards", float(rewards[~rewards.isfinite()][0]), "finite")

        self.rewards = rewards
        self.group_ids = group_ids
        self.completion_ids = completion_ids
        self.mask: Bool[Tensor, "B T"] = active(mask, completion_ids, "completion_ids")
        self.step = step
        self.sampled_tokens = 0
        self.generator = torch.Generator().manual_seed(step) if generator is None else generator
        self._continuation = continuation
        # as given, and as computed once
        self._lazy = lazy
        self._values: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self.rewards)

    def __getattr__(self, name: str) -> Any:
        if name not in LAZY:
            raise AttributeError(f"a CreditBatch has no attribute {name!r}")
        if name not in self._values:
            value = self._lazy.get(name)
            if callable(value):
                value = value()
            if value is None:
                raise InvalidValue(
                    f"batch.{name}",
                    None,
                    "given to CreditBatch",
                    f"batch.{name} is not known here: whoever made this batch gave no {name}.",
                )
            if name in _PER_TOKEN:
                value = self._masked(name, value)
            self._values[name] = value
        return self._values[name]

    def knows(self, name: str) -> bool:
        """Whether the caller gave this value of LAZY, or continuations; computes nothing.

        name: one of LAZY, or "continue_from".
        """
        given = self._continuation if name == "continue_from" else self._lazy.get(name)
        return given is not None

    def groups(self) -> list[Int[Tensor, " G"]]:
        """The rollouts of each group, as rows of this batch, in the order of the groups' labels."""
        index, count = group_index(self.group_ids, len(self))
        return [(index == group).nonzero().squeeze(1) for group in range(count)]

    def group_advantages(self, estimator: str = "dr_grpo") -> Float[Tensor, " B"]:
        """One advantage per rollout, by `theory.advantages.group_advantages`."""
        return group_advantages(self.rewards, self.group_ids, estimator)

    def continue_from(
        self, rollouts: Int[Tensor, " n"], prefixes: Sequence[Sequence[int]]
    ) -> Float[Tensor, " n"]:
        """Let the policy continue prefixes of completions, one sample each; return their rewards.

        rollouts: (n,) rows of this batch, whose prompts the prefixes follow.
        prefixes: n lists of token ids, which may be empty or end the completion (nothing is sampled
        then).

        The number of tokens sampled is added to `sampled_tokens`.

        Raises ValueError where there is no policy to sample from, and for rows, prefixes or ids
        that are not valid.
        """
        if self._continuation is None:
            raise InvalidValue(
                "batch.continue_from",
                None,
                "given to CreditBatch",
                "batch.continue_from is not known here: whoever made this batch gave no policy to"
                " sample.",
            )
        rollouts = torch.as_tensor(rollouts, dtype=torch.long, device="cpu").reshape(-1)
        prefixes = [[int(token) for token in prefix] for prefix in prefixes]
        if len(rollouts) != len(prefixes):
            raise InvalidValue("prefixes", len(prefixes), f"as many as rollouts, {len(rollouts)}")
        if not len(rollouts):
            return self.rewards.new_zeros(0)
        if int(rollouts.min()) < 0 or int(rollouts.max()) >= len(self):
            raise InvalidValue("rollouts", rollouts.tolist(), f"numbers from 0 to {len(self) - 1}")
        rewards, sampled = self._continuation(rollouts, prefixes)
        self.sampled_tokens += int(sampled)
        return torch.as_tensor(rewards, dtype=self.rewards.dtype, device=self.rewards.device)

    def _masked(self, name: str, value: Tensor) -> Tensor:
        """A per-token value (B, T), detached, 0 outside the mask."""
        if value.shape != self.mask.shape:
            raise InvalidValue(
                f"batch.{name}.shape",
                tuple(value.shape),
                f"{tuple(self.mask.shape)}, as completion_ids",
            )
        return value.detach().masked_fill(~self.mask, 0.0)


@dataclass(frozen=True)
class CreditRule:
    """A credit rule under its name: what it changes, where it comes from, what it asks for.

    needs: names of LAZY, or continue_from.
    fidelity: to its source, "as published", "our reading" (the function's docstring says where it
    departs from its source) or "control".
    per_token: advantages (B, T), else (B,).
    each_step: whether it is evaluated again in every micro-batch.
    """

    name: str
    function: Rule
    paper: str
    needs: tuple[str, ...]
    fidelity: str
    per_token: bool
    each_step: bool

    @property
    def changes(self) -> str:
        """What it changes, in a sentence: the first line of its docstring."""
        return self.function.__doc__.splitlines()[0].rstrip(".")

    def applies(self, batch: CreditBatch) -> bool:
        """Whether the batch knows what the rule needs."""
        return all(batch.knows(name) for name in self.needs)


# every decorated function of theory.credit_rules, credit_masks, credit_edits, credit_controls
CREDIT_RULES: dict[str, CreditRule] = {}


def credit_rule(
    name: str,
    *,
    paper: str,
    needs: tuple[str, ...] = (),
    fidelity: str = "as published",
    per_token: bool = True,
    each_step: bool = False,
) -> Callable[[Rule], Rule]:
    """Declare a function as the credit rule that `advantage_estimator: NAME` trains with.

    The first line of its docstring says what it changes; for the arguments see `CreditRule`.
    """

    def declare(function: Rule) -> Rule:
        CREDIT_RULES[name] = CreditRule(
            name, function, paper, needs, fidelity, per_token, each_step
        )
        function.each_step = each_step
        return function

    return declare


def start_from(batch: CreditBatch, advantages: Start) -> Float[Tensor, " B"]:
    """One advantage per rollout to begin with: of an estimator's name, or the tensor itself.

    Raises ValueError for an unknown estimator and for a tensor that is not (B,).
    """
    if isinstance(advantages, str):
        return batch.group_advantages(advantages)
    if advantages.shape != batch.rewards.shape:
        raise InvalidValue(
            "advantages.shape",
            tuple(advantages.shape),
            f"{tuple(batch.rewards.shape)}, one number per rollout",
        )
    return advantages.detach()


def spread_over_tokens(batch: CreditBatch, advantages: Float[Tensor, " B"]) -> Float[Tensor, "B T"]:
    """The advantage of each rollout on each of its tokens, 0 outside the mask."""
    return torch.where(batch.mask, advantages.unsqueeze(1), 0.0)


def token_places(batch: CreditBatch) -> Int[Tensor, "B T"]:
    """Place of each token: its slot in the task's grammar where that is known, else its position.

    Positions count from 0.
    """
    if batch.knows("places"):
        return batch.places
    return torch.arange(batch.mask.shape[1], device=batch.mask.device).expand(batch.mask.shape)


def sampled_logps(batch: CreditBatch) -> Float[Tensor, "B T"]:
    """Log-probabilities when sampled, or those of now where the sampler's are not known; nats."""
    if batch.knows("old_logps"):
        return batch.old_logps
    return batch.logps
