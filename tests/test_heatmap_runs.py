"""TokenHeatmap over a run: steps one at a time, the loss's formula of the pinned token, and a word's biography."""

import warnings

import numpy as np
import pandas as pd
import pytest
from small_run import SMALL
from workbook.rollouts.exchange import read_rollouts

from workbook.policies.load import load_policy
from workbook.tasks import get_task
from workbook.training import CancellationConfig, CancellationTrainer, token_biography
from workbook.training.runs import Run
from workbook.views import RunMonitor, TokenHeatmap, token_strip
from workbook.views.loss_term import loss_term
from workbook.views.recorded_steps import MAX_STEPS, RecordedSteps

SETTINGS = {"record_tokens": 2, "max_steps": 6, "num_iterations": 2, "steps_per_generation": 2, "epsilon": 0.1}
GROUPS = {"per_device_train_batch_size": 8, "batching": "query_preserved", "learning_rate": 5e-3}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Eight rollouts a step, each taken twice, at a rate that leaves the clip range."""
    policy, task, folder = load_policy("bundled"), get_task("chain"), tmp_path_factory.mktemp("run")
    args = CancellationConfig(output_dir=str(folder), **SMALL | SETTINGS | GROUPS)
    data = task.dataset(16, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = CancellationTrainer(
            policy.model, task.reward, args, train_dataset=data, processing_class=policy.tokenizer
        )
    trainer.train()
    return Run(folder)


class Watched:
    """A run that notes which tables are read, and shows its first `shown` steps; those in `damaged` can't be read."""

    def __init__(self, run, shown=99):
        self.run, self.shown, self.read, self.damaged = run, shown, [], ()

    def token_steps(self):
        return self.run.token_steps()[: self.shown]

    def tokens(self, step):
        self.read.append(step)
        if step in self.damaged:
            raise ValueError(f"step-{step} is damaged.")
        return self.run.tokens(step)


def values(heatmap, name):
    slot = next(column["slot"] for column in heatmap.columns if column["name"] == name)
    return np.frombuffer(heatmap.values, "<f4").reshape(-1, heatmap.shape["tokens"])[slot]


def test_the_formula_gives_the_push_of_recorded_tokens(run):
    """As training recorded it: to 1e-5 of the push, what was clipped included."""
    stopped = set()
    for step in run.token_steps():
        table = run.tokens(step)
        for _, group in table.groupby("group"):
            some = range(0, len(group), 3)
            expected = [loss_term(group, index, table.attrs["objective"]).push for index in some]
            np.testing.assert_allclose(group["push"].iloc[some], expected, rtol=1e-5, atol=1e-12)
        stopped |= set(table["stopped"])
    assert {"clip low", "clip high", ""} <= stopped


def test_a_run_opens_at_its_newest_step_in_a_group_that_was_pushed(run):
    heatmap = TokenHeatmap(run)
    assert (heatmap.steps, heatmap.step, heatmap.column) == ([1, 2, 4, 6], 6, "dlogp")
    assert "at step 6" in heatmap.title
    rows = heatmap.rows
    assert rows["push"].any()
    assert heatmap.prompt == rows["prompt"].iloc[0]
    np.testing.assert_allclose(values(heatmap, "dlogp"), rows["logp_after"] - rows["logp"], rtol=1e-6)
    marks = next(column for column in heatmap.columns if column["name"] == "stopped")
    assert dict(zip(marks["levels"], marks["marks"], strict=True))["not stopped"] == ""
    assert next(column for column in heatmap.columns if column["name"] == "ratio")["center"] == 1
    assert not {"prompt", "step", "token_id"} & {column["name"] for column in heatmap.columns}


def test_a_steps_table_is_read_when_it_is_shown_and_the_scale_stays(run):
    watched = Watched(run)
    heatmap = TokenHeatmap(watched)
    assert set(watched.read) == {1, 6}, "the ends give the scale of colours"
    watched.read.clear()
    scale = [column.get("limit") for column in heatmap.columns]
    heatmap.step = 2
    assert watched.read == [2]
    assert (heatmap.table["step"] == 2).all()
    assert [column.get("limit") for column in heatmap.columns] == scale


def test_a_pinned_word_stays_pinned_from_step_to_step(run):
    heatmap = TokenHeatmap(run)
    column = heatmap.rows["token"].tolist().index("with")
    heatmap.pinned = column
    for step in (1, 2, 4):
        heatmap.step = step
        assert heatmap.rows["token"].iloc[heatmap.pinned] == "with"
        assert heatmap.details["loss"]
    heatmap.pinned = -1
    heatmap.step = 6
    assert (heatmap.pinned, heatmap.details, heatmap.biography) == (-1, {}, {})


def test_a_word_that_a_step_has_not_comes_back(run):
    class Without(Watched):
        def tokens(self, step):
            table = super().tokens(step)
            return table[table["token"] != "with"] if step == 4 else table

    heatmap = TokenHeatmap(Without(run))
    heatmap.pinned = heatmap.rows["token"].tolist().index("with")
    heatmap.step = 4
    assert heatmap.pinned == -1
    assert heatmap.message == "with is in no rollout of this group at this step."
    heatmap.step = 2
    assert heatmap.rows["token"].iloc[heatmap.pinned] == "with"
    assert heatmap.message == ""
    assert heatmap.biography["places"][2] == 0
    assert heatmap.biography["logp"][2] is None


def test_a_biography_is_the_means_over_the_recorded_steps(run):
    heatmap = TokenHeatmap(run)
    heatmap.pinned = 0
    word = int(heatmap.rows["token_id"].iloc[0])
    expected, life = token_biography(run, word), pd.DataFrame(heatmap.biography)
    pd.testing.assert_frame_equal(life[list(expected)], expected, check_dtype=False, rtol=1e-5)
    assert heatmap.biography["sentence"].startswith(f"“{heatmap.rows['token'].iloc[0]}” stood ")


def test_a_long_runs_biography_reads_a_bounded_number_of_tables(run):
    class Long:
        def token_steps(self):
            return list(range(1, 1001))

        def tokens(self, step):
            return run.tokens(6).assign(step=step)

    steps = RecordedSteps(Long()).biography("with", "token")["step"].tolist()
    assert len(steps) == MAX_STEPS
    assert (steps[0], steps[-1]) == (1, 1000)


def test_new_steps_are_shown_when_asked_for_and_followed(run):
    watched = Watched(run, shown=2)
    heatmap = TokenHeatmap(watched)
    heatmap._answer(None, {"kind": "look"}, [])
    assert (heatmap.steps, heatmap.message) == ([1, 2], "No new step is recorded; the newest is step 2.")
    watched.shown = 3
    heatmap._answer(None, {"kind": "look"}, [])
    assert (heatmap.steps, heatmap.step, heatmap.looked) == ([1, 2, 4], 2, 2)
    heatmap.follow, watched.shown = True, 4
    heatmap._answer(None, {"kind": "other"}, [])
    assert heatmap.step == 2
    heatmap._answer(None, {"kind": "look"}, [])
    assert (heatmap.steps, heatmap.step) == ([1, 2, 4, 6], 6)


def test_a_run_whose_tables_were_removed_says_so_and_may_get_others(run):
    heatmap = TokenHeatmap(watched := Watched(run))
    values, watched.shown = heatmap.values, 0
    assert heatmap.look() == []
    assert heatmap.message == "No step is recorded any more: the run's token tables were removed."
    assert heatmap.values == values
    watched.shown = 1
    assert heatmap.look() == [1]
    heatmap.step = 1
    assert heatmap.message == ""


def test_a_step_that_cannot_be_read_leaves_what_is_shown(run):
    watched = Watched(run)
    heatmap = TokenHeatmap(watched)
    watched.damaged = (4,)
    heatmap.step = 4
    assert (heatmap.step, heatmap.message) == (6, "Step 4 can't be shown: step-4 is damaged.")
    heatmap.pinned = 0
    assert heatmap.biography["step"] == [1, 2, 6]
    heatmap.step = 999
    assert heatmap.step == 6
    assert "step=999 has no token table" in heatmap.message


@pytest.mark.parametrize(
    ("source", "settings", "sentence"),
    [
        ("no run", {}, r"takes a token table, or a run with token_steps\(\) and tokens\(step\), and not a str"),
        (0, {}, "This run has recorded no tokens so far: wait for its first step, or train with record_tokens=10"),
        (99, {"step": 3}, r"step=3 is not recorded: choose one of \[1, 2, 4, 6\]"),
        (99, {"group": 77}, "group=77 is not in the table"),
    ],
)
def test_bad_input_is_refused(run, source, settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        TokenHeatmap(Watched(run, source) if isinstance(source, int) else source, **settings)


def test_a_table_that_was_read_from_a_file_has_the_formula_too(run):
    table = read_rollouts(run.folder / "tokens" / "step-000004.parquet")
    heatmap = TokenHeatmap(table, "push")
    assert heatmap.steps == []
    heatmap.pinned = 0
    assert heatmap.details["loss"][1].startswith("push = ")
    assert heatmap.biography == {}
    with pytest.raises(ValueError, match="step=4 is not recorded: it is a table and no run"):
        TokenHeatmap(table, step=4)


def test_marks_stand_in_the_picture_and_the_html(run):
    table = run.tokens(4)
    group = int(table.loc[table["stopped"] == "clip high", "group"].iloc[0])
    chart = token_strip(table, "ratio", group=group)
    (cells,) = chart.to_dict()["datasets"].values()
    clipped = [cell for cell in cells if cell["stopped"] == "clip high"]
    assert {cell["mark"] for cell in clipped} == {"▲"}
    assert {cell["sign"] for cell in clipped} == {"⁺"}, "signs are by what changes nothing, a ratio of 1"
    assert "▲ clipped above" in chart.to_dict()["title"]["subtitle"]
    heatmap = TokenHeatmap(run, "ratio", group=group, step=4)
    assert '<span title="ratio ' in heatmap.to_html()
    assert ">▲" in heatmap.to_html()
    assert "image/png" in heatmap.picture()[0]


def test_a_step_of_a_curve_shows_the_nearest_recorded_one(run):
    heatmap = TokenHeatmap(run)
    heatmap.show_step(2)
    assert (heatmap.step, heatmap.message) == (2, "")
    heatmap.show_step(5)
    assert heatmap.step == 4
    assert heatmap.message == "Step 5 has no token table; this is the nearest that was recorded, step 4."
    with pytest.raises(ValueError, match="shows a table and no run"):
        TokenHeatmap(run.tokens(4), "push").show_step(4)


def test_two_steps_of_a_run_stand_beside_one_another(run):
    heatmap = TokenHeatmap(run, step=1, compare=2)
    assert heatmap.other["names"] == ["step 1", "step 2"]
    same = run.tokens(1)[["rollout", "position", "token"]].equals(run.tokens(2)[["rollout", "position", "token"]])
    assert heatmap.other["same"] == same
    heatmap.step = 6
    assert heatmap.other["names"] == ["step 6", "step 2"]
    assert "step 4" in heatmap.choices
    assert "step 6" not in heatmap.choices
    watched = Watched(run)
    heatmap = TokenHeatmap(watched, step=1, compare={"loss_type": "cispo", "epsilon_high": 1.05})
    assert heatmap.other["names"] == ["dr_grpo", "cispo, epsilon_high 1.05"]
    watched.damaged = (2,)
    heatmap.compare = "step 2"
    assert heatmap.other == {}
    assert heatmap.message == "step 2 can't be shown: step-2 is damaged."
    with pytest.raises(ValueError, match=r"compare=3 is no recorded step: choose one of \[1, 2, 4, 6\]"):
        TokenHeatmap(run, compare=3)


def test_a_click_on_a_monitors_curve_shows_that_steps_rollouts(run):
    monitor = RunMonitor(run)
    points = {k: {"step": k, "panel": "reward", "value": 0.5, "run": "this run", "mine": True} for k in (2, 5)}
    for clicked, step in ((2, 2), (5, 4)):
        monitor._clicked(points[clicked])
        assert monitor.rollouts.heatmap.step == step
        assert monitor.rollouts.box.children == (monitor.rollouts.heatmap,)
    assert "nearest that was recorded" in monitor.rollouts.heatmap.message
    monitor._clicked(points[2] | {"mine": False})
    assert "another run" in monitor.line.value
    shown = []
    monitor.on_step(shown.append)
    monitor._clicked(points[2])
    assert (shown, monitor.rollouts.heatmap.step) == ([2], 4), "who asks for clicks gets them instead"
    heatmap = monitor.rollouts.heatmap
    monitor.close()
    assert heatmap.comm is None


def test_a_click_on_the_curve_of_a_run_without_tokens_says_how_to_record_them(run):
    monitor = RunMonitor(run)
    run_without = Watched(run, shown=0)
    monitor.rollouts.run = lambda: run_without
    monitor._clicked({"step": 2, "run": "this run", "mine": True})
    assert "record_tokens=10" in monitor.line.value
    monitor.close()
