"""How much of a step's agreement with exact credit do pairs of pushes carry?

A step moves each token by a sum over pairs (`probes.pairs`). Where the step agrees with credit, a
token that is worth more rises more: agreement is the correlation of change and exact credit, over
unsure tokens of one prompt, sign and class. Leave out the pairs that cancel, those of the other
sign and the same word, and see by how much agreement falls. Leaving out any pairs costs something.
So other pairs are left out beside them, as large in sum: the twins.

    tokens = unsure_pairs(policy, task, rollouts)
    falls(tokens)["excess"]     # what the pairs that cancel cost beyond their twins

Letters: N unsure tokens.
"""

import numpy as np
import pandas as pd
import torch

from workbook.probes.cancellation import kinds
from workbook.probes.pairs import OWN_KINDS, prompt_pairs
from workbook.probes.values import exact_values
from workbook.rollouts.sample import Rollouts
from workbook.theory.coupling import NEARLY_CERTAIN

SETS = {  # of pushers, by the columns of `PromptPairs.split`
    "cancelling": ("other", "same"),
    "same sign, same word": ("same", "same"),
    "other sign, other words": ("other", "other"),
    "same sign, other words": ("same", "other"),
}
TWINS = tuple(SETS)[1:]
_CELL = ["group", "sign", "kind"]


def unsure_pairs(policy, task, rollouts: Rollouts) -> pd.DataFrame:
    """Unsure tokens of rollouts with exact credit, and what each kind of pair does to them: N rows.

    Columns: those of the token table, kind (its class), credit (in the reward's unit), sign of its
    rollout's advantage, and OWN_KINDS, nats per unit of learning rate. Tokens whose exact credit is
    not known are left out. Raises ValueError for advantages per token.
    """
    values = exact_values(policy, task, rollouts)
    parts = []
    for pairs in prompt_pairs(policy, rollouts):
        tokens = pairs.tokens
        at = tuple(torch.tensor(tokens[["rollout", "position"]].to_numpy(copy=True)).T)
        tokens = tokens.assign(
            credit=values.credit[at].double().cpu().numpy(),
            sign=np.sign(tokens["advantage"].to_numpy(dtype=float)),
        )
        tokens["kind"] = kinds(tokens)
        by_kind = pairs.split(tokens["advantage"].to_numpy(dtype=float))
        unsure = (tokens["logp"] < np.log(NEARLY_CERTAIN)) & values.inside[at].cpu().numpy()
        parts.append(pd.concat([tokens, by_kind], axis=1)[unsure])
    return pd.concat(parts, ignore_index=True)


def pushed_by(table: pd.DataFrame, name: str) -> pd.Series:
    """What the pushers of one of SETS do to each token; the token itself is in none of them."""
    sign, word = SETS[name]
    return table[
        [f"{sign}_sign_{word}_word_{context}_context" for context in ("same", "other")]
    ].sum(axis=1)


def cell_correlation(change: pd.Series, credit: pd.Series, cells: list[pd.Series]) -> float:
    """Correlation of two columns about the means of their cells, over all tokens.

    0 where the change does not vary, which then tells nothing of credit; NaN where there is no
    credit to tell.
    """
    a, b = (values - values.groupby(cells).transform("mean") for values in (change, credit))
    if not (b.abs() > 1e-12).any():
        return np.nan
    spread = np.sqrt((a**2).sum() * (b**2).sum())
    return float((a * b).sum() / spread) if spread > 1e-12 else 0.0


def falls(table: pd.DataFrame, credit: str = "credit") -> dict[str, float]:
    """The correlation of change and credit, and by how much it falls without each of SETS; twins at
    equal size.

    table: tokens with CELL, OWN_KINDS and the credit's column. size_<twin>: the factor by which it
    was scaled.
    """
    cells = [table[name] for name in _CELL]
    change = table[OWN_KINDS].sum(axis=1)
    whole = cell_correlation(change, table[credit], cells)
    cancelling = pushed_by(table, "cancelling")
    out = {
        "correlation": whole,
        "cancelling": whole - cell_correlation(change - cancelling, table[credit], cells),
    }
    for name in TWINS:
        twin = pushed_by(table, name)
        factor = min(1.0, float(cancelling.abs().sum() / max(twin.abs().sum(), 1e-300)))
        out[name] = whole - cell_correlation(change - factor * twin, table[credit], cells)
        out[f"size of {name}"] = factor
    out["excess"] = out["cancelling"] - float(np.mean([out[name] for name in TWINS]))
    return out
