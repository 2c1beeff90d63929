"""Figure 11 of paper H, computed on the spot: the gap in value while updates repeat one batch
(chapter 14).
"""

from collections.abc import Callable

import altair as alt
import numpy as np
import pandas as pd
import torch

from workbook.chapters.grading import answer_of, grade
from workbook.policies.models import private_copy
from workbook.probes.step import MOVED, matched_lr, optimizer_of, update
from workbook.probes.value_gaps import SMALL_NATS, cell_gap, rms_dlogp
from workbook.probes.values import exact_pool
from workbook.rollouts.likelihood import logps
from workbook.rollouts.sample import Rollouts
from workbook.views.charts import curve_chart

# nats that a token must move, whatever the movement so far
FIXED_NATS = 0.001
RULES = ["one limit for all updates, 0.001 nats", "a tenth of the movement so far"]


def repeat_updates(
    policy, task, rollouts: Rollouts, gap: Callable | None = None, updates: int = 8
) -> pd.DataFrame:
    """Update a copy of the policy on one batch again and again, and measure the gap in value.

    gap: takes (tokens, limit), as `check_value_gap` says; `cell_gap` where it is None or returns
    None.

    Columns step, rule (of RULES) and mean, the gap in the reward's unit. Plain SGD, whose first
    step moves the batch's tokens by 0.01 nats, root mean square.
    """
    pool, tokens = exact_pool(policy, task, rollouts)
    tokens["cell"] = tokens.groupby(["group", "reward"]).ngroup()
    places = torch.tensor(tokens[["rollout", "position"]].to_numpy(copy=True)).unbind(1)
    mine = private_copy(policy)
    before = logps(mine, pool)
    optimizer = optimizer_of(mine, "sgd", matched_lr(policy, pool, "sgd", SMALL_NATS))
    rows = []
    for step in range(1, updates + 1):
        update(mine, pool, optimizer)
        change = (logps(mine, pool) - before)[places]
        now = tokens.assign(dlogp=change.double().cpu().numpy())
        for rule, limit in zip(RULES, (FIXED_NATS, MOVED * rms_dlogp(now)), strict=True):
            mean = gap(now, limit) if gap is not None else None
            if mean is None:
                mean = cell_gap(now, ("cell",), eps=limit)
            rows.append((step, rule, float(mean)))
    return pd.DataFrame(rows, columns=["step", "rule", "mean"])


def repeated_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Draw the gap over updates on one batch, a line per rule of what counts as moved."""
    return curve_chart(
        table.assign(low=np.nan, high=np.nan),
        "step",
        series="rule",
        names=RULES,
        log2=False,
        x_title="updates on the same batch",
        y_title="gap in exact value",
        title="On this batch eight updates did not widen the gap",
        subtitle="boosted minus suppressed tokens of one policy, by what counts as moved",
        reference=[(0.0, "no gap")],
        spread=None,
    )


def check_value_gap(function) -> None:
    """Check a function (tokens, limit) -> the gap in value of tokens that moved beyond the limit.

    tokens: a table with the columns cell (tokens that may be compared), dlogp and value.

    >>> check_value_gap(lambda tokens, limit: 0.0)
    Not quite: it should be 0.3857, but yours is 0.
    """
    tokens = pd.DataFrame(
        {
            "cell": [0, 0, 0, 0, 1, 1, 2, 2],
            "dlogp": [0.5, 0.4, -0.3, 0.01, 0.6, -0.2, 0.9, 0.3],
            "value": [0.9, 0.7, 0.2, 0.0, 0.6, 0.5, 1.0, 0.8],
        }
    )
    limit = 0.1
    moved = tokens[tokens["dlogp"].abs() > limit]
    is_boosted = moved["dlogp"] > 0
    value = moved["value"]
    by_cell = [value[is_boosted & (moved["cell"] == cell)].mean() for cell in (0, 1)]
    lower = [value[~is_boosted & (moved["cell"] == cell)].mean() for cell in (0, 1)]
    right = cell_gap(tokens, ("cell",), eps=limit)
    mistakes = {
        "tokens that moved by less than the limit count, too, in yours.": cell_gap(
            tokens, ("cell",), eps=0.0
        ),
        "compare within a cell; yours compares all boosted with all suppressed tokens.": float(
            value[is_boosted].mean() - value[~is_boosted].mean()
        ),
        "weight each cell by n+ n- / (n+ + n-); yours takes the plain mean of cells.": float(
            np.mean(np.subtract(by_cell, lower))
        ),
        "it is boosted minus suppressed, and yours is the reverse.": -right,
    }
    praise = "Right: cells that hold both kinds are compared, each with its weight."
    grade(answer_of(function, tokens.copy(), limit), right, mistakes, praise)
