"""The claims ledger: every claim of the two papers, what would refute it, what was measured, and the outcome.

    ledger()                                 a row per measurement, from the tables below data/results/ alone
    kept_ledger()                            the same as it was last kept, without waiting
    show_outcomes("H1", "H1 alone")          registered rows, in a chapter, as they were last kept (`claims --keep`)

The unit of inference is policy x seed; where several units share a policy, their mean counts once. A study registers
its outcomes before the first unit is measured (`workbook.studies.registration`): one primary row a claim, with a
threshold, the side on which the claim lies, and the smallest effect of interest. Outcomes:

- supported, contradicted: all of the 95 % t interval of unit means lies on the claim's side of the threshold, or on the
  other, and so it does among all primary rows (Benjamini-Hochberg, q <= 0.05);
- equivalent to none: two one-sided tests put it nearer to the threshold, 0 (or a ratio of 1), than the smallest effect
  of interest; "not zero, too small to matter here" where its interval leaves that out, "at its threshold" where the
  threshold is another number;
- inconclusive: neither; the minimum detectable effect says what could have been seen;
- not testable here: a floor, a ceiling, an identity or no contrast, or equivalence where the positive control that its
  registration (or its note `named`, later) names is not supported, or none is named; not measured: fewer than 6 units;
- not comparable: a moderator lies outside the paper's range.

q_all corrects over all rows that are judged: a finding cites primary rows, and others below 0.05 there. Intervals that
a registration predicted are scored. What was measured of one language model is "described" and decides nothing. The
records (`Claim`, `Measurement`) stand beside the code that measures, in each topic's claims.py.
"""

from workbook.claims.ledger import (
    CLAIMS,
    SCALES,
    command,
    format_ledger,
    format_summary,
    kept_ledger,
    ledger,
    ledger_json,
    measurements,
    registered,
    summary,
)
from workbook.claims.sentences import show_claims
from workbook.places import lazy_names
from workbook.studies.record import Claim, Measurement, Tables

_NAMES = {"claims.cards": "show_outcomes"}  # which draw: a command waits for no charts
_names, __getattr__, __dir__ = lazy_names(__name__, _NAMES)

__all__ = [
    "CLAIMS", "SCALES", "Claim", "Measurement", "Tables", "command", "format_ledger", "format_summary", "kept_ledger",
    "ledger", "ledger_json", "measurements", "registered", "show_claims", "summary", *_names,
]  # fmt: skip
