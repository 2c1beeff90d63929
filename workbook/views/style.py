"""What all charts share: one palette, titles, descriptions, texts made visible, and a renderer for
every page.

The renderer's output is live in JupyterLab and a picture everywhere else, offline and untrusted:
one bundle per chart of a Vega-Lite 5 entry (the newest type JupyterLab draws itself; Altair's own
v6 type is refused), a PNG for code hosts and rendered pages, and the description as text. On Colab,
HTML is the live entry.
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

# of a sign and nothing else: blue up, orange down
POSITIVE, NEGATIVE, NEUTRAL = "#2f78b3", "#c5690d", "#6b6b6b"
# petrol, brown, orchid, sage, violet, green: what is no sign (models, rules, optimizers, classes);
# the last two mean noise and signal elsewhere. Each has 3:1 against a white and a dark page; any
# two stay apart in three kinds of colour vision (tests/test_explained.py)
SERIES = ["#0c728a", "#935147", "#ba71cb", "#6f937f", "#7154ce", "#34a409"]
ACCENT = SERIES[0]  # of a single series
# dark on a light page, light on a dark one
ERROR_COLOR = "color-mix(in srgb, #c84a00 70%, currentcolor)"
PANEL = 300  # pixels, as Vega-Lite draws a chart without a width
WIDTH = 700  # pixels of a page's text: so wide is every chart, with its labels and legends
FIT = {"type": "fit-x", "contains": "padding", "resize": True}
LINES = {"text": 98, "subtitle": 124}  # characters of a title that WIDTH holds
# a page's dark theme colours the parts of a chart that say no colour of their own; ours are drawn
# for white, and CSS turns the whole over on a dark page (shared.css, book.css)
LOOK = {
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
# in no XML, so in no SVG
UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
SIGNED_ZERO = re.compile(r"(?<![\w.])[-+−](?=0(?:\.0+)?(?!\.?\d|e))")
MINUS = re.compile(r"(?<![\w.,)\]-])-(?=\.?\d)")
HALVES = re.compile("[\ud800-\udfff]")  # of a character beyond 16 bits, in Python and JSON alone


def limit(values) -> float:
    """m of the symmetric domain [-m, m]: the 98th percentile of |x| (some outliers may saturate), 1
    where all is 0.
    """
    finite = np.abs(np.asarray(values, dtype=float))
    finite = finite[np.isfinite(finite)]
    m = float(np.percentile(finite, 98)) if finite.size else 0.0
    return m or float(finite.max(initial=0.0)) or 1.0


def diverging(m: float) -> alt.Scale:
    """Blue above 0, orange below, white at it, saturated beyond +-m."""
    return alt.Scale(scheme="blueorange", reverse=True, domain=[-m, m], domainMid=0, clamp=True)


def require(frame, columns, chart: str) -> None:
    """Raise a ValueError naming the columns that `frame` lacks."""
    if missing := [column for column in columns if column not in frame]:
        raise ValueError(
            f"{chart} needs the column(s) {', '.join(missing)}; the table has"
            f" {', '.join(frame.columns)}."
        )


def titled(chart, title: str, subtitle: str, description: str):
    """Give a chart, or several that were joined, its title and the description that screen readers
    show.
    """
    heading = alt.TitleParams(title, subtitle=subtitle, anchor="start", subtitleColor=NEUTRAL)
    return chart.properties(title=heading, description=f"{title}. {description}")


def finish(chart, title: str, subtitle: str, description: str, height: int | alt.Step = 200):
    """Give a single chart its title, height and description."""
    return titled(chart.properties(height=height), title, subtitle, description)


def panel_title(text: str) -> alt.TitleParams:
    """The title of one panel of several."""
    return alt.TitleParams(text, anchor="start", fontSize=12)


def tooltips(table: pd.DataFrame, *columns: str | None, form: str = ".3g") -> list[alt.Tooltip]:
    """Tooltips of columns, each once and those that are None left out; numbers with fractions in
    the format `form`.
    """
    hints = []
    for column in filter(None, dict.fromkeys(columns)):
        kind = table[column].dtype
        number = is_numeric_dtype(kind) and not is_bool_dtype(kind)
        look = {"format": form} if number and kind.kind == "f" else {}
        hints.append(alt.Tooltip(f"{column}:{'Q' if number else 'N'}", **look))
    return hints


def describe_rows(
    table: pd.DataFrame,
    *columns: str,
    value: str = "mean",
    form: str = ".3g",
    interval: bool = False,
):
    """A table's estimates as a text, "name, name: mean (low to high); ...", for screen readers and
    consoles.
    """
    rows = []
    for row in table.to_dict("records"):
        known = interval and np.isfinite([row["low"], row["high"]]).all()
        ends = f" ({row['low']:{form}} to {row['high']:{form}})" if known else ""
        rows.append(
            f"{', '.join(str(row[column]) for column in columns)}: {row[value]:{form}}{ends}"
        )
    return "; ".join(rows)


def visible(token: str, longest: int = 12, space: str = "·") -> str:
    """A token's text with nothing hidden: spaces as a dot, newlines as an arrow, control and
    direction marks by number.

    >>> visible(" the"), visible("a\\n"), visible("\\u202eevil")
    ('·the', 'a⏎', '\\\\u202eevil')
    """
    named = {" ": space, "\n": "⏎", "\t": "⇥"}
    text = "".join(
        named.get(c) or (f"\\u{ord(c):04x}" if unicodedata.category(c)[0] in "CZ" else c)
        for c in str(token)
    )
    return text if len(text) <= longest else text[: longest - 1] + "…"


def printable(text) -> str:
    """Text that charts, pages and messages can carry: a control character as its picture, what is
    no character as �.

    >>> printable("a\\x00b\\x1b[31m\\ud800")
    'a␀b␛[31m�'
    """
    return UNPRINTABLE.sub(lambda c: chr(0x2400 + ord(c[0])) if c[0] < " " else "�", str(text))


def printable_table(table: pd.DataFrame) -> pd.DataFrame:
    """The table with `printable` column names; with `printable` texts, too, if one holds half a
    character.

    Pandas keeps such a text in a column of objects and then fails at whatever is done with the
    column.
    """
    table = table.set_axis([printable(name) for name in table], axis=1)
    whole = {}
    for name, kind in table.dtypes.items():
        if is_object_dtype(kind) and any(
            isinstance(value, str) and HALVES.search(value) for value in table[name]
        ):
            whole[name] = [
                printable(value) if isinstance(value, str) else value for value in table[name]
            ]
    return table.assign(**whole) if whole else table


def typeset(text: str) -> str:
    """A sentence's numbers as charts write them: a true minus, and no sign of what is rounded to
    zero.

    >>> typeset("from -0.5 to -0.00, in 2-step and 1e-5")
    'from −0.5 to 0.00, in 2-step and 1e-5'
    """
    return MINUS.sub("−", SIGNED_ZERO.sub("", text))


def escape(text) -> str:
    """Text as HTML that shows it: `printable`, and never markup."""
    return html.escape(printable(text))


def notice(*sentences: str, error: bool = False, announced: bool = True) -> str:
    """HTML of a line of status, a sentence below the other; "" where none says anything.

    error: in red.  announced: whether screen readers read it out when it changes.
    """
    style = (
        f"line-height: 1.4; overflow-wrap: anywhere; color: {ERROR_COLOR if error else 'inherit'}"
    )
    text = "<br>".join(map(escape, sentences))
    role = ' role="status"' if announced else ""
    return f'<div{role} style="{style}">{text}</div>' if text else ""


SCALE = 2  # pixels of a picture per pixel of the page
UNSEEN = 16  # of 255, by which a colour may change at the soft edge of a line or letter
V5_SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
PARTS = ("layer", "concat", "hconcat", "vconcat")


@cache
def vegalite_version() -> str:
    """The Vega-Lite version to draw with: Altair's own, else the newest of that major version that
    vl-convert has.
    """
    wanted = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    known = vl_convert.get_vegalite_versions()
    return (
        wanted
        if wanted in known
        else [one for one in known if one.split(".")[0] == wanted.split(".")[0]][-1]
    )


def plain(value):
    """A spec, or rows, as JSON values: texts `printable`, numbers of NumPy as Python's, NaN and
    infinities as None.

    vl-convert ends its process, here the kernel, for a control character in a drawn text.
    """
    if isinstance(value, dict):
        return {printable(key): plain(part) for key, part in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(part) for part in value]
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if isinstance(value, int):
        return value if abs(value) < 2**63 else float(value) if abs(value) < 10**300 else None
    return None if value is None else printable(value)


def hushed(spec: dict, shows: bool = False) -> dict:
    """The spec with marks that show no column, such as a line at zero, left out of what screen
    readers are told.

    Vega has no name for them.  shows: whether what is around the spec shows a column already.
    """
    channels = [one for one in spec.get("encoding", {}).values() if isinstance(one, dict)]
    shows = shows or any("field" in one or "aggregate" in one for one in channels)
    inner = {part: [hushed(one, shows) for one in spec[part]] for part in PARTS if part in spec}
    if isinstance(spec.get("spec"), dict):  # of a facet
        inner["spec"] = hushed(spec["spec"], shows)
    if "mark" in spec and not shows:
        mark = spec["mark"] if isinstance(spec["mark"], dict) else {"type": spec["mark"]}
        inner["mark"] = mark | {"aria": False}
    return spec | inner


def dressed(spec: dict, data: dict | None = None) -> dict:
    """A spec in the house's look, as wide as the text if it has a description; data: of tables that
    travel apart.

    Charts that were joined are described by their parts.
    """
    spec = {**spec, "config": LOOK | spec.get("config", {})}
    inner = spec.get("vconcat", spec.get("hconcat", []))
    if joined := [part["description"] for part in inner if "description" in part]:
        spec = {"description": " ".join(joined), **spec}
    if "description" not in spec:  # a reader's own, of the width that it was given
        return spec
    if isinstance(title := spec.get("title"), dict):
        long = {
            part: title[part] for part, most in LINES.items() if len(title.get(part, "")) > most
        }
        spec["title"] = title | {
            part: textwrap.wrap(text, LINES[part]) for part, text in long.items()
        }
    if not {*PARTS[1:], "facet"} & spec.keys():
        return spec | {"width": WIDTH, "autosize": FIT}
    untitled = {name: part for name, part in spec.items() if name != "title"} | (
        {"datasets": data} if data else {}
    )

    def drawn(scale: float) -> float:
        svg = vl_convert.vegalite_to_svg(_widened(untitled, scale), vl_version=vegalite_version())
        return float(re.search(r'width="([\d.]+)"', svg)[1])

    # of the panels' widths: on a straight line, but where a label is wider than its panel
    scale, other = 1.0, 1.25
    try:
        at = drawn(scale)
        beside = at if abs(at - WIDTH) <= 2 else drawn(other)
        for _ in range(6):  # the secant's way to WIDTH
            if abs(at - WIDTH) > 2 and at != beside:
                step = (WIDTH - at) * (other - scale) / (beside - at)
                scale, other, beside = max(0.1, scale + step), scale, at
                at = drawn(scale)
    except ValueError:  # `picture` says why it can't be drawn
        return spec
    return _widened(spec, scale)


def _widened(spec: dict, scale: float, panel: bool = True) -> dict:
    """The spec with the width of each panel, or of its steps, times `scale`; one without a width
    begins at PANEL.
    """
    inner = {
        part: [_widened(one, scale, part != "layer") for one in spec[part]]
        for part in PARTS
        if part in spec
    }
    if isinstance(spec.get("spec"), dict):  # of a facet
        inner["spec"] = _widened(spec["spec"], scale)
    if width := spec.get("width", PANEL if panel and {"mark", "layer"} & spec.keys() else 0):
        inner["width"] = (
            width | {"step": width["step"] * scale}
            if isinstance(width, dict)
            else round(width * scale, 1)
        )
    return spec | inner


FIGURE = re.compile(r"Fig\. \d+\.\d+\. ")
_numbers: dict[tuple, int] = {}  # of (cell, title), in the order of drawing


def figure_number(title: str) -> str:
    """ "Fig. 4.3. ", to stand before a figure's title: its chapter, and its place there in the order
    of drawing.

    A cell run again keeps its numbers. Jupyter tells its kernels the notebook's name; "" where it
    does not.
    """
    chapter = re.match(r"\d+", Path(os.environ.get("JPY_SESSION_NAME", "")).name)
    if chapter is None:
        return ""
    shell = get_ipython()
    asked = shell.kernel.get_parent() if hasattr(shell, "kernel") else {}
    cell = asked.get("metadata", {}).get("cellId") or getattr(shell, "execution_count", None)
    return f"Fig. {int(chapter[0])}.{_numbers.setdefault((cell, title), len(_numbers) + 1)}. "


def numbered(spec: dict) -> dict:
    """The spec with its number, once, before its title; as it is where `usermeta` says that a chart
    is no figure.
    """
    about = spec.get("description", "")
    if not about or FIGURE.match(about) or "usermeta" in spec:
        return spec
    return entitled(spec, number) if (number := figure_number(about.split(". ")[0])) else spec


def entitled(spec: dict, number: str) -> dict:
    """The spec with a figure's number before its description, and before its title or that of its
    first panel.
    """
    inner = {"description": number + spec.get("description", "")}
    part = next((part for part in PARTS if part in spec), None)
    if isinstance(title := spec.get("title"), dict):
        first, *more = [text] if isinstance(text := title["text"], str) else text
        inner["title"] = title | {"text": [number + first, *more]}
    elif part:
        inner[part] = [entitled(spec[part][0], number), *spec[part][1:]]
    return spec | inner


def png(spec: dict, scale: float = SCALE) -> bytes:
    """The picture of a Vega-Lite spec, packed anew; ValueError, in one sentence, for a spec that
    can't be drawn.
    """
    try:
        written = vl_convert.vegalite_to_png(
            plain(spec), vl_version=vegalite_version(), scale=scale
        )
    except Exception as error:
        reason = " ".join(
            line for line in map(str.strip, str(error).split("\n")) if line[:3] not in ("", "at ")
        )[:200]
        raise ValueError(
            f"No picture of this chart: Vega-Lite refuses its spec ({reason})."
        ) from None
    return packed(Image.open(io.BytesIO(written)).convert("RGB"))


def packed(image: Image.Image) -> bytes:
    """A picture as PNG: in 256 colours, half the size, where nobody sees the difference, else as it
    is.
    """
    few = image.quantize(method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    difference = max(
        high for _, high in ImageChops.difference(few.convert("RGB"), image).getextrema()
    )
    (few if difference <= UNSEEN else image).save(written := io.BytesIO(), "PNG", optimize=True)
    return written.getvalue()


def picture(spec: dict) -> tuple[dict, dict]:
    """The static half of a mime bundle and its metadata: a PNG with its size, and the description
    as text.

    Of a chart that can't be drawn it is text alone: the sentence that says why, below the
    description.
    """
    description = printable(spec.get("description") or "chart")
    try:
        image = png(spec)
    except ValueError as problem:
        return {"text/plain": f"{description}\n{problem}"}, {}
    # of the PNG's header
    width, height = (pixels // SCALE for pixels in struct.unpack(">II", image[16:24]))
    data = {"image/png": base64.b64encode(image).decode(), "text/plain": description}
    return data, {"image/png": {"width": width, "height": height, "alt": description}}


def bundle(spec: dict, **_) -> tuple[dict, dict]:
    """Altair renderer: spec -> (mime bundle, metadata); of a chart that can't be drawn, the
    sentence alone.
    """
    spec = numbered(dressed(hushed(plain(spec))))
    data, about = picture(spec)
    if "image/png" not in data:
        return data, about
    if "google.colab" in sys.modules:
        data["text/html"] = alt.Chart.from_dict(spec).to_html(fullhtml=False)
    else:  # an HTML entry would win in JupyterLab and stay blank offline
        data["application/vnd.vegalite.v5+json"] = {**spec, "$schema": V5_SCHEMA}
    return data, about


def _to_values(data) -> dict:
    return plain(alt.to_values(printable_table(data) if isinstance(data, pd.DataFrame) else data))


def to_spec(chart) -> dict:
    """`chart.to_dict()` of `plain` values, of any number of rows."""
    with alt.data_transformers.enable("workbook"):
        return hushed(plain(chart.to_dict()))


alt.data_transformers.register("workbook", _to_values)


def enable_charts() -> None:
    """Make every Altair chart of this session show as `bundle`, of any number of rows."""
    alt.renderers.register("workbook", bundle)
    alt.renderers.enable("workbook")
    alt.data_transformers.enable("workbook")
