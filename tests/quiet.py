"""The machine for oneself: what measures time lets the other workers of a parallel test run finish their tests first.

Tests run in several processes at once (`pytest -n 2`), each test holding a lock shared. What measures holds it alone:

    @pytest.mark.quiet                  # the whole test, with the setup and teardown of its fixtures
    with quiet(): ...                   # a part of a test, in which nothing that it started goes on by itself
    give_way()                          # where a long test is at rest, another may have its quiet now

Nobody starves: while one waits for quiet, no further test begins. In a run of one process all of these do nothing.
"""

import os
from contextlib import contextmanager
from pathlib import Path


class SharedMachine:
    """Two file locks below `folder`: `busy`, held shared by what runs and alone by what measures, and the `turnstile`.

    Whoever begins passes the turnstile; who waits for quiet stands in it until the quiet is over. Works on systems with
    fcntl; one instance per process.
    """

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self._turnstile, self._busy = (os.open(folder / name, os.O_RDWR | os.O_CREAT) for name in ("turnstile", "busy"))
        self._held = ""  # "", "shared" or "alone"

    @property
    def alone(self) -> bool:
        """Whether nobody else runs now."""
        return self._held == "alone"

    @contextmanager
    def shared(self):
        """Run beside others."""
        self._begin()
        try:
            yield
        finally:
            self._end()

    @contextmanager
    def quiet(self):
        """Run alone; within `shared` this lets go of the share, and has it again afterwards."""
        if self.alone:
            yield
            return
        shared = self._held == "shared"
        if shared:
            self._end()
        try:
            with _locked(self._turnstile, "LOCK_EX"), _locked(self._busy, "LOCK_EX"):
                self._held = "alone"
                yield
        finally:
            self._held = ""
            if shared:
                self._begin()

    def give_way(self) -> None:
        """Within `shared`: whoever waits for quiet has it before this returns."""
        if self._held == "shared":
            self._end()
            self._begin()

    def _begin(self) -> None:
        with _locked(self._turnstile, "LOCK_SH"):
            _flock(self._busy, "LOCK_SH")
        self._held = "shared"

    def _end(self) -> None:
        _flock(self._busy, "LOCK_UN")
        self._held = ""


def _flock(file: int, operation: str) -> None:
    import fcntl  # not on every system, nor needed there by a run of one process

    fcntl.flock(file, getattr(fcntl, operation))


@contextmanager
def _locked(file: int, operation: str):
    _flock(file, operation)
    try:
        yield
    finally:
        _flock(file, "LOCK_UN")


class OneProcess:
    """A run without other workers: it is quiet as it is."""

    alone = True

    @contextmanager
    def shared(self):
        yield

    quiet = shared

    def give_way(self) -> None:
        pass


FOLDER = Path(__file__).resolve().parents[1] / "build" / "quiet"
MACHINE = SharedMachine(FOLDER) if "PYTEST_XDIST_WORKER" in os.environ else OneProcess()
quiet, give_way = MACHINE.quiet, MACHINE.give_way
