"""An Altair renderer whose output is live in JupyterLab and a picture everywhere else, offline and untrusted.

One bundle per chart: a Vega-Lite 5 entry (the newest type JupyterLab draws itself; Altair's own v6 type is refused),
a PNG made here for code hosts and rendered pages, and the description as text. On Colab, HTML is the live entry.
"""

from __future__ import annotations

import base64
import io
import struct
import sys
from functools import cache

import altair as alt
import vl_convert
from PIL import Image, ImageChops

SCALE = 2  # pixels of a picture per pixel of the page
V5_SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"


@cache
def vegalite_version() -> str:
    """The Vega-Lite version to draw with: Altair's own, else the newest of that major version that vl-convert has."""
    wanted = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    known = vl_convert.get_vegalite_versions()
    if wanted in known:
        return wanted
    return [version for version in known if version.split(".")[0] == wanted.split(".")[0]][-1]


def png(spec: dict, scale: float = SCALE) -> bytes:
    """The picture of a Vega-Lite spec, packed anew without loss: about a tenth of what vl-convert writes."""
    written = vl_convert.vegalite_to_png(spec, vl_version=vegalite_version(), scale=scale)
    image = Image.open(io.BytesIO(written)).convert("RGB")
    few = image.quantize(dither=Image.Dither.NONE)  # a palette of 256 colours halves the size, where it loses nothing
    exact = ImageChops.difference(few.convert("RGB"), image).getbbox() is None
    (few if exact else image).save(packed := io.BytesIO(), "PNG", optimize=True)
    return packed.getvalue()


def picture(spec: dict) -> tuple[dict, dict]:
    """The static half of a mime bundle and its metadata: a PNG with its size, and the description as text."""
    image, description = png(spec), spec.get("description", "chart")
    width, height = (pixels // SCALE for pixels in struct.unpack(">II", image[16:24]))  # of the PNG's header
    data = {"image/png": base64.b64encode(image).decode(), "text/plain": description}
    return data, {"image/png": {"width": width, "height": height, "alt": description}}


def bundle(spec: dict, **_) -> tuple[dict, dict]:
    """Altair renderer: spec -> (mime bundle, metadata)."""
    data, about = picture(spec)
    if "google.colab" in sys.modules:
        data["text/html"] = alt.Chart.from_dict(spec).to_html(fullhtml=False)
    else:  # an HTML entry would win in JupyterLab and stay blank offline
        data["application/vnd.vegalite.v5+json"] = {**spec, "$schema": V5_SCHEMA}
    return data, about


def enable_charts() -> None:
    """Make every Altair chart of this session show as `bundle`, of any number of rows."""
    alt.renderers.register("workbook", bundle)
    alt.renderers.enable("workbook")
    alt.data_transformers.disable_max_rows()
