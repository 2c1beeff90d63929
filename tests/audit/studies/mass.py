"""mass: who holds coupling, who moves, what the output layer predicts.

What the registration's sentences leave to the tables: a ratio of sizes is judged by its logarithm (a mean over units or
checkpoints is geometric); the nearest other kind is the largest mean of the others, with different and same tokens each
split by how many of the two are unsure; over training it is the largest at each checkpoint.
"""

from __future__ import annotations

import numpy as np

from audit.reckoning import logs
from audit.tables import at, each, one


def pairs(units, weights, opposite):
    rows = at(units.table("pairs"), weights=weights)
    return at(rows, signs="opposite", where="across rollouts") if opposite else rows


def share(weights="output layer", opposite=False):
    def number(rows):
        top = rows["same"] & (rows["unsure"] == 2)
        return rows.loc[top, "size"].sum() / rows["size"].sum()

    return lambda units: each(pairs(units, weights, opposite), number)


def per_pair(weights="output layer", opposite=False):
    def number(rows):
        sums = rows[rows["where"] != "same context"].groupby(["same", "unsure"])[["size", "pairs"]].sum()
        means = dict(sums["size"] / sums["pairs"])
        return np.log(means.pop((True, 2)) / max(means.values()))

    return lambda units: logs(each(pairs(units, weights, opposite), number))


def offset(units):
    rows = at(units.table("pairs"), weights="output layer")
    return each(rows, lambda unit: unit["net"].sum() / unit.loc[unit["same"], "net"].sum())


def cosine(column):
    return lambda units: each(units.table("opposed"), lambda rows: rows[column].mean())


OTHERS = ("different, sure", "different, unsure", "same token, sure", "same token, not both unsure")


def moves(units):
    def number(rows):
        rows = rows[rows["quantity"].isin(OTHERS) | (rows["quantity"] == "same token, unsure")]
        ratios = []
        for _, here in rows.groupby("step"):
            sizes = dict(zip(here["quantity"], here["size"], strict=True))
            ratios.append(np.log(sizes.pop("same token, unsure") / max(sizes.values())))
        return np.mean(ratios)

    return logs(each(units.table("training"), number))


def follows(units):
    return each(at(units.table("training"), quantity="same token, unsure"), lambda rows: rows["net"].mean())


def worst(tokens):
    return lambda units: each(at(units.table("training"), quantity=f"agreement, {tokens}"), lambda r: r["size"].min())


def hidden(units):
    def fall(optimizer):
        size = {
            kind: one(units.table("adam"), "size", optimizer=optimizer, pushing=kind) for kind in ("sure", "unsure")
        }
        return np.log(size["unsure"]) - np.log(size["sure"])

    return logs(fall("sgd") - fall("adamw"))


OUTCOMES = {
    "H2": share(),
    "H2 all weights": share("all weights"),
    "H2 per pair": per_pair(),
    "H2 per pair, all weights": per_pair("all weights"),
    "H2 offset": offset,
    "H5 cosine": cosine("cosine_all"),
    "H5 cosine, output layer": cosine("cosine"),
    "H3": moves,
    "H3 follows": follows,
    "H4": worst("moved"),
    "H4 all": worst("all"),
    "H4 unsure": worst("unsure"),
    "H10": hidden,
    "R2": per_pair("all weights", opposite=True),
    "R2 mass": share("all weights", opposite=True),
}
