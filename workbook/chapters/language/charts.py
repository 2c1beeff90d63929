"""A chart of tuned language models: what training does, by rule."""

from collections.abc import Sequence

import altair as alt
import pandas as pd

from workbook.chapters.worlds.charts import NAMES
from workbook.views.figures import panels, series
from workbook.views.style import WIDTH, describe_rows

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
# {a rule in the tables: in the chart}, where they differ
_LABELS = {
    "plain": "group advantages",
    "positive-only": "right rollouts alone",
    "entropy": "entropy minimisation",
    "permuted": "permuted rewards",
}


def training_by_rule_chart(
    table: pd.DataFrame,
    readings: Sequence[str] = ("value", "pass_at_8", "entropy", "tax"),
    title: str = "Rewards teach six fine-tunes, permuted rewards do not",
):
    """A panel a reading over batches, a line per rule with its interval.

    table: language/training, of one task; reading, rule, batch, mean, low, high.
    """
    rules = [name for name in RULES if name in set(table["rule"])]
    names = [_LABELS.get(name, name) for name in rules]
    table = table.assign(rule=table["rule"].replace(_LABELS))
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
        title,
        "on held-out prompts; bands: 95 % t intervals over policies",
        f"At the end. {describe_rows(last, 'read', 'rule')}",
    )
