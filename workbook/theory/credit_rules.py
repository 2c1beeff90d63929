"""The credit rules by name: what each does, where it comes from, what it needs to know.

A rule is called as `rule(batch)` and trained with as `advantage_estimator: NAME`. Its numbers are keyword arguments at
the published values; to set others, write a rule that calls ours:

    # credit.py, trained with as advantage_estimator: own:credit.py:gentle
    from workbook.theory import advantage_reweighting

    def gentle(batch):
        return advantage_reweighting(batch, alpha=0.05, advantages="dr_grpo")

    gentle.each_step = True  # evaluated with the log-probs of each step, as ours is
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from . import credit_controls, credit_coupling, credit_edits, credit_weights
from .choices import ESTIMATORS, RULES, check_choice
from .credit import CreditBatch, Rule

EXACT = ("as published", "our reading", "control")


@dataclass(frozen=True)
class CreditRule:
    """A credit rule with its one-line summary, its source and what it asks the batch for.

    needs: names of what a CreditBatch computes when asked, or continue_from.  exact: one of EXACT; where "our reading"
    departs from its source is said in the function's docstring.  per_token: advantages (B, T), else (B,).
    """

    name: str
    function: Rule
    summary: str
    source: str
    needs: tuple[str, ...] = ()
    exact: str = "as published"
    per_token: bool = True

    @property
    def each_step(self) -> bool:
        """Whether the rule is evaluated again in every micro-batch."""
        return getattr(self.function, "each_step", False)

    def applies(self, batch: CreditBatch) -> bool:
        """Whether the batch knows what the rule needs."""
        return all(batch.knows(name) for name in self.needs)


_RULES = (
    CreditRule(
        "prefix_credit",
        credit_weights.prefix_credit,
        "mean reward of the group's rollouts that took this step, minus that of all that stood before it",
        "arXiv 2509.21154",
        exact="our reading",
    ),
    CreditRule(
        "lambda_grpo",
        credit_weights.lambda_grpo,
        "advantage divided by the number of the group's rollouts that share the prefix up to the token",
        "arXiv 2509.21154",
    ),
    CreditRule(
        "edit_mask",
        credit_edits.edit_mask,
        "failing rollouts are pushed only on tokens that differ from their nearest correct sibling",
        "arXiv 2605.16302",
        exact="our reading",
    ),
    CreditRule(
        "ibpo",
        credit_edits.ibpo,
        "as edit_mask, and a failing rollout that a sibling's first different decision saves is punished less",
        "arXiv 2605.16302",
        needs=("continue_from",),
        exact="our reading",
    ),
    CreditRule(
        "gtpo",
        credit_weights.gtpo,
        "tokens that both signs share from the start or the end: not pushed down, pushed up twice",
        "arXiv 2508.03772",
        exact="our reading",
    ),
    CreditRule(
        "nthr",
        credit_coupling.nthr,
        "wrong rollouts are pushed less on tokens whose coupling would take right rollouts down too",
        "arXiv 2505.18830",
        needs=("states",),
    ),
    CreditRule(
        "token_hidden_reward",
        credit_coupling.token_hidden_reward,
        "only tokens that move right rollouts most, leaning to those that raise them",
        "arXiv 2510.03669",
        needs=("states",),
        exact="our reading",
    ),
    CreditRule(
        "advantage_reweighting",
        credit_weights.advantage_reweighting,
        "advantage times alpha p + 1 - alpha: tokens of low probability are pushed less",
        "arXiv 2505.12929",
        needs=("logps",),
    ),
    CreditRule(
        "lopti",
        credit_weights.lopti,
        "tokens of low probability at even optimizer steps, all others at odd ones (num_iterations: 2)",
        "arXiv 2505.12929",
        needs=("old_logps",),
        exact="our reading",
    ),
    CreditRule(
        "w_reinforce",
        credit_weights.w_reinforce,
        "positive advantages times 0.1",
        "arXiv 2506.01347",
        exact="our reading",
        per_token=False,
    ),
    CreditRule(
        "negative_token_filtering",
        credit_weights.negative_token_filtering,
        "negative rollouts are pushed only on their least probable tenth of tokens",
        "arXiv 2606.17250",
        needs=("old_logps",),
        exact="our reading",
    ),
    CreditRule(
        "balanced_aggregation",
        credit_weights.balanced_aggregation,
        "means over tokens taken separately over the positive and the negative rollouts of a group",
        "arXiv 2605.04077",
        per_token=False,
    ),
    CreditRule(
        "coin_reward",
        credit_controls.coin_reward,
        "group advantages of coin flips instead of rewards",
        "arXiv 2506.10947",
        exact="control",
        per_token=False,
    ),
    CreditRule(
        "permuted",
        credit_controls.permuted,
        "group advantages permuted among the rollouts of each group",
        "lower bound of comparisons",
        exact="control",
        per_token=False,
    ),
    CreditRule(
        "oracle",
        credit_controls.oracle,
        "the true credit of each token, on tasks that know it",
        "upper bound of comparisons",
        needs=("known_credit",),
        exact="control",
    ),
)
CREDIT_RULES: dict[str, CreditRule] = {rule.name: rule for rule in _RULES}


def credit_table(
    batch: CreditBatch, rules: Iterable[str] | Mapping[str, Rule] | None = None
) -> dict[str, Float[Tensor, "B T"]]:
    """Advantages per token of several rules on one batch, 0 outside the mask, by name.

    rules: names of CREDIT_RULES or ESTIMATORS, or functions by name; None takes every rule of CREDIT_RULES whose needs
    the batch knows. Each rule draws from batch.generator as if it were alone. Raises ValueError for an unknown name.

    >>> import torch
    >>> batch = CreditBatch(torch.tensor([1.0, 0.0]), torch.zeros(2), torch.tensor([[5, 1], [5, 2]]), torch.ones(2, 2))
    >>> {name: table.tolist() for name, table in credit_table(batch, ["dr_grpo", "prefix_credit"]).items()}
    {'dr_grpo': [[0.5, 0.5], [-0.5, -0.5]], 'prefix_credit': [[0.0, 0.5], [0.0, -0.5]]}
    """
    if rules is None:
        rules = [name for name, rule in CREDIT_RULES.items() if rule.applies(batch)]
    functions = rules if isinstance(rules, Mapping) else {name: _function(name) for name in rules}
    state, table = batch.generator.get_state(), {}
    for name, function in functions.items():
        batch.generator.set_state(state)
        advantages = function(batch)
        advantages = credit_weights.per_token(batch, advantages) if advantages.ndim == 1 else advantages
        table[name] = advantages.masked_fill(~batch.mask, 0.0)
    return table


def _function(name: str) -> Rule:
    check_choice("rule", name, (*ESTIMATORS, *RULES))
    return CREDIT_RULES[name].function if name in CREDIT_RULES else lambda batch: batch.group_advantages(name)
