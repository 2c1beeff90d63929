"""Hacks that the reward of a config pays."""

from __future__ import annotations

from workbook.commands.arguments import as_count, as_path


def _attack(args) -> int:
    from workbook.tasks import get_task
    from workbook.tasks.attack import attack_reward, describe_attack
    from workbook.training.run_config import RunConfig

    config = RunConfig.load(args.config)
    task = get_task(config.task, **config.task_options)
    table = attack_reward(task, args.prompts, args.seed)
    print(table[["hack", "paid", "mean_reward", "false", "example"]].round(2).to_string(index=False))
    print(f"{task.name}: {describe_attack(table)}")
    return int((table["false"] & (table["paid"] > 0)).any())


def add_attack_reward(commands) -> None:
    """`attack-reward`: which of some forty hacks the reward of a config pays."""
    attack = commands.add_parser("attack-reward", help="which of some forty hacks the reward of a config pays")
    attack.add_argument("config", type=as_path, help="a run's YAML, e.g. data/configs/chain.yaml")
    attack.add_argument("--prompts", type=as_count(1, 10_000), default=32, help="of the task's, to try them on (32)")
    attack.add_argument("--seed", type=as_count(0, 2**31 - 1), default=0)
    attack.set_defaults(command=_attack)
