"""Every data set of reasoning-gym that a run may train on, attacked with each hack that any verifier fell for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from workbook.tasks import get_task
from workbook.tasks.attack import attack_reward
from workbook.tasks.gym import allowed_datasets

PROMISE = "A data set pays its own answers in usual phrasings and no hack, has the same rows twice, or is refused."
TRIALS = 90
PHRASINGS = (
    "{}",
    "{}\n",
    "<answer>{}</answer>",
    "The answer is {}",
    "The answer is {}.",
    "#### {}",
    "<answer>\n{}\n</answer>",
)


def trials(seed: int) -> Iterator[tuple[str, tuple]]:
    """Trials are data sets, each with the seed of its rows; after the last comes the first with the next seed."""
    for round_number in range(10**6):
        for name in allowed_datasets():
            yield f"{name} {seed + round_number}", (name, seed + round_number)


def attempt(folder: Path, name: str, seed: int) -> str | None:
    """Attack one data set; one sentence on what it pays and should not, or should and does not."""
    try:
        task = get_task(f"gym:{name}")
    except ValueError as refusal:
        return None if "is refused" in str(refusal) else f"{refusal}"
    rows, again = task.dataset(12, seed), task.dataset(12, seed)
    if rows[:] != again[:]:
        return "Its rows differ when they are drawn again."
    unpaid = [form for form in PHRASINGS if not _all_paid(task, rows, form)]
    table = attack_reward(task, n=12, seed=seed)
    paid = table[table["false"] & (table["paid"] > 0)]["hack"].tolist()
    return f"It pays {paid} and does not pay {unpaid}." if paid or unpaid else None


def _all_paid(task, rows, form: str) -> bool:
    answers = rows["answer"][:]
    completions = [form.format(answer) for answer in answers]
    return min(task.reward([""] * len(answers), completions, answers, metadata=rows["metadata"][:])) == 1.0
