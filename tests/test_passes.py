"""Passes hold what the formula says; every probe takes batch_size; what is split or computed again
gives the same.
"""

import inspect

import pandas as pd
import pytest
import torch
from bench_memory import explain_token, made_up, peak_of
from refusals import refused

import workbook.probes
from workbook.app.memory import forecast_markdown
from workbook.messages import reporting
from workbook.places import data_path
from workbook.policies.models import private_copy, recomputing, row_bytes
from workbook.probes import cancellation_index, coupling_by_confidence, token_flips
from workbook.probes.directions import Along
from workbook.probes.step import logp_change
from workbook.rollouts import output_states, scoring
from workbook.rollouts.likelihood import scores
from workbook.theory import coupling

SIZES = [
    (4, 64, 2, 49_152, "float32"),
    (4, 128, 8, 8_192, "float32"),
    (1, 512, 4, 16_384, "float32"),
]
SIZES += [(1, 512, 4, 16_384, "bfloat16")]


@pytest.mark.parametrize(("rows", "length", "layers", "words", "dtype"), SIZES)
def test_a_pass_holds_what_the_formula_says(rows, length, layers, words, dtype):
    """From half of it, since whole rows keep less than masked ones, to a seventh more."""
    if dtype == "bfloat16" and not torch.cpu._is_avx512_bf16_supported():
        pytest.skip(
            "this CPU multiplies 16-bit numbers by way of copies in 32 bits, which no card makes"
        )
    policy, rollouts = made_up(layers, words, 8, length)
    rollouts, dtype = rollouts.select(slice(rows)), getattr(torch, dtype)
    policy.model.to(dtype)
    for name, weight in policy.model.named_parameters():
        # so that gradients themselves are small
        weight.requires_grad_("layers.0.self_attn.q_proj" in name)
    trained = {name: p for name, p in policy.model.named_parameters() if p.requires_grad}
    ones = {name: torch.ones_like(p) for name, p in trained.items()}

    def backward(model):
        torch.autograd.grad(scores(model, rollouts).sum(), list(trained.values()))

    calls = {
        "scoring": torch.no_grad()(lambda: scores(policy.model, rollouts)),
        "gradient": lambda: backward(policy.model),
        "recomputed": lambda: backward(recomputing(policy.model)),
        "along": lambda: Along(policy, method="jvp").change(rollouts, ones),
        "states": lambda: output_states(policy, rollouts),
    }
    for kind, call in calls.items():
        needed = rows * row_bytes(kind, length + 16, length, policy.model.config, dtype, lora=16)
        peak = peak_of(lambda call=call: scoring.in_batches(call)(batch_size=rows))
        # a block in float32 and its log-softmax
        assert 0.5 < peak / (needed + 8 * scoring.LOGITS_AT_ONCE) < 1.15, kind


def test_every_probe_of_a_policy_takes_batch_size():
    # no pass; a row each
    for name in set(workbook.probes.__all__) - {"Readings", "optimizer_of", "gradient_gram"}:
        names = set(inspect.signature(getattr(workbook.probes, name)).parameters)
        assert not {"policy", "before"} & names or {"batch_size", "settings"} & names, name
    with refused("batch_size", 0):
        cancellation_index(*made_up(2, 64, 8, 4), batch_size=0)


@pytest.mark.parametrize(
    "probe", [cancellation_index, coupling_by_confidence, explain_token, token_flips]
)
def test_results_do_not_depend_on_the_rows_of_a_pass_nor_on_strips_of_a_kernel(probe, monkeypatch):
    """Nor on whether rollouts of a prompt are packed."""
    policy, rollouts = made_up(2, 64, 16, 12)
    tables, rows = [probe(policy, rollouts)], []
    monkeypatch.setattr(scoring, "MAX_MASK", 100)
    policy.model.register_forward_pre_hook(
        lambda _, a, given: rows.append(len(given["input_ids"])), with_kwargs=True
    )
    monkeypatch.setattr(coupling, "MAX_WHOLE_KERNEL", 10)
    monkeypatch.setattr(coupling, "STRIP_ROWS", 20)
    tables.append(probe(policy, rollouts, batch_size=3))
    assert max(rows) <= 3
    pd.testing.assert_frame_equal(*tables, rtol=1e-3, atol=1e-5)


def test_a_backward_pass_that_does_not_fit_is_computed_again_a_row_at_a_time(monkeypatch):
    policy, rollouts = made_up(2, 64, 16, 12)
    calls, lines, moved = [], [], []
    monkeypatch.setattr(scoring, "ALWAYS_FREE_BYTES", 0)
    monkeypatch.setattr(scoring, "recomputing", lambda model: calls.append(1) or recomputing(model))
    for free in (2**34, 2**23):
        monkeypatch.setattr(scoring, "free_bytes", lambda _, free=free: free)
        assert not calls
        with reporting(lambda done, total, what: lines.append(what)):
            moved.append(logp_change(private_copy(policy), rollouts, "sgd", 0.1))
    assert len(calls) == 16
    assert "update, step 1 of 1, in 16 passes of 1" in lines
    torch.testing.assert_close(*moved, atol=1e-5, rtol=1e-3)


def test_the_pages_table_is_the_commands():
    assert forecast_markdown() in data_path("book", "scale.md").read_text(encoding="utf-8")
