"""Chapter 12's form: what can't be started turns Start off and says why, before anything is trained."""

import gc
import html
import json
import shutil
import time
import weakref
from types import SimpleNamespace

import ipywidgets
import pytest
import yaml
from ipywidgets.widgets.widget import _instances
from workbook.training.export import export_config

from workbook.policies.load import BUNDLED, local_folder
from workbook.topics.laboratory import own_files, try_it
from workbook.topics.laboratory.choices import BASIC, Choices
from workbook.topics.laboratory.examine import examine
from workbook.topics.laboratory.explanations import EXPLAINED
from workbook.topics.laboratory.loading import choices_of, load_choices
from workbook.topics.laboratory.own_files import FilePicker, data_files, reward_functions, save_upload
from workbook.topics.laboratory.preview import Preview, preview_html, preview_sentence, sample_preview
from workbook.topics.laboratory.preview import main as preview_process
from workbook.topics.laboratory.settings import experiment, plan
from workbook.topics.laboratory.widget import CHECKING, Laboratory
from workbook.training import RunConfig
from workbook.views.live import shared
from workbook.views.monitor import KILL_AFTER_S
from workbook.views.style import ERROR_COLOR

FORECAST = "workbook.topics.laboratory.forecast"
TINY = {"prompts": 2, "group_size": 4, "steps": 2, "num_prompts": 32, "max_tokens": 24}
ROWS = "prompt,answer\n" + "".join(f"{a} + {b} =,{(a + b) % 10}\n" for a in range(6) for b in range(6))
REWARD = "def score(completion, answer):\n    return float(completion.split()[-1:] == [answer])\n"


@pytest.fixture(autouse=True)
def shell(monkeypatch, tmp_path):
    """Displays go somewhere only inside IPython; files lie where nobody else's are."""
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORKBOOK_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


@pytest.fixture
def own(tmp_path):
    """Choices of a task of one's own."""
    (tmp_path / "rows.csv").write_text(ROWS)
    (tmp_path / "reward.py").write_text(REWARD)
    return {"task": "own:rows.csv", "task_options": {"reward": "reward.py:score"}}


def settle(thing, done):
    end = time.monotonic() + 120
    while not done(thing) and time.monotonic() < end:
        time.sleep(0.05)
    assert done(thing)


def examined(laboratory):
    """The form once it has looked at what is chosen."""
    settle(laboratory, lambda it: CHECKING not in it.verdict.value)
    return laboratory


# --- choices


def test_every_control_is_explained():
    choices = Choices()
    assert set(choices.fields) == set(EXPLAINED)
    assert all(field.tooltip == EXPLAINED[key] for key, field in choices.fields.items())
    picker = choices.picker
    assert all(widget.tooltip for widget in (picker.data, picker.reward, picker.upload, picker.again))


def test_what_the_form_shows_is_what_it_says(own):
    assert plan(**Choices().values()).config == experiment()
    choices = {**TINY, **own, "group_size": 3, "lora": 5, "learning_rate": 3.0, "steps": 900, "num_prompts": 4000}
    form = Choices(**choices)
    config = plan(**form.values()).config
    assert config == experiment(**choices)
    assert form.menus["group_size"].value == "3"
    form.vary.value = "group_size"
    assert "3" not in form.swept.value.split("; "), "a sweep varies what the menu has"
    with pytest.raises(ValueError, match=r"'stepz' is no setting of an experiment; its settings are model, .*, seeds"):
        form.set(stepz=1)
    odd = {"reward": "a b, c: d.py:score", "seconds": 3, "partial": True}
    form.set(task="own:x.csv", task_options=odd | {"chat": True})
    assert form.values()["task_options"] == odd | {"chat": True}, "a path may hold what YAML has a meaning for"


def test_the_switch_of_chats_is_the_tasks_option():
    form = Choices(task="own:rows.csv", task_options={"reward": "reward.py:score"})
    assert "chat" not in form.values()["task_options"]
    form.chat.value = True
    assert form.values()["task_options"]["chat"] is True
    form.options.value = "reward: reward.py:score, chat: false"
    assert not form.chat.value
    assert form.options.value == "reward: reward.py:score", "it has moved to the switch"
    form.task.value = "gym:chain_sum"
    assert form.chat.value, "where chats are the default"
    form.chat.value = False
    assert form.values()["task_options"]["chat"] is False
    form.task.value = "chain"
    assert form.chat.disabled
    assert "chat" not in form.values()["task_options"]


def test_the_basic_form_names_what_it_hides():
    form, calls = Choices(), []
    form.observe(lambda: calls.append(1))
    shown = {key for key, field in form.fields.items() if field.layout.display != "none"}
    assert shown == BASIC
    form.menus["mini_batches"].value = "2"
    assert "Set among all settings: mini-batches a batch 2." in form.hidden_line.value
    form.scope.value = "all settings"
    assert form.hidden_line.value == ""
    assert all(field.layout.display != "none" for field in form.fields.values())
    assert len(calls) == 1
    form.set(model="smollm2-135m", steps=7, lora=8)
    assert len(calls) == 2, "many fields, one call"


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"mini_batches": 2, "accumulation": 2, "reuse": 4, "batching": "sign_partitioned", "optimizer": "SGD"},
        {"ratio": "sequence", "clipping": "none", "optimizer": "AdamW, beta1 = 0", "max_grad_norm": 1.0, "lora": 4},
        {"task": "own:rows.csv", "task_options": {"reward": "r.py:f", "chat": True}, "seed": 3, "eval_prompts": 4},
    ],
)
def test_a_runs_settings_come_back(choices):
    config = experiment(**choices)
    loaded = choices_of(config)
    assert loaded.dropped == []
    assert experiment(**loaded.choices) == config
    form = Choices(**loaded.choices)
    assert plan(**form.values()).config == config or plan(**form.values()).problems


def test_what_the_form_has_no_field_for_is_named():
    config = experiment().override({"record_tokens": 10, "beta": 0.1, "eval_group_size": 2})
    assert choices_of(config).dropped == ["eval_group_size=2", "beta=0.1", "record_tokens=10"]
    odd = RunConfig(trainer={"max_steps": 3, "optim": "adafactor", "per_device_train_batch_size": 8})
    assert "optim='adafactor'" in choices_of(odd).dropped


def test_a_sweeps_settings_come_back(tmp_path):
    choices = {"vary": "batching", "values": ["shuffled", "query_preserved"], "seeds": [2, 3], "mini_batches": 2}
    planned = plan(**choices)
    folder = export_config(planned.config, tmp_path / "sweep", planned.grid).parent
    form = Choices(**load_choices(folder).choices)
    again = plan(**form.values())
    assert (again.config, again.grid) == (planned.config, planned.grid)
    two = [{"seed": [0], "beta": [0.0, 0.1]}]
    folder = export_config(planned.config, tmp_path / "other", two).parent
    with pytest.raises(ValueError, match="the sweep other varies more than one setting"):
        load_choices(folder)
    with pytest.raises(ValueError, match="holds no run"):
        load_choices(tmp_path)


# --- files beside the notebook


def test_files_beside_the_notebook_are_listed(own, tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "b.jsonl").write_text("{}")
    (tmp_path / "more" / "rules.py").write_text("def rule(batch): pass\ndef pay(answer, completion): pass\n")
    (tmp_path / "broken.py").write_text("def score(completion, answer:\n")
    (tmp_path / "ran.py").write_text("raise SystemExit  # completion\ndef score(completion, answer): return 1\n")
    run = tmp_path / "runs" / "mine"
    run.mkdir(parents=True)
    for name in ("config.yaml", "rows.csv"):
        (run / name).write_text("")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "c.csv").write_text("")
    assert data_files() == ["rows.csv", "more/b.jsonl"]
    assert reward_functions() == ["ran.py:score", "reward.py:score", "more/rules.py:pay"]


def test_an_upload_replaces_nothing(tmp_path, monkeypatch):
    assert save_upload("rows.csv", b"a")[0] == "rows.csv"
    assert save_upload("rows.csv", b"a") == ("rows.csv", "rows.csv is here already.")
    assert save_upload("../up\\rows.csv", b"b")[0] == "rows-2.csv"
    assert (tmp_path / "rows.csv").read_bytes() == b"a"
    monkeypatch.setattr(own_files, "MAX_BYTES", 3)
    for name, content, says in (("x.exe", b"", "neither a .csv"), ("x.csv", b"1234", "too large")):
        with pytest.raises(ValueError, match=says):
            save_upload(name, content)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows-2.csv", "rows.csv"]


def test_what_is_uploaded_is_chosen():
    chosen = []
    picker = FilePicker(lambda path: chosen.append(path), lambda function: chosen.append(function))
    files = [{"name": "rows.csv", "content": memoryview(b"x")}, {"name": "pay.py", "content": REWARD.encode()}]
    picker._uploaded({"new": files})
    assert chosen == ["rows.csv", "pay.py:score"]
    picker._uploaded({"new": ({"name": "rule.py", "content": b"def rule(batch): pass"},)})
    assert "rule.py has no function of a completion and an answer" in html.unescape(picker.line.value)
    assert chosen[2:] == []


# --- what is known before anything is trained


@pytest.fixture
def chatty(tmp_path):
    """The bundled policy, with a chat template."""
    folder = shutil.copytree(BUNDLED, tmp_path / "chatty")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %} so"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
    return str(folder)


def test_unknown_words_are_counted(own, tmp_path):
    seen = examine(experiment(**TINY, **own))
    assert seen.errors == seen.doubts == ()
    assert seen.task == "own:rows.csv: 32 prompts; 0% of their tokens are unknown to bundled."
    (tmp_path / "rows.csv").write_text("prompt,answer\n" + "What is the capital of Peru ?,Lima\n" * 40)
    seen = examine(experiment(**TINY, **own))
    assert "71% of their tokens are unknown" in seen.task
    assert "can't read 71% of these prompts" in seen.doubts[0]
    assert "'capital'" in seen.doubts[0]
    (tmp_path / "rows.csv").write_text("prompt,answer\n" + "so the 3 + 4 = is Peru,7\n" * 40)
    seen = examine(experiment(**TINY, **own))
    assert seen.doubts == ()
    assert "'Peru'" in seen.notes[0]


def test_an_unused_chat_template_is_pointed_out(own, chatty):
    seen = examine(experiment(**TINY, **own, model=chatty))
    assert "has a chat template and these prompts don't use it" in seen.notes[0]
    options = own["task_options"] | {"chat": True}
    assert examine(experiment(**TINY, **own | {"task_options": options}, model=chatty)).notes == ()
    assert examine(experiment(**TINY, model=chatty)).notes == (), "the chain has no chats"
    (error,) = examine(experiment(**TINY, **own | {"task_options": options})).errors
    assert "bundled can't read these prompts: prompt is a chat" in error


def test_what_can_not_be_is_an_error_and_what_should_not_a_doubt(own, tmp_path):
    def errors(**changed):
        return " ".join(examine(experiment(**TINY | own | changed)).errors)

    assert "neither an existing folder nor a hub id" in errors(model="no model")
    assert "there is no data file 'row.csv'" in errors(task="own:row.csv")
    assert "has no function 'scroe'; it has score" in errors(task_options={"reward": "reward.py:scroe"})
    assert "rows.csv has 36 rows" in errors(num_prompts=37)
    (tmp_path / "reward.py").write_text("def score(completion, answer):\n    return completion.split()[-1] == answer\n")
    (doubt,) = examine(experiment(**TINY, **own)).doubts
    assert "raised IndexError" in doubt
    assert "for the completion ''" in doubt
    large = experiment(prompts=4096, num_prompts=4096, group_size=16, max_tokens=512)
    (doubt,) = examine(large).doubts
    assert "MiB are free on" in doubt
    assert local_folder("bundled") == BUNDLED


# --- samples before training


def test_a_preview_samples_as_training_would(own):
    result = sample_preview(experiment(**TINY | own | {"max_tokens": 5}))
    assert result["model"] == "bundled"
    assert len({prompt["text"] for prompt in result["prompts"]}) == 2, "two different prompts"
    for prompt in result["prompts"]:
        assert prompt["text"] in ROWS
        assert prompt["unknown"] == 0
        assert len(prompt["completions"]) == 4
        assert all(1 <= sampled["tokens"] <= 5 for sampled in prompt["completions"])
        assert all(sampled["reward"] in (0.0, 1.0) for sampled in prompt["completions"])


def _sampled(*rewards, text="<b>x</b>\nyes", ended=True):
    completions = [{"text": text, "reward": reward, "tokens": 3, "ended": ended} for reward in rewards]
    prompt = {"text": "<unk> <script>", "tokens": 2, "unknown": 1, "answer": "<i>", "completions": completions}
    return {"model": "a&b", "prompts": [prompt]}


def test_samples_are_shown_as_text():
    page = preview_html(_sampled(0.0, 0.5, ended=False))
    assert not any(tag in page for tag in ("<b>x", "<script", "<i>", "a&b"))
    assert "&lt;b&gt;x&lt;/b&gt;⏎\nyes" in page
    assert "1 of them unknown to it" in page
    assert "3 (cut off)" in page
    assert "1 of 1 groups hold different rewards" in preview_sentence(_sampled(0.0, 1.0))
    assert "no group holds two different rewards" in preview_sentence(_sampled(1.0, 1.0))


def test_a_preview_can_be_stopped(own):
    panel = examined(Laboratory(**TINY, **own)).try_it
    panel.button.click()
    assert panel.button.description == "Stop"
    settle(panel, lambda it: "Loading the model" in it.line.value)
    began = time.monotonic()
    panel.button.click()
    settle(panel, lambda it: it.button.description == "Try it")
    assert time.monotonic() - began < KILL_AFTER_S
    assert "Stopped." in panel.line.value
    assert panel.samples.layout.display == "none"


def test_a_preview_that_fails_says_why(own, tmp_path):
    (tmp_path / "reward.py").write_text("def score(completion, answer):\n    return {}[answer]\n")
    folder = export_config(experiment(**TINY, **own), tmp_path / "preview").parent
    assert preview_process(str(folder)) == 1
    status = Preview(folder).status()
    assert status["state"] == "failed"
    assert "raised KeyError" in status["message"]


def test_samples_leave_the_page_with_the_settings_they_are_of(own, monkeypatch):
    done = SimpleNamespace(
        running=False, status=lambda: {"state": "finished", "message": ""}, result=lambda: _sampled(0.0, 1.0)
    )
    monkeypatch.setattr(try_it, "start_preview", lambda *_: done)
    laboratory = Laboratory(**TINY, **own)
    laboratory.try_it.button.click()
    settle(laboratory, lambda it: it.try_it.samples.layout.display == "")
    laboratory.choices.sliders["learning_rate"].value = 0.01
    assert laboratory.try_it.samples.layout.display == "", "it has no part in them"
    laboratory.choices.sliders["max_tokens"].value = 7
    assert laboratory.try_it.samples.layout.display == "none"


# --- the form as a whole


def test_the_form_says_at_once_what_cannot_work(own):
    laboratory = examined(Laboratory(**TINY, **own))
    assert laboratory.problem.value == ""
    assert not laboratory.monitor.start_button.disabled
    assert laboratory.choices.menus["group_transform"].index == 0, "a menu shows what it says"
    assert laboratory.choices.vary.index == 0
    laboratory.choices.menus["batching"].value = "sign_partitioned"
    sentence = plan(batching="sign_partitioned", **TINY).problems[0].sentence
    for line in (laboratory.problem, laboratory.verdict):
        assert sentence in html.unescape(line.value)
    buttons = (laboratory.monitor.start_button, laboratory.forecasts.button, laboratory.try_it.button)
    assert all(button.disabled for button in buttons)
    assert laboratory.monitor.start_button.tooltip == sentence
    assert laboratory.snippet.text == "", "the file of other settings is gone"
    with pytest.raises(ValueError, match="can't have an effect"):
        laboratory.start()
    laboratory.choices.menus["mini_batches"].value = "2"
    examined(laboratory)
    assert not any(button.disabled for button in buttons)
    assert yaml.safe_load(laboratory.snippet.text)["trainer"]["batching"] == "sign_partitioned"
    laboratory.choices.vary.value = "ratio"
    assert laboratory.choices.swept.value == "token; sequence"
    assert yaml.safe_load(laboratory.snippet.text)["grid"][1]["importance_sampling_level"] == ["sequence"]
    laboratory.choices.swept.value = "token; word"
    assert "has no value 'word'" in html.unescape(laboratory.problem.value)


def test_the_form_names_the_bad_rows_of_a_file(own, tmp_path):
    laboratory = examined(Laboratory(**TINY, **own))
    assert "32 prompts" in laboratory.task_line.value
    (tmp_path / "bad.csv").write_text("prompt,answer\n1 + 1 =,2\n<b>,\n")
    for task, says in (("own:bad.csv", "line 3: answer is empty"), ("own:<script>", "script"), ("chains", "must be")):
        laboratory.choices.task.value = task
        examined(laboratory)
        assert says in laboratory.task_line.value
        assert "<script>" not in laboratory.task_line.value
        assert laboratory.monitor.start_button.disabled
    with pytest.raises(ValueError, match="must be"):
        laboratory.start()
    assert laboratory.started == []


def test_the_form_forecasts_and_starts_and_is_loaded_again(own):
    laboratory = examined(Laboratory(**TINY | {"eval_prompts": 3}, **own))
    laboratory.load_button.click()
    assert "Choose a run first." in laboratory.load_line.value
    laboratory.forecasts.button.click()
    assert laboratory.forecasts.button.description == "Stop"
    laboratory.monitor.start()
    assert laboratory.started[0].config == laboratory.plan().config
    settle(laboratory, lambda it: it.forecasts.button.description == "Forecast")
    line = html.unescape(laboratory.forecasts.line.value)
    assert "Peak memory about" in line
    assert "MiB are free on cpu" in line
    assert "of this very setting" in line
    assert "and twice 3 held-out prompts of" in line
    assert laboratory.forecasts.memory_box.layout.display == ""
    laboratory.started[0].wait(300)
    settle(laboratory, lambda it: "finished: mine" in it.monitor.line.value)
    settle(laboratory, lambda it: not it.results.export_button.disabled)
    assert isinstance(laboratory.box, ipywidgets.VBox)
    laboratory.choices.set(steps=9, model="chain")
    laboratory.load_button.click()
    assert laboratory.plan().config == laboratory.started[0].config
    assert f"These are the settings of {laboratory.started[0].folder.name}." in laboratory.load_line.value


def test_what_does_not_fit_is_neither_tried_nor_started_unless_asked_for_again(own, tmp_path, monkeypatch):
    sentence = "It needs <52,359> MiB and 19,000 are free."
    begun = []
    monkeypatch.setattr(f"{FORECAST}.fits", lambda config: sentence)
    monkeypatch.setattr("workbook.topics.laboratory.examine.fits", lambda config, at_once: sentence)
    monkeypatch.setattr(f"{FORECAST}.start_trial", lambda *_, **__: begun.append("trial") or 1 / 0)
    run = SimpleNamespace(folder=tmp_path / "mine", status=lambda: {"state": "stopped"})
    monkeypatch.setattr("workbook.topics.laboratory.widget.start_run", lambda *_, **__: begun.append("run") or run)
    laboratory = examined(Laboratory(**TINY, **own))
    panel = laboratory.forecasts
    escaped = html.escape(sentence)
    assert escaped in laboratory.verdict.value
    assert laboratory.monitor.start_button.disabled
    assert laboratory.anyway_button.layout.display == ""
    panel.forecast()
    settle(panel, lambda it: it.button.description == "Forecast")
    assert f"{escaped} No trial was started." in panel.line.value
    assert ERROR_COLOR in panel.line.value
    assert panel.memory_box.layout.display == "", "what it is made of is drawn"
    assert panel.anyway_button.layout.display == ""
    with pytest.raises(ValueError, match="Start anyway would"):
        laboratory.start()
    assert begun == []
    panel.anyway_button.click()
    settle(panel, lambda it: begun and it.button.description == "Forecast")
    assert begun == ["trial"]
    laboratory.choices.sliders["steps"].value = 3
    assert laboratory.anyway_button.layout.display == "none", "another setting is asked for anew"
    assert panel.memory_box.layout.display == panel.anyway_button.layout.display == "none"
    examined(laboratory)
    begun.clear()
    laboratory.anyway_button.click()
    assert begun == ["run"]


def test_a_forecast_of_other_settings_says_so(own, monkeypatch):
    monkeypatch.setattr(f"{FORECAST}.forecast_run", lambda config: time.sleep(0.5) or 1 / 0)
    laboratory = Laboratory(**TINY, **own)
    laboratory.forecasts.forecast()
    laboratory.choices.sliders["steps"].value = 3
    settle(laboratory.forecasts, lambda it: it.button.description == "Forecast")
    assert "The settings have changed since" in laboratory.forecasts.line.value


class Trial:
    """A trial whose step in hand takes for ever."""

    stopped = killed = False

    @property
    def running(self):
        return not self.killed

    @property
    def stopping(self):
        return self.stopped

    def stop(self):
        self.stopped = True

    def status(self):
        return {"state": "running", "message": "Training.", "step": 0, "total": 2}


def test_stopping_a_trial_is_said_at_once_and_it_may_be_killed(own, monkeypatch):
    trial = Trial()
    monkeypatch.setattr(f"{FORECAST}.KILL_AFTER_S", 0.3)
    monkeypatch.setattr(f"{FORECAST}.fits", lambda config: None)
    monkeypatch.setattr(f"{FORECAST}.start_trial", lambda *_, **__: trial)
    monkeypatch.setattr(f"{FORECAST}.trial_is_done", lambda run: False)
    monkeypatch.setattr(f"{FORECAST}.kill", lambda run: setattr(run, "killed", True))
    monkeypatch.setattr(f"{FORECAST}.measure_throughput", lambda run: (_ for _ in ()).throw(ValueError("no batch")))
    panel = Laboratory(**TINY, **own).forecasts
    panel.button.click()
    settle(panel, lambda it: "Time: a trial" in it.line.value)
    panel.button.click()
    assert "stopping after the step in hand" in panel.line.value
    settle(panel, lambda it: it.button.description == "Kill" and trial.stopped)
    assert not panel.button.disabled
    assert not trial.killed
    panel.button.click()
    settle(panel, lambda it: it.button.description == "Forecast")
    assert "Stopped before its trial had finished a generation batch" in panel.line.value
    assert not panel.button.disabled


def test_a_closed_laboratory_is_freed(own):
    shared()  # which stays
    before = set(_instances)
    laboratory = examined(Laboratory(**TINY, **own))
    reference = weakref.ref(laboratory)
    laboratory.close()
    assert set(_instances) <= before
    del laboratory
    settle(reference, lambda it: gc.collect() >= 0 and it() is None)
