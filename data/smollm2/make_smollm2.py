"""Make the committed policies tuned of SmolLM2-135M, and describe their starts: six units a task,
two for tuning.

    python data/smollm2/make_smollm2.py                   both tasks
    python data/smollm2/make_smollm2.py sums --jobs 2     one; two policies at a time, a core each

Adapters of rank 8 on queries and values are trained one after another on the task's own
demonstrations: prompts of one class of seeds, words and errors drawn with the policy's seed; half
of the steps at sums show right answers alone, from which arithmetic is learned in fewer steps. They
are rounded to 16 bits and described as rounded and added to the base. At sums the seeds are 1, 2,
3, ...; one is passed over whose sampled reward lies outside VALUES, or of whose groups of 8 too few
have different rewards: fewer than MIXED would leave no 64 prompts that push among those sampled.
The first two others serve tuning, the next six are the units. At ramble the units of sums are
trained on, for they have the length of wrong answers alone to learn. What is there is not made
again.
"""

import argparse
import json
import random
import time
from dataclasses import replace
from pathlib import Path

import joblib
import torch
from safetensors.torch import load_file, save_file

from workbook.places import file_hash
from workbook.policies.load import Policy, load_policy
from workbook.policies.models import evaluating, seeded
from workbook.policies.tuned import BASE, TUNED, on_q_and_v, tuned_seeds
from workbook.rollouts.sample import sample_rollouts
from workbook.rollouts.scoring import pad_rows, rollout_logps
from workbook.studies.making import DATA_SEED, EVAL_SEED
from workbook.studies.registration import SCALES
from workbook.tasks import get_task

HERE = Path(__file__).parent
STEPS, BATCH, LEARNING_RATE, WARMING = {"sums": 120, "ramble": 40}, 32, 2e-3, 10
STARTS = {"ramble": "sums"}  # whose units are trained on
DIGITS = 3.0  # weight of a result's digits in the loss: a fifth of the tokens, and the hard ones
PROMPTS, GROUP_SIZE = 64, 8  # of the description
VALUES, MIXED = (0.1, 0.5), 0.7
ROLES = ["tuning"] * 2 + ["unit"] * 6


def loss_of(policy: Policy, task, prompts: list[str], rng: random.Random) -> torch.Tensor:
    """Weighted mean of -log p over the tokens of a demonstration of each prompt, nats."""
    texts, (model, tokenizer) = (
        [task.demonstrate(prompt, rng) for prompt in prompts],
        (policy.model, policy.tokenizer),
    )
    asked, said = (
        tokenizer(rows, add_special_tokens=False)["input_ids"] for rows in (prompts, texts)
    )
    said = [[*row, tokenizer.eos_token_id] for row in said]
    digits = torch.tensor(tokenizer.convert_tokens_to_ids([*"0123456789"]))
    given = (
        pad_rows(asked, tokenizer.pad_token_id, side="left"),
        pad_rows(said, tokenizer.pad_token_id, side="right"),
    )
    (prompt_ids, prompt_mask), (ids, mask) = given
    weights = torch.where(torch.isin(ids, digits), DIGITS, 1.0) * mask
    return (
        -(weights * rollout_logps(model, prompt_ids, prompt_mask, ids, mask)).sum() / weights.sum()
    )


def train(
    policy: Policy,
    task,
    seed: int,
    steps: int,
    right: int = 0,
    batch: int = BATCH,
    lr: float = LEARNING_RATE,
):
    """Train a policy's adapters in place, the first `right` steps without errors; yields the loss
    of each step.
    """
    flawless = replace(task, error_rate=0.0, forgotten=0.0)
    rng, prompts = random.Random(seed), task.dataset(400, DATA_SEED)["prompt"][:]
    optimizer = torch.optim.AdamW(
        [p for p in policy.model.parameters() if p.requires_grad], lr, weight_decay=0.0
    )
    rise = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda k: min((k + 1) / WARMING, 2 * (steps - k) / steps, 1.0)
    )
    for step in range(steps):
        loss = loss_of(policy, flawless if step < right else task, rng.sample(prompts, batch), rng)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        rise.step()
        yield loss.item()


def layers(model) -> list[tuple[str, object]]:
    """The layers of a peft model that have adapters, by their names in the base model."""
    return [
        (name, layer)
        for name, layer in model.get_base_model().named_modules()
        if hasattr(layer, "lora_A")
    ]


def packed(model) -> dict[str, torch.Tensor]:
    """A peft model's adapters in 16 bits, as `workbook.policies.tuned` reads them: the scale is in
    B.
    """
    a = {f"{name}.A": layer.lora_A["default"].weight for name, layer in layers(model)}
    b = {
        f"{name}.B": layer.scaling["default"] * layer.lora_B["default"].weight
        for name, layer in layers(model)
    }
    return {name: weight.detach().half().contiguous() for name, weight in (a | b).items()}


@torch.no_grad()
def put_in(model, stored: dict[str, torch.Tensor]) -> None:
    """Set a peft model's adapters to packed ones."""
    for name, layer in layers(model):
        layer.lora_A["default"].weight.copy_(stored[f"{name}.A"])
        layer.lora_B["default"].weight.copy_(stored[f"{name}.B"].float() / layer.scaling["default"])


def described(policy: Policy, task) -> dict[str, float]:
    """What a policy earns before any step: value (mean sampled reward), greedy (the likeliest
    completions'), wrong_modes (share of prompts whose likeliest completion is wrong), mixed (share
    of groups whose rewards differ), well_formed (share of completions of the task's own words
    alone, ended), tokens of right and of wrong ones."""
    rows = task.dataset(PROMPTS, EVAL_SEED)
    with evaluating(policy.model):
        greedy = sample_rollouts(policy, task, rows, 1, 0, task.longest, top_k=1).rewards.mean()
        sampled = sample_rollouts(policy, task, rows, GROUP_SIZE, 0, task.longest)
    groups, right, lengths = (
        sampled.rewards.view(PROMPTS, -1),
        sampled.rewards > 0,
        sampled.completion_mask.sum(1).float(),
    )
    own = [row[-1] == "eos" and "other" not in row for row in sampled.categories]
    read = {"value": groups.mean(), "greedy": greedy, "wrong_modes": 1 - greedy}
    read |= {
        "mixed": (groups.amax(1) > groups.amin(1)).float().mean(),
        "well_formed": sum(own) / len(own),
    }
    read |= {"right_tokens": lengths[right].mean(), "wrong_tokens": lengths[~right].mean()}
    return {name: round(float(x), 4) for name, x in read.items()}


def made(kind: str, seed: int) -> dict:
    """Train, round and describe the policy of a seed."""
    torch.set_num_threads(1)  # sums in another order make other bytes
    began, scale = time.perf_counter(), SCALES[f"{TUNED}{kind}"]
    task, path = (
        get_task(scale.task, **scale.task_options),
        HERE / kind / f"seed={seed}.safetensors",
    )
    with seeded(seed, torch.device("cpu")):
        policy = load_policy(BASE.name, lora=on_q_and_v(), device="cpu", seed=seed)
        if kind in STARTS:
            put_in(policy.model, load_file(HERE / STARTS[kind] / path.name))
        *_, last = train(policy, task, seed, STEPS[kind], 0 if kind in STARTS else STEPS[kind] // 2)
    save_file(packed(policy.model), path)
    about = described(load_policy(f"{TUNED}{kind},seed={seed}", device="cpu"), task)
    about |= {"loss_nats": round(last, 4), "seconds": round(time.perf_counter() - began)}
    return {"seed": seed, "start": about, "sha256": file_hash(path)}


def fit(start: dict[str, float]) -> bool:
    """Whether a policy of sums can be trained and measured."""
    return VALUES[0] <= start["value"] <= VALUES[1] and start["mixed"] >= MIXED


def members_of(kind: str, known: list[dict], jobs: int):
    """Yield the members of a task after those that are known, as many made at a time as there are
    jobs.
    """
    parallel = joblib.Parallel(n_jobs=jobs)
    while left := (tuned_seeds(STARTS[kind], "unit") if kind in STARTS else ROLES)[taken(known) :]:
        seeds = (
            left[:jobs]
            if kind in STARTS
            else range(len(known) + 1, len(known) + 1 + min(jobs, len(left)))
        )
        for member in parallel(joblib.delayed(made)(kind, seed) for seed in seeds):
            role = (
                "unit"
                if kind in STARTS
                else ROLES[taken(known)]
                if fit(member["start"])
                else "passed over"
            )
            known.append(member | {"role": role})
            yield known[-1]


def taken(members: list[dict]) -> int:
    """How many members have a role."""
    return sum(member["role"] in ROLES for member in members)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", nargs="*", help="by default both")
    parser.add_argument("--jobs", type=int, default=1, help="policies made at a time; default: 1")
    asked = parser.parse_args()
    for kind in asked.task or STEPS:
        path = HERE / kind / "members.json"
        path.parent.mkdir(exist_ok=True)
        about = {
            "made_by": "data/smollm2/make_smollm2.py",
            "base": BASE.name,
            "steps": STEPS[kind],
            "batch": BATCH,
        }
        about |= {"options": SCALES[f"{TUNED}{kind}"].task_options, "prompts": PROMPTS}
        there = json.loads(path.read_text()) if path.exists() else {**about, "members": []}
        if (members := there.pop("members")) and there != about:
            raise SystemExit(f"{path.parent} was made otherwise: delete it, and it is made anew.")
        for member in members_of(kind, [*members], asked.jobs):
            members.append(member)
            if member["role"] not in ROLES:
                (path.parent / f"seed={member['seed']}.safetensors").unlink()
            path.write_text(json.dumps({**about, "members": members}, indent=1) + "\n")
            print(kind, member, flush=True)


if __name__ == "__main__":
    main()
