"""The exercises of chapters 11 and 12: a batch, a reward that no talk wins, and a credit rule."""

from collections.abc import Callable

import torch

from workbook.chapters.grading import answer_of, grade
from workbook.messages import InvalidValue
from workbook.theory.credit import CreditBatch
from workbook.training.layout import batch_layout

# completion, answer, the right reward, and what is wrong with a function that gives another
CASES = (
    ("so the answer is 2", "2", 1.0, "is right and plain"),
    ("so the answer is 12", "2", 0.0, "states 12, which only contains a 2"),
    ("so the answer is 23", "2", 0.0, "states 23, which only begins with the digit 2"),
    ("so the answer is -2", "2", 0.0, "states -2, which has another sign"),
    ("then 2 - 6 is 6 ; so the answer is 6", "2", 0.0, "mentions 2 on the way, but answers 6"),
    ("the answer is 2 ; no , the answer is 7", "2", 0.0, "states two answers, and the last is 7"),
    ("I give up 2", "2", 0.0, "ends with 2, but never says that this is the answer"),
    ("2", "2", 0.0, "never says `answer is`"),
    ("", "2", 0.0, "is empty"),
    (
        "the answer is 1 the answer is 2 the answer is 3 ;",
        "3",
        1.0,
        "states the right one of three last, before a `;`",
    ),
    ("so the answer is", "2", 0.0, "stops before its answer"),
)


# width, group_size, accumulated, parts, passes, processes of a trainer
BATCHES = (
    (16, 8, 1, 4, 1, 1),
    (16, 8, 4, 4, 1, 1),
    (4, 8, 2, 4, 3, 4),
    (8, 4, 2, 6, 1, 2),
    (6, 4, 1, 1, 1, 1),
    (8, 1, 1, 1, 1, 1),
)


def batch_numbers(
    width: int, group_size: int, accumulated: int, parts: int, passes: int = 1, processes: int = 1
) -> list[int]:
    """Prompts sampled at once, rollouts of a step, steps on a batch, updates before the last one.

    width: per_device_train_batch_size.  accumulated: gradient_accumulation_steps, a divisor of
    parts * passes.  parts: steps_per_generation.  passes: num_iterations. All are 0 where TRL
    refuses the settings.

    >>> batch_numbers(16, 8, 1, 4), batch_numbers(6, 4, 1, 1)
    ([8, 16, 4, 3], [0, 0, 0, 0])
    """
    try:
        table = batch_layout(
            per_device_train_batch_size=width,
            num_generations=group_size,
            gradient_accumulation_steps=accumulated,
            steps_per_generation=parts,
            num_iterations=passes,
            processes=processes,
        )
    except InvalidValue:
        return [0, 0, 0, 0]
    steps = table["optimizer_step"].nunique()
    return [table["prompt"].nunique(), len(table) // steps, steps, int(table["updates"].max())]


def check_batch(function: Callable) -> None:
    """Check a reader's `batch_numbers`, a function of the same arguments in the same order.

    >>> check_batch(lambda width, group, accumulated, parts, passes, processes: None)
    Not answered yet: put your answer in place of None and run the cell again.
    >>> check_batch(lambda width, *others: [width, width, 1, 0])  # doctest: +ELLIPSIS
    Not quite: with width=16, group_size=8, ...
    """
    names = ("width", "group_size", "accumulated", "parts", "passes", "processes")
    for case in BATCHES:
        if (got := answer_of(function, *case)) is None:
            return
        right = torch.tensor(batch_numbers(*case))
        if got.shape == right.shape and torch.equal(got.double(), right.double()):
            continue
        settings = ", ".join(f"{name}={value}" for name, value in zip(names, case, strict=True))
        mistakes = {f"with {settings}: {text}": wrong for text, wrong in _batch_mistakes(*case)}
        otherwise = f"with {settings}: {{entry}} should be {{right:g}}, not {{got:g}}."
        grade(got, right, mistakes, "", "number", otherwise)
        return
    print("Right: eight prompts or eighty, a batch is these four numbers.")


def _batch_mistakes(width, group_size, accumulated, parts, passes, processes):
    """What is wrong, and the answer that it gives."""
    prompts, in_step, steps, updates = batch_numbers(
        width, group_size, accumulated, parts, passes, processes
    )
    if not prompts:
        text = "TRL refuses a group of one, and rollouts that are no whole groups: return zeros."
        return [(text, lambda got: bool(got.any()))]
    one_process = [prompts / processes, width * accumulated, steps, updates]
    one_pass = max(1, parts // accumulated)
    return [
        (
            "prompts are rollouts divided by group_size.",
            [width * parts * processes, in_step, steps, updates],
        ),
        ("count the rollouts of all processes.", one_process),
        (
            "a step takes `accumulated` micro-batches.",
            [prompts, width * processes, steps, updates],
        ),
        ("the batch is gone through `passes` times.", [prompts, in_step, one_pass, one_pass - 1]),
        ("before the first step nothing was updated.", [prompts, in_step, steps, steps]),
    ]


def check_reward(function: Callable) -> None:
    """Check a reward (completion, answer) -> 1 if the number after the last `answer is` is the
    answer, else 0.

    >>> check_reward(lambda completion, answer: float(answer in completion))
    Not quite: 'so the answer is 12' states 12, which only contains a 2; it should get 0, not 1.
    """
    for completion, answer, right, why in CASES:
        if (got := answer_of(function, completion, answer)) is None:
            return
        if got.numel() != 1:
            print(f"Not quite: it returned the shape {tuple(got.shape)}; return one number.")
            return
        if float(got) != right:
            print(f"Not quite: {completion!r} {why}; it should get {right:g}, not {float(got):g}.")
            return
    print("Right: what is paid is the last stated answer, and nothing said on the way.")


def blame_differences(batch: CreditBatch) -> torch.Tensor:
    """Pay numbers alone, and blame no number that a right rollout says at the same place: (B, T).

    A credit rule. The group's advantage stays on numbers, and is 0 on every other word; in a
    rollout without reward it is 0 as well where a rewarded one of its group has the same number at
    the same place.
    """
    credit = batch.group_advantages("dr_grpo")[:, None] * batch.mask  # (B, T)
    groups = batch.group_ids.tolist()
    right = {
        (group, place, word)
        for group, reward, words in zip(groups, batch.rewards, batch.tokens, strict=True)
        for place, word in enumerate(words)
        if reward > 0
    }
    for row, words in enumerate(batch.tokens):
        fails = batch.rewards[row] <= 0
        for place, word in enumerate(words):
            is_shared = (groups[row], place, word) in right
            if not word.strip().isdigit() or (fails and is_shared):
                credit[row, place] = 0.0
    return credit


# texts of two groups of three, with their rewards
RULE_TEXTS = (
    ("start with 5 ; then 5 - 6 is 9 ;", 1.0),
    ("start with 5 ; then 5 - 6 is 8 ;", 0.0),
    ("start with 5 ; next 5 - 6 is 9 end", 1.0),
    ("start with 2 ; then 2 + 6 is 8 ;", 0.0),
    ("open with 2 ; then 2 + 6 is 8 ;", 0.0),
    ("start with 3 ; then 2 + 6 is 9 ;", 1.0),
)


def check_rule(rule: Callable) -> None:
    """Check a reader's `blame_differences`.

    >>> check_rule(lambda batch: None)
    Not answered yet: put your answer in place of None and run the cell again.
    """
    tokens = [text.split() for text, _ in RULE_TEXTS]
    rewards = torch.tensor([reward for _, reward in RULE_TEXTS])
    ids = torch.zeros(len(tokens), len(tokens[0]), dtype=torch.long)
    groups = torch.tensor([0, 0, 0, 1, 1, 1])
    batch = CreditBatch(rewards, groups, ids, torch.ones_like(ids), tokens=tokens)
    if (got := answer_of(rule, batch)) is None:
        return
    right = blame_differences(batch)
    advantages = batch.group_advantages("dr_grpo")[:, None]
    is_number = torch.tensor([[word.isdigit() for word in words] for words in tokens])
    fails = (rewards == 0)[:, None]
    one_group = CreditBatch(rewards, groups * 0, ids, torch.ones_like(ids), tokens=tokens)
    shared_anywhere = (blame_differences(one_group) == 0) & fails
    mistakes = {
        "words that are no numbers get 0.": lambda got: bool(got[~is_number].any()),
        "numbers that a right rollout says at the same place are still blamed.": (
            advantages * is_number
        ),
        "right rollouts keep their advantage on every number, shared or not.": (
            lambda got: bool((got[(~fails & is_number)] == 0).any())
        ),
        "a right rollout of another group says nothing about this one.": (
            (advantages * is_number).masked_fill(shared_anywhere, 0.0)
        ),
    }
    praise = "Right: what a failing rollout has in common with a right one is not to blame."
    grade(got, right, mistakes, praise, "entry (rollout, place)")
