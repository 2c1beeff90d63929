"""How tokens look: scales of colours for the columns of a token table, inks, marks and texts.

A signed column (an advantage, a push) is blue above its center and orange below, with a sign on
each cell. A one-sided column (an entropy, a log-probability) runs from light at 0 to dark. Black or
white stands on every colour, whichever contrasts more. What took a token's gradient away
(`stopped`) is a mark, too, so that colour is not the only cue.
"""

import re
import unicodedata
from dataclasses import dataclass

import altair as alt
import numpy as np
import pandas as pd

from workbook.views.style import SERIES, limit, printable, printable_table, require_columns, visible

# columns that say where a token stands, and get no colour
PLACE_COLUMNS = ("group", "rollout", "position", "token", "token_id", "step", "prompt")
# by the column `stopped`; whatever else stopped a gradient is MASKED
_STOP_MARKS = {"": "", "no advantage": "", "clip low": "▼", "clip high": "▲"}
MASKED = "■"
MARK_MEANINGS = {"▲": "clipped above", "▼": "clipped below", MASKED: "masked"}
# characters of a cell, a category, a prompt, and a token in running text
MAX_CHARACTERS = 14
MAX_LEVEL = 24
MAX_PROMPT = 300
MAX_READ = 1_000
# Vega's scheme of this name, turned so that blue is above
BLUEORANGE = (
    *("#994a07", "#c5690d", "#e8932f", "#fbbf74", "#fce0ba", "#f2f0eb"),
    *("#d2e5ef", "#9dcae1", "#5da2cb", "#2f78b3", "#134b85"),
)
TEALS = ("#f2f0eb", "#d3e8e1", "#a9d6ca", "#78bfb0", "#4ba494", "#27877a", "#11695e", "#064b44")
# of a ramp; odd, so that one is the middle
SHADES = 65
# words in the names of columns that have a sign
_SIGNED_COLUMNS = {
    "advantage",
    "coupling",
    "credit",
    "dlogp",
    "push",
    "signal",
    "noise",
    "bias",
    "movement",
    "moves",
}
# the value that changes nothing, where it is not 0
_CENTERS = {"ratio": 1.0, "importance": 1.0}
# column: its name in words; what blue and orange mean, or what darker means on a one-sided scale
COLUMN_WORDS = {
    "dlogp": ("change of log-probability", "the token became more likely", "less likely"),
    "moves pinned": (
        "what it does to the pinned token",
        "makes the pinned token more likely",
        "less likely",
    ),
    "push": ("push, weight × advantage", "pushed up", "pushed down"),
    "advantage": ("advantage of its rollout", "better than its group's mean", "worse"),
    "credit": ("true credit", "raises the expected reward", "lowers it"),
    "ratio": ("probability ratio", "more likely than when it was sampled", "less likely"),
    "value": ("value, the reward to expect once it stands", "the higher"),
    "entropy": ("entropy, nats", "the less sure the model was"),
    "logp": ("log-probability, nats", "the less likely it was"),
    "logp_after": ("log-probability after the step, nats", "the less likely it is"),
    "category": ("class of word",),
    "stopped": ("what took its gradient away",),
}
# columns of one unit share a scale when they stand side by side
COLUMN_UNITS = {"dlogp": "nats", "moves pinned": "nats"}
# superscripts, so that no sign looks like an arithmetic token
PLUS = "⁺"
MINUS = "⁻"


def ramp(colors: tuple[str, ...]) -> list[str]:
    """SHADES evenly spaced colours through those given, mixed in sRGB."""
    # (colours, 3)
    known = np.array([_channels(color) for color in colors], dtype=float)
    places = np.linspace(0, len(colors) - 1, SHADES)
    # (SHADES, 3)
    mixed = np.stack(
        [np.interp(places, range(len(colors)), channel) for channel in known.T], axis=1
    )
    return ["#" + "".join(f"{int(x + 0.5):02x}" for x in row) for row in mixed]


def _channels(color: str) -> list[int]:
    """Red, green and blue of "#rrggbb", 0 to 255."""
    return [int(color[start : start + 2], 16) for start in (1, 3, 5)]


def contrast_ratio(one: str, other: str) -> float:
    """Contrast of two colours, 1 to 21 (WCAG 2: relative luminances, 0.05 added to both)."""

    def luminance(color: str) -> float:
        shares = [channel / 255 for channel in _channels(color)]
        red, green, blue = (
            x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in shares
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return round((high + 0.05) / (low + 0.05), 4)


def ink(fill: str) -> str:
    """Black or white, whichever contrasts more with a colour.

    It is at least 4.58 to 1, since the two contrasts multiply to 21.
    """
    return max(("#000000", "#ffffff"), key=lambda color: contrast_ratio(color, fill))


_RAMPS = {"diverging": ramp(BLUEORANGE), "sequential": ramp(TEALS), "categories": list(SERIES)}
PALETTE = {
    name: {"fills": fills, "inks": [ink(fill) for fill in fills]} for name, fills in _RAMPS.items()
}


@dataclass(frozen=True)
class ColorScale:
    """Colours of a column of numbers.

    side: 0 for a diverging scale, from center - limit to center + limit; +1 or -1 for a sequential
    one, from 0 to side times limit.
    """

    limit: float
    center: float = 0.0
    side: int = 0

    @property
    def palette(self) -> dict[str, list[str]]:
        return PALETTE["sequential" if self.side else "diverging"]

    @property
    def ends(self) -> tuple[float, float]:
        if self.side:
            end = self.side * self.limit
            return min(0.0, end), max(0.0, end)
        return self.center - self.limit, self.center + self.limit

    def shades(self, values) -> np.ndarray:
        """The number of each value's shade in its ramp, -1 where it is unknown."""
        offset = (np.asarray(values, dtype=float) - self.center) / self.limit
        # from 0 at the ramp's first shade to 1 at its last
        place = offset * self.side if self.side else (offset + 1) / 2
        rounded = np.nan_to_num(np.clip(place, 0, 1) * (SHADES - 1) + 0.5).astype(int)
        return np.where(np.isnan(place), -1, rounded)

    def signs(self, values) -> np.ndarray:
        """PLUS above the center, MINUS below; "" at it, where unknown, and on a one-sided scale."""
        values = np.asarray(values, dtype=float)
        if self.side:
            return np.full(values.shape, "")
        return np.select([values > self.center, values < self.center], [PLUS, MINUS], "")

    def inks(self, values) -> list[str]:
        """The ink that can be read on each value's colour, black where it is unknown."""
        return [
            self.palette["inks"][shade] if shade >= 0 else "#000000"
            for shade in self.shades(values)
        ]

    def vega(self) -> alt.Scale:
        colors = self.palette["fills"]
        if self.side < 0:
            colors = colors[::-1]
        return alt.Scale(
            domain=np.linspace(*self.ends, SHADES).tolist(),
            range=colors,
            clamp=True,
            interpolate="rgb",
        )

    def format(self, value: float) -> str:
        """A value as text, with its sign on a diverging scale around 0; "unknown" for no number."""
        return number(value, signed=not self.side and not self.center)


def legend_words(name: str, scale: ColorScale) -> str:
    """What the colours of a column of numbers mean."""
    meanings = COLUMN_WORDS.get(name, ())[1:]
    if scale.side:
        side = "above" if scale.side > 0 else "below"
        darker = meanings[0] if meanings else f"the further {side} zero"
        return f"the darker, {darker}"
    middle = f"{scale.center:g}" if scale.center else "zero"
    up, down = meanings if len(meanings) == 2 else (f"above {middle}", "below")
    return f"blue (+): {up}; orange (−): {down}"


def scale_of(name: str, *columns: pd.Series) -> ColorScale:
    """One scale for a column of several tables.

    It is diverging for a column whose name is of what has a sign, and where values have both.
    """
    center = _CENTERS.get(name, 0.0)
    most = max(limit(column.to_numpy(dtype=float) - center) for column in columns)
    low = np.nanmin([0.0, *(column.min() for column in columns)])
    high = np.nanmax([0.0, *(column.max() for column in columns)])
    words = re.split(r"[^a-z]+", name.lower())
    has_sign = name in _CENTERS or not _SIGNED_COLUMNS.isdisjoint(words)
    if has_sign or low < 0 < high or low == high:
        return ColorScale(most, center)
    return ColorScale(most, center, side=1 if high > 0 else -1)


def number(value, signed: bool = False, form: str = ".4g") -> str:
    """A number as text, with a true minus; "unknown" for what is none."""
    if value is None or pd.isna(value):
        return "unknown"
    sign = ""
    if value < 0:
        sign = "−"
    elif signed and value > 0:
        sign = "+"
    return f"{sign}{abs(value):{form}}"


def is_number(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def to_drawable(table: pd.DataFrame) -> pd.DataFrame:
    """A token table that can be drawn; with `dlogp`, what a step moved, if it holds both ends.

    Raises ValueError for missing columns, no rows, and groups or positions that are no whole
    numbers.
    """
    require_columns(table, ("group", "rollout", "position", "token"), "TokenHeatmap")
    if not len(table):
        raise ValueError("TokenHeatmap needs a token to show; the table has no rows.")
    for name in ("group", "position"):
        values = pd.to_numeric(table[name], errors="coerce")
        is_whole = (values % 1 == 0).all() and values.abs().max() < 2**31
        if not is_whole or (name == "position" and values.min() < 0):
            raise ValueError(f"The column {name} of the table must hold whole numbers.")
    if {"logp", "logp_after"} <= set(table) and "dlogp" not in table:
        table = table.assign(dlogp=table["logp_after"] - table["logp"])
    return printable_table(table)


def mark(stopped) -> str:
    return "" if pd.isna(stopped) else _STOP_MARKS.get(str(stopped), MASKED)


def level_name(name: str, level: str) -> str:
    """A category's value as legends name it."""
    if level.strip():
        return visible(level, MAX_LEVEL, space=" ")
    return "not stopped" if name == "stopped" else "(empty)"


def readable(token) -> str:
    """A token's text as its model wrote it; what can't be seen is shown by its number."""

    def is_hidden(c: str) -> bool:
        kind = unicodedata.category(c)
        return c not in "\n\t" and (kind[0] == "C" or kind in ("Zl", "Zp"))

    text = "".join(f"\\u{ord(c):04x}" if is_hidden(c) else c for c in str(token))
    return text if len(text) <= MAX_READ else text[: MAX_READ - 1] + "…"


def are_words(tokens: pd.Series) -> bool:
    """Whether tokens are whole words, with a space between any two: none has one at an end."""
    texts = tokens.astype(str)
    return not (texts.str.strip() != texts).any()


def rank_levels(values: pd.Series, everywhere: pd.Series) -> tuple[list[str], np.ndarray]:
    """The levels of a category in its whole table, and the number of each value's level.

    It is NaN where the value is unknown.
    """
    levels = sorted(map(str, everywhere.dropna().unique()))
    rank_of = {level: rank for rank, level in enumerate(levels)}
    ranks = [rank_of[str(value)] if pd.notna(value) else np.nan for value in values]
    return levels, np.array(ranks, dtype=float)


def rollout_names(rows: pd.DataFrame) -> pd.Series:
    """The rollout of each row as its label: marked right or wrong, or with its reward, if known."""
    names = "rollout " + rows["rollout"].map(printable).astype(object)
    if "reward" in rows and is_number(rows["reward"]):
        rewards = rows["reward"]
        if rewards.isin([0, 1]).all():
            return rewards.map({1: "✓ ", 0: "✗ "}) + names
        names = names + "  reward " + rewards.map(lambda reward: number(reward, form=".2f"))
    return names


def prompt_and_answer(rows: pd.DataFrame) -> tuple[str, str]:
    """The prompt of a group's rows and its right answer, "" where unknown.

    They stand in the column prompt, or in attrs["prompts"], which `Rollouts.token_table` writes.
    """
    prompts = rows["prompt"].dropna().unique() if "prompt" in rows else []
    known = rows.attrs.get("prompts", {}).get(str(rows["group"].iloc[0]), ("", ""))
    prompt, answer = (prompts[0], known[1]) if len(prompts) else known
    return visible(prompt, MAX_PROMPT, space=" "), visible(answer, MAX_LEVEL, space=" ")


def name_and_words(name: str) -> dict[str, str]:
    """A column's name, and the same in words."""
    words = f"{COLUMN_WORDS[name][0]} ({name})" if name in COLUMN_WORDS else name
    return {"name": name, "words": words}


def wire(rows: pd.DataFrame, table: pd.DataFrame, ends: list[pd.DataFrame]) -> dict:
    """One group's `rows` of a table, as the page gets them.

    ends: tables whose columns share one scale, as those of a run's first and last step do, so that
    colours can be compared.

    asked: prompt and right answer.
    shape: tokens, positions, labels of the rows, texts of the kinds of tokens (short, and as
    written), and whether these are words.
    columns: name and words; of numbers limit, center, side, unit and meaning; of texts levels and
    their marks.
    values: float32, columns x tokens; a text is the number of its level.
    places: int32, index into texts, row and position of each token.
    """
    kinds, _ = pd.factorize(rows["token_id"] if "token_id" in rows else rows["token"])
    first_texts = rows["token"].astype(object).groupby(kinds).first()
    rollouts, _ = pd.factorize(rows["rollout"], use_na_sentinel=False)

    columns = []
    values = []
    for name in rows.columns.difference(PLACE_COLUMNS, sort=False):
        if is_number(rows[name]):
            columns.append(_number_column(name, table, ends))
            values.append(rows[name].to_numpy(dtype=float))
        else:
            levels, ranks = rank_levels(rows[name], table[name])
            columns.append(_category_column(name, levels))
            values.append(ranks)
    # what is beyond float32 becomes infinite
    with np.errstate(over="ignore"):
        values = np.array(values).astype("<f4")

    shape = {
        "tokens": len(rows),
        "positions": int(rows["position"].max()) + 1,
        "rows": rollout_names(rows[~rows["rollout"].duplicated()]).tolist(),
        "texts": [visible(text, MAX_CHARACTERS) for text in first_texts],
        "raw": [readable(text) for text in first_texts],
        "words": are_words(table["token"]),
    }
    return {
        "asked": prompt_and_answer(rows),
        "shape": shape,
        "columns": columns,
        "values": values.tobytes(),
        "places": np.stack([kinds, rollouts, rows["position"]]).astype("<i4").tobytes(),
    }


def _number_column(name: str, table: pd.DataFrame, ends: list[pd.DataFrame]) -> dict:
    """A column of numbers as the page gets it: its name, scale, unit and meaning."""
    compared = [one[name] for one in ends if name in one and is_number(one[name])]
    scale = scale_of(name, *(compared or [table[name]]))
    return {
        **name_and_words(name),
        "limit": scale.limit,
        "center": scale.center,
        "side": scale.side,
        "unit": COLUMN_UNITS.get(name, name),
        "meaning": legend_words(name, scale),
    }


def _category_column(name: str, levels: list[str]) -> dict:
    """A column of texts as the page gets it: name, levels, and marks of what stopped a token."""
    column = {**name_and_words(name), "levels": [level_name(name, level) for level in levels]}
    if name == "stopped":
        column["marks"] = [mark(level) for level in levels]
    return column
