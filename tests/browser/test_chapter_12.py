"""Chapter 12 in the browser: a stranger's own prompts, reward and model, from files to a comparison and an export.

On the way the commonest mistakes are made, and answered before Start: a wrong path, a wrong column, a function that is
not there, a model that can't read the prompts, more prompts than rows, a batch beyond the memory, a setting without an
effect.
"""

import re
import zipfile
from pathlib import Path

import pytest
from playwright.sync_api import expect

from workbook.policies.packaged import PACKAGED

SLOW = 480_000  # ms: new processes load their libraries and a language model, on a machine that others use, too
CAPITALS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo", "Egypt": "Cairo", "Cuba": "Havana"}
ASKED = (
    "What is the capital of {}?",
    "Name the capital of {}.",
    "{}: its capital is",
    "Capital of {}?",
    "{}'s capital?",
)
ROWS = [f"{asked.format(land)},{city}" for asked in ASKED for land, city in CAPITALS.items()]
REWARD = """def score(completion, answer):
    return (answer.lower() in completion.lower()) + 0.01 * len(set(completion))
"""


@pytest.fixture(scope="module")
def smollm2():
    """SmolLM2 in the cache; fetching it is not the page's time."""
    try:
        return PACKAGED["smollm2-135m"].folder()
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def small_model(smollm2, tmp_path_factory) -> Path:
    """A model of the reader's own: SmolLM2's tokenizer and chat template, two small layers that train in a second."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path_factory.mktemp("models") / "small"
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
    config = AutoConfig.from_pretrained(smollm2, num_attention_heads=4, num_key_value_heads=2, **sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(smollm2).save_pretrained(folder)
    return folder


class Form:
    """The laboratory of an open chapter 12, by hand."""

    def __init__(self, chapter):
        self.chapter = chapter
        self.box = chapter.panel.locator(".workbook-laboratory")
        self.monitor = self.box.locator(".workbook-monitor")
        self.results = self.box.locator(".workbook-results")
        self.start = self.button("Start")

    def button(self, name: str):
        """The button of exactly this name; its icon is a character, too."""
        return self.box.locator(".jupyter-button", has_text=re.compile(rf"^\W*{re.escape(name)}(\W*\d*\W*)$"))

    def upload(self, *paths) -> None:
        with self.chapter.page.expect_file_chooser() as chooser:
            self.button("Upload").click()
        chooser.value.set_files(paths)

    def write(self, label: str, text: str) -> None:
        field = self.chapter.control(label).locator("input")
        field.fill(text)
        field.press("Enter")

    def slide(self, label: str, value) -> None:
        """Type a number into a slider's readout."""
        readout = self.chapter.control(label).locator(".widget-readout")
        readout.fill(str(value))
        readout.press("Enter")

    def says(self, text: str | re.Pattern) -> None:
        expect(self.box).to_contain_text(text, timeout=SLOW)

    def refuses(self, text: str | re.Pattern) -> None:
        """What is said, and that Start is off."""
        self.says(text)
        expect(self.start).to_be_disabled()

    def finishes(self) -> None:
        """Press Start and wait for the end."""
        expect(self.start).to_be_enabled(timeout=SLOW)
        self.start.click()
        expect(self.monitor).to_contain_text("running", timeout=SLOW)
        expect(self.monitor).to_contain_text("finished: mine", timeout=SLOW)


def test_an_experiment_by_hand(open_chapter, small_model, tmp_path):
    (tmp_path / "capitals.csv").write_text("\n".join(["prompt,answer", *ROWS]))
    (tmp_path / "questions.csv").write_text("question,answer\n1 + 1 =,2\n")
    (tmp_path / "score.py").write_text(REWARD)
    chapter = open_chapter("12")
    chapter.run_all()
    walk(chapter, tmp_path, small_model)
    chart = chapter.panel.locator("[role='graphics-document'][aria-label*='Differences of the mean']").first
    mean = chapter.python("float(compared['effects']['mean'][0])")
    expect(chart).to_have_attribute("aria-label", re.compile(re.escape(f"positive_only: {mean:+.3f} (")))
    chapter.shot("12-comparison", chart)
    assert chapter.errors == []


def walk(chapter, tmp_path, small_model) -> None:
    """What a stranger does in the form, from files to an export, with the commonest mistakes on the way."""
    form = Form(chapter)
    expect(form.start).to_be_enabled(timeout=SLOW)
    chapter.shot("12-laboratory", form.box)

    # files, and what may be wrong with them
    form.upload(tmp_path / "questions.csv")
    form.refuses("questions.csv has no column prompt; its columns are answer, question")
    form.upload(tmp_path / "capitals.csv", tmp_path / "score.py")
    form.refuses("512 prompts are asked for, but capitals.csv has 30 rows")
    form.slide("prompts of the task", 22)
    form.slide("held-out prompts", 4)
    form.refuses(re.compile("22 prompts to train, 4 held out; [4-9].% of their tokens are unknown to bundled"))
    form.says("Start is off. bundled can't read")
    expect(form.button("Start anyway")).to_be_visible()
    form.write("task options", "reward: score.py:scroe")
    form.refuses("score.py has no function 'scroe'; it has score")
    form.write("task options", "reward: score.py:score")
    form.write("task", "own:capital.csv")
    form.refuses("there is no data file 'capital.csv'")
    chapter.shot("12-refused", form.box)

    # a model that reads them, a batch that is too large for it, and a setting that has no effect
    form.write("task", "own:capitals.csv")
    form.write("model", "smollm2-135m")
    form.says("smollm2-135m has a chat template and these prompts don't use it")
    chapter.choose("LoRA rank", "8")
    chapter.choose("prompts a batch", "16")
    chapter.choose("group size G", "16")
    form.slide("tokens at most", 512)
    form.refuses(re.compile(r"forecast to need [\d,]+ MiB beside its libraries, and [\d,]+ MiB are free on cpu"))
    chapter.choose("prompts a batch", "2")
    chapter.choose("group size G", "4")
    form.slide("tokens at most", 12)
    form.slide("optimizer steps", 2)
    form.button("all settings").click()
    chapter.choose("batching", "sign_partitioned")
    form.refuses("batching='sign_partitioned' can't have an effect")
    chapter.choose("mini-batches a batch", "2")
    form.button("basic").click()
    form.says("Set among all settings: mini-batches a batch 2; batching sign_partitioned.")
    form.box.get_by_role("checkbox", name="prompts as chat").check()
    expect(form.start).to_be_enabled(timeout=SLOW)

    # tried; a small one forecast and trained twice
    form.button("Try it").click()
    form.says(re.compile(r"Prompt 2 as smollm2-135m gets it \(\d+ tokens\)"))
    form.says("<|im_start|>assistant")
    chapter.shot("12-tried", form.box)
    form.write("model", str(small_model))
    expect(form.start).to_be_enabled(timeout=SLOW)
    form.button("Forecast").click()
    form.says(re.compile("Time about .* for one run: .*, and twice 4 held-out prompts of .* of this very setting"))
    expect(form.box.locator("svg.marks", has_text="Where the memory goes")).to_be_visible()
    with chapter.no_flicker():
        form.finishes()
    assert chapter.python("laboratory.started[0].config.task_options") == {"reward": "score.py:score", "chat": True}
    chapter.press("learning rate", "ArrowRight", times=3)
    form.finishes()
    chapter.shot("12-finished", form.box)

    names = taken_away(form)
    assert {"config.yaml", "capitals.csv", "score.py", "README.md", "model/adapter_model.safetensors"} <= names


def taken_away(form) -> set[str]:
    """Compare two runs that have finished, export one and load its settings; the files of the export."""
    chapter = form.chapter
    form.button("Compare").click()
    expect(form.results).to_contain_text("difference from learning_rate=0.001", timeout=SLOW)
    expect(form.results).to_contain_text("learning_rate=0.002: ")
    expect(form.results.locator("svg.marks", has_text="paired by seed")).to_be_visible()
    form.button("Export").click()
    expect(form.results).to_contain_text(re.compile(r"exports/mine-[\d-]+\.zip \([\d.]+ MiB\) holds"), timeout=SLOW)
    chapter.shot("12-compared", form.results)
    (zipped,) = chapter.python("[str(path.resolve()) for path in __import__('pathlib').Path('exports').glob('*.zip')]")
    form.button("Load").click()
    form.says("These are the settings of mine-")
    return {name.partition("/")[2] for name in zipfile.ZipFile(zipped).namelist()}
