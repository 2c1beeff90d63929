"""Charts of tuned language models: every question beside the family's answer."""

import pandas as pd

from workbook.views.charts import intervals_chart

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
    "H2": "coupling on one unsure word, output layer",
    "H2 all weights": "… by all weights",
    "H2 other prompts": "… between prompts",
    "H4": "output layer predicts the sign, all tokens",
    "H4 moved": "… of tokens that move",
    "H4 unsure": "… of unsure tokens",
}
FAMILY, SIX = "the family, ten policies", "SmolLM2, six fine-tunes"


def beside_chart(table: pd.DataFrame):
    """Two intervals a question, the family's and that of the fine-tunes; table of `claims.beside_family`."""
    rows = table[table["key"].isin(ASKED)].set_index("key").reindex(ASKED).dropna(subset="mean")
    columns = ["mean", "low", "high"]
    family = rows[[f"{name}_family" for name in columns]].set_axis(columns, axis=1).assign(scale=FAMILY)
    both = pd.concat([family, rows[columns].assign(scale=SIX)]).reset_index()
    both = both.assign(label=both["key"] + " · " + both["key"].map(ASKED))
    title = "What a step does to six fine-tunes, beside the family"
    note = "bars: 95 % t intervals. Large batch: here 64 prompts, there 64 or 256. "
    note += "H4: here at the start, there at its worst"
    return intervals_chart(both, title, note, "share or probability")
