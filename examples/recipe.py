"""A recipe to copy: TRL's own trainer, a dozen settings, and for each the chapter that says why.

    python examples/recipe.py                          # the bundled policy, minutes on a CPU
    python examples/recipe.py --model smollm2-135m     # a language model on one-digit sums
    python examples/recipe.py --model FOLDER_OR_HUB_ID --task gym:chain_sum --steps 200

A line is printed for each step. What to look at in it, and when to stop:

    reward      mean reward of the step's rollouts. One step is noise: compare means of twenty. Stop
                where such a mean has not risen twice in a row.
    no spread   share of groups whose rewards are all equal. They teach nothing. Above one half,
                take prompts that are solved sometimes, or larger groups.
    entropy     nats per token. Where it falls to a tenth of its start while reward stands still,
                the policy has only become surer of itself. Stop, and take a smaller rate.
    cut off     share of answers that reached the length limit. Where it starts high, raise
                --length. Where it climbs, the policy unlearns to end its answers: lower --lr.

Judge by held-out prompts, before and after: their reward is printed at the end. One run is one run;
compare settings over several seeds, the same seeds for both (chapter 12).
"""

import argparse

import torch
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from workbook import get_task, load_policy, sample_rollouts

HELD_OUT_SEED = 10_000


def recipe(options: argparse.Namespace) -> GRPOConfig:
    """The dozen settings, then what a machine and a run need."""
    return GRPOConfig(
        # --- the recipe
        num_generations=8,  # 02: a group teaches if its rewards differ; raise it where few do
        per_device_train_batch_size=options.rollouts,  # 06: more rollouts, less noise
        steps_per_generation=1,  # 08: one step a batch, so how it is cut cannot matter
        num_iterations=1,  # 09: using a batch again was not seen to sharpen credit
        loss_type="dr_grpo",  # 03: no division by each answer's own length
        scale_rewards="none",  # 02: no extra weight on very easy and very hard prompts
        importance_sampling_level="token",  # 09: nothing measured speaks for sequence ratios
        beta=0.0,  # 03: no pull to the reference model, and no second model in memory
        temperature=1.0,  # 02: sample with what is scored
        top_p=1.0,  # 13: sampling with 0.9 and scoring without it biases the gradient
        learning_rate=options.lr,  # 12: tune it, with equal effort for all that you compare
        seed=options.seed,  # 12: pair what you compare by seed; ten pairs rather than three
        # 07: worth a test beside it: CancellationConfig(baseline_share=0.5), or 0
        # --- the run
        output_dir=options.out,
        max_steps=options.steps,
        max_completion_length=options.length,
        lr_scheduler_type="constant",
        gradient_checkpointing=options.gradient_checkpointing,
        logging_steps=1,
        log_completions=options.completions,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )


class Lines(TrainerCallback):
    """A line of the log for each step, and nothing else."""

    def on_log(self, args, state, control, logs=None, **_):
        if "reward" in logs:
            print(
                f"step {state.global_step:4d}   reward {logs['reward']:.3f}"
                f"   no spread {logs['frac_reward_zero_std']:.2f}"
                f"   entropy {logs['entropy']:.3f}"
                f"   cut off {logs['completions/clipped_ratio']:.2f}",
                flush=True,
            )


def held_out_reward(policy, task, options: argparse.Namespace) -> float:
    """Mean reward of one sample for each of so many fresh prompts."""
    given = (options.held_out, 1, HELD_OUT_SEED, options.length)
    return float(sample_rollouts(policy, task, *given).rewards.mean())


def advice(log: list[dict]) -> list[str]:
    """What the log's last twenty steps ask for, in sentences."""
    rows = [row for row in log if "reward" in row]
    last, before = rows[-20:], rows[-40:-20]

    def mean(rows: list[dict], name: str) -> float:
        return sum(row[name] for row in rows) / len(rows)

    sentences = []
    if mean(last, "frac_reward_zero_std") > 0.5:
        sentences.append("Most groups hold equal rewards: take other prompts, or larger groups.")
    if mean(last, "completions/clipped_ratio") > 0.1:
        sentences.append(
            "Many answers were cut off: raise --length; if that came late, lower --lr."
        )
    if mean(last, "entropy") < 0.1 * rows[0]["entropy"]:
        sentences.append("Entropy is nearly gone: look at held-out reward, and lower --lr.")
    if before and mean(last, "reward") <= mean(before, "reward"):
        sentences.append("Reward has not risen over the last twenty steps: stop, or change --lr.")
    return sentences or ["Nothing in the last steps asks for a change."]


def parse() -> argparse.Namespace:
    about, _, more = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        description=about, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", default="bundled", help="bundled, smollm2-135m, a folder or a hub id"
    )
    parser.add_argument(
        "--task",
        help="a name of workbook.get_task; by default chain for the bundled policy, which knows"
        " nothing else, and one-digit sums for others",
    )
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rollouts", type=int, default=64, help="of a step, in groups of eight")
    parser.add_argument("--length", type=int, help="tokens of an answer at most")
    parser.add_argument(
        "--lr", type=float, help="learning rate; 3e-4 for the bundled policy, else 1e-5"
    )
    parser.add_argument("--prompts", type=int, default=512, help="of the training set")
    parser.add_argument("--held-out", type=int, default=128, help="prompts that reward is read on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="out/recipe")
    parser.add_argument("--completions", action="store_true", help="print and log the answers")
    parser.add_argument(
        "--gradient-checkpointing", action="store_true", help="less memory, a slower step"
    )
    options = parser.parse_args()
    small = options.model == "bundled"
    options.lr = options.lr or (3e-4 if small else 1e-5)
    options.length = options.length or (48 if small else 8)
    return options


def main() -> None:
    options = parse()
    policy = load_policy(options.model)
    if options.task:
        task = get_task(options.task)
    elif options.model == "bundled":
        task = get_task("chain")
    else:
        task = get_task("gym:chain_sum", chat=False, max_terms=2, max_digits=1)
    before = held_out_reward(policy, task, options)

    trainer = GRPOTrainer(
        policy.model,
        task.reward,  # a function of completions and the data set's columns -> a list of numbers
        args=recipe(options),
        train_dataset=task.dataset(options.prompts, options.seed),
        processing_class=policy.tokenizer,
        callbacks=[Lines()],
    )
    trainer.remove_callback(PrinterCallback)  # the whole log, which `Lines` makes short
    trainer.train()

    print(f"held-out reward {before:.3f} -> {held_out_reward(policy, task, options):.3f}")
    for sentence in advice(trainer.state.log_history):
        print(sentence)
    if options.completions:
        print(f"Every answer, token by token: python -m workbook report {options.out}/completions")


if __name__ == "__main__":
    main()
