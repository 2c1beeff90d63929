"""The audit (tests/audit) on the committed tables, and that it notices what was altered; its statistics by hand."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from audit import chance, comparison, provenance
from audit.reckoning import Rule, conclude, independent, jackknife, judge, logs, noncentrality
from audit.tables import RESULTS, Units, registrations

from workbook.claims import ledger, ledger_json

OUTCOME = {"side": "above", "threshold": 0.0, "smallest_effect": 0.1}


@pytest.fixture(scope="module")
def mine():
    return comparison.ours()


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    file = tmp_path_factory.mktemp("audit") / "ledger.json"
    file.write_text(ledger_json(ledger("family", described=False)), encoding="utf-8")
    return comparison.theirs(file)


def differ(mine, other) -> dict:
    """{key of the outcome: what differs} of deciding rows."""
    table = comparison.compare(mine, other).query("role != 'described' and differ != ''")
    return {(row.study, row.key): row.differ for row in table.itertuples()}


def test_no_module_of_the_audit_imports_the_package():
    sources = [path.read_text() for path in (Path(__file__).parent / "audit").rglob("*.py")]
    assert len(sources) > 10
    assert not [source for source in sources if "import workbook" in source or "from workbook" in source]


def test_both_ledgers_agree_in_every_deciding_row(mine, other):
    assert len([row for row in mine.values() if "q" in row]) > 30
    assert differ(mine, other) == {}
    assert comparison.rules(mine) == []


def test_an_altered_ledger_is_noticed(mine, other):
    key = ("dose", "family", "H1")
    for name, value in {"mean": 1.00000001, "high": 1.00000001, "p": 1.001, "q": 1.1, "detectable": 1.000001}.items():
        assert differ(mine, other | {key: other[key] | {name: other[key][name] * value}}) == {key[::2]: name}
    assert differ(mine, other | {key: other[key] | {"outcome": "inconclusive"}}) == {key[::2]: "outcome"}
    assert differ(mine, other | {key: other[key] | {"units": 9}}) == {key[::2]: "units"}
    without = {name: row for name, row in other.items() if name != key}
    assert differ(mine, without) == {key[::2]: "no such row"}
    assert differ(mine, other | {("dose", "family", "H99"): other[key]}) == {("dose", "H99"): "no registration has it"}


@pytest.mark.parametrize("name", ["coverage", "skewness"])
def test_another_coverage_than_the_committed_one_is_noticed(name, tmp_path):
    shutil.copytree(RESULTS / "coverage", tmp_path / "coverage")
    table = tmp_path / "coverage" / f"{name}.parquet"
    mine = getattr(chance, name)(repetitions=500)
    assert chance.coverage_faults(mine, name, tmp_path, 500) == []
    committed = pd.read_parquet(table)
    committed.loc[committed.index[7], "coverage"] -= 0.1
    committed.to_parquet(table)
    assert len(chance.coverage_faults(mine, name, tmp_path, 500)) == 1
    committed[committed["units"] != 6].to_parquet(table)
    assert "of them in the committed table" in chance.coverage_faults(mine, name, tmp_path, 500)[0]
    if "shown" in committed:
        committed.assign(coverage=mine["coverage"], shown=1.5 * committed["shown"]).to_parquet(table)
        assert len(chance.coverage_faults(mine, name, tmp_path, 500)) == len(committed)


@pytest.fixture
def copy(tmp_path):
    """A copy of one study, by itself."""
    shutil.copytree(RESULTS / "dose", tmp_path / "dose")
    return tmp_path


def faults(copy) -> list[str]:
    return comparison.all_faults(copy)


def rewrite(path, change) -> None:
    """Change a unit's manifest, checksum and all."""
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    sums = path.parent / "checksums.json"
    known = json.loads(sums.read_text())
    known["manifest.json"]["sha256"] = provenance.sha256(path.read_bytes())
    sums.write_text(json.dumps(known))


def test_committed_units_have_no_fault(copy):
    assert faults(copy) == []


def test_an_altered_number_of_a_table_is_noticed(copy, mine):
    path = copy / "dose" / "family" / "seed=3" / "rates.parquet"
    table = pd.read_parquet(path)
    table.loc[(table["tokens"] == "all") & (table["prompts"] == 256), "crossed"] *= 1.001
    table.to_parquet(path)
    assert faults(copy) == ["dose, family, unit 3: rates.parquet is not as its checksum says"]
    (one,) = registrations(copy)
    units = Units("dose", "family", 10, copy)
    altered = comparison.row_of(units, "H1", one.outcomes["H1"])
    assert "mean" in comparison.differences(altered | {"outcome": "supported"}, mine["dose", "family", "H1"])


def test_a_missing_unit_is_noticed(copy):
    shutil.rmtree(copy / "dose" / "family" / "seed=3")
    assert faults(copy) == ["dose, family: units [0, 1, 2, 4, 5, 6, 7, 8, 9] are not numbered from 0 without a gap"]
    for unit in range(4, 10):
        shutil.rmtree(copy / "dose" / "family" / f"seed={unit}")
    assert faults(copy) == ["dose, family: 3 units; its stopping rule asks for 6"]
    assert comparison.notes(copy) == ["dose, family: 3 of 10 units that were registered"]


def test_an_altered_registration_is_noticed(copy):
    path = copy / "dose" / "registration.yaml"
    path.write_text(path.read_text().replace("threshold: 0.1\n", "threshold: 0.2\n", 1))
    another = "its registration is another one than the one that stands now"
    assert [fault for fault in faults(copy) if another in fault] == [
        f"dose, family, unit {u}: {another}" for u in range(10)
    ]


def test_altered_provenance_is_noticed(copy):
    path = copy / "dose" / "family" / "seed=0" / "manifest.json"
    rewrite(path, lambda manifest: manifest["git"].update(modified=True))
    assert faults(copy) == ["dose, family, unit 0: its tree was modified"]
    rewrite(path, lambda manifest: manifest["git"].update(modified=False, commit="0" * 40))
    if provenance.whole_history():
        assert faults(copy) == [f"dose, family, unit 0: its commit {'0' * 40} is not part of this history"]
        first = provenance.git("rev-list", "--max-parents=0", "HEAD").stdout.decode().split()[0]
        rewrite(path, lambda manifest: manifest["git"].update(commit=first))
        assert faults(copy) == ["dose, family, unit 0: its commit has another registration, or none"]


def test_stopping_rules_say_how_many_units_are_enough():
    assert provenance.minimum("Units 0 to 9 in order. At least 6 if time runs out.", 10) == 6
    assert provenance.minimum("If time runs out, at least units 0 to 15.", 30) == 16
    assert provenance.minimum("Units 0 to 5 in order, until all six are done.", 6) == 6


def units_of(values, policies=None):
    return pd.Series(values, dtype=float), policies or {unit: f"p{unit}" for unit in range(len(values))}


def test_numbers_of_six_units_by_hand():
    values, policies = units_of([1, 2, 3, 4, 5, 6])  # mean 3.5, sd sqrt(3.5), t of 5 at 97.5 %: 2.570582
    row = judge(values, OUTCOME, policies)
    half = 2.5705818366 * np.sqrt(3.5 / 6)
    assert [row["mean"], row["low"], row["high"]] == pytest.approx([3.5, 3.5 - half, 3.5 + half], rel=1e-9)
    assert row["outcome"] == "supported"
    assert row["p_flips"] == 2 / 64
    assert [row["without_low"], row["without_high"]] == [3.0, 4.0]
    assert judge(-values, OUTCOME, policies)["outcome"] == "contradicted"
    assert judge(values / 1000, OUTCOME, policies)["outcome"] == "equivalent to none"
    assert judge(values - 3.5, OUTCOME, policies)["outcome"] == "inconclusive"
    assert judge(values * 0, OUTCOME, policies)["outcome"] == "not testable here"
    assert judge(values[:5], OUTCOME, policies)["outcome"] == "not measured"
    assert noncentrality(10) / 10**0.5 == pytest.approx(0.996, abs=5e-4)


def test_a_ratio_is_judged_by_logarithms():
    values, policies = units_of(np.log([1, 2, 4, 1, 2, 4]))
    row = judge(logs(values), OUTCOME | {"threshold": 3.0, "smallest_effect": 1.0}, policies)
    assert row["mean"] == pytest.approx(2.0)
    assert row["low"] * row["high"] == pytest.approx(4.0)


def test_units_of_one_policy_count_once():
    values, policies = units_of([0, 1, 2, 3, 4, 5], {u: f"p{u % 3}" for u in range(6)})
    assert sorted(independent(values, policies)) == [1.5, 2.5, 3.5]
    assert len(independent(values, dict.fromkeys(range(6), "p"))) == 6


def test_jackknife_of_a_ratio_by_hand():
    rows = [(1.0, 2.0), (2.0, 2.0), (6.0, 2.0)]
    ratio = lambda kept: sum(a for a, _ in kept) / sum(b for _, b in kept)  # noqa: E731
    assert jackknife(ratio, rows) == pytest.approx([0.5, 1.0, 3.0])


def test_what_is_registered_goes_before_the_interval():
    row = {"units": 6, "policies": 6, "outcome": "supported"}
    assert conclude(row | {"q": 0.06}, OUTCOME) == "inconclusive"
    assert conclude(row, OUTCOME | {"comparable": "no: another setting"}) == "not comparable"
    assert conclude(row, OUTCOME | {"testable": False}) == "not testable here"
    assert conclude(row, OUTCOME | {"comparable": "unknown: whose"}) == "supported"


def test_a_coin_for_each_policy_supports_what_an_interval_misses():
    rng = np.random.default_rng(0)
    rows = [(pd.Series(rng.normal(size=8)), OUTCOME | {"smallest_effect": 1e-9}, dict(enumerate("abcdefgh")))]
    drawn = chance.by_coin(rows, draws=4_000)
    assert drawn["supported"].mean() == pytest.approx(0.025, abs=0.015)
    x = np.array([[1.0, 1.1, 0.9, 1.0, 1.2, 0.8], [0.0, 1.0, -1.0, 2.0, -2.0, 0.0]])
    assert chance.supported(x, Rule(OUTCOME)).tolist() == [True, False]
