"""Advantage estimators and credit rules on the command line: a list of them, and one of them tried.

python -m workbook estimators                             every rule in a line
python -m workbook estimators --try own:credit.py:rule    what a rule gives made-up rollouts
"""

import torch

from workbook.rollouts.scoring import pad_rows
from workbook.theory.advantages import group_advantages
from workbook.theory.credit import CREDIT_RULES, CreditBatch
from workbook.theory.credit_rules import RULES
from workbook.training.credit_calls import credit_call


def estimators_text() -> str:
    """Every advantage estimator and credit rule in a line, and where to read how to write one."""
    documented = [line.strip() for line in group_advantages.__doc__.splitlines()]
    lines = [line.removeprefix("- ") for line in documented if line.startswith("- ")]
    for name in RULES:
        rule = CREDIT_RULES[name]
        unit = "token" if rule.per_token else "rollout"
        asks = f"; asks for {', '.join(rule.needs)}" if rule.needs else ""
        lines.append(
            f"{rule.name}: per {unit}, {rule.changes}{asks} [{rule.paper}, {rule.fidelity}]"
        )
    lines.append(
        "One of your own, advantage_estimator: own:credit.py:my_rule, see"
        " help(workbook.theory.CreditBatch)."
    )
    return "\n".join(lines)


def made_up_batch() -> CreditBatch:
    """Two prompts of two rollouts with all that a rule may ask for but known credit.

    The numbers are drawn at random: no policy's.
    """
    draws = torch.Generator().manual_seed(0)
    texts = ["so it is 4 .", "so it is 5 .", "that makes 7", "it is 7 ."]
    words = sorted(set(" ".join(texts).split()))
    rows = [[words.index(word) for word in text.split()] for text in texts]
    ids, mask = pad_rows(rows, 0, "right")  # (B, T)
    tokens = int(mask.sum())

    hidden = torch.rand((tokens, 4), generator=draws)
    logits = torch.rand((tokens, len(words)), generator=draws)
    old_logps = -torch.rand(ids.shape, generator=draws)
    logps = -torch.rand(ids.shape, generator=draws)
    entropies = torch.rand(ids.shape, generator=draws)

    def continuation(rows, prefixes):
        return torch.rand(len(rows), generator=draws).round(), len(rows)

    def states():
        # only a rule that asks for states waits for transformers
        from workbook.rollouts.states import OutputStates

        return OutputStates(hidden, logits, ids[mask.bool()])

    return CreditBatch(
        rewards=torch.tensor([1.0, 0, 1, 1]),
        group_ids=torch.tensor([0, 0, 1, 1]),
        completion_ids=ids,
        mask=mask,
        generator=draws,
        continuation=continuation,
        old_logps=old_logps,
        logps=logps,
        entropies=entropies,
        states=states,
        tokens=[text.split() for text in texts],
        prompts=["2 + 2 =", "2 + 2 =", "3 + 4 =", "3 + 4 ="],
        answers=["4", "5", "7", "7"],
    )


def trial_text(estimator: str) -> str:
    """What an estimator or a credit rule gives the rollouts of `made_up_batch`, a line each.

    Raises ValueError where the rule can't be found, or fails.
    """
    batch = made_up_batch()
    call = credit_call(estimator)
    advantages = batch.group_advantages(estimator) if call is None else call(batch)
    if advantages.ndim == 1:
        advantages = advantages[:, None].expand(batch.mask.shape)
    lines = [
        "Made-up rollouts, whose log-probabilities, entropies, states and continuations are random"
        " numbers:"
    ]
    rollouts = zip(
        batch.prompts, batch.rewards.tolist(), batch.tokens, advantages.tolist(), strict=True
    )
    for prompt, reward, tokens, values in rollouts:
        # rows are padded beyond their tokens
        pairs = zip(tokens, values, strict=False)
        words = "  ".join(f"{token} {value:+.3f}" for token, value in pairs)
        lines.append(f"{prompt}  reward {reward:g}:  {words}")
    return "\n".join(lines)
