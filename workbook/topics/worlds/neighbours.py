"""Claims of neighbouring papers that exact credit settles: study `worlds_neighbours` and its rows, claims N1 to N4.

Tables of a unit, from 128 prompts x 8 rollouts of the policy at its start: entropy, a row per fifth of all tokens by
entropy, the highest last; signs, a row per third of the completions, with the chance that eight continuations after a
token and eight before it give its credit the right sign (of 0 or 1 each, so that exact values say it without sampling;
a tie counts half); rare, tokens that are improbable, of low entropy and in positive rollouts, beside the others of
those; runs, negative_only at plain's own rate. Credit of a single token may exceed its entropy: the theorem behind N1
bounds its mean, as information about the reward.
"""

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Binomial

from workbook.probes.values import exact_values
from workbook.rollouts.sample import Rollouts
from workbook.studies.bench import Bench
from workbook.studies.record import Tables, load_measured
from workbook.studies.registration import WORLD_SCALES
from workbook.topics.worlds.outcomes import PLAIN, own_rates, world_name
from workbook.topics.worlds.study import run_arm

NEGATIVE, CONTINUATIONS, FIFTHS, THIRDS = "negative_only", 8, 5, 3
IDLE, DECIDES = 0.01, 0.02  # reward: credit that counts as none, and credit whose sign counts
RARE, CALM = 0.1, 0.8  # STAPO's set, our cuts: probability below, and entropy among this share of all tokens' lowest
SIZES = dict.fromkeys(WORLD_SCALES, 128) | {"tiny": 6}  # prompts


def neighbours_study(bench: Bench) -> dict[str, pd.DataFrame]:
    """Tables entropy, signs, rare and runs of one unit. Raises NotMeasured until the world's rates have been tuned."""
    rates = own_rates(load_measured("worlds_rates", bench.scale.name, "runs", bench.results))["lr"]
    tokens = credit_table(bench.policy, bench.task, bench.sample(SIZES[bench.scale.name], bench.data_seed))
    made = {"entropy": by_entropy(tokens), "signs": by_place(tokens), "rare": rare_tokens(tokens)}
    made = {name: table.assign(world=world_name(bench.scale.name)) for name, table in made.items()}
    return made | {"runs": run_arm(bench, NEGATIVE, rates[PLAIN])}


def credit_table(policy, task, rollouts: Rollouts) -> pd.DataFrame:
    """The token table with exact credit, and right, the chance that sampled credit has its sign; fifth and third.

    Raises ValueError for rewards other than 0 and 1.
    """
    if ((rollouts.rewards != 0) & (rollouts.rewards != 1)).any():
        raise ValueError("rewards must be 0 or 1, so that continuations are coin flips of exact values.")
    values, mask = exact_values(policy, task, rollouts), rollouts.completion_mask.bool()
    before, after = (part[mask].double() for part in (values.before, values.after))
    table = rollouts.token_table()
    table = table.assign(credit=(after - before).numpy(), right=sign_chance(before, after).numpy())
    below = (table["entropy"].rank(method="first") - 1) / len(table)  # share of all tokens of lower entropy
    third = THIRDS * table["position"] // table.groupby("rollout")["position"].transform("size")
    return table.assign(fifth=(FIFTHS * below).astype(int), calm=below < CALM, third=third)


def sign_chance(before: Float[Tensor, " N"], after: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """Chance that CONTINUATIONS after and as many before a token order its two values rightly; a tie counts half."""
    ends = torch.maximum(before, after), torch.minimum(before, after)
    flips = [Binomial(CONTINUATIONS, value.clamp(0, 1)) for value in ends]
    counts = torch.arange(CONTINUATIONS + 1.0)[:, None]  # (K + 1, 1)
    high, low = (flip.log_prob(counts).exp() for flip in flips)  # (K + 1, N) each
    return (high * (low.cumsum(0) - low / 2)).sum(0)


def by_entropy(tokens: pd.DataFrame) -> pd.DataFrame:
    """By fifth of entropy: tokens, those that are idle, squared credit, and that of tokens whose credit exceeds it."""
    square = tokens["credit"] ** 2
    size = tokens["credit"].abs()
    columns = {"tokens": 1, "idle": size <= IDLE, "credit2": square}
    columns["exceeding2"] = square.where(size > tokens["entropy"], 0.0)
    return tokens.assign(**columns).groupby("fifth")[[*columns]].sum().reset_index()


def by_place(tokens: pd.DataFrame) -> pd.DataFrame:
    """By third of the completion, of tokens that decide: how many, and the mean chance of the right sign."""
    deciding = tokens[tokens["credit"].abs() > DECIDES].groupby("third")["right"]
    return deciding.agg(tokens="size", right="mean").reindex(range(THIRDS)).reset_index()


def rare_tokens(tokens: pd.DataFrame) -> pd.DataFrame:
    """Rows of positive rollouts' tokens, rare and calm or not: how many, mean credit, and share of all tokens."""
    positive = tokens[tokens["advantage"] > 0]
    rare = (positive["logp"] < np.log(RARE)) & positive["calm"]
    table = positive.groupby(rare.rename("rare"))["credit"].agg(tokens="size", credit="mean")
    return table.reindex([False, True]).assign(share=lambda rows: rows["tokens"] / len(tokens)).reset_index()


# --- what the tables say, a number per unit


def entropy_sums(tables: Tables, highest: bool = False) -> pd.DataFrame:
    """Sums of each unit's columns of the table entropy, over all tokens or the fifth of the highest entropy alone."""
    rows = tables["worlds_neighbours/entropy"]
    rows = rows[rows["fifth"] == FIFTHS - 1] if highest else rows
    return rows.drop(columns=["fifth", "world"]).groupby("seed").sum().rename_axis("unit")


def right_signs(tables: Tables, third: int) -> pd.Series:
    """Chance of the right sign in a third of the completions."""
    rows = tables["worlds_neighbours/signs"]
    return rows[rows["third"] == third].set_index("seed")["right"].rename_axis("unit")


def rare_lead(tables: Tables) -> pd.Series:
    """Mean exact credit of the rare, calm tokens of positive rollouts minus that of the others there."""
    means = tables["worlds_neighbours/rare"].pivot(index="seed", columns="rare", values="credit")
    return (means[True] - means[False]).rename_axis("unit")


def right_logp(runs: pd.DataFrame) -> pd.Series:
    """Change of right solutions' log-probability over a run of each unit, nats."""
    units = runs.sort_values("batch", kind="stable").groupby("seed")["logp_right"]
    return (units.last() - units.first()).rename_axis("unit")


MEASURES = {
    "N1": lambda tables: entropy_sums(tables, highest=True)["credit2"] / entropy_sums(tables)["credit2"],
    "N1 idle": lambda tables: entropy_sums(tables, highest=True).eval("idle / tokens"),
    "N1 exceeds": lambda tables: entropy_sums(tables).eval("exceeding2 / credit2"),
    "N2": lambda tables: right_signs(tables, THIRDS - 1) - right_signs(tables, 0),
    "N2 early": lambda tables: right_signs(tables, 0),
    "N3": rare_lead,
    "N4": lambda tables: right_logp(tables["worlds_neighbours/runs"]),
    "N4 plain": lambda tables: right_logp(tables["worlds/runs"].query("arm == @PLAIN"))[
        right_logp(tables["worlds_neighbours/runs"]).index  # of the same units
    ],
}
