"""The charts of a report: narrow, so that they can be read on a phone."""

from __future__ import annotations

import altair as alt
import pandas as pd

from workbook.views.figures import bars, by_sign, series
from workbook.views.style import ACCENT, NEGATIVE, NEUTRAL, POSITIVE, SERIES, describe_rows, titled, visible

WIDTH = 380


def signal_chart(signal: pd.DataFrame) -> alt.LayerChart:
    """Shares of groups by the rewards that their rollouts have, over steps."""
    names = {"signal": "an advantage", "highest": "highest reward only", "lowest": "lowest reward only"}
    table = signal.melt("step", list(names), "rewards", "mean").replace({"rewards": names})
    y = alt.Y("mean:Q", title="share of groups", axis=alt.Axis(format="%")).scale(domain=[0, 1])
    titles = ("Groups that carried signal", "and those of one reward, from which nothing is learned")
    return _over_steps(table, "rewards", y, titles, ".0%", SERIES, len(signal) <= 30)


def tokens_chart(tokens: pd.DataFrame) -> alt.LayerChart:
    """Pushes up and down on each token, and their net."""
    names = _unique_names(tokens["token"])
    table = tokens.assign(label=names)
    sides = table.melt(["label", "count", "net"], ["up", "down"], "side", "mean")
    x = alt.X("mean:Q", title="sum of push")
    tick = (
        alt.Chart(table).mark_tick(color="black", thickness=3, size=15).encode(x="net:Q", y=alt.Y("label:N", sort=None))
    )
    chart = bars(
        sides,
        "label",
        x,
        color=by_sign("mean"),
        intervals=False,
        over=[tick],
        width=WIDTH,
        height=alt.Step(20),
        shown=["count", "net"],
    )
    return titled(
        chart,
        "Tokens with the most |push|",
        "blue: pushed up; orange: pushed down; black: the two together",
        describe_rows(table.rename(columns={"net": "mean"}), "label", form="+.3g"),
    )


def residual_chart(residuals: pd.DataFrame) -> alt.LayerChart:
    """Residual of shared places over steps, and what equal weights would leave."""
    names = {"residual": "as trained", "equal": "if weights were equal"}
    table = residuals.melt("step", list(names), "which", "mean").replace({"which": names}).dropna()
    y = alt.Y("mean:Q", title="mean residual (0 = cancels)").scale(domainMin=0, nice=True)
    titles = ("What remains of the push on shared tokens", "mean over places that several rollouts of a group have")
    return _over_steps(table, "which", y, titles, ".3f", [ACCENT, NEUTRAL], len(residuals) <= 30)


def movement_chart(movement: pd.DataFrame, column: str) -> alt.LayerChart:
    """Entropy, or the change of log p by a step, over steps, for tokens of positive and of negative advantage."""
    title, y = {
        "entropy": ("Entropy of the tokens trained on", "mean entropy (nats)"),
        "change": ("What a step did to log p", "mean change of log p (nats)"),
    }[column]
    table = movement.rename(columns={column: "mean"})[["step", "sign", "mean"]].sort_values("sign", ascending=False)
    titles = (title, "by the sign of the token's advantage")
    look = {"names": ["positive", "negative"], "zero": column == "change"}
    return _over_steps(table, "sign", y, titles, ".4f", [POSITIVE, NEGATIVE], len(table) <= 60, **look)


def _over_steps(
    table: pd.DataFrame, of: str, y, titles: tuple[str, str], form: str, colors: list[str], points: bool, **look
) -> alt.LayerChart:
    """A line over steps for each value of the column `of`; titles: of the chart, and the line below it."""
    x = alt.X("step:Q", title="optimizer step", axis=alt.Axis(tickMinStep=1, format="d"))
    look |= {"spread": None, "points": points, "dash": of, "colors": colors, "width": WIDTH, "height": 170}
    last = table[table["step"] == table["step"].max()]
    return titled(series(table, x, y, of, **look), *titles, "At the last step: " + describe_rows(last, of, form=form))


def _unique_names(texts: pd.Series) -> list[str]:
    """Texts of tokens for an axis, each another: those that look alike are numbered."""
    names, seen = [], {}
    for text in texts:
        name = visible(text, 14)
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return names
