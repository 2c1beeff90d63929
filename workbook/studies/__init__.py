"""Studies: measurements too long for a chapter, made once per seed and committed with their manifests.

    python -m workbook measure flips --scale bundled      # writes data/results/flips/bundled/seed=0 ...

A study is a function Bench -> {name: table}; its tables have a row per prompt and condition, to be bootstrapped over
seeds and prompts (`workbook.statistics.nested_mean`). Chapters read them with `load_measured`.
"""

from workbook.studies.bench import SCALES, Bench, Scale
from workbook.studies.record import load_measured, measure

__all__ = ["SCALES", "Bench", "Scale", "load_measured", "measure"]
