"""The study of credit recovered, what its claims read, and its charts."""

import numpy as np
import pandas as pd
import pytest

from workbook.chapters.recovered import compute_recovered, explore
from workbook.studies import CLAIMS
from workbook.studies.record import NotMeasured, Tables
from workbook.studies.recovered import claims as measures
from workbook.studies.recovered import figures
from workbook.studies.recovered import study as studies
from workbook.studies.registration import MIN_UNITS, read_registration
from workbook.studies.unit import StudyUnit
from workbook.views.charts import PART_NAMES, describe_parts


@pytest.fixture(scope="module")
def tables():
    return studies.recovered_study(StudyUnit("tiny", 1))


def test_every_setting_has_a_split_that_adds_up(tables):
    shares, update = tables["shares"], tables["update"]
    assert len(update) == 2 * len(studies.settings(**studies.SMALL)), (
        "two draws of every setting at scale tiny"
    )
    assert set(update["axis"]) == {"group_size", "prompts", "equal", "rule"}
    known = shares.dropna(subset="signal")
    assert not known.empty
    np.testing.assert_allclose(known[["signal", "bias", "noise"]].sum(axis=1), 1, atol=1e-3)
    coupled = known[["coupled_signal", "coupled_bias", "coupled_noise"]].sum(axis=1)
    np.testing.assert_allclose(known["coupling"], coupled, atol=1e-9)
    once = update.drop(columns="axis").groupby(["prompts", "group_size", "rule", "draw"]).nunique()
    assert (once <= 1).all(axis=None)  # a setting that several axes share is measured once
    assert update.query("draw == 0")["norm"].gt(0).all()


def test_a_units_number_is_the_mean_over_its_draws(tables):
    setting = {"axis": "rule", "prompts": 2, "group_size": 2, "rule": "oracle"}
    update = tables["update"].assign(seed=7)
    own = update[np.logical_and.reduce([update[name] == value for name, value in setting.items()])][
        "norm"
    ]
    assert own.nunique() == 2, "the draws are different batches"
    assert measures.chosen(update, **setting)["norm"].to_dict() == {7: pytest.approx(own.mean())}
    with pytest.raises(ValueError, match="one a draw"):
        measures.chosen(pd.concat([update, update]), **setting)


def test_curves_take_the_draws_together():
    table = along([3.0 / (size - 1) for size in studies.GROUP_SIZES])["recovered/update"].assign(
        signal=0.2
    )
    draws = pd.concat(
        [table, table.assign(noise_per_signal=table["noise_per_signal"] * 3, signal=0.4)]
    )
    shares = pd.concat([draws.assign(category=name) for name in explore.LINES])
    drawn = figures.curve({"recovered/update": draws, "recovered/shares": shares}, "group_size")
    at_eight = drawn.query("size == 8").set_index("line")["mean"]
    assert at_eight["all tokens"] == pytest.approx(0.3)
    assert at_eight[at_eight.index.str.startswith("predicted")].tolist() == pytest.approx(
        [1 / (1 + 2 * 3 / 7)]
    )


def test_no_unit_finds_signal_in_style_words_however_many_prompts_push():
    steps = Tables("family")["recovered/shares"].query("axis == 'prompts' and rule == 'grpo'")
    signal = steps[steps["category"] == "style"].groupby(["seed", "prompts"])["signal"].mean()
    assert signal.abs().max() < 0.1


def along(noise_per_signal) -> dict[str, pd.DataFrame]:
    """A table of updates of two units over group sizes."""
    rows = [
        {
            "seed": seed,
            "axis": "group_size",
            "rule": "grpo",
            "group_size": size,
            "noise_per_signal": noise,
        }
        for seed in (0, 1)
        for size, noise in zip(studies.GROUP_SIZES, noise_per_signal, strict=True)
    ]
    return {"recovered/update": pd.DataFrame(rows)}


def test_distance_from_the_line():
    on_it = [3.0 / (size - 1) for size in studies.GROUP_SIZES]
    assert measures.residual_off_the_line(along(on_it)).tolist() == pytest.approx([0, 0])
    doubled = [
        noise * (2 if size == 64 else 1)
        for noise, size in zip(on_it, studies.GROUP_SIZES, strict=True)
    ]
    # an octave in one of five
    assert measures.residual_off_the_line(along(doubled)).tolist() == pytest.approx([0.2, 0.2])


def test_four_batches_of_a_unit_make_its_number_as_it_was_registered():
    """Every outcome by sums over rows of a made-up table: means over draws, of S4 before the
    logarithm.
    """
    rng, setting = np.random.default_rng(0), ["axis", "prompts", "group_size", "rule"]
    places = [
        (seed, draw, *one)
        for seed in (3, 8)
        for draw in range(studies.DRAWS)
        for one in studies.settings()
    ]
    update = pd.DataFrame(places, columns=["seed", "draw", *setting])
    classes = [update.assign(category=name) for name in ("all", "result", "style", "copy")]
    numbers = [
        "signal",
        "noise",
        "coupling",
        "expected_cosine",
        "cosine_held_out",
        "oracle_rollouts",
    ]
    numbers += ["noise_per_signal"]
    tables = {
        f"recovered/{name}": table.assign(
            **{number: rng.uniform(0.1, 9, len(table)) for number in numbers}
        )
        for name, table in (("update", update), ("shares", pd.concat(classes)))
    }

    def mean(seed, number, axis="rule", prompts=16, group_size=8, rule="grpo", category=None):
        place = {
            "seed": seed,
            "axis": axis,
            "prompts": prompts,
            "group_size": group_size,
            "rule": rule,
        }
        place |= {"category": category} if category else {}
        rows = tables[f"recovered/{'shares' if category else 'update'}"].to_dict("records")
        four = [row[number] for row in rows if place.items() <= row.items()]
        assert len(four) == 4
        return sum(four) / 4

    def line(seed):
        noise = {
            size: mean(seed, "noise_per_signal", "group_size", 16, size)
            for size in (2, 4, 8, 16, 32, 64)
        }
        return (
            sum(
                abs(np.log2(noise[size] / (noise[8] * 7 / (size - 1))))
                for size in (2, 4, 16, 32, 64)
            )
            / 5
        )

    expected = {
        "S1": lambda u: mean(u, "signal", category="all"),
        "S1 weights": lambda u: mean(u, "signal"),
        "S1 oracle": lambda u: mean(u, "signal", rule="oracle", category="all"),
        "S1 coupling": lambda u: mean(u, "coupling", category="all"),
        "S1 result": lambda u: mean(u, "signal", category="result"),
        "S2": lambda u: mean(u, "noise", category="style"),
        "S3": lambda u: mean(u, "oracle_rollouts") / 128,
        "S3 cosine": lambda u: mean(u, "expected_cosine"),
        "S4": line,
        "S4 held out": lambda u: np.subtract(
            *(mean(u, "cosine_held_out", "equal", n, 128 // n) for n in (4, 64))
        ),
        "S5": lambda u: mean(u, "signal", rule="positive_only") - mean(u, "signal"),
        "S5 negative": lambda u: mean(u, "signal", rule="negative_only") - mean(u, "signal"),
        "S5 bias": lambda u: mean(u, "expected_cosine", rule="positive_only"),
    }
    assert set(expected) == set(read_registration("recovered").outcomes)
    for key, number in expected.items():
        known = {seed: number(seed) for seed in (3, 8)}
        assert measures.MEASURES["recovered"][key](tables).to_dict() == pytest.approx(known), key


def test_every_registered_outcome_has_its_measure():
    rows = {(row.study, row.key) for name in CLAIMS if name[0] == "S" for row in CLAIMS[name].rows}
    assert rows == {(measures.STUDY, key) for key in read_registration(measures.STUDY).outcomes}


@pytest.mark.parametrize("name", [name for name in CLAIMS if name[0] == "S"])
def test_claims_are_measured_on_the_familys_tables(name):
    kept = Tables("family")
    for row in CLAIMS[name].rows:
        try:
            units = row.measure(kept)
        except NotMeasured as missing:
            pytest.skip(str(missing))
        assert len(units) >= MIN_UNITS
        assert np.isfinite(units).all()


def test_the_chart_stacks_parts_that_add_up_to_the_whole():
    table = compute_recovered(prompts=3, group_size=4)
    assert set(table["part"]) == set(PART_NAMES.values())
    np.testing.assert_allclose(table.groupby("category")["share"].sum(), 1, atol=1e-3)
    assert "all" in set(table["category"])
    permuted = compute_recovered(prompts=3, group_size=4, rule="permuted")
    assert permuted[permuted["part"].str.startswith("signal")]["share"].abs().max() == 0
    assert describe_parts(table).startswith("All: ")
