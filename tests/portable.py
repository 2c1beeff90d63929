"""The tests that train, as other CPUs would run them: other instructions, other matrix products, other last bits.

    python tests/portable.py                      every setting; first records which tests train
    python tests/portable.py "as is" "seed 1"     some
    python tests/portable.py --anew               records again which tests train, before every setting

A test that leans on what a training in it happened to reach fails in one of them. Which tests train is recorded by
`pytest --trains FILE` into build/portable/trains.txt; `pytest --perturb SEED` perturbs the weights that tests start
from. tests/hooks does both.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
FOLDER = TESTS.parent / "build" / "portable"
LIST = FOLDER / "trains.txt"
SETTINGS = {  # name: environment, options of pytest
    "as is": ({}, []),
    "no vector instructions": ({"ATEN_CPU_CAPABILITY": "default"}, []),
    "compatible products": ({"MKL_CBWR": "COMPATIBLE"}, []),
    **{f"seed {seed}": ({}, ["--perturb", str(seed)]) for seed in range(1, 6)},
}
# Those that mean nothing with perturbed weights, and those of more than a minute.
NOT_PERTURBED = {}


def pytest_of(arguments: list[str], environment: dict[str, str], log: Path) -> str:
    """Run pytest in one process, its output into a file; return its closing line."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    here = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    with open(log, "w", encoding="utf-8") as output:
        subprocess.run(command, cwd=TESTS.parent, env=here, stdout=output, stderr=subprocess.STDOUT)
    return log.read_text(encoding="utf-8", errors="replace").rstrip().rpartition("\n")[2]


def record_list() -> str:
    """Run all tests without a browser once, to see which of them train."""
    return pytest_of(["--trains", str(LIST), "tests", "--ignore", "tests/browser"], {}, FOLDER / "recording.log")


def tests_of(setting: str) -> list[str]:
    """The ids of the tests that train, as a setting runs them."""
    tests = LIST.read_text(encoding="utf-8").splitlines()
    if "--perturb" not in SETTINGS[setting][1]:
        return tests
    return [test for test in tests if not any(re.search(pattern, test) for pattern in NOT_PERTURBED)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", nargs="*", metavar="SETTING", help=f"of {', '.join(SETTINGS)}; by default all")
    parser.add_argument("--anew", action="store_true", help="record again which tests train")
    args = parser.parse_args()
    if unknown := set(args.settings) - set(SETTINGS):
        parser.error(f"{', '.join(sorted(unknown))}: no setting; choose of {', '.join(SETTINGS)}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    if args.anew or not LIST.exists():
        print(f"recording which tests train: {record_list()}", flush=True)
    failed = False
    for setting in args.settings or SETTINGS:
        environment, options = SETTINGS[setting]
        tests, log = tests_of(setting), FOLDER / f"{setting.replace(' ', '_')}.log"
        arguments = FOLDER / "arguments.txt"
        arguments.write_text("".join(f"{test}\n" for test in tests), encoding="utf-8")
        closing = pytest_of([*options, f"@{arguments}"], environment, log)
        print(f"{setting:<24}{len(tests)} tests: {closing}  ({log})", flush=True)
        failed |= re.search(r"\b(failed|errors?)\b", closing) is not None or "passed" not in closing
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
