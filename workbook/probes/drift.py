"""Reward-irrelevant drift of a training run: on style words, and in the odds among equally right
solutions.

Both policies score the same texts: the right chains of some prompts, each in several styles. So
every difference is the policy's own, not that of other samples.
"""

import random

import pandas as pd
import torch

from workbook.messages import InvalidValue
from workbook.rollouts.credit import output_states
from workbook.rollouts.sample import Rollouts, written_rollouts
from workbook.rollouts.scoring import in_batches
from workbook.theory.drift import kl_drift, log_odds_drift, solution_entropy

_MEASURED = ("logp_before", "logp_after", "kl", "entropy_before", "entropy_after")


class DriftFrom:
    """Drift from one policy: its right solutions are scored once, then laid beside any number of
    later policies.

    Arguments and errors as in `drift_report`, and solutions=1 will do.
    """

    def __init__(
        self, before, task, prompts: list[dict] | int = 16, solutions: int = 8, seed: int = 0
    ):
        if not hasattr(task, "equivalent_solutions"):
            raise InvalidValue(
                "task", task.name, "one that knows its equivalent solutions, as chain does"
            )
        rows = list(task.dataset(prompts, seed)) if isinstance(prompts, int) else list(prompts)
        self.rollouts = right_solutions(before, task, rows, solutions, seed)
        table = self.rollouts.token_table()
        table["solution"] = table["rollout"] % solutions
        self.token = torch.tensor(table["token_id"].to_numpy())[:, None]
        self.logits, measured = self._scored(before, "before")
        self.table = table[["group", "solution", "position", "token", "category"]].assign(
            **measured
        )

    def report(self, after) -> pd.DataFrame:
        """The table of `drift_report`."""
        logits, measured = self._scored(after, "after")
        kl = kl_drift(self.logits, logits - self.logits).double().numpy()
        return self.table.assign(**measured, kl=kl)[[*self.table.columns[:5], *_MEASURED]]

    def _scored(self, policy, name: str):
        """Log-probabilities (N, V) of a policy, and the columns that follow from them."""
        every = output_states(policy, self.rollouts).logits.cpu().float().log_softmax(-1)
        logp, entropy = every.gather(-1, self.token).squeeze(-1), -(every.exp() * every).sum(-1)
        return every, {
            f"logp_{name}": logp.double().numpy(),
            f"entropy_{name}": entropy.double().numpy(),
        }


@in_batches
def drift_report(
    before, after, task, prompts: list[dict] | int = 16, solutions: int = 8, seed: int = 0
) -> pd.DataFrame:
    """Movement of every token of right solutions between two policies: a row per (group, solution,
    position).

    before, after: policies with the same tokenizer.  task: one that knows its equivalent solutions,
    such as chain.
    prompts: rows with prompt and answer, or how many to draw with `seed`.  solutions: styles per
    prompt, the same for both policies.  Raises ValueError for a task without equivalent solutions,
    and for fewer than two of them.

    Columns: group, solution, position, token, category; logp_before, logp_after; kl, the divergence
    KL(after || before) of the next-token distribution there (D4); its entropy_before,
    entropy_after; all in nats.
    Summaries: `learning_tax`, `odds_drift`.  Source: arXiv 2604.13088, proposition 3.1, corollary
    3.2 (D4, D5).
    """
    if solutions < 2:
        raise InvalidValue("solutions", solutions, "at least 2, to have odds between them")
    return DriftFrom(before, task, prompts, solutions, seed).report(after)


def learning_tax(report: pd.DataFrame) -> pd.DataFrame:
    """Movement of style words, by prompt: columns group, tax (mean KL per word, nats),
    style_entropy (mean, nats).

    Style has credit 0, so all of its movement is the tax. style_entropy times the style words per
    solution is the entropy over the equivalent solutions, by the chain rule.
    """
    style = report[report["category"] == "style"]
    return (
        style.groupby("group")
        .agg(tax=("kl", "mean"), style_entropy=("entropy_after", "mean"))
        .reset_index()
    )


def odds_drift(report: pd.DataFrame) -> pd.DataFrame:
    """Movement of the odds among equivalent solutions, by prompt: columns group, odds (nats),
    entropy, entropy_before.

    odds: mean over pairs of |change of log pi(y_a)/pi(y_b)|.  entropy: over the solutions in the
    report, given that one of them is produced, between 0 and the log of their number.
    """
    rows = []
    whole = report.groupby(["group", "solution"])[["logp_before", "logp_after"]].sum()
    for group, logp in whole.groupby(level=0):
        before, after = (torch.from_numpy(logp[name].to_numpy().copy()) for name in logp)
        pairs = torch.triu_indices(len(before), len(before), 1)
        drift = log_odds_drift(before, after)[pairs[0], pairs[1]].abs().mean()
        rows.append(
            (group, float(drift), float(solution_entropy(after)), float(solution_entropy(before)))
        )
    return pd.DataFrame(rows, columns=["group", "odds", "entropy", "entropy_before"])


def right_solutions(policy, task, prompts: list[dict], solutions: int, seed: int = 0) -> Rollouts:
    """The right completions of some prompts, each in so many random styles, as if they had been
    sampled.
    """
    rng = random.Random(seed)
    texts = [
        [
            task.render(row["prompt"], style)
            for style in task.some_styles(row["prompt"], solutions, rng)
        ]
        for row in prompts
    ]
    return written_rollouts(policy, task, prompts, texts)
