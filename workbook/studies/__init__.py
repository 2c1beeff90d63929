"""Studies: measurements too long for a chapter, made once per seed and committed with their
manifests.

    python -m workbook measure dose --scale family  # adds units to data/results/dose/dose.*.parquet

A study is a function StudyUnit -> {name: table}; its tables have a row per prompt and condition,
judged by unit. Claims and figures read them by `Tables` and `load_measured`.
"""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "studies.unit": "StudyUnit",
    "studies.ledger": "CLAIMS SCALES compute_ledger ledger_json measurements",
    "studies.record": "FAMILY Tables load_measured measure",
    "studies.registration": "SCALES Setting WORLD_SCALES read_registration registered_outcome",
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
