"""The returning chart at reuse: what the weights of an objective do to signal and noise of one batch's pushes.

Equal weights split a push into signal and noise (`workbook.theory.decomposition`). Weights w of the same batch, after
some epochs on it, add a third part. With wbar, the equal weight that is nearest in the squares of w A,

    sum_j w_j A_j (e_y - p)  =  wbar (signal + noise)  +  sum_j (w_j - wbar) A_j (e_y - p) [bias: unequal weights]

Scores, values and changes are those of the policy that sampled, so that nothing but the weights differs.
"""

from __future__ import annotations

import altair as alt
import pandas as pd
from jaxtyping import Float
from torch import Tensor

from workbook.probes.recovered import Pushes, measure_parts, rule_advantages
from workbook.probes.values import chain_values
from workbook.rollouts.sample import Rollouts
from workbook.theory.decomposition import PushParts, realised_pushes
from workbook.topics.drift.probe import objective_weights
from workbook.views.parts import parts_table, signal_noise_chart

RULE, TOKENS = "grpo", 32  # tokens measured of each class
EQUAL = "equal weights"
OBJECTIVES = {  # level, clipping, epsilon, transform
    EQUAL: ("token", "none", 0.2, "none"),
    "PPO: token ratios, clip 0.2": ("token", "asymmetric", 0.2, "none"),
    "sequence ratio, no clip": ("sequence", "none", 0.03, "none"),
    "GSPO: sequence ratio, clip 0.03": ("sequence", "asymmetric", 0.03, "none"),
    "GSPO with min-replace": ("sequence", "asymmetric", 0.03, "min_replace"),
}
COLUMNS = ["panel", "category", "part", "order", "share"]
CATEGORIES = {"result": "result words", "style": "style words"}


class WeightedPushes(Pushes):
    """Pushes of one batch, whose advantages are multiplied by an objective's weights."""

    def weigh(self, parts: PushParts, weights: Float[Tensor, "B T"]) -> PushParts:
        """The parts of `split` under weights: signal and noise at the nearest equal weight, and the rest as bias."""
        advantages = rule_advantages(self.policy, self.rollouts, RULE, self.values, 0)[self.mask] / len(self.rollouts)
        weights = weights[self.mask].to(advantages)
        equal = float((weights * advantages.square()).sum() / advantages.square().sum())
        tokens, context = self.rollouts.completion_ids[self.mask], self.context[self.mask]
        unequal = realised_pushes((weights - equal) * advantages, tokens, context, self.probs)
        scaled = [equal * part for part in (parts.signal, parts.bias, parts.noise)]
        return PushParts(scaled[0], scaled[1] + unequal, scaled[2], equal * parts.scale)


def parts_at_reuse(policy, task, rollouts: Rollouts, path: Float[Tensor, "times1 B T"], times: int = 1) -> pd.DataFrame:
    """What moves classes of tokens by each of OBJECTIVES, after some epochs on a batch.

    path: log-probabilities before and after each epoch, as from `reuse_path`.  times: epochs, 0 to those of the path.
    Columns panel (the class), category (the objective), part, order, and share of the class's squared movement under
    equal weights, so that an objective's shares add up to how much less or more it moves.

    Raises ValueError for epochs that the path does not have.
    """
    if not 0 <= times < len(path):
        raise ValueError(f"times={times} must be 0 to {len(path) - 1}, the epochs of this path.")
    pushes, tables = WeightedPushes(policy, rollouts, chain_values(policy, task, rollouts)), []
    equal = pushes.split(RULE, 0)
    for name, objective in OBJECTIVES.items():
        now = path[0] if name == EQUAL else path[times]
        weighed = pushes.weigh(equal, objective_weights(rollouts, now, *objective))
        split = measure_parts(pushes, weighed, RULE, None, TOKENS)
        shares = split.shares[split.shares["category"].isin(CATEGORIES)]
        table = parts_table(shares).drop(columns="size")
        tables.append(table.assign(panel=table["category"], category=name))
    table = pd.concat(tables, ignore_index=True)
    base = table[table["category"] == EQUAL].groupby("panel")["change_rms"].first()
    share = table["share"] * (table["change_rms"] / table["panel"].map(base)) ** 2
    return table.assign(share=share, panel=table["panel"].map(CATEGORIES))[COLUMNS]


def parts_at_reuse_chart(table: pd.DataFrame) -> alt.FacetChart:
    """The returning chart, with a bar for each objective in each class of tokens; table of `parts_at_reuse`."""
    return signal_noise_chart(table, "At reuse a clip adds bias; style words stay noise", width=430)
