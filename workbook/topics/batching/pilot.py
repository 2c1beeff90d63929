"""Learning rates for the batching study, from its pilot, by the rule written down in data/configs/studies/.

"Near instability" is the largest rate of the grid at which, and below which, no pilot run collapsed; "calm" is a
quarter of it.
"""

from __future__ import annotations

import pandas as pd

from workbook.studies.sweeps import load_runs

CALM = 0.25  # share of the rate near instability


def rates(pilot: pd.DataFrame | None = None) -> pd.DataFrame:
    """Columns optim, adam_beta1 (NaN for SGD), calm, near: the rates that follow from the pilot's runs.

    pilot: as from `load_runs`, with the columns optim, adam_beta1, learning_rate, collapsed; by default the committed
    pilot.  Raises ValueError if the smallest rate of an optimizer collapsed: its grid has to begin lower.
    """
    pilot = load_runs("batching_pilot") if pilot is None else pilot
    rows = []
    for (optim, beta1), runs in pilot.groupby(["optim", "adam_beta1"], dropna=False):
        collapsed = runs.groupby("learning_rate")["collapsed"].max().sort_index()
        calm_so_far = collapsed[collapsed.cumsum() == 0]
        if calm_so_far.empty:
            raise ValueError(f"learning_rate={collapsed.index[0]} collapsed with {optim}: begin the grid lower.")
        near = calm_so_far.index[-1]
        rows.append((optim, beta1, near * CALM, near))
    return pd.DataFrame(rows, columns=["optim", "adam_beta1", "calm", "near"])
