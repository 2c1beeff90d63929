"""How tests keep to one another's peace, and a trainer for those of training: bundled policy, task,
small settings.
"""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# nothing is compiled; bitsandbytes would load the compiler: 1 s of 6
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
if "PYTEST_XDIST_WORKER" in os.environ:  # one core each, for the processes that it starts, too
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import gc
import importlib.util
import re
import signal
from pathlib import Path

import pytest
from small_run import SMALL, bundled_trainer

collect_ignore = ["hooks"]  # for the processes that tests start
TESTS = Path(__file__).parent
BROWSER = TESTS / "browser"
# files of more than 15 s on a core, outside the browser
LONGEST = re.compile(
    r"test_(arena|bundled|chapters|claims|distributed|equality|examples|laboratory|loss_types"
    r"|memory|monitor|policies|run_folders|runs|training_curves|wheel)\.py"
)


def pytest_addoption(parser):
    group = parser.getgroup("any CPU")
    group.addoption(
        "--trains", metavar="FILE", help="write the tests in which an optimizer steps (without -n)"
    )
    group.addoption(
        "--perturb",
        metavar="SEED",
        type=int,
        help="perturb the weights that tests start from, by 1e-6",
    )


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    trains, seed = config.getoption("--trains"), config.getoption("--perturb")
    if trains:
        Path(trains).write_text("", encoding="utf-8")
        os.environ["WORKBOOK_TRAINS"] = os.path.abspath(trains)
    if seed is not None:
        os.environ["WORKBOOK_PERTURB"] = str(seed)
    if trains or seed is not None:
        hook_processes()
    # as a shell starts what it sends to the background
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "PYTEST_XDIST_WORKER" in os.environ:
        show_prints_of_a_worker(config.pluginmanager)


def hook_processes():
    """Install tests/hooks here, and in every Python that a test starts."""
    folder = str(TESTS / "hooks")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    spec = importlib.util.spec_from_file_location("hooks", f"{folder}/sitecustomize.py")
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef):
    """While a fixture is made, it is the fixture that trains: for every test that asks for it."""
    before = os.environ.get("WORKBOOK_FIXTURE", "")
    os.environ["WORKBOOK_FIXTURE"] = f"{fixturedef.baseid}::{fixturedef.argname}"
    try:
        return (yield)
    finally:
        os.environ["WORKBOOK_FIXTURE"] = before


def pytest_sessionfinish(session):
    """Put the tests that ask for a fixture in the place of a fixture that trained."""
    if not (trains := session.config.getoption("--trains")):
        return
    lines = set(Path(trains).read_text(encoding="utf-8").splitlines())
    tests = [
        item.nodeid for item in session.items if item.nodeid in lines or fixtures_of(item) & lines
    ]
    Path(trains).write_text("".join(f"{test}\n" for test in sorted(tests)), encoding="utf-8")


def fixtures_of(item) -> set[str]:
    info = getattr(item, "_fixtureinfo", None)
    names = info.name2fixturedefs.items() if info else ()
    return {
        f"{definition.baseid}::{name}" for name, definitions in names for definition in definitions
    }


def show_prints_of_a_worker(plugins):
    """A worker's standard output leads nowhere: send what tests print with capture disabled to
    standard error.

    Its own reporter, which wrote there as well, goes: the first process reports.
    """
    plugins.unregister(name="terminalreporter")
    capture = plugins.getplugin("capturemanager")
    capture.stop_global_capturing()
    os.dup2(2, 1)
    capture.start_global_capturing()
    capture.suspend_global_capture()


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is imported stays: collecting garbage passes over it, now and each time that a trainer
    asks for it.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """What lasts longest comes first, so that no worker is left alone with it at the end.

    Chapters in the browser, the later ones first, since they train; then other pages; then files
    that start processes.
    """

    def rank(item):
        if BROWSER not in item.path.parents:
            return (2 if LONGEST.fullmatch(item.path.name) else 3), 0
        chapter = re.fullmatch(r"test_chapter_(\d+)", item.path.stem)
        return (0, -int(chapter[1])) if chapter else (1, 0)

    items.sort(key=rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """A file's tests go to one worker, each chapter for itself; while there are others, only the
    first worker takes those with a browser: two pages at once would slow each other down.
    """
    from xdist.scheduler import LoadFileScheduling

    class OneBrowser(LoadFileScheduling):
        def _assign_work_unit(self, node):
            others = (file for file in self.workqueue if not file.startswith("tests/browser/"))
            if node is not self.nodes[0] and (file := next(others, None)):
                self.workqueue.move_to_end(file, last=False)
            super()._assign_work_unit(node)

        def _split_scope(self, nodeid):
            return nodeid if "test_every_chapter" in nodeid else super()._split_scope(nodeid)

    return OneBrowser(config, log)


@pytest.fixture
def make_trainer(tmp_path):
    """Build a trainer of the given class on the bundled policy, or one given, and task; settings
    override SMALL.
    """

    def make(trainer_class, config_class, policy=None, **settings):
        args = config_class(output_dir=str(tmp_path / trainer_class.__name__), **SMALL | settings)
        return bundled_trainer(trainer_class, args, policy, prompts=64)

    return make


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """No hub is asked, and runs are kept in the test's folder."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("WORKBOOK_RUNS", str(tmp_path / "runs"))


@pytest.fixture(scope="module")
def policy():
    """The bundled policy: what a test trains is a copy of it."""
    from workbook.policies.load import load_policy

    return load_policy("bundled")


@pytest.fixture(scope="module")
def task():
    from workbook.tasks import get_task

    return get_task("chain")


@pytest.fixture
def shell():
    """Displays go somewhere only inside IPython."""
    from IPython.core.interactiveshell import InteractiveShell

    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


@pytest.fixture
def one_thread():
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
