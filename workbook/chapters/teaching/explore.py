"""The dial of opposition of chapter 07: a slider over runs of one policy and measured ends."""

import pandas as pd

from workbook.chapters.teaching.charts import CHOSEN, FULL, opposition_chart
from workbook.chapters.teaching.live import end_values
from workbook.views.explorer import Explorer, slider
from workbook.views.measured import measured_table


def compute_opposition(
    noise: pd.DataFrame, runs: pd.DataFrame, share: float = 0.0
) -> dict[str, pd.DataFrame]:
    """Tables of `opposition_chart` at one share of the group's mean.

    noise: of `gradient_noise`.  runs: of `train_shares`, whose shares are those that can be chosen.
    """
    ends = end_values(runs.rename(columns={"share": "rule"}))
    nearest = (noise["share"] - share).abs().idxmin()
    row = {"share": share, "noise": noise["noise"][nearest], "lead": ends[share] - ends[1.0]}
    lines = [
        runs[runs["share"] == kept].assign(line=name)
        for kept, name in ((1.0, FULL), (share, CHOSEN))
    ]
    return {
        "noise": noise,
        "chosen": pd.DataFrame([row | {"end": ends[share]}]),
        "run": pd.concat(lines, ignore_index=True)[["batch", "value", "line"]],
        "measured": measured_ends(share),
    }


def measured_ends(share: float) -> pd.DataFrame:
    """Rows of teaching/opposition at one share: world, mean, low, high; all 0 at a share of 1."""
    table = measured_table("teaching/opposition")
    if share == 1:
        ends = dict.fromkeys(("mean", "low", "high"), 0.0)
        return table[["world"]].drop_duplicates().assign(**ends).reset_index(drop=True)
    chosen = table[table["share"] == share]
    return chosen[["world", "mean", "low", "high"]].reset_index(drop=True)


def describe_opposition(chosen: pd.DataFrame, **_) -> str:
    """The setting in a sentence."""
    row = chosen.iloc[0]
    return (
        f"Subtract {row['share']:g} of the group's mean: noise per signal is {row['noise']:.2f} of"
        f" GRPO's, and this policy ends at {row['end']:.2f}, {row['lead']:+.2f} from GRPO's end."
    )


def explore_opposition(noise: pd.DataFrame, runs: pd.DataFrame) -> Explorer:
    """A slider over the share of the mean: noise and a run of one policy, and measured ends.

    noise, runs: as in `compute_opposition`.
    """
    return Explorer(
        compute_opposition,
        opposition_chart,
        {"share": slider(0.0, 0.0, 1.0, 0.25, "share of the mean subtracted")},
        describe_opposition,
        {"noise": noise, "runs": runs},
        presets={
            "none: bad rollouts push nothing": {"share": 0.0},
            "half": {"share": 0.5},
            "all: GRPO": {"share": 1.0},
        },
    )
