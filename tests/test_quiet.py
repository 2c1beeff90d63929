"""What measures has the machine for itself, and what waits for that is not overtaken."""

import select
import subprocess
import sys
from pathlib import Path

import pytest
from quiet import SharedMachine

WORKER = """
import sys, time
from pathlib import Path
from quiet import SharedMachine
machine = SharedMachine(Path(sys.argv[1]))
def say(word):
    print(word, flush=True)
def wait():
    assert sys.stdin.readline()
{code}
"""


@pytest.fixture
def worker(tmp_path):
    """A function: code -> a process that runs it with `machine`, `say` and `wait` at hand."""
    started = []

    def start(code):
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER.format(code=code), str(tmp_path)],
            cwd=Path(__file__).parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def heard(process) -> str:
    return process.stdout.readline().strip()


def go_on(process) -> None:
    process.stdin.write("\n")
    process.stdin.flush()


SHARE = """
say("begins")
with machine.shared():
    say("shares")
    wait()
    {then}
    say("shared")
"""
ALONE = """
wait()
say("asks")
with machine.quiet():
    say("alone")
    wait()
say("was alone")
"""


def waits(process) -> None:
    """Assert that a process that asked for the lock does not have it a while later."""
    ready, _, _ = select.select([process.stdout], [], [], 0.3)
    assert not ready, "it did not wait"


def test_two_share_and_quiet_waits_for_both_and_is_not_overtaken(worker):
    first, second, measuring = worker(SHARE.format(then="")), worker(SHARE.format(then="")), worker(ALONE)
    assert [heard(first), heard(first), heard(second), heard(second)] == ["begins", "shares"] * 2
    go_on(measuring)
    assert heard(measuring) == "asks"
    waits(measuring)
    late = worker(SHARE.format(then=""))
    assert heard(late) == "begins"
    waits(late)
    go_on(first)
    assert heard(first) == "shared"
    waits(measuring)
    waits(late)
    go_on(second)
    assert heard(measuring) == "alone"
    waits(late)
    go_on(measuring)
    assert heard(measuring) == "was alone"
    assert heard(late) == "shares"


@pytest.mark.parametrize(
    "then", ["machine.give_way()", "with machine.quiet(): say('alone too')"], ids=["gives way", "goes quiet"]
)
def test_a_long_test_lets_quiet_pass_on_the_way(worker, then):
    long, measuring = worker(SHARE.format(then=then)), worker(ALONE)
    assert [heard(long), heard(long)] == ["begins", "shares"]
    go_on(measuring)
    assert heard(measuring) == "asks"
    waits(measuring)
    go_on(long)
    assert heard(measuring) == "alone"
    waits(long)
    go_on(measuring)
    assert heard(measuring) == "was alone"
    assert heard(long) in ("shared", "alone too")


def test_who_dies_lets_go(worker):
    dying, measuring = worker(SHARE.format(then="")), worker(ALONE)
    assert [heard(dying), heard(dying)] == ["begins", "shares"]
    go_on(measuring)
    assert heard(measuring) == "asks"
    dying.kill()
    assert heard(measuring) == "alone"


def test_quiet_within_quiet_and_shares_come_back(tmp_path):
    machine = SharedMachine(tmp_path)
    with machine.shared():
        with pytest.raises(KeyError), machine.quiet(), machine.quiet():
            raise KeyError
        assert machine._held == "shared"
    assert machine._held == ""
