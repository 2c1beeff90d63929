"""Studies that are sweeps: their rates follow from the pilot, and what runs came to is kept whole."""

import json
from types import SimpleNamespace

import pytest
import yaml

from workbook.places import data_path
from workbook.studies import keep
from workbook.studies.keep import keep_sweep
from workbook.studies.record import RESULTS
from workbook.studies.scales import SCALES
from workbook.studies.sweeps import OUTCOMES, load_runs, study_commands, study_config
from workbook.training import sweep
from workbook.training.sweeps import combinations, load_sweep

CONFIGS = RESULTS.parent / "configs" / "studies"
SMALL = {
    "policy": "bundled",
    "task": "chain",
    "num_prompts": 16,
    "eval_prompts": 4,
    "threads": 1,
    "trainer": {
        "max_steps": 8,
        "learning_rate": 1e-3,
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "steps_per_generation": 2,
        "gradient_accumulation_steps": 1,
        "max_completion_length": 48,
        "loss_type": "dr_grpo",
        "max_grad_norm": 0.0,
        "measure_cancellation": 2,
        "save_strategy": "no",
    },
}


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda path: str(path.relative_to(CONFIGS)))
def test_declared_studies_are_sound(path):
    """Every run of every grid has a name of its own, and a config and trainer settings that are accepted."""
    from workbook.training.checks import problems
    from workbook.training.config import CancellationConfig

    config, grid = load_sweep(path)
    runs = combinations(config, grid)
    scale = "bundled" if path.parent == CONFIGS else path.parent.name
    assert path == RESULTS.parents[1] / study_config(path.stem, scale)
    make, keep = study_commands(path.stem, scale)
    assert f"#     {make}\n#     {keep}\n" in path.read_text()
    for settings in {json.dumps(s | {"seed": 0}): s for _, _, s in runs}.values():
        trainer = config.override(settings).trainer
        args = CancellationConfig(output_dir="unused", use_cpu=True, bf16=False, **trainer)
        assert [p.sentence for p in problems(args) if p.severity == "error"] == []


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    home = tmp_path_factory.mktemp("study")
    sweep(SMALL, {"seed": [0, 1], "batching": ["shuffled", "query_preserved"]}, home / "small", n_jobs=2, quiet=True)
    return home, keep_sweep(home / "small", results=home / "results")


def test_keep_writes_every_outcome(kept):
    home, place = kept
    assert place == home / "results" / "small" / "bundled"
    runs = load_runs("small", folder=home / "results")
    assert set(OUTCOMES) <= set(runs.columns)
    assert runs[["seed", "batching"]].drop_duplicates().shape[0] == len(runs) == 4
    assert runs["area"].between(0, 1).all()
    assert (runs["tax"] > 0).all()
    assert runs["in_step"].between(0, 1).all()
    curves = load_runs("small", table="curves", folder=home / "results")
    area = curves.groupby("run")["reward"].mean()
    assert runs.set_index("run")["area"].to_dict() == pytest.approx(area.to_dict(), abs=1e-6)
    manifest = json.loads((place / "manifest.json").read_text())
    assert manifest["runs"] == 4
    assert manifest["failed"] == 0
    assert "keep runs/small" in manifest["command"]
    assert runs["commit"].dropna().isin(manifest["commits"]).all(), "each run keeps the commit that it was made from"
    assert manifest["modified"] == runs["modified"].fillna(False).sum()


def test_keep_refuses_what_has_not_ended(kept, tmp_path):
    home, _ = kept
    with pytest.raises(ValueError, match="holds no run"):
        keep_sweep(tmp_path)
    run = tmp_path / "small" / "seed=0"
    run.mkdir(parents=True)
    source = home / "small" / "seed=0,batching=shuffled"
    for name in ("config.yaml", "metrics.jsonl"):
        (run / name).write_text((source / name).read_text())
    status = json.loads((source / "status.json").read_text()) | {"state": "stopped"}
    (run / "status.json").write_text(json.dumps(status))
    with pytest.raises(ValueError, match=r"1 of 1 runs in .* have not ended, the first is seed=0"):
        keep_sweep(tmp_path / "small")


def test_what_was_not_measured_names_its_commands(tmp_path):
    make, keep = study_commands("batching", "smollm2_plain")
    with pytest.raises(ValueError, match=f"{make}, then {keep}, make it"):
        load_runs("batching", scale="smollm2_plain", folder=tmp_path)
    with pytest.raises(ValueError, match="no grid of runs is declared for it"):
        load_runs("batching", scale="larger")


def test_runs_are_kept_at_no_scale_but_their_own(kept):
    home, _ = kept
    with pytest.raises(ValueError, match="scale='smollm2_plain' is not that of these runs: they train bundled"):
        keep_sweep(home / "small", scale="smollm2_plain", results=home / "elsewhere")
    assert not (home / "elsewhere").exists()


def test_runs_of_plain_sums_are_of_another_scale_than_sums_in_a_chat():
    """SmolLM2's two tasks: a run belongs to the scale whose policy, task and options are its own."""
    path = data_path("configs", "studies", "smollm2_plain", "batching.yaml")
    config, _ = load_sweep(path)
    fits = [scale.name for scale in SCALES.values() if keep._trained_at(scale, [SimpleNamespace(config=config)])]
    assert fits == ["smollm2_plain"]


def test_the_list_of_grids_is_checked(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(SMALL | {"grid": [{"seed": [0, 1]}, {"seed": 3}]}))
    with pytest.raises(ValueError, match="needs a grid"):
        load_sweep(path)
    path.write_text(yaml.safe_dump(SMALL | {"grid": [{"seed": [0, 1]}, {"seed": [3], "optim": ["sgd"]}]}))
    config, grid = load_sweep(path)
    assert list(combinations(config, grid)) == ["seed=0", "seed=1", "seed=3,optim=sgd"]
