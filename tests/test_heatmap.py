"""TokenHeatmap's Python half, and the states behind it: encodings, formulas that add up, refusals, fallbacks."""

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from ipywidgets.widgets.widget import _instances
from soak import sample
from test_states import head_alone, logps_of, make_policy, make_rollouts

from workbook.policies.load import load_policy
from workbook.rollouts.sample import sample_rollouts
from workbook.rollouts.states import OutputStates, output_states
from workbook.tasks import get_task
from workbook.theory.coupling import coupling_factors, coupling_kernel, predicted_delta_logp
from workbook.views import TokenHeatmap, live
from workbook.views.pinned import explain_pinned
from workbook.views.token_scale import number

HOSTILE = ["<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\"'&", "\u202eevil", "a\nb"]


@pytest.fixture(scope="module")
def sampled():
    policy = load_policy("bundled")
    rollouts = sample_rollouts(policy, get_task("chain"), 3, 4, seed=0)
    return policy, rollouts, rollouts.token_table(), output_states(policy, rollouts)


def table(**columns):
    rows = {"group": [0, 0, 0, 1], "rollout": [0, 0, 1, 2], "position": [0, 1, 0, 0], "token": ["so", " 7", "so", "x"]}
    return pd.DataFrame(rows | {"advantage": [1.0, 1.0, -1.0, np.nan]} | columns)


def places(heatmap):
    return np.frombuffer(heatmap.places, "<i4").reshape(3, -1)


def values(heatmap, name):
    slot = next(column["slot"] for column in heatmap.columns if column["name"] == name)
    return np.frombuffer(heatmap.values, "<f4").reshape(-1, heatmap.shape["tokens"])[slot]


def test_states_are_the_output_layers_inputs_and_outputs(sampled):
    policy, _, rows, states = sampled
    assert len(states.tokens) == len(rows)
    head = policy.model.get_output_embeddings()
    torch.testing.assert_close(states.hidden @ head.weight.T, states.logits, atol=1e-5, rtol=1e-5)
    logps = states.logits.log_softmax(-1).gather(1, states.tokens[:, None])[:, 0]
    torch.testing.assert_close(logps, torch.tensor(rows["logp"].to_numpy(), dtype=torch.float32), atol=1e-4, rtol=0)


def test_states_do_not_depend_on_the_batch_and_leave_no_hook(sampled):
    policy, rollouts, _, states = sampled
    again = output_states(policy, rollouts, batch_size=1)
    torch.testing.assert_close(again.logits, states.logits, atol=1e-4, rtol=1e-4)
    assert not policy.model.get_output_embeddings()._forward_hooks


def test_a_model_that_changes_its_logits_is_refused(sampled, monkeypatch):
    policy, rollouts, _, _ = sampled
    forward = policy.model.forward

    def capped(**inputs):
        output = forward(**inputs)
        output.logits = 30 * torch.tanh(output.logits / 30)
        return output

    monkeypatch.setattr(policy.model, "forward", capped)
    with pytest.raises(ValueError, match="changes the logits after its output layer"):
        output_states(policy, rollouts)


@pytest.mark.parametrize("index", [0, 7, 30])
def test_factors_and_contributions_add_up(sampled, index):
    _, _, rows, states = sampled
    few = [x[:60].double() if x.is_floating_point() else x[:60] for x in (states.hidden, states.logits, states.tokens)]
    hidden, residual = coupling_factors(*few, index)
    torch.testing.assert_close(hidden * residual, coupling_kernel(*few)[index], atol=1e-10, rtol=1e-8)
    weights = torch.tensor(rows["advantage"].to_numpy())
    coupled = states.coupled(index, weights, lr=0.3)
    predicted = predicted_delta_logp(states.hidden, states.logits, states.tokens, weights, lr=0.3)[index]
    assert coupled["contribution"].sum() == pytest.approx(predicted.item(), rel=1e-3, abs=1e-5)


def test_what_is_told_of_a_pinned_token_adds_up(sampled):
    _, _, rows, states = sampled
    group = rows[rows["group"] == 0].reset_index(drop=True)
    coupled = states.coupled(5, torch.tensor(rows["advantage"].to_numpy()), lr=0.1).iloc[: len(group)]
    details = explain_pinned(group, coupled, 5, 0.1)
    assert f"{number(coupled['contribution'].sum(), signed=True)} nats" in details["lines"][1]
    sizes = [abs(one["numbers"][-1]) for one in details["coupled"]]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == pytest.approx(coupled["contribution"].abs().max())


def test_tokens_are_encoded_in_the_order_of_the_table():
    heatmap = TokenHeatmap(table(category=["a", "b", "a", None]))
    assert heatmap.shape["texts"] == ["so", "·7"]
    assert heatmap.shape["rows"] == ["0", "1"]
    assert places(heatmap).tolist() == [[0, 1, 0], [0, 0, 1], [0, 1, 0]]
    assert values(heatmap, "advantage").tolist() == [1, 1, -1]
    assert values(heatmap, "category").tolist() == [0, 1, 0]
    heatmap.group = 1
    assert heatmap.shape["tokens"] == 1
    assert np.isnan([*values(heatmap, "advantage"), *values(heatmap, "category")]).all()


def test_pinning_tells_and_unpinning_clears(sampled):
    _, _, rows, states = sampled
    heatmap = TokenHeatmap(rows, group=1, states=states, lr=0.1)
    first = heatmap.rows.iloc[0]
    heatmap.pin(first["rollout"], 2)
    assert heatmap.pinned == 2
    assert len(np.frombuffer(heatmap.coupling, "<f4")) == len(heatmap.rows)
    assert len(heatmap.details["coupled"]) == 10
    heatmap.pinned = -1
    assert heatmap.details == {}
    assert heatmap.coupling == b""
    heatmap.pinned = 10**6  # a page that lags behind a change of group
    assert heatmap.details == {}
    with pytest.raises(ValueError, match="position=999 is no token"):
        heatmap.pin(first["rollout"], 999)


def test_without_states_a_pinned_token_is_still_described():
    heatmap = TokenHeatmap(table())
    heatmap.pin(1, 0)
    assert heatmap.details["lines"] == ["so at position 0 of rollout 1: advantage −1"]


def test_untrusted_text_is_visible_in_the_widget_and_escaped_in_html():
    heatmap = TokenHeatmap(table(token=[*HOSTILE[:3], "x"]))
    assert "".join(heatmap.shape["texts"]).isprintable()
    page = TokenHeatmap(table(token=[HOSTILE[0], HOSTILE[3], HOSTILE[4], "x"], **{"a<b": 1.0}), "a<b").to_html()
    assert "<script" not in page
    assert "&lt;script" in page
    assert "\u202e" not in page
    assert "a&lt;b 1" in page


def test_bad_input_is_refused(sampled):
    *_, states = sampled
    with pytest.raises(ValueError, match=r"group=9 is not in the table: choose one of \[0, 1\]"):
        TokenHeatmap(table(), group=9)
    with pytest.raises(ValueError, match=r"needs the column.*value"):
        TokenHeatmap(table(), "value")
    with pytest.raises(ValueError, match=f"states has {len(states.tokens)} tokens and the table 4 rows"):
        TokenHeatmap(table(), states=states)


def test_the_picture_fits_a_page(sampled):
    _, _, rows, _ = sampled
    data, about = TokenHeatmap(rows).picture()
    assert about["image/png"]["width"] < 1_000
    assert "rollouts with up to" in data["text/plain"]


def test_a_pinned_tokens_coupling_is_autograds_under_a_soft_cap():
    policy, rollouts = make_policy("soft-capped"), make_rollouts()
    states, n = output_states(policy, rollouts), 11
    trained, gradients = head_alone(policy.model), []
    for logp in logps_of(policy.model, rollouts):
        gradients.append(torch.autograd.grad(logp, trained, retain_graph=True)[0].flatten())
    kernel = torch.stack(gradients) @ torch.stack(gradients).T
    two = pd.DataFrame({"group": [0] * 4 + [1] * 7, "rollout": [0] * 4 + [1] * 3 + [2] * 4, "position": range(n)})
    two = two.assign(token="t", token_id=states.tokens.numpy(), advantage=np.linspace(-1, 1, n))
    heatmap = TokenHeatmap(two, group=1, states=states, lr=0.1)
    heatmap.pinned = 2
    mine = torch.tensor(np.frombuffer(heatmap.coupling, "<f4").astype(float))
    torch.testing.assert_close(mine, kernel[6, 4:], rtol=1e-5, atol=1e-6)
    moved = 0.1 * (kernel[6, 4:] * torch.tensor(two["advantage"].to_numpy()[4:])).sum()
    assert f"{number(moved.item(), signed=True)} nats" in heatmap.details["lines"][1]


def test_closed_heatmaps_and_their_states_are_freed():
    references = []
    for _ in range(3):
        states = OutputStates(torch.randn(4, 5), torch.randn(4, 9), torch.tensor([0, 1, 2, 3]))
        heatmap = TokenHeatmap(table(), states=states)
        heatmap.pinned = 1
        references += [weakref.ref(heatmap), weakref.ref(states)]
        heatmap.close()
    del heatmap, states
    gc.collect()
    assert [reference() for reference in references] == [None] * 6


def test_heatmaps_that_are_dropped_unseen_are_freed_with_their_layouts():
    open_before = len(_instances)
    dropped = [weakref.ref(TokenHeatmap(table())) for _ in range(3)]
    gc.collect()
    assert [reference() for reference in dropped] == [None] * 3
    assert len(_instances) == open_before


def test_a_cell_that_runs_again_closes_what_it_showed_before(monkeypatch):
    running = {"metadata": {"cellId": "a"}, "header": {"msg_id": "1"}}
    monkeypatch.setattr(live, "get_ipython", lambda: SimpleNamespace(get_parent=lambda: running))

    def show_in(cell, execution):
        running.update(metadata={"cellId": cell}, header={"msg_id": execution})
        heatmap = TokenHeatmap(table())
        assert heatmap.model_id is not None
        return heatmap

    first, beside, elsewhere = show_in("a", "1"), show_in("a", "1"), show_in("b", "2")
    assert first.comm is not None, "one execution may show several"
    again = show_in("a", "3")
    assert [one.comm is None for one in (first, beside, elsewhere, again)] == [True, True, False, False]
    assert first.model_id is None, "what is closed is not opened again"
    for heatmap in (elsewhere, again):
        heatmap.close()


def test_the_picture_and_the_html_show_the_coupling_that_the_page_shows(sampled):
    _, _, rows, states = sampled
    heatmap = TokenHeatmap(rows, group=1, states=states)
    heatmap.column = "coupling"
    assert "coupling unknown" in heatmap.to_html(), "nothing is pinned"
    heatmap.pinned = 0
    assert "image/png" in heatmap.picture()[0]
    first = np.frombuffer(heatmap.coupling, "<f4")[0]
    assert f'title="coupling {number(first, signed=True)}"' in heatmap.to_html()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"position": [0, 1, -1, 0]}, r"position must be a whole number from 0 to 999999; row 2 of the table has '-1'"),
        ({"position": [0, 1.5, 0, 0]}, "position must be .* row 1 of the table has '1.5'"),
        ({"position": [0, 1, 0, 10**12]}, "position must be .* row 3"),
        ({"group": ["a", 0, 0, 1]}, "group must be a whole number .* row 0 of the table has 'a'"),
        ({"group": [0, 0, None, 1]}, "group must be .* row 2 of the table has 'nan'"),
    ],
)
def test_tokens_without_a_place_are_refused(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        TokenHeatmap(table(**change))


def test_states_need_advantages_and_a_table_needs_tokens():
    with pytest.raises(ValueError, match="the table has no rows"):
        TokenHeatmap(table().head(0))
    states = OutputStates(torch.randn(4, 5), torch.randn(4, 9), torch.tensor([0, 1, 2, 3]))
    with pytest.raises(ValueError, match=r"needs the column\(s\) advantage"):
        TokenHeatmap(table(logp=0.0).drop(columns="advantage"), "logp", states=states)


@pytest.mark.parametrize("trial", sample("widgets", 5), ids=lambda trial: trial[0])
def test_hostile_texts_are_drawn_sent_and_freed(trial, tmp_path):
    from soak import widgets

    assert widgets.attempt(tmp_path, *trial[1]) is None
