"""A stranger's path in the browser: own prompts, reward and model, the commonest mistakes, two
runs, a comparison.
"""

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from workbook.policies.packaged import PACKAGED

SLOW = 480_000  # ms: new processes load their libraries, on a machine that others use, too
CITIES = {
    "France": "Paris",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Japan": "Tokyo",
    "Egypt": "Cairo",
    "Cuba": "Havana",
}
ASKED = ("Capital of {}?", "{}'s capital?")
ROWS = [f"{asked.format(land)},{city}" for asked in ASKED for land, city in CITIES.items()]
REWARD = """def score(completion, answer):
    return (answer.lower() in completion.lower()) + 0.01 * len(set(completion))
"""
FORM = """
from workbook.app import RunForm
form = RunForm()
form
"""


@pytest.fixture(scope="module")
def small_model(tmp_path_factory) -> Path:
    """A model of the reader's own: SmolLM2's tokenizer and chat template, two small layers that
    train in a second.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    try:
        smollm2 = PACKAGED["smollm2-135m"].folder()
    except RuntimeError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("models") / "small"
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
    config = AutoConfig.from_pretrained(
        smollm2, num_attention_heads=4, num_key_value_heads=2, **sizes
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(smollm2).save_pretrained(folder)
    return folder


def test_an_experiment_by_hand(run_cells, small_model, tmp_path):
    (tmp_path / "capitals.csv").write_text("\n".join(["prompt,answer", *ROWS]))
    (tmp_path / "questions.csv").write_text("question,answer\n1 + 1 =,2\n")
    (tmp_path / "score.py").write_text(REWARD)
    chapter = run_cells(FORM)
    box = chapter.panel.locator(".workbook-form")
    start = box.locator(".jupyter-button", has_text=re.compile(r"^\W*Start$"))

    def write(label: str, text: str) -> None:
        field = chapter.control(label).locator("input")
        field.fill(text)
        field.press("Enter")

    def slide(label: str, value) -> None:
        readout = chapter.control(label).locator(".widget-readout")
        readout.fill(str(value))
        readout.press("Enter")

    def refuses(text: str) -> None:
        expect(box).to_contain_text(text, timeout=SLOW)
        expect(start).to_be_disabled()

    expect(start).to_be_enabled(timeout=SLOW)
    chapter.shot("form", box)
    with chapter.page.expect_file_chooser() as chooser:
        box.locator(".jupyter-button", has_text="Upload").click()
    chooser.value.set_files(
        [tmp_path / "capitals.csv", tmp_path / "questions.csv", tmp_path / "score.py"]
    )
    expect(box).to_contain_text("capitals.csv was saved beside this notebook", timeout=SLOW)
    assert chapter.python("form.controls['reward'].value") == "score.py:score"

    # the commonest mistakes
    write("reward", "score.py:scroe")
    refuses("questions.csv has no column prompt; its columns are question, answer")
    write("task", "own:capital.csv")
    refuses("data file='capital.csv' must be a file that exists")
    write("task", "own:capitals.csv")
    refuses("must be a function of score.py, which has score")
    write("reward", "score.py:score")
    # the slider ends there
    expect(box).to_contain_text("capitals.csv: 12 prompts to train on.", timeout=SLOW)
    assert chapter.python("form.controls['num_prompts'].value") == 12
    box.locator(".widget-label-basic", has_text="prompts as chat").locator("input").check()
    refuses("Switch “prompts as chat” off")
    write("model", "nowhere/at-all:x")
    refuses("must be an existing folder or a hub id")
    write("model", str(small_model))
    assert chapter.python("form.controls['lora'].value") == 8, "adapters of a language model"
    # a slider over options
    for typed, shown in (("5", "4"), ("16", "16"), ("many", "16"), ("", "16"), ("4", "4")):
        slide("group size G", typed)
        expect(chapter.control("group size G").locator(".widget-readout")).to_have_text(shown)
    chapter.settle()
    assert chapter.python("form.controls['group_size'].value") == 4
    slide("tokens at most", 12)
    slide("optimizer steps", 2)
    expect(start).to_be_enabled(timeout=SLOW)

    # tried, trained twice, compared
    box.locator(".jupyter-button", has_text="Try it").click()
    expect(box).to_contain_text(
        re.compile(r"Prompt 2 as .*small gets it \(\d+ tokens\)"), timeout=SLOW
    )
    expect(box).to_contain_text("texts that are no answer")
    expect(box).to_contain_text("<|im_start|>assistant")
    chapter.shot("form-tried", box)
    monitor = box.locator(".workbook-monitor")
    for run in range(2):
        expect(start).to_be_enabled(timeout=SLOW)
        start.click()
        expect(monitor).to_contain_text("running", timeout=SLOW)
        expect(monitor).to_contain_text("finished: mine", timeout=SLOW)
        if not run:
            chapter.press("learning rate", "ArrowRight", times=3)
    assert chapter.python("form.started[0].config.task_options") == {
        "reward": "score.py:score",
        "chat": True,
    }
    box.locator(".jupyter-button", has_text="Compare").click()
    expect(box).to_contain_text("learning_rate=0.002: ", timeout=SLOW)
    expect(box.locator("svg.marks", has_text="paired by seed")).to_be_visible()
    chapter.shot("form-compared", box)
    assert chapter.grave() == []
    assert chapter.errors == []
