"""What all charts share: palette, titles, descriptions, visible texts, and the renderer.

The renderer's output is live in JupyterLab and a picture everywhere else, offline and untrusted.
Each chart is one bundle of three entries: a Vega-Lite 5 spec (the newest type that JupyterLab draws
itself; it refuses Altair's own v6 type), a PNG for code hosts and rendered pages, and the
description as text. On Colab, HTML is the live entry.

A single chart is as wide as the text of a page, its labels and legends included. Of charts that
were joined, each panel says its own width, such that the row fits into `WIDTH`.
"""

import base64
import html
import io
import os
import re
import struct
import sys
import textwrap
import unicodedata
from functools import cache
from pathlib import Path

import altair as alt
import numpy as np
import pandas as pd
import vl_convert
from IPython import get_ipython
from pandas.api.types import is_bool_dtype, is_numeric_dtype, is_object_dtype
from PIL import Image, ImageChops

# colours of a sign and of nothing else: blue is up, orange is down
POSITIVE = "#2f78b3"
NEGATIVE = "#c5690d"
NEUTRAL = "#6b6b6b"
# Petrol, brown, orchid, sage, violet, green, for what has no sign: models, rules, optimizers,
# classes. The last two mean noise and signal elsewhere. Each has a contrast of 3:1 against a white
# and a dark page; any two stay apart in three kinds of colour vision (tests/test_explained.py).
SERIES = ["#0c728a", "#935147", "#ba71cb", "#6f937f", "#7154ce", "#34a409"]
# the colour of a single series
ACCENT = SERIES[0]
# dark on a light page, light on a dark one
ERROR_COLOR = "color-mix(in srgb, #c84a00 70%, currentcolor)"
# pixels of a page's text: a single chart is that wide, with its labels and legends
WIDTH = 700
_FIT_WIDTH = {"type": "fit-x", "contains": "padding", "resize": True}
# characters of a title's lines that WIDTH holds
_TITLE_CHARACTERS = {"text": 98, "subtitle": 124}
# A page's dark theme colours the parts of a chart that name no colour of their own. Ours are drawn
# for white, and CSS inverts the whole picture on a dark page (shared.css, book.css).
_THEME = {
    "background": "white",
    "view": {"stroke": "#ddd"},
    "title": {"color": "black", "subtitleColor": NEUTRAL},
    "style": {
        "guide-label": {"fill": "black", "fontSize": 12},
        "guide-title": {"fill": "black", "fontSize": 12},
    },
    "text": {"fontSize": 12},
    "axis": {"domainColor": "#888", "gridColor": "#ddd", "tickColor": "#888"},
}
# characters that XML, and so SVG, cannot hold
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
# halves of a character beyond 16 bits: Python and JSON know them, nothing else does
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")
_SIGNED_ZERO = re.compile(r"(?<![\w.])[-+−](?=0(?:\.0+)?(?!\.?\d|e))")
_ASCII_MINUS = re.compile(r"(?<![\w.,)\]-])-(?=\.?\d)")


def limit(values) -> float:
    """m of the symmetric domain [-m, m]: the 98th percentile of |x|, so that outliers saturate.

    Where that percentile is 0 it is the largest |x|, and 1 where all values are 0.
    """
    sizes = np.abs(np.asarray(values, dtype=float))
    sizes = sizes[np.isfinite(sizes)]
    percentile = float(np.percentile(sizes, 98)) if sizes.size else 0.0
    largest = float(sizes.max(initial=0.0))
    return percentile or largest or 1.0


def diverging(m: float) -> alt.Scale:
    """Blue above 0, orange below, white at it, saturated beyond +-m."""
    return alt.Scale(scheme="blueorange", reverse=True, domain=[-m, m], domainMid=0, clamp=True)


def require_columns(frame, columns, chart: str) -> None:
    """Raise a ValueError naming the columns that `frame` lacks."""
    missing = [column for column in columns if column not in frame]
    if missing:
        raise ValueError(
            f"{chart} needs the column(s) {', '.join(missing)}; the table has"
            f" {', '.join(frame.columns)}."
        )


def titled(chart, title: str, subtitle: str, description: str):
    """Give a chart, or charts that were joined, a title and a description for screen readers."""
    heading = alt.TitleParams(title, subtitle=subtitle, anchor="start", subtitleColor=NEUTRAL)
    return chart.properties(title=heading, description=f"{title}. {description}")


def finish(chart, title: str, subtitle: str, description: str, height: int | alt.Step = 200):
    """Give a single chart its title, height and description."""
    return titled(chart.properties(height=height), title, subtitle, description)


def label_width(names) -> int:
    """About how many pixels the names of rows take beside a panel."""
    return round(6.2 * max(len(str(name)) for name in names))


def panel_title(text: str) -> alt.TitleParams:
    """The title of one panel of several."""
    return alt.TitleParams(text, anchor="start", fontSize=12)


def tooltips(table: pd.DataFrame, *columns: str | None, form: str = ".3g") -> list[alt.Tooltip]:
    """Tooltips of columns, each once, None left out; fractions in the format `form`."""
    hints = []
    for column in filter(None, dict.fromkeys(columns)):
        kind = table[column].dtype
        is_number = is_numeric_dtype(kind) and not is_bool_dtype(kind)
        format = {"format": form} if is_number and kind.kind == "f" else {}
        hints.append(alt.Tooltip(f"{column}:{'Q' if is_number else 'N'}", **format))
    return hints


def describe_rows(
    table: pd.DataFrame,
    *columns: str,
    value: str = "mean",
    form: str = ".3g",
    interval: bool = False,
):
    """A table's estimates as a text for screen readers and consoles.

    Each row reads "name, name: mean (low to high)"; the interval where it is asked for and known.
    """
    texts = []
    for row in table.to_dict("records"):
        names = ", ".join(str(row[column]) for column in columns)
        text = f"{names}: {row[value]:{form}}"
        if interval and np.isfinite([row["low"], row["high"]]).all():
            text += f" ({row['low']:{form}} to {row['high']:{form}})"
        texts.append(text)
    return "; ".join(texts)


def visible(token: str, longest: int = 12, space: str = "·") -> str:
    """A token's text with nothing hidden: spaces as dots, line ends as arrows, marks by number.

    >>> visible(" the"), visible("a\\n"), visible("\\u202eevil")
    ('·the', 'a⏎', '\\\\u202eevil')
    """
    pictures = {" ": space, "\n": "⏎", "\t": "⇥"}

    def shown(character: str) -> str:
        if character in pictures:
            return pictures[character]
        # control characters, direction marks, and spaces of other widths
        if unicodedata.category(character)[0] in "CZ":
            return f"\\u{ord(character):04x}"
        return character

    text = "".join(map(shown, str(token)))
    return text if len(text) <= longest else text[: longest - 1] + "…"


def printable(text) -> str:
    """Text that charts, pages and messages can carry.

    A control character becomes its picture, and what is no character becomes �.

    >>> printable("a\\x00b\\x1b[31m\\ud800")
    'a␀b␛[31m�'
    """

    def picture_of(match: re.Match) -> str:
        character = match[0]
        return chr(0x2400 + ord(character)) if character < " " else "�"

    return _UNPRINTABLE.sub(picture_of, str(text))


def printable_table(table: pd.DataFrame) -> pd.DataFrame:
    """The table with `printable` column names, and `printable` texts where one is half a character.

    Pandas keeps such a text in a column of objects and then fails at whatever is done with it.
    """
    table = table.set_axis([printable(name) for name in table], axis=1)
    repaired = {}
    for name, kind in table.dtypes.items():
        if is_object_dtype(kind) and any(map(_has_half_character, table[name])):
            repaired[name] = [
                printable(value) if isinstance(value, str) else value for value in table[name]
            ]
    return table.assign(**repaired) if repaired else table


def _has_half_character(value) -> bool:
    return isinstance(value, str) and _HALF_CHARACTER.search(value) is not None


def typeset(text: str) -> str:
    """A sentence's numbers as charts write them: a true minus, and no sign before a rounded zero.

    >>> typeset("from -0.5 to -0.00, in 2-step and 1e-5")
    'from −0.5 to 0.00, in 2-step and 1e-5'
    """
    return _ASCII_MINUS.sub("−", _SIGNED_ZERO.sub("", text))


def escape(text) -> str:
    """Text as HTML that shows it: `printable`, and never markup."""
    return html.escape(printable(text))


def notice(*sentences: str, error: bool = False, announced: bool = True) -> str:
    """HTML of a status line, one sentence below the other; "" where none says anything.

    error: in red.  announced: whether screen readers read it out when it changes.
    """
    text = "<br>".join(map(escape, sentences))
    if not text:
        return ""
    color = ERROR_COLOR if error else "inherit"
    style = f"line-height: 1.4; overflow-wrap: anywhere; color: {color}"
    role = ' role="status"' if announced else ""
    return f'<div{role} style="{style}">{text}</div>'


# --- a spec, from Altair's values to what is drawn


# pixels of a picture per pixel of the page
_PIXEL_RATIO = 2
# of 255, by which a colour may change at the soft edge of a line or letter
MAX_COLOR_SHIFT = 16
_V5_SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
_JOINED = ("concat", "hconcat", "vconcat")
_PARTS = ("layer", *_JOINED)


@cache
def vegalite_version() -> str:
    """The Vega-Lite version to draw with: Altair's own, if vl-convert has it.

    Else the newest of the same major version that vl-convert has.
    """
    wanted = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    known = vl_convert.get_vegalite_versions()
    if wanted in known:
        return wanted
    major = wanted.split(".")[0]
    return [version for version in known if version.split(".")[0] == major][-1]


def to_json_values(value):
    """A spec, or rows, as JSON values: `printable` texts, Python's numbers, None for NaN.

    vl-convert ends its process, here the kernel, for a control character in a drawn text.
    """
    if isinstance(value, dict):
        return {printable(key): to_json_values(part) for key, part in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return to_json_values(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json_values(part) for part in value]
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if isinstance(value, int):
        return _to_json_integer(value)
    return None if value is None else printable(value)


def _to_json_integer(value: int) -> int | float | None:
    if abs(value) < 2**63:
        return value
    # beyond 64 bits as a float, beyond a float as unknown
    return float(value) if abs(value) < 10**300 else None


def hide_from_screen_readers(spec: dict, shows: bool = False) -> dict:
    """The spec with marks that show no column, such as a line at zero, hidden from screen readers.

    Vega has no name for them.  shows: whether what is around the spec shows a column already.
    """
    channels = [one for one in spec.get("encoding", {}).values() if isinstance(one, dict)]
    shows = shows or any("field" in one or "aggregate" in one for one in channels)
    inner = {
        part: [hide_from_screen_readers(one, shows) for one in spec[part]]
        for part in _PARTS
        if part in spec
    }
    # a facet's one spec
    if isinstance(spec.get("spec"), dict):
        inner["spec"] = hide_from_screen_readers(spec["spec"], shows)
    if "mark" in spec and not shows:
        mark = spec["mark"] if isinstance(spec["mark"], dict) else {"type": spec["mark"]}
        inner["mark"] = {**mark, "aria": False}
    return {**spec, **inner}


def apply_theme(spec: dict) -> dict:
    """A spec in the workbook's theme; a chart of one panel becomes as wide as the text.

    A chart without a description is a reader's own and keeps the width that it was given. Charts
    that were joined keep the widths of their panels, and are described by their parts.
    """
    spec = {**spec, "config": {**_THEME, **spec.get("config", {})}}
    parts = spec.get("vconcat", spec.get("hconcat", []))
    described = [part["description"] for part in parts if "description" in part]
    if described:
        spec = {"description": " ".join(described), **spec}
    if "description" not in spec:
        return spec
    if isinstance(spec.get("title"), dict):
        spec["title"] = _wrap_title(spec["title"])
    is_joined = not spec.keys().isdisjoint({*_JOINED, "facet"})
    return spec if is_joined else {**spec, "width": WIDTH, "autosize": _FIT_WIDTH}


def _wrap_title(title: dict) -> dict:
    """A title, and its subtitle, in lines that WIDTH holds."""
    lines = {}
    for part, longest in _TITLE_CHARACTERS.items():
        if len(title.get(part, "")) > longest:
            lines[part] = textwrap.wrap(title[part], longest)
    return {**title, **lines}


FIGURE_NUMBER = re.compile(r"Fig\. \d+\.\d+\. ")
# of (cell, title), in the order of drawing
_numbers: dict[tuple, int] = {}


def figure_number(title: str) -> str:
    """ "Fig. 4.3. ", to stand before a figure's title: its chapter, and its place in drawing order.

    A cell that runs again keeps its numbers. Jupyter tells its kernels the notebook's name; without
    it the number is "".
    """
    chapter = re.match(r"\d+", Path(os.environ.get("JPY_SESSION_NAME", "")).name)
    if chapter is None:
        return ""
    shell = get_ipython()
    request = shell.kernel.get_parent() if hasattr(shell, "kernel") else {}
    cell = request.get("metadata", {}).get("cellId") or getattr(shell, "execution_count", None)
    place = _numbers.setdefault((cell, title), len(_numbers) + 1)
    return f"Fig. {int(chapter[0])}.{place}. "


def numbered(spec: dict) -> dict:
    """The spec with its figure's number, once, before its title.

    A chart whose `usermeta` says that it is no figure, or without a description, stays as it is.
    """
    description = spec.get("description", "")
    if not description or FIGURE_NUMBER.match(description) or "usermeta" in spec:
        return spec
    number = figure_number(description.split(". ")[0])
    return prefix_title(spec, number) if number else spec


def prefix_title(spec: dict, number: str) -> dict:
    """The spec with a figure's number before its description and its title.

    Without a title of its own, the number stands before that of its first panel.
    """
    inner = {"description": number + spec.get("description", "")}
    part = next((part for part in _PARTS if part in spec), None)
    if isinstance(spec.get("title"), dict):
        text = spec["title"]["text"]
        first, *more = [text] if isinstance(text, str) else text
        inner["title"] = {**spec["title"], "text": [number + first, *more]}
    elif part:
        first, *more = spec[part]
        inner[part] = [prefix_title(first, number), *more]
    return {**spec, **inner}


# --- the renderer


def png(spec: dict, scale: float = _PIXEL_RATIO) -> bytes:
    """The compressed picture of a Vega-Lite spec.

    Raises ValueError, in one sentence, for a spec that can't be drawn.
    """
    version = vegalite_version()
    try:
        drawn = vl_convert.vegalite_to_png(to_json_values(spec), vl_version=version, scale=scale)
    except Exception as error:
        # the message without its stack of JavaScript
        lines = [line.strip() for line in str(error).split("\n")]
        reason = " ".join(line for line in lines if line and not line.startswith("at "))[:200]
        raise ValueError(
            f"No picture of this chart: Vega-Lite refuses its spec ({reason})."
        ) from None
    return compress_png(Image.open(io.BytesIO(drawn)).convert("RGB"))


def compress_png(image: Image.Image) -> bytes:
    """A picture as PNG: in 256 colours, half the size, where nobody sees the difference."""
    few = image.quantize(method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    extrema = ImageChops.difference(few.convert("RGB"), image).getextrema()
    largest_shift = max(high for _, high in extrema)
    file = io.BytesIO()
    chosen = few if largest_shift <= MAX_COLOR_SHIFT else image
    chosen.save(file, "PNG", optimize=True)
    return file.getvalue()


def picture(spec: dict) -> tuple[dict, dict]:
    """The static half of a mime bundle and its metadata: a PNG with its size, and the description.

    A chart that can't be drawn is text alone: its description and the sentence that says why.
    """
    description = printable(spec.get("description") or "chart")
    try:
        image = png(spec)
    except ValueError as problem:
        return {"text/plain": f"{description}\n{problem}"}, {}
    # the PNG's header holds width and height
    pixels = struct.unpack(">II", image[16:24])
    width, height = (count // _PIXEL_RATIO for count in pixels)
    data = {"image/png": base64.b64encode(image).decode(), "text/plain": description}
    return data, {"image/png": {"width": width, "height": height, "alt": description}}


def bundle(spec: dict, **_) -> tuple[dict, dict]:
    """Altair renderer: spec -> (mime bundle, metadata).

    A chart that can't be drawn is the sentence alone.
    """
    spec = hide_from_screen_readers(to_json_values(spec))
    spec = numbered(apply_theme(spec))
    data, metadata = picture(spec)
    if "image/png" not in data:
        return data, metadata
    # an HTML entry would win in JupyterLab, and stay blank offline
    if "google.colab" in sys.modules:
        data["text/html"] = alt.Chart.from_dict(spec).to_html(fullhtml=False)
    else:
        data["application/vnd.vegalite.v5+json"] = {**spec, "$schema": _V5_SCHEMA}
    return data, metadata


def _to_values(data) -> dict:
    """Altair's data transformer: all rows, as JSON values."""
    table = printable_table(data) if isinstance(data, pd.DataFrame) else data
    return to_json_values(alt.to_values(table))


def to_spec(chart) -> dict:
    """`chart.to_dict()` in JSON values, of any number of rows."""
    with alt.data_transformers.enable("workbook"):
        return hide_from_screen_readers(to_json_values(chart.to_dict()))


alt.data_transformers.register("workbook", _to_values)


def enable_charts() -> None:
    """Make every Altair chart of this session show as `bundle`, of any number of rows."""
    alt.renderers.register("workbook", bundle)
    alt.renderers.enable("workbook")
    alt.data_transformers.enable("workbook")
