"""A chart that is embedded once and then only receives rows, and widgets that leave a picture.

Redrawing a chart by replacing its output flickers and makes the page jump; replacing its spec leaks
listeners. `LiveChart` splits an Altair chart into its spec and its tables: the spec stays the same,
only the tables travel. Building an Altair chart takes tens of milliseconds, so a chart that follows
a slider is built once, over its tables, and then `push`ed rows.

Vega has 0.9 MB, and a page shows a dozen widgets of a kind. So Vega and our modules travel once,
gzipped, in one hidden widget to which those of a page refer (`Shared`). shared.js also saves the
widgets with their notebook.
"""

import gzip
import json
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import altair as alt
import anywidget
import ipywidgets
import pandas as pd
import traitlets
import vl_convert
from IPython.display import DisplayHandle

from workbook.places import cache_folder
from workbook.views.style import (
    apply_theme,
    hide_from_screen_readers,
    numbered,
    picture,
    printable_table,
    to_json_values,
    to_spec,
    vegalite_version,
)

SCRIPTS = Path(__file__).parent
# widgets that have a module of their own
_KINDS = ("live", "heatmap", "predict")
# the one of this kernel, if it was opened
_opened: list["Shared"] = []


@cache
def vega_module() -> bytes:
    """A module that exports vegaEmbed and needs nothing from elsewhere, gzipped.

    Bundling takes a second of each kernel, so the first bundle is cached, under the versions in it.
    """
    version = vegalite_version()
    name = f"vega-lite-{version}-of-vl-convert-{vl_convert.__version__}.js.gz"
    cached = cache_folder() / name
    # a file that is missing or cut off is made anew
    with suppress(OSError, EOFError):
        module = cached.read_bytes()
        gzip.decompress(module)
        return module
    bundle = vl_convert.javascript_bundle("export { vegaEmbed };", vl_version=version)
    module = gzip.compress(bundle.encode(), mtime=0)
    with suppress(OSError):
        cached.parent.mkdir(parents=True, exist_ok=True)
        cached.write_bytes(module)
    return module


class Shared(anywidget.AnyWidget):
    """What the widgets of a page share, sent to it once: Vega, their modules, and their looks."""

    _esm = (SCRIPTS / "shared.js").read_text(encoding="utf-8")
    _css = "".join(
        (SCRIPTS / f"{name}.css").read_text(encoding="utf-8")
        for name in ("shared", "heatmap", "predict")
    )
    vega = traitlets.Bytes().tag(sync=True)
    # gzipped JSON: {kind: source}
    modules = traitlets.Bytes().tag(sync=True)


def shared() -> Shared:
    """The hidden widget of this kernel, opened when it is first asked for and if it was closed."""
    if not _opened or _opened[-1].comm is None:
        modules = {kind: (SCRIPTS / f"{kind}.js").read_text("utf-8") for kind in _KINDS}
        compressed = gzip.compress(json.dumps(modules).encode())
        _opened[:] = [Shared(vega=vega_module(), modules=compressed)]
    return _opened[-1]


class PageWidget(anywidget.AnyWidget):
    """A widget that the page's module of the name `kind` draws."""

    _esm = (SCRIPTS / "part.js").read_text(encoding="utf-8")
    shared = traitlets.Instance(ipywidgets.Widget).tag(sync=True, **ipywidgets.widget_serialization)

    def __init__(self, **traits):
        super().__init__(shared=shared(), **traits)

    def _ipython_display_(self, **_) -> None:
        display_widget(self, self)


def rows(table: pd.DataFrame) -> list[dict]:
    """The rows of a table as Vega takes them; NaN and infinities become null."""
    return json.loads(printable_table(table).to_json(orient="records", double_precision=15))


def sent(rows: list[dict]) -> dict[str, list] | list[dict]:
    """Rows as they travel and are saved: by column where all have the same names, else as rows."""
    names = rows[0].keys() if rows else ()
    if not names or any(row.keys() != names for row in rows):
        return rows
    return {name: [row[name] for row in rows] for name in names}


def received(sent: dict[str, list] | list[dict]) -> list[dict]:
    """The rows of what was `sent`."""
    if isinstance(sent, list):
        return sent
    return [dict(zip(sent, values, strict=True)) for values in zip(*sent.values(), strict=True)]


def spec_over(chart: Callable, tables: dict[str, pd.DataFrame]) -> dict:
    """The spec of `chart(**tables)`, its data sets called by the tables' names and left out.

    Raises ValueError where the chart draws other data than the tables it was given, as they are.
    """

    def named(data, **_):
        for name, table in tables.items():
            if data is table:
                return {"name": name}
        raise ValueError(
            f"{chart.__name__} changes a table before it draws it; only the tables"
            f" {', '.join(tables)} as they are can follow a slider: compute the columns beforehand,"
            " or use Vega-Lite's transforms."
        )

    alt.data_transformers.register("workbook-named", named)
    with alt.data_transformers.enable("workbook-named"):
        return hide_from_screen_readers(to_json_values(chart(**tables).to_dict()))


def drawn_names(spec) -> set[str]:
    """Names of the data sets that a spec or a part of it draws."""
    if isinstance(spec, list):
        return set().union(*map(drawn_names, spec))
    if not isinstance(spec, dict):
        return set()
    own = spec.get("data")
    name = {own["name"]} if isinstance(own, dict) and "name" in own else set()
    return name.union(*map(drawn_names, spec.values()))


def close(widget: ipywidgets.Widget) -> None:
    """Close a widget with its children, layout and style: ipywidgets keeps what is open."""
    parts = [*getattr(widget, "children", ())]
    parts += [getattr(widget, "layout", None), getattr(widget, "style", None)]
    for part in parts:
        if isinstance(part, ipywidgets.Widget):
            close(part)
    widget.close()


class LiveChart(PageWidget):
    """An Altair chart as a widget, or `chart(**tables)`, which `push(**tables)` redraws.

    Without a kernel it is a PNG. A thread may push, since only traits are set. The page's element
    says in `data-drawn` which version of the data it shows.
    """

    kind = traitlets.Unicode("live").tag(sync=True)
    spec = traitlets.Dict().tag(sync=True)
    data = traitlets.Dict().tag(
        sync=True, to_json=lambda data, _: {name: sent(rows) for name, rows in data.items()}
    )
    version = traitlets.Int().tag(sync=True)

    def __init__(self, chart, /, **tables: pd.DataFrame):
        spec = spec_over(chart, tables) if tables else to_spec(chart)
        # a rule at a datum has a data set of its own, even beside named tables
        data = spec.pop("datasets", {})
        # a chart may draw a part of its tables; the page refuses rows that nothing draws
        self._drawn = drawn_names(spec)
        data.update(self._rows_of(tables))
        super().__init__(spec=apply_theme(spec), data=data)
        self._chart = chart
        self._tables = tables
        self._description = self.spec.get("description", "")

    def push(self, **tables: pd.DataFrame) -> None:
        """Show these tables instead, those not named staying as they are."""
        self._tables = self._tables | tables
        # data and version travel in one message
        with self.hold_sync():
            self.data = self.data | self._rows_of(tables)
            self.version += 1

    def _rows_of(self, tables: dict[str, pd.DataFrame]) -> dict[str, list[dict]]:
        return {name: rows(table) for name, table in tables.items() if name in self._drawn}

    def describe(self) -> None:
        """Make the description that of what is drawn now."""
        if not (self.version and self._tables and self._description):
            return
        number = self.spec["description"].removesuffix(self._description)
        spec = spec_over(self._chart, self._tables)
        self._description = spec.get("description", self._description)
        self.spec = {**self.spec, "description": number + self._description}

    def on_click(self, callback: Callable[[dict], None]) -> None:
        """Call `callback` with the row of a point that is clicked."""

        def answer(_, content, buffers) -> None:
            if "clicked" in content:
                callback(content["clicked"])

        self.on_msg(answer)

    def picture(self) -> tuple[dict, dict]:
        """The static half of this widget's mime bundle and its metadata, as it looks now."""
        return picture({**self.spec, "datasets": self.data})


def display_widget(widget, chart: PageWidget, handle: DisplayHandle | None = None) -> DisplayHandle:
    """Display `widget` with a picture of the chart inside it; return the display's handle.

    handle: of an earlier display, whose picture is brought up to date instead.
    """
    # in JupyterLab it saves widgets with their notebook
    shared()
    if isinstance(chart, LiveChart):
        chart.describe()
        if handle is None:
            chart.spec = numbered(chart.spec)
    data, metadata = chart.picture()
    view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    data["application/vnd.jupyter.widget-view+json"] = view
    if handle is None:
        handle = DisplayHandle()
        handle.display(data, metadata=metadata, raw=True)
    else:
        handle.update(data, metadata=metadata, raw=True)
    return handle
