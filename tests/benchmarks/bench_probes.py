"""What probes cost, against a training step on as many rollouts of the same lengths, as ratios from one run.

A training step is TRL's whole step: it generates its rollouts, rewards them, then takes one backward pass and one
optimizer step (at learning rate 0, so that every turn does the same work). Generation is cheap for a model this small,
so that these ratios are higher than a real model's. Times are CPU seconds of one thread, the least over interleaved
turns, since other work on the machine can only add to them; memory is the peak of a process of its own, less what the
libraries and the policy hold.
"""

import json
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from small_run import SMALL
from trl import GRPOConfig, GRPOTrainer

from workbook.policies.load import load_policy
from workbook.probes import (
    cancellation_index,
    categorized,
    coupling_by_confidence,
    gradient_products,
    masked_update,
    proxy_agreement,
    token_flips,
    token_values,
    update_share_by_category,
)
from workbook.rollouts.sample import sample_rollouts
from workbook.tasks import get_task
from workbook.theory.advantages import group_advantages

GROUP, TURNS = 8, 3
SHAPES = {  # prompts, operands, new tokens
    "32 rollouts of 10 + 38 tokens": (4, 5, 48),
    "128 rollouts of 10 + 38 tokens": (16, 5, 48),
    "64 rollouts of 24 + 12 tokens, a chat's shape": (8, 12, 12),
}
PROMPTS, OPERANDS, LIMIT = next(iter(SHAPES.values()))
K, PER_ROLLOUT, ANCHORS = 8, 1, 4
LINEAR = ("token_flips", "masked_update", "update_share_by_category", "token_values", "categorized")
MEMORY, MILLION_MIB = 1.5, 2048


def probes(policy, task):
    """{name: a function of rollouts}, each of which does the whole of its probe."""
    return {
        "token_flips": lambda r: token_flips(policy, r, "adamw", lr=1e-3),
        "masked_update": lambda r: masked_update(policy, r, r.completion_mask.bool(), lr=0.1),
        "proxy_agreement": lambda r: proxy_agreement(policy, r, lr=0.1),
        "update_share_by_category": lambda r: update_share_by_category(policy, r, lr=0.1),
        "cancellation_index": lambda r: cancellation_index(policy, r),
        "coupling_by_confidence": lambda r: coupling_by_confidence(policy, r),
        "gradient_products": lambda r: gradient_products(policy, r.select(slice(0, GROUP)), ANCHORS),
        "token_values": lambda r: token_values(policy, task, r, K, PER_ROLLOUT, max_new_tokens=LIMIT, credit=False),
        "categorized": lambda r: categorized(r, overwrite=True, tagger="rules"),
    }


def training_step(folder, prompts=PROMPTS, operands=OPERANDS, limit=LIMIT):
    """A function that does one whole step of TRL's trainer on prompts x GROUP rollouts."""
    whole = {"per_device_train_batch_size": prompts * GROUP, "steps_per_generation": 1, "num_generations": GROUP}
    args = GRPOConfig(output_dir=str(folder), **SMALL | whole | {"learning_rate": 0.0, "max_completion_length": limit})
    task, policy = get_task("chain", operands=operands), load_policy("bundled")
    trainer = GRPOTrainer(
        policy.model,
        task.reward,
        args=args,
        train_dataset=task.dataset(prompts, seed=0),
        processing_class=policy.tokenizer,
    )
    trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = 1
    batch = next(iter(trainer.get_train_dataloader()))

    def step():
        trainer.model.train()
        trainer.training_step(trainer.model, batch, prompts * GROUP)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()

    return step


def sampled(policy, prompts=PROMPTS, operands=OPERANDS, limit=LIMIT):
    """Rollouts in which half of each group is right, whatever the policy made of the task: every rollout pushes."""
    task = get_task("chain", operands=operands)
    rollouts = sample_rollouts(policy, task, prompts, GROUP, seed=0, max_new_tokens=limit)
    rewards = (torch.arange(len(rollouts)) % 2).float()
    return replace(rollouts, rewards=rewards, advantages=group_advantages(rewards, rollouts.group_ids))


@pytest.fixture(scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def bench(one_thread):
    policy = load_policy("bundled")
    return probes(policy, get_task("chain")), sampled(policy)


def least_seconds(functions, turns=TURNS):
    """CPU seconds of each function, the least over turns in which all have a go."""
    least = dict.fromkeys(functions, float("inf"))
    for _ in range(turns):
        for name, function in functions.items():
            began = time.process_time()
            function()
            least[name] = min(least[name], time.process_time() - began)
    return least


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shape", SHAPES)
def test_token_flips_against_a_training_step(one_thread, tmp_path, capsys, shape):
    sizes = SHAPES[shape]
    policy = load_policy("bundled")
    rollouts = sampled(policy, *sizes)
    work = {"training": training_step(tmp_path, *sizes), "flips": lambda: token_flips(policy, rollouts)}
    least = least_seconds(work, TURNS + 2)
    ratio = least["flips"] / least["training"]
    with capsys.disabled():
        print(f"\ntoken_flips, {shape}: {least['flips']:.3f} s / {least['training']:.3f} s of a step = {ratio:.2f}")


@pytest.mark.filterwarnings("ignore")
def test_cost_in_training_steps(bench, tmp_path, capsys):
    measured, rollouts = bench
    work = {name: (lambda probe=probe: probe(rollouts)) for name, probe in measured.items() if name != "token_flips"}
    least = least_seconds({"training": training_step(tmp_path), **work})
    step = least.pop("training")
    with capsys.disabled():
        print(f"\none training step of {len(rollouts)} rollouts, generated, rewarded and updated: {step:.2f} s")
        for name, seconds in least.items():
            print(f"{name:26} {seconds:6.3f} s = {seconds / step:5.2f} training steps")
        values = PER_ROLLOUT * len(rollouts)
        print(f"token_values: {values / least['token_values']:.0f} values a second, of {K} continuations each")


def test_twice_the_rollouts_take_twice_the_time(bench, capsys):
    """Per token, that is; pair maps are quadratic in a group's tokens, not in the number of groups."""
    measured, rollouts = bench
    half = rollouts.select(rollouts.group_ids < PROMPTS // 2)
    work = {}
    for name in LINEAR:
        work[name, "half"] = lambda probe=measured[name]: probe(half)
        work[name, "whole"] = lambda probe=measured[name]: probe(rollouts)
    least = least_seconds(work)
    ratios = {name: least[name, "whole"] / least[name, "half"] for name in LINEAR}
    with capsys.disabled():
        print("\ntime for twice the rollouts:", ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))


PEAK = """
import json, sys, warnings
warnings.simplefilter("ignore")
sys.path[:0] = {paths!r}
import torch
torch.set_num_threads(1)
import bench_probes as bench

def status(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) / 1024

def work():
    {setup}
    before = status("VmRSS")
    {call}
    return before

before = work()
print(json.dumps([status("VmHWM"), before]))
"""


def peak_mib(setup: str, call: str) -> tuple[float, float]:
    """Largest resident size of a process that does `call` after `setup`, and its size in between, in MiB."""
    script = PEAK.format(paths=sys.path, setup=setup, call=call)
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert out.returncode == 0, out.stderr[-2000:]
    return tuple(json.loads(out.stdout.splitlines()[-1]))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_peak_memory_against_training(tmp_path, capsys):
    peak, base = peak_mib(f"step = bench.training_step({str(tmp_path)!r})", "step()")
    theirs = peak - base
    names = ("token_flips", "update_share_by_category", "cancellation_index", "gradient_products")
    setup = "policy = bench.load_policy('bundled'); rollouts = bench.sampled(policy); "
    setup += "measured = bench.probes(policy, bench.get_task('chain'))"
    peak, base = peak_mib(setup, f"[measured[name](rollouts) for name in {names}]")
    with capsys.disabled():
        print(f"\npeak above rest: training {theirs:.0f} MiB, {', '.join(names)} {peak - base:.0f} MiB at most")
    assert peak - base <= MEMORY * theirs


MILLION = """
import numpy as np, torch
from workbook.probes import categorized, eps_curve, flip_shares, frequency_matched, predicts
from workbook.rollouts.sample import Rollouts

groups, each, length = 500, 8, 250
count, generator = groups * each, torch.Generator().manual_seed(0)
ids = torch.randint(0, 1000, (count, length), generator=generator)
words = [f" word{k}" for k in range(1000)]
ones = torch.ones(count, length, dtype=torch.long)
advantages = torch.randn(count, generator=generator)
rollouts = Rollouts(
    prompt_ids=ones[:, :8], prompt_mask=ones[:, :8], completion_ids=ids, completion_mask=ones,
    group_ids=torch.arange(count) // each, rewards=(advantages > 0).float(), advantages=advantages,
    old_logps=-torch.rand(count, length, generator=generator), entropies=torch.rand(count, length, generator=generator),
    tokens=tuple(tuple(words[i] for i in row) for row in ids.tolist()),
)
table = categorized(rollouts, tagger="rules").token_table()
assert len(table) == 1_000_000
table["dlogp"] = 0.05 * np.random.default_rng(0).normal(size=len(table))
assert flip_shares(table)["mean"].between(-1, 1).all()
assert len(frequency_matched(table)) < len(table)
assert len(eps_curve(table, [0.01, 0.1])) == 6
assert len(predicts(table, ["advantage", "logp"])) == 4
print(next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_a_table_of_a_million_tokens_fits(capsys):
    began = time.perf_counter()
    out = subprocess.run([sys.executable, "-c", MILLION], capture_output=True, text=True, check=False, timeout=300)
    assert out.returncode == 0, out.stderr[-2000:]
    peak = float(out.stdout)
    with capsys.disabled():
        print(f"\n1,000,000 tokens: peak {peak:.0f} MiB (< {MILLION_MIB}), {time.perf_counter() - began:.0f} s")
    assert peak < MILLION_MIB
