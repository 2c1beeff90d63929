"""What the widgets of a page share, sent to it once: Vega, one look, names, and that a saved notebook keeps them.

A chart's module with Vega inside has 0.9 MB, and a page would get it, and a saved notebook hold it, once a chart. So
Vega travels packed in one hidden widget, to which the charts refer (shared.js, and the module of `LiveChart`).
"""

from __future__ import annotations

import gzip
import os
import zlib
from contextlib import suppress
from functools import cache
from pathlib import Path

import anywidget
import traitlets
import vl_convert

from workbook.places import cache_folder
from workbook.views.renderer import vegalite_version

HERE = Path(__file__).parent


@cache
def vega_module() -> bytes:
    """A module that exports vegaEmbed and needs nothing from elsewhere, gzipped.

    Bundling takes a second of each kernel, so the first bundle is kept in the cache folder, under the versions in it.
    """
    version = vegalite_version()
    kept = cache_folder() / f"vega-lite-{version}-of-vl-convert-{vl_convert.__version__}.js.gz"
    with suppress(OSError, EOFError, zlib.error):  # not there, or damaged: bundled anew
        module = kept.read_bytes()
        gzip.decompress(module)
        return module
    module = gzip.compress(vl_convert.javascript_bundle("export { vegaEmbed };", vl_version=version).encode(), mtime=0)
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        half = kept.with_name(f".{kept.name}.{os.getpid()}.tmp")
        half.write_bytes(module)
        os.replace(half, kept)
    return module


class Shared(anywidget.AnyWidget):
    """The hidden widget; `shared()` returns the one of this kernel."""

    _esm = "\n".join((HERE / name).read_text(encoding="utf-8") for name in ("names.js", "shared.js"))
    _css = (HERE / "shared.css").read_text(encoding="utf-8")
    vega = traitlets.Bytes().tag(sync=True)


_opened: list[Shared] = []


def shared() -> Shared:
    """What the widgets of this kernel share, opened when it is first asked for and if it was closed."""
    if not _opened or _opened[-1].comm is None:
        _opened[:] = [Shared(vega=vega_module())]
    return _opened[-1]
