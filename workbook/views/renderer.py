"""An Altair renderer whose output is live in JupyterLab and a picture everywhere else, offline and untrusted.

One bundle per chart: a Vega-Lite 5 entry (the newest type JupyterLab draws itself; Altair's own v6 type is refused),
a PNG for code hosts and rendered pages, and the description as text. On Colab, HTML is the live entry. A chart that
can't be drawn is a sentence that says why.
"""

from __future__ import annotations

import base64
import io
import struct
import sys
from functools import cache

import altair as alt
import numpy as np
import pandas as pd
import vl_convert
from PIL import Image, ImageChops

from workbook.views.style import printable, printable_table

SCALE = 2  # pixels of a picture per pixel of the page
UNSEEN = 16  # of 255, by which a colour may change at the soft edge of a line or letter
V5_SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
PARTS = ("layer", "concat", "hconcat", "vconcat")


@cache
def vegalite_version() -> str:
    """The Vega-Lite version to draw with: Altair's own, else the newest of that major version that vl-convert has."""
    wanted = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    known = vl_convert.get_vegalite_versions()
    return wanted if wanted in known else [one for one in known if one.split(".")[0] == wanted.split(".")[0]][-1]


def plain(value):
    """A spec, or rows, as JSON values: texts `printable`, numbers of NumPy as Python's, NaN and infinities as None.

    vl-convert ends its process, here the kernel, for a control character in a drawn text.

    >>> plain({"a\\x00": (np.float32(0.5), float("nan"), "b\\ud800")})
    {'a␀': [0.5, None, 'b�']}
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
    """The spec with marks that show no column, such as a line at zero, left out of what screen readers are told.

    Vega has no name for them.  shows: whether what is around the spec shows a column already.

    >>> hushed({"mark": "rule", "encoding": {"x": {"datum": 0}}})["mark"]
    {'type': 'rule', 'aria': False}
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


def png(spec: dict, scale: float = SCALE) -> bytes:
    """The picture of a Vega-Lite spec, packed anew; ValueError, in one sentence, for a spec that can't be drawn."""
    try:
        written = vl_convert.vegalite_to_png(plain(spec), vl_version=vegalite_version(), scale=scale)
    except Exception as error:
        lines = [line.strip() for line in str(error).split("\n") if not line.lstrip().startswith("at ")]
        reason = " ".join(filter(None, lines))[:200]
        raise ValueError(f"No picture of this chart: Vega-Lite refuses its spec ({reason}).") from None
    return packed(Image.open(io.BytesIO(written)).convert("RGB"))


def packed(image: Image.Image) -> bytes:
    """A picture as PNG: in 256 colours, half the size, where nobody sees the difference, else as it is."""
    few = image.quantize(method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    difference = max(high for _, high in ImageChops.difference(few.convert("RGB"), image).getextrema())
    (few if difference <= UNSEEN else image).save(written := io.BytesIO(), "PNG", optimize=True)
    return written.getvalue()


def picture(spec: dict) -> tuple[dict, dict]:
    """The static half of a mime bundle and its metadata: a PNG with its size, and the description as text.

    Of a chart that can't be drawn it is text alone: the sentence that says why, below the description.
    """
    description = printable(spec.get("description", "chart"))
    try:
        image = png(spec)
    except ValueError as problem:
        return {"text/plain": f"{description}\n{problem}"}, {}
    width, height = (pixels // SCALE for pixels in struct.unpack(">II", image[16:24]))  # of the PNG's header
    data = {"image/png": base64.b64encode(image).decode(), "text/plain": description}
    return data, {"image/png": {"width": width, "height": height, "alt": description}}


def bundle(spec: dict, **_) -> tuple[dict, dict]:
    """Altair renderer: spec -> (mime bundle, metadata); of a chart that can't be drawn, the sentence alone."""
    data, about = picture(spec)
    if "image/png" not in data:
        return data, about
    spec = hushed(plain(spec))
    if "google.colab" in sys.modules:
        data["text/html"] = alt.Chart.from_dict(spec).to_html(fullhtml=False)
    else:  # an HTML entry would win in JupyterLab and stay blank offline
        data["application/vnd.vegalite.v5+json"] = {**spec, "$schema": V5_SCHEMA}
    return data, about


def to_values(data) -> dict:
    """Altair data transformer: the rows of a table, as many as there are, as `plain` values."""
    return plain(alt.to_values(printable_table(data) if isinstance(data, pd.DataFrame) else data))


def to_spec(chart) -> dict:
    """`chart.to_dict()` of `plain` values, of any number of rows."""
    with alt.data_transformers.enable("workbook"):
        return hushed(plain(chart.to_dict()))


alt.data_transformers.register("workbook", to_values)


def enable_charts() -> None:
    """Make every Altair chart of this session show as `bundle`, of any number of rows."""
    alt.renderers.register("workbook", bundle)
    alt.renderers.enable("workbook")
    alt.data_transformers.enable("workbook")
