"""Colours and texts of token cells, and what a heatmap sets beside its rollouts."""

import html
import re

import numpy as np
import pandas as pd
import pytest

from workbook.views import TokenHeatmap, token_strip
from workbook.views.loss_pushes import with_push
from workbook.views.reading import READING
from workbook.views.token_scale import PALETTE, SHADES, Scale, contrast, scale_of

WORDS = ["To", " add", " 3", "\n", "", " \u202eevil", "<b>", " +"]


def table(rollouts=2, **columns):
    """Rollouts of the same words under one prompt."""
    n = len(WORDS)
    rows = {"group": 0, "rollout": np.repeat(range(rollouts), n), "position": np.tile(range(n), rollouts)}
    signs = np.repeat([1.0 if k % 2 == 0 else -1.0 for k in range(rollouts)], n)
    known = {"token": WORDS * rollouts, "advantage": signs, "entropy": np.linspace(0, 2, n * rollouts)}
    return pd.DataFrame(rows | known | columns)


@pytest.mark.parametrize("name", PALETTE)
def test_text_can_be_read_on_every_colour_of_a_scale(name):
    fills, inks = PALETTE[name]["fills"], PALETTE[name]["inks"]
    assert len(fills) == (SHADES if name != "categories" else 6)
    assert min(contrast(fill, ink) for fill, ink in zip(fills, inks, strict=True)) >= 4.5
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01), "as WCAG's own example has it"


def test_a_one_sided_column_runs_from_light_at_zero_to_dark_and_has_no_signs():
    values = pd.Series([0.0, 1.0, np.nan, 2.0])
    up, down = scale_of("entropy", values), scale_of("logp", -values)
    assert (up.side, down.side) == (1, -1)
    assert up.looks(values) == down.looks(-values), "light is zero for both"
    lightness = [contrast(fill, "#000000") for fill, _ in up.looks([0.0, 0.5, 1.0, 1.5, 2.0])]
    assert lightness == sorted(lightness, reverse=True)
    assert set(up.signs(values)) == {""}
    assert up.looks([np.nan]) == [("", "#000000")]
    assert (down.format(-1.5), down.format(np.nan)) == ("−1.5", "unknown")


def test_a_signed_column_is_diverging_even_where_all_values_are_of_one_sign():
    for name in ("advantage", "true credit", "push", "dlogp", "ratio"):
        assert scale_of(name, pd.Series([0.0, 1.5])).side == 0
    scale = Scale(2.0, center=1.0)
    assert scale.signs([1.0, 1.5, 0.5, np.nan]).tolist() == ["", "⁺", "⁻", ""]
    assert scale.shades([1.0, 3.0, -9.0, np.nan]).tolist() == [SHADES // 2, SHADES - 1, 0, -1]


def test_the_answer_to_read_is_what_the_model_wrote():
    page = TokenHeatmap(table(), "entropy").to_html()
    text = html.unescape(re.sub("<[^>]*>", "", page))
    assert "To add 3⏎\n∅ \\u202eevil<b> +" in text
    assert "<b>" not in page.replace("<b>entropy</b>", "")
    assert "sup" not in page
    assert "<sup" in TokenHeatmap(table(), "advantage").to_html()
    whole_words = table(token=["so", "7", ";", "is", "a", "b", "c", "d"] * 2)
    assert "so 7 ; is" in re.sub("<[^>]*>", "", TokenHeatmap(whole_words, "entropy").to_html()), (
        "words get spaces between"
    )


def test_what_is_unknown_is_called_so_everywhere():
    rows = table(reward=np.nan, credit=[np.nan] * 16, category=[None, *["style"] * 15])
    heatmap = TokenHeatmap(rows, "credit")
    heatmap.pinned = 0
    assert heatmap.shape["rows"][0] == "0  reward unknown"
    assert heatmap.details["lines"][0].endswith("advantage +1, credit unknown")
    texts = [heatmap.to_html(), TokenHeatmap(rows, "category").to_html(), str(heatmap.details)]
    strips = [str(token_strip(rows, name).to_dict()["datasets"]) for name in ("credit", "category")]
    for text in [*texts, *strips]:
        assert "nan" not in text.replace("'value': nan", "")
        assert "unknown" in text


def test_a_picture_to_read_wraps_whole_answers_at_its_width():
    chart = token_strip(table(), "advantage", width=100, wrap=True).to_dict()
    (cells,) = chart["datasets"].values()
    tokens = [cell for cell in cells if cell["position"] is not None and cell["position"] == cell["position"]]
    assert len(tokens) == len(table())
    assert max(cell["right"] for cell in tokens) <= 100
    assert len({cell["row"] for cell in tokens}) > 4, "the lines of two answers"
    heatmap = TokenHeatmap(table(), mode="read")
    data, _ = heatmap.picture()
    assert "image/png" in data
    assert data[READING] == heatmap.to_html()


def test_a_column_stands_beside_another_in_one_scale():
    rows = table(credit=np.linspace(-3, 3, 16))
    heatmap = TokenHeatmap(rows, "advantage", compare="credit")
    assert (heatmap.other["column"], heatmap.other["same"]) == ("credit", True)
    first, second = heatmap._panes.drawn("advantage")
    assert first.scale == second.scale == scale_of("credit", rows["credit"])
    first, second = TokenHeatmap(rows, "advantage", compare="entropy")._panes.drawn("advantage")
    assert (first.scale.side, second.scale.side) == (0, 1), "an entropy has no sign"
    assert "vconcat" in str(heatmap.picture()) or "image/png" in heatmap.picture()[0]
    assert set(heatmap.choices) == {"column advantage", "column entropy", "column credit"}
    heatmap.compare = ""
    assert heatmap.other == {}


def test_the_same_rollouts_of_another_table_come_in_the_same_order():
    rows = table(push=np.linspace(-1, 1, 16))
    mixed = rows.assign(push=rows["push"] * 2).sample(frac=1, random_state=0)
    heatmap = TokenHeatmap(rows, "push", compare=mixed)
    assert heatmap.other["same"]
    assert heatmap.other["names"] == ["this table", "other table"]
    slot = next(column["slot"] for column in heatmap.other["columns"] if column["name"] == "push")
    values = np.frombuffer(heatmap.other["values"], "<f4").reshape(-1, 16)[slot]
    np.testing.assert_allclose(values, 2 * rows["push"], rtol=1e-6)
    limits = [
        next(c for c in columns if c["name"] == "push")["limit"]
        for columns in (heatmap.columns, heatmap.other["columns"])
    ]
    assert limits[0] == limits[1]
    others = rows.assign(token=WORDS[::-1] * 2, prompt="p")
    assert TokenHeatmap(rows.assign(prompt="p"), compare=others).other["note"] == "other rollouts, of the same prompt"
    assert TokenHeatmap(rows, compare=others).other["note"] == "other rollouts, of another prompt"


def test_two_objectives_stand_beside_one_another():
    rows = with_push(table(ratio=np.tile([0.5, 1.5], 8)), {"loss_type": "dr_grpo"})
    heatmap = TokenHeatmap(rows, "push", compare={"loss_type": "cispo", "epsilon_high": 1.2})
    assert heatmap.other["names"] == ["dr_grpo", "cispo, epsilon_high 1.2"]
    expected = with_push(rows, {"loss_type": "cispo", "epsilon_high": 1.2})["push"]
    np.testing.assert_allclose(heatmap._panes.other_rows["push"], expected)
    assert (rows["push"] - expected).abs().max() > 0
    assert rows.attrs["objective"]["loss_type"] == "dr_grpo", "the reader's table stays as it is"


@pytest.mark.parametrize(
    ("compare", "sentence"),
    [
        ("nothing", r"compare= needs the column\(s\) nothing; the table has group"),
        ("token", "compare='token' is a column of texts; compare with a column of numbers"),
        (3, "compare=3 is no recorded step: it is a table and no run"),
        ({"loss_type": "cispo"}, "compare= with an objective needs the table's own pushes"),
        (1.5, "compare= takes a column's name, .* and not a float"),
    ],
)
def test_what_cannot_stand_beside_is_refused(compare, sentence):
    with pytest.raises(ValueError, match=sentence):
        TokenHeatmap(table(), compare=compare)


def test_a_mode_is_one_of_three():
    with pytest.raises(ValueError, match="mode='wrap' is none of auto, align, read"):
        TokenHeatmap(table(), mode="wrap")
