"""Runs side by side: their curves by setting and seed, and what a setting changes, seed by seed.

    run_tables(runs) -> {"curves", "outcomes"}            what runs came to
    compare_settings(outcomes) -> {"pairs", "effects"}    differences from a baseline, paired by seed
    comparison_chart(curves, pairs, effects) -> chart     all of it

Runs of one seed share their prompts and random numbers, so each seed gives one difference.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict

import altair as alt
import pandas as pd

from workbook.statistics import paired_difference
from workbook.training.run_config import RunConfig
from workbook.training.runs import END_WINDOW
from workbook.training.sweep_run import SweepRun
from workbook.views.style import NEUTRAL, SERIES, finish, require

OUTCOMES = {
    "area": "mean sampled reward over the run",
    "end": f"mean sampled reward of the last {END_WINDOW} batches",
    "heldout": "mean held-out reward after training",
}
ENOUGH = 6  # seeds: with fewer, 2**(1 - n), the chance that all differences fall on one side by luck, exceeds 0.05


def run_tables(runs: Iterable) -> dict[str, pd.DataFrame]:
    """Curves and outcomes of runs; a sweep counts as its runs.

    curves: setting, seed, run, step, reward (where a batch was sampled).  outcomes: setting, seed, run and OUTCOMES, a
    row per finished run.  setting: the fields in which the runs differ, other than seed and name, "" if in none.

    Raises ValueError if two finished runs share setting and seed, or none has finished.
    """
    flat = [one for run in runs for one in (run.runs.values() if isinstance(run, SweepRun) else [run])]
    flat = [run for run in flat if run.status()["state"] == "finished"]
    if not flat:
        raise ValueError("none of the runs has finished; wait for one, or resume it.")
    curves, outcomes = [], []
    for run, setting in zip(flat, _settings([run.config for run in flat]), strict=True):
        rows = run.metrics().dropna(subset="reward")[["step", "reward"]]
        label = {"setting": setting, "seed": run.config.seed, "run": run.folder.name}
        heldout = run.evaluation().set_index("label")["mean"].get("after", float("nan"))
        ends = {"area": rows["reward"].mean(), "end": rows["reward"].tail(END_WINDOW).mean(), "heldout": heldout}
        curves.append(rows.assign(**label))
        outcomes.append(label | ends)
    table = pd.DataFrame(outcomes)
    if (double := table[table.duplicated(["setting", "seed"])]).size:
        name = f"{double['setting'].iloc[0] or 'the same setting'}, seed {double['seed'].iloc[0]}"
        raise ValueError(f"two runs have {name}; leave one of them out.")
    return {"curves": pd.concat(curves, ignore_index=True), "outcomes": table}


def compare_settings(outcomes: pd.DataFrame, outcome: str = "area", baseline: str | None = None) -> dict:
    """What each setting changes against a baseline (the first, by default), over the seeds that both have.

    pairs: setting, seed, difference.  effects: setting, mean, low, high (95 %, bootstrap over seeds; NaN for a single
    one), seeds, verdict: "higher" or "lower" if the interval excludes 0 and seeds are ENOUGH, else "can't be told".

    Raises ValueError for an unknown outcome or baseline, or where there is nothing to compare.
    """
    settings = list(dict.fromkeys(outcomes["setting"]))
    baseline = settings[0] if baseline is None else baseline
    if outcome not in OUTCOMES or baseline not in settings:
        raise ValueError(
            f"outcome={outcome!r} must be one of {', '.join(OUTCOMES)}, and baseline={baseline!r} one of "
            f"{'; '.join(settings)}."
        )
    if len(settings) < 2:
        raise ValueError("the runs have one setting; a comparison needs two.")
    if outcomes[outcome].isna().any():
        raise ValueError(f"outcome={outcome!r} was not measured in every run; set eval_prompts, or choose another.")
    values = outcomes.pivot(index="seed", columns="setting", values=outcome)
    pairs, effects = [], []
    for setting in settings:
        both = values[[baseline, setting]].dropna() if setting != baseline else values[[]]
        if setting == baseline:
            continue
        if both.empty:
            raise ValueError(f"{setting} and {baseline} have no seed in common, so nothing can be paired.")
        found = paired_difference(both[setting], both[baseline])
        low, high = (found.low, found.high) if len(both) > 1 else (float("nan"), float("nan"))
        sign = "higher" if low > 0 else "lower" if high < 0 else None
        verdict = sign if sign and len(both) >= ENOUGH else "can't be told"
        effects.append((setting, found.mean, low, high, len(both), verdict))
        pairs.append(
            pd.DataFrame({"setting": setting, "seed": both.index, "difference": both[setting] - both[baseline]})
        )
    columns = ["setting", "mean", "low", "high", "seeds", "verdict"]
    return {"pairs": pd.concat(pairs, ignore_index=True), "effects": pd.DataFrame(effects, columns=columns)}


def comparison_chart(
    curves: pd.DataFrame, pairs: pd.DataFrame, effects: pd.DataFrame, outcome: str = "area"
) -> alt.VConcatChart:
    """Above, reward by step: a thin line per seed, a thick one per setting; below, differences from the baseline.

    curves: of `run_tables`.  pairs, effects: of `compare_settings`.  outcome: what the differences are of.
    """
    require(curves, ("setting", "seed", "step", "reward"), "comparison_chart")
    require(effects, ("setting", "mean", "low", "high", "seeds", "verdict"), "comparison_chart")
    settings = list(dict.fromkeys(curves["setting"]))
    colour = alt.Scale(domain=settings, range=[SERIES[i % len(SERIES)] for i in range(len(settings))])
    legend = alt.Legend(title=None, orient="bottom", columns=2, labelLimit=320, symbolOpacity=1)
    color = alt.Color("setting:N", scale=colour, legend=legend)
    line = alt.Chart(curves).encode(x=alt.X("step:Q", title="optimizer step").axis(tickMinStep=1), color=color)
    reward = alt.Y("reward:Q", title="mean reward").scale(zero=False)
    mean = alt.Y("mean(reward):Q", title="mean reward")
    shown = ["setting:N", "step:Q", alt.Tooltip("mean(reward):Q", format=".3f", title="mean reward")]
    above = finish(
        alt.layer(
            line.mark_line(size=1, opacity=0.35).encode(y=reward, detail=alt.Detail("seed:N")),
            line.mark_line(size=2.6).encode(y=mean),
            line.mark_circle(size=24, opacity=1).encode(y=mean, tooltip=shown),
        ),
        "Reward of the sampled rollouts, by setting",
        "thin: one seed; thick: their mean",
        f"{len(settings)} settings: {'; '.join(settings)}.",
        height=200,
    )
    return alt.vconcat(above, _differences(pairs, effects, outcome, settings, colour)).properties(
        description=f"{above.description} {_told(effects, outcome)}"
    )


def _differences(pairs, effects, outcome: str, settings: list[str], colour: alt.Scale) -> alt.LayerChart:
    baseline = next(setting for setting in settings if setting not in set(effects["setting"]))
    y = alt.Y("setting:N", sort=settings, title=None).axis(labelLimit=300)
    x = alt.X("mean:Q", title="difference in reward").scale(padding=24)
    color = alt.Color("setting:N", scale=colour, legend=None)
    shown = [alt.Tooltip(f"{name}:Q", format="+.3f") for name in ("mean", "low", "high")]
    base = alt.Chart(effects).encode(y=y, color=color, tooltip=["setting:N", *shown, "seeds:Q", "verdict:N"])
    layers = [
        alt.Chart(pd.DataFrame({"zero": [0.0]})).mark_rule(strokeDash=[5, 4], color=NEUTRAL).encode(x="zero:Q"),
        base.transform_filter("isValid(datum.low)")
        .mark_rule(size=4, opacity=0.45)
        .encode(x=alt.X("low:Q", title="difference in reward"), x2="high:Q"),
        alt.Chart(pairs)
        .mark_tick(thickness=2, size=14, opacity=0.8)
        .encode(x="difference:Q", y=y, color=color, tooltip=["seed:N", alt.Tooltip("difference:Q", format="+.3f")]),
        base.mark_point(filled=True, size=80, opacity=1).encode(x=x),
        base.mark_text(dy=-15, fontSize=11).encode(x=x, text=alt.Text("mean:Q", format="+.3f")),
    ]
    subtitle = f"of the {OUTCOMES[outcome]}; tick: one seed; dot and bar: mean, 95 % interval"
    return finish(
        alt.layer(*layers),
        f"Difference from {baseline}, paired by seed",
        subtitle,
        _told(effects, outcome),
        height=alt.Step(46),
    )


def _told(effects: pd.DataFrame, outcome: str) -> str:
    rows = [
        f"{row.setting}: {row.mean:+.3f} ({row.low:+.3f} to {row.high:+.3f}) over {row.seeds} seeds, {row.verdict}"
        for row in effects.itertuples()
    ]
    return f"Differences of the {OUTCOMES[outcome]}: {'; '.join(rows)}."


def _settings(configs: list[RunConfig]) -> list[str]:
    """What tells each config from the others, seed and name aside: "optim=sgd, learning_rate=0.25"."""
    flat = []
    for config in configs:
        values = asdict(config)
        sections = {name: values.pop(name) for name in ("trainer", "task_options")}
        flat.append({key: v for key, v in values.items() if key not in ("seed", "name")} | sections["task_options"])
        flat[-1] |= sections["trainer"]
    keys = dict.fromkeys(key for values in flat for key in values)
    varied = [key for key in keys if len({json.dumps(values.get(key), default=str) for values in flat}) > 1]
    return [", ".join(f"{key}={values[key]}" for key in varied if key in values) for values in flat]
