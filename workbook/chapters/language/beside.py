"""Questions asked of tuned language models and of the family: whether both came out alike."""

import pandas as pd

from workbook.ledger import DOES_NOT_HOLD, HOLDS, TOO_SMALL

DECIDED = (HOLDS, DOES_NOT_HOLD, TOO_SMALL)
_NUMBERS = ["outcome", "mean", "low", "high"]
HERE = " sums"  # how keys of rows end that ask what the family's row of the same key asks


def compared(outcome: str, family: str) -> str:
    """Whether a row came out as the family's of the same question, by a rule that was written
    before any was measured.

    >>> compared("holds", "holds"), compared("does not hold", "holds"), compared("open", "holds")
    ('as in the family', 'otherwise', 'not decided here')
    """
    if family not in DECIDED:
        return "not decided in the family"
    if outcome not in DECIDED:
        return "not decided here"
    return "as in the family" if outcome == family else "otherwise"


def beside_family(ledger: pd.DataFrame) -> pd.DataFrame:
    """A row per question that was asked here and of the family, or of runs in the world third: key,
    measured, outcome, mean, low and high of both, sentence.  ledger: as
    `kept_ledger` reads it."""
    asked = ledger[(ledger["scale"] == "smollm2:sums") & ledger["key"].str.endswith(HERE)]
    asked = asked.assign(key=asked["key"].str.removesuffix(HERE)).set_index("key")
    family = ledger[ledger["scale"].isin(("family", "world:third"))].set_index("key")
    both = asked[["measured", *_NUMBERS]].join(family[_NUMBERS], rsuffix="_family", how="inner")
    sentences = [compared(*pair) for pair in both[["outcome", "outcome_family"]].to_numpy()]
    return both.assign(sentence=sentences).reset_index()
