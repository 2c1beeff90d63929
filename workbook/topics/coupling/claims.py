"""Claims of chapter 06: which tokens couple (H2, R2), what a masked update moves (H3), how well the output layer stands
for the whole network (H4), and what Adam's first step hides (H10).

What decides was registered for the study mass (data/results/mass/registration.yaml). The rows of the study coupling, of
one policy, are described beside it; they were stated so before they were measured. A token is unsure at p < 0.5, and
pairs in one and the same context are set apart:

- H2: mean |K| of pairs of the same token, both unsure, at least `MIN_RATIO` times that of every other kind of pair
  (geometric mean over prompts, lower end of the interval). Likewise with full gradients instead of K.
- R2: the same, of pairs across rollouts whose advantages have opposite signs, with full gradients.
- H3: in each prompt the token that is unsure most often on both sides pushes, in its positive rollouts alone. The same
  token, unsure, in other rollouts follows (mean dlogp above 0), and moves at least `MIN_RATIO` times as far as every
  other kind of token outside the pushing contexts.  SGD, at the rate that moves the group's tokens by
  `MASKED_STEP_NATS` of the study (nats, root mean square); the paper's rate of 0.1 beside it.
- H4: the sign of dlogp after a full step and after one of the output layer alone agree on at least `MIN_AGREEMENT` of
  the tokens, at every moment of training that is looked at.  SGD, at the same rate, too.
- H10: a sure token pushes instead of an unsure one, at the same rate. SGD's movement of the other tokens falls at least
  `MIN_RATIO` times as far as AdamW's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd

from workbook.statistics import Estimate, nested_estimate
from workbook.studies.claim import Claim, Measurement, Tables

MIN_RATIO = 3.0  # of the same token, both unsure, to any other kind
MIN_AGREEMENT = 0.6  # share of tokens whose signs agree
MIN_PROMPTS = 5  # below which no interval is trusted; set after SmolLM2 had been measured, to judge more strictly
TOP = "same token, both unsure"


def coupling_times(tables: Tables) -> pd.DataFrame:
    """How many times smaller K is for each other kind of pair: H2, by the proxy. See `times_smaller`."""
    return times_smaller(_apart(tables["coupling/cells"]), "size", resamples=tables.resamples)


def product_times(tables: Tables, opposite: bool = False, weights: str = "all") -> pd.DataFrame:
    """The same by full gradients: H2; with opposite, across rollouts of opposite signs alone: R2."""
    table = _apart(tables["coupling/products"])
    table = table[table["weights"] == weights]
    if opposite:
        table = table[(table["where"] == "across rollouts") & (table["signs"] == "opposite")]
    return times_smaller(table, "product_size", resamples=tables.resamples)


def _apart(table: pd.DataFrame) -> pd.DataFrame:
    """Pairs that do not stand in one and the same context, with the name of their kind."""
    token = np.where(table["same"], "same token", "different tokens")
    confidence = np.select(
        [table["more_sure"] == 0, table["less_sure"] == 0], ["both unsure", "one unsure"], "both sure"
    )
    kind = pd.Series(token, table.index) + ", " + confidence
    return table.assign(kind=kind)[table["where"] != "same context"]


def times_smaller(
    table: pd.DataFrame, size: str, top: str = TOP, count: str = "pairs", resamples: int | None = None
) -> pd.DataFrame:
    """How many times as large `size` is for the kind `top` as for each other.

    Columns kind, mean, low, high, seeds, prompts. Sizes are averaged over the tokens or pairs of a prompt; then the
    logarithm of the ratio is averaged over prompts and seeds (a geometric mean) and resampled. Prompts that lack a
    kind, or in which it does not move at all, are out.

    Raises ValueError if no prompt has the kind `top`.
    """
    totals = table.assign(total=table[size] * table[count]).groupby(["seed", "group", "kind"])[["total", count]].sum()
    sizes = (totals["total"] / totals[count]).unstack("kind")
    if top not in sizes:
        raise ValueError(f"no prompt has any of: {top}.")
    rows = []
    for kind in sizes.columns.drop(top):
        with np.errstate(divide="ignore"):
            ratio = np.log(sizes[top] / sizes[kind]).replace([np.inf, -np.inf], np.nan).rename("ratio").reset_index()
        if ratio["ratio"].isna().all():
            continue
        estimate = nested_estimate(ratio, "ratio", resamples=resamples)
        rows.append((kind, *np.exp(estimate.interval), estimate.seeds, estimate.n))
    return pd.DataFrame(rows, columns=["kind", "mean", "low", "high", "seeds", "prompts"])


def kinds_of(rows: pd.DataFrame) -> list[Estimate]:
    """An estimate of each row of `times_smaller`; all are doubted if one rests on fewer than `MIN_PROMPTS` prompts.

    Raises ValueError if there are no rows.
    """
    if rows.empty:
        raise ValueError("no prompt has pairs of both kinds.")
    doubt = f"a kind with fewer than {MIN_PROMPTS} prompts" if rows["prompts"].min() < MIN_PROMPTS else ""
    return [Estimate(*row, doubt) for row in rows.drop(columns="kind").itertuples(index=False)]


def follow_times(tables: Tables, optimizer: str = "sgd", rate: str = "matched") -> pd.DataFrame:
    """H3: how many times less other kinds of token move than the same token, unsure. See `times_smaller`."""
    table = _outside(tables, optimizer, rate)
    return times_smaller(table, "size", "same token, unsure", "tokens", tables.resamples)


def follower(tables: Tables, optimizer: str = "sgd", rate: str = "matched") -> Estimate:
    """H3: mean dlogp (nats) of the same token, unsure, in other rollouts."""
    table = _outside(tables, optimizer, rate)
    return nested_estimate(table[table["kind"] == "same token, unsure"], "dlogp", resamples=tables.resamples)


def _outside(tables: Tables, optimizer: str, rate: str) -> pd.DataFrame:
    """Rows of the table `masked` when an unsure token pushes, outside the pushing contexts."""
    table = tables["coupling/masked"]
    pushed = (table["pushing"] == "unsure") & (table["optimizer"] == optimizer) & (table["rate"] == rate)
    return table[pushed & ~table["kind"].isin(["pushing", "same context"])]


def hidden_by_adam(tables: Tables) -> Estimate:
    """H10: how many times more SGD's movement falls than AdamW's when a sure token pushes in place of an unsure one."""
    table = tables["coupling/masked"].query("rate == 'matched' and kind != 'pushing'")
    totals = table.assign(total=table["size"] * table["tokens"])
    totals = totals.groupby(["seed", "group", "optimizer", "pushing"])[["total", "tokens"]].sum()
    logs = np.log(totals["total"] / totals["tokens"]).unstack(["optimizer", "pushing"])
    fall = {optimizer: logs[optimizer, "unsure"] - logs[optimizer, "sure"] for optimizer in ("sgd", "adamw")}
    gap = (fall["sgd"] - fall["adamw"]).replace([np.inf, -np.inf], np.nan).rename("gap").reset_index()
    estimate = nested_estimate(gap, "gap", resamples=tables.resamples)
    return Estimate(*np.exp(estimate.interval), estimate.seeds, estimate.n)


def agreement_along(tables: Tables, optimizer: str = "sgd", column: str = "agree") -> pd.DataFrame:
    """H4: share of tokens that agree in sign at each moment of training: columns step, mean, low, high, seeds, n."""
    table = tables["coupling/agreement"].query("optimizer == @optimizer")
    steps = table.groupby("step")
    rows = [(step, *nested_estimate(part, column, resamples=tables.resamples)[:5]) for step, part in steps]
    return pd.DataFrame(rows, columns=["step", "mean", "low", "high", "seeds", "n"])


def kinds_row(label: str, read: Callable[..., pd.DataFrame], **settings) -> Measurement:
    """A measurement of every kind in a table of `times_smaller`."""
    return Measurement("coupling", label, lambda tables: kinds_of(read(tables, **settings)), above=MIN_RATIO)


def moments(tables: Tables) -> list[Estimate]:
    """H4: an estimate of each moment of `agreement_along`."""
    return [Estimate(*row) for row in agreement_along(tables).drop(columns="step").itertuples(index=False)]


# --- the study mass: one number per unit


def _marked_log(values: pd.Series) -> pd.Series:
    """Logarithms of ratios, of which an interval is given in the ratio's own unit."""
    values = np.log(values)
    values.attrs["log"] = True
    return values


def mass_share(tables: Tables, weights: str = "output layer", opposite: bool = False) -> pd.Series:
    """H2 by mass: share of the sum of |coupling| that pairs of the same token, both unsure, hold; R2 with opposite."""
    table = _pairs(tables, weights, opposite)
    top = table[table["same"] & (table["unsure"] == 2)]
    return top.groupby("seed")["size"].sum() / table.groupby("seed")["size"].sum()


def pair_ratio(tables: Tables, weights: str = "output layer", opposite: bool = False) -> pd.Series:
    """H2 per pair: mean |coupling| of the same token, both unsure, over the largest other kind's; no same context."""
    table = _pairs(tables, weights, opposite)
    kinds = table[table["where"] != "same context"].groupby(["seed", "same", "unsure"])[["size", "pairs"]].sum()
    sizes = (kinds["size"] / kinds["pairs"]).unstack(["same", "unsure"])
    return _marked_log(sizes[True, 2] / sizes.drop(columns=[(True, 2)]).max(axis=1))


def _pairs(tables: Tables, weights: str, opposite: bool) -> pd.DataFrame:
    table = tables["mass/pairs"].query("weights == @weights")
    return table[(table["signs"] == "opposite") & (table["where"] == "across rollouts")] if opposite else table


def offset(tables: Tables, weights: str = "output layer") -> pd.Series:
    """H2: net coupling of all pairs over that of the same token's alone: 0 where different tokens take it all away."""
    table = tables["mass/pairs"].query("weights == @weights")
    return table.groupby("seed")["net"].sum() / table[table["same"]].groupby("seed")["net"].sum()


def opposed(tables: Tables, column: str = "cosine_all") -> pd.Series:
    """H5: a column of the inner products of a prompt's positive and negative gradients, mean over prompts."""
    return tables["mass/opposed"].groupby("seed")[column].mean()


def spillover_ratio(tables: Tables) -> pd.Series:
    """H3: mean |change| of the same token, unsure, over the largest other kind's outside the pushing contexts.

    Geometric mean over the checkpoints of training.
    """
    table = tables["mass/training"]
    kinds = [kind for kind in table["quantity"].unique() if kind.startswith(("same token", "different"))]
    sizes = table[table["quantity"].isin(kinds)].pivot(index=["seed", "step"], columns="quantity", values="size")
    top = sizes.pop("same token, unsure")
    return _marked_log(np.exp(np.log(top / sizes.max(axis=1)).groupby("seed").mean()))


def follows_pushing(tables: Tables) -> pd.Series:
    """H3: mean change of the same token, unsure, elsewhere, as a share of the pushing tokens', over checkpoints."""
    return tables["mass/training"].query("quantity == 'same token, unsure'").groupby("seed")["net"].mean()


def least_agreement(tables: Tables, tokens: str = "moved") -> pd.Series:
    """H4: share of tokens whose sign the output layer predicts, at the worst checkpoint."""
    return tables["mass/training"].query("quantity == 'agreement, ' + @tokens").groupby("seed")["size"].min()


def hidden_fall(tables: Tables) -> pd.Series:
    """H10: fall of SGD's movement over that of AdamW's when a sure token pushes instead of an unsure one."""
    sizes = tables["mass/adam"].pivot(index="seed", columns=["optimizer", "pushing"], values="size")
    falls = {name: sizes[name, "unsure"] / sizes[name, "sure"] for name in ("sgd", "adamw")}
    return _marked_log(falls["sgd"] / falls["adamw"])


MASS = {  # claim: {key of its outcome in the registration of mass: measure}
    "H2": {
        "H2": mass_share,
        "H2 all weights": partial(mass_share, weights="all weights"),
        "H2 per pair": pair_ratio,
        "H2 per pair, all weights": partial(pair_ratio, weights="all weights"),
        "H2 offset": offset,
    },
    "H3": {"H3": spillover_ratio, "H3 follows": follows_pushing},
    "H4": {
        "H4": least_agreement,
        "H4 all": partial(least_agreement, tokens="all"),
        "H4 unsure": partial(least_agreement, tokens="unsure"),
    },
    "H5": {"H5 cosine": opposed, "H5 cosine, output layer": partial(opposed, column="cosine")},
    "H10": {"H10": hidden_fall},
    "R2": {
        "R2": partial(pair_ratio, weights="all weights", opposite=True),
        "R2 mass": partial(mass_share, weights="all weights", opposite=True),
    },
}


def mass_rows(claim: str) -> list[Measurement]:
    """A claim's measurements by the study mass."""
    return [Measurement("mass", key, measure) for key, measure in MASS[claim].items()]


NEAREST = "times as large as the nearest other kind of pair, "
HIDDEN = "fall of SGD's movement / fall of AdamW's, when a sure token pushes instead of an unsure one"

CLAIMS = [
    Claim(
        "H2",
        "pairs of the same token, both unsure, hold most of the coupling",
        "Fig 2",
        "such pairs hold half of the mass of coupling, or less",
        [
            *mass_rows("H2"),
            kinds_row(NEAREST + "output layer", coupling_times),
            kinds_row(NEAREST + "all weights", product_times),
        ],
    ),
    Claim(
        "H3",
        "a masked update moves the same unsure token elsewhere, and others hardly",
        "Fig 3, Table 1",
        f"the same token elsewhere does not follow, or another kind moves at least 1/{MIN_RATIO:g} as far",
        [
            *mass_rows("H3"),
            kinds_row("times as far as the nearest other kind of token", follow_times),
            Measurement("coupling", "nats by which the same token elsewhere follows", follower, above=0),
        ],
    ),
    Claim(
        "H4",
        "full step and output layer alone agree in sign, steadily over training",
        "Fig 10",
        f"at some moment of training at most {MIN_AGREEMENT:g} of the tokens that move agree in sign",
        [
            *mass_rows("H4"),
            Measurement("coupling", "share of tokens that agree, at the worst moment", moments, above=MIN_AGREEMENT),
        ],
    ),
    Claim(
        "H10",
        "Adam's first step hides the size of coupled gradients",
        "appendix D.3",
        f"SGD's movement falls at most {MIN_RATIO:g} times as far as AdamW's when a sure token pushes",
        [*mass_rows("H10"), Measurement("coupling", HIDDEN, hidden_by_adam, above=MIN_RATIO)],
    ),
    Claim(
        "R2",
        "identical unsure tokens of opposite rollouts have large gradient products",
        "review of H: products across signs",
        f"some other kind of pair has products at least 1/{MIN_RATIO:g} as large",
        [*mass_rows("R2"), kinds_row(NEAREST + "opposite signs", product_times, opposite=True)],
    ),
    Claim(
        "H5",
        "opposing pushes cancel on tokens that both signs share",
        "sections 3-4",
        "in a large step shared words keep at least half of the net change that specific ones get",
        mass_rows("H5"),
    ),
]
