"""Reward-irrelevant drift of a training run, on style words and in odds among right solutions.

Many completions of one prompt earn the same reward: they differ in words without credit. Training
has no reason to prefer one of them, but sampling noise still moves their odds. Two policies,
before and after training, score the same texts: the right chains of some prompts, each in several
styles. So every difference is the policies' own, not that of other samples.

    tax  = mean KL(after || before) on style words           nats per word
    odds = mean |change of log pi(y_a) / pi(y_b)|            nats, over pairs of equally right texts
"""

import random

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from workbook.messages import InvalidValue
from workbook.rollouts.sample import Rollouts, written_rollouts
from workbook.rollouts.scoring import in_batches
from workbook.rollouts.states import output_states
from workbook.theory.drift import kl_drift, log_odds_drift, solution_entropy

_PLACE_COLUMNS = ["group", "solution", "position", "token", "category"]
_MEASURED_COLUMNS = ["logp_before", "logp_after", "kl", "entropy_before", "entropy_after"]


class DriftFrom:
    """Drift from one policy, whose right solutions are scored once, to any number of later ones.

    Arguments and errors as in `drift_report`, but solutions=1 will do.
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
        # the solutions of a prompt stand one after another
        table["solution"] = table["rollout"] % solutions
        self.token_ids = torch.tensor(table["token_id"].to_numpy())  # (N,)
        # (N, V) log-probabilities of every next token, which each later policy is compared with
        self.logps, measured = self._scored(before, "before")
        self.table = table[_PLACE_COLUMNS].assign(**measured)

    def report(self, after) -> pd.DataFrame:
        """The table of `drift_report`."""
        logps, measured = self._scored(after, "after")
        kl = kl_drift(self.logps, logps - self.logps).double().numpy()
        return self.table.assign(**measured, kl=kl)[[*_PLACE_COLUMNS, *_MEASURED_COLUMNS]]

    def _scored(self, policy, name: str) -> tuple[Float[Tensor, "N V"], dict]:
        """Log-probabilities of all next tokens, and the columns that follow from them."""
        logps = output_states(policy, self.rollouts).logits.cpu().float().log_softmax(-1)
        logp = logps.gather(-1, self.token_ids[:, None]).squeeze(-1)
        # nats, over the whole vocabulary
        entropy = -(logps.exp() * logps).sum(-1)
        columns = {
            f"logp_{name}": logp.double().numpy(),
            f"entropy_{name}": entropy.double().numpy(),
        }
        return logps, columns


@in_batches
def drift_report(
    before, after, task, prompts: list[dict] | int = 16, solutions: int = 8, seed: int = 0
) -> pd.DataFrame:
    """Movement of every token of right solutions between two policies, a row per token.

    before, after: policies with the same tokenizer.  task: one that knows its equivalent solutions,
    such as chain.
    prompts: rows with prompt and answer, or how many to draw with `seed`.  solutions: styles per
    prompt, the same for both policies.  Raises ValueError for a task without equivalent solutions,
    and for fewer than two of them.

    Columns: group, solution, position, token, category; logp_before, logp_after; kl, the divergence
    KL(after || before) of the token's next-token distribution (D4); its entropy_before,
    entropy_after; all in nats.
    Summaries: `learning_tax`, `odds_drift`.  Source: arXiv 2604.13088, proposition 3.1, corollary
    3.2 (D4, D5).
    """
    if solutions < 2:
        raise InvalidValue("solutions", solutions, "at least 2, to have odds between them")
    return DriftFrom(before, task, prompts, solutions, seed).report(after)


def learning_tax(report: pd.DataFrame) -> pd.DataFrame:
    """Movement of style words, by prompt: columns group, tax, style_entropy.

    tax: mean KL per word, nats. Style has credit 0, so all of its movement is the tax.
    style_entropy: mean, nats. Times the style words per solution it is the entropy over the
    equivalent solutions, by the chain rule.
    """
    style = report[report["category"] == "style"]
    means = {"tax": ("kl", "mean"), "style_entropy": ("entropy_after", "mean")}
    return style.groupby("group").agg(**means).reset_index()


def odds_drift(report: pd.DataFrame) -> pd.DataFrame:
    """Movement of the odds among equivalent solutions, by prompt.

    Columns group, odds, entropy, entropy_before.  odds: mean over pairs of
    |change of log pi(y_a)/pi(y_b)|, nats.  entropy: over the solutions in the
    report, given that one of them is produced, between 0 and the log of their number.
    """
    rows = []
    # a solution is as likely as all of its tokens together
    solution_logps = report.groupby(["group", "solution"])[["logp_before", "logp_after"]].sum()
    for group, logps in solution_logps.groupby(level=0):
        before = torch.from_numpy(logps["logp_before"].to_numpy().copy())  # (S,)
        after = torch.from_numpy(logps["logp_after"].to_numpy().copy())
        # each pair of solutions once
        first, second = torch.triu_indices(len(before), len(before), 1)
        odds = log_odds_drift(before, after)[first, second].abs().mean()
        entropies = (solution_entropy(after), solution_entropy(before))
        rows.append((group, float(odds), *map(float, entropies)))
    return pd.DataFrame(rows, columns=["group", "odds", "entropy", "entropy_before"])


def right_solutions(policy, task, prompts: list[dict], solutions: int, seed: int = 0) -> Rollouts:
    """The right completions of some prompts, each in random styles, as if they had been sampled."""
    rng = random.Random(seed)
    texts = []
    for row in prompts:
        # the same styles for both policies, since only the seed decides
        styles = task.some_styles(row["prompt"], solutions, rng)
        texts.append([task.render(row["prompt"], style) for style in styles])
    return written_rollouts(policy, task, prompts, texts)
