"""What things cost, printed as ratios and rates; nothing here fails for being slow: `make bench`.

trainer   an optimizer step of CancellationTrainer against TRL's GRPOTrainer on the same given
          rollouts, without sampling. The two take turns, in CPU seconds of one thread; a build
          differs from itself by up to 5 %.
llm       the same on SmolLM2-135M.
probes    a probe against a whole training step of TRL's (sampling, backward, optimizer) on as
          many rollouts.
sampling  tokens per second of `sample_rollouts`.
studies   runs in a world per hour of a core, of which readings of one unit are made once.
memory    what probes need beside a loaded model of 49,152 words, each in a process of its own
          (bench_memory.py).
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from small_run import SMALL, bundled_trainer
from trl import GRPOConfig, GRPOTrainer

from workbook.policies import load_policy
from workbook.probes import cancellation_index, coupling_by_confidence, masked_update, token_flips
from workbook.rollouts import sample_rollouts
from workbook.studies.unit import StudyUnit
from workbook.studies.worlds.study import SIZES, run_world_arm
from workbook.tasks import get_task
from workbook.theory import group_advantages
from workbook.training import CancellationConfig, CancellationTrainer

SETTINGS = SMALL | {
    "per_device_train_batch_size": 16,
    "steps_per_generation": 8,
    "max_completion_length": 96,
}
LLM = {"per_device_train_batch_size": 4, "steps_per_generation": 1}
SWITCHES = ({}, {"trim_padding": True}, {"record_tokens": 1}, {"measure_cancellation": 1})
PROMPTS, GROUP, NEW_TOKENS = 4, 8, 48


def given_rollouts(prompts, trainer) -> dict:
    """TRL's rollout_func: completions with a tail of lengths, as real ones have (median 16 tokens,
    at most 96).
    """
    chance, tokenizer = random.Random(0), trainer.processing_class
    lengths = [min(96, max(2, round(16 * chance.lognormvariate(0, 0.6)))) for _ in prompts]
    return {
        "prompt_ids": [tokenizer(prompt, add_special_tokens=False).input_ids for prompt in prompts],
        "completion_ids": [[5 + (i + t) % 20 for t in range(n)] for i, n in enumerate(lengths)],
        "logprobs": [[0.0] * n for n in lengths],
    }


def lengths(completions, **_):
    return [float(len(text) % 5) for text in completions]


def build(trainer_class, config_class, policy="bundled", **settings):
    """Return a trainer on a policy, as in training, and its first batch of prompts."""
    args = config_class(
        output_dir=tempfile.mkdtemp(prefix="workbook-bench-"), **SETTINGS | settings
    )
    trainer = bundled_trainer(
        trainer_class,
        args,
        load_policy(policy),
        reward=lengths,
        prompts=32,
        rollout_func=given_rollouts,
    )
    trainer.create_optimizer()
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    trainer.callback_handler.on_train_begin(args, trainer.state, trainer.control)
    return trainer, next(iter(trainer.get_train_dataloader()))


def optimizer_step(trainer, batch) -> float:
    """Return the CPU seconds of one step, callbacks and all: prepare (score and cut before the
    first), train.
    """
    start, handler = time.process_time(), trainer.callback_handler
    given = trainer.args, trainer.state, trainer.control
    handler.on_step_begin(*given)
    trainer.compute_loss(trainer.model, trainer._prepare_inputs(batch)).backward()
    trainer._step += 1
    handler.on_pre_optimizer_step(*given)
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()
    trainer.state.global_step += 1
    handler.on_step_end(*given)
    return time.process_time() - start


def ratio_to_trl(rounds: int, switches: dict, **settings) -> float:
    """Return the median over generation batches of our time to TRL's, of one pair of trainers that
    take turns.
    """
    theirs = build(GRPOTrainer, GRPOConfig, **settings)
    ours = build(CancellationTrainer, CancellationConfig, **settings | switches)
    ratios = []
    for i in range(rounds + 1):  # the first round loads what is used first
        taken = {id(ours): 0.0, id(theirs): 0.0}
        for k in range(theirs[0].args.steps_per_generation):
            # neither always has warm caches
            for built in (ours, theirs) if (i + k) % 2 else (theirs, ours):
                taken[id(built)] += optimizer_step(*built)
        ratios.append(taken[id(ours)] / taken[id(theirs)])
    return statistics.median(ratios[1:])


def training_step() -> Callable[[], None]:
    """Return a function that does one whole step of TRL's trainer on PROMPTS x GROUP rollouts."""
    sizes = {
        "per_device_train_batch_size": PROMPTS * GROUP,
        "steps_per_generation": 1,
        "num_generations": GROUP,
    }
    # each turn does the same work
    sizes |= {"learning_rate": 0.0, "max_completion_length": NEW_TOKENS}
    args = GRPOConfig(output_dir=tempfile.mkdtemp(prefix="workbook-bench-"), **SMALL | sizes)
    trainer = bundled_trainer(GRPOTrainer, args, prompts=PROMPTS)
    trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = 1
    batch = next(iter(trainer.get_train_dataloader()))

    def step():
        trainer.model.train()
        trainer.training_step(trainer.model, batch, PROMPTS * GROUP)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()

    return step


def seconds(function: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    start = time.process_time()
    function()
    return time.process_time() - start


def bench_trainer(rounds: int, builds: int = 3, **settings) -> None:
    """Print the time of an optimizer step for each switch, times TRL's."""
    for switches in SWITCHES:
        ratios = [ratio_to_trl(rounds, switches, **settings) for _ in range(builds)]
        print(
            f"trainer step, {switches or 'defaults'}: times TRL's",
            *(f"{ratio:.3f}" for ratio in ratios),
            flush=True,
        )


def bench_llm(rounds: int) -> None:
    """Print the same on a language model, whose weights alone make a pass over all of them dear."""
    bench_trainer(rounds, builds=1, policy="smollm2-135m", **LLM)


def bench_probes(rounds: int) -> None:
    """Print the time of each probe over that of a training step; the least of interleaved turns."""
    policy = load_policy("bundled")
    rollouts = sample_rollouts(
        policy, get_task("chain"), PROMPTS, GROUP, seed=0, max_new_tokens=NEW_TOKENS
    )
    rewards = (torch.arange(len(rollouts)) % 2).float()  # every rollout pushes
    rollouts = replace(
        rollouts, rewards=rewards, advantages=group_advantages(rewards, rollouts.group_ids)
    )
    calls = {
        "training step": training_step(),
        "token_flips": lambda: token_flips(policy, rollouts, "adamw", lr=1e-3),
        "masked_update": lambda: masked_update(
            policy, rollouts, rollouts.completion_mask.bool(), lr=0.1
        ),
        "cancellation_index": lambda: cancellation_index(policy, rollouts),
        "coupling_by_confidence": lambda: coupling_by_confidence(policy, rollouts),
    }
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            least[name] = min(least[name], seconds(call))
    whole = least.pop("training step")
    print(f"training step of {len(rollouts)} rollouts: {1000 * whole:.0f} ms")
    for name, value in least.items():
        print(f"{name}: {value / whole:.2f} training steps")


def bench_sampling(rounds: int) -> None:
    """Print tokens per second, sampling and scoring together."""
    policy, task = load_policy("bundled"), get_task("chain")
    for prompts in (4, 32):
        rates = []
        for seed in range(rounds):
            start = time.process_time()
            rollouts = sample_rollouts(
                policy, task, prompts, GROUP, seed=seed, max_new_tokens=NEW_TOKENS
            )
            rates.append(int(rollouts.completion_mask.sum()) / (time.process_time() - start))
        print(
            f"sampling {prompts * GROUP} rollouts at once: {statistics.median(rates):,.0f} tokens a"
            " CPU second"
        )


def bench_studies(rounds: int) -> None:
    """Print how many runs of the arena a core does in an hour, by rule."""
    unit = StudyUnit("world:third", 0, "tuning")
    unit.readings(SIZES["world:third"].held_out)
    for rule in ("dr_grpo", "permuted", "known_credit"):
        took = statistics.median(
            seconds(lambda rule=rule: run_world_arm(unit, rule, 3e-4)) for _ in range(rounds)
        )
        print(f"arena, {rule}: {3600 / took:,.0f} runs per core hour")


def bench_memory(rounds: int) -> None:
    """Print CPU seconds and peak memory of probes on a large vocabulary."""
    subprocess.run([sys.executable, Path(__file__).with_name("bench_memory.py")], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "names", nargs="*", default=["trainer", "llm", "probes", "sampling", "studies", "memory"]
    )
    parser.add_argument("--rounds", type=int, default=6)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name in args.names:
        globals()[f"bench_{name}"](args.rounds)


if __name__ == "__main__":
    main()
