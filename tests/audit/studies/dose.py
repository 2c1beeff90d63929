"""dose, dose_alphabets, dose_dials and dose_llm: numbers of one step against how many prompts push in it.

What the registration's sentences leave to the tables: a distance of shares is the cross-fitted one (column crossed);
nets, and |change| of both kinds together, weigh tokens alike, so bands of confidence count by their tokens; "with the
specific tokens' mix of confidence" weighs bands that both kinds have by specific tokens.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from audit.tables import Missing, at, each, one

LARGE = 256


def rate(column="crossed", tokens="all", prompts=LARGE):
    return lambda units: one(units.table("rates"), column, tokens=tokens, prompts=prompts)


def miss(rows: pd.DataFrame) -> float:
    """Mean distance of follows from 1/2 + (follows alone - 1/2) own / (own + others), of one unit's unsure tokens."""
    alone = rows.loc[rows["prompts"] == 1, "follows"].item()
    more = rows[rows["prompts"] > 1]
    line = 0.5 + (alone - 0.5) * more["own"] / (more["own"] + more["others"])
    return (more["follows"] - line).abs().mean()


def prediction(units):
    return each(at(units.table("rates"), tokens="unsure"), miss)


def nets(rows: pd.DataFrame, matched: bool) -> tuple[float, float, float]:
    """Net change of shared and of specific tokens, and mean |change| of both, at one place of one unit."""
    kinds = {kind: rows[rows["kind"] == kind].set_index("band") for kind in ("shared", "specific")}
    weights = {kind: part["tokens"].astype(float) for kind, part in kinds.items()}
    if matched:
        both = weights["shared"].index.intersection(weights["specific"].index)
        weights = dict.fromkeys(kinds, weights["specific"].loc[both])
    net = {
        kind: np.average(part["net"].loc[weights[kind].index], weights=weights[kind]) for kind, part in kinds.items()
    }
    moved = sum((part["size"] * weights[kind]).sum() for kind, part in kinds.items())
    return net["shared"], net["specific"], moved / sum(part.sum() for part in weights.values())


def contrast(rows: pd.DataFrame, kept=0.5, matched=False) -> float:
    shared, specific, moved = nets(rows, matched)
    return (shared - kept * specific) / moved


def contrasted(identity="sign-shared", prompts=LARGE, **how):
    return lambda units: each(
        at(units.table("net"), identity=identity, prompts=prompts), lambda rows: contrast(rows, **how)
    )


def turning(units):
    """Mean contrast where own exceeds others, minus that where others exceed own."""
    rates = at(units.table("rates"), tokens="unsure")
    net = at(units.table("net"), identity="sign-shared")

    def number(rows):
        curve = pd.Series({prompts: contrast(part) for prompts, part in rows.groupby("prompts")})
        here = at(rates, seed=rows["seed"].iloc[0]).set_index("prompts")
        own = (here["own"] > here["others"]).loc[curve.index]
        return curve[own].mean() - curve[~own].mean()

    return each(net, number)


def shift(*categories, energy=False):
    def number(units):
        rows = at(units.table("shift"), prompts=LARGE, equal_energy=energy)
        rows = rows[rows["category"].isin(categories)]
        return each(rows, lambda part: (part["both"] - part["positive_only"]).sum())

    return number


def dealt(*rollouts):
    """Effect of advantage dealt to such rollouts less to one without the word, each pair alike, over the own one's."""

    def number(rows):
        effect = rows.set_index("rollout")["effect"]
        pairs = rows.set_index("rollout")["pairs"].loc[list(rollouts)]
        given = (effect.loc[pairs.index] * pairs).sum() / pairs.sum()
        return (given - effect["no such word"]) / effect["own"]

    return lambda units: each(units.table("signs"), number)


def stepped(optimizer):
    return lambda units: one(units.table("steps"), "crossed", optimizer=optimizer, tokens="all", prompts=LARGE)


OUTCOMES = {
    "H1": rate(),
    "H1 control": rate(tokens="unsure"),
    "H1 alone": rate(prompts=1),
    "H1 follows": rate("follows", "moved"),
    "H1 prediction": prediction,
    "H1 others": rate("others_follow", "unsure", 512),
    "R1": rate(tokens="matched by word"),
    "R1 place": rate(tokens="matched by word and place"),
    "R3": dealt("same word and place", "same word elsewhere"),
    "R3 elsewhere": dealt("same word elsewhere"),
    "R5": stepped("sgd"),
    "R5 adamw": stepped("adamw"),
    "H5": contrasted(),
    "H5 alone": contrasted(prompts=1),
    "H5 place": contrasted("sign- and place-shared"),
    "H5 place alone": contrasted("sign- and place-shared", 1),
    "H5 confidence": contrasted(matched=True),
    "H5 turning": turning,
    "H6": shift("result"),
    "H6 energy": shift("result", energy=True),
    "H6 formatting": shift("style", "template"),
    "H-falsifier": contrasted(kept=1.0),
    "H-falsifier alone": contrasted(prompts=1, kept=1.0),
}


# --- private alphabets


def most_less_fewest(number):
    """number(units, alphabets) with 64 private alphabets minus with 4."""
    return lambda units: number(units, 64) - number(units, 4)


def follows(units, alphabets):
    return one(units.table("rates"), "follows", tokens="unsure", prompts=64, alphabets=alphabets)


def place_contrast(units, alphabets):
    rows = at(units.table("net"), identity="sign- and place-shared", prompts=64, alphabets=alphabets)
    return each(rows, contrast)


def mean_miss(units):
    rows = at(units.table("rates"), tokens="unsure")
    return each(rows, lambda unit: np.mean([miss(part) for _, part in unit.groupby("alphabets")]))


SHARING = {
    "H1 sharing": most_less_fewest(follows),
    "H1 sharing prediction": mean_miss,
    "H5 sharing": most_less_fewest(place_contrast),
}


# --- width, length, supervised training

LEVELS = {"width": (32, 128), "operands": (3, 6), "sft_steps": (300, 1200)}


def high_less_low(dial):
    low, high = LEVELS[dial]

    def number(units):
        rows = at(units.table("rates"), tokens="unsure", prompts=64, dial=dial)
        return one(rows, "follows", level=high) - one(rows, "follows", level=low)

    return number


def mean_miss_of_levels(units):
    rows = at(units.table("rates"), tokens="unsure")
    return each(rows, lambda unit: np.mean([miss(part) for _, part in unit.groupby(["dial", "level"])]))


DIALS = {
    "H1 width": high_less_low("width"),
    "H1 length": high_less_low("operands"),
    "H1 training": high_less_low("sft_steps"),
    "H1 dials prediction": mean_miss_of_levels,
}


# --- language models, which describe


def follows_less_alone(prompts=None):
    def number(units):
        rows = at(units.table("rates"), tokens="moved")
        many = prompts or rows["prompts"].max()
        return one(rows, "follows", prompts=many) - one(rows, "follows", prompts=1)

    return number


def landing(units):
    return one(units.table("mass"), "mass", where="other prompts", kind="same token, both unsure")


def net_ratio(prompts):
    def number(rows):
        shared, specific, _ = nets(rows, False)
        return shared / specific

    return lambda units: each(at(units.table("net"), identity="sign-shared", prompts=prompts), number)


def template(prompts):
    def number(units):
        rows = at(units.table("shift"), category="Template", prompts=prompts, equal_energy=True)
        return each(rows, lambda part: (part["both"] - part["positive_only"]).item())

    return number


def of(scale, number):
    def checked(units):
        if units.scale != scale:
            raise Missing(f"measured at scale {scale} alone")
        return number(units)

    return checked


LANGUAGE_MODELS = {
    "H1 SmolLM2": of("smollm2_plain", follows_less_alone(128)),
    "H1 Gemma": of("gemma3_plain", follows_less_alone()),
    "H2 SmolLM2": of("smollm2_plain", landing),
    "H5 SmolLM2": of("smollm2_plain", net_ratio(128)),
    "H6 SmolLM2": of("smollm2_plain", template(128)),
    "H1 SmolLM2, 64 prompts": of("smollm2_plain", follows_less_alone(64)),
    "H5 SmolLM2, 64 prompts": of("smollm2_plain", net_ratio(64)),
    "H6 SmolLM2, 64 prompts": of("smollm2_plain", template(64)),
}
