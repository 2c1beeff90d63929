"""The exercise of chapter 07: a mask over a table of tokens, checked, and trained with."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from workbook.chapters.grading import answer_of, grade
from workbook.theory.credit import CreditBatch, Rule, spread_over_tokens, token_places
from workbook.theory.credit_masks import Masked, unsure_tokens

Mask = Callable[[pd.DataFrame], pd.Series | None]


def mask_table(batch: CreditBatch) -> pd.DataFrame:
    """The tokens of a batch, a row each, as a mask sees them.

    Columns prompt, rollout, position (its number in the rollout), slot (its place in the grammar,
    such as "first result"), word, advantage, and unsure: whether its probability was below .9.
    """
    rollout, position = batch.mask.nonzero(as_tuple=True)
    columns = {
        "prompt": batch.group_ids[rollout],
        "rollout": rollout,
        "position": position,
        "slot": token_places(batch)[batch.mask],
        "word": batch.completion_ids[batch.mask],
        "advantage": batch.group_advantages("dr_grpo")[rollout],
        "unsure": unsure_tokens(batch)[batch.mask],
    }
    return pd.DataFrame({name: column.cpu().numpy() for name, column in columns.items()})


@dataclass(frozen=True)
class TableMask:
    """Credit rule: the group's advantage on the tokens of `mask_table` that a function chooses."""

    chooses: Mask
    each_step = False

    def __call__(self, batch: CreditBatch) -> Float[Tensor, "B T"]:
        chosen = torch.zeros_like(batch.mask)
        rows = np.array(self.chooses(mask_table(batch)), dtype=bool)
        chosen[batch.mask] = torch.tensor(rows, device=chosen.device)
        return spread_over_tokens(batch, batch.group_advantages("dr_grpo")) * chosen


def mask_rule(mask: Mask) -> Rule:
    """A reader's mask as a credit rule; the workbook's own, and a line that says so, where it is
    unanswered or raises.
    """
    try:
        answered = mask(CASES.copy()) is not None
    except Exception:
        answered = False
    if answered:
        return TableMask(mask)
    print("my_mask has no answer that runs: the workbook's own mask stands in for it.")
    return Masked(shared=True, by_place=True)


# Two prompts; each mistake that is named below chooses other rows.
_ROWS = [  # prompt, rollout, position, slot, word, advantage, unsure
    (0, 0, 0, 0, "so", 0.5, True),
    (0, 0, 1, 2, "9", 0.5, True),
    (0, 0, 2, 3, "4", 0.5, True),
    (0, 0, 3, 4, "is", 0.5, True),
    (0, 1, 0, 0, "so", -0.5, True),
    (0, 1, 1, 1, "well", -0.5, True),
    (0, 1, 2, 2, "9", -0.5, True),
    (0, 1, 3, 3, "9", -0.5, True),
    (0, 1, 4, 4, "is", -0.5, False),
    (0, 2, 0, 0, "then", 0.0, True),
    (0, 2, 1, 3, "4", 0.0, True),
    (1, 3, 0, 0, "then", 0.5, True),
    (1, 3, 1, 2, "1", 0.5, True),
    (1, 4, 0, 0, "well", -0.5, True),
    (1, 4, 1, 3, "4", -0.5, True),
]
CASES = pd.DataFrame(
    _ROWS, columns=["prompt", "rollout", "position", "slot", "word", "advantage", "unsure"]
)


def said_by_both(table: pd.DataFrame, where: list[str], zero_is: float = np.nan) -> np.ndarray:
    """Rows of which both signs of advantage say the word, among rows that agree in `where`.

    zero_is: the sign that an advantage of 0 is counted as; NaN: none.
    """
    signs = np.sign(table["advantage"]).replace(0.0, zero_is)
    found = signs.groupby([table[name] for name in [*where, "word"]])
    return (found.transform("min").eq(-1) & found.transform("max").eq(1)).to_numpy()


def check_mask(function: Mask) -> None:
    """Check a function (table of tokens) -> whether each token pushes: unsure words that rollouts
    of both signs say at one place, under one prompt.

    >>> check_mask(lambda tokens: tokens["unsure"])
    Not quite: these are all unsure tokens; ask who says the word at this place.
    """

    def chosen(tokens: pd.DataFrame) -> np.ndarray | None:
        rows = function(tokens)
        return None if rows is None else np.asarray(rows, dtype=float)

    unsure, pushes = CASES["unsure"].to_numpy(), (CASES["advantage"] != 0).to_numpy()
    both = said_by_both(CASES, ["prompt", "slot"])
    wrong = {
        "these are all unsure tokens; ask who says the word at this place.": unsure,
        "position counts the words before a token; one more of them moves it. Take slot.": (
            said_by_both(CASES, ["prompt", "position"]) & unsure
        ),
        "the word alone is compared; it has to stand at the same slot, too.": (
            said_by_both(CASES, ["prompt"]) & unsure
        ),
        "words of other prompts are compared, too; a group is one prompt.": (
            said_by_both(CASES, ["slot"]) & unsure
        ),
        "sure tokens are pushed as well; keep those with unsure.": both,
        "only unsure tokens are asked who says a word; sure ones say theirs, too.": lambda got: (
            np.array_equal(got, _among_unsure())
        ),
        "these are the words of one sign, the other half.": ~both & unsure & pushes,
        "a rollout of advantage 0 is of neither sign.": lambda got: any(
            np.array_equal(got, said_by_both(CASES, ["prompt", "slot"], sign) & unsure)
            for sign in (-1.0, 1.0)
        ),
    }
    mistakes = {
        text: value if callable(value) else value.astype(float) for text, value in wrong.items()
    }
    praise = "Right: `so`, `9` and one `is` push; the chart below trains on such words alone."
    otherwise = (
        "row {place[0]} of the table should be {right:.0f} (1: it pushes), but yours is {got:.0f}."
    )
    right = torch.as_tensor((both & unsure).astype(float))
    grade(answer_of(chosen, CASES.copy()), right, mistakes, praise, "token", otherwise)


def _among_unsure() -> np.ndarray:
    """The mask of a reader who drops sure tokens before asking which signs say a word."""
    kept = CASES[CASES["unsure"]]
    chosen = pd.Series(False, index=CASES.index)
    chosen[kept.index] = said_by_both(kept, ["prompt", "slot"])
    return chosen.to_numpy()
