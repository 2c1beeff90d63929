"""Studies are made seed by seed, kept whole, and read back; intervals over seeds and prompts are
honest.
"""

import hashlib
import inspect
import json
import multiprocessing
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import results
from refusals import refused

from workbook import __main__
from workbook.policies import load_policy
from workbook.statistics import nested_mean
from workbook.studies import SCALES, Setting, StudyUnit, load_measured, measure, record, storage
from workbook.studies.record import check_results, provenance
from workbook.studies.registration import (
    named_after,
    read_registration,
    registered_studies,
    registration_path,
)
from workbook.studies.storage import (
    MANIFEST,
    experiment_folder,
    measured_seeds,
    read_manifest,
    read_table,
    write_unit,
)

REGISTRATION = "registered: 2026-11-22\nquestion: do signs decide?\n"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The study of token flips at the size of a few rollouts, measured once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SCALES, "tiny", Setting("tiny", "bundled", "chain", 4, 2, 4, 48, 2))
        folder = tmp_path_factory.mktemp("results")
        results.write_text(folder, "flip_backbones", REGISTRATION)
        yield folder, measure("flip_backbones", "tiny", seeds=[0], folder=folder)


def test_a_study_leaves_tables_and_the_command_that_made_them(small):
    folder, paths = small
    assert [path.name for path in paths] == ["flip_backbones.shares.parquet"]
    [manifest] = read_manifest("flip_backbones", folder).to_dict("records")
    assert manifest["command"] == "python -m workbook measure flip_backbones --scale tiny --seeds 0"
    assert (manifest["scale"], manifest["seed"], manifest["policy"]) == ("tiny", 0, "bundled")
    assert manifest["sha256"] == load_policy("bundled").provenance["sha256"]
    registered = hashlib.sha256(REGISTRATION.encode()).hexdigest()
    assert (
        manifest["registration"] == registered == read_registration("flip_backbones", folder).hash
    )
    units = provenance("flip_backbones", "tiny", folder).to_dict("records")
    assert [(unit["unit"], unit["registration"], unit["policy"]) for unit in units] == [
        (0, registered, "bundled")
    ]
    assert units[0]["modified"] == manifest["modified"]
    assert json.loads(manifest["sizes"])["group_size"] == 4
    assert json.loads(manifest["versions"])["numpy"] == np.__version__
    shares = load_measured("flip_backbones", "tiny", "shares", folder)
    assert set(shares["seed"]) == {0}
    sums = shares.groupby(["eps", "advantages", "optimizer", "column"])["share"].sum()
    np.testing.assert_allclose(sums, 1.0)


def test_a_manifest_names_every_policy_of_its_unit(tmp_path, monkeypatch):
    """Those with other dials, too, with the SHA-256 of the weights that were loaded."""

    def digest(name):
        return hashlib.sha256(name.encode()).hexdigest()

    def loaded(name):  # the bundled policy in the place of those that training would make
        policy = load_policy("bundled")
        return replace(
            policy, provenance=policy.provenance | {"name": name, "sha256": digest(name)}
        )

    def widths(unit):
        units = [unit.dialled(width=8), unit.dialled(width=8).dialled(operands=3)]
        return {
            "widths": pd.DataFrame(
                {"parameters": [here.policy.model.num_parameters() for here in units]}
            )
        }

    monkeypatch.setattr(record, "_study", lambda name: widths)
    monkeypatch.setattr("workbook.studies.unit.load_policy", loaded)
    monkeypatch.setattr("workbook.studies.unit.make_member", lambda member: None)
    measure("dose", "family", seeds=[0], folder=tmp_path)
    manifest = read_manifest("dose", tmp_path).iloc[0]
    names = ["family:seed=1", "family:seed=1,width=8", "family:seed=1,width=8,operands=3"]
    assert json.loads(manifest["policies"]) == {name: digest(name) for name in names}
    assert manifest["sha256"] == digest(names[0])


def test_what_was_made_is_kept_and_the_command_line_goes_on(small, capsys):
    folder, [path] = small
    before = path.stat().st_mtime_ns
    assert (
        __main__.main(
            [
                "measure",
                "flip_backbones",
                "--scale",
                "tiny",
                "--seeds",
                "0",
                "--folder",
                str(folder),
            ]
        )
        == 0
    )
    assert str(path) in capsys.readouterr().out
    assert path.stat().st_mtime_ns == before


def test_as_many_seeds_as_registered_are_measured(tmp_path, monkeypatch):
    """The first and the last of them are there already."""
    count = read_registration("dose_llm").units["smollm2_plain"]
    assert count != SCALES["smollm2_plain"].seeds
    for seed in (0, count - 1):
        results.add_unit(
            tmp_path, "dose_llm", "smollm2_plain", seed, {"rates": pd.DataFrame({"x": [seed]})}
        )

    monkeypatch.setattr(record, "_study", lambda name: tabulate)
    monkeypatch.setattr(
        "workbook.studies.unit.StudyUnit", lambda scale, number, role: StudyUnit("tiny", number)
    )
    measure("dose_llm", "smollm2_plain", folder=tmp_path)
    rows = load_measured("dose_llm", "smollm2_plain", "rates", tmp_path)
    assert rows["seed"].tolist() == rows["x"].tolist() == [*range(count)]


def tabulate(unit):
    return {"rates": pd.DataFrame({"x": [unit.number]})}


TABLE = pd.DataFrame(
    {"name": ["b", "a"], "count": [3, 1], "value": [0.5, np.nan], "known": [True, False]}
)


@pytest.mark.parametrize("study", record._STUDIES)
def test_every_study_names_a_function_of_a_unit(study):
    (unit, *options) = inspect.signature(record._study(study)).parameters.values()
    assert unit.annotation in (StudyUnit, "StudyUnit")
    assert all(option.default is not option.empty for option in options)


def test_units_read_back_as_they_were_written(tmp_path):
    """In order of their seeds, a unit's rows in theirs, whatever other scales have."""
    for scale, seed in (("world:walk", 10), ("world:walk", 2), ("family", 0)):
        more = {"extra": ["x", "y"]} if scale == "family" else {}
        results.add_unit(tmp_path, "dose", scale, seed, {"rates": TABLE.assign(count=seed, **more)})
    read = read_table("dose", "world:walk", "rates", tmp_path)
    assert read["seed"].tolist() == [2, 2, 10, 10]
    for seed, rows in read.groupby("seed"):
        rows = rows[TABLE.columns].reset_index(drop=True)
        pd.testing.assert_frame_equal(rows, TABLE.assign(count=seed), check_exact=True)
    assert read["extra"].isna().all()
    assert read_table("dose", "family", "rates", tmp_path)["extra"].tolist() == ["x", "y"]
    assert read_table("dose", "family", "signs", tmp_path) is None
    assert read_table("dose", "tiny", "rates", tmp_path) is None
    assert measured_seeds("dose", "world:walk", tmp_path) == [2, 10]
    assert read_manifest("mass", tmp_path).empty, "another part of the experiment"


def test_a_unit_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    """What a process wrote before it was killed is not read, and replaced."""
    tables = {"rates": TABLE, "signs": TABLE}
    results.add_unit(tmp_path, "dose", "family", 0, tables)
    write, written = storage.write_table, []

    def killed(path, table):
        if path.name == "dose.signs.parquet":
            raise KeyboardInterrupt
        written.append(path.name)
        write(path, table)

    with monkeypatch.context() as patch:
        patch.setattr(storage, "write_table", killed)
        with pytest.raises(KeyboardInterrupt):
            write_unit("dose", "family", 1, tables, {}, tmp_path)
    assert written == ["dose.rates.parquet"]
    assert read_table("dose", "family", "rates", tmp_path)["seed"].tolist() == [0, 0]
    assert write_unit("dose", "family", 1, tables, {}, tmp_path)
    assert not write_unit("dose", "family", 1, tables, {}, tmp_path), (
        "who comes second adds nothing"
    )
    for name in tables:
        assert read_table("dose", "family", name, tmp_path)["seed"].tolist() == [0, 0, 1, 1]
    with pytest.raises(ValueError, match="column 'scale'"):
        write_unit("dose", "family", 2, {"rates": TABLE.assign(scale=1)}, {}, tmp_path)


def add_units(folder, seeds):
    for seed in seeds:
        write_unit("dose", "family", seed, {"rates": TABLE}, {}, folder)


def test_processes_add_units_at_once(tmp_path):
    """Each of three adds its own and one that all add; none is lost, and that one is there once."""
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=add_units, args=(tmp_path, [k, k + 3, k + 6, 9])) for k in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert measured_seeds("dose", "family", tmp_path) == [*range(10)]
    assert read_table("dose", "family", "rates", tmp_path)["seed"].tolist() == [
        k for k in range(10) for _ in range(2)
    ]


def test_a_folder_is_checked_before_it_is_judged(tmp_path):
    with refused("folder", str(tmp_path)):
        check_results(tmp_path)
    results.add_unit(tmp_path, "dose", "family", 0, {"rates": TABLE})
    check_results(tmp_path)
    (experiment_folder("dose", tmp_path) / MANIFEST).write_text("PAR1")
    with pytest.raises(ValueError, match="manifest"):
        check_results(tmp_path)


def test_a_registration_is_found_where_it_is_stated(tmp_path):
    """In a folder of results where that registers the study, else in data/results; notes on it
    beside it.
    """
    own = "registered: today\nquestion: mine?\n"
    results.write_text(tmp_path, "dose", own)
    results.write_text(tmp_path, "dose", "controls: {H1: H2}\n", "named")
    assert read_registration("dose", tmp_path).question == "mine?"
    assert named_after("dose", tmp_path) == {"H1": "H2"}
    assert read_registration("mass", tmp_path) == read_registration("mass"), (
        "of the same experiment"
    )
    assert (
        registration_path("mass", tmp_path)
        == registration_path("mass")
        == registration_path("dose")
    )
    assert registered_studies(tmp_path) == ["dose"]
    results.write_text(tmp_path, "dose", own.replace("mine", "yours"))
    assert read_registration("dose", tmp_path).question == "yours?"


def test_what_cannot_be_is_refused(tmp_path):
    with refused("study", "nothing"):
        measure("nothing", "tiny")
    with refused("scale", "huge"):
        measure("flip_backbones", "huge")
    with pytest.raises(ValueError, match="measure flip_backbones --scale tiny"):
        load_measured("flip_backbones", "tiny", "shares", tmp_path)


def test_seeds_count_as_the_independent_things():
    rng = np.random.default_rng(0)
    rows = [
        (seed, group, shift + 0.01 * rng.normal())
        for seed, shift in enumerate((0, 1, 2))
        for group in range(50)
    ]
    table = pd.DataFrame(rows, columns=["seed", "group", "value"])
    assert nested_mean(table, "value").mean == pytest.approx(1, abs=0.01)
    assert nested_mean(table, "value").low < 0.5, (
        "with three seeds that differ by 1 the mean is not known to 0.01"
    )
    alone = nested_mean(table.assign(seed=0, group=range(len(table))), "value")
    assert alone.high - alone.low < 0.3
