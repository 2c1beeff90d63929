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
    table = runs()
    finished = table[table["state"] == "finished"].head(MAX_LISTED)
    folder = runs_folder().resolve()
    return [
        (f"{row.run} · {row.policy} · {row.task} · reward {row.reward:.2f}", folder / row.run)
        for row in finished.itertuples()
    ]


def run_tables(runs: Iterable) -> dict[str, pd.DataFrame]:
    """Curves and outcomes of the finished runs among some.

    curves: setting, seed, run, step, reward (where a batch was sampled).
    outcomes: setting, seed, run and OUTCOMES, a row per finished run.
    setting: the fields in which the runs differ, other than seed and name, "" if in none.

    Raises ValueError if none has finished, or if two of them share setting and seed.
    """
    finished = [run for run in runs if run.status()["state"] == "finished"]
    if not finished:
        raise ValueError("none of the runs has finished; wait for one, or resume it.")
    settings = _settings([run.config for run in finished])
    curves = []
    outcomes = []
    for run, setting in zip(finished, settings, strict=True):
        label = {"setting": setting, "seed": run.config.seed, "run": run.folder.name}
        # steps that reuse a batch log no reward
        sampled = run.metrics().dropna(subset="reward")[["step", "reward"]]
        curves.append(sampled.assign(**label))
        held_out = run.evaluation().set_index("label")["mean"]
        outcomes.append(
            {
                **label,
                "area": sampled["reward"].mean(),
                "end": sampled["reward"].tail(END_WINDOW).mean(),
                "heldout": held_out.get("after", float("nan")),
            }
        )
    table = pd.DataFrame(outcomes)
    repeated = table[table.duplicated(["setting", "seed"])]
    if len(repeated):
        first = repeated.iloc[0]
        name = f"{first['setting'] or 'the same setting'}, seed {first['seed']}"
        raise ValueError(f"two runs have {name}; leave one of them out.")
    return {"curves": pd.concat(curves, ignore_index=True), "outcomes": table}


def compare_settings(outcomes: pd.DataFrame, outcome: str = "area") -> dict:
    """Effect of each setting against the baseline, the first in the table, over common seeds.

    pairs: setting, seed, difference.
    effects: setting, mean, low, high (95 % t interval over seeds; NaN for a single one), seeds,
    verdict: "higher" or "lower" if the interval excludes 0 and seeds are MIN_SEEDS or more, else
    "can't be told".

    Raises ValueError for an unknown outcome, and where there is nothing to compare.
    """
    baseline, *others = dict.fromkeys(outcomes["setting"])
    require_one_of("outcome", outcome, tuple(OUTCOMES))
    if not others:
        raise ValueError("the runs have one setting; a comparison needs two.")
    if outcomes[outcome].isna().any():
        raise InvalidValue(
            "outcome", outcome, "measured in every run: set eval_prompts, or choose another"
        )
    by_seed = outcomes.pivot(index="seed", columns="setting", values=outcome)
    pairs = []
    effects = []
    for setting in others:
        # a seed that one of the two lacks gives no difference
        difference = (by_seed[setting] - by_seed[baseline]).dropna()
        if difference.empty:
            raise ValueError(
                f"{setting} and {baseline} have no seed in common, so nothing can be paired."
            )
        seeds = len(difference)
        if seeds > 1:
            mean, low, high = t_interval(difference)
        else:
            mean, low, high = difference.iloc[0], float("nan"), float("nan")
        effects.append((setting, mean, low, high, seeds, _verdict(low, high, seeds)))
        pairs.append(difference.rename("difference").reset_index().assign(setting=setting))
    return {
        "pairs": pd.concat(pairs, ignore_index=True),
        "effects": pd.DataFrame(effects, columns=EFFECTS),
    }


def _verdict(low: float, high: float, seeds: int) -> str:
    """The word for an interval of differences; few seeds decide nothing."""
    if seeds >= MIN_SEEDS and low > 0:
        return "higher"
    if seeds >= MIN_SEEDS and high < 0:
        return "lower"
    return "can't be told"


def comparison_chart(
    curves: pd.DataFrame, pairs: pd.DataFrame, effects: pd.DataFrame, outcome: str = "area"
) -> alt.VConcatChart:
    """Reward by step above, and below it differences from the baseline.

    curves: of `run_tables`.  pairs, effects: of `compare_settings`.  outcome: what the differences
    are of.
    """
    settings = list(dict.fromkeys(curves["setting"]))
    # beside the upper chart stand labels of its axis, beside the lower one names of settings
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
        _verdict_title(effects, baseline),
        f"differences of the {OUTCOMES[outcome]}; tick: one seed; dot and bar: mean, 95 % interval",
        caption,
    )
    return alt.vconcat(above, below).properties(description=f"{above.description} {caption}")


def _verdict_title(effects: pd.DataFrame, baseline: str) -> str:
    """What the intervals say of one setting, or that several are compared."""
    if len(effects) != 1:
        return f"Difference from {baseline}, paired by seed"
    setting, verdict = effects.iloc[0][["setting", "verdict"]]
    field, _, value = setting.partition("=")
    if baseline.startswith(f"{field}=") and "," not in setting:
        setting = value
        baseline = baseline.removeprefix(f"{field}=")
    if verdict not in ("higher", "lower"):
        return f"Paired by seed, {setting} can't be told from {baseline}"
    return f"Paired by seed, {setting} is {verdict} than {baseline}"


def _curves_title(curves: pd.DataFrame) -> str:
    """Under how many settings the mean reward is higher in the last quarter than in the first."""
    quarter = curves["step"].max() / 4
    first = curves[curves["step"] <= max(quarter, 1)].groupby("setting")["reward"].mean()
    last = curves[curves["step"] > 3 * quarter].groupby("setting")["reward"].mean()
    rising = int((last > first).sum())
    settings = curves["setting"].nunique()
    if settings == 1:
        return "Sampled reward rises" if rising else "Sampled reward does not rise"
    if rising == settings:
        return (
            f"Sampled reward rises under {'both' if settings == 2 else f'all {settings}'} settings"
        )
    return f"Sampled reward rises under {rising or 'none'} of {settings} settings"


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
        _curves_title(curves),
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
    # each config as one level of names: {field: value}
    flat = []
    for config in configs:
        values = asdict(config)
        options = values.pop("task_options")
        trainer = values.pop("trainer")
        del values["seed"], values["name"]
        flat.append({**values, **options, **trainer})

    varied = []
    for key in dict.fromkeys(key for values in flat for key in values):
        # as JSON, since lists and dicts cannot be in a set
        if len({json.dumps(values.get(key), default=str) for values in flat}) > 1:
            varied.append(key)
    return [", ".join(f"{key}={values[key]}" for key in varied if key in values) for values in flat]
