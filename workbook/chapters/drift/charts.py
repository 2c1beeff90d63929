"""Tables and charts of the studies of exchangeable weights, of units' numbers (`claims`) with 95 %
t intervals.
"""

import altair as alt
import numpy as np
import pandas as pd

from workbook.messages import require_one_of
from workbook.probes.energy import two_word_share
from workbook.statistics import t_interval, unit_curve
from workbook.studies.drift import claims
from workbook.studies.drift.study import COMPARED, CURVE_ARMS, CURVES, GROUP_SIZES, GROUPS, STEPPED
from workbook.studies.record import FAMILY, Tables
from workbook.studies.registration import MIN_UNITS, read_registration
from workbook.views.charts import curve_chart
from workbook.views.figures import INTERVAL, clear_of_zero, forest, panels, series
from workbook.views.style import NEUTRAL, SERIES, describe_rows

CURVE_OUTCOMES = {  # column: title of its panel, and of the axis
    "value": ("exact held-out value", "reward"),
    "tax": ("tax of style words", "nats a word"),
    "odds": ("change of odds of equal solutions", "nats"),
    "style_entropy": ("entropy of style words", "nats a word"),
}
MECHANISMS = {  # what is read at groups of eight, along PPO and GSPO
    "agreement, moved": ("output layer agrees, moved tokens", "share"),
    "agreement, all": ("output layer agrees, all tokens", "share"),
    "gap": ("value of boosted − suppressed tokens", "reward"),
}
# one colour in all charts
OBJECTIVES = dict(zip(CURVE_ARMS[GROUPS], SERIES, strict=True)) | {"clip off": "#222222"}
LOSS_OUTCOMES = ("every", "shared", "silent")
SCALES = {"bundled": "bundled policy", "smollm2_chat": "SmolLM2-135M, chat"}


# --- what a group shares, and what objectives leave on it


def energy_chart(tables: Tables = FAMILY) -> alt.LayerChart:
    """Share of gradient energy on tokens that whole groups share, against template confidence, a
    line a group size.
    """
    rows = tables["confidence/energy"].query("category == 'all'")
    rows = rows.assign(group=rows["group_size"].map("G = {}".format))
    bound = two_word_share(7 / 8, 8)
    return curve_chart(
        unit_curve(rows, "confidence", "shared_energy", by="group"),
        "confidence",
        series="group",
        names=[f"G = {size}" for size in GROUP_SIZES],
        x_title="template confidence p",
        y_title="share of all energy",
        title="Only pairs share much: gradient energy on tokens that a whole group has",
        subtitle="line: mean of 6 units of the family, band: 95 % t interval",
        log2=False,
        scale={"domain": [0, 0.3]},
        clip=True,
        reference=[(bound, f"the most that a group of 8 can share of two-word slots: {bound:.3f}")],
    )


# --- what training pays


def arms_chart(tables: Tables = FAMILY) -> alt.HConcatChart:
    """What every arm reaches and pays at the deciding point, pairs at p = 0.8: a panel per outcome."""
    numbers = {
        "value minus GSPO's": lambda arm: claims.gap_of_values(arm, "GSPO"),
        "tax (nats)": lambda arm: claims.at_end(arm, False, "free_tax"),
        "tax minus its twin's (nats)": claims.excess_at_end,
    }
    rows, charts = [], []
    for outcome, number in numbers.items():
        for arm in tables["confidence/runs"]["arm"].unique():
            values = claims.per_unit(tables, number(arm)).dropna()
            rows.append((arm, outcome, *t_interval(values), len(values)))
    table = pd.DataFrame(rows, columns=["arm", "outcome", *INTERVAL, "units"])
    x = alt.X("mean:Q", title=None).scale(zero=True, padding=12).axis(tickCount=4)
    look = {
        "zero": True,
        "number": "+.2~g",
        "form": "+.4f",
        "color": clear_of_zero(),
        "height": alt.Step(30),
    }
    for outcome, part in table.groupby("outcome", sort=False):
        charts.append(forest(part, "arm", x, labels=not charts, title=str(outcome), **look))
    return panels(
        charts,
        "Seven objectives, almost a quarter of the energy on position-shared tokens",
        "at the end of training, pairs, p = 0.8; 95 % t interval over units; colour: the interval"
        " leaves out 0",
        describe_rows(table, "arm", "outcome", form="+.3g"),
    )


def collapses(tables: Tables) -> pd.DataFrame:
    """Units in which an arm, and in which its twin, collapsed at the deciding point: columns arm,
    runs, twins.
    """
    runs = tables["confidence/runs"]
    runs = runs[(runs["group_size"] == claims.G) & np.isclose(runs["confidence"], claims.P)]
    dead = runs.groupby(["arm", "permuted", "seed"], sort=False).apply(
        lambda run: len(claims.living(run)) < len(run)
    )
    counts = dead.groupby(level=["arm", "permuted"], sort=False).sum().unstack("permuted")
    return (
        counts.rename(columns={False: "runs", True: "twins"})
        .rename_axis(columns=None)
        .reset_index()
    )


def group_size_gaps(tables: Tables = FAMILY) -> pd.DataFrame:
    """Exact held-out value at the end minus that in pairs, at 128 rollouts a batch: a row per arm
    and group size.

    Columns arm, group_size, mean, low, high (95 % t intervals over units), units; 0 at G = 2 by
    construction.
    """
    units, rows = claims.places_on(tables, "group_size"), []

    def gain(arm: str):
        return lambda path, pairs: path(arm)["value"].iloc[-1] - pairs(arm)["value"].iloc[-1]

    for arm in COMPARED:
        for size, paths in units.items():
            rows += [
                (seed, size, arm, claims.number_of(gain(arm), path, units[2][seed]))
                for seed, path in paths.items()
            ]
    return unit_curve(
        pd.DataFrame(rows, columns=["seed", "group_size", "arm", "gap"]),
        "group_size",
        "gap",
        by="arm",
    )


def fix_by_group_size_chart(tables: Tables = FAMILY) -> alt.LayerChart:
    """What min-replace gains over GSPO in exact value, by rollouts per prompt; template confidence
    0.8.
    """
    gain, units = (
        claims.gap_of_values("min-replace", "GSPO"),
        claims.places_on(tables, "group_size"),
    )
    rows = [
        (seed, size, claims.number_of(gain, path))
        for size, paths in units.items()
        for seed, path in paths.items()
    ]
    return curve_chart(
        unit_curve(
            pd.DataFrame(rows, columns=["seed", "group_size", "gain"]), "group_size", "gain"
        ),
        "group_size",
        x_title="rollouts per prompt G (128 rollouts a batch)",
        y_title="exact value, min-replace minus GSPO",
        title="What min-replace gains over GSPO, by the size of the group",
        reference=[(0.0, "no gain")],
        form="+.3f",
    )


# --- along training


def objective_look(names) -> dict:
    """Settings of a chart whose lines are objectives: their names and colours, grey with permuted
    advantages.
    """
    return {
        "names": [*names],
        "colors": [NEUTRAL if "permuted" in name else OBJECTIVES[name] for name in names],
    }


def curves_of(outcomes, place: tuple[int, float], tables: Tables = FAMILY) -> pd.DataFrame:
    """Means over units along training, a line an arm: arm, batch, outcome, mean, low, high, units.

    Permuted twins are named so. A batch at which a unit was not read is left out.
    """
    rows = tables[f"{CURVES}/curves"]
    rows = rows[(rows["group_size"] == place[0]) & np.isclose(rows["confidence"], place[1])]
    rows = rows.assign(arm=rows["arm"] + np.where(rows["permuted"], ", permuted", ""))
    parts = [
        unit_curve(rows.dropna(subset=[name]), "batch", name, by="arm").assign(outcome=name)
        for name in outcomes
    ]
    return pd.concat(parts, ignore_index=True)


def outcome_panels(
    table: pd.DataFrame, outcomes: dict, by: str, title: str, subtitle: str, encode=None, **look
):
    """A panel an outcome over generation batches, two in a row, a line for each name of `by`;
    encode: more channels.
    """
    x, parts = alt.X("batch:Q", title="generation batches").axis(tickMinStep=1, format="d"), []
    for name, (head, unit) in outcomes.items():
        y = alt.Y("mean:Q", title=unit).scale(zero=False)
        part = series(table, x, y, by, title=head, form=".4f", height=150, **look)
        parts.append(part.transform_filter(alt.datum.outcome == name).encode(**encode or {}))
    rows = [alt.hconcat(*parts[k : k + 2], spacing=14) for k in range(0, len(parts), 2)]
    ends = table.sort_values("batch").groupby([by, "outcome"], sort=False).tail(1)
    words = "; ".join(
        f"{row[by]}, {row['outcome']}: {row['mean']:.3g}" for _, row in ends.iterrows()
    )
    return panels(rows, title, subtitle, f"At the end: {words}.", vertical=True)


def curves_chart(place: tuple[int, float] = GROUPS, tables: Tables = FAMILY) -> alt.VConcatChart:
    """Measured curves of every objective at a place of the study: value, tax, odds and entropy."""
    curves = curves_of(CURVE_OUTCOMES, place, tables)
    title = "Along training: what each objective earns, and what it moves that no reward asks for"
    subtitle = (
        f"means over six policies, groups of {place[0]}; four AdamW steps on each batch, learning"
        " rate 3e-4"
    )
    names = [*CURVE_ARMS[place], *(name for name in curves["arm"].unique() if "permuted" in name)]
    look = objective_look(names) | {"spread": None, "dash": "arm"}
    return outcome_panels(curves, CURVE_OUTCOMES, "arm", title, subtitle, **look)


def weights_chart(size: int = 2, tables: Tables = FAMILY) -> alt.VConcatChart:
    """Tax and entropy of style words along training, GSPO's unequal weights beside equal ones, each
    with its twin.
    """
    rows = tables["equal_weights/runs"].query(
        "objective == 'GSPO' and weights in @claims.BOTH and group_size == @size"
    )
    rows = rows.assign(arm=rows["weights"] + np.where(rows["permuted"], ", permuted", ""))
    outcomes = {name: CURVE_OUTCOMES[name] for name in ("tax", "style_entropy")}
    curves = pd.concat(
        [unit_curve(rows, "batch", name, by="arm").assign(outcome=name) for name in outcomes]
    )
    names = [*claims.BOTH, *(f"{name}, permuted" for name in claims.BOTH)]
    title = "The same run with unequal and with equal weights: what style words pay"
    subtitle = (
        f"GSPO in groups of {size}; mean and 95 % t interval over {rows['seed'].nunique()} policies"
    )
    colors = [OBJECTIVES["GSPO"], "#222222", "#dfbde7", "#a8a8a8"]
    return outcome_panels(curves, outcomes, "arm", title, subtitle, names=names, colors=colors)


def mechanisms_chart(tables: Tables = FAMILY) -> alt.VConcatChart:
    """Agreement of output layer and whole network, and the gap in value, along training, in groups
    of eight.
    """
    curves = curves_of(MECHANISMS, GROUPS, tables)
    title = "Along training: the output layer as a proxy, and the gap in value"
    subtitle = "means and 95 % t intervals over six policies, groups of eight"
    return outcome_panels(curves, MECHANISMS, "arm", title, subtitle, **objective_look(STEPPED))


# --- the losses of TRL


def smallest_effect() -> float:
    """The smallest difference of a residual that is of interest, as the study loss_types registered
    it.
    """
    return read_registration("loss_types").notes["smallest_effect_of_interest"]


def loss_type_levels(
    scale: str = "bundled",
    outcome: str = "every",
    tables: Tables | None = None,
    base: str | None = None,
) -> pd.DataFrame:
    """Tabulate an outcome of the study for every arm and reuse, 95 % t intervals over units
    (seeds).

    outcome: of LOSS_OUTCOMES, columns of `loss_types.group_residuals`.  base: an arm whose outcome
    in the same unit is subtracted.  Columns arm, kind, reuse, mean, low, high, units; mean and
    interval are NaN below 6 units, as where an arm lets nothing push.
    """
    require_one_of("outcome", outcome, LOSS_OUTCOMES)
    keys = ["arm", "kind", "reuse"]
    table = (tables or Tables(scale))["loss_types/residuals"]
    units = table.groupby([*keys, "seed"], sort=False)[outcome].mean().astype(float).reset_index()
    if base:
        of_base = units[units["arm"] == base].set_index(["reuse", "seed"])[outcome]
        units[outcome] -= of_base.reindex(
            pd.MultiIndex.from_frame(units[["reuse", "seed"]])
        ).to_numpy()
    rows = []
    for names, part in units.groupby(keys, sort=False):
        values = part[outcome].dropna()
        rows.append(
            (
                *names,
                *(t_interval(values) if len(values) >= MIN_UNITS else [np.nan] * 3),
                len(values),
            )
        )
    return pd.DataFrame(rows, columns=[*keys, *INTERVAL, "units"])


def loss_type_effects(
    scale: str = "bundled", reuse: int = 4, tables: Tables | None = None
) -> pd.DataFrame:
    """Tabulate the registered primary outcome: each arm's residual minus dr_grpo's in the same
    unit.

    Columns of `loss_type_levels`, and verdict: "adds" (whole interval above the smallest effect),
    "takes away" (below minus that), "no difference of interest" (within), "undecided", or "too few
    units".
    """
    table, least = (
        loss_type_levels(scale, "every", tables, "dr_grpo").query("reuse == @reuse"),
        smallest_effect(),
    )
    within = (table["low"] > -least) & (table["high"] < least)
    cases = [table["mean"].isna(), table["low"] > least, table["high"] < -least, within]
    words = ["too few units", "adds", "takes away", "no difference of interest"]
    return table.assign(verdict=np.select(cases, words, "undecided")).reset_index(drop=True)
