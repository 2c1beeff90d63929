"""Two contexts in one softmax layer: closed forms against autograd and real steps, the map, and
what is drawn of it.
"""

import ast
from importlib import import_module

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbook import sample_rollouts
from workbook.chapters.softmax import charts, explore
from workbook.chapters.softmax.toy import (
    PARTS,
    READS,
    SOURCES,
    TRAINED,
    compute_learning_rates,
    compute_map,
    compute_pair,
    coupling_parts,
    make_pair,
    map_verdict,
    real_step,
)
from workbook.probes.rivals import measure_pairs, measure_unsure
from workbook.rollouts.states import output_states
from workbook.theory import coupling_kernel, predicted_delta_logp

P = st.floats(0.01, 0.99)
SETTINGS = st.fixed_dictionaries(
    {
        "p_a": P,
        "p_b": P,
        "angle": st.floats(0, 180),
        "length_a": st.floats(0, 2),
        "length_b": st.floats(0, 2),
        "same": st.booleans(),
        "vocabulary": st.integers(4, 60),
        "rivalry": st.floats(0, 0.95),
        "temperature": st.floats(0.5, 2),
        "b_reads": st.sampled_from(list(READS)),
        "width": st.integers(2, 8),
        "seed": st.integers(0, 50),
    }
)
ADVANTAGES = st.tuples(st.floats(-1, 1), st.floats(-1, 1)).map(
    lambda pair: torch.tensor(pair, dtype=torch.float64)
)
quickly = settings(max_examples=40, deadline=None)


def gradients(pair, trained):
    """Rows: the gradient of each token's log-probability with respect to all that is trained."""
    output = pair.embeddings.clone().requires_grad_()
    embeddings = output if trained == "tied" else pair.embeddings.clone().requires_grad_()
    leaves = [output, embeddings] if trained == "untied" else [output]
    logps = pair.logps(output, embeddings).gather(1, pair.tokens[:, None]).squeeze(1)
    rows = [torch.autograd.grad(logp, leaves, retain_graph=True) for logp in logps]
    return torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])


@quickly
@given(SETTINGS)
def test_settings_are_what_the_pair_has(chosen):
    pair = make_pair(**chosen | {"temperature": 1.0})
    torch.testing.assert_close(
        pair.probabilities, torch.tensor([chosen["p_a"], chosen["p_b"]], dtype=torch.float64)
    )
    torch.testing.assert_close(pair.logits.exp().sum(1), torch.ones(2, dtype=torch.float64))
    lengths = chosen["length_a"], chosen["length_b"]
    torch.testing.assert_close(pair.hidden.norm(dim=1), torch.tensor(lengths, dtype=torch.float64))
    inner = np.prod(lengths) * np.cos(np.radians(chosen["angle"]))
    assert float(pair.hidden[0] @ pair.hidden[1]) == pytest.approx(inner, abs=1e-10)
    hot = make_pair(**chosen)
    torch.testing.assert_close(hot.hidden, pair.hidden / chosen["temperature"])
    torch.testing.assert_close(hot.logits, (pair.logits / chosen["temperature"]).log_softmax(-1))


@quickly
@given(SETTINGS, ADVANTAGES, st.floats(0, 10))
def test_closed_form_is_autograd_is_a_real_step(chosen, advantages, lr):
    pair = make_pair(**chosen)
    kernel = coupling_kernel(pair.hidden, pair.logits, pair.tokens)
    rows = gradients(pair, "output")
    torch.testing.assert_close(kernel, rows @ rows.T, rtol=1e-8, atol=1e-10)
    args = pair.hidden, pair.logits, pair.tokens, advantages
    exact = predicted_delta_logp(*args, lr, order="exact")
    torch.testing.assert_close(exact, real_step(pair, advantages, lr), rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(
        real_step(pair, advantages, 1e-6) / 1e-6, kernel @ advantages, rtol=1e-3, atol=1e-3
    )


@quickly
@given(SETTINGS, ADVANTAGES, st.sampled_from(list(TRAINED)))
def test_the_parts_of_the_coupling_sum_to_autograds(chosen, advantages, trained):
    pair = make_pair(**chosen)
    parts = coupling_parts(pair)
    total = sum(parts[name] for name in PARTS[: list(TRAINED).index(trained) + 1])
    rows = gradients(pair, trained)
    torch.testing.assert_close(total, rows @ rows.T, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(
        real_step(pair, advantages, 1e-6, trained) / 1e-6, total @ advantages, rtol=1e-3, atol=1e-3
    )


@quickly
@given(SETTINGS, ADVANTAGES, st.floats(0, 5))
def test_a_step_falls_short_of_its_forecast_by_the_kl(chosen, advantages, lr):
    steps = compute_learning_rates([lr], advantages.tolist(), **chosen)
    np.testing.assert_allclose(steps["exact"], steps["first"] - steps["kl"], atol=1e-9)
    assert (steps["kl"] >= 0).all()


def test_the_verdict_sees_rivals():
    even, rivals = (map_verdict(compute_map(rivalry=rivalry)["map"]) for rivalry in (0.0, 0.9))
    assert even["below_half"] == rivals["below_half"] == 1
    assert even["other"] == pytest.approx(1 / 31)
    assert rivals["other"] > 0.9
    assert map_verdict(compute_map(angle=90)["map"].assign(K=0.0))["other"] == 0


def test_the_tables_of_a_pair_agree_with_one_another():
    tables = compute_pair(
        advantage_a=1.0, advantage_b=-1.0, lr=0.1, p_b=0.5, same=False, rivalry=0.3
    )
    K = tables["kernel"]["K"].to_numpy().reshape(2, 2)
    moves = tables["moves"].pivot(index="token", columns="source", values="dlogp")
    np.testing.assert_allclose(moves[SOURCES[0]], 0.1 * K @ [1, -1])
    np.testing.assert_allclose(moves[SOURCES[1]], moves[SOURCES[2]])
    assert K[0, 1] == pytest.approx(np.cos(np.pi / 6) * tables["coordinates"]["product"].sum())


@pytest.mark.parametrize("name", ["explore_pair", "explore_map"])
def test_explorers_draw_follow_reset_and_give_their_state_as_code(name):
    explorer = getattr(explore, name)()
    before, sentence = explorer.settings, explorer.sentence.value
    spec = explorer.chart.spec
    assert spec["description"].startswith(spec["title"]["text"])
    explorer.set(p_a=0.62, same=False)
    assert explorer.sentence.value != sentence
    imports, call = ast.parse(explorer.code).body
    function = getattr(import_module(imports.module), call.value.func.id)
    again = function(
        **{keyword.arg: ast.literal_eval(keyword.value) for keyword in call.value.keywords}
    )
    for key, table in explorer.tables.items():
        np.testing.assert_allclose(
            again[key].select_dtypes("number"), table.select_dtypes("number"), rtol=1e-5, atol=1e-5
        )
    explorer.reset()
    assert explorer.settings == before
    assert explorer.sentence.value == sentence
    assert charts.learning_rate_chart(compute_learning_rates([0.0, 1.0])).to_dict()


@pytest.mark.parametrize(
    ("mine", "whose", "value"),
    [
        (None, "the workbook's", "now of A, now of B: +1.00"),
        (lambda hidden, logits, tokens: None, "the workbook's", "now of A, now of B: +1.00"),
        (lambda hidden, logits, tokens: 1 / 0, "the workbook's", "now of A, now of B: +1.00"),
        (lambda h, z, y: torch.eye(len(y)), "your function", "now of A, now of B: +0.00"),
    ],
)
def test_a_readers_coupling_draws_or_the_workbooks_does(mine, whose, value, capsys):
    chart = explore.draw_example_coupling(mine).to_dict()
    assert f"Drawn with {whose}" in capsys.readouterr().out
    assert value in chart["description"]


@pytest.fixture(scope="module")
def sampled(policy, task):
    return policy, sample_rollouts(policy, task, 2, 8, seed=0, max_new_tokens=48)


def test_pairs_of_a_policy_are_all_counted(sampled):
    policy, rollouts = sampled
    table = measure_pairs(policy, rollouts)
    lengths = rollouts.completion_mask.sum(1)
    for group, rows in table.groupby("group"):
        n = int(lengths[rollouts.group_ids == group].sum())
        assert rows["pairs"].sum() == n * (n - 1) / 2


def test_what_moves_unsure_tokens_is_the_sum_over_all_others(sampled):
    policy, rollouts = sampled
    mixed = rollouts.group_ids[rollouts.advantages != 0][0]
    row = measure_unsure(policy, rollouts).set_index("group").loc[int(mixed)]
    part = rollouts.select((rollouts.group_ids == mixed).nonzero().squeeze(1))
    states, mask = output_states(policy, part), part.completion_mask.bool()
    advantages = part.advantages[:, None].expand_as(mask)[mask]
    p = states.logits.softmax(-1)[torch.arange(len(states.tokens)), states.tokens]
    parts = {True: [], False: []}
    for i in (p < 0.5).nonzero().flatten().tolist():
        contribution = torch.tensor(states.coupled(i, advantages)["contribution"].to_numpy())
        contribution[i] = 0.0
        same = states.tokens == states.tokens[i]
        for kind in parts:
            parts[kind].append(abs(float(contribution[same == kind].sum())))
    different, same = np.mean(parts[False]), np.mean(parts[True])
    assert row["different"] == pytest.approx(different / (different + same), rel=1e-3)
    assert row["negative"] > 0.9
    assert 0 < row["no_rivals"] < row["rivals"] < 1
