"""The cancellation index (H5): the signal that remains on a token after opposing pushes are summed.

Plain, per token type of a prompt's group:   sum of A over its occurrences / sum of |A|
Coupling-weighted, per token i:              sum_j A_j K_ij / sum_j |A_j K_ij|   over the tokens j of its group

Both lie in [-1, 1]; 0 is full cancellation. `predicts` asks what they are good for: do they predict dlogp, and the
known credit, better than a token's own advantage, its confidence or its frequency alone?
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from scipy.stats import mannwhitneyu, rankdata

from workbook.rollouts.sample import Rollouts
from workbook.rollouts.states import OutputStates, output_states
from workbook.statistics import bootstrap_mean


def cancellation_index(policy, rollouts: Rollouts) -> pd.DataFrame:
    """The token table with columns type_index, coupled_index, coupled_push and frequency.

    type_index and coupled_index: as in the module's docstring, 0 where nothing pushes.  coupled_push: sum_j A_j K_ij,
    the first-order change of log-probability per unit of learning rate through the output layer, in its own group.
    frequency: share of the group's tokens that are this token.

    Memory: N x N for the N tokens of one group at a time.  The policy is only read.
    """
    table = rollouts.token_table()
    states = output_states(policy, rollouts)
    groups = table.astype({"advantage": float}).groupby(["group", "token_id"])["advantage"]
    total = groups.transform(lambda advantages: advantages.abs().sum())
    table["type_index"] = np.where(total > 0, groups.transform("sum") / total.where(total > 0, 1.0), 0.0)
    table["frequency"] = groups.transform("size") / table.groupby("group")["advantage"].transform("size")
    coupled = pd.concat([_coupled(states, rows) for _, rows in table.groupby("group")])
    return table.join(coupled)


def _coupled(states: OutputStates, rows: pd.DataFrame) -> pd.DataFrame:
    here = torch.tensor(rows.index.to_numpy(), device=states.tokens.device)
    kernel = states.select(here).kernel().double()
    pushes = kernel * torch.tensor(rows["advantage"].to_numpy(), dtype=torch.float64, device=kernel.device)
    net, size = pushes.sum(1), pushes.abs().sum(1)
    index = torch.where(size > 0, net / size.clamp(min=torch.finfo(size.dtype).tiny), 0.0)
    return pd.DataFrame({"coupled_push": net.cpu(), "coupled_index": index.cpu()}, index=rows.index)


def predictions(table: pd.DataFrame, predictors: Sequence[str], target: str = "dlogp") -> pd.DataFrame:
    """Rank agreement of each predictor with the target within each prompt: columns group, predictor, measure, value.

    measure "rank correlation": Spearman's rho; "AUROC": the chance that a token whose target is above 0 has the larger
    predictor than one below 0 (1/2: no better than chance). Prompts in which predictor or target does not vary are
    left out.
    """
    rows = []
    for predictor in predictors:
        for name, group in table.groupby("group"):
            x, y = group[predictor].to_numpy(dtype=float), group[target].to_numpy(dtype=float)
            if np.ptp(x) > 0 and np.ptp(y) > 0:
                rho = np.corrcoef(rankdata(x), rankdata(y))[0, 1]
                rows.append((name, predictor, "rank correlation", rho))
                above, below = x[y > 0], x[y < 0]
                if len(above) and len(below):
                    wins = mannwhitneyu(above, below, method="asymptotic").statistic  # ties count half
                    rows.append((name, predictor, "AUROC", float(wins / (len(above) * len(below)))))
    return pd.DataFrame(rows, columns=["group", "predictor", "measure", "value"])


def predicts(table: pd.DataFrame, predictors: Sequence[str], target: str = "dlogp") -> pd.DataFrame:
    """`predictions`, summarized: columns predictor, measure, mean, low, high (an interval over prompts), prompts."""
    by_measure = predictions(table, predictors, target).groupby(["predictor", "measure"], sort=False)["value"]
    rows = [
        {"predictor": predictor, "measure": measure, **bootstrap_mean(values)._asdict(), "prompts": len(values)}
        for (predictor, measure), values in by_measure
    ]
    return pd.DataFrame(rows, columns=["predictor", "measure", "mean", "low", "high", "prompts"])
