"""Run folders with damage, links and a reader's own files in them: read, resumed, exported and started anew in."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import random
import shutil
import tempfile
from pathlib import Path

PROMISE = (
    "Whatever is damaged in a run's folder is an answer or one sentence, nothing that a run did not write is changed, "
    "and a run that finishes has the weights of one that was left alone."
)
TRIALS = 1500

CONFIG = {
    **{"name": "folders", "num_prompts": 8, "threads": 1, "eval_prompts": 2, "eval_group_size": 2},
    "trainer": {
        **{"num_generations": 2, "per_device_train_batch_size": 4, "steps_per_generation": 2, "max_steps": 6},
        **{"max_completion_length": 6, "save_steps": 2, "learning_rate": 1e-3, "loss_type": "dr_grpo"},
    },
}
TEXTS = [  # in the place of a JSON file
    *("", "null", "[]", "{}", "[1, 2]", '"x"', "NaN", "1e999", "9" * 5000, "[" * 100_000, '{"a": ', "[{}]", "[null]"),
    *('{"state": 7}', '{"state": "running", "pid": "x"}', '{"state": "running", "pid": -1, "born": NaN}', "\ud800"),
    *(
        '{"state": "running", "pid": 99999999999999999999, "born": 0.0}',
        '{"config": 3}',
        '{"versions": 1, "config": {}}',
    ),
    *('[{"label": "before", "mean": "x", "low": 0, "high": 1}]', '{"x": {"bytes": 1}}', '{"../../x": {"sha256": ""}}'),
    '{"state": "finished", "message": ["a"], "notes": "b", "total": "c", "pid": 1, "born": 0.0}',
]
ROWS = [
    *('{"step": "x"}', '{"step": NaN, "reward": 1}', '{"step": -1}', '{"step": 3.5}', '{"step": true}', "[1]", "null"),
    *('{"step": 2, "reward": "x", "time": null}', '{"step": 1e400}', '{"reward": 1.0}', '{"step": {}}', "{", "\x00"),
]
FOREIGN = ["notes.txt", "checkpoint-²/a", "checkpoint-007/a", "checkpoint-500/a", "checkpoint-4x/a", ".draft.7.tmp"]
FOREIGN += ["sub/.draft.7.tmp", "sub/.final.7.tmp/a", "final.kept/a", "samples/mine.parquet", "tokens/mine.parquet"]
FOREIGN += ["checkpoint-2/mine", "final/b"]
LINKED = ["checkpoint-900", "final", "status.json", ".status.json.7.tmp", ".final.7.tmp", "samples", "manifest.json"]
LINKED += ["metrics.jsonl", "samples.json", "evaluation.json", "config.yaml", "log.txt", "training.lock"]
LINKED += ["stop", "checkpoint-4", "tokens"]


def trials(seed: int):
    for i in range(1_000_000):
        yield f"{seed}.{i}", (seed * 1_000_003 + i,)


@functools.cache
def whole() -> Path:
    """A finished run, and beside it the same run, stopped after its fourth step."""
    from workbook.training.runs import create_run
    from workbook.training.worker import execute

    folder = Path(tempfile.mkdtemp(prefix="soak-run-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    execute(create_run(CONFIG, folder / "whole").folder)
    stopped_copy(folder / "whole", folder / "stopped")
    return folder


def stopped_copy(whole: Path, copy: Path) -> Path:
    """Copy a finished run of six steps as it was after its fourth."""
    shutil.copytree(whole, copy)
    for name in ("final", "checkpoint-6"):
        shutil.rmtree(copy / name)
    status = json.loads((copy / "status.json").read_text())
    (copy / "status.json").write_text(json.dumps(status | {"state": "stopped", "message": "Stopped."}))
    return copy


def attempt(folder: Path, seed: int) -> str | None:
    chance = random.Random(seed)
    run = folder / "runs" / "run"
    shutil.copytree(whole() / chance.choice(["whole", "stopped", "stopped"]), run)
    for _ in range(chance.randint(1, 3)):
        chance.choice([_tear, _tear, _retype, _retype, _put_foreign, _put_foreign, _link, _rows, _remove])(
            run, folder / "elsewhere", chance
        )
    before = _foreign(folder)
    problems = [problem for name, use in _uses(folder, run) if (problem := _answer(name, use))]
    if lost := {path for path, content in before.items() if _foreign(folder).get(path) != content}:
        # a folder in the place of one of ours is renamed, with all that it holds
        moved = _contents(folder)
        if any(before[path] not in moved for path in lost):
            problems.append(f"{sorted(lost)[0]} was changed")
    return "; ".join(problems) or None


def _uses(folder: Path, run: Path):
    from workbook.training import compare_runs, latest_run, load_run
    from workbook.training.export import export_config, export_run
    from workbook.training.runs import Run, create_run
    from workbook.training.worker import execute

    yield "read", lambda: [repr(load_run(run)), Run(run).metrics(), Run(run).samples(), Run(run).evaluation()]
    yield "manifest", lambda: Run(run).manifest()
    yield "policy", lambda: Run(run).policy()
    yield "compare", lambda: compare_runs([run])
    yield "latest", lambda: latest_run(folder=folder / "runs")
    yield "create", lambda: create_run(CONFIG, run)
    yield "export_config", lambda: export_config(Run(run).config, run)
    yield "execute", lambda: _trained(execute(run).folder)
    yield "read again", lambda: [repr(load_run(run)), Run(run).metrics(), Run(run).samples(), Run(run).evaluation()]
    yield "export", lambda: export_run(Run(run), folder / "taken")


def _trained(run: Path) -> None:
    """Assert that a run which says that it finished has the weights of the one that was left alone."""
    model = "final/model.safetensors"
    state = json.loads((run / "status.json").read_text())["state"]
    assert state != "finished" or (run / model).read_bytes() == (whole() / "whole" / model).read_bytes(), (
        "other weights"
    )


def _answer(name: str, use) -> str | None:
    """What is wrong with how a use ended, if it did not succeed and did not say why in one sentence."""
    try:
        with contextlib.redirect_stderr(open(os.devnull, "w")), contextlib.redirect_stdout(open(os.devnull, "w")):
            use()
    except (json.JSONDecodeError, UnicodeError) as error:
        return f"{name}: {type(error).__name__}: {error}"
    except (ValueError, OSError, RuntimeError) as error:
        if not str(error) or "\n" in str(error).strip() or len(str(error)) > 500:
            return f"{name}: {error!r} is not one sentence"
    except Exception as error:
        return f"{name}: {type(error).__name__}: {error}"
    return None


def _foreign(folder: Path) -> dict[str, str]:
    """All that a reader owns: what lies elsewhere, and in the run's folder what is marked as theirs, or is a link."""
    owned = {}
    for parent, folders, names in os.walk(folder):
        for path in (Path(parent) / name for name in [*names, *folders]):
            if path.is_symlink():
                owned[str(path.relative_to(folder))] = f"-> {os.readlink(path)}"
            elif path.is_file() and path.read_bytes()[:7] == b"foreign":
                owned[str(path.relative_to(folder))] = path.read_text()
    return owned


def _contents(folder: Path) -> set[str]:
    return set(_foreign(folder).values())


def _files(run: Path, chance) -> Path:
    return chance.choice(sorted(p for p in run.rglob("*") if p.is_file() and not p.is_symlink()))


def _mark(chance) -> str:
    return f"foreign {chance.random()}"


def _tear(run, _, chance):
    path = _files(run, chance)
    content = path.read_bytes()
    if path.read_bytes()[:7] == b"foreign":
        return
    at = chance.randrange(len(content) + 1)
    path.write_bytes(content[:at] if chance.random() < 0.5 else content[:at] + chance.randbytes(3) + content[at + 3 :])


def _retype(run, _, chance):
    records = sorted(p for p in run.rglob("*.json") if p.is_file() and not p.is_symlink())
    if records:
        chance.choice(records).write_bytes(chance.choice(TEXTS).encode(errors="surrogatepass"))


def _put_foreign(run, _, chance):
    path = run / chance.choice([*FOREIGN, *(f"{name}/mine" for name in LINKED if "." in name and name[0] != ".")])
    if path.parent != run and path.parent.is_file():
        path.parent.unlink()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_mark(chance))


def _link(run, elsewhere, chance):
    """Put a link where a file or folder of ours lies; what it leads to is a copy of that, or nothing."""
    path = run / chance.choice(LINKED)
    target = elsewhere / f"{path.name}-{chance.random()}"
    elsewhere.mkdir(exist_ok=True)
    if path.is_symlink():
        return
    if path.exists():
        path.rename(target)
        if target.is_dir():
            (target / "mine").write_text(_mark(chance))
        else:
            target.write_text(_mark(chance))
    elif chance.random() < 0.5:
        target.write_text(_mark(chance))
    path.symlink_to(target)


def _rows(run, _, chance):
    path = run / "metrics.jsonl"
    if path.is_file() and not path.is_symlink():
        lines = path.read_text(errors="replace").split("\n")
        for _ in range(chance.randint(1, 4)):
            lines.insert(chance.randrange(len(lines)), chance.choice(ROWS))
        path.write_text("\n".join(lines))


def _remove(run, _, chance):
    path = _files(run, chance)
    if path.read_bytes()[:7] != b"foreign":
        path.unlink()
