"""What chapter 10 and the ledger read off the study dose_llm: H1, H2, H5 and H6 of language models, described."""

from __future__ import annotations

from functools import partial

import pandas as pd

from workbook.studies.claim import Measurement, NotMeasured, Tables
from workbook.topics.flips.contrasts import contrasts


def net_ratios(scale: str = "smollm2_plain", tables: Tables | None = None) -> pd.DataFrame:
    """H5 of a language model: `contrasts` of each unit and number of prompts, by how tokens are shared."""
    return contrasts((tables or Tables(scale))["dose_llm/net"])


def shifts(scale: str = "smollm2_plain", tables: Tables | None = None) -> pd.DataFrame:
    """H6 of a language model: mean shift over units by category, prompts and kind of comparison."""
    rows = (tables or Tables(scale))["dose_llm/shift"]
    rows = rows.assign(series=rows["equal_energy"].map({False: "equal prompts", True: "equal gradient energy"}))
    return rows.groupby(["category", "prompts", "series"], as_index=False)["shift"].mean()


def llm_expectations(tables: dict[str, Tables] | None = None) -> pd.DataFrame:
    """What was registered as expected of dose_llm beside what was measured, means over units; index: what.

    tables: {scale: its tables}, instead of those below data/results.  A model that was not measured has NaN.
    """
    tables = tables or {scale: Tables(scale) for scale in ("smollm2_plain", "gemma3_plain")}
    smollm2 = tables["smollm2_plain"]
    first, last = (_at(smollm2, place) for place in (0, -1))
    rows = {
        f"SmolLM2: moved tokens follow their own sign, {last['prompts']:.0f} prompts": (
            ".52 to .60 at 128",
            last["follows"],
        ),
        f"SmolLM2: distance of the signs' shares, {last['prompts']:.0f} prompts": ("above .1 at 128", last["distance"]),
        "SmolLM2: H5's ratio, one prompt alone": ("near one half", first["ratio"]),
        f"SmolLM2: H5's ratio, {last['prompts']:.0f} prompts": ("near 1 or above at 128", last["ratio"]),
        "SmolLM2: H6's shift to Template, equal prompts": ("", last["shift"]),
        "SmolLM2: H6's shift to Template, equal energy": ("nearer to 0", last["equal energy"]),
        "SmolLM2: H2's share of same-token unsure pairs": ("below one half", float(same_token_mass(smollm2).mean())),
        "Gemma: change of follows from one prompt to the most": ("below 0", _or_nan(tables["gemma3_plain"])),
    }
    return pd.DataFrame.from_dict(rows, orient="index", columns=["expected", "measured"])


def _at(tables: Tables, place: int) -> pd.Series:
    """Means over units of H1's, H5's and H6's numbers at the fewest (0) or the most (-1) prompts per step."""
    rates = tables["dose_llm/rates"]
    prompts = sorted(rates["prompts"].unique())[place]
    shift = tables["dose_llm/shift"].query("category == 'Template' and prompts == @prompts").groupby("equal_energy")
    numbers = {
        "prompts": prompts,
        "follows": rates.query("tokens == 'moved' and prompts == @prompts")["follows"].mean(),
        "distance": rates.query("tokens == 'all' and prompts == @prompts")["crossed"].mean(),
        "ratio": net_ratios(tables=tables).query("identity == 'sign-shared' and prompts == @prompts")["ratio"].mean(),
        "shift": shift["shift"].mean().get(False),
        "equal energy": shift["shift"].mean().get(True),
    }
    return pd.Series(numbers)


def _or_nan(tables: Tables) -> float:
    try:
        return float(change_of_follows(tables).mean())
    except NotMeasured:
        return float("nan")


# --- one number per unit, for the ledger


REGISTERED = 128  # prompts per step of SmolLM2's rows, of which the task has too few
REACHED = 64  # where its curve ends


def _step_on(rows: pd.DataFrame, prompts: int) -> pd.DataFrame:
    """The rows of steps on so many prompts; ValueError if none was made, since fewer push."""
    if (most := rows["prompts"].max()) < prompts:
        raise ValueError(f"no step on {prompts} prompts could be made, too few of them push; the curve ends at {most}.")
    return rows[rows["prompts"] == prompts]


def change_of_follows(tables: Tables, prompts: int | None = None) -> pd.Series:
    """H1: follows of moved tokens at a number of prompts (the most by default) minus that with one prompt alone."""
    rows = tables["dose_llm/rates"].query("tokens == 'moved'")
    first, last = _step_on(rows, 1), _step_on(rows, prompts or rows["prompts"].max())
    return last.set_index("seed")["follows"] - first.set_index("seed")["follows"]


def same_token_mass(tables: Tables) -> pd.Series:
    """H2: share of what single tokens move in other prompts that lands on the same token, both unsure."""
    rows = tables["dose_llm/mass"]
    chosen = (rows["where"] == "other prompts") & (rows["kind"] == "same token, both unsure")
    return rows[chosen].groupby("seed")["mass"].sum()


def net_ratio(tables: Tables, prompts: int = REGISTERED, identity: str = "sign-shared") -> pd.Series:
    """H5: net change of shared tokens over that of specific ones."""
    rows = net_ratios(tables=tables).query("identity == @identity")
    return _step_on(rows, prompts).set_index("seed")["ratio"]


def shift_at_equal_energy(tables: Tables, prompts: int = REGISTERED, category: str = "Template") -> pd.Series:
    """H6: the category's share of movement, both signs minus positive rollouts alone, at equal gradient energy."""
    rows = tables["dose_llm/shift"].query("category == @category and equal_energy")
    return _step_on(rows, prompts).set_index("seed")["shift"]


def _row(key: str, measure, scale: str = "smollm2_plain") -> Measurement:
    return Measurement("dose_llm", key, measure, scales=(scale,))


LANGUAGE_MODELS = {  # claim: its rows, which describe
    "H1": [
        _row("H1 SmolLM2", partial(change_of_follows, prompts=REGISTERED)),
        _row("H1 SmolLM2, 64 prompts", partial(change_of_follows, prompts=REACHED)),
        _row("H1 Gemma", change_of_follows, "gemma3_plain"),
    ],
    "H2": [_row("H2 SmolLM2", same_token_mass)],
    "H5": [
        _row("H5 SmolLM2", net_ratio),
        _row("H5 SmolLM2, 64 prompts", partial(net_ratio, prompts=REACHED)),
    ],
    "H6": [
        _row("H6 SmolLM2", shift_at_equal_energy),
        _row("H6 SmolLM2, 64 prompts", partial(shift_at_equal_energy, prompts=REACHED)),
    ],
}
