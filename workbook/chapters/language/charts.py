"""Charts of tuned language models: every question beside the family's answer, and what training
does by rule.
"""

from collections.abc import Sequence

import altair as alt
import pandas as pd

from workbook.chapters.worlds.charts import NAMES
from workbook.views.charts import intervals_chart
from workbook.views.figures import panels, series
from workbook.views.style import WIDTH, describe_rows

_ASKED = {  # key of a row whose unit is a share or a probability: what it is, for an axis
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
READ = {  # a reading of a policy: what it is, for a panel
    "value": "held-out reward",
    "pass_at_8": "right once in eight",
    "entropy": "entropy per token (nats)",
    "tax": "KL of style words (nats)",
    "wrong_length": "tokens of wrong answers",
    "right_length": "tokens of right answers",
}
BY_LENGTH = "1/T"  # a token weighs as loss type grpo has it
RULES = (*NAMES.values(), BY_LENGTH)
_FAMILY, _SIX = "the family, ten policies", "SmolLM2, six fine-tunes"


def beside_chart(table: pd.DataFrame):
    """Two intervals a question, the family's and that of the fine-tunes; table of
    `beside_family`.
    """
    rows = table[table["key"].isin(_ASKED)].set_index("key").reindex(_ASKED).dropna(subset="mean")
    columns = ["mean", "low", "high"]
    family = (
        rows[[f"{name}_family" for name in columns]].set_axis(columns, axis=1).assign(scale=_FAMILY)
    )
    both = pd.concat([family, rows[columns].assign(scale=_SIX)]).reset_index()
    both = both.assign(label=both["key"] + " · " + both["key"].map(_ASKED))
    title = "What a step does to six fine-tunes, beside the family"
    note = "bars: 95 % t intervals. Large batch: here 64 prompts, there 64 or 256. "
    note += "H4: here at the start, there at its worst"
    return intervals_chart(both, title, note, "share or probability")


def training_by_rule_chart(
    table: pd.DataFrame,
    readings: Sequence[str] = ("value", "pass_at_8", "entropy", "tax"),
    whom: str = "six fine-tunes",
):
    """A panel a reading over batches, a line per rule with its interval.

    table: language/training, of one task; reading, rule, batch, mean, low, high.
    """
    names = [name for name in RULES if name in set(table["rule"])]
    x = alt.X("batch:Q", title="generation batches")
    look = {"by": "rule", "names": names, "width": WIDTH // len(readings) - 42, "height": 150}
    charts = []
    for reading in readings:
        rows = table[table["reading"] == reading]
        y = alt.Y("mean:Q", title=None)
        charts.append(series(rows, x, y, title=READ[reading], **look))
    last = table[table["reading"].isin(readings) & (table["batch"] == table["batch"].max())]
    last = last.assign(read=last["reading"].map(READ))
    return panels(
        charts,
        f"What training makes of {whom}, by rule",
        "on held-out prompts; bands: 95 % t intervals over policies",
        f"At the end. {describe_rows(last, 'read', 'rule')}",
    )
