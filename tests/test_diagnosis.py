"""A diagnosis names what is wrong with a run, with its numbers, and says nothing of a run that
learns.
"""

import numpy as np
import pandas as pd
import pytest
from small_run import TRAINER
from test_monitor import logged

from workbook.app.diagnosis import diagnose
from workbook.app.worker import train_run


def table(n=12, **columns):
    """What an on-policy run logs that learns."""
    step = np.arange(1, n + 1)
    usual = {
        "step": step,
        "reward": 0.3 + 0.03 * step,
        "frac_reward_zero_std": 0.25,
        "grad_norm": 0.2,
        "entropy": 0.32 - 0.01 * step,
        "clip_ratio/region_mean": 0.0,
        "completions/clipped_ratio": 0.0,
        "completions/max_length": 38.0,
        "learning_rate": 1e-3,
    }
    return pd.DataFrame(usual | columns)


@pytest.mark.parametrize("n", [0, 1, 2, 12, 60])
def test_nothing_is_said_of_a_run_that_learns(n):
    assert diagnose(table(n)) == []
    assert diagnose(logged(n)) == []
    assert diagnose(table(n)[["step", "reward"]]) == []
    assert diagnose(pd.DataFrame()) == []
    assert diagnose(table(n, reward=np.nan, frac_reward_zero_std=1.0)) == []


@pytest.mark.parametrize(
    ("n", "columns", "words"),
    [
        (
            6,
            {"frac_reward_zero_std": 1.0, "reward": 0.0, "grad_norm": 0.0},
            "No group held two different rewards in 6",
        ),
        (
            6,
            {"frac_reward_zero_std": 1.0, "reward": 1.0, "grad_norm": 0.0},
            r"mean reward was 1\.000: take prompts",
        ),
        (
            4,
            {"grad_norm": [0.1, 0.2, np.nan, np.nan]},
            r"not a finite number in step 3.*learning rate \(0\.001\)",
        ),
        (4, {"grad_norm": [0.1, np.inf, 0.1, 0.1]}, "not a finite number in step 2"),
        (
            4,
            {"grad_norm": 0.0},
            "gradient was 0 in all 4 steps, though groups held different rewards",
        ),
        (
            4,
            {"completions/clipped_ratio": 1.0},
            "All completions of the last 3 batches were cut off .* of 38 tokens",
        ),
        (4, {"completions/clipped_ratio": 0.97}, "97% of completions of the last 3"),
        (
            12,
            {"reward": np.linspace(0.8, 0.2, 12)},
            r"Reward fell from 0\.691 in the first 5 batches to 0\.309",
        ),
        (
            5,
            {
                "entropy": [0.3, 0.2, 0.002, 0.001, 0.001],
                "clip_ratio/region_mean": [0, 0.1, 1, 0, 0],
                "reward": [0.3, 0.2, 0.1, 0, 0],
            },
            r"^100% of tokens were clipped in step 3, then entropy fell from 0\.300 to 0\.002 nats"
            r" by step 3, "
            r"and reward from 0\.300 to 0\.000: the policy collapsed to one text\. Lower the"
            r" learning rate \(0\.001\)",
        ),
        (
            4,
            {"entropy": [0.3, 2, 3, 3], "reward": [0.3, 0.1, 0, 0]},
            r"^Entropy rose from 0\.300 .*at random",
        ),
        (
            12,
            {"frac_reward_zero_std": [0.5] * 6 + [1] * 6, "reward": [0.6] * 6 + [1] * 6},
            r"Since step 7 no group has held .*mean reward 1\.000",
        ),
        (
            7,
            {
                "frac_reward_zero_std": [0.5, 0.5, 1, 1, 1, 1, 1],
                "reward": [0.6, 0.4, 0, 0, 0, 0, 0],
            },
            (
                r"Since step 3 no group .*mean reward 0\.000\), after 0\.600 in the first batch: it"
                r" unlearned"
            ),
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_numbers(n, columns, words):
    (sentence,) = diagnose(table(n, **columns))
    assert pd.Series([sentence]).str.contains(words)[0], sentence
    assert sentence.endswith(".")


@pytest.mark.parametrize(
    ("n", "columns"),
    [
        (2, {"frac_reward_zero_std": 1.0}),  # too early to tell
        (12, {"frac_reward_zero_std": [0.5] * 8 + [1] * 4}),
        # it got sure, rightly
        (12, {"entropy": np.geomspace(0.3, 0.01, 12), "reward": np.linspace(0.3, 1, 12)}),
        (12, {"entropy": [0.3, 0.01] * 5 + [0.3, 0.2]}),  # and came back
        (12, {"reward": [0.3, 0.5, 0.1, 0.4, 0.6, 0.2] * 2}),  # scatter
        (12, {"completions/clipped_ratio": [1] * 9 + [0.5] * 3}),  # it learned to stop
        (4, {"grad_norm": [0, 0, 0, 0.1]}),
    ],
)
def test_what_is_not_wrong_is_not_named(n, columns):
    assert diagnose(table(n, **columns)) == []


def test_steps_without_a_new_batch_are_no_batches():
    """A reward, an equal group and a cut-off completion are logged once a generation batch."""
    sampled = np.arange(1, 9) % 4 == 1
    quiet = {
        "frac_reward_zero_std": 1.0,
        "reward": 0.0,
        "completions/clipped_ratio": 1.0,
        "grad_norm": 0.0,
    }
    two = table(
        8,
        **{name: np.where(sampled, value, np.nan) for name, value in quiet.items()}
        | {"grad_norm": 0.0},
    )
    assert diagnose(two) == []
    three = pd.concat([two, two.head(4).assign(step=[9, 10, 11, 12])], ignore_index=True)
    assert "in 12 steps" in diagnose(three)[0]
    assert "cut off" in diagnose(three)[1]


def test_real_runs(tmp_path):
    """A learning rate far too high collapses the policy; the chapters' own learns, and nothing is
    said of it.
    """
    config = {
        "name": "small",
        "num_prompts": 24,
        "seed": 3,
        "threads": 1,
        "trainer": TRAINER | {"max_steps": 8},
    }
    (sentence,) = diagnose(train_run(config, tmp_path / "high", learning_rate=3.2).metrics())
    assert "ntropy fell from 0.3" in sentence
    assert "the policy collapsed to one text" in sentence
    assert "Lower the learning rate (3.2)" in sentence
    assert diagnose(train_run(config, tmp_path / "small").metrics()) == []
    short = train_run(config, tmp_path / "short", max_completion_length=4, max_steps=12).metrics()
    unpaid, cut_off = diagnose(short)
    assert (
        "No group held two different rewards in 12 steps: nothing could be learned. Every reward"
        " was 0" in unpaid
    )
    assert "cut off at the limit of 4 tokens" in cut_off
