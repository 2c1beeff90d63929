"""A credit rule of your own, one number per token: in a trainer, and beside known credit in the
arena.

    python examples/own_rule.py              # trains with it, a minute on a CPU
    python examples/own_rule.py --arena      # and places it, in some three minutes; resumable

In a config it is `advantage_estimator: own:examples/own_rule.py:entropy_weighted`.
"""

import argparse

import torch

from workbook import get_task
from workbook.places import data_path
from workbook.training import CancellationConfig, CancellationTrainer


def entropy_weighted(batch):
    """Give a token its rollout's advantage times its entropy over the rollout's mean entropy: (B,
    T).

    batch: a `workbook.theory.CreditBatch`; what it has to offer is in its help.
    """
    mask, entropies = batch.mask.float(), batch.entropies * batch.mask
    mean = entropies.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    return batch.group_advantages("dr_grpo")[:, None] * entropies / mean.clamp(min=1e-6)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--arena", action="store_true")
    options, task = parser.parse_args(), get_task("chain")
    args = CancellationConfig(
        "out/own_rule",
        per_device_train_batch_size=64,
        num_generations=8,
        loss_type="dr_grpo",
        learning_rate=1e-3,
        max_completion_length=48,
        max_steps=options.steps,
        logging_steps=1,
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
    )
    policy, rows = str(data_path("bundled")), task.dataset(512, seed=0)
    trainer = CancellationTrainer(
        policy, task.reward, args=args, train_dataset=rows, advantage_estimator=entropy_weighted
    )
    trainer.train()
    rewards = [row["reward"] for row in trainer.state.log_history if "reward" in row]
    print(f"reward {rewards[0]:.3f} -> {rewards[-1]:.3f}")
    if options.arena:
        from workbook.app import add_to_table, compare_rule, table_text
        from workbook.book.terminal import print_text

        mine = compare_rule(f"own:{__file__}:entropy_weighted", show=print)
        print_text(table_text(add_to_table(mine)))


if __name__ == "__main__":
    main()
