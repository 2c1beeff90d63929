"""Who stands in the arena: every credit rule and plain estimator of the trainer, and rules of one's own."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from jaxtyping import Float
from torch import Tensor

from workbook.probes.values import chain_values
from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import pad_rows, tokenize_prompts
from workbook.theory.choices import ESTIMATORS
from workbook.theory.credit import CreditBatch, Rule, per_token
from workbook.theory.credit_rules import RULES
from workbook.training.credit import credit_call

UPPER, PLAIN, LOWER = "oracle", "dr_grpo", "permuted"  # bounds of what a rule can get, and plain group credit
BOUNDS = (LOWER, PLAIN, UPPER)  # trained in every unit, whichever rule is asked for
ALL = (*ESTIMATORS, *RULES)


@dataclass(frozen=True)
class Contender:
    """A rule under its name, and the checksums of its files where it is one's own."""

    name: str
    function: Callable[[CreditBatch], Tensor] = field(repr=False)
    estimator: str | Rule = field(repr=False)  # what a `Loop` takes for its rule
    files: dict[str, str] = field(default_factory=dict, repr=False)

    def advantages(self, batch: CreditBatch) -> Float[Tensor, "B T"]:
        """Its advantages per token, 0 outside the mask."""
        advantages = self.function(batch)
        return (per_token(batch, advantages) if advantages.ndim == 1 else advantages).masked_fill(~batch.mask, 0.0)

    @property
    def key(self) -> str:
        """A folder's name, which changes with the rule's files."""
        name = re.sub(r"\W+", "-", self.name.rpartition("/")[2])
        digest = hashlib.sha256(json.dumps(self.files, sort_keys=True).encode()).hexdigest()[:8]
        return f"{name}-{digest}" if self.files else name


def short_name(rule: str) -> str:
    """A rule's name without the path of its file.

    >>> short_name("own:runs/own/credit.py:unsure"), short_name("dr_grpo")
    ('unsure', 'dr_grpo')
    """
    return rule.rpartition(":")[2]


def contender(estimator: str | Rule) -> Contender:
    """The contender that an `advantage_estimator` means: one of ALL, own:<file.py>:<function>, or a function.

    Raises ValueError, in one sentence, for an unknown name and for a file that can't be imported or lacks the function.

    >>> contender("dr_grpo").key
    'dr_grpo'
    """
    call = credit_call(estimator)
    if call is None:
        return Contender(estimator, lambda batch: batch.group_advantages(estimator), estimator)
    return Contender(call.name, call, estimator, call.files)


def exact_oracle(policy, task) -> Contender:
    """The upper bound: the true credit of each token under the policy as it is when asked, exact."""

    def oracle(batch: CreditBatch) -> Float[Tensor, "B T"]:
        ids, mask = pad_rows(tokenize_prompts(policy.tokenizer, batch.prompts), policy.tokenizer.pad_token_id, "left")
        columns = {"prompt_ids": ids, "prompt_mask": mask, "completion_ids": batch.completion_ids}
        columns |= {"completion_mask": batch.mask.long(), "advantages": batch.rewards, "group_ids": batch.group_ids}
        rollouts = replace(Rollouts.from_batch(columns), prompts=tuple(batch.prompts))
        return chain_values(policy, task, rollouts.to(policy.model.device)).credit

    return Contender(UPPER, oracle, oracle)
