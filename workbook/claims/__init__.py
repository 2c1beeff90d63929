"""The claims ledger: every claim of the two papers, what would refute it, what was measured, and the verdict.

    ledger("bundled")                        a row per measurement, from the tables below data/results/ alone
    summary(ledger("bundled"))               a row per claim: the worst verdict of its measurements
    measurements("H1", Tables("bundled"))    the rows of one claim, as a chapter shows them

A verdict follows from an effect and its 95 % interval: "replicates" if all of the interval lies on the claim's side of
a threshold that was written down before the measurement, "does not replicate" if none of it does, else "inconclusive".
A falsifier is "met", "not met" or "inconclusive". What no table holds is "not measured", with the reason. A verdict is
fragile if leaving out some single seed would change it.

The records (`Claim`, `Measurement`) stand beside the code that measures, in each topic's claims.py.
"""

from workbook.claims.judge import CLAIMS, measurements, verdict_of, worst
from workbook.claims.ledger import NEEDS_GPU, SCALES, command, ledger, summary
from workbook.claims.text import format_ledger, format_summary
from workbook.studies.claim import Claim, Measurement, Tables

__all__ = [
    "CLAIMS",
    "NEEDS_GPU",
    "SCALES",
    "Claim",
    "Measurement",
    "Tables",
    "command",
    "format_ledger",
    "format_summary",
    "ledger",
    "measurements",
    "summary",
    "verdict_of",
    "worst",
]
