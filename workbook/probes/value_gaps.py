"""Gaps in exact value between the tokens that a step boosts and those that it suppresses (H7, H8, H9).

gap = mean value of boosted tokens - mean value of suppressed ones, among tokens that are alike in chosen columns
"""

from __future__ import annotations

import pandas as pd
import torch

from workbook.probes.dose import MOVED
from workbook.probes.step import logps
from workbook.probes.values import chain_values
from workbook.rollouts.sample import Rollouts

Pool = tuple[Rollouts, pd.DataFrame]  # rollouts, and rows of their token table with values


def exact_pool(policy, task, rollouts: Rollouts) -> Pool:
    """Rollouts and their token table with value, value_before (exact, in reward) and credit, the one less the other.

    Tokens after a word that the grammar does not admit are left out: their value is 0, whatever they are.
    """
    values, table = chain_values(policy, task, rollouts), rollouts.token_table()
    place = torch.tensor(table[["rollout", "position"]].to_numpy(copy=True)).unbind(1)
    after, before = (part.cpu()[place].double().numpy() for part in (values.after, values.before))
    table = table.assign(value=after, value_before=before, credit=after - before)
    return rollouts, table[values.inside.cpu()[place].numpy()].reset_index(drop=True)


def pool_change(policy, pool: Pool, before: torch.Tensor) -> pd.DataFrame:
    """The pool's table with dlogp: what its tokens' log-probabilities are now, less those in `before` (B, T)."""
    rollouts, table = pool
    change = (logps(policy, rollouts) - before).double().cpu().numpy()
    return table.assign(dlogp=change[table["rollout"].to_numpy(), table["position"].to_numpy()])


def cell_gap(table: pd.DataFrame, cells: tuple[str, ...], column: str = "value", eps: float | None = None) -> float:
    """Gap between boosted and suppressed tokens that are alike in the columns `cells`, in the reward's unit.

        gap = sum_c w_c (mean of the boosted - mean of the suppressed) / sum_c w_c,   w_c = n+ n- / (n+ + n-)

    over the cells that hold both: the slope of a regression on "boosted" with a constant for each cell. NaN if none
    holds both.  eps: |dlogp| in nats that a token must exceed; by default `MOVED` times the table's root mean square.

    >>> rows = [(0, 1.0, 1.0), (0, -1.0, 0.25), (1, 1.0, 0.0), (1, 2.0, 0.5)]
    >>> cell_gap(pd.DataFrame(rows, columns=["position", "dlogp", "value"]), ("position",))
    0.75
    """
    eps = MOVED * float((table["dlogp"] ** 2).mean() ** 0.5) if eps is None else eps
    moved = table[table["dlogp"].abs() > eps]
    boosted, keys = moved["dlogp"] > 0, [moved[name] for name in cells]
    up, down = (moved[column].where(side, 0.0).groupby(keys).sum() for side in (boosted, ~boosted))
    n, m = (side.groupby(keys).sum() for side in (boosted, ~boosted))
    weight = n * m / (n + m)
    if not weight.any():
        return float("nan")
    gaps = up / n.clip(lower=1) - down / m.clip(lower=1)  # (cells,)
    return float((gaps * weight).sum() / weight.sum())
