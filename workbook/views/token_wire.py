"""One group of a token table as the page gets it: texts, places and values of its tokens, and how to colour them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbook.views.style import visible
from workbook.views.token_cells import MAX_CHARACTERS, are_words, encode, readable
from workbook.views.token_layout import rollout_names
from workbook.views.token_scale import Scale

MAX_PROMPT = 300  # characters of a group's prompt above the cells


def wire(rows: pd.DataFrame, table: pd.DataFrame, known: dict[str, Scale]) -> dict:
    """prompt, shape, columns, values and places of `rows`, one group of `table`.

    shape: tokens, positions, labels of the rows, texts of the kinds of tokens (short, and as they were written), and
    whether these are words with spaces between.  columns: name, slot in values, and limit, center and side or levels
    and their marks.  values: float32, columns x tokens; a text is the number of its level.  places: int32, index into
    texts, row, position, each of every token.
    """
    kinds, texts = pd.factorize(rows["token_id"] if "token_id" in rows else rows["token"])
    first = rows["token"].astype(object).groupby(kinds).first()
    rollouts, _ = pd.factorize(rows["rollout"], use_na_sentinel=False)
    prompts = rows["prompt"].dropna().unique() if "prompt" in rows else []
    columns, values = encode(rows, table, known)
    with np.errstate(over="ignore"):  # beyond float32 is infinite
        values = values.astype("<f4")
    return {
        "prompt": visible(prompts[0], MAX_PROMPT, space=" ") if len(prompts) else "",
        "shape": {
            "tokens": len(rows),
            "positions": int(rows["position"].max()) + 1,
            "rows": rollout_names(rows[~rows["rollout"].duplicated()]).tolist(),
            "texts": [visible(first[k], MAX_CHARACTERS) for k in range(len(texts))],
            "raw": [readable(first[k]) for k in range(len(texts))],
            "words": are_words(table["token"]),
        },
        "columns": columns,
        "values": values.tobytes(),
        "places": np.stack([kinds, rollouts, rows["position"]]).astype("<i4").tobytes(),
    }
