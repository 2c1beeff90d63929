"""Runs side by side: their curves by setting and seed, and what a setting changes, paired by seed.

Runs of one seed share their prompts and random numbers, so each seed gives one difference.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import altair as alt
import pandas as pd

from workbook.app.runs import END_WINDOW
from workbook.app.sweeps import runs
from workbook.messages import InvalidValue, require_one_of
from workbook.places import runs_folder
from workbook.statistics import t_interval
from workbook.training.config import RunConfig
from workbook.views.figures import forest, rule
from workbook.views.style import NEUTRAL, SERIES, WIDTH, finish, label_width, titled

OUTCOMES = {
    "area": "mean sampled reward over the run",
    "end": f"mean sampled reward of the last {END_WINDOW} batches",
    "heldout": "mean held-out reward after training",
}
MAX_LISTED = 50  # runs
# with fewer, 2**(1 - n), the chance that all differences fall on one side by luck, exceeds 0.05
MIN_SEEDS = 6
EFFECTS = ("setting", "mean", "low", "high", "seeds", "verdict")


def finished_runs() -> list[tuple[str, Path]]:
    """Finished runs of the workspace, the newest first: a label and the folder of each."""
    table, folder = runs(), runs_folder().resolve()
    rows = table[table["state"] == "finished"].head(MAX_LISTED).itertuples()
    return [
        (f"{row.run} · {row.policy} · {row.task} · reward {row.reward:.2f}", folder / row.run)
        for row in rows
    ]


def run_tables(runs: Iterable) -> dict[str, pd.DataFrame]:
    """Curves and outcomes of runs; ValueError if two finished runs share setting and seed, or none
    has finished.

    curves: setting, seed, run, step, reward (where a batch was sampled).  outcomes: setting, seed,
    run and OUTCOMES, a row per finished run.  setting: the fields in which the runs differ, other
    than seed and name, "" if in none.
    """
    if not (finished := [run for run in runs if run.status()["state"] == "finished"]):
        raise ValueError("none of the runs has finished; wait for one, or resume it.")
    curves, outcomes = [], []
    for run, setting in zip(finished, _settings([run.config for run in finished]), strict=True):
        rows = run.metrics().dropna(subset="reward")[["step", "reward"]]
        label = {"setting": setting, "seed": run.config.seed, "run": run.folder.name}
        heldout = run.evaluation().set_index("label")["mean"].get("after", float("nan"))
        ends = {
            "area": rows["reward"].mean(),
            "end": rows["reward"].tail(END_WINDOW).mean(),
            "heldout": heldout,
        }
        curves.append(rows.assign(**label))
        outcomes.append(label | ends)
    table = pd.DataFrame(outcomes)
    if (double := table[table.duplicated(["setting", "seed"])]).size:
        name = f"{double['setting'].iloc[0] or 'the same setting'}, seed {double['seed'].iloc[0]}"
        raise ValueError(f"two runs have {name}; leave one of them out.")
    return {"curves": pd.concat(curves, ignore_index=True), "outcomes": table}


def compare_settings(outcomes: pd.DataFrame, outcome: str = "area") -> dict:
    """Effect of each setting against the first one in the table, the baseline, over the seeds that
    both have.

    pairs: setting, seed, difference.  effects: setting, mean, low, high (95 % t interval over
    seeds; NaN for a single one), seeds, verdict: "higher" or "lower" if the interval excludes 0 and
    seeds are MIN_SEEDS, else "can't be told". ValueError for an unknown outcome, or where there is
    nothing to compare.
    """
    baseline, *others = dict.fromkeys(outcomes["setting"])
    require_one_of("outcome", outcome, tuple(OUTCOMES))
    if not others:
        raise ValueError("the runs have one setting; a comparison needs two.")
    if outcomes[outcome].isna().any():
        raise InvalidValue(
            "outcome", outcome, "measured in every run: set eval_prompts, or choose another"
        )
    sides = outcomes.pivot(index="seed", columns="setting", values=outcome)
    pairs, effects = [], []
    for setting in others:
        gap = (sides[setting] - sides[baseline]).dropna()
        if gap.empty:
            raise ValueError(
                f"{setting} and {baseline} have no seed in common, so nothing can be paired."
            )
        mean, low, high = (
            t_interval(gap) if len(gap) > 1 else (gap.iloc[0], float("nan"), float("nan"))
        )
        sign = "higher" if low > 0 else "lower" if high < 0 else None
        effects.append(
            (
                setting,
                mean,
                low,
                high,
                len(gap),
                sign if sign and len(gap) >= MIN_SEEDS else "can't be told",
            )
        )
        pairs.append(gap.rename("difference").reset_index().assign(setting=setting))
    return {
        "pairs": pd.concat(pairs, ignore_index=True),
        "effects": pd.DataFrame(effects, columns=EFFECTS),
    }


def comparison_chart(
    curves: pd.DataFrame, pairs: pd.DataFrame, effects: pd.DataFrame, outcome: str = "area"
) -> alt.VConcatChart:
    """Above, reward by step: a thin line per seed, a thick one per setting; below, differences from
    the baseline.

    curves: of `run_tables`.  pairs, effects: of `compare_settings`.  outcome: what the differences
    are of.
    """
    settings = list(dict.fromkeys(curves["setting"]))
    # labels of the axis stand beside the one, names of settings beside the other
    above = reward_curves_chart(curves).properties(width=WIDTH - 55)
    color = alt.Color("setting:N", scale=alt.Scale(domain=settings, range=SERIES), legend=None)
    y = alt.Y("setting:N", sort=settings, title=None).axis(labelLimit=300)
    ticks = (
        alt.Chart(pairs)
        .mark_tick(thickness=2, size=14, opacity=0.8)
        .encode(x="difference:Q", y=y, color=color)
    )
    caption = f"Differences of the {OUTCOMES[outcome]}: {'; '.join(effect_lines(effects))}."
    baseline = next(setting for setting in settings if setting not in set(effects["setting"]))
    below = titled(
        forest(
            effects,
            y,
            alt.X("mean:Q", title="difference in reward").scale(padding=24),
            color=color,
            number="+.3f",
            form="+.3f",
            shown=("seeds", "verdict"),
            under=[rule(0, "x", dashed=True, color=NEUTRAL)],
            over=[
                ticks.encode(
                    tooltip=["setting:N", "seed:N", alt.Tooltip("difference:Q", format="+.3f")]
                )
            ],
            width=WIDTH - 20 - min(label_width(settings), 300),
            height=alt.Step(46),
        ),
        f"Difference from {baseline}, paired by seed",
        f"of the {OUTCOMES[outcome]}; tick: one seed; dot and bar: mean, 95 % interval",
        caption,
    )
    return alt.vconcat(above, below).properties(description=f"{above.description} {caption}")


def reward_curves_chart(curves: pd.DataFrame) -> alt.LayerChart:
    """Reward by step: a thin line per seed, a thick one per setting; curves: of `run_tables`."""
    settings = list(dict.fromkeys(curves["setting"]))
    named = alt.Legend(title=None, orient="bottom", columns=2, labelLimit=320, symbolOpacity=1)
    legend = named if len(settings) > 1 else None
    color = alt.Color("setting:N", scale=alt.Scale(domain=settings, range=SERIES), legend=legend)
    line = alt.Chart(curves).encode(
        x=alt.X("step:Q", title="optimizer step").axis(tickMinStep=1), color=color
    )
    mean = alt.Y("mean(reward):Q", title="mean reward")
    hints = [
        "setting:N",
        "step:Q",
        alt.Tooltip("mean(reward):Q", format=".3f", title="mean reward"),
    ]
    reward = alt.Y("reward:Q", title="mean reward").scale(zero=False)
    return finish(
        alt.layer(
            line.mark_line(size=1, opacity=0.35).encode(y=reward, detail=alt.Detail("seed:N")),
            line.mark_line(size=2.6).encode(y=mean),
            line.mark_circle(size=24, opacity=1).encode(y=mean, tooltip=hints),
        ),
        "Reward of the sampled rollouts, by setting",
        "thin: one seed; thick: their mean",
        (
            f"{len(settings)} settings: {'; '.join(settings)}."
            if len(settings) > 1
            else "One setting."
        ),
    )


def effect_lines(effects: pd.DataFrame) -> list[str]:
    """A phrase per effect of `compare_settings`, with its interval and verdict."""
    lines = []
    for row in effects.itertuples():
        interval = (
            f" ({row.low:+.3f} to {row.high:+.3f}) over {row.seeds} seeds"
            if row.seeds > 1
            else " over one seed"
        )
        lines.append(f"{row.setting}: {row.mean:+.3f}{interval}, {row.verdict}")
    return lines


def _settings(configs: list[RunConfig]) -> list[str]:
    """The fields in which each config differs from others, seed and name aside: "optim=sgd,
    learning_rate=0.25".
    """
    flat = []
    for config in configs:
        values = asdict(config)
        inner = values.pop("task_options") | values.pop("trainer")
        flat.append(
            {key: value for key, value in values.items() if key not in ("seed", "name")} | inner
        )
    keys = dict.fromkeys(key for values in flat for key in values)
    varied = [
        key
        for key in keys
        if len({json.dumps(values.get(key), default=str) for values in flat}) > 1
    ]
    return [", ".join(f"{key}={values[key]}" for key in varied if key in values) for values in flat]
