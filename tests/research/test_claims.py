"""The ledger says what was measured: outcomes follow from registered thresholds and units, and from
nothing else.
"""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import results
import yaml
from refusals import refused
from scipy import stats

from workbook import __main__
from workbook.book import cards
from workbook.ledger import (
    CANNOT,
    OUTCOME_WORDS,
    TOO_SMALL,
    format_ledger,
    format_summary,
    kept_ledger,
    primaries,
    registered,
    row_of,
    split_key,
    stated_of,
)
from workbook.statistics import detectable_effect, pseudo_values, t_interval
from workbook.studies import CLAIMS, compute_ledger, ledger_json
from workbook.studies.inference import Rule, holm, judge_units
from workbook.studies.ledger import NESTED, SCALES, keep_ledger, sentences, untestable
from workbook.studies.record import Measurement, Tables
from workbook.studies.registration import (
    Outcome,
    check_registration,
    documents,
    read_registration,
    registered_studies,
    registration_path,
)
from workbook.studies.storage import MANIFEST, experiment_folder, read_table, table_paths

IDS = [
    *(f"H{k}" for k in range(1, 14)),
    *(f"R{k}" for k in range(1, 6)),
    *(f"D{k}" for k in range(1, 10)),
    *("P1", "H-falsifier", "D-falsifier"),
]
ABOVE_0 = Rule(0.0, -0.1, 0.1, 1.0)


# --- numbers
def test_words_follow_from_the_two_intervals():
    """Against scipy: the sides of the 95 % interval, and two one-sided tests at 5 %."""
    rng = np.random.default_rng(0)
    seen = set()
    for mean, sd in [(0.5, 0.2), (-0.5, 0.2), (0.0, 0.03), (0.05, 0.01), (0.1, 0.3), (0.02, 0.2)]:
        x = rng.normal(mean, sd, 9)
        low, high = stats.ttest_1samp(x, 0).confidence_interval(0.95)
        p_low, p_high = (
            stats.ttest_1samp(x, c, alternative=a).pvalue
            for c, a in [(-0.1, "greater"), (0.1, "less")]
        )
        expected = "holds" if low > 0 else "does not hold" if high < 0 else "open"
        expected = TOO_SMALL if max(p_low, p_high) < 0.05 else expected
        assert ABOVE_0.word(x) == expected
        p = max(p_low, p_high) if expected == TOO_SMALL else stats.ttest_1samp(x, 0).pvalue
        assert ABOVE_0.p(x) == pytest.approx(p, rel=1e-9), "of the word"
        assert t_interval(x)[1:] == pytest.approx((low, high))
        seen.add(expected)
    assert seen == set(OUTCOME_WORDS) - {CANNOT}
    assert ABOVE_0.word(x[:5]) == "open", "fewer than six units"
    x = rng.normal(0.5, 0.2, 9)
    assert Rule(0.0, -0.1, 0.1, -1.0).word(x) == "does not hold", "the other side"


def test_a_clear_effect_is_too_small_only_where_the_threshold_is_the_null():
    clear = np.array([0.04, 0.05, 0.06, 0.05, 0.04, 0.06])
    assert t_interval(clear).low > 0, "clear of the threshold"
    assert ABOVE_0.word(clear) == TOO_SMALL
    assert Rule(0.5, 0.4, 0.6, 1.0).word(clear + 0.5) == "holds", "a half is no null"
    assert Rule(0.5, 0.4, 0.6, 1.0).word(clear + 0.45) == TOO_SMALL, "on neither side"


def test_holms_correction_goes_down_the_list():
    """By the definition: the i-th smallest of m falls if it and all smaller ones are below level /
    (m - i + 1).
    """
    rng = np.random.default_rng(0)
    for p in (rng.uniform(0, 0.2, 12), np.array([0.01, 0.04, 0.03, 0.005]), np.array([])):
        for level in (0.01, 0.05, 0.2):
            order, rejected = np.argsort(p), np.zeros(len(p), bool)
            for place, k in enumerate(order):
                if p[k] > level / (len(p) - place):
                    break
                rejected[k] = True
            assert ((holm(p) <= level) == rejected).all()
    assert holm([0.01, 0.04, 0.03, 0.005]).tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])


@pytest.mark.parametrize("n", [6, 10, 30])
def test_the_detectable_effect_has_80_percent_power(n):
    effect = detectable_effect(2.0, n)
    t = stats.t.ppf(0.975, n - 1)
    assert 1 - stats.nct.cdf(t, n - 1, effect / 2.0 * n**0.5) == pytest.approx(0.8, abs=1e-6)


def test_ratios_are_judged_by_pseudo_values_on_the_log_scale():
    rng = np.random.default_rng(4)
    table = pd.DataFrame({"seed": range(8), "a": rng.uniform(1, 2, 8), "b": rng.uniform(3, 4, 8)})

    def ratio(rows):
        return rows["a"].mean() / rows["b"].mean()

    plain, log = pseudo_values(table, ratio), pseudo_values(table, ratio, log=True)
    assert plain.mean() == pytest.approx(ratio(table), rel=0.02)
    assert plain.mean() != ratio(table) == plain.attrs["estimate"]
    registered = Outcome("H1", "primary", "", side="below", threshold=1.0, smallest_effect=0.2)
    judged = judge_units(log, registered)
    assert judged[1:3] == pytest.approx(tuple(np.exp(t_interval(log)[1:]))), (
        "the jackknife's interval"
    )
    assert judged.mean == pytest.approx(ratio(table)), "and the ratio of means itself"
    assert judged.outcome == "holds"
    away = np.log(1.0) - detectable_effect(log.std(ddof=1), 8)
    assert judged.detectable == pytest.approx(1 - np.exp(away)), (
        "in the ratio's unit, towards the claim"
    )
    with pytest.raises(ValueError, match="logarithm"):
        pseudo_values(table.assign(a=-1), ratio, log=True)


def test_units_of_one_policy_are_judged_by_their_mean():
    rng = np.random.default_rng(5)
    units = pd.Series(np.repeat(rng.normal(0.3, 0.4, 10), 3) + rng.normal(0, 0.01, 30))
    policies = pd.Series([f"family:seed={k // 3}" for k in range(30)])
    registered = Outcome("H1", "primary", "", side="above", threshold=0.0, smallest_effect=0.05)
    own, shared = judge_units(units, registered), judge_units(units, registered, policies)
    means = units.groupby(policies).mean()
    assert shared.policies == 10
    assert shared[:3] == pytest.approx(tuple(t_interval(means)))
    assert shared.high - shared.low > 1.5 * (own.high - own.low), (
        "30 units of 10 policies are not 30 units"
    )
    assert own.p < shared.p
    assert judge_units(units, registered, policies.map(lambda _: "one")) == own, (
        "of one policy: its seeds"
    )


# --- registrations
FINE = {
    "study": "confidence_tuning",
    "registered": "2026-11-22",
    "question": "does it?",
    "units": {"scale": "family", "count": 10},
    "stopping_rule": "all ten",
    "outcomes": {},
}
H1 = {"role": "primary", "claim": "H1", "sentence": "mean of x", "unit": "nats"}
H1 |= {"side": "above", "threshold": 0.0, "smallest_effect": 0.1, "paper": "0.3 at 512 prompts"}
H1 |= {"comparable": "yes", "testable": "yes", "source": "paper", "seen_before": "no"}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"stop_rule": "x"}, "stop_rule: Unexpected keyword argument."),
        ({"study": "flips"}, "study is 'flips'; it must be 'confidence_tuning'."),
        ({"units": {"scale": "family"}}, "it must be {scale: family, count: 10}"),
        (
            {"units": {"scale": "family", "count": 0}},
            "units.family: Input should be greater than 0.",
        ),
        (
            {"units": {"scale": "famly", "count": 10}},
            "units.famly.[key]: Input should be 'tiny', 'bundled', 'family'",
        ),
        ({"outcomes": {"H1": {"rolle": "primary"}}}, "outcomes.H1.claim: Field required."),
        (
            {"outcomes": {"H1": H1 | {"role": "main"}}},
            "outcomes.H1.role: Input should be 'primary', 'mechanism'",
        ),
        ({"outcomes": {"H1": H1 | {"side": ""}}}, "outcomes.H1: Value error, it lacks side."),
        (
            {"outcomes": {"H1": H1 | {"threshold": "low"}}},
            "threshold: Input should be a valid number",
        ),
        (
            {"outcomes": {"H1": H1 | {"smallest_effect": 0}}},
            "smallest_effect: Input should be greater than 0.",
        ),
        (
            {"outcomes": {"H1": H1 | {"comparable": "hardly"}}},
            'it must be "yes", "unknown: ..." or "no: " and',
        ),
        (
            {"outcomes": {"H1": H1 | {"predicted": [0.2, 0.1]}}},
            "outcomes.H1: Value error, predicted must be [low, high]",
        ),
        ({"outcomes": {"H1": H1, "H1 too": H1}}, "two primary ones of claim H1."),
    ],
)
def test_a_registration_is_checked_field_by_field(change, sentence):
    assert (
        check_registration(FINE | {"outcomes": {"H1": H1}}, "confidence_tuning")
        .outcomes["H1"]
        .toward
        == 1.0
    )
    with pytest.raises(ValueError, match=re.escape(sentence)) as refusal:
        check_registration(FINE | {"outcomes": {"H1": H1}} | change, "confidence_tuning")
    assert len(str(refusal.value).split(". ")) == 1, "one sentence"


def test_every_registered_outcome_is_reported_and_every_claim_has_one_primary_row():
    """What a study registered can't be left out of the ledger afterwards."""
    reported = {(row.study, row.key): claim.id for claim in CLAIMS.values() for row in claim.rows}
    primaries = []
    for study in registered_studies():
        registration = read_registration(study)
        for key, outcome in registration.outcomes.items():
            # what is described may stand in a chapter alone
            known = reported.get((registration.study, key))
            assert known == outcome.claim or (known is None and outcome.role == "described"), key
            primaries += [
                (outcome.claim, scale) for scale in registration.units if outcome.role == "primary"
            ]
    assert len(set(primaries)) == len(primaries), "one primary row per claim and scale"
    assert set(IDS) <= set(CLAIMS)


# --- a world of registered studies
def _unit(
    folder: Path,
    unit: int,
    table: pd.DataFrame,
    policy: str,
    hash_: str | None,
    modified: bool = False,
):
    results.add_unit(
        folder, "confidence_tuning", "family", unit, {"numbers": table}, policy, hash_, modified
    )


def _numbers(folder: Path, unit: int) -> pd.DataFrame:
    table = read_table("confidence_tuning", "family", "numbers", folder)
    return table[table["seed"] == unit].drop(columns="seed")


NUMBERS = {  # column: mean, sd
    "clear": (0.5, 0.2),
    "none": (0.0, 0.02),
    "against": (-0.5, 0.2),
    "noisy": (0.1, 1.0),
    "floor": (0.0, 0.0),
    "small": (0.05, 0.005),
}
OUTCOMES = {  # key: column, and what it changes in H1's registration
    "H1": ("clear", {"predicted": [0.3, 0.7]}),
    "H1 control": ("none", {"role": "control"}),
    "H1 ratio": (
        "clear",
        {"role": "consequence", "threshold": 0.5, "smallest_effect": 0.1, "unit": ""},
    ),
    "H1 small": ("small", {"role": "control"}),
    "H1 ratio of 1": (
        "clear",
        {"role": "control", "threshold": 1.0, "smallest_effect": 0.4, "unit": ""},
    ),
    "H1 at its place": ("clear", {"role": "control", "threshold": 0.5, "smallest_effect": 0.3}),
    "H1 able": ("none", {"role": "control", "positive_control": "H1"}),
    "H1 unable": ("none", {"role": "control", "positive_control": "H4"}),
    "H1 unregistered": ("small", {"role": "control", "positive_control": "H99"}),
    "H1 clear": ("clear", {"role": "control", "positive_control": "H4"}),
    "H1 as it was": ("clear", {"role": "described"}),
    "H2": ("none", {"claim": "H2"}),
    "H2 named": ("none", {"claim": "H2", "role": "mechanism"}),
    "H2 named badly": ("none", {"claim": "H2", "role": "mechanism"}),
    "H3": ("against", {"claim": "H3", "predicted": [0.0, 1.0]}),
    "H4": ("noisy", {"claim": "H4"}),
    "H5": ("clear", {"claim": "H5", "comparable": "no: our batch is smaller"}),
    "H6": ("clear", {"claim": "H6", "testable": "no: identity of the first step"}),
    "H7": ("floor", {"claim": "H7"}),
    "H8": ("clear", {"claim": "H8", "sentence": "a table that nobody made"}),
}


def _of(column):
    return lambda tables: tables["confidence_tuning/numbers"].groupby("seed")[column].mean()


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Ten units of a registered study, one of them added later, and the claims that read it."""
    outcomes = {key: H1 | change for key, (_, change) in OUTCOMES.items()}
    results.write_text(tmp_path, "confidence_tuning", yaml.safe_dump(FINE | {"outcomes": outcomes}))
    digest = read_registration("confidence_tuning", tmp_path).hash
    # the last one's registered control stays
    later = {"H2 named": "H1", "H2 named badly": "H4", "H1 unable": "H1"}
    note = yaml.safe_dump({"named": "2026-11-23", "why": "none", "controls": later})
    results.write_text(tmp_path, "confidence_tuning", note, "named")
    rng = np.random.default_rng(0)
    for unit in range(11):
        table = pd.DataFrame(
            {name: rng.normal(mean, sd, 4) for name, (mean, sd) in NUMBERS.items()}
        )
        _unit(tmp_path, unit, table, f"family:seed={unit}", digest)
    rows = {}
    for key, (column, change) in OUTCOMES.items():
        measure = (
            _of(column) if key != "H8" else lambda tables: tables["confidence_tuning/none"]["x"]
        )
        rows.setdefault(change.get("claim", "H1"), []).append(
            Measurement("confidence_tuning", key, measure)
        )
    rows["H1"][2:5:2] = [
        Measurement("confidence_tuning", f"H1 ratio{more}", _ratio) for more in ("", " of 1")
    ]
    records = {name: replace(CLAIMS[name], rows=measured) for name, measured in rows.items()}
    records["H9"] = replace(CLAIMS["H9"], rows=[])
    monkeypatch.setattr(sys.modules["workbook.studies.ledger"], "CLAIMS", records)
    return tmp_path


def _ratio(tables):
    return pseudo_values(
        tables["confidence_tuning/numbers"],
        lambda t: (2 + t["clear"].mean()) / (3 + t["none"].mean()),
        log=True,
    )


def test_the_ledger_of_a_world(world):
    table = compute_ledger(folder=world).set_index("key")
    outcomes = {
        **{"H1": "holds", "H1 control": TOO_SMALL, "H1 ratio": "holds", "H2": TOO_SMALL},
        **{
            "H3": "does not hold",
            "H4": "open",
            "H5": CANNOT,
            "H6": CANNOT,
            "H7": CANNOT,
            "H8": "open",
            "": "open",
        },
        **{"H1 as it was": "described", "H1 small": TOO_SMALL, "H1 at its place": TOO_SMALL},
        **{
            "H1 ratio of 1": TOO_SMALL,
            "H1 able": TOO_SMALL,
            "H1 unable": CANNOT,
            "H1 unregistered": CANNOT,
        },
        **{"H1 clear": CANNOT, "H2 named": TOO_SMALL, "H2 named badly": CANNOT},
    }
    assert table["outcome"].to_dict() == outcomes
    units = read_table("confidence_tuning", "family", "numbers", world)
    means = units.groupby("seed")["clear"].mean().drop(10)
    h1 = table.loc["H1"]
    assert (h1["mean"], h1["low"], h1["high"]) == pytest.approx(tuple(t_interval(means))), (
        "the added unit is out"
    )
    assert (h1["low_90"], h1["high_90"]) == pytest.approx(tuple(t_interval(means, 0.9))[1:])
    assert (h1["units"], h1["registered_units"], h1["added"]) == (10, 10, (10,))
    assert (h1["clean"], h1["registration"], h1["commits"]) == (True, "matches", ("c0ffee",))
    assert h1["paper_effect"] == "0.3 at 512 prompts"
    assert table.loc["H5", "reason"] == "our batch is smaller"
    assert table.loc["H6", "reason"] == "identity of the first step"
    assert "a floor, a ceiling or no contrast" in table.loc["H7", "reason"]
    assert "80 % power for" in table.loc["H4", "reason"]
    assert table.loc["H8", "reason"].startswith(
        "not measured: confidence_tuning holds no table 'none' at scale 'family'"
    )
    assert "no primary outcome is registered" in table.loc["", "reason"]
    assert table.loc["H1 unable", "reason"] == "its positive control, H4, does not separate (open)"
    assert (
        table.loc["H1 unregistered", "reason"]
        == "its positive control, H99, does not separate (not measured)"
    )
    assert table["changed"].str.endswith("its control was named then").sum() == 2, (
        "and the rows say so"
    )
    assert (table.loc[["H2 named", "H1"], "registration"] == "matches").all(), (
        "the registration is what it was"
    )


def test_a_reason_of_ours_and_holm_over_the_experiments(world, monkeypatch):
    module = sys.modules["workbook.studies.ledger"]
    monkeypatch.setattr(
        module, "untestable", lambda: {("confidence_tuning", "H1 ratio"): "it is fixed by algebra"}
    )
    monkeypatch.setattr(
        module, "sentences", lambda: {("confidence_tuning", "H3"): "the whole sentence"}
    )
    monkeypatch.setattr(
        module, "primaries", lambda: [("family", key) for key in ("H1", "H3", "H4", "H6")]
    )
    table = compute_ledger(folder=world).set_index("key")
    assert table.loc["H1 ratio", ["outcome", "reason"]].tolist() == [
        CANNOT,
        "it is fixed by algebra",
    ]
    assert table.loc["H3", "measured"] == "the whole sentence"
    primary = table.loc[["H1", "H3", "H4"]]
    assert primary["p_holm"].tolist() == pytest.approx(holm(primary["p"]).tolist()), (
        "H6 cannot be tested"
    )
    assert table["p_holm"].notna().sum() == 3, "no other row is corrected"
    alone = compute_ledger(folder=world, claims=["H3"]).set_index("key")
    kept = kept_ledger().set_index(["scale", "key"])["p"]
    others = [kept["family", key] for key in ("H1", "H4", "H6")]
    assert alone.loc["H3", "p_holm"] == pytest.approx(holm([alone.loc["H3", "p"], *others])[0]), (
        "as they were kept"
    )
    monkeypatch.setattr(module, "corrected", lambda places: {("family", "H3"): 0.2})
    row = compute_ledger(folder=world, claims=["H3"]).iloc[0]
    assert (row["outcome"], row["reason"].split(";")[0]) == ("open", "does not hold uncorrected")


def test_fewer_than_six_units_are_open(world):
    for unit in range(5, 11):
        results.remove_unit(world, "confidence_tuning", "family", unit)
    row = compute_ledger(folder=world, claims=["H1"]).iloc[0]
    assert row["outcome"] == "open"
    assert row["reason"] == "5 units on 5 policies; a word needs 6"
    assert np.isfinite(row["mean"])
    assert np.isnan([row["low"], row["high"], row["p"], row["p_holm"]]).all()


def test_a_changed_registration_a_modified_tree_and_units_without_a_number_show(world, monkeypatch):
    path = registration_path("confidence_tuning", world)
    measured_under = read_registration("confidence_tuning", world).hash
    stated = documents(path.read_text())["confidence_tuning", ""]
    results.write_text(world, "confidence_tuning", f"{stated}# a word more\n")
    _unit(
        world, 3, _numbers(world, 3).assign(clear=np.nan), "family:seed=3", "other", modified=True
    )
    table = compute_ledger(folder=world, claims=["H1"])
    row = table.iloc[0]
    assert (row["registration"], row["clean"], row["units"], row["dropped"]) == (
        "changed since",
        False,
        9,
        1,
    )
    text = format_ledger(table)
    assert (
        "tables from a modified tree; registration changed since; 1 units without a number" in text
    )
    assert "units added after registration: 10" in text
    assert "outcome was seen" not in text
    results.write_text(world, "confidence_tuning", f"{stated}supersedes: {measured_under}\n")
    assert compute_ledger(folder=world, claims=["H1"]).iloc[0]["registration"] == "changed since", (
        "unit 3 is still another's"
    )
    _unit(world, 3, _numbers(world, 2), "p", measured_under)
    assert compute_ledger(folder=world, claims=["H1"]).iloc[0]["registration"] == "superseded"


def test_units_that_were_measured_after_a_look_show_and_count(world):
    results.write_text(
        world,
        "confidence_tuning",
        "units: 6\nlooked: 2026-11-22\nwhy: time ran out\n",
        note="looked",
    )
    table = compute_ledger(folder=world, claims=["H1"])
    assert (table.iloc[0]["units"], table.iloc[0]["looked"]) == (10, (6, 7, 8, 9))
    assert "units 6 to 9 were measured after the earlier ones' outcome was seen" in format_ledger(
        table
    )


def test_no_outcome_of_a_sealed_study_is_looked_at(world):
    results.write_text(
        world, "confidence_tuning", "sealed: 2026-11-22\nwhy: units are missing\n", note="sealed"
    )
    row = compute_ledger(folder=world, claims=["H1"]).iloc[0]
    assert (row["outcome"], row["units"]) == ("open", 0)
    assert row["reason"].startswith("not measured: confidence_tuning is being measured")
    results.write_text(world, "confidence_tuning", None, note="sealed")
    assert compute_ledger(folder=world, claims=["H1"]).iloc[0]["units"] == 10


def test_the_ledger_as_text_and_json(world, tmp_path):
    table = compute_ledger(folder=world)
    whole = format_ledger(table)
    assert "primary: HOLDS (its whole interval lies above 0)" in whole
    assert (
        f"control: {CANNOT.upper()} (its positive control, H4, does not separate (open))" in whole
    )
    short = format_summary(table).splitlines()
    assert short[0] == "**✓ holds: 1**"
    assert short[1].split("  ")[1] == "H1"
    assert (
        short[-1] == f"9 primary rows: 3 open, 3 {CANNOT}, 1 holds, 1 {TOO_SMALL}, 1 does not hold."
    )
    rows = json.loads(ledger_json(table))["rows"]
    assert rows[0]["values"] == {str(k): v for k, v in table.iloc[0]["values"].items()}
    assert rows[0]["policy_of"]["3"] == "family:seed=3"
    assert None in [row["p_holm"] for row in rows], "NaN is null"
    asked = ["claims", "--folder", str(world), "--json", str(tmp_path / "rows.json")]
    assert __main__.main(asked) == 0
    assert json.loads((tmp_path / "rows.json").read_text())["rows"] == rows


# --- the command line, and what is committed
@pytest.fixture(scope="module")
def computed():
    return compute_ledger()


def test_what_prints_the_findings_loads_nothing_that_measures():
    """It reads the kept ledger: no table of a study, no topic, no torch."""
    code = "import sys; from workbook.__main__ import main; status = main(['findings']); "
    code += (
        "heavy = {'torch', 'scipy', 'altair', 'IPython', 'workbook.studies', 'workbook.chapters'} &"
        " set(sys.modules); "
    )
    code += "assert not heavy, heavy; sys.exit(status)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.startswith("1. ")


def test_no_committed_word_rests_on_fewer_than_six_units(computed):
    table = computed
    decided = table[table["outcome"].isin(["holds", "does not hold", TOO_SMALL])]
    assert (decided["policies"] >= 6).all()
    # of which the tables were measured before
    earlier = decided[decided["registration"] != "matches"]
    assert set(earlier["study"]) <= {"confidence"}, "no threshold was changed elsewhere"
    assert (earlier["registration"] == "superseded").all(), "and there it says so"
    assert decided["clean"].all(), "every table that decides came from an unmodified tree"
    assert set(table.loc[table["role"] == "primary", "claim"]) == set(CLAIMS)
    judged = table[table["role"] != "described"]
    assert set(judged["outcome"]) <= set(OUTCOME_WORDS)


def test_the_printed_command_gives_the_row_that_the_ledger_has(tmp_path, computed):
    """From one study's tables alone."""
    (tmp_path / "dose").mkdir()
    for path in [*table_paths("mass"), experiment_folder("mass") / MANIFEST]:
        shutil.copy(path, tmp_path / "dose")
    whole = computed.query("scale == 'family' and claim == 'H2' and role != 'described'")
    whole = whole.reset_index(drop=True)
    pd.testing.assert_frame_equal(
        compute_ledger("family", tmp_path, ["H2"], described=False), whole, check_dtype=False
    )


def test_sentences_of_rows_are_whole_and_what_rows_yaml_names_is_registered():
    goes_on = kept_ledger()["measured"].str.match("(?i)the same(?! as )")
    assert not goes_on.any(), "write it out in data/book/rows.yaml"
    for study, key in {*sentences(), *untestable()}:
        assert key in read_registration(study).outcomes, (study, key)
    places = set(zip(kept_ledger()["study"], kept_ledger()["key"], strict=True))
    rows = kept_ledger().set_index(["study", "key"]).sort_index()
    for place, why in untestable().items():
        assert place in places
        assert np.all(rows.loc[place, "outcome"] == CANNOT)
        assert np.all(rows.loc[place, "reason"] == why)
    assert registered()["C3"].outcome == "holds", "credit shows there: it is 0 without"


def test_the_experiments_rest_on_rows_of_the_kept_ledger():
    assert len(set(primaries())) == len(primaries())
    for scale, key in primaries():
        assert scale in SCALES
        assert key in registered(scale)
    assert split_key("Q1 value@worlds") == ("worlds", "Q1 value")
    assert split_key("Q4@ramble") == ("world:ramble", "Q4")
    assert split_key("H7 sums") == ("smollm2:sums", "H7 sums")
    assert split_key("Q2 pass@8 sums") == ("smollm2:sums", "Q2 pass@8 sums"), "names no world"
    assert split_key("Q2 300 pass@8@low") == ("world:low", "Q2 300 pass@8")
    with refused("key", "H1 alnoe"):
        row_of("H1 alnoe")


def test_bad_requests_are_one_sentence(capsys):
    assert __main__.main(["claims", "--claim", "H99"]) == 2
    assert "--claim='H99' must be one of H1" in capsys.readouterr().err
    with refused("scale", "huge"):
        compute_ledger("huge")
    with refused("scale", "huge"):
        Tables("huge")


def test_a_chapter_shows_a_row_under_its_sentence(computed):
    printed = " ".join(repr(cards.show_claims({"H1 alone": "They are alike."})).split())
    row = computed.query("scale == 'family'").set_index("key").loc["H1 alone"]
    assert f"{row['outcome']}: They are alike. (H1 alone, {row['role']})" in printed
    assert sentences()["dose", "H1 alone"] in printed
    with pytest.raises(ValueError, match="H1 alone"):
        cards.show_claims({"H1 alnoe": "They are alike."})


def test_every_row_is_a_line_with_its_bar():
    """The dot lies inside the picture, on the side on which it was measured; a row without interval
    has words alone.
    """
    for row in registered().values():
        page = cards.ClaimLines([("what", row)])._repr_html_()
        assert f">{row.outcome}</b>" in page
        if not np.isfinite([row.low, row.threshold, row.smallest_effect]).all():
            assert "<svg" not in page
            continue
        low, high = map(float, re.search(r'd="M([\d.]+) [\d.]+H([\d.]+)"', page).groups())
        dot, threshold = (
            float(re.search(pattern, page)[1]) for pattern in (r'cx="([\d.]+)"', r'd="M([\d.]+) 0V')
        )
        assert 6 <= min(low, dot) <= max(high, dot) <= cards._BAR_WIDTH - 6
        assert (dot - threshold) * (row.mean - row.threshold) >= 0


def test_what_is_too_small_says_which_interval_decided_so():
    for row in registered().values():
        ends = [
            float(end)
            for end in re.findall(
                r"-?[\d.]+(?:e-\d+)?", stated_of(row).partition("90 % interval")[2]
            )
        ]
        if row.outcome == TOO_SMALL:
            low, high = ends
            assert (
                row.threshold - row.smallest_effect
                <= low
                < high
                <= row.threshold + row.smallest_effect
            )
            assert row.low < row.low_90
        elif row.outcome in ("holds", "does not hold"):
            assert ends == []


def test_runs_that_never_got_there_are_no_perfect_null():
    row = registered("world:third")["Q1 world"]
    assert stated_of(row._replace(mean=0.0, low=0.0, high=0.0)).startswith(
        "not reached; 10 of 10 registered units"
    )


def test_what_chapters_read_is_what_the_tables_say(tmp_path, monkeypatch, capsys, computed):
    """The kept ledger is the computed one, and says when the tables are others."""
    kept = kept_ledger(described=True)
    assert capsys.readouterr().out == "", "python -m workbook claims --keep computes it anew"
    pd.testing.assert_frame_equal(kept, computed[kept.columns], check_dtype=False, rtol=1e-9)
    assert set(computed.columns) - set(kept.columns) == set(NESTED)
    path = keep_ledger(computed, tmp_path / "ledger.parquet")
    pd.testing.assert_frame_equal(kept_ledger(path, described=True), kept, check_dtype=False)
    assert format_ledger(kept, commands=True) == format_ledger(computed, commands=True)
    assert "described" not in set(kept_ledger(path)["role"])
    monkeypatch.setattr(sys.modules["workbook.ledger"], "fingerprint", lambda: "other")
    kept_ledger.cache_clear()
    kept_ledger(path)
    assert "claims --keep" in capsys.readouterr().out
    kept_ledger.cache_clear()
