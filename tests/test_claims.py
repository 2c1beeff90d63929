"""The ledger says what the tables say: in a world where the sweeps' claims hold, and when one result is changed."""

import json
import shlex
import shutil
import subprocess
import sys
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from workbook import __main__, claims
from workbook.book.ledger_page import ledger_page
from workbook.claims import CLAIMS, SCALES, format_ledger, format_summary, ledger, summary, verdict_of
from workbook.statistics import Estimate, Interval, verdict
from workbook.studies.record import RESULTS
from workbook.topics.drift.claims import GSPO, SEQUENCE
from workbook.views.ledger import ledger_chart, standardized

IDS = [
    *("H1", "H2", "H3", "H4", "H5", "H6", "H7", "H8", "H9", "H10", "H11", "H12", "H13"),
    *("R1", "R2", "R3", "R4", "R5"),
    *("D1", "D2", "D3", "D4", "D5", "D6", "D7", "D8", "D9", "P1", "H-falsifier", "D-falsifier"),
]
WORDS = {"replicates", "does not replicate", "inconclusive", "not measured", "met", "not met", "described"}
SEEDS = range(4)


# --- sweeps' tables, as `keep` writes them, of a world in which the papers are right


def _runs(outcomes, **settings) -> pd.DataFrame:
    """A run per seed and combination of settings; outcomes: settings -> {outcome: value}, to which noise is added."""
    rng, rows = np.random.default_rng(0), []
    for seed, *values in product(SEEDS, *settings.values()):
        chosen = dict(zip(settings, values, strict=True))
        noisy = {name: value + 1e-3 * rng.normal() for name, value in outcomes(**chosen).items()}
        rows.append({"run": f"{seed},{values}", "seed": seed, **chosen, **noisy})
    return pd.DataFrame(rows)


def _batching(batching, learning_rate, max_grad_norm):
    gain = {"query_preserved": 0.05, "reward_balanced": 0.04, "sign_partitioned": -0.1}.get(batching, 0)
    in_step = 0.2 if batching == "sign_partitioned" else 0.5
    return {"area": 0.6 + gain, "jitter": 0.1 - gain, "collapsed": 0.2 - gain, "in_step": in_step + learning_rate}


def _drift(importance_sampling_level, epsilon, clipping, group_transform, num_iterations):
    fixed, sequence = group_transform is not None, importance_sampling_level == "sequence"
    residual = 0.5 if sequence else 0.05 if clipping == "symmetric" or epsilon > 1 else 0.3
    return {
        "shared_residual": 0.0 if fixed else residual,
        "tax": 0.01 if fixed else 0.05 * (1 + np.log2(num_iterations)),
        "solution_entropy_lost": 0.01 if fixed else 0.3,
        "final": 0.9 if fixed else 0.8,
        "jitter": 0.05 if fixed else 0.1,
        "compute_to_score": 5.0 if fixed else np.nan,
    }


def _clipped(group_transform, num_iterations):
    fixed = group_transform is not None
    return {"final": 0.8 + 0.1 * fixed, "jitter": 0.1, "tax": 0.05, "collapsed": 0.0, "compute_to_score": 5.0}


def _sizes(num_generations, group_transform, importance_sampling_level, per_device_train_batch_size):
    return {"final": 0.7 + 0.02 * np.log2(num_generations) * (group_transform is not None)}


def _causes(optim, group_transform, policy, false_negative_rate):
    fixed = group_transform is not None
    return {"tax": 0.004 if fixed else 0.05, "odds": 0.05 if fixed else 0.4, "collapsed": 0.0}


TRANSFORMS = [None, "min_replace", "advantage_orthogonal"]
SWEEPS = {
    "batching": lambda: _runs(
        _batching,
        batching=["shuffled", "query_preserved", "reward_balanced", "sign_partitioned"],
        learning_rate=[0.1, 0.2],
        max_grad_norm=[0.0, 1.0],
    ),
    "drift_fixing": lambda: _runs(
        _drift,
        importance_sampling_level=["token", "sequence"],
        epsilon=[0.03, 0.2, 1e9],
        clipping=[None, "symmetric"],
        group_transform=TRANSFORMS,
        num_iterations=[1, 2, 4],
    ),
    "drift_fixing_clipped": lambda: _runs(_clipped, group_transform=TRANSFORMS, num_iterations=[2, 4]),
    "group_size": lambda: _runs(
        _sizes,
        num_generations=[2, 4, 8],
        group_transform=TRANSFORMS[:2],
        importance_sampling_level=["token", "sequence"],
        per_device_train_batch_size=[16, 32],
    ),
    "what_causes_what": lambda: _runs(
        _causes,
        optim=["adamw_torch", "sgd"],
        group_transform=TRANSFORMS[:2],
        policy=["bundled", "build/policies/hard"],
        false_negative_rate=[np.nan, 0.58],
    ),
    "advantages": lambda: _runs(
        lambda advantage_estimator: {"area": 0.6 + 0.05 * (advantage_estimator == "prefix_credit")},
        advantage_estimator=["grpo", "prefix_credit"],
    ),
}


def _write(folder: Path, study: str, table: pd.DataFrame, scale: str = "bundled") -> None:
    place = folder / study / scale
    place.mkdir(parents=True, exist_ok=True)
    table.to_parquet(place / "runs.parquet")
    batches = pd.DataFrame({"step": range(6), "reward": [0.4, np.nan, 0.5, np.nan, 0.6, np.nan]})  # three were sampled
    table[["run"]].merge(batches, how="cross").to_parquet(place / "curves.parquet")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """All sweeps at the bundled scale, in which the papers are right, and no other study."""
    folder = tmp_path_factory.mktemp("world")
    for study, make in SWEEPS.items():
        _write(folder, study, make())
    return folder


@pytest.fixture(scope="module")
def world_ledger(world):
    return ledger("bundled", fragile=False, folder=world)


def _verdicts(table: pd.DataFrame) -> pd.Series:
    deciding = table[table["verdict"] != "described"]
    return deciding.set_index(["claim", "measured"])["verdict"]


# --- the committed tables give what they gave

# Made once, from the tables in data/results/:
#   table = ledger()
#   texts = [{str(seed): verdict for seed, verdict in row.items()} for row in table["without"]]
#   table["without"] = [json.dumps(row, sort_keys=True) for row in texts]
#   table.to_parquet("tests/data/ledger.parquet", index=False)
RECORDED = Path(__file__).parent / "data" / "ledger.parquet"


@pytest.fixture(scope="module")
def committed():
    """The ledger of the committed tables, every verdict recomputed without each seed."""
    return ledger()


def test_the_ledger_equals_the_recorded_one_value_for_value(committed):
    recorded = pd.read_parquet(RECORDED)
    recorded["without"] = [{int(seed): v for seed, v in json.loads(row).items()} for row in recorded["without"]]
    rows = committed[committed["claim"].isin(recorded["claim"])].reset_index(drop=True)  # a new claim adds its own
    pd.testing.assert_frame_equal(rows, recorded, rtol=1e-12, atol=1e-12)


def test_a_claim_alone_is_measured_as_in_the_ledger(committed):
    columns = ["claim", "study", "measured", "stated", "mean", "low", "high", "seeds", "n", "verdict", "reason"]
    for name in ("H2", "R1", "H-falsifier"):
        rows = committed[(committed["claim"] == name) & (committed["scale"] == "smollm2_chat")]
        alone = claims.measurements(name, claims.Tables("smollm2_chat"))
        pd.testing.assert_frame_equal(alone[columns], rows[columns].reset_index(drop=True), check_dtype=False)


def test_the_command_line_loads_no_model_library():
    """What `python -m workbook claims` answers must not wait for torch, TRL or altair."""
    code = "import sys; from workbook.__main__ import main; status = main(['claims', '--claim', 'H12']); "
    code += "loud = {'torch', 'trl', 'transformers', 'bitsandbytes', 'altair', 'scipy'} & set(sys.modules); "
    code += "assert not loud, loud; sys.exit(status)"
    answer = subprocess.run([sys.executable, "-c", code], cwd=RESULTS.parents[1], capture_output=True, text=True)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.startswith("H12  ")


# --- every claim is there


def test_every_claim_has_a_row_at_every_scale_and_a_reason_where_nothing_was_measured(tmp_path):
    _write(tmp_path, "batching_pilot", pd.DataFrame({"run": ["a"], "seed": [0]}))  # which no claim reads
    table = ledger(folder=tmp_path)
    assert set(IDS) <= set(CLAIMS)
    for scale in SCALES:
        assert set(table.loc[table["scale"] == scale, "claim"]) == set(CLAIMS)
    assert set(table["verdict"]) == {"not measured"}
    assert not table["fragile"].any()
    assert (table["reason"].str.len() > 10).all()
    assert (table[["statement", "falsifier"]].map(len) > 10).all(axis=None)
    assert (table.loc[table["scale"] == "bundled", "command"].str.len() > 10).all()
    assert (table.loc[table["scale"] == "larger", "command"] == "").all(), "nothing is declared that would measure it"
    assert set(table.loc[table["scale"] == "larger", "reason"]) == {claims.NEEDS_GPU}
    batching = table[(table["claim"] == "H12") & (table["scale"] == "bundled")]
    assert batching["reason"].str.contains("sweep data/configs/studies/batching.yaml").all()
    with pytest.raises(ValueError, match="scale='huge' is unknown: choose one of bundled, smollm2_chat"):
        ledger("huge")


def test_commands_are_those_of_the_command_line():
    root = RESULTS.parents[1]
    studies = ("flips", "minibatches", *SWEEPS)
    for study, claim, scale in product(studies, ("H1", "D-falsifier"), SCALES[:2]):
        steps = claims.command(study, claim, scale)
        assert steps or (scale != "bundled" and study in SWEEPS)
        for step in filter(None, steps.split(" && ")):
            program, *arguments = shlex.split(step)
            assert program == "python"
            if arguments[:2] == ["-m", "workbook"]:
                args = __main__._parser().parse_args(arguments[2:])
                assert getattr(args, "config", None) is None or (root / args.config).exists()
                assert getattr(args, "claim", claim) == claim
            else:
                assert (root / arguments[0]).exists()


# --- the verdicts follow from the tables


def test_in_a_world_where_the_papers_are_right_every_sweep_says_so(world_ledger):
    measured = world_ledger[world_ledger["mean"].notna()]
    assert set(measured["verdict"]) == {"replicates", "not met", "described"}
    names = set(measured["claim"])
    assert names == {"H11", "H12", "H13", *(f"D{k}" for k in range(1, 10)), "P1", "D-falsifier"}
    assert not world_ledger.loc[world_ledger["study"].isin(SWEEPS), "mean"].isna().any(), (
        "every row of a sweep finds its runs"
    )
    assert set(world_ledger["verdict"]) <= WORDS
    rows = world_ledger.set_index(["claim", "measured"])
    tax = rows.loc[("D1", "tax: min_replace / no fix")]
    assert tax["mean"] == pytest.approx(0.01 / np.mean([0.05 * 2, 0.05 * 3]), rel=0.05)
    assert (tax["seeds"], tax["n"]) == (len(SEEDS), len(SEEDS) * 2 * 2 * 2)  # transforms x reuse x clipping
    spent = rows.loc[("D8", "compute to a score: min_replace / no fix")]
    assert spent["mean"] == pytest.approx(5 / np.mean([3 * 7, 3 * 13]), rel=0.01), "never: the compute of three batches"
    grown = rows.loc[("D4", "no fix: tax, nats per doubling of reuse")]
    assert grown["mean"] == pytest.approx(0.05, rel=0.05)
    other = rows.loc[("D8", "advantage_orthogonal on clipped weights - no fix: held-out reward at the end")]
    assert other["mean"] == pytest.approx(0.1, rel=0.05)
    assert other["verdict"] == "described"
    by_factor = world_ledger[world_ledger["measured"].str.startswith("tax by group_transform")]
    assert by_factor["mean"].item() == pytest.approx(0.004 - 0.05, rel=0.05)


def _raise(table, outcome, by, **settings):
    chosen = np.logical_and.reduce([table[name] == value for name, value in settings.items()])
    return table.assign(**{outcome: table[outcome] + by * chosen})


CHANGES = {  # study, change, and the rows whose verdict must become which
    "H11 harm": ("batching", partial(_raise, outcome="area", by=0.5, batching="sign_partitioned"), {"H11": "area"}),
    "H12": ("batching", partial(_raise, outcome="area", by=-0.5, batching="query_preserved"), {"H12": "area"}),
    "H13": ("batching", partial(_raise, outcome="collapsed", by=0.5, batching="reward_balanced"), {"H13": "collapse"}),
    "D7": (
        "drift_fixing",
        partial(_raise, outcome="shared_residual", by=0.5, group_transform="advantage_orthogonal", **SEQUENCE),
        {"D7": "rollouts share"},
    ),
    "D8": (
        "drift_fixing",
        partial(_raise, outcome="jitter", by=0.5, group_transform="min_replace", epsilon=GSPO["epsilon"]),
        {"D8": "jitter"},
    ),
    "D9": (
        "group_size",
        partial(_raise, outcome="final", by=0.5, group_transform="min_replace", num_generations=2),
        {"D9": "held-out"},
    ),
    "D-falsifier": (
        "what_causes_what",
        partial(_raise, outcome="tax", by=0.5, group_transform="min_replace"),
        {"D-falsifier": "1: tax"},
    ),
    "no harm": (
        "what_causes_what",
        partial(_raise, outcome="tax", by=0.5, policy="build/policies/hard"),
        {},
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_result_changes_its_own_verdict_and_no_other(name, world, world_ledger, tmp_path):
    study, change, expected = CHANGES[name]
    shutil.copytree(world, tmp_path / "results")
    _write(tmp_path / "results", study, change(SWEEPS[study]()))
    before, after = _verdicts(world_ledger), _verdicts(ledger("bundled", fragile=False, folder=tmp_path / "results"))
    changed = after[after != before]
    assert set(changed.index.get_level_values(0)) == set(expected)
    for (claim, measured), outcome in changed.items():
        assert expected[claim] in measured
        assert outcome == ("met" if "falsifier" in claim else "does not replicate")
    assert len(changed) == len(expected)


def test_a_corrupted_table_of_what_is_committed_changes_its_claim_alone(tmp_path):
    folder = tmp_path / "results"
    for study in ("flips", "coupling", "credit"):
        shutil.copytree(RESULTS / study / "smollm2_chat", folder / study / "smollm2_chat")
    before = ledger("smollm2_chat", fragile=False, folder=folder)
    assert _verdicts(before)[("H4", "share of tokens that agree, at the worst moment")] == "replicates"
    for path in (folder / "coupling" / "smollm2_chat").glob("seed=*/agreement.parquet"):
        table = pd.read_parquet(path)
        table.assign(agree=1 - table["agree"]).to_parquet(path)
    after = ledger("smollm2_chat", fragile=False, folder=folder)
    changed = _verdicts(after)[_verdicts(after) != _verdicts(before)]
    assert changed.to_dict() == {("H4", "share of tokens that agree, at the worst moment"): "does not replicate"}
    shutil.rmtree(folder / "credit")
    without_credit = ledger("smollm2_chat", fragile=False, folder=folder).set_index("claim")
    assert without_credit.loc["H8", "verdict"] == "not measured"
    assert "python -m workbook measure credit --scale smollm2_chat" in without_credit.loc["H8", "reason"]
    assert set(without_credit.loc[["H4"], "verdict"]) == {"does not replicate"}
    drawn = standardized(before)
    clear = drawn[(drawn["reason"] == "") & ~drawn["claim"].str.contains("falsifier")]
    assert ((clear["z"] > 1) == (clear["verdict"] == "replicates")).all(), "beyond 1 exactly if it replicates"
    assert "SmolLM2-135M: " in ledger_chart(before).to_dict()["description"]


# --- fragile


def _odd_seed(odd: float) -> pd.DataFrame:
    """Batching runs in which balance gains 0.1 to 0.12 in every seed but the last, which gains `odd`."""
    table = SWEEPS["batching"]()
    gains = dict.fromkeys(SEEDS, 0.1) | {SEEDS[-1]: odd}
    return _raise(
        table.assign(area=0.5 + 0.001 * table["seed"]), "area", table["seed"].map(gains), batching="reward_balanced"
    )


def test_a_verdict_that_hangs_on_one_seed_is_fragile(tmp_path):
    _write(tmp_path, "batching", _odd_seed(-0.5))
    table = ledger("bundled", folder=tmp_path, n_jobs=1)
    area = table[table["measured"] == "reward_balanced - shuffled: area under the reward curve"].iloc[0]
    assert area["verdict"] == "inconclusive"
    assert area["fragile"]
    assert area["without"] == dict.fromkeys(SEEDS[:-1], "inconclusive") | {SEEDS[-1]: "replicates"}
    _write(tmp_path, "batching", _odd_seed(0.2))
    sure = ledger("bundled", folder=tmp_path, n_jobs=1)
    area = sure[sure["measured"] == area["measured"]].iloc[0]
    assert (area["verdict"], area["fragile"]) == ("replicates", False)
    assert area["mean"] == pytest.approx(0.125)
    _write(tmp_path, "batching", _odd_seed(0.2).query("seed == 0"))
    alone = ledger("bundled", folder=tmp_path, n_jobs=1)
    assert alone[alone["measured"] == area["measured"]]["without"].item() == {0: "not measured"}


def test_a_claim_is_fragile_only_if_its_worst_verdict_is():
    rows = [
        ("H1", "replicates", {0: "inconclusive", 1: "replicates"}),
        ("H1", "does not replicate", {0: "does not replicate"}),
        ("H2", "replicates", {0: "replicates", 1: "inconclusive"}),
        ("H2", "described", {}),
        ("D-falsifier", "not met", {}),
        ("D-falsifier", "met", {}),
    ]
    table = pd.DataFrame(rows, columns=["claim", "verdict", "without"]).assign(scale="bundled", paper="H", statement="")
    claimed = summary(table).set_index("claim")
    assert claimed["verdict"].to_dict() == {"H1": "does not replicate", "H2": "replicates", "D-falsifier": "met"}
    assert claimed["fragile"].to_dict() == {"H1": False, "H2": True, "D-falsifier": False}


# --- falsifiers


def test_paper_h_is_refuted_by_shared_tokens_that_move_as_far_or_boosted_ones_worth_no_more():
    rows = CLAIMS["H-falsifier"].rows

    def outcomes(shared, gap, doubt=""):
        estimates = Estimate(*shared, 6, 60), Estimate(*gap, 6, 60, doubt)
        return [verdict_of(e, row, falsifier=True)[0] for e, row in zip(estimates, rows, strict=False)]

    assert outcomes((1.5, 1.0, 2.0), (0.1, 0.05, 0.2)) == ["met", "not met"]
    assert outcomes((0.5, 0.4, 0.9), (-0.1, -0.2, 0.0)) == ["not met", "met"]
    assert outcomes((0.9, 0.8, 1.1), (0.1, 0.0, 0.2)) == ["inconclusive", "inconclusive"]
    assert outcomes((0.5, 0.4, 0.9), (0.1, 0.05, 0.2), "fewer than 10 prompts") == ["not met", "inconclusive"]


@pytest.mark.parametrize(
    ("tax", "collapsed", "expected"),
    [(0.05, 0.0, "not met"), (0.001, 0.0, "met"), (0.001, 1.0, "not met"), (0.001, "one run", "inconclusive")],
)
def test_paper_d_is_refuted_by_unfixed_runs_that_neither_drift_nor_collapse(tmp_path, tax, collapsed, expected):
    table = SWEEPS["what_causes_what"]()
    bare = table["group_transform"].isna()
    once = (
        table.index == table.index[bare & table["false_negative_rate"].isna() & (table["policy"] == "bundled")][0]
    ) * 1.0
    table = table.assign(tax=np.where(bare, tax, 0.001), collapsed=once if collapsed == "one run" else collapsed)
    _write(tmp_path, "what_causes_what", table)
    judged = ledger("bundled", fragile=False, folder=tmp_path)
    parts = judged[(judged["claim"] == "D-falsifier") & (judged["verdict"] != "described")].set_index("measured")[
        "verdict"
    ]
    assert parts.filter(like="1: tax").item() == "not met"
    assert parts.filter(like="2: tax").item() == expected


# --- text and page


def test_the_ledger_as_text_and_as_a_page(world_ledger, world, capsys, tmp_path):
    text = format_ledger(world_ledger, commands=True)
    assert all(f"{name}  {claim.statement}" in text for name, claim in CLAIMS.items())
    assert "$ python -m workbook sweep data/configs/studies/batching.yaml" in text
    short = format_summary(world_ledger).splitlines()
    assert len(short) == 1 + len(CLAIMS), "a head, and a line for each claim"
    assert short[0].split() == ["claim", "bundled", "states", "that"]
    assert [line.split()[0] for line in short[1:]] == list(CLAIMS)
    assert "replicates" in {line.split()[1] for line in short[1:]}
    page = ledger_page(world_ledger.assign(measured=world_ledger["measured"] + "<b>&"))
    assert all(f'<section id="{name}">' in page for name in IDS)
    assert "<b>" not in page
    assert "<script" not in page
    assert "<math" in page
    assert 'alt="How far each measurement lies' in page
    out = tmp_path / "ledger.html"
    asked = ["claims", "--scale", "bundled", "--claim", "H12", "--folder", str(world), "--html", str(out)]
    assert __main__.main(asked) == 0
    printed = capsys.readouterr().out
    assert "H12  " in printed
    assert "H13  " not in printed
    assert "replicates" in printed
    assert '<section id="H12">' in out.read_text(encoding="utf-8")
    assert __main__.main(["claims", "--claim", "H99"]) == 2
    assert "--claim H99 is unknown: choose one of H1" in capsys.readouterr().err


def test_distances_are_beyond_one_exactly_where_the_interval_is_clear():
    rng = np.random.default_rng(0)
    low, mean, high = np.sort(rng.normal(size=(3, 400)), axis=0)
    table = pd.DataFrame({"mean": mean, "low": low, "high": high, "threshold": rng.normal(size=400) / 2, "toward": 1.0})
    table["toward"] = rng.choice([-1.0, 1.0], 400)
    for row in standardized(table).itertuples():
        limit = {"above" if row.toward > 0 else "below": row.threshold}
        outcome = verdict(Interval(row.mean, row.low, row.high), **limit)
        assert outcome == ("replicates" if row.z > 1 else "does not replicate" if row.z < -1 else "inconclusive")
    flat = pd.DataFrame({"mean": [0.0, 2.0], "low": [0.0, 2.0], "high": [0.0, 2.0], "threshold": 0.0, "toward": 1.0})
    assert standardized(flat)["z"].tolist() == [0.0, 100.0]
    with pytest.raises(ValueError, match="ledger_chart needs the column"):
        ledger_chart(flat)
