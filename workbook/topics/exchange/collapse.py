"""Entropy over equally right answers in training: end points of many settings, and runs of thousands of steps.

The runs are those of `exchange.drift.run_solutions`: three right answers with odds 6 : 3 : 1, half the samples wrong.
"""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from workbook.statistics import bootstrap_mean
from workbook.theory.choices import check_choice
from workbook.topics.exchange.drift import OPERATORS, run_solutions, solution_measures
from workbook.views.figures import INTERVAL, forest, rule
from workbook.views.style import NEUTRAL, SERIES, describe_rows, require, titled

LR, STEPS, REWARD = 0.3, 60, 0.8
SETTINGS = {  # of `run_solutions`: who weighs more, what repairs it, what turns pushes into a step
    "equal weights": {},
    "one answer favoured": {"weights": "one favoured"},
    "favoured, min-replace": {"weights": "one favoured", "transform": "min-replace"},
    "favoured, advantage-orthogonal": {"weights": "one favoured", "transform": "advantage-orthogonal"},
    "random weights": {"weights": "random"},
    "random, min-replace": {"weights": "random", "transform": "min-replace"},
    "equal, natural gradient": {"operator": OPERATORS[1]},
    "favoured, natural gradient": {"weights": "one favoured", "operator": OPERATORS[1]},
}
WHEN = {"end": f"after {STEPS} steps", "reward": f"when the reward reaches {REWARD}"}


def entropy_by_setting(seeds: int = 200, settings: tuple[str, ...] = tuple(SETTINGS)) -> pd.DataFrame:
    """Entropy over the right answers (nats) of settings in SETTINGS, after 60 steps and at equal reward, over seeds.

    Columns setting, when (of WHEN), mean, low, high (95 % bootstrap interval over seeds), start (entropy at step 0) and
    reward, at the end.  Raises ValueError for an unknown setting, and if a seed never reaches the reward of 0.8.
    """
    rows = []
    for name in settings:
        check_choice("settings", name, tuple(SETTINGS))
        path = solution_measures(run_solutions(lr=LR, seeds=seeds, steps=STEPS, **SETTINGS[name]))
        entropy, reward = path["entropy"].numpy(), path["reward"].numpy()
        if (reward.max(0) < REWARD).any():
            raise ValueError(f"{name}: a seed never reaches a reward of {REWARD} within {STEPS} steps.")
        at_reward = entropy[(reward >= REWARD).argmax(0), np.arange(seeds)]
        base = {"setting": name, "start": entropy[0, 0], "reward": reward[-1].mean()}
        for when, values in (("end", entropy[-1]), ("reward", at_reward)):
            rows.append(base | {"when": WHEN[when], **bootstrap_mean(values)._asdict()})
    return pd.DataFrame(rows)


def entropy_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Entropy of every setting, a dot for each of WHEN, against where all began; table of `entropy_by_setting`."""
    require(table, ("setting", "when", *INTERVAL, "start"), "entropy_chart")
    start = float(table["start"].iloc[0])
    x = alt.X("mean:Q", title="entropy over three equally right answers (nats)").scale(domain=[0.4, 1], nice=False)
    return titled(
        forest(
            table,
            "setting",
            x,
            by="when",
            names=[*WHEN.values()],
            colors=SERIES[:2],
            number=".2f",
            under=[rule(start, "x", dashed=True, color=NEUTRAL)],
            width=420,
            height=alt.Step(17),
        ),
        "Entropy falls with equal weights, too",
        f"means over seeds with 95 % intervals; dashed: the start, {start:.2f} nats",
        describe_rows(table, "setting", "when", form=".3f", interval=True),
    )


def long_runs(steps: int = 2_000, seeds: int = 48) -> pd.DataFrame:
    """Entropy and log-odds of equally right answers over many steps: either operator, equal weights and a favourite.

    Columns measure ("entropy", "log-odds" or "wrong", the share of wrong answers), run, step (30 of them, evenly spread
    on a logarithm), mean, low, high over seeds.
    """
    marks, rows = np.unique(np.geomspace(1, steps, 30).astype(int)), []
    for operator in OPERATORS:
        for weights in ("equal", "one favoured"):
            measures = solution_measures(run_solutions(weights, operator=operator, lr=LR, seeds=seeds, steps=steps))
            measures["wrong"] = 1 - measures.pop("reward")
            for measure, values in measures.items():
                for step in marks:
                    ends = bootstrap_mean(values[step].numpy(), resamples=499)._asdict()
                    rows.append({"measure": measure, "run": f"{operator}, {weights}", "step": step, **ends})
    return pd.DataFrame(rows)
