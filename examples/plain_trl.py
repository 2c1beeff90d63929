"""TRL's own GRPOTrainer, unchanged: its log with token ids, its tokens recorded, and what both say
of the run.

    python examples/plain_trl.py             # a minute on a CPU
    python -m workbook report out/plain_trl  # the same, of any such folder

`log_ids` is a reward function of weight 0 that writes each completion's token ids, so that a report
counts tokens and not words. `TokenRecord` writes what each step did to its tokens. Neither changes
a bit of what is trained.
"""

import argparse

import torch
from trl import GRPOConfig, GRPOTrainer

from workbook import get_task, log_ids
from workbook.__main__ import main
from workbook.app import TokenRecord, load_run
from workbook.places import data_path

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=20)
options, task = parser.parse_args(), get_task("chain")

args = GRPOConfig(
    "out/plain_trl",
    reward_weights=[1.0, 0.0],
    log_completions=True,
    per_device_train_batch_size=64,
    num_generations=8,
    learning_rate=1e-3,
    max_completion_length=48,
    max_steps=options.steps,
    logging_steps=1,
    report_to="none",
    use_cpu=not torch.cuda.is_available(),
)
rewards, rows = [task.reward, log_ids], task.dataset(512, seed=0)
trainer = GRPOTrainer(str(data_path("bundled")), rewards, args=args, train_dataset=rows)
trainer.add_callback(TokenRecord(trainer, every=5))
trainer.train()

main(["report", f"{args.output_dir}/completions"])  # what was logged: every rollout, by its ids
main(["report", args.output_dir])  # what was recorded: every token's push and change
tokens = load_run(args.output_dir).tokens(1)
print(
    tokens.groupby("token", observed=True)["push"].agg(["sum", "count"]).sort_values("sum").tail()
)
