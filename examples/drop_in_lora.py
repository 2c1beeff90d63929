"""TRL's GRPO script with two names changed: LoRA on your model and data, a switch of cancellation
on, tokens recorded.

The bundled policy, a minute on a CPU:  python examples/drop_in_lora.py
On a GPU:

    python examples/drop_in_lora.py --model Qwen/Qwen2.5-1.5B-Instruct --data openai/gsm8k \
        --length 512
"""

import argparse
import re

import torch
from datasets import load_dataset
from peft import LoraConfig

from workbook import get_task
from workbook.__main__ import main
from workbook.places import data_path
from workbook.training import CancellationConfig, CancellationTrainer


def last_number(completions, answer, **_):
    """1 where the last number of a completion is the last one of the answer, else 0."""
    texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
    found, wanted = (
        [re.findall(r"-?\d+", t.replace(",", ""))[-1:] for t in group] for group in (texts, answer)
    )
    return [float(a == b != []) for a, b in zip(found, wanted, strict=True)]


parser = argparse.ArgumentParser()
parser.add_argument("--model", default=str(data_path("bundled")), help="a hub id or a folder")
parser.add_argument(
    "--data",
    help="a hub data set with the columns question and answer; clock arithmetic by default",
)
parser.add_argument("--length", type=int, default=48, help="tokens of a completion")
parser.add_argument("--steps", type=int, default=40)
options = parser.parse_args()

if options.data:
    rows = load_dataset(options.data, "main", split="train").rename_column("question", "prompt")
    rows = rows.map(lambda row: {"prompt": [{"role": "user", "content": row["prompt"]}]})
else:
    rows = get_task("chain").dataset(512, seed=0)

args = CancellationConfig(
    "out/drop_in",
    batching="query_preserved",  # a mini-batch holds whole groups
    steps_per_generation=4,
    per_device_train_batch_size=16,
    num_generations=8,
    loss_type="dr_grpo",
    max_grad_norm=0.0,
    learning_rate=1e-3,
    max_completion_length=options.length,
    max_steps=options.steps,
    trim_padding=True,
    record_tokens=10,
    logging_steps=1,
    report_to="none",
    use_cpu=not torch.cuda.is_available(),
)
lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")
trainer = CancellationTrainer(
    options.model, last_number, args=args, train_dataset=rows, peft_config=lora
)
trainer.train()
main(["report", args.output_dir])  # what the steps did to the tokens
