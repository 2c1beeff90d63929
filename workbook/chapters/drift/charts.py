"""Charts of what objectives leave on shared tokens, and of training with them, from committed
tables (`measured_table`).
"""

import altair as alt
import pandas as pd

from workbook.probes.energy import two_word_share
from workbook.views.charts import PART_NAMES, curve_chart, signal_noise_chart
from workbook.views.figures import panels, series
from workbook.views.style import NEUTRAL, SERIES, describe_rows, titled

CURVE_OUTCOMES = {  # column: title of its panel, and of the axis
    "value": ("exact held-out value", "reward"),
    "tax": ("tax of style words", "nats a word"),
    "odds": ("change of odds of equal solutions", "nats"),
    "style_entropy": ("entropy of style words", "nats a word"),
}
NAMES = ["PPO", "PPO, symmetric", "GSPO", "min-replace", "min-replace, clamped", "orthogonal"]
# parts of a movement that come by coupling as well
_COUPLED = ("signal", "noise")
# one colour in all charts
_OBJECTIVES = dict(zip(NAMES, SERIES, strict=True)) | {"clip off": "#222222"}


# --- what a group shares


def energy_chart(energy: pd.DataFrame) -> alt.LayerChart:
    """Share of gradient energy on tokens that whole groups share, against template confidence, a
    line a group size; table drift/energy.
    """
    bound = two_word_share(7 / 8, 8)
    return curve_chart(
        energy.assign(group=energy["group_size"].map("G = {}".format)),
        "confidence",
        series="group",
        names=[f"G = {size}" for size in sorted(energy["group_size"].unique())],
        x_title="p of a template word that has a synonym",
        y_title="share of all energy",
        title="Only groups of two share much of the gradient's energy",
        subtitle="line: mean of six policies, band: 95 % t interval",
        log2=False,
        scale={"domain": [0, 0.3]},
        clip=True,
        reference=[(bound, f"the most at a place with two words, G = 8: {bound:.3f}")],
    )


def reuse_chart(parts: pd.DataFrame) -> alt.FacetChart:
    """Signal, noise and bias of objectives that use a batch again, of own and of other contexts
    together; table of `parts_at_reuse`.
    """
    together = {PART_NAMES[f"coupled_{part}"]: PART_NAMES[f"own_{part}"] for part in _COUPLED}
    keys = ["panel", "category", "part"]
    table = parts.assign(part=parts["part"].replace(together))
    table = table.groupby(keys, sort=False, as_index=False).agg({"share": "sum", "order": "min"})
    named = [PART_NAMES[name] for name in ("own_signal", "bias", "own_noise")]
    chart = signal_noise_chart(
        table, named=named, x_title="squared movement (all of it with equal weights = 100 %)"
    )
    return titled(
        chart,
        "A clip takes signal from result words; style words move by noise",
        "second pass over a batch; left of 0: against the rest of the movement",
        describe_rows(table, *keys, value="share", form=".0%"),
    )


# --- along training


def objective_look(names) -> dict:
    """Settings of a chart whose lines are objectives: their names and colours, grey with permuted
    advantages.
    """
    return {
        "names": [*names],
        "colors": [NEUTRAL if "permuted" in name else _OBJECTIVES[name] for name in names],
    }


def outcome_panels(
    table: pd.DataFrame, outcomes: dict, by: str, title: str, subtitle: str, encode=None, **look
):
    """A panel an outcome over generation batches, two in a row, a line for each name of `by`;
    encode: more channels.
    """
    x, parts = alt.X("batch:Q", title="generation batches").axis(tickMinStep=1, format="d"), []
    for name, (head, unit) in outcomes.items():
        y = alt.Y("mean:Q", title=unit).scale(zero=False)
        part = series(table, x, y, by, title=head, form=".4f", width=284, height=150, **look)
        parts.append(part.transform_filter(alt.datum.outcome == name).encode(**encode or {}))
    rows = [alt.hconcat(*parts[k : k + 2], spacing=14) for k in range(0, len(parts), 2)]
    ends = table.sort_values("batch").groupby([by, "outcome"], sort=False).tail(1)
    words = "; ".join(
        f"{row[by]}, {row['outcome']}: {row['mean']:.3g}" for _, row in ends.iterrows()
    )
    return panels(rows, title, subtitle, f"At the end: {words}.", vertical=True)


def weights_chart(curves: pd.DataFrame) -> alt.LayerChart:
    """Tax of style words along training in pairs, GSPO's unequal weights beside equal ones; table
    drift/equal_weights.
    """
    names = ["unequal", "equal"]
    tax = curves.query("outcome == 'tax' and arm in @names")
    tax = tax.assign(weights=tax["arm"] + " weights")
    return curve_chart(
        tax,
        "batch",
        series="weights",
        x_title="generation batches",
        y_title="tax of style words (nats a word)",
        title="Equal weights did not hold style words still",
        subtitle=(
            f"GSPO in groups of 2; line: mean of {tax['units'].max()} policies, the collapsed one"
            " among them; band: 95 % t interval"
        ),
        log2=False,
        names=[f"{name} weights" for name in names],
        colors=[_OBJECTIVES["GSPO"], "#222222"],
        form=".4f",
    )


def cosines_chart(steps: pd.DataFrame) -> alt.LayerChart:
    """Cosine of a step with the gradients of its own and of other prompts, by group size; table
    drift/noise_by_group_size.
    """
    names = ["own prompts", "other prompts"]
    cosines = steps[steps["part"].str.startswith("cosine")]
    return curve_chart(
        cosines.assign(gradient=cosines["part"].str.removeprefix("cosine, ")),
        "group_size",
        series="gradient",
        names=names,
        x_title="rollouts per prompt G (128 rollouts a step)",
        y_title="cosine with the exact gradient",
        title="Larger groups follow their own prompts better; others are followed best at eight",
        subtitle="line: mean of ten policies, band: 95 % t interval",
        form=".2f",
    )


def group_sizes_chart(gaps: pd.DataFrame) -> alt.LayerChart:
    """Held-out value minus that of pairs, by group size at a fixed budget; table
    drift/group_sizes.
    """
    return curve_chart(
        gaps,
        "group_size",
        series="arm",
        x_title="rollouts per prompt G (128 rollouts a batch)",
        y_title="held-out value minus that at G = 2",
        title="At a fixed budget, sixteen rollouts per prompt end no higher than two",
        subtitle="line: mean of six policies, band: 95 % t interval",
        reference=[0.0],
        form="+.3f",
        **objective_look(gaps["arm"].unique()),
    )
