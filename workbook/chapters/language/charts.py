"""Charts of tuned language models: every question beside the family's answer, and what training
does by rule.
"""

from collections.abc import Sequence

import altair as alt
import pandas as pd

from workbook.chapters.worlds.charts import NAMES
from workbook.statistics import unit_curve
from workbook.studies.language.training import LENGTH
from workbook.views.charts import intervals_chart
from workbook.views.figures import panels, series
from workbook.views.style import describe_rows

ASKED = {  # key of a row whose unit is a share or a probability: what it is, for an axis
    "C1": "other sign takes of style words, prompt alone",
    "C1 place": "… of those at the same position",
    "C2": "… of style words, in a large batch",
    "C3": "other sign takes of right results, prompt alone",
    "C3 batch": "… of right results, in a large batch",
    "C4": "of style words, beyond permuted rewards",
    "C4 right": "of right results, beyond permuted rewards",
    "H1": "distance of the two signs' shares, large batch",
    "H1 alone": "… prompt alone",
    "H1 follows": "a token follows its own sign, large batch",
    "H2": "coupling on one word below one half, output layer",
    "H2 all weights": "… by all weights",
    "H2 other prompts": "… between prompts",
    "H4": "output layer predicts the sign, all tokens",
    "H4 moved": "… of tokens that move",
    "H4 unsure": "… of tokens below one half",
}
READ = {  # a column of `SampledReadings`: what it is, for a panel
    "value": "held-out reward",
    "pass_at_8": "right once in eight",
    "entropy": "entropy per token (nats)",
    "tax": "KL of style words (nats)",
    "wrong_length": "tokens of wrong answers",
    "right_length": "tokens of right answers",
}
RULES = NAMES | {LENGTH: "1/T"}
FAMILY, SIX = "the family, ten policies", "SmolLM2, six fine-tunes"


def beside_chart(table: pd.DataFrame):
    """Two intervals a question, the family's and that of the fine-tunes; table of
    `claims.beside_family`.
    """
    rows = table[table["key"].isin(ASKED)].set_index("key").reindex(ASKED).dropna(subset="mean")
    columns = ["mean", "low", "high"]
    family = (
        rows[[f"{name}_family" for name in columns]].set_axis(columns, axis=1).assign(scale=FAMILY)
    )
    both = pd.concat([family, rows[columns].assign(scale=SIX)]).reset_index()
    both = both.assign(label=both["key"] + " · " + both["key"].map(ASKED))
    title = "What a step does to six fine-tunes, beside the family"
    note = "bars: 95 % t intervals. Large batch: here 64 prompts, there 64 or 256. "
    note += "H4: here at the start, there at its worst"
    return intervals_chart(both, title, note, "share or probability")


def training_chart(
    runs: pd.DataFrame,
    columns: Sequence[str] = ("value", "pass_at_8", "entropy", "tax"),
    whom: str = "six fine-tunes",
):
    """A panel a reading over batches, a line per rule with its interval; runs: table of study
    smollm2_training.
    """
    runs = runs.assign(rule=runs["arm"].map(RULES))
    names = [name for name in RULES.values() if name in set(runs["rule"])]
    curves = {column: unit_curve(runs, "batch", column, by="rule") for column in columns}
    x, look = (
        alt.X("batch:Q", title="generation batches"),
        {"by": "rule", "names": names, "width": 150, "height": 150},
    )
    charts = [
        series(curve, x, alt.Y("mean:Q", title=None), title=READ[column], **look)
        for column, curve in curves.items()
    ]
    last = pd.concat([curve.assign(read=READ[column]) for column, curve in curves.items()])
    described = describe_rows(last[last["batch"] == last["batch"].max()], "read", "rule")
    title = f"What training makes of {whom}, by rule"
    return panels(
        charts,
        title,
        "on held-out prompts; bands: 95 % t intervals over policies",
        f"At the end. {described}",
    )
