"""A tool that the model may call, two rewards with weights, and the tokens that were trained: the
tool's are not.

    python examples/tools.py                                  # Qwen3-0.6B from the hub, on a GPU
    python examples/tools.py --model FOLDER --steps 2         # any model that can call tools

TRL runs the tool and goes on; what it wrote stands in the completion and is masked from the loss,
from credit rules and from every count of cancellation. `rollout_func` and `environment_factory` are
taken, too, as GRPOTrainer takes them.
"""

import argparse
import random
import re

import torch
from datasets import Dataset

from workbook.rollouts import read_rollouts
from workbook.training import CancellationConfig, CancellationTrainer


def multiply(a: int, b: int) -> int:
    """Multiply two integers.

    Args:
        a: The first factor.
        b: The second factor.
    """
    return a * b


def right(completions, answer, **_):
    """1 where the last message holds the answer as a number, else 0."""
    numbers = [re.findall(r"\d+", messages[-1].get("content") or "") for messages in completions]
    return [float(wanted in found) for found, wanted in zip(numbers, answer, strict=True)]


def called(completions, **_):
    """1 where a tool was called, else 0."""
    return [
        float(any(message["role"] == "tool" for message in messages)) for messages in completions
    ]


parser = argparse.ArgumentParser()
parser.add_argument("--model", default="Qwen/Qwen3-0.6B")
parser.add_argument("--steps", type=int, default=50)
options, draw = parser.parse_args(), random.Random(0)

factors = [(draw.randint(11, 99), draw.randint(11, 99)) for _ in range(256)]
questions = [[{"role": "user", "content": f"What is {a} times {b}?"}] for a, b in factors]
rows = Dataset.from_dict({"prompt": questions, "answer": [str(a * b) for a, b in factors]})

args = CancellationConfig(
    "out/tools",
    reward_weights=[1.0, 0.2],
    max_completion_length=256,
    max_steps=options.steps,
    per_device_train_batch_size=8,
    num_generations=4,
    loss_type="dr_grpo",
    record_tokens=10,
    trim_padding=True,
    chat_template_kwargs={"enable_thinking": False},
    logging_steps=1,
    report_to="none",
    use_cpu=not torch.cuda.is_available(),
)
trainer = CancellationTrainer(
    options.model, [right, called], args=args, train_dataset=rows, tools=[multiply]
)
trainer.train()
tokens = read_rollouts(args.output_dir)
# "tool": what multiply wrote
print(tokens.groupby("stopped", observed=True)["push"].agg(["count", "sum"]))
