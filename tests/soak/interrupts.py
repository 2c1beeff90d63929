"""Interrupts at any line of a probe, by any clock, once and twice: nothing is left changed, and the probe works again.

A real SIGINT is raised at an event of the interpreter's own tracing (a line of the package) or by a timer from another
thread. The second follows while the first one's exception unwinds: so many calls later, counted by its profiling.
"""

from __future__ import annotations

import copy
import os
import random
import signal
import sys
import threading
import time
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import torch
from torch.autograd import forward_ad

PROMISE = (
    "An interrupt of a probe leaves weights, gradients, modes, hooks, generation config, random generators, grad mode "
    "and torch's flags as they were, and the probe gives the same numbers when it is called again."
)
TRIALS = 4000
PACKAGE = str(Path(__file__).resolve().parents[2] / "workbook")
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GOLDEN = 0.6180339887498949  # fractions k * GOLDEN mod 1 fill (0, 1) evenly


def trials(seed: int):
    """Each probe in turn, at ever other places: (name, (probe, way, place, occurrence, calls until the second))."""
    draw, offset = random.Random(seed), 0.37 * seed
    for number in range(10**6):
        for probe in PROBES:
            place = (offset + GOLDEN * number) % 1
            way = "clock" if number % 5 == 4 else "line"
            second = int(2 ** draw.uniform(0, 9)) if draw.random() < 0.5 else None
            yield f"{probe} {way} {place:.6f} {second or ''}".strip(), (probe, way, place, draw.random(), second)


def attempt(folder: Path, probe: str, way: str, place: float, occurrence: float, second: int | None) -> str | None:
    """Interrupt the probe there, compare everything, and call it again."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what goes on in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    bench = prepare()
    run = PROBES[probe]
    lines, duration, expected = rehearse(probe)
    before = state(bench["policy"])
    if way == "line":
        distinct = list(lines)
        line = distinct[int(place * len(distinct))]
        where = f"{Path(line[0]).name}:{line[1]}"
        interrupted = interrupt_at_line(lambda: run(bench), line, 1 + int(occurrence * lines[line]), second)
    else:
        where = f"{place * duration * 1000:.1f} ms"
        interrupted = interrupt_by_clock(lambda: run(bench), place * duration, second)
    changed = differences(before, state(bench["policy"]))
    again = None if changed else run(bench)
    if changed:
        prepare.cache_clear()
        restore(before)
        return f"interrupted at {where} (arrived: {interrupted}): {', '.join(changed)} changed"
    if not same(again, expected):
        prepare.cache_clear()
        return f"interrupted at {where}: another result when called again"
    if way == "line" and not interrupted and not where.startswith("restoring.py"):
        return f"the interrupt at {where} never arrived"
    return None


# --- interrupting


def interrupt_at_line(call, line: tuple[str, int], occurrence: int, second: int | None) -> bool:
    """Call, with a SIGINT at the line's so many-th event, and another `second` calls later; True if it arrived."""
    remaining = occurrence

    def trace(frame, event, _):
        nonlocal remaining
        if event == "call":
            return trace if frame.f_code.co_filename == line[0] else None
        if event == "line" and frame.f_lineno == line[1] and remaining:
            remaining -= 1
            if not remaining:
                if second:
                    sys.setprofile(count_down(second))
                signal.raise_signal(signal.SIGINT)
        return trace

    return interrupted_by(call, lambda: sys.settrace(trace))


def count_down(calls: int):
    """A profile function that raises SIGINT at the so many-th call or return."""
    remaining = calls

    def profile(frame, event, argument):
        nonlocal remaining
        remaining -= 1
        if remaining == 0:
            signal.raise_signal(signal.SIGINT)

    return profile


def interrupt_by_clock(call, after: float, second: int | None) -> bool:
    """Call, with a SIGINT so many seconds later from another thread, and another `second` microseconds on."""

    def send():
        time.sleep(after)
        while not over.is_set():
            os.kill(os.getpid(), signal.SIGINT)
            if not second or pause.wait(second / 1e6):
                break
            pause.set()

    over, pause = threading.Event(), threading.Event()
    sender = threading.Thread(target=send)
    try:
        return interrupted_by(call, sender.start)
    finally:
        over.set()
        try:
            sender.join()
        except KeyboardInterrupt:
            sender.join()


def interrupted_by(call, start) -> bool:
    """Whether KeyboardInterrupt came out of the call, once or while it was being caught."""
    interrupted = False
    try:
        try:
            start()
            call()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            sys.settrace(None)
            sys.setprofile(None)
    except KeyboardInterrupt:
        interrupted = True
    sys.settrace(None)
    sys.setprofile(None)
    return interrupted


# --- what must be as before


def state(policy) -> dict:
    """All that a probe might change, by name; tensors are copies."""
    model = policy.model
    modules = dict(model.named_modules())
    parameters = dict(model.named_parameters())
    return {
        "weights": {name: value.clone() for name, value in model.state_dict().items()},
        "parameters": {name: id(p) for name, p in parameters.items()},
        "gradients": {name: None if p.grad is None else p.grad.clone() for name, p in parameters.items()},
        "requires_grad": {name: p.requires_grad for name, p in parameters.items()},
        "buffers": {name: value.clone() for name, value in model.named_buffers()},
        "modes": {name: module.training for name, module in modules.items()},
        "hooks": {name: [len(getattr(module, kind)) for kind in HOOKS] for name, module in modules.items()},
        "generation config": (id(model.generation_config), model.generation_config.to_dict()),
        "torch's generator": torch.get_rng_state(),
        "numpy's generator": np.random.get_state()[1].tolist(),
        "Python's generator": random.getstate(),
        "grad mode": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), forward_ad._current_level),
        "flags": (
            torch.are_deterministic_algorithms_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.mem_efficient_sdp_enabled(),
            torch.get_default_dtype(),
            torch.get_num_threads(),
        ),
        "the handler of interrupts": signal.getsignal(signal.SIGINT),
    }


def restore(before: dict) -> None:
    """Put the process's own state back after a finding, so that later trials are not blamed for it."""
    torch.set_grad_enabled(before["grad mode"][0])
    torch.set_rng_state(before["torch's generator"])
    signal.signal(signal.SIGINT, before["the handler of interrupts"])
    while forward_ad._current_level >= 0:
        forward_ad.exit_dual_level()


def differences(before: dict, after: dict) -> list[str]:
    """Names of what differs."""
    return [name for name in before if not same(before[name], after[name])]


def same(a, b) -> bool:
    """Equality to the bit, through tensors, tables and containers."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())
    if hasattr(a, "equals"):
        return a.equals(b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


# --- probes, on one small batch


@lru_cache(maxsize=1)
def prepare() -> dict:
    """The bundled policy with its module modes mixed, its task and a few rollouts with values."""
    from workbook.policies.load import load_policy
    from workbook.probes import token_values
    from workbook.rollouts.sample import sample_rollouts
    from workbook.tasks import get_task
    from workbook.theory.advantages import group_advantages

    policy, task = load_policy("bundled", device="cpu"), get_task("chain")
    rollouts = sample_rollouts(policy, task, 2, 4, seed=3, max_new_tokens=8)
    rewards = torch.tensor([1.0, 0, 0, 1, 1, 1, 0, 0])
    rollouts = replace(rollouts, rewards=rewards, advantages=group_advantages(rewards, rollouts.group_ids, "grpo"))
    values = token_values(policy, task, rollouts, 2, tokens=2, max_new_tokens=8)
    for number, module in enumerate(policy.model.modules()):
        module.training = number % 3 == 0
    weight = next(policy.model.parameters())
    weight.grad = torch.ones_like(weight)
    other = copy.deepcopy(policy.model)
    return {
        "policy": policy,
        "other": replace(policy, model=other),
        "task": task,
        "rollouts": rollouts,
        "values": values,
    }


@cache
def rehearse(probe: str) -> tuple[dict, float, object]:
    """The probe undisturbed: how often each line of the package is run, how long it takes, and its result."""
    bench, lines = prepare(), {}
    PROBES[probe](bench)  # imports and caches

    def trace(frame, event, _):
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            line = frame.f_code.co_filename, frame.f_lineno
            lines[line] = lines.get(line, 0) + 1
        return trace

    sys.settrace(trace)
    try:
        expected = PROBES[probe](bench)
    finally:
        sys.settrace(None)
    start = time.perf_counter()
    PROBES[probe](bench)
    return lines, time.perf_counter() - start, expected


def probe_of(name: str, *inputs: str, module: str = "workbook.probes", **settings):
    """A call of a probe by its name, on things of the bench."""

    def run(bench):
        from importlib import import_module

        result = getattr(import_module(module), name)(*(bench[name] for name in inputs), **settings)
        return list(result) if hasattr(result, "__next__") else result

    return run


def _pools(bench):
    return {"own": (bench["rollouts"], bench["values"])}


def _sampling_budget(bench):
    from workbook.probes import sampling_budget

    sizes = {"batch_sizes": (4,), "group_sizes": (2,), "repeats": 1, "estimators": ("grpo",)}
    return sampling_budget(bench["policy"], bench["rollouts"], _pools(bench), **sizes)


def _repeated_updates(bench):
    from workbook.probes import repeated_updates

    return repeated_updates(bench["policy"], bench["rollouts"], _pools(bench), steps=2)


def _exact_values(bench):
    from workbook.probes import exact_values

    rows = bench["values"].index[-2:]
    return exact_values(bench["policy"], bench["task"], bench["rollouts"], rows, least=0.05, max_new_tokens=8)


def _masked_update(bench):
    from workbook.probes import masked_update

    chosen = bench["rollouts"].completion_mask.bool() & (
        torch.arange(bench["rollouts"].completion_ids.shape[1]) % 2 == 0
    )
    return masked_update(bench["policy"], bench["rollouts"], chosen)


def _along_training(bench):
    from workbook.probes.step import along_training

    steps = along_training(bench["policy"], bench["task"], 1, prompts=1, group_size=4, lr=1e-3, max_new_tokens=4)
    return [rollouts.old_logps for _, rollouts in steps]


def _sample_rollouts(bench):
    from workbook.rollouts.sample import sample_rollouts

    return sample_rollouts(bench["policy"], bench["task"], 2, 2, seed=1, max_new_tokens=6).old_logps


def _output_states(bench):
    from workbook.rollouts.states import output_states

    return output_states(bench["policy"], bench["rollouts"]).logits


GIVEN = ("policy", "rollouts")
STEP = "workbook.probes.step"
PROBES = {
    "cancellation_index": probe_of("cancellation_index", *GIVEN),
    "coupling_by_confidence": probe_of("coupling_by_confidence", *GIVEN),
    "gradient_products jvp": probe_of("gradient_products", *GIVEN, anchors=1, method="jvp"),
    "gradient_products difference": probe_of("gradient_products", *GIVEN, anchors=1, method="difference"),
    "gradient_gram": probe_of("gradient_gram", *GIVEN),
    "drift_report": probe_of("drift_report", "other", "policy", "task", prompts=1, solutions=2),
    "token_flips": probe_of("token_flips", *GIVEN),
    "masked_update": _masked_update,
    "proxy_agreement": probe_of("proxy_agreement", *GIVEN),
    "update_share_by_category": probe_of("update_share_by_category", *GIVEN),
    "reuse_path": probe_of("reuse_path", *GIVEN, module="workbook.topics.drift.probe", times=1),
    "repeated_updates": _repeated_updates,
    "sampling_budget": _sampling_budget,
    "token_values": probe_of("token_values", "policy", "task", "rollouts", continuations=2, tokens=2, max_new_tokens=8),
    "exact_values": _exact_values,
    "logps": probe_of("logps", *GIVEN, module=STEP),
    "matched_lr": probe_of("matched_lr", *GIVEN, module=STEP, optimizer="sgd", target=0.05, tolerance=0.5),
    "along_training": _along_training,
    "sample_rollouts": _sample_rollouts,
    "output_states": _output_states,
}
