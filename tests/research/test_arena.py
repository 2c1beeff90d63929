"""The arena: budgets, rates and rows by hand, the audit's numbers, comparisons that go on where
they were.
"""

import shutil
from itertools import product

import numpy as np
import pandas as pd
import pytest
import results
from audit.definitions import DEFINITIONS
from audit.reckoning import Units, Void
from refusals import refused
from test_worlds_study import SPEED, made_run, write

from workbook.__main__ import main
from workbook.app import arena, arena_charts, half_way, world_runs
from workbook.places import data_path
from workbook.statistics import t_interval
from workbook.studies.record import NotMeasured, Tables, load_measured, measure
from workbook.studies.registration import read_registration
from workbook.studies.storage import table_paths
from workbook.studies.teaching import masks
from workbook.studies.unit import StudyUnit
from workbook.studies.worlds import arena as arena_studies
from workbook.studies.worlds import arena_outcomes, claims, figures
from workbook.studies.worlds import study as worlds
from workbook.theory.choices import ESTIMATORS, FORMER_RULE_NAMES
from workbook.theory.credit_rules import RULES
from workbook.views.measured import measured_table
from workbook.views.style import to_spec

RULE_SPEED = {rule: 0.7 + 0.02 * k for k, rule in enumerate(arena_outcomes.RULES)} | {
    arena_outcomes.RANDOM: 0.01,
    "ibpo": 1.0,
}
MIX_SPEED = {arena.MIX: 1.2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two worlds; ibpo samples half as much again."""
    folder, rng = tmp_path_factory.mktemp("arena"), np.random.default_rng(0)

    def run(rule, speed, start, **names):
        made = made_run(speed, start, rng, arm=rule, **names)
        return made.assign(sampled_tokens=made["sampled_tokens"] * (1.5 if rule == "ibpo" else 1))

    for scale in arena_outcomes.SCALES:
        speeds = {"worlds_rates": SPEED | {"oracle": 1.4}, "arena_rates": RULE_SPEED}
        for name, speed in speeds.items():
            rates = [
                run(
                    rule,
                    speed[rule] * (1 - 0.2 * abs(k)),
                    0.2 + 0.02 * policy,
                    lr=6e-4 * 2.0**k,
                    policy=policy,
                )
                for policy, k, rule in product(range(3), (-1, 0, 1), speed)
            ]
            write(folder, name, scale, 0, runs=pd.concat(rates))
        for unit in range(10):
            start = 0.2 + 0.01 * unit
            for name, speed in (
                ("worlds", speeds["worlds_rates"]),
                ("arena", RULE_SPEED),
                ("arena_mix", MIX_SPEED),
            ):
                made = [
                    run(arm, s * rng.lognormal(0, 0.1), start, lr=6e-4) for arm, s in speed.items()
                ]
                write(folder, name, scale, unit, runs=pd.concat(made))
    return folder


def test_every_rule_stands_in_worlds_or_in_the_arena():
    # measured by studies of their own
    teaching = ["delta", *(name.replace(" ", "_") for name in masks.MASKS)]
    trained = [*worlds.ARMS, *arena_outcomes.RULES, arena_outcomes.RANDOM, arena.MIX]
    trained += [*arena_studies.NOT_TRAINED, *teaching]
    names = [FORMER_RULE_NAMES.get(name, name) for name in trained]
    assert sorted(names) == sorted({*ESTIMATORS, *RULES})
    assert all(rule in read_registration("arena").definitions for rule in arena_outcomes.RULES)


def test_a_rule_that_samples_more_is_read_where_the_budget_is_spent():
    run = pd.DataFrame(
        {"batch": [0, 4, 8], "value": [0.2, 0.4, 0.8], "sampled_tokens": [0, 1000, 2000]}
    )
    run = run.assign(tax=run["value"], pass_at_8=0.5, style_entropy=1.0, logp_right=-9.0, lr=1e-3)
    runs = pd.concat([run.assign(seed=seed, arm="ibpo") for seed in (0, 1)])
    cut = half_way.within(runs, pd.Series({0: 1500, 1: 2000}))
    assert cut[["seed", "batch", "sampled_tokens", "value"]].to_numpy().tolist() == [
        *([0, 0, 0, 0.2], [0, 4, 1000, 0.4], [0, 6, 1500, pytest.approx(0.6)]),
        *([1, 0, 0, 0.2], [1, 4, 1000, 0.4], [1, 8, 2000, 0.8]),
    ]


def test_rates_are_chosen_by_the_half_way_of_worlds(folder):
    tables = Tables("world:third", folder)
    rates, known = (
        arena_outcomes.rule_rates(tables),
        half_way.own_rates(tables["worlds_rates/runs"]),
    )
    pd.testing.assert_frame_equal(rates.loc[known.index], known)
    assert rates.loc[["prefix_credit", "ibpo"], "lr"].tolist() == [6e-4, 6e-4]
    runs, faster = tables["arena_rates/runs"], Tables("world:third", folder)
    faster._whole["arena_rates/runs"] = runs.assign(
        value=runs["value"].where(runs["batch"] == 0, 0.99)
    )
    rates = arena_outcomes.rule_rates(faster)
    assert rates.loc["dr_grpo", "tokens"] == known.loc["dr_grpo", "tokens"], (
        "half-way stays where it was"
    )


def test_a_row_is_octaves_difference_and_ratio_beside_plain(folder):
    ends = arena_outcomes.rule_ends(Tables("world:third", folder))
    table = arena.arena_table({"third": ends}).set_index("rule")
    own, plain = (ends[ends["arm"] == rule].set_index("seed") for rule in ("ibpo", "dr_grpo"))
    octaves = t_interval(np.log2(plain["tokens"] / own["tokens"]))
    assert table.loc["ibpo", ["tokens", "tokens_low", "tokens_high"]].tolist() == pytest.approx(
        octaves
    )
    assert table.loc["ibpo", "value"] == pytest.approx((own["value"] - plain["value"]).mean())
    assert np.log(table.loc["ibpo", "tax"]) == pytest.approx(
        np.log(own["tax"] / plain["tax"]).mean()
    )
    assert table.loc["dr_grpo", ["tokens", "value", "tax"]].tolist() == [0, 0, 1]
    assert table["value"].is_monotonic_decreasing, "ranked by the value at the end"
    slow = ends.assign(tokens=ends["tokens"].where(ends["arm"] != "oracle", 1e9))
    again = arena.arena_table({"third": slow})
    assert again["rule"].tolist() == table.index.tolist(), "tokens to half-way rank nothing"
    still = arena.arena_table(
        {"tiny": ends.assign(tax=ends["tax"].where(ends["arm"] != "ibpo", 0.0))}
    )
    assert still.set_index("rule").loc["ibpo", ["tax", "tax_low"]].isna().all(), (
        "it moved no style word"
    )
    arena_charts.arena_chart(still.assign(source="yours"))


def test_every_registered_row_is_measured_as_the_audit_does(folder):
    scale = "world:third"
    assert set(read_registration("arena").outcomes) == set(claims.MEASURES["arena"])
    for key, number in claims.MEASURES["arena"].items():
        ours = number(Tables(scale, folder)).sort_index()
        theirs = DEFINITIONS["arena"][key](Units("arena", scale, 10, folder)).sort_index()
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
        assert len(ours) == 10


def test_no_lead_counts_where_known_credit_is_not_clear_of_plain(folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    [path] = table_paths("worlds", tmp_path)
    runs = pd.read_parquet(path).query("arm != 'oracle'")
    results.replace_table(
        path, pd.concat([runs, runs.query("arm == 'dr_grpo'").assign(arm="oracle")])
    )
    with pytest.raises(ValueError, match="void"):
        claims.lead_where_credit_is_clear(Tables("world:third", tmp_path), "edit_mask")
    with pytest.raises(Void):
        DEFINITIONS["arena"]["P3"](Units("arena", "world:third", 10, tmp_path))


def test_a_row_of_ones_own_takes_its_place(folder, monkeypatch):
    measured = figures.arena_rows(folder=folder)
    monkeypatch.setattr(arena, "measured_table", lambda name: measured)
    own = measured[measured["rule"].isin(["oracle", "ibpo"])].replace(
        {"rule": {"ibpo": "own:a/b.py:f"}}
    )
    table = arena.add_to_table(own.assign(source=arena.YOURS))
    read = arena.add_to_table(own.assign(source=arena.COMMITTED))
    assert "yours" not in set(read["source"]), "committed runs stand there already"
    third = table[table["world"] == "third"]
    assert third["rule"].tolist() == table[table["world"] == "plain"]["rule"].tolist()
    assert third["value"].is_monotonic_decreasing
    tied = pd.DataFrame(
        {"world": "third", "rule": ["dear", "cheap"], "value": [0.1, 0.1], "tax": [2.0, 0.5]}
    )
    assert arena.in_order(tied)["rule"].tolist() == [
        "cheap",
        "dear",
    ], "the lower tax breaks a tie"
    text, spec = arena_charts.table_text(table), to_spec(arena_charts.arena_chart(table))
    for part in (
        "f (yours)",
        "known credit (yours)",
        "In world third",
        "plain with a tenth of entropy minimisation +0.",
    ):
        assert part in text
    assert len(spec["hconcat"]) == 4
    kinds = {
        row["name"]: row["kind"]
        for rows in spec["datasets"].values()
        for row in rows
        if "kind" in row
    }
    assert [
        kinds[name] for name in ("f (yours)", "known credit", arena.MIX, "coin_reward", "ibpo")
    ] == list(arena_charts.KINDS)


def test_a_rule_that_was_never_half_way_has_no_octaves(folder):
    """Where nothing got there, equal budgets are no perfect tie."""
    ends = arena_outcomes.rule_ends(Tables("world:third", folder))
    short = ends.assign(tokens=ends["budget"], censored=True)
    short.loc[(short["arm"] == "oracle") & (short["seed"] > 2), ["tokens", "censored"]] = [
        1e3,
        False,
    ]
    table = arena.arena_table({"third": short}).assign(source="yours")
    heading, *rows = arena_charts.table_rows(table)
    cells = {
        row[0].removesuffix(" (yours)"): row[heading.index("octaves ahead, third")] for row in rows
    }
    assert cells["ibpo"] == cells["dr_grpo"] == "not reached"
    assert cells["known credit"].endswith("], not reached in 3 of 10")
    assert "not reached" not in arena_charts.table_text(
        arena.arena_table({"world:third": ends.assign(censored=False)}).assign(source="yours")
    )


def test_the_table_waits_for_every_rule(folder, tmp_path):
    shutil.copytree(folder / "worlds", tmp_path / "worlds")
    shutil.copytree(folder / "rates", tmp_path / "rates")
    with pytest.raises(NotMeasured, match="measure arena --scale world:third"):
        claims.MEASURES["arena"]["P1"](Tables("world:third", tmp_path))
    with pytest.raises(NotMeasured, match="measure arena --scale world:plain"):
        figures.arena_rows(folder=tmp_path)


SMALL_ARENA = {"RULES": ("grpo", "ibpo"), "_STEPS": (1.0, 2.0), "TUNED": 2}


@pytest.fixture
def small(monkeypatch):
    for module, name, value in (
        *((arena_studies, name, value) for name, value in SMALL_ARENA.items()),
        *(
            (worlds, "ARMS", ("oracle", "dr_grpo")),
            (worlds, "CLIMB", (6e-4,)),
            (worlds, "LADDER", (0,)),
        ),
        *((worlds, "TUNED", 2), (half_way, "LEAST", -1.0)),
    ):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setitem(worlds.SIZES, "tiny", worlds.WorldSizes(2, 1, 2, 2))


def test_a_small_arena_is_measured_rates_first(tmp_path, small):
    for name in ("arena_rates", "arena"):
        with pytest.raises(NotMeasured):
            measure(name, "tiny", [0], tmp_path)
        measure("worlds_rates" if name == "arena_rates" else "arena_rates", "tiny", [0], tmp_path)
    runs = load_measured("arena_rates", "tiny", "runs", tmp_path)
    assert runs.groupby(["arm", "lr", "policy"]).size().tolist() == [3] * 8, (
        "coins are tuned nowhere"
    )
    measure("arena", "tiny", [0], tmp_path)
    runs = load_measured("arena", "tiny", "runs", tmp_path).groupby("arm")
    assert runs.size().to_dict() == {"coin_reward": 3, "grpo": 3, "ibpo": 3}
    assert runs["lr"].first()["coin_reward"] == 6e-4
    sampled = runs["sampled_tokens"].max()
    assert sampled["ibpo"] > 1.1 * sampled["grpo"], "its continuations count"
    measure("arena_mix", "tiny", [0], tmp_path)
    mix = load_measured("arena_mix", "tiny", "runs", tmp_path)
    assert mix[["arm", "lr"]].drop_duplicates().to_numpy().tolist() == [[arena.MIX, 6e-4]], (
        "at plain's rate"
    )
    assert len(mix) == 3


@pytest.fixture
def made(small, monkeypatch):
    """The rules that are trained, in order, by runs of two batches on the bundled policy."""
    made, study_unit = [], StudyUnit("tiny", 0)

    def run(unit, rule, lr, batches):
        made.append(rule)
        return world_runs.run_rule(unit, rule, lr, batches, every=1, held_out=2)

    monkeypatch.setattr(arena, "run_rule", run)
    monkeypatch.setattr(arena, "WorldUnit", lambda world, unit=0: study_unit)
    return made


def test_a_comparison_goes_on_where_it_was(tmp_path, made):
    file, lines = tmp_path / "credit.py", []
    file.write_text("def f(batch):\n    return batch.group_advantages('dr_grpo')\n")
    rule = f"own:{file}:f"
    given = {"units": 2, "folder": tmp_path / "arena", "worlds": ("tiny",), "jobs": 1}
    table = arena.compare_rule(rule, show=lines.append, batches=2, **given).set_index("rule")
    assert len(made) == 2 * 5
    assert len(lines) == 3
    assert lines[0].startswith("tiny has no measured rates: every rule has 0.0003")
    assert set(table.index) == {*arena.CONTROLS, rule}
    assert table.loc[rule, ["tokens", "value", "end"]].tolist() == [
        0,
        0,
        table.loc["dr_grpo", "end"],
    ]
    again = arena.compare_rule(rule, batches=2, **given).set_index("rule")
    assert len(made) == 10
    pd.testing.assert_frame_equal(again, table)
    file.write_text("def f(batch):\n    return -batch.group_advantages('dr_grpo')\n")
    changed = arena.compare_rule(rule, batches=2, **given).set_index("rule")
    assert made[10:] == [rule] * 2, "the edited rule is trained anew, the controls are not"
    assert changed.loc[rule, "value"] < 0
    arena.compare_rule(rule, batches=1, **given)
    assert len(made) == 22, "another length"


@pytest.fixture
def committed(tmp_path, small, monkeypatch):
    """The figures of the tuned rates and of the controls' runs in a world whose policy is the
    bundled one, by name.
    """
    monkeypatch.setattr(worlds, "ARMS", ("oracle", "dr_grpo", "entropy_minimization"))
    for study, seeds in (("worlds_rates", [0]), ("worlds", [0, 1]), ("arena_mix", [0, 1])):
        measure(study, "tiny", seeds, tmp_path)
    tables = {
        "worlds/rates": figures.world_rates(("tiny",), tmp_path),
        "worlds/controls": figures.world_controls(("tiny",), tmp_path),
    }
    monkeypatch.setattr(arena, "measured_table", tables.get)
    return tables


@pytest.fixture
def units(made, monkeypatch):
    """The rules that are trained, on the units that `committed` has the runs of."""
    monkeypatch.setattr(arena, "WorldUnit", lambda world, unit=0: StudyUnit(world, unit))
    return made


def test_committed_controls_are_read_and_the_rule_alone_is_trained(tmp_path, committed, units):
    given, lines = {"units": 2, "worlds": ("tiny",), "jobs": 1, "batches": 2}, []
    table = arena.compare_rule("grpo", folder=tmp_path / "read", show=lines.append, **given)
    assert units == ["grpo"] * 2
    assert lines[0] == "tiny: 8 runs of controls are the committed ones, and not trained again."
    again = arena.compare_rule("grpo", folder=tmp_path / "made", retrain_controls=True, **given)
    assert len(units) == 2 + 2 * 5
    assert set(again.pop("source")) == {"yours"}
    sources = dict(zip(table["rule"], table.pop("source"), strict=True))
    assert sources == dict.fromkeys(arena.CONTROLS, "committed") | {"grpo": "yours"}
    pd.testing.assert_frame_equal(table, again, check_exact=False, atol=1e-6)
    del units[:]
    arena.compare_rule("oracle", folder=tmp_path / "of_control", **given)
    assert units == ["oracle"] * 2, "a control that is entered is trained"


def test_a_shorter_comparison_reads_the_beginning_of_committed_runs(tmp_path, committed, units):
    given = {"units": 2, "worlds": ("tiny",), "jobs": 1, "batches": 1}
    table = arena.compare_rule("grpo", folder=tmp_path / "read", **given)
    assert units == ["grpo"] * 2
    again = arena.compare_rule("grpo", folder=tmp_path / "made", retrain_controls=True, **given)
    assert table.pop("source").nunique() > again.pop("source").nunique()
    pd.testing.assert_frame_equal(table, again, check_exact=False, atol=1e-6)
    assert arena.committed_run("tiny", 0, "dr_grpo", 6e-4, batches=7) is None, (
        "it was not read after so many"
    )
    assert arena.committed_run("tiny", 0, "dr_grpo", 3e-4, batches=2) is None, "another rate"


def test_runs_of_another_policy_are_no_controls(tmp_path, committed, units):
    runs = committed["worlds/controls"]
    committed["worlds/controls"] = runs.assign(value=runs["value"] + 0.01)
    with pytest.raises(ValueError, match="--retrain-controls"):
        arena.compare_rule("grpo", 2, tmp_path / "read", batches=2, worlds=("tiny",), jobs=1)


def test_a_unit_of_a_world_is_that_of_its_studies():
    unit, study_unit = world_runs.WorldUnit("third", 4), StudyUnit("world:third", 4)
    for name in ("policy_name", "data_seed", "held_out_seed", "max_new_tokens", "world"):
        theirs = study_unit.setting.policy if name == "policy_name" else getattr(study_unit, name)
        assert getattr(unit, name) == theirs, name


@pytest.mark.parametrize(
    ("rule", "units", "folder", "field"),
    [
        ("grpo", 1, "new", "units"),
        ("nix", 2, "new", "advantage_estimator"),
        ("grpo", 2, "file", "folder"),
    ],
)
def test_comparisons_that_can_not_be(rule, units, folder, field, tmp_path):
    (tmp_path / "file").write_text("")
    with refused(field):
        arena.compare_rule(rule, units, tmp_path / folder)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--rule", "own:nowhere.py:f"], "nowhere.py"),
        (["--units", "3"], "of a rule of yours; name a rule with --rule"),
        (["--retrain-controls"], "of a rule of yours; name a rule with --rule"),
        (["--chart", "table.txt"], "path='table.txt'"),
        (["--rule", "grpo"], "come with a clone of the repository and not with an installed wheel"),
    ],
)
def test_the_command_refuses_in_a_sentence(words, sentence, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(
        "workbook.policies.worlds.world_file", lambda world, seed: tmp_path / f"seed={seed}"
    )
    assert main(["arena", *words]) == 2
    sentence_on_stderr = capsys.readouterr().err.strip()
    assert sentence in sentence_on_stderr
    assert "\n" not in sentence_on_stderr


def test_the_page_holds_the_measured_table():
    page = data_path("book", "arena.md").read_text(encoding="utf-8")
    printed = arena_charts.table_markdown(measured_table("worlds/arena"))
    assert f"<!-- arena -->\n{printed}\n<!-- /arena -->" in page
