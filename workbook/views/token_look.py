"""How tokens look: a scale of colours for each column of a token table, the ink on each colour,
signs, marks and texts.

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

# where a token stands: no colour
PLACES = ("group", "rollout", "position", "token", "token_id", "step", "prompt")
MARKS = {"": "", "no advantage": "", "clip low": "▼", "clip high": "▲"}  # by `stopped`; else MASKED
MASKED = "■"
MEANINGS = {"▲": "clipped above", "▼": "clipped below", MASKED: "masked"}
# of a cell, a category, a prompt, a read token
MAX_CHARACTERS, MAX_LEVEL, MAX_PROMPT, MAX_READ = 14, 24, 300, 1_000
BLUEORANGE = (
    *("#994a07", "#c5690d", "#e8932f", "#fbbf74", "#fce0ba", "#f2f0eb"),
    *("#d2e5ef", "#9dcae1", "#5da2cb", "#2f78b3", "#134b85"),
)  # Vega's scheme of this name, blue above
TEALS = ("#f2f0eb", "#d3e8e1", "#a9d6ca", "#78bfb0", "#4ba494", "#27877a", "#11695e", "#064b44")
SHADES = 65  # of a ramp; odd, so that one is the middle
SIGNED = {
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
CENTERS = {"ratio": 1.0, "importance": 1.0}  # the value that changes nothing; else 0
# column: its name in words; what blue and orange mean, or what darker means on a one-sided scale
WORDS = {
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
UNITS = {"dlogp": "nats", "moves pinned": "nats"}
PLUS, MINUS = "⁺", "⁻"  # superscripts, so that no sign looks like an arithmetic token


def ramp(colors: tuple[str, ...]) -> list[str]:
    """SHADES evenly spaced colours through those given, mixed in sRGB."""
    known = np.array(
        [[int(color[i : i + 2], 16) for i in (1, 3, 5)] for color in colors], dtype=float
    )
    places = np.linspace(0, len(colors) - 1, SHADES)
    channels = np.stack(
        [np.interp(places, range(len(colors)), known[:, k]) for k in range(3)], axis=1
    )
    return ["#" + "".join(f"{int(x + 0.5):02x}" for x in row) for row in channels]


def contrast_ratio(one: str, other: str) -> float:
    """Contrast of two colours, 1 to 21 (WCAG 2: relative luminances, 0.05 added to both)."""

    def luminance(color: str) -> float:
        shares = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return round((high + 0.05) / (low + 0.05), 4)


def ink(fill: str) -> str:
    """Black or white, whichever can be read on a colour: at least 4.58 to 1, since the two
    contrasts multiply to 21.
    """
    return max(("#000000", "#ffffff"), key=lambda color: contrast_ratio(color, fill))


RAMPS = {"diverging": ramp(BLUEORANGE), "sequential": ramp(TEALS), "categories": list(SERIES)}
PALETTE = {
    name: {"fills": fills, "inks": [ink(fill) for fill in fills]} for name, fills in RAMPS.items()
}


@dataclass(frozen=True)
class ColorScale:
    """Colours of a column of numbers.

    side 0: diverging, from center - limit to center + limit.  side +1 or -1: sequential, from 0 to
    side times limit.
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
            return min(0.0, self.side * self.limit), max(0.0, self.side * self.limit)
        return self.center - self.limit, self.center + self.limit

    def shades(self, values) -> np.ndarray:
        """The number of each value's shade in its ramp, -1 where it is unknown."""
        off = (np.asarray(values, dtype=float) - self.center) / self.limit
        place = off * self.side if self.side else (off + 1) / 2
        known = np.nan_to_num(np.clip(place, 0, 1) * (SHADES - 1) + 0.5)
        return np.where(np.isnan(place), -1, known.astype(int))

    def signs(self, values) -> np.ndarray:
        """PLUS above the center and MINUS below; "" at it, where unknown, and on a one-sided scale."""
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
        colors = self.palette["fills"][:: -1 if self.side < 0 else 1]
        return alt.Scale(
            domain=np.linspace(*self.ends, SHADES).tolist(),
            range=colors,
            clamp=True,
            interpolate="rgb",
        )

    def format(self, value: float) -> str:
        """A value as text: with its sign on a diverging scale around 0, "unknown" for what is no
        number.
        """
        return number(value, signed=not self.side and not self.center)


def legend_words(name: str, scale: ColorScale) -> str:
    """What the colours of a column of numbers mean."""
    meanings = WORDS.get(name, ())[1:]
    if scale.side:
        further = f"the further {'above' if scale.side > 0 else 'below'} zero"
        return f"the darker, {meanings[0] if meanings else further}"
    middle = f"{scale.center:g}" if scale.center else "zero"
    up, down = meanings if len(meanings) == 2 else (f"above {middle}", "below")
    return f"blue (+): {up}; orange (−): {down}"


def scale_of(name: str, *columns: pd.Series) -> ColorScale:
    """One scale for a column of several tables; one-sided where no value is of the other sign, and
    the name says so.
    """
    center = CENTERS.get(name, 0.0)
    most = max(limit(column.to_numpy(dtype=float) - center) for column in columns)
    low = np.nanmin([0.0, *(column.min() for column in columns)])
    high = np.nanmax([0.0, *(column.max() for column in columns)])
    signed = name in CENTERS or bool(SIGNED & set(re.split(r"[^a-z]+", name.lower())))
    return ColorScale(
        most, center, 0 if signed or low < 0 < high or low == high else 1 if high > 0 else -1
    )


def number(value, signed: bool = False, form: str = ".4g") -> str:
    """A number as text, with a true minus; "unknown" for what is none."""
    if value is None or pd.isna(value):
        return "unknown"
    text = f"{abs(value):{form}}"
    return f"−{text}" if value < 0 else f"+{text}" if signed and value > 0 else text


def is_number(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def to_drawable(table: pd.DataFrame) -> pd.DataFrame:
    """A token table that can be drawn; with what a step moved, `dlogp`, if it holds both ends.

    Raises ValueError for missing columns, no rows, and rows without a group and a position that are
    whole numbers.
    """
    require_columns(table, ("group", "rollout", "position", "token"), "TokenHeatmap")
    if not len(table):
        raise ValueError("TokenHeatmap needs a token to show; the table has no rows.")
    for name in ("group", "position"):
        values = pd.to_numeric(table[name], errors="coerce")
        if (
            not (values % 1 == 0).all()
            or values.abs().max() >= 2**31
            or (name == "position" and values.min() < 0)
        ):
            raise ValueError(f"The column {name} of the table must hold whole numbers.")
    if {"logp", "logp_after"} <= set(table) and "dlogp" not in table:
        table = table.assign(dlogp=table["logp_after"] - table["logp"])
    return printable_table(table)


def mark(stopped) -> str:
    return "" if pd.isna(stopped) else MARKS.get(str(stopped), MASKED)


def level_name(name: str, level: str) -> str:
    """A category's value as legends name it."""
    if level.strip():
        return visible(level, MAX_LEVEL, space=" ")
    return "not stopped" if name == "stopped" else "(empty)"


def readable(token) -> str:
    """A token's text as its model wrote it, spaces and line breaks kept, what can't be seen by its
    number.
    """

    def is_hidden(c: str) -> bool:
        kind = unicodedata.category(c)
        return c not in "\n\t" and (kind[0] == "C" or kind in ("Zl", "Zp"))

    text = "".join(f"\\u{ord(c):04x}" if is_hidden(c) else c for c in str(token))
    return text if len(text) <= MAX_READ else text[: MAX_READ - 1] + "…"


def are_words(tokens: pd.Series) -> bool:
    """Whether tokens are whole words, so that a space belongs between any two: none begins or ends
    with one.
    """
    texts = tokens.astype(str)
    return not (texts.str.strip() != texts).any()


def rank_levels(values: pd.Series, everywhere: pd.Series) -> tuple[list[str], np.ndarray]:
    """The levels of a category in its whole table, and the number of each value's level, NaN where
    it is unknown.
    """
    levels = sorted(map(str, everywhere.dropna().unique()))
    ranks = {level: rank for rank, level in enumerate(levels)}
    return levels, np.array(
        [ranks[str(value)] if pd.notna(value) else np.nan for value in values], dtype=float
    )


def rollout_names(rows: pd.DataFrame) -> pd.Series:
    """The rollout of each row as its label: right or wrong where rewards are 1 or 0, else with its
    reward, if known.
    """
    names = "rollout " + rows["rollout"].map(printable).astype(object)
    if "reward" in rows and is_number(rows["reward"]):
        rewards = rows["reward"]
        if rewards.isin([0, 1]).all():
            return rewards.map({1: "✓ ", 0: "✗ "}) + names
        names = names + "  reward " + rewards.map(lambda reward: number(reward, form=".2f"))
    return names


def asked(rows: pd.DataFrame) -> tuple[str, str]:
    """The prompt of a group's rows and its right answer, "" where unknown: of the column prompt, or
    of attrs["prompts"], which `Rollouts.token_table` writes."""
    prompts = rows["prompt"].dropna().unique() if "prompt" in rows else []
    known = rows.attrs.get("prompts", {}).get(str(rows["group"].iloc[0]), ("", ""))
    prompt, answer = (prompts[0], known[1]) if len(prompts) else known
    return visible(prompt, MAX_PROMPT, space=" "), visible(answer, MAX_LEVEL, space=" ")


def named(name: str) -> dict[str, str]:
    """A column's name, and the same in words."""
    return {"name": name, "words": f"{WORDS[name][0]} ({name})" if name in WORDS else name}


def wire(rows: pd.DataFrame, table: pd.DataFrame, ends: list[pd.DataFrame]) -> dict:
    """One group's `rows` of a table, as the page gets them.

    ends: tables whose columns share one scale, as those of a run's first and last step do, so that
    colours can be compared.  asked: prompt and right answer.  shape: tokens, positions, labels of
    the rows, texts of the kinds of tokens (short, and as written), and whether these are
    words.  columns: name, words, and limit, center, side, unit and meaning, or levels and their
    marks.  values: float32, columns x tokens; a text is the number of its level.
    places: int32, index into texts, row, position of each token.
    """
    kinds, _ = pd.factorize(rows["token_id"] if "token_id" in rows else rows["token"])
    first = rows["token"].astype(object).groupby(kinds).first()
    rollouts, _ = pd.factorize(rows["rollout"], use_na_sentinel=False)
    columns, values = [], []
    for name in rows.columns.difference(PLACES, sort=False):
        if is_number(rows[name]):
            others = [one[name] for one in ends if name in one and is_number(one[name])] or [
                table[name]
            ]
            scale = scale_of(name, *others)
            ends_at = {"limit": scale.limit, "center": scale.center, "side": scale.side}
            columns.append(
                named(name)
                | ends_at
                | {
                    "unit": UNITS.get(name, name),
                    "meaning": legend_words(name, scale),
                }
            )
            values.append(rows[name].to_numpy(dtype=float))
        else:
            levels, ranks = rank_levels(rows[name], table[name])
            marks = {"marks": [mark(level) for level in levels]} if name == "stopped" else {}
            columns.append(
                named(name) | {"levels": [level_name(name, level) for level in levels], **marks}
            )
            values.append(ranks)
    with np.errstate(over="ignore"):  # beyond float32 is infinite
        values = np.array(values).astype("<f4")
    return {
        "asked": asked(rows),
        "shape": {
            "tokens": len(rows),
            "positions": int(rows["position"].max()) + 1,
            "rows": rollout_names(rows[~rows["rollout"].duplicated()]).tolist(),
            "texts": [visible(text, MAX_CHARACTERS) for text in first],
            "raw": [readable(text) for text in first],
            "words": are_words(table["token"]),
        },
        "columns": columns,
        "values": values.tobytes(),
        "places": np.stack([kinds, rollouts, rows["position"]]).astype("<i4").tobytes(),
    }
