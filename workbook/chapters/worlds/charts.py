"""Charts of worlds, of the tables in data/figures/worlds: value over tokens, trainers' settings."""

import altair as alt
import pandas as pd

from workbook.app.half_way import KNOWN_CREDIT, LOWER, PLAIN
from workbook.views.figures import forest, panels, series
from workbook.views.style import WIDTH, describe_rows, titled

NAMES = {
    KNOWN_CREDIT: "known credit",
    PLAIN: "plain",
    "positive_only": "positive-only",
    "negative_token_filtering": "filtering",
    "edit_mask": "edit mask",
    "entropy_minimization": "entropy",
    "sequence_logp": "log p",
    "majority_vote": "majority vote",
    LOWER: "permuted",
}
# what charts call the rule `PLAIN`
GROUP_ADVANTAGES = "group advantages"
SHOWN = (KNOWN_CREDIT, PLAIN, "positive_only", "entropy_minimization")
_COLUMNS = 4  # panels of a row
KINDS = ("measured", "held out: what came", "what an earlier line had said of it")


def map_chart(table: pd.DataFrame, worlds: dict[str, str] | None = None, title: str = ""):
    """A panel per world: exact held-out value against sampled tokens, a line per rule with its
    interval.

    table: worlds/map; world, rule, batch, thousands of tokens, mean, low, high.
    worlds: {world: what stands above its panel}, of those that are drawn; None draws all.
    """
    if worlds is not None:
        table = table[table["world"].isin(worlds)]
    # beside a world of the same name the rule would be mistaken for it
    shown = {name: GROUP_ADVANTAGES if name == NAMES[PLAIN] else name for name in NAMES.values()}
    table = table.assign(rule=table["rule"].map(shown))
    names = [name for name in shown.values() if name in set(table["rule"])]
    x, charts = alt.X("tokens:Q", title="tokens, thousands").axis(tickCount=2), []
    columns = min(_COLUMNS, table["world"].nunique())
    look = {"by": "rule", "names": names, "points": False, "clip": True, "height": 110}
    # beside each panel stand the labels of its axis
    look["width"] = WIDTH // columns - 47
    for place, (world, rows) in enumerate(table.groupby("world", sort=False)):
        y = alt.Y("mean:Q", title=None if place % _COLUMNS else "value").scale(domain=[0, 1])
        charts.append(series(rows, x, y, **look, title=(worlds or {}).get(world, world)))
    described = describe_rows(table[table["batch"] == table["batch"].max()], "world", "rule")
    return panels(
        [
            alt.hconcat(*charts[k : k + _COLUMNS], spacing=14)
            for k in range(0, len(charts), _COLUMNS)
        ],
        title or f"What each rule reaches in {table['batch'].max()} batches, world by world",
        "exact value on held-out prompts, each rule at its own rate; bands: 95 % t intervals over"
        " policies",
        f"Value at the end. {described}",
        vertical=True,
    )


SETTINGS = {  # of a trainer, with the world: how a chart calls it
    "length, ramble": "divide by length (wrong answers ramble)",
    "scaling, third": "divide by spread (a third wrong)",
    "scaling, low": "divide by spread (a low start)",
    "clip, third": "two clipped steps a batch (a third wrong)",
    "sampler, third": "sample with top_p 0.9 (a third wrong)",
}


def defaults_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Bias of the expected update under each of SETTINGS, with its own weights.

    table: worlds/defaults; default (a setting, with its world), weights, part, mean, low, high.
    """
    bias = table["part"].str.startswith("bias") & (table["weights"] == "its own weights")
    rows = table[bias].set_index("default").loc[list(SETTINGS)].reset_index()
    rows = rows.assign(setting=rows["default"].map(SETTINGS))
    x = alt.X("mean:Q", title="bias, share of the expected update's squared length")
    x = x.axis(format="%", tickCount=6)
    return titled(
        forest(rows, "setting", x, number=".1%", zero=True, number_at="end"),
        "Sampling with top_p 0.9 biases the gradient; dividing by length or spread hardly does",
        "95 % t intervals over ten policies",
        describe_rows(rows, "setting", interval=True),
    )
