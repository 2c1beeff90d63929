"""Studies are made seed by seed, kept whole, and read back; intervals over seeds and prompts are honest."""

import hashlib
import json
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from workbook import __main__
from workbook.policies import load_policy
from workbook.statistics import nested_mean
from workbook.studies import SCALES, Scale, bench, load_measured, measure, record
from workbook.studies.record import provenance
from workbook.studies.registration import read_registration, registration_path
from workbook.training.files import damage


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The study of token flips at the size of a few rollouts, measured once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SCALES, "tiny", Scale("tiny", "bundled", "chain", 4, 2, 4, 48, 2))
        folder = tmp_path_factory.mktemp("results")
        (folder / "flip_backbones").mkdir()
        place = folder / "flip_backbones" / "registration.yaml"
        place.write_text("registered: 2026-11-22\nquestion: do signs decide?\n")
        yield folder, measure("flip_backbones", "tiny", seeds=[0], folder=folder)[0]


def test_a_study_leaves_tables_and_the_command_that_made_them(small):
    folder, place = small
    assert damage(place) is None
    manifest = json.loads((place / "manifest.json").read_text())
    assert manifest["command"] == "python -m workbook measure flip_backbones --scale tiny --seeds 0"
    assert manifest["policy"]["name"] == "bundled"
    registered = hashlib.sha256((folder / "flip_backbones" / "registration.yaml").read_bytes()).hexdigest()
    assert manifest["registration"] == registered == read_registration("flip_backbones", folder).hash
    units = provenance("flip_backbones", "tiny", folder).to_dict("records")
    assert [(unit["unit"], unit["registration"], unit["policy"]) for unit in units] == [(0, registered, "bundled")]
    assert units[0]["modified"] == (manifest["git"] or {}).get("modified")
    assert manifest["scale"]["group_size"] == 4
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
        return replace(policy, provenance=policy.provenance | {"name": name, "sha256": digest(name)})

    def widths(bench):
        benches = [bench.dialled(width=8), bench.dialled(width=8).dialled(operands=3)]
        return {"widths": pd.DataFrame({"parameters": [here.policy.model.num_parameters() for here in benches]})}

    monkeypatch.setattr(record, "_study", lambda name: widths)
    monkeypatch.setattr(bench, "load_policy", loaded)
    [place] = measure("dose_alphabets", "family", seeds=[0], folder=tmp_path)
    manifest = json.loads((place / "manifest.json").read_text())
    names = ["family:seed=1", "family:seed=1,width=8", "family:seed=1,width=8,operands=3"]
    assert manifest["policies"] == {name: digest(name) for name in names}
    assert manifest["policy"]["sha256"] == manifest["policies"][names[0]]


def test_what_was_made_is_kept_and_the_command_line_goes_on(small, capsys):
    folder, place = small
    before = (place / "manifest.json").stat().st_mtime_ns
    assert __main__.main(["measure", "flip_backbones", "--scale", "tiny", "--seeds", "0", "--folder", str(folder)]) == 0
    assert str(place) in capsys.readouterr().out
    assert (place / "manifest.json").stat().st_mtime_ns == before


def test_as_many_seeds_as_registered_are_measured(tmp_path):
    """Here all are there already."""
    place = tmp_path / "dose_llm" / "smollm2_plain"
    for seed in range(9):
        (place / f"seed={seed}").mkdir(parents=True)
    shutil.copy(registration_path("dose_llm"), tmp_path / "dose_llm")
    count = read_registration("dose_llm").units["smollm2_plain"]
    assert count != SCALES["smollm2_plain"].seeds
    assert measure("dose_llm", "smollm2_plain", folder=tmp_path) == [place / f"seed={seed}" for seed in range(count)]


def test_what_cannot_be_is_refused(tmp_path):
    with pytest.raises(ValueError, match="study='nothing' is unknown: choose one of"):
        measure("nothing", "tiny")
    with pytest.raises(ValueError, match="scale='huge' is unknown: choose one of tiny"):
        measure("flip_backbones", "huge")
    with pytest.raises(ValueError, match="python -m workbook measure flip_backbones --scale tiny makes its tables"):
        load_measured("flip_backbones", "tiny", "shares", tmp_path)


def test_seeds_count_as_the_independent_things():
    rng = np.random.default_rng(0)
    rows = [(seed, group, shift + 0.01 * rng.normal()) for seed, shift in enumerate((0, 1, 2)) for group in range(50)]
    table = pd.DataFrame(rows, columns=["seed", "group", "value"])
    assert nested_mean(table, "value").mean == pytest.approx(1, abs=0.01)
    assert nested_mean(table, "value").low < 0.5, "with three seeds that differ by 1 the mean is not known to 0.01"
    alone = nested_mean(table.assign(seed=0, group=range(len(table))), "value")
    assert alone.high - alone.low < 0.3
