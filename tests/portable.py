"""The tests that train, as other CPUs would run them.

    python tests/portable.py                      every setting; first records which tests train
    python tests/portable.py "as is" "seed 1"     some
    python tests/portable.py --anew               records them again

Other CPUs have other instructions and other matrix products, so a training ends in other weights
there; it does as well if the last bits of its first weights are perturbed. A test that leans on
what a training in it happened to reach fails in one of these settings. Which tokens a seed draws
differs by those last bits alone: torch draws with its own generator on every CPU.
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
# Of perturbed weights: those for which it means nothing, and those of more than a minute.
NOT_PERTURBED = {
    "test_worlds.py::test_worlds_of_another_reward_share": (
        "compares loaded weights with their file, bit for bit"
    ),
    "test_language.py::test_the_rounded_adapter_merged": (
        "compares loaded weights with their file, bit for bit"
    ),
    "test_laboratory.py::test_the_form_refuses_tries": (
        "takes a minute, and asserts nothing of what its runs reach"
    ),
}


def pytest_of(arguments: list[str], environment: dict[str, str], log: Path) -> str:
    """Run pytest in one process, its output into a file; return its closing line."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    here = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    with open(log, "w", encoding="utf-8") as output:
        subprocess.run(command, cwd=TESTS.parent, env=here, stdout=output, stderr=subprocess.STDOUT)
    return log.read_text(encoding="utf-8", errors="replace").rstrip().rpartition("\n")[2]


def record_list() -> str:
    """Run all tests without a browser once, to see which of them train."""
    return pytest_of(
        ["--trains", str(LIST), "tests", "--ignore", "tests/browser"], {}, FOLDER / "recording.log"
    )


def tests_of(options: list[str]) -> list[str]:
    """The ids of the tests that train and mean something under these options."""
    tests = LIST.read_text(encoding="utf-8").splitlines()
    if "--perturb" not in options:
        return tests
    return [test for test in tests if not any(name in test for name in NOT_PERTURBED)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "settings", nargs="*", metavar="SETTING", help=f"of {', '.join(SETTINGS)}; by default all"
    )
    parser.add_argument("--anew", action="store_true", help="record again which tests train")
    args = parser.parse_args()
    if unknown := set(args.settings) - set(SETTINGS):
        parser.error(f"{', '.join(sorted(unknown))}: no setting; choose of {', '.join(SETTINGS)}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    if args.anew or not LIST.exists():
        print(f"recording which tests train: {record_list()}", flush=True)
    failed = False
    for name in args.settings or SETTINGS:
        environment, options = SETTINGS[name]
        tests, log, ids = (
            tests_of(options),
            FOLDER / f"{name.replace(' ', '_')}.log",
            FOLDER / "ids.txt",
        )
        ids.write_text("".join(f"{test}\n" for test in tests), encoding="utf-8")
        closing = pytest_of([*options, f"@{ids}"], environment, log)
        print(f"{name:<24}{len(tests)} tests: {closing}  ({log})", flush=True)
        failed |= "passed" not in closing or re.search(r"\b(failed|errors?)\b", closing) is not None
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
