"""Signal, noise and bias of real objectives when a batch is used again (chapter 09)."""

import pandas as pd
from jaxtyping import Float
from torch import Tensor

from workbook.probes.recovered import Pushes, measure_parts, rule_advantages
from workbook.probes.reuse import EQUAL_WEIGHTS, token_weights
from workbook.probes.values import exact_values
from workbook.rollouts.sample import Rollouts
from workbook.theory.decomposition import PushParts, realised_pushes
from workbook.views.charts import parts_table

_RULE = "grpo"
PARTS_TOKENS = 32  # measured of each class
AT_REUSE = {  # level, clipping, epsilon, transform
    EQUAL_WEIGHTS: ("token", "none", 0.2, "none"),
    "sequence ratio, no clip": ("sequence", "none", 0.03, "none"),
    "GSPO with min-replace": ("sequence", "asymmetric", 0.03, "min_replace"),
    "GSPO: sequence ratio, clip 0.03": ("sequence", "asymmetric", 0.03, "none"),
    "PPO: token ratios, clip 0.2": ("token", "asymmetric", 0.2, "none"),
}
_PANELS = {"result": "result words", "style": "style words"}


def parts_at_reuse(
    policy, task, rollouts: Rollouts, path: Float[Tensor, "times1 B T"], times: int = 1
) -> pd.DataFrame:
    """What moves classes of tokens under each objective of AT_REUSE, after some epochs on a batch.

    Equal weights split a push into signal and noise (`theory.decomposition`). Weights w add a third
    part: with wbar, the equal weight that is nearest in the squares of w A,

        sum_j w_j A_j (e_y - p)  =  wbar (signal + noise)           equal weights
                                  + sum_j (w_j - wbar) A_j (e_y - p)  bias of unequal weights

    Scores, values and changes are those of the policy that sampled, so that nothing but the weights
    differs.

    path: as from `reuse_path`.  Columns panel (the class), category (the objective), part, order,
    and share of the class's squared movement under equal weights, so that shares add up to how much
    less or more an objective moves.
    """
    pushes, tables = Pushes(policy, rollouts, exact_values(policy, task, rollouts)), []
    split, mask = pushes.split(_RULE, 0), pushes.mask
    advantages = rule_advantages(policy, rollouts, _RULE, pushes.values, 0)[mask] / len(rollouts)
    tokens, context = rollouts.completion_ids[mask], pushes.context[mask]
    for name, settings in AT_REUSE.items():
        weights = token_weights(
            rollouts, path[0] if name == EQUAL_WEIGHTS else path[times], *settings
        )[mask].to(advantages)
        equal = float((weights * advantages.square()).sum() / advantages.square().sum())
        unequal = realised_pushes((weights - equal) * advantages, tokens, context, pushes.probs)
        scaled = [equal * part for part in (split.signal, split.bias, split.noise)]
        weighed = PushParts(scaled[0], scaled[1] + unequal, scaled[2], equal * split.scale)
        shares = measure_parts(pushes, weighed, _RULE, None, PARTS_TOKENS).shares
        table = parts_table(shares[shares["category"].isin(_PANELS)]).drop(columns="size")
        tables.append(table.assign(panel=table["category"], category=name))
    table = pd.concat(tables, ignore_index=True)
    base = table[table["category"] == EQUAL_WEIGHTS].groupby("panel")["change_rms"].first()
    share = table["share"] * (table["change_rms"] / table["panel"].map(base)) ** 2
    table = table.assign(share=share, panel=table["panel"].map(_PANELS))
    return table[["panel", "category", "part", "order", "share"]]
