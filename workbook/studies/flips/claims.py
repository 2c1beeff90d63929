"""Claims of chapter 05: which tokens flip (H1), under which optimizer (R5), at matched frequencies
(R1), with signs permuted (R3); whether cancellation holds shared tokens still (H5, the falsifier);
where updates go (H6).

What decides was registered for the study dose, curves over the number of prompts in a step that
are judged at `PAPER_DOSE`. The rows of dose_llm, of two language models, are described.
"""

from functools import partial

import pandas as pd

from workbook.studies.record import Tables

PAPER_DOSE = 256  # prompts per step: our guess of the paper's
_MANY = 128  # prompts per step from which on H1's law is judged
CURVE_KEYS = ("seed", "alphabets")  # what names a curve, as far as a table has it
REGISTERED = 128  # prompts per step of SmolLM2's rows, of which the task has too few
REACHED = 64  # where its curve ends

# --- one number per unit


def rate(
    tables: Tables, column: str = "crossed", tokens: str = "all", prompts: int = PAPER_DOSE
) -> pd.Series:
    """H1, R1: a column of `flip_rates` at a number of prompts per step."""
    table = tables["dose/rates"].query("tokens == @tokens and prompts == @prompts")
    return table.set_index("seed")[column]


def predicted_follows(table: pd.DataFrame) -> pd.DataFrame:
    """H1's prediction beside what was measured: rows of one kind of token with the column
    predicted.

    1/2 + (follows of a prompt alone - 1/2) own / (own + others).  Columns that name a curve:
    `CURVE_KEYS`, tokens.
    """
    keys = [name for name in (*CURVE_KEYS, "tokens") if name in table]
    alone = table.loc[table["prompts"] == 1].set_index(keys)["follows"]
    first = pd.Series(alone.reindex(pd.MultiIndex.from_frame(table[keys])).to_numpy(), table.index)
    return table.assign(
        predicted=0.5 + (first - 0.5) * (table["own"] / (table["own"] + table["others"]))
    )


def prediction_error(tables: Tables, table: str = "dose/rates", least: int = 2) -> pd.Series:
    """H1's mechanism: mean |measured - predicted| follows over numbers of prompts from `least`,
    then over curves.
    """
    rows = predicted_follows(tables[table].query("tokens == 'unsure'")).query("prompts >= @least")
    curve = [rows[name] for name in CURVE_KEYS if name in rows]
    return (rows["follows"] - rows["predicted"]).abs().groupby(curve).mean().groupby("seed").mean()


def contrasts(table: pd.DataFrame, kept: float = 0.5, matched: bool = False) -> pd.DataFrame:
    """H5: (net of shared - kept x net of specific) / mean |change|: a row per unit, identity and
    number of prompts.

    table: `net_curve`'s, with a column seed.  matched: shared tokens weigh as specific ones do over
    confidence. Columns of the curve, contrast, ratio (of the nets).
    """
    keys = [name for name in ("seed", "alphabets", "identity", "prompts") if name in table]
    wide = table.pivot(index=[*keys, "band"], columns="kind", values=["net", "size", "tokens"])
    weights = wide["tokens"].fillna(0.0)
    if matched:
        wide = wide.dropna()
        weights = wide["tokens"].assign(shared=wide["tokens"]["specific"])
    net = (wide["net"] * weights).groupby(keys).sum() / weights.groupby(keys).sum()
    whole = (wide["size"] * weights).sum(axis=1).groupby(keys).sum() / weights.sum(axis=1).groupby(
        keys
    ).sum()
    columns = {
        "contrast": (net["shared"] - kept * net["specific"]) / whole,
        "ratio": net["shared"] / net["specific"],
    }
    return pd.DataFrame(columns).reset_index()


def contrast_at(
    tables: Tables,
    identity: str = "sign-shared",
    prompts: int = PAPER_DOSE,
    kept: float = 0.5,
    matched: bool = False,
) -> pd.Series:
    """H5 at a number of prompts per step; the falsifier with kept=1."""
    table = contrasts(
        tables["dose/net"].query("identity == @identity and prompts == @prompts"), kept, matched
    )
    return table.set_index("seed")["contrast"]


def own_vs_others_contrast(tables: Tables) -> pd.Series:
    """H5: mean contrast where own exceeds others, minus the mean where others exceed own; NaN where
    one is missing.
    """
    rates = tables["dose/rates"].query("tokens == 'unsure'").set_index(["seed", "prompts"])
    table = contrasts(tables["dose/net"].query("identity == 'sign-shared'")).set_index(
        ["seed", "prompts"]
    )["contrast"]
    below = (rates["own"] > rates["others"]).reindex(table.index)
    return table[below].groupby("seed").mean() - table[~below].groupby("seed").mean()


def shift_of_categories(
    tables: Tables, categories: tuple[str, ...], equal_energy: bool = False
) -> pd.Series:
    """H6: shift of some categories' share of movement, both signs minus positive rollouts alone."""
    table = tables["dose/shift"].query("prompts == @PAPER_DOSE and equal_energy == @equal_energy")
    return table[table["category"].isin(categories)].groupby("seed")["shift"].sum()


def permuted_sign_effect(tables: Tables, rollouts: tuple[str, ...]) -> pd.Series:
    """R3: effect of a unit of advantage given to such a rollout, not to one without the word, as a
    share of own's.
    """
    table = tables["dose/signs"].assign(total=lambda rows: rows["effect"] * rows["pairs"])
    held = table[table["rollout"].isin(rollouts)].groupby("seed")[["total", "pairs"]].sum()
    without = table[table["rollout"] == "no such word"].set_index("seed")["effect"]
    return held["total"] / held["pairs"] - without


def optimizer_distance(tables: Tables, optimizer: str) -> pd.Series:
    """R5: H1's distance after one real step."""
    table = tables["dose/steps"].query("optimizer == @optimizer and tokens == 'all'")
    return table.set_index("seed")["crossed"]


# --- language models, one number per unit


def _step_on(rows: pd.DataFrame, prompts: int) -> pd.DataFrame:
    """The rows of steps on so many prompts; ValueError if none was made, since fewer push."""
    if (most := rows["prompts"].max()) < prompts:
        raise ValueError(
            f"no step on {prompts} prompts could be made, too few of them push; the curve ends at"
            f" {most}."
        )
    return rows[rows["prompts"] == prompts]


def change_of_follows(tables: Tables, prompts: int | None = None) -> pd.Series:
    """H1: follows of moved tokens at a number of prompts (the most by default) minus that with one
    prompt alone.
    """
    rows = tables["dose_llm/rates"].query("tokens == 'moved'")
    first, last = _step_on(rows, 1), _step_on(rows, prompts or rows["prompts"].max())
    return last.set_index("seed")["follows"] - first.set_index("seed")["follows"]


def same_token_mass(tables: Tables) -> pd.Series:
    """H2: share of what single tokens move in other prompts that lands on the same token, both
    unsure.
    """
    rows = tables["dose_llm/mass"]
    chosen = (rows["where"] == "other prompts") & (rows["kind"] == "same token, both unsure")
    return rows[chosen].groupby("seed")["mass"].sum()


def net_ratio(
    tables: Tables, prompts: int = REGISTERED, identity: str = "sign-shared"
) -> pd.Series:
    """H5: net change of shared tokens over that of specific ones."""
    rows = contrasts(tables["dose_llm/net"]).query("identity == @identity")
    return _step_on(rows, prompts).set_index("seed")["ratio"]


def shift_at_equal_energy(
    tables: Tables, prompts: int = REGISTERED, category: str = "Template"
) -> pd.Series:
    """H6: the category's share of movement, both signs minus positive rollouts alone, at equal
    gradient energy.
    """
    rows = tables["dose_llm/shift"].query("category == @category and equal_energy")
    return _step_on(rows, prompts).set_index("seed")["shift"]


# --- the records

SAME_WORD = ("same word and place", "same word elsewhere")
_PLACE = "sign- and place-shared"
MEASURES = {  # study, at a scale: {key of its outcome: measure}
    "dose": {
        "H1": rate,
        "H1 control": partial(rate, tokens="unsure"),
        "H1 alone": partial(rate, prompts=1),
        "H1 follows": partial(rate, column="follows", tokens="moved"),
        "H1 prediction": partial(prediction_error, least=_MANY),
        "H1 others": partial(rate, column="others_follow", tokens="unsure", prompts=512),
        "H5": contrast_at,
        "H5 alone": partial(contrast_at, prompts=1),
        "H5 place": partial(contrast_at, identity=_PLACE),
        "H5 place alone": partial(contrast_at, identity=_PLACE, prompts=1),
        "H5 confidence": partial(contrast_at, matched=True),
        "H5 turning": own_vs_others_contrast,
        "H6": partial(shift_of_categories, categories=("result",)),
        "H6 energy": partial(shift_of_categories, categories=("result",), equal_energy=True),
        "H6 formatting": partial(shift_of_categories, categories=("style", "template")),
        "R1": partial(rate, tokens="matched by word"),
        "R1 place": partial(rate, tokens="matched by word and place"),
        "R3": partial(permuted_sign_effect, rollouts=SAME_WORD),
        "R3 elsewhere": partial(permuted_sign_effect, rollouts=SAME_WORD[1:]),
        "R5": partial(optimizer_distance, optimizer="sgd"),
        "R5 adamw": partial(optimizer_distance, optimizer="adamw"),
        "H-falsifier": partial(contrast_at, kept=1.0),
        "H-falsifier alone": partial(contrast_at, kept=1.0, prompts=1),
    },
    "dose_llm@smollm2_plain": {
        "H1 SmolLM2": partial(change_of_follows, prompts=REGISTERED),
        "H1 SmolLM2, 64 prompts": partial(change_of_follows, prompts=REACHED),
        "H2 SmolLM2": same_token_mass,
        "H5 SmolLM2": net_ratio,
        "H5 SmolLM2, 64 prompts": partial(net_ratio, prompts=REACHED),
        "H6 SmolLM2": shift_at_equal_energy,
        "H6 SmolLM2, 64 prompts": partial(shift_at_equal_energy, prompts=REACHED),
    },
    "dose_llm@gemma3_plain": {"H1 Gemma": change_of_follows},
}
