"""Chapter 11's form: its bar is the printed forecast, it says what would fit, and Start refuses what does not."""

import statistics
import time

import pytest
from workbook.training.fitting import CARDS, card_memory, changes, first_fit
from workbook.training.shapes import QWEN_7B, SMOLLM2_135M

from workbook.topics.laboratory import qlora
from workbook.topics.laboratory.qlora import HERE, LOOKING, QLoRAForm, describe_change, fit_sentence, qlora_config
from workbook.training import RunConfig, forecast_run, peak_mib
from workbook.training.device_memory import MIB
from workbook.views.explorer import menu, power_slider

TRAINER = {
    "max_steps": 3,
    "num_generations": 8,
    "per_device_train_batch_size": 32,
    "max_completion_length": 16,
    "learning_rate": 1e-3,
    "loss_type": "dr_grpo",
}
BASE = RunConfig(name="mine", policy="bundled", task="chain", lora=8, num_prompts=16, trainer=TRAINER)


@pytest.fixture
def form():
    form = QLoRAForm(BASE)
    settle(form)
    yield form
    form.close()


def settle(form):
    deadline = time.monotonic() + 60
    while form._problem == LOOKING and time.monotonic() < deadline:
        time.sleep(0.02)


def rows(form):
    """{row of the bar: its sum, in MiB}."""
    return (form.tables["parts"].groupby("row")["gib"].sum() * 1024).to_dict()


def test_the_bar_is_the_printed_forecast_and_follows_every_control(form):
    for name, value in (("rank", 32), ("prompts", 16), ("max_tokens", 60), ("checkpointing", True), ("pieces", 4)):
        before = rows(form)
        form.controls[name].value = value
        here = {row: size for row, size in rows(form).items() if row.startswith(HERE)}
        assert max(here.values()) == pytest.approx(peak_mib(forecast_run(form.config())))
        assert rows(form) != before, name
    card = next(iter(CARDS))
    there = {row: size for row, size in rows(form).items() if row.startswith(card)}
    shape, length = form._known[qlora._sources(form.config())]
    assert max(there.values()) == pytest.approx(peak_mib(card_memory(form.config(), shape, length, CARDS[card])))
    assert "gradient_checkpointing: true" in form.snippet.text


def test_a_move_is_redrawn_within_fifty_milliseconds(form):
    seconds = []
    for tokens in range(20, 40):
        began = time.thread_time()  # of this thread, whatever else the machine does
        form.controls["max_tokens"].value = tokens
        seconds.append(time.thread_time() - began)
    assert statistics.median(seconds) < 0.05


def test_what_can_not_be_is_said_and_dims_the_bar(form, monkeypatch):
    form.controls["quantization"].value, form.controls["rank"].value = "nf4", 0
    assert "rank=0 leaves nothing to train" in form.line.value
    assert form.bar.layout.opacity == "0.35"
    with pytest.raises(ValueError, match="leaves nothing to train"):
        form.start()
    form.controls["rank"].value = 8
    assert form.bar.layout.opacity == "1"
    form.controls["task"].value = "chains"
    settle(form)
    assert "chains" in form.line.value
    assert form.bar.layout.opacity == "0.35"


def test_start_refuses_what_does_not_fit_until_asked_again(form, monkeypatch):
    begun = []
    monkeypatch.setattr(qlora, "start_run", lambda config: begun.append(config) or config)
    monkeypatch.setattr(qlora, "free_memory", lambda device: 1 * MIB)
    form.controls["prompts"].value = 8
    assert "it does not fit" in form.line.value
    with pytest.raises(ValueError, match="Nothing was started; Start anyway would"):
        form.start()
    assert not begun
    assert form.monitor.start_button.description == "Start anyway"
    form.start()
    assert begun == [form.config()]
    form.controls["prompts"].value = 4
    assert form.monitor.start_button.description == "Start"


def test_the_first_change_that_fits_leaves_the_training_alone_where_it_can():
    config = BASE.override({"policy": "smollm2-135m", "quantization": "nf4", "max_completion_length": 512})

    def peak(changed):
        return peak_mib(card_memory(changed, SMOLLM2_135M, 64, CARDS["T4, 16 GB"]))

    needed = peak(config)
    assert first_fit(config, lambda changed: peak(changed) <= needed) == {}
    change = first_fit(config, lambda changed: peak(changed) <= 0.7 * needed)
    assert change["per_device_train_batch_size"] * change["steps_per_generation"] == 32, "the same rollouts"
    assert describe_change(config, change) == "micro-batches a step 2"
    assert first_fit(config, lambda changed: False) is None
    for change in changes(config):
        trainer = config.override(change).trainer
        assert trainer["per_device_train_batch_size"] * trainer.get("steps_per_generation", 1) >= 8, "a whole group"


def test_a_model_that_is_too_large_for_a_card_is_told_what_fits_or_that_nothing_does():
    whole = BASE.override({"policy": "Qwen/Qwen2.5-7B-Instruct", "lora": None, "max_completion_length": 256})
    sentence, fits = fit_sentence(whole, QWEN_7B, 128, "A100, 40 GB", CARDS["A100, 40 GB"].mib)
    assert not fits
    assert "the first change that makes it fit: " in sentence
    assert "LoRA rank 8" in sentence
    sentence, fits = fit_sentence(whole, QWEN_7B, 128, "T4, 16 GB", 1024.0)
    assert not fits
    assert "take a smaller model" in sentence


def test_pieces_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match=r"prompts=2 x group_size=2 rollouts can't be cut into 8 equal"):
        qlora_config(BASE, prompts=2, group_size=2, pieces=8)


def test_every_control_is_explained_and_shows_what_it_means(form):
    assert set(qlora.TOOLTIPS) == set(form.controls)
    assert all(control.tooltip for control in form.controls.values())
    sizes = power_slider(8, 64, "G", least=2)
    assert [label for label, _ in sizes.options] == ["2", "4", "8", "16", "32", "64"]
    assert (sizes.value, sizes.label) == (8, "8")
    everything = menu(None, [("all", None), ("3", 3)], "prompt")
    assert (everything.index, everything.label) == (0, "all")
    everything.value = 3
    everything.value = None
    assert (everything.index, everything.label) == (0, "all")
