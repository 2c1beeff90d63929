"""Studies: measurements too long for a chapter, made once per seed and committed with their manifests.

    python -m workbook measure dose --scale family      # writes data/results/dose/family/seed=0 ...

A study is a function Bench -> {name: table}; its tables have a row per prompt and condition, judged
by unit. Chapters read them with `load_measured`, claims by `Tables`.
"""

from workbook.lazy import lazy_names

_HOMES = {
    "SCALES": "studies.registration",
    "Bench": "studies.bench",
    "Loop": "studies.loop",
    "Readings": "studies.loop",
    "Scale": "studies.registration",
    "Tables": "studies.claim",
    "data_path": "places",
    "load_measured": "studies.record",
    "measure": "studies.record",
    "read_registration": "studies.registration",
    "registered_outcome": "studies.registration",
    "train_in_memory": "studies.loop",
}
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
