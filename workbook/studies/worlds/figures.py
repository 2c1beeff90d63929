"""The tables that chapters draw of worlds and of the arena (`workbook.studies.figures`)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from workbook.app.arena import CONTROLS, MEASURED, arena_table
from workbook.app.half_way import ENDS, best_attainable, own_rates
from workbook.chapters.worlds.charts import KINDS, NAMES, SHOWN
from workbook.statistics import t_interval, unit_curve
from workbook.studies.record import Tables
from workbook.studies.registration import WORLD_SCALES
from workbook.studies.worlds.arena_outcomes import SCALES, rule_ends
from workbook.studies.worlds.outcomes import (
    fit_price_line,
    predicted_prices,
    price_points,
    world_name,
    world_tables,
)
from workbook.studies.worlds.question_claims import AHEAD, BIAS, TAX
from workbook.studies.worlds.questions import ASKED, TWINS
from workbook.views.figures import INTERVAL

CONTROL_COLUMNS = ["world", "seed", "arm", "lr", "batch", *ENDS, "sampled_tokens"]


def values_over_tokens(scales: Sequence[str] = tuple(WORLD_SCALES), folder=None) -> pd.DataFrame:
    """A row per world, rule and reading: batch, thousands of tokens, value's mean, low and high."""
    parts = []
    for scale in scales:
        runs = world_tables(scale, folder)["worlds/runs"]
        rows = runs[runs["arm"].isin(SHOWN)]
        tokens = rows.groupby(["arm", "batch"])["sampled_tokens"].mean().rename("tokens") / 1000
        curve = unit_curve(rows, "batch", "value", by="arm").join(tokens, on=["arm", "batch"])
        parts.append(curve.assign(world=world_name(scale)))
    table = pd.concat(parts, ignore_index=True)
    return table.assign(rule=table["arm"].map(NAMES)).drop(columns="arm")


def world_prices(folder=None) -> pd.DataFrame:
    """A row per world and kind (of KINDS): x, the price's mean, low and high, and the line through
    the worlds that were not held out.
    """
    tables = Tables("worlds", folder)
    came, said = price_points(tables, tuple(WORLD_SCALES)).dropna(), predicted_prices(tables)
    came = came.rename(columns={"price": "mean"})
    came["kind"] = np.where(came["world"].isin(said["world"]), KINDS[1], KINDS[0])
    line = fit_price_line(price_points(tables))
    table = pd.concat([came, said.assign(kind=KINDS[2])], ignore_index=True)
    return table.assign(intercept=line.intercept, slope=line.slope, worlds=line.worlds)


def world_settings(scales: Sequence[str] = tuple(ASKED), folder=None) -> pd.DataFrame:
    """A row per setting with its world, weights and part: mean, low and high."""
    rows = []
    for scale in scales:
        tables = world_tables(scale, folder)
        for name in ASKED.get(scale, TWINS):
            for weights, arm in (("its own weights", name), ("equal weights", TWINS[name])):
                whole = BIAS(tables, part="mean2", whole="total2", arm=arm)
                parts = {
                    "bias, share of the expected update": BIAS(tables, arm=arm),
                    "noise, share of one batch's": 1 - whole,
                    "tax, over plain's": TAX(tables, arm),
                    "value, minus plain's": AHEAD(tables, arm),
                }
                for part, values in parts.items():
                    spread = t_interval(values)
                    ends = np.exp(spread) if "tax" in part else spread
                    row = {"default": f"{name}, {world_name(scale)}", "weights": weights}
                    rows.append(row | {"part": part} | dict(zip(INTERVAL, ends, strict=True)))
    return pd.DataFrame(rows)


def world_rates(scales: Sequence[str] = tuple(WORLD_SCALES), folder=None) -> pd.DataFrame:
    """A row per world and rule of `worlds`: its own rate, and the world's best attainable value."""
    parts = []
    for scale in scales:
        tuned = world_tables(scale, folder)["worlds_rates/runs"]
        own = own_rates(tuned)["lr"].rename_axis("rule").reset_index()
        parts.append(own.assign(world=world_name(scale), best=best_attainable(tuned)))
    return pd.concat(parts, ignore_index=True)[["world", "rule", "lr", "best"]]


def world_controls(scales: Sequence[str] = SCALES, folder=None) -> pd.DataFrame:
    """The runs of the arena's controls, reading by reading, for `compare_rule`."""
    parts = []
    for scale in scales:
        tables = world_tables(scale, folder)
        runs = pd.concat([tables["worlds/runs"], tables["arena_mix/runs"]], ignore_index=True)
        chosen = runs[runs["arm"].isin(CONTROLS)]
        parts.append(chosen.assign(world=world_name(scale))[CONTROL_COLUMNS])
    return pd.concat(parts, ignore_index=True)


def arena_rows(scales: Sequence[str] = SCALES, folder=None) -> pd.DataFrame:
    """The `arena_table` of all measured rules."""
    ends = {world_name(scale): rule_ends(world_tables(scale, folder)) for scale in scales}
    return arena_table(ends).assign(source=MEASURED)


FIGURES = {
    "worlds": {"worlds/map": values_over_tokens, "worlds/prices": world_prices},
    "worlds_defaults": {"worlds/defaults": world_settings},
    "worlds_rates": {"worlds/rates": world_rates},
    "arena": {"worlds/arena": arena_rows, "worlds/controls": world_controls},
}
