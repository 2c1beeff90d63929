"""Tuned language models: every registered row against the audit's, some by hand, and beside the
family's.
"""

import itertools

import numpy as np
import pandas as pd
import pytest
from audit.definitions import DEFINITIONS
from audit.reckoning import Units
from test_language import RAMBLE, SUMS
from test_worlds_study import made_run, write

from workbook.book.chapters import find_chapters
from workbook.chapters.language import beside_family, charts
from workbook.ledger import kept_ledger
from workbook.studies.language import claims, figures, study, training
from workbook.studies.record import Tables
from workbook.studies.registration import read_registration

READINGS = ("entropy", "length", "right_length", "wrong_length")


def made(arm: str, rng, **names) -> pd.DataFrame:
    read = dict(zip(READINGS, rng.uniform(1, 2, len(READINGS)), strict=True))
    run = made_run(rng.uniform(0.5, 1.5), 0.2, rng, arm=arm, **read, **names)
    return run.assign(batch=run["batch"] * 1.25)  # 0, 5, ..., 40


def drawn(rng, columns: str, **keys) -> pd.DataFrame:
    """A row for each combination of keys, with drawn numbers."""
    rows = pd.DataFrame(itertools.product(*keys.values()), columns=[*keys])
    return rows.assign(**{name: rng.uniform(1, 2, len(rows)) for name in columns.split()})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Six units of every study, whose numbers are drawn."""
    folder, rng = tmp_path_factory.mktemp("language"), np.random.default_rng(0)
    of = {"curve": ["prompts"], "size": [1, 64], "rewards": ["by reward", "permuted"]}
    of |= {"identity": ["word", "word and place"], "kind": ["style", "template", "right result"]}
    pair = {"weights": ["output layer", "all weights"], "same": [True, False], "unsure": [0, 1, 2]}
    agree = [f"agreement, {tokens}" for tokens in ("all", "moved", "unsure")]
    gap = {"pool": ["training"], "rollouts": ["all"], "matched": ["position"], "of": ["value"]}
    for unit in range(6):
        tables = {
            "sums": drawn(rng, "own2 cross side2 side_cross up up_follows down down_follows", **of)
        }
        tables |= {"rates": drawn(rng, "crossed follows", tokens=["all", "moved"], prompts=[1, 64])}
        tables |= {
            "pairs": drawn(rng, "size", **pair),
            "training": drawn(rng, "size", quantity=agree, step=[0]),
        }
        tables |= {
            "blocks": drawn(rng, "mass", where=["other prompts"], kind=["same token, both unsure"])
        }
        write(
            folder,
            "smollm2_probes",
            SUMS,
            unit,
            **tables,
            gaps=drawn(rng, "gap", **gap, advantages=["own", "permuted"]),
        )
        for scale in (SUMS, RAMBLE):
            runs = pd.concat([made(arm, rng) for arm in training.SIZES[scale].arms])
            write(folder, "smollm2_training", scale, unit, runs=runs)
    write(
        folder,
        "smollm2_rates",
        SUMS,
        0,
        runs=pd.concat([made("dr_grpo", rng, lr=1, policy=k) for k in (0, 1)]),
    )
    return folder


@pytest.mark.parametrize("name", ["smollm2_probes", "smollm2_training"])
def test_every_registered_row_is_measured_as_the_audit_does(folder, name):
    registered, seen = read_registration(name), set()
    for key, outcome in registered.outcomes.items():
        scale = (outcome.scales or (SUMS,))[0]
        ours = claims.MEASURES[name][key](Tables(scale, folder))
        assert len(ours) == 6
        if outcome.role != "described":
            theirs = DEFINITIONS[name][key](Units(name, scale, 6, folder))
            assert bool(ours.attrs.get("log")) == bool(theirs.attrs.get("log"))
            np.testing.assert_allclose(
                ours.sort_index(), theirs.sort_index(), rtol=1e-9, err_msg=key
            )
            seen.add(key)
    assert seen == set(DEFINITIONS[name])
    assert set(registered.outcomes) == set(claims.MEASURES[name])


def test_three_rows_by_hand(folder):
    """Tokens to half-way between start and the tuning policies' best; a ratio of lengths; a
    difference of shares.
    """
    tables, ramble = Tables(SUMS, folder), Tables(RAMBLE, folder)["smollm2_training/runs"]
    best = tables["smollm2_rates/runs"].groupby("batch")["value"].mean().max()
    runs = tables["smollm2_training/runs"].query("seed == 4").groupby("arm")
    ways = {
        arm: np.interp(0.1 + best / 2, run["value"], run["sampled_tokens"]) for arm, run in runs
    }
    lead = claims.TRAINING["Q2 sums"](tables)[4]
    assert lead == pytest.approx(np.log2(ways["dr_grpo"] / ways["positive_only"]))
    tokens = ramble.query("seed == 4").groupby("arm")["wrong_length"].last()
    assert np.exp(claims.TRAINING["Q4 longer"](Tables(RAMBLE, folder))[4]) == pytest.approx(
        tokens["length"] / tokens["dr_grpo"]
    )
    place = "seed == 4 and kind == 'style' and identity == 'word' and size == 1"
    sums = tables["smollm2_probes/sums"].query(place).set_index("rewards")
    shares = -sums["cross"] / sums["own2"]
    assert claims.PROBES["C4 sums"](tables)[4] == pytest.approx(
        shares["by reward"] - shares["permuted"]
    )


def test_rows_are_laid_beside_the_familys():
    rows = [
        ("family", "H1", "holds"),
        (SUMS, "H1 sums", "does not hold"),
        (SUMS, "C1 sums", "holds"),
    ]
    rows += [("family", "C1", "holds"), (SUMS, "H4 sums", "holds"), ("family", "H4", "open")]
    ledger = pd.DataFrame(rows, columns=["scale", "key", "outcome"]).assign(
        measured="", mean=0.1, low=0.0, high=0.2
    )
    said = beside_family(ledger).set_index("key")["sentence"].to_dict()
    assert said == {"H1": "otherwise", "C1": "as in the family", "H4": "not decided in the family"}


def test_a_chart_of_training_has_a_panel_a_reading_and_a_line_a_rule(folder):
    runs = Tables(RAMBLE, folder)["smollm2_training/runs"]
    table = figures.language_training(folder).query("task == 'ramble'")
    chart = charts.training_by_rule_chart(table, ["value", "wrong_length"]).to_dict()
    assert [panel["title"]["text"] for panel in chart["hconcat"]] == [
        "held-out reward",
        "tokens of wrong answers",
    ]
    last = runs.query("arm == 'length'").sort_values("batch").groupby("seed")["value"].last().mean()
    assert f"held-out reward, 1/T: {last:.3g}" in chart["description"]


def test_the_book_counts_the_rows_that_came_out_as_the_familys():
    said = beside_family(kept_ledger()).set_index("key")["sentence"].filter(regex="^[CH]").tolist()
    alike, both = (
        said.count("as in the family"),
        said.count("as in the family") + said.count("otherwise"),
    )
    numbers = {10: "ten", 12: "twelve"}
    chapter = find_chapters(["10"])[0].read_text(encoding="utf-8")
    counted = f"Of {numbers[both]} results that both could decide, {numbers[alike]} came out"
    assert counted in chapter


def test_digits_whose_values_are_sampled_are_whole_cells_that_differ():
    rows = [
        (group, 0.0, 6, token)
        for group in range(9)
        for token in ((1, 1, 2) if group % 3 else (4, 4, 4))
    ]
    table = pd.DataFrame(rows, columns=["group", "reward", "position", "token_id"]).assign(
        category="result"
    )
    chosen = study.chosen_digits(table, 10, 0)
    assert chosen.groupby("group").size().tolist() == [3, 3, 3]
    assert (chosen["group"] % 3 > 0).all()
    assert set(study.chosen_digits(table, 10, 1)["group"]) != set(chosen["group"])
