"""TokenHeatmap: colours, what the page gets, steps of a run, two panes, pins, and what is freed."""

import gc
import warnings
import weakref
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from ipywidgets.widgets.widget import _instances
from refusals import refused
from small_run import SMALL, bundled_trainer

from workbook.app import RunMonitor
from workbook.app.runs import Run
from workbook.rollouts import sample_rollouts, token_biography
from workbook.tasks import get_task
from workbook.training import CancellationConfig, CancellationTrainer
from workbook.views import TokenHeatmap, live
from workbook.views.token_look import PALETTE, SHADES, ColorScale, contrast_ratio, scale_of

SETTINGS = {
    "record_tokens": 2,
    "max_steps": 6,
    "num_iterations": 2,
    "steps_per_generation": 2,
    "epsilon": 0.1,
}
GROUPS = {"per_device_train_batch_size": 8, "batching": "query_preserved", "learning_rate": 5e-3}
WORDS = ["To", " add", " 3", "\n", "", " \u202eevil", "<b>", " +"]


def table(**columns):
    rows = {
        "group": [0, 0, 0, 1],
        "rollout": [0, 0, 1, 2],
        "position": [0, 1, 0, 0],
        "token": ["so", " 7", "so", " 7"],
    }
    return pd.DataFrame(rows | {"advantage": [1.0, 1.0, -1.0, np.nan]} | columns)


def values(heatmap, name):
    slot = next(k for k, column in enumerate(heatmap.main["columns"]) if column["name"] == name)
    return np.frombuffer(heatmap.main["values"], "<f4").reshape(
        -1, heatmap.main["shape"]["tokens"]
    )[slot]


@pytest.mark.parametrize("name", PALETTE)
def test_text_can_be_read_on_every_colour_of_a_scale(name):
    fills, inks = PALETTE[name]["fills"], PALETTE[name]["inks"]
    assert min(contrast_ratio(fill, ink) for fill, ink in zip(fills, inks, strict=True)) >= 4.5
    assert contrast_ratio("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01), (
        "as WCAG's own example has it"
    )


def test_a_one_sided_column_has_no_signs_and_a_signed_one_is_diverging():
    entropy = pd.Series([0.0, 1.0, np.nan, 2.0])
    up, down = scale_of("entropy", entropy), scale_of("logp", -entropy)
    assert (up.side, down.side) == (1, -1)
    assert up.shades(entropy).tolist() == down.shades(-entropy).tolist(), "light is zero for both"
    assert set(up.signs(entropy)) == {""}
    assert (down.format(-1.5), down.format(np.nan)) == ("−1.5", "unknown")
    for name in ("advantage", "true credit", "push", "dlogp", "ratio"):
        assert scale_of(name, pd.Series([0.0, 1.5])).side == 0
    scale = ColorScale(2.0, center=1.0)
    assert scale.signs([1.0, 1.5, 0.5, np.nan]).tolist() == ["", "⁺", "⁻", ""]
    assert scale.shades([1.0, 3.0, -9.0, np.nan]).tolist() == [SHADES // 2, SHADES - 1, 0, -1]


def test_tokens_are_sent_in_the_order_of_the_table():
    heatmap = TokenHeatmap(table(category=["a", "b", "a", None]))
    shape, places = (
        heatmap.main["shape"],
        np.frombuffer(heatmap.main["places"], "<i4").reshape(3, -1),
    )
    assert (shape["texts"], shape["rows"]) == (["so", "·7"], ["rollout 0", "rollout 1"])
    assert places.tolist() == [[0, 1, 0], [0, 0, 1], [0, 1, 0]]
    assert values(heatmap, "advantage").tolist() == [1, 1, -1]
    assert values(heatmap, "category").tolist() == [0, 1, 0]
    heatmap.group = 1
    assert heatmap.main["shape"]["tokens"] == 1
    assert np.isnan([*values(heatmap, "advantage"), *values(heatmap, "category")]).all()


def test_a_model_s_text_stays_text_and_is_drawn():
    n = len(WORDS)
    rows = {
        "group": 0,
        "rollout": 0,
        "position": range(n),
        "token": WORDS,
        "advantage": 1.0,
        "kind": ["a\x00b"] * n,
    }
    heatmap = TokenHeatmap(pd.DataFrame(rows))
    assert "".join(heatmap.main["shape"]["raw"]) == "To add 3\n \\u202eevil<b> +"
    for mode, column in (("align", "advantage"), ("read", "kind")):
        heatmap.mode, heatmap.column = mode, column
        assert "image/png" in heatmap.picture()[0]
    heatmap.pin(0, 6)
    assert heatmap.details["lines"] == ["<b> at position 6 of rollout 0: advantage +1"]
    heatmap.pinned = 10**6  # a page that lags behind a change of group
    assert heatmap.details == {}


def test_a_title_stands_while_the_group_that_it_is_of_is_shown(monkeypatch):
    heatmap = TokenHeatmap(table(), title="Rollout 0 is\x00 better")
    drawn = []
    monkeypatch.setattr("workbook.views.heatmap.picture", lambda spec: drawn.append(spec["title"]))
    heatmap.picture()
    assert [heatmap.title] == drawn[0]["text"] == ["Rollout 0 is␀ better"]
    assert drawn[0]["subtitle"].startswith("Group 0: advantage of its rollout by token; ")
    heatmap.group = 1
    heatmap.picture()
    assert heatmap.title == "Tokens of group 1, rollout by rollout"
    assert drawn[1]["text"] == ["Group 1: advantage of its rollout by token"]
    heatmap.group = 0
    assert heatmap.title == "Rollout 0 is␀ better"


@pytest.mark.parametrize(
    ("change", "settings", "column"),
    [
        ({"position": [0, 1, -1, 0]}, {}, "position"),
        ({"position": [0, 1.5, 0, 0]}, {}, "position"),
        ({"group": ["a", 0, 0, 1]}, {}, "group"),
        ({}, {"column": "credit"}, "credit"),
        ({}, {"compare": "credit"}, "credit"),
    ],
)
def test_a_column_that_can_not_be_shown_is_named(change, settings, column):
    with pytest.raises(ValueError, match=column):
        TokenHeatmap(table(**change), **settings)


@pytest.mark.parametrize(("field", "value"), [("group", 77), ("step", 3)])
def test_a_place_that_is_not_there_is_refused(field, value):
    with refused(field, value):
        TokenHeatmap(table(), **{field: value})


def test_a_column_stands_beside_another():
    heatmap = TokenHeatmap(table(credit=[0.5, -3.0, 1.0, 0.0]), compare="credit")
    assert (heatmap.compare, heatmap.other) == ("column credit", {}), "the page has that column"
    assert "column credit" in heatmap.choices


def test_columns_and_rows_say_in_words_what_they_show(policy):
    rollouts = sample_rollouts(policy, get_task("chain"), 1, 4, seed=3)
    rewards = torch.tensor([1.0, 0.0, 1.0, 0.0])
    tokens = replace(rollouts, rewards=rewards).token_table().assign(dlogp=0.1, other=1.0)
    sent = TokenHeatmap(tokens, "dlogp").main
    assert sent["asked"] == (rollouts.prompts[0], str(rollouts.answers[0]))
    assert sent["shape"]["rows"] == ["✓ rollout 0", "✗ rollout 1", "✓ rollout 2", "✗ rollout 3"]
    columns = {column["name"]: column for column in sent["columns"]}
    assert columns["dlogp"]["words"] == "change of log-probability (dlogp)"
    assert (
        columns["dlogp"]["meaning"]
        == "blue (+): the token became more likely; orange (−): less likely"
    )
    assert columns["other"]["words"] == "other"
    assert columns["dlogp"]["unit"] != columns["advantage"]["unit"], "each a scale of its own"
    halves = replace(rollouts, rewards=rewards / 2).token_table()
    assert TokenHeatmap(halves).main["shape"]["rows"][0] == "rollout 0  reward 0.50"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Eight rollouts a step, each taken twice, at a rate that leaves the clip range."""
    folder = tmp_path_factory.mktemp("run")
    args = CancellationConfig(output_dir=str(folder), **SMALL | SETTINGS | GROUPS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bundled_trainer(CancellationTrainer, args).train()
    return Run(folder)


class Watched:
    """A run that notes which tables are read, and shows its first `shown` steps; those in `damaged`
    can't be read.
    """

    def __init__(self, run, shown=99):
        self.run, self.shown, self.read, self.damaged = run, shown, [], ()

    def token_steps(self):
        return self.run.token_steps()[: self.shown]

    def tokens(self, step):
        self.read.append(step)
        if step in self.damaged:
            raise ValueError(f"step-{step} is damaged.")
        return self.run.tokens(step)


def test_a_run_opens_at_its_newest_step_in_a_group_that_was_pushed(run):
    heatmap = TokenHeatmap(run)
    assert (heatmap.steps, heatmap.step, heatmap.column) == ([1, 2, 4, 6], 6, "dlogp")
    assert "at step 6" in heatmap.title
    rows = heatmap.rows
    assert rows["push"].any()
    assert heatmap.main["asked"] == (rows["prompt"].iloc[0], "")
    np.testing.assert_allclose(
        values(heatmap, "dlogp"), rows["logp_after"] - rows["logp"], rtol=1e-6
    )
    columns = {column["name"]: column for column in heatmap.main["columns"]}
    marks = columns["stopped"]
    assert dict(zip(marks["levels"], marks["marks"], strict=True))["not stopped"] == ""
    assert columns["ratio"]["center"] == 1
    assert not {"prompt", "step", "token_id"} & set(columns)


def test_steps_are_read_when_they_are_shown_and_the_pinned_word_and_the_scale_stay(run):
    watched = Watched(run)
    heatmap = TokenHeatmap(watched)
    assert set(watched.read) == {1, 6}, "the ends give the scale of colours"
    heatmap.pinned = heatmap.rows["token"].tolist().index("with")
    lived = token_biography(run, int(heatmap.rows["token_id"].iloc[heatmap.pinned]))
    (biography,) = heatmap.details["tables"]
    assert [row["cells"][1] for row in biography["rows"]] == [f"{n:.0f}" for n in lived["places"]]
    limits = [column.get("limit") for column in heatmap.main["columns"]]
    for step in (1, 2, 4):
        heatmap.step = step
        assert (heatmap.table["step"] == step).all()
        assert heatmap.rows["token"].iloc[heatmap.pinned] == "with"
        assert [column.get("limit") for column in heatmap.main["columns"]] == limits
    watched.damaged = (2,)
    heatmap.step = 2
    assert (heatmap.step, heatmap.message) == (4, "Step 2 can't be shown: step-2 is damaged.")


def test_new_steps_are_shown_when_asked_for(run):
    watched = Watched(run, shown=2)
    heatmap = TokenHeatmap(watched)
    heatmap._answer(None, {"kind": "look"}, [])
    assert (heatmap.steps, heatmap.message) == (
        [1, 2],
        "The newest step that is recorded is step 2.",
    )
    watched.shown = 99
    heatmap._answer(None, {"kind": "look"}, [])
    assert (heatmap.steps, heatmap.step) == ([1, 2, 4, 6], 2)
    heatmap.show_step(5)
    assert (
        heatmap.message
        == "Step 5 has no token table; this is the nearest that was recorded, step 4."
    )
    with pytest.raises(ValueError, match="no tokens"):
        TokenHeatmap(Watched(run, shown=0))
    with pytest.raises(ValueError, match="no run"):
        TokenHeatmap(run.tokens(4), "push").show_step(4)


def test_two_steps_of_a_run_stand_beside_one_another(run):
    watched = Watched(run)
    heatmap = TokenHeatmap(watched, step=1, compare=6)
    assert heatmap.other["name"] == "step 6"
    assert heatmap.other["note"].startswith("other rollouts, of ")
    assert "image/png" in heatmap.picture()[0]
    heatmap.step = 2
    assert "step 1" in heatmap.choices
    assert "step 2" not in heatmap.choices
    watched.damaged = (4,)
    heatmap.compare = "step 4"
    assert (heatmap.other, heatmap.message) == ({}, "step 4 can't be shown: step-4 is damaged.")
    with refused("step", 3):
        TokenHeatmap(run, compare=3)


def test_a_click_on_a_monitors_curve_shows_that_steps_rollouts(run):
    monitor = RunMonitor(run)
    for clicked, step in ((2, 2), (5, 4)):
        monitor._clicked(
            {"step": clicked, "panel": "reward", "value": 0.5, "run": "this run", "mine": True}
        )
        (heatmap,) = monitor.rollouts.children
        assert heatmap.step == step
    monitor.close()
    assert heatmap.comm is None


def test_closed_heatmaps_are_freed():
    gc.collect()
    open_before, heatmap = len(_instances), TokenHeatmap(table())
    heatmap.pinned = 1
    reference = weakref.ref(heatmap)
    live.close(heatmap)
    del heatmap
    gc.collect()
    assert reference() is None
    assert len(_instances) == open_before
