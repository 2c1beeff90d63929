"""Language models at which something is decided: SmolLM2-135M, tuned to sums in a sentence, six policies (chapter 10).

The questions are those of other rooms, on another bench: their functions measure, and their measures are judged by
their thresholds.
"""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "topics.language.claims": "beside_family",
    "topics.language.study": "probes_study",
    "topics.language.training": "SampledReadings rates_study training_study",
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
