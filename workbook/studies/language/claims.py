"""Claims at tuned language models: the measures of other rooms, read from tables of the same form.

What is judged by them: data/results/smollm2/registration.yaml, with the thresholds of the family's
rows. `workbook.chapters.language.beside_family` says of each row whether it came out as the
family's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pandas as pd

from workbook.app.half_way import LOWER, PLAIN
from workbook.chapters.language.beside import HERE
from workbook.statistics import logs, pseudo_values
from workbook.studies.cancelled import claims as cancelled
from workbook.studies.coupling import claims as coupling
from workbook.studies.credit import claims as credit
from workbook.studies.flips import claims as flips
from workbook.studies.language.training import LENGTH
from workbook.studies.record import Tables
from workbook.studies.worlds import claims as worlds

_OURS = dict.fromkeys(("cancelled", "dose", "mass", "value_gap"), "smollm2_probes")
_OURS |= {
    "worlds": "smollm2_training",
    "worlds_rates": "smollm2_rates",
    "worlds_values": "worlds_values",
}
_MOST = 64  # prompts of the largest step


@dataclass(frozen=True)
class Renamed:
    """Tables under the names that other rooms read them by."""

    tables: Tables

    def __getitem__(self, name: str) -> pd.DataFrame:
        study, _, table = name.partition("/")
        return self.tables[f"{_OURS[study]}/{table}"]


def here(measure: Callable[..., pd.Series], **settings) -> Callable[[Tables], pd.Series]:
    """A measure of another room, of the tables here."""
    return lambda tables: measure(Renamed(tables), **settings)


def tuned_at_end(tables: Tables, column: str, arm: str) -> pd.Series:
    """A column of the last reading of an arm, one number per unit."""
    runs = tables["smollm2_training/runs"].query("arm == @arm").sort_values("batch", kind="stable")
    return runs.groupby("seed")[column].last()


def beside(tables: Tables, column: str, arm: str, ratio: bool = False) -> pd.Series:
    """A column at the end, an arm's minus plain's; ratio: over plain's."""
    one, plain = tuned_at_end(tables, column, arm), tuned_at_end(tables, column, PLAIN)
    return logs(one / plain) if ratio else one - plain


def early(tables: Tables, arm: str, batch: int = 10) -> pd.Series:
    """Pseudo-values of an arm's gain in value over plain's by a batch, a ratio of means."""
    runs = tables["smollm2_training/runs"].pivot(
        index="seed", columns=["arm", "batch"], values="value"
    )
    gains = pd.DataFrame(
        {one: runs[one, batch] - runs[one, 0] for one in (arm, PLAIN)}
    ).reset_index()
    return pseudo_values(gains, lambda rows: float(rows[arm].mean() / rows[PLAIN].mean()))


_FREE, _POSITIVE = "entropy_minimization", "positive_only"
AS_THERE = {
    key: measures[key]
    for measures, keys in (
        (
            cancelled.MEASURES["cancelled"],
            ("C1", "C1 place", "C2", "C3", "C3 batch", "C4", "C4 right"),
        ),
        (
            coupling.MEASURES["mass"],
            ("H2", "H2 all weights", "H2 other prompts", "H4", "H4 moved", "H4 unsure"),
        ),
        (credit.MEASURES["value_gap"], ("H7", "H7 permuted")),
    )
    for key in keys
}
AS_THERE |= {"H1": partial(flips.rate, prompts=_MOST), "H1 alone": partial(flips.rate, prompts=1)}
AS_THERE |= {"H1 follows": partial(flips.rate, column="follows", tokens="moved", prompts=_MOST)}
PROBES = {f"{key}{HERE}": here(measure) for key, measure in AS_THERE.items()}
PROBES |= {f"C1 template{HERE}": here(cancelled.cancelled_share_at, kind="template")}
PROBES |= {f"H1 follows alone{HERE}": here(flips.rate, column="follows", tokens="moved", prompts=1)}
TRAINING = {
    "Q1 learns": here(worlds.end_difference_of_worlds, arm=PLAIN, base=LOWER),
    "Q1 entropy sums": here(worlds.share_of_plain_gain, arm=_FREE),
    "Q1 early sums": partial(early, arm=_FREE),
    "Q2 sums": here(worlds.lead, arm=_POSITIVE),
    "Q2 value sums": here(worlds.end_difference_of_worlds, arm=_POSITIVE),
    "Q2 tax sums": here(worlds.end_ratio, arm=_POSITIVE),
    "Q2 pass@8 sums": here(worlds.end_difference_of_worlds, arm=_POSITIVE, column="pass_at_8"),
    "Q2 nats sums": partial(beside, column="entropy", arm=_POSITIVE),
    "Q1 nats sums": partial(beside, column="entropy", arm=_FREE),
    "Q4 longer": partial(beside, column="wrong_length", arm=LENGTH, ratio=True),
    "Q4 longer, all": partial(beside, column="length", arm=LENGTH, ratio=True),
    "Q4 value longer": partial(beside, column="value", arm=LENGTH),
}
MEASURES = {"smollm2_probes": PROBES, "smollm2_training": TRAINING}
