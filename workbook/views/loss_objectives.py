"""One token under several objectives: its ratio, whether a clip stops it, its weight and its push, side by side.

The formula is `loss_term`'s, with each objective's usual settings. A ratio per rollout is the geometric mean of its
tokens' ratios, so a table of token ratios has both.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbook.views.loss_pushes import DEFAULTS, batch_normalizer
from workbook.views.loss_slopes import UNCOUNTED, ratio_level, stopped_by
from workbook.views.loss_term import loss_term

OBJECTIVES = {  # with the settings of their papers, as TRL names them
    "grpo": {"loss_type": "grpo"},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28},
    "gspo": {"loss_type": "grpo", "level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
}
COLUMNS = ["objective", "ratio", "clipped", "weight", "push"]


def objective_table(table: pd.DataFrame, group, index: int, objectives: dict[str, dict] | None = None) -> pd.DataFrame:
    """A row per objective for one token: its ratio, what clips it, its weight (slope / normalizers) and its push.

    table: a token table with group, rollout, position and advantage, and the tokens' ratios where they are known (else
    1, as in the first step after sampling).  index: of the token among the rows of the group.  An objective that the
    table's numbers do not allow is left out: a ratio per token, where one per rollout was recorded.

    >>> rows = pd.DataFrame({"group": 0, "rollout": [0, 0, 1], "position": [0, 1, 0], "advantage": [1.0, 1.0, -1.0]})
    >>> objectives = objective_table(rows.assign(ratio=[1.5, 1.0, 1.0]), 0, 0)
    >>> objectives.set_index("objective")["clipped"].to_dict()
    {'grpo': 'high', 'dr_grpo': 'high', 'dapo': 'high', 'gspo': 'high', 'cispo': 'no'}
    """
    own = table.attrs.get("objective")
    level = ratio_level(own) if isinstance(own, dict) else "token"
    rows, pushes = table[table["group"] == group].reset_index(drop=True), []
    for name, settings in (OBJECTIVES if objectives is None else objectives).items():
        objective = DEFAULTS | settings
        if (level, ratio_level(objective)) == ("sequence", "token"):
            continue
        objective["normalizer"] = batch_normalizer(table, objective["loss_type"], objective)
        pushes.append({"objective": name} | _row(_at_level(rows, ratio_level(objective)), index, objective))
    return pd.DataFrame(pushes, columns=COLUMNS)


def _row(rows: pd.DataFrame, index: int, objective: dict) -> dict:
    term, advantage = loss_term(rows, index, objective), float(rows["advantage"].iloc[index])
    clipped = next((side for side in ("high", "low") if f"clipped (clip {side})" in term.reason), "no")
    if term.factors.get("mask", 1.0) == 0:
        clipped = "masked"
    weight = term.push / advantage if advantage else np.nan
    return {"ratio": float(rows["ratio"].iloc[index]), "clipped": clipped, "weight": weight, "push": term.push}


def _at_level(rows: pd.DataFrame, level: str) -> pd.DataFrame:
    """The rows with a ratio per token, or with each rollout's geometric mean of the tokens that count."""
    rows = rows if "ratio" in rows else rows.assign(ratio=1.0)
    if level == "token":
        return rows
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(rows["ratio"].astype(float)).where(~stopped_by(rows).isin(UNCOUNTED))
    return rows.assign(ratio=np.exp(logs.groupby(rows["rollout"]).transform("mean")))
