"""Studies: measurements too long for a chapter, made once per seed and committed with their manifests.

    python -m workbook measure flips --scale bundled      # writes data/results/flips/bundled/seed=0 ...

A study is a function Bench -> {name: table}; its tables have a row per prompt and condition, to be bootstrapped over
seeds and prompts (`workbook.statistics.nested_mean`). Chapters read them with `load_measured`, claims by `Tables`.
"""

from workbook.lazy import lazy_names

_HOMES = {
    "SCALES": "studies.scales",
    "OUTCOMES": "studies.sweeps",
    "Bench": "studies.bench",
    "Loop": "studies.loop",
    "Readings": "studies.loop",
    "Scale": "studies.scales",
    "Tables": "studies.claim",
    "effect": "studies.paired",
    "effects": "studies.paired",
    "load_measured": "studies.record",
    "load_records": "studies.sweeps",
    "load_runs": "studies.sweeps",
    "measure": "studies.record",
    "registered_outcome": "studies.registration",
    "seconds_to": "studies.sweeps",
    "train_in_memory": "studies.loop",
}
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
