"""A real JupyterLab in a real browser: `open_notebook` opens a notebook, whose widgets a test
drives by hand.

Needs chromium (or Chrome). Where there is none these tests are skipped with a line that says how to
get it; with WORKBOOK_BROWSER_TESTS=required, as CI sets, they fail instead. Screenshots, of
failures and for `make release`, lie in build/screenshots/.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from uuid import uuid4

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from browser.chapter import WINDOW, Chapter, write_settings

ROOT = Path(__file__).resolve().parents[2]
SCREENSHOTS = ROOT / "build" / "screenshots"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MISSING = (
    "no chromium or Chrome: `apt-get install chromium` (Debian), or set WORKBOOK_BROWSER to one"
)
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
]
QUIET += ["--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"]

FAILED = pytest.StashKey[bool]()
# a test -> the chapter of which it runs every cell
WHOLE = {"test_a_run_by_hand": "04_a_policy_you_can_know"}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Where there is a browser, a chapter that a test runs whole in it does not run without it as
    well.
    """
    twice = {
        f"test_chapter_runs_in_the_smoke_profile[{WHOLE.get(item.name)}]"
        for item in items
        if find_browser()
    }
    config.hook.pytest_deselected(items=[item for item in items if item.name in twice])
    items[:] = [item for item in items if item.name not in twice]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Remember a failure, for its screenshot."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


def find_browser() -> str | None:
    """Where chromium or Chrome lies, None where there is none."""
    return os.environ.get("WORKBOOK_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="package")
def browser():
    """Chromium, headless."""
    where = find_browser()
    if where is None:
        if os.environ.get("WORKBOOK_BROWSER_TESTS") == "required":
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=where, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def lab(tmp_path_factory):
    """A JupyterLab over a copy of the chapters, offline, in the smoke profile: its address and the
    chapters' folder.
    """
    home = tmp_path_factory.mktemp("lab")
    root = home / "book"
    shutil.copytree(
        ROOT / "notebooks", root / "notebooks", ignore=shutil.ignore_patterns("runs", ".*")
    )
    # a server follows no link out of its root
    shutil.copytree(ROOT / "data" / "pictures", root / "data" / "pictures")
    for path in (ROOT / "data").iterdir():
        if path.name != "pictures":
            (root / "data" / path.name).symlink_to(path)
    write_settings(home / "settings")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    places = {
        name: str(home / name)
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")
    }
    offline = dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"), "1")
    here = {
        "IPYTHONDIR": str(home / "ipython"),
        "WORKBOOK_RUNS": str(home / "runs"),
        "WORKBOOK_PROFILE": "smoke",
    }
    here |= {"WORKBOOK_PREDICTIONS": str(home / "predictions.json")}
    options = [
        "--no-browser",
        "--allow-root",
        "--ip=127.0.0.1",
        f"--port={port}",
        "--ServerApp.port_retries=0",
    ]
    options += [
        "--IdentityProvider.token=",
        "--ServerApp.disable_check_xsrf=True",
        f"--ServerApp.root_dir={root}",
        "--LabApp.expose_app_in_browser=True",
        f"--LabApp.workspaces_dir={home / 'workspaces'}",
        f"--LabApp.user_settings_dir={home / 'settings'}",
    ]
    with open(home / "log.txt", "w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *options],
            env=os.environ | places | offline | here,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"{address}/api", home / "log.txt")
        yield address, root / "notebooks"
    finally:
        server.terminate()
        server.wait(20)


def wait_for(address: str, log: Path, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            urllib.request.urlopen(address, timeout=1)
            return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"JupyterLab did not answer within {seconds:.0f} s:\n{log.read_text()[-2000:]}")


@pytest.fixture(scope="package")
def pages(browser):
    """JupyterLab's page once it is loaded: opening a notebook in it takes a third of the time."""
    return []


@pytest.fixture
def open_notebook(browser, lab, pages, request):
    """A function: a notebook's file name -> it in JupyterLab, not yet run. After a failure the page
    is loaded anew.
    """
    chapters = []

    def open_(name: str) -> Chapter:
        if not pages:
            pages.append(browser.new_page(viewport=WINDOW))
            # empty; `?reset` may load the page a second time
            pages[0].goto(f"{lab[0]}/lab/workspaces/{uuid4().hex}")
        chapters.append(Chapter(pages[0], name, SCREENSHOTS))
        chapters[-1].open()
        return chapters[-1]

    yield open_
    failed = request.node.stash.get(FAILED, False)
    for chapter in chapters:
        if failed:
            chapter.take_screenshot(f"failed-{request.node.name}")
        chapter.close()
    if failed and pages:
        pages.pop().close()


@pytest.fixture
def run_cells(open_notebook, lab, request):
    """A function: sources of cells -> a notebook of them, run in JupyterLab; what others imported
    is there already.
    """
    opened = []

    def run(*sources: str) -> Chapter:
        notebook = new_notebook(
            cells=[new_code_cell(source) for source in sources], metadata={"kernelspec": KERNEL}
        )
        nbformat.write(notebook, lab[1] / "scratch.ipynb")
        opened.append(open_notebook("scratch.ipynb"))
        opened[-1].run_all()
        return opened[-1]

    yield run
    if not request.node.stash.get(FAILED, False):
        for chapter in opened:
            chapter.leave()
