"""The cancellation index (H5): how much of the signal on a token is left after opposing pushes are summed.

Plain, per token type of a prompt's group:   sum of A over its occurrences / sum of |A|
Coupling-weighted, per token i:              sum_j A_j K_ij / sum_j |A_j K_ij|   over the tokens j of its group

Both lie in [-1, 1]; 0 is full cancellation. `predicts` asks what they are good for: do they foretell dlogp, and the
known credit, better than a token's own advantage, its confidence or its frequency alone?
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from scipy.stats import rankdata

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
    """How well each predictor ranks the target within each prompt: columns group, predictor, measure, value.

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
                if (y > 0).any() and (y < 0).any():
                    rows.append((name, predictor, "AUROC", _auroc(x[y > 0], x[y < 0])))
    return pd.DataFrame(rows, columns=["group", "predictor", "measure", "value"])


def predicts(table: pd.DataFrame, predictors: Sequence[str], target: str = "dlogp") -> pd.DataFrame:
    """`predictions`, summarized: columns predictor, measure, mean, low, high (an interval over prompts), prompts."""
    rows = [
        {"predictor": predictor, "measure": measure, **bootstrap_mean(found["value"])._asdict(), "prompts": len(found)}
        for (predictor, measure), found in predictions(table, predictors, target).groupby(
            ["predictor", "measure"], sort=False
        )
    ]
    return pd.DataFrame(rows, columns=["predictor", "measure", "mean", "low", "high", "prompts"])


def _auroc(above: np.ndarray, below: np.ndarray) -> float:
    """The chance that a draw of `above` is larger than one of `below`, ties counting half.

    >>> _auroc(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
    0.875
    """
    ranks = rankdata(np.concatenate([above, below]))
    wins = ranks[: len(above)].sum() - len(above) * (len(above) + 1) / 2
    return float(wins / (len(above) * len(below)))
