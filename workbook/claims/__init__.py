"""The claims ledger: every claim, what would refute it, what was measured, and the outcome in one of five words.

    kept_ledger()                            a row per measurement, as it was last kept (`claims --keep`)
    ledger()                                 the same, computed from the tables below data/results/
    show_claims({"H1": "Alike."})            sentences in a chapter, each with its row's word; a click opens the row
    show_outcomes("H1", "H1 alone")          registered rows in a chapter

The unit of inference is policy x seed. A study registers its outcomes before the first unit is measured
(`workbook.studies.registration`), each with a threshold, the side on which the claim lies, and the smallest effect of
interest. What the words mean: `workbook.claims.inference`; which dozen rows carry the book: data/book/evidence.yaml.
"""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers; whoever reads the kept ledger loads nothing that measures
    "claims.kept": "kept_ledger registered",
    "claims.cards": "show_claims show_outcomes",
    "claims.computed": "CLAIMS SCALES format_ledger format_summary ledger ledger_json measurements",
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
