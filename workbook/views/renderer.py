"""An Altair renderer whose output is live in JupyterLab and a picture everywhere else, offline and untrusted.

One bundle per chart: a Vega-Lite 5 entry (the newest type JupyterLab draws itself; Altair's own v6 type is refused),
a PNG made here for code hosts and rendered pages, and the description as text. On Colab, HTML is the live entry.
"""

from __future__ import annotations

import base64
import sys
from functools import cache

import altair as alt
import vl_convert

V5_SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"


@cache
def vegalite_version() -> str:
    """The Vega-Lite version to draw with: Altair's own, else the newest of that major version that vl-convert has."""
    wanted = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    known = vl_convert.get_vegalite_versions()
    if wanted in known:
        return wanted
    return [version for version in known if version.split(".")[0] == wanted.split(".")[0]][-1]


def png(spec: dict, scale: float = 2) -> bytes:
    """The picture of a Vega-Lite spec."""
    return vl_convert.vegalite_to_png(spec, vl_version=vegalite_version(), scale=scale)


def picture_entries(spec: dict) -> dict[str, str]:
    """The static half of a mime bundle: a PNG and the chart's description."""
    return {"image/png": base64.b64encode(png(spec)).decode(), "text/plain": spec.get("description", "chart")}


def bundle(spec: dict, **_) -> tuple[dict, dict]:
    """Altair renderer: spec -> (mime bundle, metadata)."""
    data = picture_entries(spec)
    if "google.colab" in sys.modules:
        data["text/html"] = alt.Chart.from_dict(spec).to_html(fullhtml=False)
    else:  # an HTML entry would win in JupyterLab and stay blank offline
        data["application/vnd.vegalite.v5+json"] = {**spec, "$schema": V5_SCHEMA}
    return data, {}


def enable_charts() -> None:
    """Make every Altair chart of this session show as `bundle`, of any number of rows."""
    alt.renderers.register("workbook", bundle)
    alt.renderers.enable("workbook")
    alt.data_transformers.disable_max_rows()
