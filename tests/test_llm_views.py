"""Chapter 10's tables and checks: shares counted by hand, exercises that tell."""

import numpy as np
import pandas as pd
import pytest

from workbook.topics.flips.charts import explore_flips_of, flips_by_confidence, movement_by_category
from workbook.topics.flips.exercises import WORDS, check_sample_size, check_words


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    size = 400
    return pd.DataFrame(
        {
            "group": rng.integers(0, 3, size),
            "rollout": rng.integers(0, 24, size),
            "token_id": rng.integers(0, 12, size),
            "advantage": rng.choice([-1.0, 0.0, 1.0], size),
            "logp": np.log(rng.uniform(0.01, 1, size)),
            "dlogp": 0.05 * rng.normal(size=size),
            "category": rng.choice(["Math", "Template"], size),
        }
    )


def test_shares_are_those_counted_by_hand(table):
    shares = flips_by_confidence(table, eps=0.02, bins=2, group=1).set_index(["confidence", "sign", "change"])
    part = table[(table["group"] == 1) & (table["advantage"] < 0) & (np.exp(table["logp"]) > 0.5)]
    row = shares.loc[("0.5 to 1", "negative", "suppressed")]
    assert row["tokens"] == len(part)
    assert row["share"] == pytest.approx((part["dlogp"] < -0.02).mean())
    np.testing.assert_allclose(shares.groupby(level=[0, 1])["share"].sum(), 1)
    everything = flips_by_confidence(table, bins=4)
    tokens = everything.drop_duplicates(["confidence", "sign"])["tokens"].sum()
    assert tokens == (table["advantage"] != 0).sum()


def test_matched_shares_have_equal_numbers_on_both_sides(table):
    shares = flips_by_confidence(table, bins=1, matched=True)
    assert shares.groupby("sign")["tokens"].first().nunique() == 1
    with pytest.raises(ValueError, match="No token is left here"):
        flips_by_confidence(table.assign(advantage=0.0))


def test_the_line_of_code_computes_what_is_drawn(table):
    explorer = explore_flips_of(table)
    explorer.set(bins=3, group=2, matched=True)
    line, call = explorer.code.split("\n\n")
    exec(compile(f"{line}\nresult = {call}", "snippet", "exec"), scope := {"table": table})  # noqa: S102
    pd.testing.assert_frame_equal(scope["result"], explorer.tables["table"])
    explorer.reset()
    pd.testing.assert_frame_equal(explorer.tables["table"], flips_by_confidence(table))


def test_movement_is_shared_out(table):
    shares = movement_by_category(table).set_index("category")["share"]
    assert shares.sum() == pytest.approx(1)
    math = table.loc[table["category"] == "Math", "dlogp"].abs().sum()
    assert shares["Math"] == pytest.approx(math / table["dlogp"].abs().sum())


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda tokens: WORDS, "Right"),
        (lambda tokens: [number + 1 for number in WORDS], "count from 0; yours begins with 1"),
        (lambda tokens: [*WORDS[:-1], 4], "the full stop begins with no space"),
        (lambda tokens: [0] * len(tokens), "' the' belongs to word 1, but yours says 0"),
        (lambda tokens: [0], "it returned 1 numbers for 10 tokens"),
        (lambda tokens: None, "Not answered yet"),
    ],
)
def test_words_are_checked(answer, message, capsys):
    check_words(answer)
    assert message in capsys.readouterr().out


@pytest.mark.parametrize(
    ("factor", "message"),
    [(8, "Right"), (4, "a difference of two"), (2, "two are asked for"), (16, "both sides together"), (1, "it is 200")],
)
def test_sample_sizes_are_checked(factor, message, capsys):
    check_sample_size(lambda gap, p: factor * p * (1 - p) / gap**2)
    assert message in capsys.readouterr().out
