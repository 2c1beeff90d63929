"""Curves of chapter 05 over the number of prompts in a step, as charts and explorers; tables of the study dose.

Every interval is a t interval over units (policy and prompts). The paper's place on the axis is our guess: it names
batches of 16 to 96 in one figure, and a step of RL with verifiable rewards usually holds some hundred prompts.
"""

from __future__ import annotations

from contextlib import suppress

import altair as alt
import pandas as pd

from workbook.probes.dose import MATCHED, SETS
from workbook.statistics import unit_curve
from workbook.studies.claim import FAMILY, Tables
from workbook.studies.record import NotMeasured
from workbook.studies.registration import registered_outcome
from workbook.topics.flips.claims import contrasts, predicted_follows
from workbook.topics.flips.dose import ALPHABETS
from workbook.views.curves import curve_chart
from workbook.views.explorer import Explorer, menu

PAPER = (256, 1024, "a large batch: our guess of the paper's")
PROMPTS = "prompts that push in the step"
MEASURED, PREDICTED, OTHERS = "measured", "1/2 + (alone - 1/2) own / (own + others)", "the other prompts' part alone"
DIAL_WORDS = {"width": "By width", "operands": "By operands a chain", "sft_steps": "By steps of supervised training"}
PANEL = "band: 95 % t interval over policies"
OWN_LEGENDS = dict.fromkeys(("color", "shape", "strokeDash"), "independent")
TOKEN_NAMES = {"unsure": "p below 0.9", "moved": "moved"} | {name: name for name in ("all", *MATCHED)}
TOKEN_MENU = [(TOKEN_NAMES[name], name) for name in SETS]  # "unsure" is registered; elsewhere the cut is 0.5
SHIFT_LINES = ("equal prompts", "equal gradient energy")
SHIFT_LINES += tuple(f"{name}, this policy now" for name in SHIFT_LINES)
NET_SUBTITLE = "(net of shared − asked share of specific) / mean |change|; below 0: they keep less"
NET_TITLES = {
    "y_title": "shared minus asked share of specific",
    "title": "What shared tokens keep of what specific ones get",
    "reference": [0.0],
}
KEPT = {"less than half": 0.5, "less": 1.0}  # what shared tokens are asked to keep of what specific ones get


def _of(table: str, alphabets: int, tables: Tables | None) -> pd.DataFrame:
    """A table of dose, or with private alphabets of dose_alphabets."""
    tables = tables or FAMILY
    if alphabets == 1:
        return tables[f"dose/{table}"]
    rows = tables[f"dose_alphabets/{table}"]
    if alphabets not in set(rows["alphabets"]):
        raise ValueError(
            f"alphabets={alphabets!r} was not measured: choose one of 1, {', '.join(map(str, ALPHABETS))}."
        )
    return rows[rows["alphabets"] == alphabets]


# --- H1


def compute_dose(tokens: str = "unsure", alphabets: int = 1, tables: Tables | None = None) -> dict[str, pd.DataFrame]:
    """Whose sign a token follows, against prompts per step: {"curve": columns series, prompts, mean, low, high, units}.

    series: measured; predicted from own / (own + others); what the other prompts' part alone does.  tokens: of SETS.
    Raises ValueError for others.
    """
    if tokens not in SETS:
        raise ValueError(f"tokens={tokens!r} is unknown: choose one of {', '.join(SETS)}.")
    rows = _of("rates", alphabets, tables).query("tokens == @tokens")
    rows = predicted_follows(rows.assign(tokens="unsure"))
    beyond = rows[rows["prompts"] > 1]
    lines = {MEASURED: (rows, "follows"), PREDICTED: (rows, "predicted"), OTHERS: (beyond, "others_follow")}
    curves = [unit_curve(part, "prompts", column).assign(series=name) for name, (part, column) in lines.items()]
    return {"curve": pd.concat(curves, ignore_index=True)}


def dose_chart(curve: pd.DataFrame) -> alt.LayerChart:
    """Chance that a token goes where its rollout's sign says, against prompts per step; table of compute_dose."""
    return curve_chart(
        curve,
        "prompts",
        series="series",
        x_title=PROMPTS,
        y_title="chance to follow the own sign",
        title="The more prompts push, the less a token follows its own rollout",
        paper=PAPER,
        reference=[0.5],
        subtitle="line: mean; band: 95 % t interval over ten policies; dashed: the sign says nothing",
        scale={"domain": [0.45, 0.8], "clamp": True},
    )


def describe_dose(curve: pd.DataFrame) -> str:
    """Where the measured curve starts and ends."""
    line = curve[curve["series"] == MEASURED]
    ends = [f"{row.mean:.3f} [{row.low:.3f}, {row.high:.3f}]" for row in line.iloc[[0, -1]].itertuples()]
    doses = line["prompts"].iloc[[0, -1]].tolist()
    units = int(line["units"].min())
    return f"{ends[0]} with {doses[0]} prompt, {ends[1]} with {doses[1]}; {units} units."


def explore_dose() -> Explorer:
    """Menus over kinds of token and what prompts share: how far does a token follow its own rollout's sign?"""
    controls = {
        "tokens": menu("unsure", TOKEN_MENU, "tokens"),
        "alphabets": menu(1, [1, *ALPHABETS], "private alphabets"),
    }
    return Explorer(compute_dose, dose_chart, controls, describe_dose)


def distance_chart(tables: Tables | None = None) -> alt.LayerChart:
    """H1's distance of the two signs' shares against prompts per step, for each kind of token."""
    rows = _of("rates", 1, tables)
    curve = unit_curve(rows.assign(tokens=rows["tokens"].map(TOKEN_NAMES)), "prompts", "crossed", by="tokens")
    threshold = registered_outcome("dose", "H1").threshold
    return curve_chart(
        curve,
        "prompts",
        series="tokens",
        x_title=PROMPTS,
        y_title="distance of the two signs' shares",
        title="The two signs' shares grow alike as more prompts push",
        paper=PAPER,
        reference=[threshold],
        subtitle=f"line: mean; band: 95 % t interval over policies; dashed: {threshold:g}, as registered",
        names=[TOKEN_NAMES[name] for name in SETS],
        height=280,
    )


# --- H5


def compute_net(
    asked: str = "less than half", matched: bool = False, alphabets: int = 1, tables: Tables | None = None
) -> dict[str, pd.DataFrame]:
    """H5's contrast against prompts per step: {"curve": columns series (how shared), prompts, mean, low, high, units}.

    asked: of KEPT.  matched: shared tokens weigh as specific ones do over bands of confidence.
    """
    if asked not in KEPT:
        raise ValueError(f"asked={asked!r} is unknown: choose one of {', '.join(KEPT)}.")
    rows = contrasts(_of("net", alphabets, tables), KEPT[asked], matched)
    rows = rows[rows["identity"] != "position-shared"]  # too few unsure tokens for a curve
    curve = unit_curve(rows, "prompts", "contrast", by="identity").rename(columns={"identity": "series"})
    return {"curve": curve}


# --- H6, what prompts share, and one policy now


def shift_chart(tables: Tables | None = None, live: pd.DataFrame | None = None) -> alt.LayerChart:
    """H6's shift of movement to result tokens, against prompts per step, at equal prompts and at equal energy.

    live: `shift_curve` of one policy's blocks by sign, drawn as lines of their own.
    """
    names = {False: "equal prompts", True: "equal gradient energy"}
    rows = _of("shift", 1, tables).query("category == 'result'")
    rows = rows.assign(series=rows["equal_energy"].map(names))
    if live is not None:
        now = live[live["category"] == "result"].assign(seed=0)
        rows = pd.concat([rows, now.assign(series=now["equal_energy"].map(names) + ", this policy now")])
    return curve_chart(
        unit_curve(rows, "prompts", "shift", by="series"),
        "prompts",
        series="series",
        x_title="prompts of the step on positive rollouts alone",
        y_title="shift of movement to result tokens",
        title="With both signs more of the movement is on results",
        paper=PAPER,
        reference=[(0.0, "as with positive rollouts alone")],
        names=[name for name in SHIFT_LINES if live is not None or "now" not in name],
    )


def sharing_chart(tables: Tables | None = None) -> alt.LayerChart:
    """Whose sign unsure tokens follow, against prompts per step, by private alphabets, as far as measured."""
    rows = []
    for count in (1, *ALPHABETS):
        with suppress(NotMeasured):
            rows.append(_of("rates", count, tables).query("tokens == 'unsure'").assign(level=count))
    return _levels_chart(
        pd.concat(rows), "alphabet", "How many prompts it takes, by what prompts share", PAPER, (0.45, 0.8)
    )


def dials_chart(tables: Tables | None = None) -> alt.HConcatChart:
    """The same by width, length of the chain and steps of supervised training, side by side."""
    table = (tables or FAMILY)["dose_dials/rates"].query("tokens == 'unsure'")
    panels = [
        _levels_chart(table[table["dial"] == dial], "", words, None, (0.45, 0.9), width=190, subtitle=PANEL)
        for dial, words in DIAL_WORDS.items()
    ]
    return alt.hconcat(*panels, spacing=12, padding=12).resolve_scale(**OWN_LEGENDS)


def _levels_chart(rows: pd.DataFrame, word: str, title: str, paper, domain, **size) -> alt.LayerChart:
    """The chance to follow the own sign against prompts per step: a line for each level of what policies differ in."""
    levels = sorted(rows["level"].unique())
    names = [f"{level:,} {word}{'s' if word and level > 1 else ''}".strip() for level in levels]
    rows = rows.assign(series=rows["level"].map(dict(zip(levels, names, strict=True))))
    return curve_chart(
        unit_curve(rows, "prompts", "follows", by=["level", "series"]).sort_values(["level", "prompts"]),
        "prompts",
        series="series",
        x_title=PROMPTS,
        y_title="chance to follow the own sign",
        title=title,
        paper=paper,
        reference=[(0.5, "the sign says nothing")],
        names=names,
        scale={"domain": domain, "clamp": True},
        **size,
    )
