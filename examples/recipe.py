"""A recipe to copy: TRL's own trainer, a dozen settings, and for each the chapter that treats it.

    python examples/recipe.py                          # the bundled policy, minutes on a CPU
    python examples/recipe.py --model smollm2-135m     # a language model on one-digit sums
    python examples/recipe.py --model FOLDER_OR_HUB_ID --task own:prompts.csv \\
        --reward reward.py:score --length 256 --accumulate 8 --rollouts 8

A line is printed for each step. What to look at in it:

    reward      mean reward of the step's rollouts. One step is mostly noise: compare means of
                twenty. Two in a row without a rise are a reason to read answers, not yet to stop.
    no spread   share of groups whose rewards are all equal. They teach nothing. Above one half,
                take prompts that are solved sometimes, or larger groups.
    entropy     nats per token. It falls as a policy learns. Where it is nearly gone and reward has
                not risen, the policy has only become surer of itself: stop, take a smaller rate.
    cut off     share of answers that reached the length limit. Where it stays high, raise
                --length. Where it climbs, the policy unlearns to end its answers: lower --lr.

Judge by prompts that were not trained on: their mean reward is printed before and after, with its
standard error. One run is one run; compare settings over several seeds, the same for both
(chapter 12). Noise of a step at your batch size: `workbook.noise_share` (chapter 11).
"""

import argparse

import torch
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from workbook import get_task, load_policy, log_ids, sample_rollouts


def recipe(options: argparse.Namespace) -> GRPOConfig:
    """The dozen settings, then what a machine and a run need."""
    return GRPOConfig(
        # --- the recipe
        num_generations=8,  # 13: a group teaches if its rewards differ; take more where few do
        per_device_train_batch_size=options.rollouts,  # 11: more rollouts, less noise in a step
        steps_per_generation=options.accumulate,  # 08: one step a batch; its cut cannot matter
        num_iterations=1,  # 06: using a batch again was not seen to sharpen credit
        loss_type="dr_grpo",  # 03: no division by each answer's own length
        scale_rewards="none",  # 02: no extra weight on very easy and very hard prompts
        importance_sampling_level="token",  # 09: without effect at one step a batch
        beta=0.0,  # 03: TRL's default; whether a penalty helps was not measured
        temperature=1.0,  # 13: TRL scores at it, too; another value was not measured
        top_p=1.0,  # 13: sampling with 0.9 and scoring without it biases the gradient
        learning_rate=options.lr,  # 12: tune it, with equal effort for all that you compare
        seed=options.seed,  # 12: pair what you compare by seed; six pairs at least
        # 07: worth a test in the workbook's CancellationTrainer: baseline_share=0.5, or 0
        # --- the run
        output_dir=options.out,
        gradient_accumulation_steps=options.accumulate,
        reward_weights=[1.0, 0.0],
        max_steps=options.steps,
        max_completion_length=options.length,
        lr_scheduler_type="constant",
        gradient_checkpointing=options.gradient_checkpointing,
        logging_steps=1,
        log_completions=options.completions,
        num_completions_to_print=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        # TRL's default is bfloat16 wherever it runs
        bf16=torch.cuda.is_available() and torch.cuda.is_bf16_supported(),
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


def held_out_reward(policy, task, prompts, length: int) -> tuple[float, float]:
    """Mean reward of one sample for each prompt, and its standard error."""
    rewards = sample_rollouts(policy, task, prompts, 1, max_new_tokens=length).rewards
    return float(rewards.mean()), float(rewards.std() / len(rewards) ** 0.5)


def advice(log: list[dict]) -> list[str]:
    """What the end of the log asks for, in sentences: its last twenty steps, or its second half."""
    rows = [row for row in log if "reward" in row]
    window = min(20, max(1, len(rows) // 2))
    last, before = rows[-window:], rows[-2 * window : -window]

    def mean(rows: list[dict], name: str) -> float:
        return sum(row[name] for row in rows) / len(rows)

    reward = mean(last, "reward")
    has_risen = not before or reward > mean(before, "reward")
    sentences = []
    if mean(last, "frac_reward_zero_std") > 0.5:
        cause = "harder" if reward > 0.5 else "easier"
        sentences.append(f"Most groups hold equal rewards: take {cause} prompts, or larger groups.")
    if mean(last, "completions/clipped_ratio") > 0.1:
        sentences.append(
            "Many answers were cut off: raise --length; if that came late, lower --lr."
        )
    if not has_risen and mean(last, "entropy") < 0.1 * rows[0]["entropy"]:
        sentences.append("Entropy is nearly gone and reward does not rise: stop, and lower --lr.")
    elif not has_risen:
        sentences.append(
            f"Reward has not risen over the last {2 * window} steps: read answers, then go on, stop"
            " or change --lr."
        )
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
    parser.add_argument("--reward", help="of --task own:FILE, as in reward.py:score")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument(
        "--rollouts", type=int, default=64, help="that a device holds at once, in groups of eight"
    )
    parser.add_argument(
        "--accumulate", type=int, default=1, help="so many times --rollouts make a step"
    )
    parser.add_argument(
        "--length",
        type=int,
        help="tokens of an answer at most; 48 for chains, 8 for sums, else 256",
    )
    parser.add_argument(
        "--lr", type=float, help="learning rate; 3e-4 for the bundled policy, else 1e-5"
    )
    parser.add_argument("--prompts", type=int, help="of the training set; 256, of sums 64")
    parser.add_argument(
        "--held-out", type=int, help="prompts that reward is read on; 128, of sums 64"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="out/recipe")
    parser.add_argument(
        "--completions", action="store_true", help="keep all answers, and print one of each step"
    )
    parser.add_argument(
        "--gradient-checkpointing", action="store_true", help="less memory, a slower step"
    )
    options = parser.parse_args()
    small = options.model == "bundled"
    sums = not small and not options.task
    options.lr = options.lr or (3e-4 if small else 1e-5)
    options.length = options.length or (48 if small else 8 if sums else 256)
    options.prompts = options.prompts or (64 if sums else 256)
    options.held_out = options.held_out or (64 if sums else 128)
    return options


def make_task(options: argparse.Namespace):
    """The task asked for; chains for the bundled policy, one-digit sums for any other."""
    if options.task:
        reward = {"reward": options.reward} if options.reward else {}
        return get_task(options.task, **reward)
    if options.model == "bundled":
        return get_task("chain")
    return get_task("gym:chain_sum", chat=False, max_terms=2, max_digits=1)


def main() -> None:
    options = parse()
    policy, task = load_policy(options.model), make_task(options)
    to_train, held_out = task.split(options.prompts, options.held_out, options.seed)
    before, error_before = held_out_reward(policy, task, held_out, options.length)

    trainer = GRPOTrainer(
        policy.model,
        # functions of completions and the data set's columns -> a list of numbers; the second one
        # pays nothing and logs the tokens' ids, for the report below
        [task.reward, log_ids],
        args=recipe(options),
        train_dataset=to_train,
        processing_class=policy.tokenizer,
        callbacks=[Lines()],
    )
    trainer.remove_callback(PrinterCallback)  # the whole log, which `Lines` makes short
    trainer.train()

    after, error_after = held_out_reward(policy, task, held_out, options.length)
    print(f"held-out reward {before:.3f} ± {error_before:.3f} -> {after:.3f} ± {error_after:.3f}")
    for sentence in advice(trainer.state.log_history):
        print(sentence)
    if options.completions:
        print(f"Every answer, token by token: python -m workbook report {options.out}/completions")
    else:
        print("With --completions a run keeps its answers, and `workbook report` reads them.")


if __name__ == "__main__":
    main()
