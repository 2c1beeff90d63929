"""Interrupts (Ctrl-C, a notebook's stop button) amid probes: the policy is as it was."""

import os
import random
import signal
import threading
import time

import pytest
import torch

from workbook.policies.load import load_policy
from workbook.probes import TokenExplainer, block_coupling, matched_lr, token_flips
from workbook.probes.directions import Along
from workbook.rollouts.sample import sample_rollouts
from workbook.tasks import get_task


@pytest.fixture(scope="module")
def sampled():
    policy = load_policy("bundled", device="cpu")
    return policy, sample_rollouts(policy, get_task("chain"), 3, 4, seed=3, max_new_tokens=48)


def differences(policy, rollouts):
    along = Along(policy, method="difference")
    return along.change(rollouts, along.gradient(rollouts, (0, 3)))


PROBES = {
    "flips": lambda policy, rollouts: token_flips(policy, rollouts, "adamw", lr=1e-3),
    "rate": lambda policy, rollouts: matched_lr(policy, rollouts, "adamw", target=0.05),
    "blocks": lambda policy, rollouts: block_coupling(policy, rollouts, blocks="sign"),
    "explained": lambda policy, rollouts: TokenExplainer(policy, rollouts, lr=1e-3)(0, 3),
    "differences": differences,
    "sampling": lambda policy, _: sample_rollouts(
        policy, get_task("chain"), 2, 2, seed=1, max_new_tokens=16
    ),
}


def state(policy) -> dict:
    """All of a policy that a probe might change."""
    model = policy.model
    tensors = {
        name: (id(t), t.requires_grad, t.clone())
        for name, t in model.state_dict(keep_vars=True).items()
    }
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    modules = {
        name: (m.training, len(m._forward_hooks), len(m._parameters))
        for name, m in model.named_modules()
    }
    unmoved = [p.grad is None for p in model.parameters()], id(model.generation_config)
    return {"tensors": tensors, "buffers": buffers, "modules": modules, "others": unmoved}


def same(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return all(map(same, a, b)) if isinstance(a, (list, tuple)) else a == b


@pytest.mark.parametrize("probe", PROBES)
def test_an_interrupt_leaves_the_policy_as_it_was(sampled, probe):
    policy, rollouts = sampled
    call, draw, arrived, tries = PROBES[probe], random.Random(probe), 0, 0
    call(policy, rollouts)  # imports and caches
    began, before, handler = time.perf_counter(), state(policy), signal.getsignal(signal.SIGINT)
    call(policy, rollouts)
    seconds = time.perf_counter() - began
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        # a call that is quicker than the first one ends before some of them
        while arrived < 6 and tries < 60:
            tries += 1
            timer = threading.Timer(draw.random() * seconds, os.kill, (os.getpid(), signal.SIGINT))
            try:
                timer.start()
                call(policy, rollouts)
                timer.join()
            except KeyboardInterrupt:
                arrived += 1
            timer.cancel()
            torch.set_grad_enabled(True)  # an interrupt within torch's own switch may leave it off
            assert same(before, state(policy))
    finally:
        signal.signal(signal.SIGINT, handler)
    assert arrived == 6
