"""Run campaigns and print what held: PYTHONPATH=tests python -m soak [NAME ...] [--trials N] [--seed S].

Each trial's outcome is a line of build/soak/<state of the tree>/<campaign>-<seed>.jsonl, so that a run that was stopped
goes on where it was, and one after a change begins anew. Trials run in a process of their own; one that dies is noted
as a finding, and the next trial starts in a new process.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

from soak import campaign, campaigns

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Run the campaigns asked for, each in a process of its own; 1 if any promise broke."""
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(campaigns())}; all by default")
    parser.add_argument("--trials", type=int, help="default: each campaign's own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--within", metavar="FILE", help=argparse.SUPPRESS)  # this process makes the trials
    args = parser.parse_args()
    if args.within:
        return make_trials(args.names[0], args.trials, args.seed, Path(args.within))
    folder = ROOT / "build" / "soak" / tree_state()
    folder.mkdir(parents=True, exist_ok=True)
    broken = 0
    for name in args.names or campaigns():
        module = campaign(name)
        size = args.trials or module.TRIALS
        path = folder / f"{name}-{args.seed}.jsonl"
        while run_until_it_ends(name, size, args.seed, path):
            pass
        broken += report(name, module.PROMISE, size, path)
    return 1 if broken else 0


def run_until_it_ends(name: str, size: int, seed: int, path: Path) -> bool:
    """Make the trials that are missing in a process of its own; True if it died in one, which is noted."""
    command = [sys.executable, "-m", "soak", name, "--trials", str(size), "--seed", str(seed), "--within", str(path)]
    code = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT / "tests")}, check=False).returncode
    if code == 0:
        return False
    begun = path.with_suffix(".begun")
    if not begun.exists():  # it did not come as far as a trial
        raise SystemExit(f"{name}: its process ended with status {code} before any trial.")
    note(path, begun.read_text(), f"the process died with status {code}", 0.0)
    begun.unlink()
    return True


def make_trials(name: str, size: int, seed: int, path: Path) -> int:
    """Attempt every trial of which `path` has no outcome yet."""
    module, done, begun = campaign(name), set(outcomes(path)), path.with_suffix(".begun")
    for trial, arguments in islice(module.trials(seed), size):
        if trial in done:
            continue
        begun.write_text(trial)
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as folder:
            try:
                finding = module.attempt(Path(folder), *arguments)
            except Exception as error:
                finding = f"{type(error).__name__}: {error}"
        note(path, trial, finding, time.monotonic() - start)
        begun.unlink()
    return 0


def note(path: Path, trial: str, finding: str | None, seconds: float) -> None:
    """Append one trial's outcome."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps({"trial": trial, "finding": finding, "seconds": round(seconds, 3)}) + "\n")
    if finding:
        print(f"  {trial}: {finding}", flush=True)


def outcomes(path: Path) -> dict[str, dict]:
    """What is known of each trial, by its name; a torn last line is left out."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return {row["trial"]: row for row in map(json.loads, lines)}


def report(name: str, promise: str, size: int, path: Path) -> int:
    """Print a campaign's figures; returns the number of trials in which its promise broke."""
    rows = outcomes(path).values()
    findings = sum(row["finding"] is not None for row in rows)
    minutes = sum(row["seconds"] for row in rows) / 60
    print(f"{name}: {findings} of {len(rows)} trials broke the promise, {minutes:.1f} min. {promise}", flush=True)
    return findings


def tree_state() -> str:
    """A name for the code that is tried: the commit's, and a digest of what differs from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    changes = git("diff", "HEAD")
    commit = git("rev-parse", "--short", "HEAD").strip()
    return f"{commit}-{hashlib.sha256(changes.encode()).hexdigest()[:8]}" if changes else commit


if __name__ == "__main__":
    sys.exit(main())
