"""Charts say the truth and show untrusted text as text; widgets push rows and leave a picture
behind.
"""

import gc
import gzip
import io
import json
import re
import weakref

import altair as alt
import numpy as np
import pandas as pd
import pytest
import vl_convert
from IPython.utils.capture import capture_output
from ipywidgets.widgets.widget import _instances
from PIL import Image, ImageChops
from refusals import refused

from workbook import views
from workbook.chapters.groups import (
    compute_gradients_meet,
    explore_gradients_meet,
    gradients_meet_chart,
)
from workbook.chapters.groups.toy import PUSHED
from workbook.places import PACKAGE
from workbook.views import (
    LiveChart,
    display_widget,
    enable_charts,
    fold,
    reward_before_after,
    style,
    token_strip,
)
from workbook.views.charts import PART_NAMES, signal_noise_chart
from workbook.views.live import vega_module
from workbook.views.style import (
    MAX_COLOR_SHIFT,
    bundle,
    compress_png,
    diverging,
    finish,
    limit,
    png,
    to_json_values,
    vegalite_version,
    visible,
)

WIDGET, VEGA, PNG = (
    "application/vnd.jupyter.widget-view+json",
    "application/vnd.vegalite.v5+json",
    b"\x89PNG",
)
HOSTILE = ["<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\"'&", "\u202eevil\u2066"]
HOSTILE += ["a\nb\x00\x1b[31m", ""]


pytestmark = pytest.mark.usefixtures("shell")


def curve(n, **columns):
    return pd.DataFrame(
        {"step": np.arange(1, n + 1), "reward": np.linspace(0.4, 0.9, n), **columns}
    )


def learning_curve(metrics, steps=None):
    x = alt.X("step:Q", title="optimizer step").scale(domain=[0, steps] if steps else alt.Undefined)
    chart = (
        alt.Chart(metrics)
        .mark_line()
        .encode(x=x, y=alt.Y("reward:Q", title="mean reward (0 to 1)"))
    )
    return finish(chart, "Reward", "of each step", "A line.")


def table(tokens=("so", " 7", "so", " 4"), advantages=(1.0, 1.0, -1.0, -1.0)):
    rollouts = np.repeat([0, 1], [len(tokens) - len(tokens) // 2, len(tokens) // 2])
    positions = [int(i) for r in (0, 1) for i in range((rollouts == r).sum())]
    return pd.DataFrame(
        {
            "group": 0,
            "rollout": rollouts,
            "position": positions,
            "token": tokens,
            "advantage": advantages,
        }
    )


SUMMARY = pd.DataFrame(
    {"label": ["before", "after"], "mean": [0.4, 0.9], "low": [0.3, 0.8], "high": [0.5, 0.95]}
)
CHARTS = {
    "learning_curve": lambda: learning_curve(curve(5), steps=10),
    "reward_before_after": lambda: reward_before_after(SUMMARY),
    "gradients_meet_chart": lambda: gradients_meet_chart(compute_gradients_meet()),
    "token_strip": lambda: token_strip(table()),
    "token_strip with a title": lambda: token_strip(table(), title="Rollout 0 is better"),
    "token_strip of text": lambda: token_strip(
        table().assign(category=["style", "result"] * 2), "category"
    ),
}


@pytest.mark.parametrize("make", CHARTS.values(), ids=CHARTS)
def test_each_chart_draws_and_says_what_it_shows(make):
    spec = make().to_dict()
    assert png(spec, scale=1).startswith(PNG)
    assert spec["title"]["text"]
    assert spec["title"]["subtitle"]
    assert spec["description"].startswith(spec["title"]["text"])
    data, about = bundle(spec)
    assert data[VEGA]["$schema"].endswith("v5.json")
    assert about["image/png"]["alt"] == spec["description"]
    assert about["image/png"]["width"] == style.WIDTH
    svg = vl_convert.vegalite_to_svg(style.apply_theme(spec), vl_version=vegalite_version())
    assert min(float(size) for size in re.findall(r'font-size="([\d.]+)px"', svg)) >= 12
    assert {"image/png", "text/plain"} <= set(data)
    json.dumps(data, allow_nan=False)


def test_no_chart_asks_for_letters_below_12_pixels():
    source = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    assert min(int(size) for size in re.findall(r'ontSize"?[=:] ?(\d+)', source)) >= 12


def test_panels_keep_their_widths_and_a_readers_own_chart_is_as_wide_as_asked():
    part = learning_curve(curve(5)).properties(title="", width=200)
    joined = (part | part).properties(description="Panels.").to_dict()
    themed = style.apply_theme(joined)
    assert [panel["width"] for panel in themed["hconcat"]] == [200, 200]
    assert themed["description"] == "Panels."
    by_parts = style.apply_theme((part & part).to_dict())
    assert by_parts["description"] == " ".join(2 * [part.to_dict()["description"]])
    own = alt.Chart(curve(5)).mark_line().encode(x="step:Q", y="reward:Q").properties(width=200)
    assert 200 < bundle(own.to_dict())[1]["image/png"]["width"] < 300


def test_bars_of_several_panels_fit_into_the_text():
    rows = [
        (panel, category, part, order, 0.2, 1.0)
        for panel in ("before training", "after training")
        for category in ("all", "sequence ratio, clip 0.03")
        for order, part in enumerate(PART_NAMES.values())
    ]
    columns = ["panel", "category", "part", "order", "share", "size"]
    chart = signal_noise_chart(pd.DataFrame(rows, columns=columns))
    _, about = bundle(chart.to_dict())
    assert 0.9 * style.WIDTH <= about["image/png"]["width"] <= 1.02 * style.WIDTH


def test_figures_are_numbered_in_the_order_of_drawing_and_keep_their_number(monkeypatch):
    monkeypatch.setattr(style, "_numbers", {})
    first, second = learning_curve(curve(5)).to_dict(), reward_before_after(SUMMARY).to_dict()
    monkeypatch.setenv("JPY_SESSION_NAME", "/somewhere/04_a_policy.ipynb")
    numbers = [bundle(spec)[0]["text/plain"].split(". ")[1] for spec in (first, second, first)]
    assert numbers == ["4.1", "4.2", "4.1"]
    assert bundle(second)[0][VEGA]["title"]["text"] == [f"Fig. 4.2. {second['title']['text']}"]
    assert bundle(views.book_path("04").to_dict())[0]["text/plain"].startswith("You are here")
    live = LiveChart(learning_curve(curve(3)))
    for _ in range(2):  # shown again it has one number still
        (data,) = shown(lambda: display_widget(live, live))
        assert data["text/plain"].count("Fig. 4.1. ") == 1
    heatmap = views.TokenHeatmap(table())
    (data,) = shown(heatmap._ipython_display_)
    assert {text[:10] for text in (data["text/plain"], heatmap.title)} == {"Fig. 4.3. "}


@pytest.mark.parametrize(
    ("chart", "frame", "column"),
    [(reward_before_after, SUMMARY, "low"), (token_strip, table(), "token")],
)
def test_a_missing_column_is_named(chart, frame, column):
    with pytest.raises(ValueError, match=column):
        chart(frame.drop(columns=column))


def test_limit_is_the_98th_percentile_of_the_magnitude_and_never_zero():
    values = np.concatenate([np.linspace(-1, 1, 1001), [1e6]])
    assert limit(values) == pytest.approx(np.percentile(np.abs(values), 98))
    assert limit([0.0, 0.0]) == limit([]) == limit([float("nan")]) == 1.0
    assert limit([0.0] * 99 + [3.0]) == 3.0  # a percentile of 0 would make the scale empty
    assert diverging(2.0).to_dict()["domain"] == [-2.0, 2.0]


def cells_of(strip):
    """The cells of a token strip that hold a token."""
    (cells,) = strip.to_dict()["datasets"].values()
    return [
        cell
        for cell in cells
        if cell["position"] is not None and cell["position"] == cell["position"]
    ]


def test_token_strip_has_one_cell_a_token_with_its_sign():
    cells = cells_of(token_strip(table(advantages=(1.0, 0.0, -2.0, float("nan")))))
    assert [cell["sign"] for cell in cells] == ["⁺", "", "⁻", ""]
    assert [cell["text"] for cell in cells] == ["so", " 7", "so", " 4"]
    assert [cell["row"] for cell in cells] == ["rollout 0 line 0"] * 2 + ["rollout 1 line 0"] * 2
    assert cells[0]["left"] == cells[2]["left"] == 0 < cells[0]["right"] == cells[1]["left"]
    assert cells_of(token_strip(table(), title="A result")) == cells_of(token_strip(table()))
    moved = token_strip(table().assign(dlogp=0.5), "dlogp")
    assert "'title': 'dlogp (nats)'" in str(moved.to_dict())
    narrow = cells_of(token_strip(table(), width=30))
    assert [cell["row"] for cell in narrow] == [
        f"rollout {row} line {line}" for row in (0, 1) for line in (0, 1)
    ]
    with refused("group", 5):
        token_strip(table(), group=5)


def test_untrusted_token_text_stays_text():
    strip = token_strip(table(tokens=HOSTILE, advantages=[1.0] * len(HOSTILE)))
    shown = "".join(cell["text"] for cell in cells_of(strip))
    assert shown.isprintable()
    assert visible("\u202eevil\u2066", longest=20) == "\\u202eevil\\u2066"

    svg = vl_convert.vegalite_to_svg(strip.to_dict(), vl_version=vegalite_version())
    assert "&lt;script&gt;" in svg
    assert "<script" not in svg
    assert "<img" not in svg


@pytest.mark.parametrize("p", [0.05, 0.5, 0.95])
def test_gradients_cancel_on_the_shared_token_only(p):
    net = compute_gradients_meet(p_shared=p).query("source == 'net'").set_index("token")["push"]
    assert net[PUSHED[0]] == pytest.approx(0, abs=1e-12)
    assert net[PUSHED[1]] == pytest.approx(1)
    assert net[PUSHED[2]] == pytest.approx(-1)
    together = (
        compute_gradients_meet(advantage_b=1, p_shared=p)
        .query("source == 'net'")
        .set_index("token")["push"]
    )
    assert together[PUSHED[0]] == pytest.approx(2 * (1 - p))
    with refused("p_shared", 1):
        compute_gradients_meet(p_shared=1)


def test_live_chart_pushes_rows_and_leaves_the_spec():
    live, seen = LiveChart(lambda metrics: learning_curve(metrics, steps=9), metrics=curve(3)), []
    live.observe(lambda change: seen.append(change["name"]))
    live.push(metrics=curve(4))
    assert (seen, len(live.data["metrics"])) == (["data", "version"], 4)


def shown(call):
    with capture_output() as captured:
        call()
    return [output.data for output in captured.outputs]


def test_widgets_leave_a_picture_behind():
    live = LiveChart(learning_curve(curve(3)))
    for call in (
        lambda: display_widget(live, live),
        live._ipython_display_,
        explore_gradients_meet().display,
    ):
        (data,) = shown(call)
        assert set(data) == {WIDGET, "image/png", "text/plain"}


def test_charts_show_as_bundles_once_enabled():
    enable_charts()
    assert VEGA in learning_curve(curve(6000))._repr_mimebundle_()[0]
    assert alt.renderers.active == "workbook"
    assert (learning_curve(curve(30)) & learning_curve(curve(40)))._repr_mimebundle_()[0][
        "text/plain"
    ] != "chart"


# --- what can't be drawn
def one_text(text: str) -> dict:
    """A spec that draws a text."""
    encoding = {"text": {"field": "t"}, "x": {"field": "x", "type": "quantitative"}}
    return {"data": {"values": [{"x": 1, "t": text}]}, "mark": "text", "encoding": encoding}


@pytest.mark.parametrize("place", ["row", "title", "field", "font", "description"])
def test_characters_that_no_svg_holds_are_drawn_as_others(place):
    for text in ("a\0b", "\x1bm", "\ufffe", "\ud800", "\U0001fffe"):
        spec = one_text(text)
        if place == "field":
            spec = json.loads(json.dumps(spec).replace('"t"', json.dumps(text)))
        elif place != "row":
            spec |= {"config": {"font": text}} if place == "font" else {place: text}
        data, about = bundle(spec)
        assert "image/png" in data
        json.dumps([data, about], ensure_ascii=False, allow_nan=False).encode()
    assert to_json_values(one_text("\0"))["data"]["values"][0]["t"] == "␀"
    chart = (
        alt.Chart(pd.DataFrame({"token": pd.Series(["a\0", "\ud800"], dtype=object)}))
        .mark_bar()
        .encode(x="token")
    )
    enable_charts()
    assert "image/png" in chart._repr_mimebundle_()[0]


def test_a_chart_that_can_not_be_drawn_is_shown_with_a_sentence():
    data, about = bundle({"mark": 5, "description": "Five."})
    assert about == {}
    assert data["text/plain"].startswith(
        "Five.\nNo picture of this chart: Vega-Lite refuses its spec"
    )
    assert set(data) == {"text/plain"}
    assert "image/png" in bundle(one_text("a"))[0], "the next one is drawn"


def test_tables_travel_by_column():
    live = LiveChart(learning_curve(curve(30)))
    (name,) = live.data
    sent = live.get_state("data")["data"]
    rows = [
        dict(zip(sent[name], row, strict=True)) for row in zip(*sent[name].values(), strict=True)
    ]
    assert rows == live.data[name]


def test_vega_is_bundled_once_for_all_kernels_and_anew_when_its_file_is_damaged(
    monkeypatch, tmp_path
):
    monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path / "new"))
    first = vega_module.__wrapped__()
    text = gzip.decompress(first).decode()
    assert "vegaEmbed" in text
    (kept,) = (tmp_path / "new").iterdir()
    bundled = []
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda *_, **__: bundled.append(1) or text)
    assert vega_module.__wrapped__() == first
    assert bundled == []
    kept.write_bytes(b"no gzip")
    assert vega_module.__wrapped__() == first
    assert kept.read_bytes() == first


# --- what is closed is freed
def test_closed_charts_and_explorers_are_freed():
    live, one = LiveChart(learning_curve(curve(3))), explore_gradients_meet()
    open_before = set(_instances) - {part.model_id for part in (live, live.layout)}
    references = [weakref.ref(thing) for thing in (live, one, one.chart, one.box)]
    one.set(p_shared=0.3)
    live.close()
    live.layout.close()
    one.close()
    del live, one
    gc.collect()
    assert [reference() for reference in references] == [None] * 4
    assert not set(_instances) - open_before


def test_a_picture_is_halved_only_where_nobody_sees_it():
    few = Image.new("RGB", (64, 64), "white")
    few.putdata([(shade, 255 - shade, 128) for shade in range(128) for _ in range(32)])
    many = Image.effect_noise((64, 64), 100).convert("RGB")
    many.putdata([(x * 4, y * 4, (x * y) % 256) for x in range(64) for y in range(64)])
    for image, mode in ((few, "P"), (many, "RGB")):
        written = Image.open(io.BytesIO(compress_png(image)))
        extrema = ImageChops.difference(written.convert("RGB"), image).getextrema()
        assert (written.mode, max(high for _, high in extrema) <= MAX_COLOR_SHIFT) == (mode, True)


def test_a_folded_table_is_closed_counted_and_escaped():
    shown = fold(pd.DataFrame({"token": ["<script>", "a"]}), "Tokens & more")
    page = shown._repr_html_()
    assert "<summary>Tokens &amp; more (2 rows)</summary>" in page
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "Tokens & more" in repr(shown)


def test_a_check_is_one_line_with_its_largest_error_and_stops_where_it_does_not_hold():
    with capture_output() as captured:
        views.checked("a < b", np.array([[1e-12, -3e-11]]), 1e-10)
    (data,) = (output.data for output in captured.outputs)
    assert data["text/plain"] == "✓ a < b: 2 numbers, error below 1e-10; largest error: 3.0e-11"
    assert (
        "a &lt; b: 2 numbers, error below 1e-10</summary>largest error: 3.0e-11"
        in data["text/html"]
    )
    for wrong in (1e-10, [0.0, float("nan")]):
        with pytest.raises(AssertionError, match="a < b: not so"):
            views.checked("a < b", wrong, 1e-10)
