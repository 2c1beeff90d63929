"""Claims about plain's settings, ours: what each row measures: registrations of worlds_groups,
worlds_defaults.
"""

from functools import partial

import numpy as np
import pandas as pd

from workbook.app.half_way import PLAIN
from workbook.statistics import pseudo_values
from workbook.studies.record import Tables
from workbook.studies.worlds.claims import end_difference_of_worlds, end_ratio
from workbook.studies.worlds.outcomes import lead
from workbook.studies.worlds.questions import MANY, PAIRS, RATES, TWINS


def update_share(
    tables: Tables, study: str, part: str, whole: str, arm: str, base: str | None = None
) -> pd.Series:
    """Pseudo-values of one column of an arm's updates over another, a ratio of means; base: log2 of
    it over base's.
    """

    def number(rows: pd.DataFrame) -> float:
        shares = (
            rows.groupby("arm")[[part, whole]].mean().pipe(lambda means: means[part] / means[whole])
        )
        return float(shares[arm] if base is None else np.log2(shares[arm] / shares[base]))

    return pseudo_values(tables[f"{study}/updates"], number)


SIGNAL = partial(update_share, study="worlds_groups", part="mean2", whole="total2", base=PAIRS)
BIAS = partial(update_share, study="worlds_defaults", part="bias2", whole="mean2")
TAX, AHEAD = (
    partial(measure, study="worlds_defaults") for measure in (end_ratio, end_difference_of_worlds)
)
_TOKENS = partial(lead, arm=PAIRS, base=MANY, study="worlds_groups")
GROUPS = dict.fromkeys(("Q3", "Q3 high start", "Q3 between"), _TOKENS) | {
    "Q3 signal": partial(SIGNAL, arm=MANY)
}
GROUPS["Q3 pairs"] = partial(end_ratio, arm=PAIRS, base=MANY, column="value", study="worlds_groups")
for words in RATES:
    other = partial(_TOKENS, arm=f"{PAIRS}, {words}", base=f"{MANY}, {words}")
    GROUPS |= dict.fromkeys((f"Q3 {words}", f"Q3 high start, {words}"), other)
DEFAULTS = {"Q4 plain": partial(BIAS, arm=PLAIN)}
for name, twin in TWINS.items():
    DEFAULTS["Q4" if name == "length" else f"Q4 {name}"] = partial(BIAS, arm=name)
    DEFAULTS[f"Q4 tax, {name}"] = partial(TAX, arm=name, base=twin)
    DEFAULTS[f"Q4 value, {name}"] = partial(AHEAD, arm=name)
    if twin != PLAIN:
        DEFAULTS |= {
            f"Q4 twin, {name}": partial(BIAS, arm=twin),
            f"Q4 plain tax, {name}": partial(TAX, arm=name),
        }
MEASURES = {"worlds_groups": GROUPS, "worlds_defaults": DEFAULTS}
