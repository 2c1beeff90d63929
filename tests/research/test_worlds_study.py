"""Worlds side by side: rates, prices by hand, the line, every registered row, parts of a unit; the
page.
"""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import results
from audit.definitions import DEFINITIONS
from audit.reckoning import Missing, Units, Void
from refusals import refused
from scipy import stats

from workbook.app import half_way, world_runs
from workbook.app.half_way import own_rates
from workbook.book.worlds import world_start, worlds_markdown, worlds_table, write_worlds
from workbook.chapters.worlds import charts
from workbook.ledger import CANNOT, registered
from workbook.places import data_path
from workbook.studies import compute_ledger, measurements, record
from workbook.studies.record import NotMeasured, Tables, load_measured, measure
from workbook.studies.registration import WORLD_SCALES, read_registration
from workbook.studies.unit import StudyUnit
from workbook.studies.worlds import claims, figures, outcomes, question_claims, questions, study
from workbook.studies.worlds.outcomes import HELD_OUT, OPEN
from workbook.views.measured import measured_table
from workbook.views.style import to_spec

SPEED = dict(zip(study.ARMS, (1.2, 0.9, 0.9, 1.0, 0.8, 0.05, 0.04, 0.06, -0.9), strict=True))
SHARES = {scale: 0.5 * 0.85**k for k, scale in enumerate(WORLD_SCALES)}  # signal / (signal + noise)

SIZES = [
    *questions.GROUPS,
    *(f"{size}, {words}" for size in ("2", "16") for words in questions.RATES),
]
CHANGED = ["dr_grpo", *questions.TWINS, "length, equal", "clip, equal"]


def made_run(speed: float, start: float, rng, **names) -> pd.DataFrame:
    """A run that comes nearer to .95 at some speed; below 0 it falls."""
    batch = np.arange(0, 33, 4.0)
    value = (
        start * np.exp(speed * batch / 16)
        if speed < 0
        else 0.95 - (0.95 - start) * np.exp(-speed * batch / 12)
    )
    read = {
        "batch": batch,
        "value": value,
        "sampled_tokens": 2400 * batch,
        "tax": 0.01 * batch * (1 + rng.random()),
    }
    return pd.DataFrame(
        read | {"pass_at_8": value**0.2, "style_entropy": 1.3, "logp_right": -9.0} | names
    )


def write(folder: Path, study_name: str, scale: str, unit: int, **tables: pd.DataFrame) -> None:
    registration = read_registration(study_name)
    results.add_unit(
        folder, study_name, scale, unit, tables, registration=registration and registration.hash
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All worlds, none of those held out trained: plain is the slower the smaller the signal's
    share.
    """
    folder, rng = tmp_path_factory.mktemp("worlds"), np.random.default_rng(0)
    for scale, share in SHARES.items():
        speed = SPEED | {"dr_grpo": 1.2 * share**0.5}
        rates = [
            made_run(
                speed[arm] * (1 - 0.2 * abs(k)),
                0.2 + 0.02 * policy,
                rng,
                arm=arm,
                lr=6e-4 * 2.0**k,
                policy=policy,
            )
            for policy in range(3)
            for k in study.LADDER
            for arm in study.ARMS
        ]
        write(folder, "worlds_rates", scale, 0, runs=pd.concat(rates))
        for unit in range(10):
            runs = [
                made_run(speed[arm] * rng.lognormal(0, 0.1), 0.2 + 0.01 * unit, rng, arm=arm)
                for arm in study.ARMS
            ]
            if scale in OPEN:
                write(folder, "worlds", scale, unit, runs=pd.concat(runs))
                if unit < 6:
                    write(folder, "worlds_300", scale, unit, runs=pd.concat(runs))
                    runs = [
                        made_run(rng.uniform(0.2, 1), 0.2, rng, arm=arm) for arm in study.LASTING
                    ]
                    write(folder, "worlds_300_plain_rate", scale, unit, runs=pd.concat(runs))
            update = {
                "rule": "dr_grpo",
                "mean2": share * (1 + 0.1 * unit),
                "total2": 1 + 0.1 * unit,
            }
            write(folder, "worlds_start", scale, unit, updates=pd.DataFrame([update]))
            for name, arms in (("worlds_groups", SIZES), ("worlds_defaults", CHANGED)):
                runs = [
                    made_run(rng.uniform(0.2, 1), 0.2 + unit / 100, rng, arm=arm) for arm in arms
                ]
                updates = pd.DataFrame(
                    rng.uniform(1, 2, (len(arms), 3)), columns=["bias2", "mean2", "total2"]
                )
                write(
                    folder,
                    name,
                    scale,
                    unit,
                    runs=pd.concat(runs),
                    updates=updates.assign(arm=arms),
                )
    return folder


def test_tokens_to_half_way_rates_and_price_by_hand():
    """Start .2, best .6: half-way is .4. At the higher rate the oracle is there at 1,500 tokens and
    plain never.
    """
    values = {
        ("oracle", 1e-3): (0.2, 0.3, 0.5),
        ("oracle", 2e-3): (0.2, 0.6, 0.1),
        ("dr_grpo", 1e-3): (0.2, 0.3, 0.35),
    }
    values |= {("dr_grpo", 2e-3): (0.2, 0.25, 0.3)}
    ends = {"tax": 0.0, "pass_at_8": 0.0, "style_entropy": 0.0, "logp_right": 0.0}
    parts = [
        pd.DataFrame({"batch": [0, 4, 8], "value": v, "sampled_tokens": [0, 1000, 2000]}).assign(
            arm=arm, lr=lr, policy=0
        )
        for (arm, lr), v in values.items()
    ]
    rates = pd.concat(parts).assign(**ends)
    assert half_way.best_attainable(rates) == 0.6
    rows = half_way.run_ends(rates, 0.6, "policy", ("arm", "lr")).set_index(["arm", "lr"])
    assert rows["tokens"].tolist() == pytest.approx([1500, 500, 2000, 2000])
    assert rows["censored"].tolist() == [False, False, True, True]
    assert rows["collapse"].tolist() == pytest.approx([8, 8, 8, 8])
    assert rows["collapsed"].tolist() == [0, 1, 0, 0]
    own = own_rates(rates)
    assert own.loc["oracle", ["lr", "bears"]].tolist() == [2e-3, 1e-3]
    assert own.loc["dr_grpo", ["lr", "bears"]].tolist() == [
        1e-3,
        2e-3,
    ], "never there: by the value at the end"
    assert outcomes.common_rate([rates, rates.assign(lr=rates["lr"] * 4)]) == 1e-3, (
        "the lower of two in the middle"
    )
    with pytest.raises(ValueError, match="no arm gets further"):
        half_way.best_attainable(rates.assign(value=0.2))


def test_the_line_and_its_predictions_are_those_of_least_squares(folder):
    tables = Tables("worlds", folder)
    points, said = outcomes.price_points(tables), outcomes.predicted_prices(tables)
    line, fit = outcomes.fit_price_line(points), stats.linregress(points["x"], points["price"])
    assert points["x"].tolist() == pytest.approx([-np.log2(SHARES[scale]) for scale in OPEN])
    assert (line.slope, line.intercept) == pytest.approx((fit.slope, fit.intercept))
    assert 0.4 < line.slope < 0.6, "plain was made slower by the root of the share"
    x = said["x"].to_numpy()
    error = np.sqrt(
        fit.stderr**2 * ((x - points["x"].mean()) ** 2 + points["x"].var(ddof=0)) + line.sd**2
    )
    assert said["world"].tolist() == [outcomes.world_name(scale) for scale in HELD_OUT]
    assert (said["high"] - said["mean"]).tolist() == pytest.approx(
        stats.t.ppf(0.975, len(OPEN) - 2) * error
    )
    with pytest.raises(ValueError, match="three worlds"):
        outcomes.fit_price_line(points.head(2))


def test_a_committed_prediction_stands_when_worlds_are_added(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "results")
    few = [outcomes.world_name(scale) for scale in OPEN[:4]]
    results.write_text(
        tmp_path / "results", "worlds", f"walk_wrong: {{line_of: {few}}}\n", "predicted"
    )
    tables = Tables("worlds", tmp_path / "results")
    points, said = (
        outcomes.price_points(tables),
        outcomes.predicted_prices(tables).set_index("world"),
    )
    for world, part in {"walk_wrong": points[points["world"].isin(few)], "longer": points}.items():
        assert said.loc[world, "mean"] == pytest.approx(
            outcomes.fit_price_line(part).predict(said.loc[world, "x"]).mean
        )


@pytest.mark.parametrize(
    ("bias", "square", "counts"), [(0.009, 8e-4, True), (-0.011, 0, False), (0, 1e-3, False)]
)
def test_a_world_whose_exact_values_are_off_does_not_count(folder, tmp_path, bias, square, counts):
    shutil.copytree(folder, tmp_path / "results")
    write(
        tmp_path / "results",
        "worlds_values",
        "world:walk",
        0,
        errors=pd.DataFrame([{"bias": bias, "square": square}]),
    )
    points = outcomes.price_points(Tables("worlds", tmp_path / "results")).set_index("world")[
        "price"
    ]
    assert points.notna()["walk"] == counts
    assert points.drop("walk").notna().all()
    if not counts:
        with pytest.raises(record.Void, match="does not count"):
            outcomes.lead(Tables("world:walk", tmp_path / "results"), "oracle")
        with pytest.raises(Void):
            DEFINITIONS["worlds"]["Q1 world"](
                Units("worlds", "world:walk", 10, tmp_path / "results")
            )


def test_every_registered_row_is_measured_as_the_audit_does(folder):
    every, seen, measured = {}, set(), claims.MEASURES | question_claims.MEASURES
    # tests/research/test_arena.py
    for place, measures in ((place, measured[place]) for place in measured if place != "arena"):
        study_name = place.partition("@")[0]
        # the others' tables are not here
        if study_name != "worlds" and not study_name.startswith("worlds_300"):
            continue
        registered = read_registration(study_name)
        every |= registered.outcomes
        for key, number in measures.items():
            for scale in registered.outcomes[key].scales[-1:]:
                units = Units(study_name, scale, registered.units[scale], folder)
                if scale in HELD_OUT:  # not trained yet
                    with pytest.raises(NotMeasured):
                        number(Tables(scale, folder))
                    with pytest.raises(Missing):
                        DEFINITIONS[study_name][key](units)
                    continue
                ours, theirs = number(Tables(scale, folder)), DEFINITIONS[study_name][key](units)
                assert bool(ours.attrs.get("log")) == bool(theirs.attrs.get("log"))
                np.testing.assert_allclose(
                    ours.sort_index(), theirs.sort_index(), rtol=1e-9, atol=1e-12
                )
                seen.add(key)
            assert place != "worlds@worlds" or registered.outcomes[key].scales == ("worlds",)
    assert set(every) - seen <= {"Q1 held out", "Q1 world", "Q1 separates"}


def test_the_ledger_judges_worlds_as_units(folder):
    rows = compute_ledger("worlds", folder, ["Q1"]).set_index("key")
    assert rows.loc["Q1", ["outcome", "units", "policies", "registration"]].tolist() == [
        "holds",
        12,
        12,
        "matches",
    ]
    assert set(rows.index) == {"Q1", "Q1 price", "Q1 value"}
    third = measurements("Q1", Tables("world:third", folder)).set_index("key")
    assert "Q1 held out" not in third.index
    assert third.loc["Q1 world", "units"] == 10


def test_a_lead_is_void_where_sharpening_alone_gains(folder):
    tables = Tables("world:third", folder)
    assert len(claims.lead_beyond_sharpening(tables, "positive_only")) == 10
    sure = tables["worlds/runs"]["arm"] == "entropy_minimization"
    runs = tables["worlds/runs"].assign(
        value=lambda rows: rows["value"].where(~sure, rows["value"] + rows["batch"] / 99)
    )
    other = Tables("world:third", folder)
    other._whole |= {"worlds/runs": runs}
    with pytest.raises(ValueError, match="void"):
        claims.lead_beyond_sharpening(other, "positive_only")
    other.registered = lambda *_: other
    judged = [
        measurements("Q2", one).set_index("key").loc["Q2", "outcome"] for one in (other, tables)
    ]
    assert [outcome == CANNOT for outcome in judged] == [True, False]


def test_the_signal_of_exact_gradients_is_that_of_sampled_updates(monkeypatch):
    """Both rules' mean updates have the length that exact gradients say, and known credit's noise
    is no larger.
    """
    monkeypatch.setitem(study.SIZES, "tiny", study.WorldSizes(2, 1, 2, 24))
    updates = study.start_study(StudyUnit("tiny"))["updates"].set_index("rule")
    ratio = updates["sampled2"] / updates["mean2"]
    assert ratio.tolist() == pytest.approx([1, 1], abs=0.25)
    assert updates.loc["oracle", "mean2"] * 49 / 64 == pytest.approx(
        updates.loc["dr_grpo", "mean2"]
    )
    assert (updates["mean2"] < updates["total2"]).all()


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(study, "ARMS", ("oracle", "dr_grpo", "permuted"))
    monkeypatch.setattr(study, "LASTING", ("permuted",))
    monkeypatch.setattr(study, "CLIMB", (6e-4,))
    monkeypatch.setattr(study, "LADDER", (0,))
    monkeypatch.setattr(study, "TUNED", 2)
    monkeypatch.setattr(half_way, "LEAST", -1.0)
    monkeypatch.setitem(study.SIZES, "tiny", study.WorldSizes(2, 1, 2, 2))


def test_a_small_world_is_measured_and_goes_on_where_it_was_broken_off(
    tmp_path, small, monkeypatch
):
    monkeypatch.setattr(record, "_parts", lambda place, *_: place)
    with pytest.raises(NotMeasured):
        measure("worlds", "tiny", [0], tmp_path)  # before its rates
    measure("worlds_rates", "tiny", [0], tmp_path)
    runs = load_measured("worlds_rates", "tiny", "runs", tmp_path)
    assert runs.groupby(["arm", "lr", "policy"]).size().tolist() == [3] * 4, (
        "permuted has climbed already"
    )
    made, train = [], world_runs.train

    def interrupted(policy, task, loop, *rest, **more):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(loop.rule)
        return train(policy, task, loop, *rest, **more)

    monkeypatch.setattr(world_runs, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure("worlds", "tiny", [0], tmp_path)
    made.clear()
    measure("worlds", "tiny", [0], tmp_path)
    assert made == ["permuted"]
    runs = load_measured("worlds", "tiny", "runs", tmp_path)
    assert runs.groupby(["world", "arm", "lr"]).size().tolist() == [3] * 3
    assert [*(tmp_path / "worlds" / ".parts").iterdir()] == []
    measure("worlds_300", "tiny", [0], tmp_path)
    assert load_measured("worlds_300", "tiny", "runs", tmp_path)["batch"].tolist() == [
        0,
        5,
        10,
        15,
        18,
    ]
    rates = {
        "oracle": 2e-3,
        "dr_grpo": 1e-3,
        "positive_only": 1e-3,
        "negative_token_filtering": 5e-4,
    }
    made.clear()
    monkeypatch.setattr(
        study,
        "unit_rates",
        lambda study_unit: rates | {"entropy_minimization": 5e-4, "permuted": 1e-3},
    )
    monkeypatch.setattr(study, "LASTING", (*rates, "entropy_minimization", "permuted"))
    measure("worlds_300_plain_rate", "tiny", [0], tmp_path)
    runs = (
        load_measured("worlds_300_plain_rate", "tiny", "runs", tmp_path)
        .groupby("arm")["lr"]
        .first()
    )
    assert runs.to_dict() == {"oracle": 1e-3, "negative_token_filtering": 1e-3}
    measure("worlds_start", "tiny", [0], tmp_path)
    updates = load_measured("worlds_start", "tiny", "updates", tmp_path).set_index("rule")
    assert (updates["total2"] > 0).all()
    assert set(updates.index) == {"dr_grpo", "oracle"}
    measure("worlds_values", "tiny", [0], tmp_path)
    error = load_measured("worlds_values", "tiny", "errors", tmp_path).loc[0]
    assert abs(error["bias"]) < 5 * error["noise"] + 0.01
    assert outcomes.value_errors(Tables("tiny", tmp_path)) == pytest.approx(
        {"bias": error["bias"], "rms": error["rms"]}
    )


def test_charts_draw_every_world(folder):
    chart = charts.map_chart(figures.values_over_tokens(scales=OPEN, folder=folder))
    assert all(outcomes.world_name(scale) in json.dumps(to_spec(chart)) for scale in OPEN)
    assert set(charts.NAMES) == set(study.ARMS)


def test_the_line_that_is_drawn_is_that_through_the_worlds(folder):
    table = figures.world_prices(folder)
    line = outcomes.fit_price_line(outcomes.price_points(Tables("worlds", folder)))
    assert table[["intercept", "slope", "worlds"]].drop_duplicates().to_numpy().tolist() == [
        pytest.approx([line.intercept, line.slope, len(OPEN)])
    ]
    measured = table[table["kind"] == charts.KINDS[0]].set_index("world")
    price = outcomes.lead(Tables("world:third", folder), "oracle")
    assert measured.loc["third", "mean"] == pytest.approx(price.mean())


def test_charts_of_plains_settings_have_what_the_rows_have(folder):
    table = figures.world_settings(folder=folder)
    bias = question_claims.DEFAULTS["Q4"](Tables("world:ramble", folder)).mean()
    assert table["mean"][0] == pytest.approx(bias), "of length, as the default has its weights"
    assert "two clipped steps" in json.dumps(to_spec(charts.defaults_chart(table)))


def test_a_scale_of_worlds_has_no_bench():
    with refused("scale", "worlds"):
        StudyUnit("worlds")


# --- the page


def test_the_page_of_the_worlds_holds_the_ledgers_numbers(tmp_path):
    page = data_path("book", "worlds.md").read_text(encoding="utf-8")
    assert f"<!-- worlds -->\n{worlds_markdown()}\n<!-- /worlds -->" in page
    assert world_start("third")["value"].between(0, 1).all()
    assert world_start("no_such_world").empty
    assert [row[0] for row in worlds_table()[1:]] == re.findall(r"(?m)^- \*\*(\w+)\*\*: ", page)
    assert set(measured_table("worlds/map")["world"]) == {row[0] for row in worlds_table()[1:]}
    row = registered("world:ramble")["Q1 world"]
    assert f"**{2**row.mean:.1f}** [{2**row.low:.1f}, {2**row.high:.1f}]" in page
    copy = tmp_path / "page.md"
    copy.write_text("before\n<!-- worlds -->\nold\n<!-- /worlds -->\nafter\n", encoding="utf-8")
    assert write_worlds(copy)
    assert not write_worlds(copy)
    assert copy.read_text(encoding="utf-8").endswith("<!-- /worlds -->\nafter\n")
    copy.write_text("no marks", encoding="utf-8")
    with refused("page"):
        write_worlds(copy)


def test_the_page_of_the_worlds_has_the_rule_without_rewards_where_the_ledger_has_no_row():
    cells = {row[0]: row[-1] for row in worlds_table()[1:]}
    ends = measured_table("worlds/map")
    for world in ("plain", "low", "walk_wrong"):
        rows = ends[ends["world"] == world].set_index(["rule", "batch"])["mean"]
        gains = [rows[rule].loc[32] - rows[rule].loc[0] for rule in ("entropy", "plain")]
        assert cells[world].startswith(f"*{gains[0] / gains[1]:.0%}* [")


def test_a_map_of_some_worlds_has_their_panels_alone(folder):
    table = figures.values_over_tokens(scales=OPEN, folder=folder)
    world = outcomes.world_name(OPEN[0])
    spec = json.dumps(to_spec(charts.map_chart(table, {world: "its name"}, "a result")))
    assert "its name" in spec
    assert "a result" in spec
    assert len(to_spec(charts.map_chart(table, {world: "its name"}))["vconcat"][0]["hconcat"]) == 1
    assert charts.GROUP_ADVANTAGES in spec
