"""Claims about credit recovered, all ours: how much of a step is its own prompts' credit, the rest,
what changes that.

What each row measures, and against which number, stands in
data/results/recovered/registration.yaml. Curves over all
settings: `workbook.chapters.recovered.explore`.
"""

from functools import partial

import numpy as np
import pandas as pd

from workbook.studies.record import Tables
from workbook.studies.recovered.study import GROUP_SIZE, GROUP_SIZES, PROMPTS, RULE

STUDY = "recovered"


def chosen(table: pd.DataFrame, **setting) -> pd.DataFrame:
    """Means of one setting over a unit's draws, a row per seed; ValueError where a draw has none or
    several rows.
    """
    rows = table[np.logical_and.reduce([table[name] == value for name, value in setting.items()])]
    if rows.empty or rows.duplicated([name for name in ("seed", "draw") if name in rows]).any():
        raise ValueError(
            f"the tables of credit recovered have {len(rows)} rows of {setting}; one a draw is"
            " needed."
        )
    return rows.groupby("seed").mean(numeric_only=True)


def update_value(
    tables: Tables, column: str, rule: str = RULE, table: str = "update", **more
) -> pd.Series:
    """A number of the update in the weights' space, per unit."""
    setting = {"axis": "rule", "prompts": PROMPTS, "group_size": GROUP_SIZE, "rule": rule}
    return chosen(tables[f"{STUDY}/{table}"], **setting | more)[column]


def part_share(
    tables: Tables, column: str = "signal", category: str = "all", rule: str = RULE
) -> pd.Series:
    """Share of a class's squared movement, per unit."""
    return update_value(tables, column, rule, "shares", category=category)


def residual_off_the_line(tables: Tables) -> pd.Series:
    """Mean over group sizes of |log2 of noise per signal over what 1 / (G - 1) makes of its value
    at GROUP_SIZE|.
    """
    table = tables[f"{STUDY}/update"]
    table = table[(table["axis"] == "group_size") & (table["rule"] == RULE)]
    wide = table.pivot_table(index="seed", columns="group_size", values="noise_per_signal")[
        list(GROUP_SIZES)
    ]
    line = pd.Series({size: (GROUP_SIZE - 1) / (size - 1) for size in GROUP_SIZES})
    gap = np.log2(wide.div(wide[GROUP_SIZE], axis=0) / line).drop(columns=GROUP_SIZE)
    return gap.abs().mean(axis=1)


def few_prompts(tables: Tables) -> pd.Series:
    """Cosine with other prompts' gradient at 4 prompts of 32 rollouts minus that at 64 prompts of
    2, per unit.
    """
    few, many = (
        update_value(tables, "cosine_held_out", axis="equal", prompts=prompts, group_size=size)
        for prompts, size in ((4, 32), (64, 2))
    )
    return few - many


def against_rule(tables: Tables, rule: str) -> pd.Series:
    """Share of the update in the weights' space, one rule's minus that of RULE, per unit."""
    return update_value(tables, "signal", rule) - update_value(tables, "signal")


MEASURES = {
    STUDY: {
        "S1": part_share,
        "S1 weights": partial(update_value, column="signal"),
        "S1 oracle": partial(part_share, rule="oracle"),
        "S1 coupling": partial(part_share, column="coupling"),
        "S1 result": partial(part_share, category="result"),
        "S2": partial(part_share, column="noise", category="style"),
        # needed, over those used
        "S3": lambda tables: update_value(tables, "oracle_rollouts") / (PROMPTS * GROUP_SIZE),
        "S3 cosine": partial(update_value, column="expected_cosine"),
        "S4": residual_off_the_line,
        "S4 held out": few_prompts,
        "S5": partial(against_rule, rule="positive_only"),
        "S5 negative": partial(against_rule, rule="negative_only"),
        "S5 bias": partial(update_value, column="expected_cosine", rule="positive_only"),
    },
}
