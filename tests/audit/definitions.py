"""What each registered outcome is as a number per unit: {study: {key: function of the study's
units}}.

A distance of shares is the cross-fitted one; nets and |change| weigh tokens alike. A ratio of sizes
is judged by its logarithm. A run that falls below half of its start's value gives no number; "at
equal exact value" is at the highest value that both arms reach, where each first reaches it,
straight between batches. A unit's number of a ratio of means over units is its jackknife
pseudo-value.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import yaml

from audit.reckoning import WORLDS, Missing, Units, Void, at, each, interval, logs, one, standing


def pseudo(statistic, table):
    """Pseudo-values n T - (n - 1) T_without_i of a statistic of means over the units that have
    every column.
    """
    table = table.dropna()
    return jackknife(
        {unit: statistic(table.drop(unit).mean()) for unit in table.index}, statistic(table.mean())
    )


def jackknife(without, whole):
    """Pseudo-values of a statistic from its values without each unit; `whole` is printed."""
    n = len(without)
    values = pd.Series({unit: n * whole - (n - 1) * left for unit, left in without.items()})
    values.attrs["estimate"] = float(whole)
    return values


# --- batch_composition and, at level 1, batch_one_prompt: an order of mini-batches minus shuffled
# ones
def end(run):
    return run["value"].iloc[-1]


def jitter(run):
    return np.abs(np.diff(run["value"], 2)).mean()


def collapsed(run):
    return float(run["value"].min() < run["value"].iloc[0] / 2)


def ordered(order, outcome=end, level=8, matched=True):
    def number(unit):
        runs = [unit[unit["order"] == name].sort_values("batch") for name in (order, "shuffled")]
        if min(map(len, runs)) == 0 or (outcome is not collapsed and any(map(collapsed, runs))):
            return np.nan
        return outcome(runs[0]) - outcome(runs[1])

    return lambda units: each(at(units.table("curves"), level=level, matched=matched), number)


def opposition(units):
    rows = at(units.table("curves"), level=8, matched=True, order="shuffled")
    return each(
        rows,
        lambda run: np.nan if collapsed(run.sort_values("batch")) else run["sign_cosine"].mean(),
    )


def halved(units):
    def ended(run):
        run = run.sort_values("batch")
        return np.nan if collapsed(run) else end(run)

    whole = at(units.table("curves"), level=8, matched=True, order="shuffled")
    return each(units.table("control"), ended) - each(whole, ended)


ORDERS = {"H11": "sign_partitioned", "H12": "query_preserved", "H13": "reward_balanced"}
BATCHES = {"H11 mechanism": opposition, "H11 batch size": halved}
BATCHES["H13 with H12"] = ordered("query_preserved_reward_balanced")
for claim, order in ORDERS.items():
    BATCHES |= {claim: ordered(order), f"{claim} small steps": ordered(order, level=2)}
    BATCHES |= {f"{claim} unmatched": ordered(order, matched=False)}
    BATCHES |= {
        f"{claim} jitter": ordered(order, jitter),
        f"{claim} collapse": ordered(order, collapsed),
    }


# --- confidence: residuals, shared energy, and runs of arms and of their twins with permuted
# advantages
def residual(first, second=None, column="residual", size=2):
    def number(units):
        rows = at(units.table("residuals"), group_size=size, confidence=0.8)
        return one(rows, column, objective=first) - (
            one(rows, column, objective=second) if second else 0.0
        )

    return number


def energy(size):
    return lambda units: one(
        units.table("energy"), "shared_energy", category="all", group_size=size, confidence=0.8
    )


def run(rows, arm, permuted=False):
    """A run, batches in order; a twin's before it collapses, Missing for an arm that does."""
    here = at(rows, arm=arm, permuted=permuted).sort_values("batch").set_index("batch")
    dead = here["value"] < here["value"].iloc[0] / 2
    if dead.any() and not permuted:
        raise Missing
    return here[~dead.cummax()].assign(
        lost=lambda run: run["style_entropy"].iloc[0] - run["style_entropy"]
    )


def beyond(rows, arm, column):
    """Columns value and y, a column of an arm minus its twin's, at the batches of both."""
    own, twin = run(rows, arm), run(rows, arm, permuted=True)
    return pd.DataFrame({"value": own["value"], "y": own[column] - twin[column]}).dropna(
        subset=["y"]
    )


def when(values, y, level):
    """y where values first reach a level, on straight lines; NaN for a level that is that of the
    start.
    """
    values, y = values.to_numpy(float), y.to_numpy(float)
    k = int(np.argmax(values >= level))
    return float(np.interp(level, values[k - 1 : k + 1], y[k - 1 : k + 1])) if k else np.nan


def of_runs(number, size=2):
    def safe(rows):
        try:
            return number(rows)
        except Missing:
            return np.nan

    return lambda units: each(at(units.table("runs"), group_size=size, confidence=0.8), safe)


def equal_value(first, second, column="free_tax"):
    def number(rows):
        arms = [beyond(rows, arm, column) for arm in (first, second)]
        level = min(arm["value"].max() for arm in arms)
        return np.subtract(*(when(arm["value"], arm["y"], level) for arm in arms))

    return of_runs(number)


def ended(first, second, read=end, size=2):
    return of_runs(lambda rows: read(run(rows, first)) - read(run(rows, second)), size)


def compute(rows):
    runs = [run(rows, arm)["value"] for arm in ("min-replace", "GSPO")]
    start = runs[0].iloc[0]
    level = start + 0.9 * (min(values.max() for values in runs) - start)
    return np.subtract(*(when(values, values.index.to_series(), level) for values in runs))


def by_doubling(units):
    sizes = pd.DataFrame(
        {np.log2(size): ended("min-replace", "GSPO", size=size)(units) for size in (2, 4, 8, 16)}
    )
    away = np.array(sizes.columns) - np.mean(sizes.columns)
    return pd.Series(sizes.to_numpy() @ away / (away @ away), sizes.index)


M, G, C, S = "min-replace", "GSPO", "min-replace, clamped", "sequence ratio"
CONFIDENCE = {
    "D1": residual("equal weights", column="gradient"),
    "D1 energy": energy(2),
    "D1 energy of eight": energy(8),
    "D1 consequence": equal_value(M, G, "template_tax"),
    "D2": residual(S, "token ratio"),
    "D2 groups of eight": residual(S, "token ratio", size=8),
    "D2 clipped": residual("sequence, clipped", S),
    "D3": residual("token, clipped", "token, symmetric"),
    "D3 consequence": equal_value("PPO", "PPO, symmetric"),
    "D3 sequence": residual("sequence, clipped", "sequence, symmetric"),
    "D4 beyond twins": equal_value(G, M),
    "D4 clip off": equal_value("clip off", M),
    "D4 style": equal_value(G, M, "tax"),
    "D5": equal_value(G, M, "lost"),
    "D5 odds": equal_value(G, M, "odds"),
    "D6": residual(M),
    "D6 mechanism": residual(M, S, "gradient"),
    "D6 consequence": equal_value(C, G),
    "D6 control": equal_value(C, "clip off"),
    "D7": residual("orthogonal"),
    "D7 mechanism": residual("orthogonal", S, "gradient"),
    "D7 consequence": equal_value("orthogonal", G),
    "D8": ended(M, G),
    "D8 clamped": ended(C, G),
    "D8 control": ended(C, "clip off"),
    "D8 jitter": ended(M, G, jitter),
    "D8 orthogonal": ended("orthogonal", G),
    "D8 symmetric": ended("PPO, symmetric", "PPO"),
    "D8 compute": of_runs(compute),
    "D9": by_doubling,
    "D9 mechanism": lambda u: energy(16)(u) - energy(2)(u),
}


# --- dose: one step against how many prompts push in it
def rate(column="crossed", tokens="all", prompts=256, **place):
    return lambda units: one(units.table("rates"), column, tokens=tokens, prompts=prompts, **place)


def miss(*by, least=2):
    """Mean distance of follows from 1/2 + (follows alone - 1/2) own / (own + others), mean over the
    places `by`.
    """

    def of_place(rows):
        alone, more = (
            rows.loc[rows["prompts"] == 1, "follows"].item(),
            rows[rows["prompts"] >= least],
        )
        line = 0.5 + (alone - 0.5) * more["own"] / (more["own"] + more["others"])
        return (more["follows"] - line).abs().mean()

    def number(rows):
        return (
            np.mean([of_place(part) for _, part in rows.groupby(list(by))])
            if by
            else of_place(rows)
        )

    return lambda units: each(at(units.table("rates"), tokens="unsure"), number)


def contrast(rows, kept=0.5, matched=False):
    """Net change of shared tokens minus `kept` of specific ones', over both's mean |change|."""
    kinds = [rows[rows["kind"] == kind].set_index("band") for kind in ("shared", "specific")]
    weights = [part["tokens"].astype(float) for part in kinds]
    if matched:
        weights = [weights[1].loc[weights[0].index.intersection(weights[1].index)]] * 2
    pairs = [(part.loc[weight.index], weight) for part, weight in zip(kinds, weights, strict=True)]
    shared, specific = (np.average(part["net"], weights=weight) for part, weight in pairs)
    moved = sum((part["size"] * weight).sum() for part, weight in pairs) / sum(map(sum, weights))
    return (shared - kept * specific) / moved


def contrasted(identity="sign-shared", prompts=256, place=(), **how):
    place = dict(place) | {"identity": identity, "prompts": prompts}
    return lambda units: each(at(units.table("net"), **place), lambda rows: contrast(rows, **how))


def turning(units):
    rates = at(units.table("rates"), tokens="unsure")

    def number(rows):
        curve = pd.Series({prompts: contrast(part) for prompts, part in rows.groupby("prompts")})
        here = at(rates, seed=rows["seed"].iloc[0]).set_index("prompts")
        own = (here["own"] > here["others"]).loc[curve.index]
        return curve[own].mean() - curve[~own].mean()

    return each(at(units.table("net"), identity="sign-shared"), number)


def shift(*categories, energy=False):
    def number(units):
        rows = at(units.table("shift"), prompts=256, equal_energy=energy)
        return each(
            rows[rows["category"].isin(categories)],
            lambda r: (r["both"] - r["positive_only"]).sum(),
        )

    return number


def dealt(*rollouts):
    def number(rows):
        effect, pairs = (rows.set_index("rollout")[name] for name in ("effect", "pairs"))
        given = np.average(effect.loc[list(rollouts)], weights=pairs.loc[list(rollouts)])
        return (given - effect["no such word"]) / effect["own"]

    return lambda units: each(units.table("signs"), number)


def stepped(optimizer):
    return lambda units: one(
        units.table("steps"), "crossed", optimizer=optimizer, tokens="all", prompts=256
    )


def follows(**place):
    return rate("follows", "unsure", 64, **place)


P = "sign- and place-shared"
DOSE = {
    "H1": rate(),
    "H1 control": rate(tokens="unsure"),
    "H1 alone": rate(prompts=1),
    "H1 prediction": miss(least=128),
    "H1 follows": rate("follows", "moved"),
    "R1": rate(tokens="matched by word"),
    "R5": stepped("sgd"),
    "R1 place": rate(tokens="matched by word and place"),
    "R3": dealt("same word and place", "same word elsewhere"),
    "R3 elsewhere": dealt("same word elsewhere"),
    "R5 adamw": stepped("adamw"),
    "H5": contrasted(),
    "H5 alone": contrasted(prompts=1),
    "H5 place": contrasted(P),
    "H5 place alone": contrasted(P, 1),
    "H5 confidence": contrasted(matched=True),
    "H5 turning": turning,
    "H6": shift("result"),
    "H6 energy": shift("result", energy=True),
    "H6 formatting": shift("style", "template"),
    "H-falsifier": contrasted(kept=1.0),
    "H-falsifier alone": contrasted(prompts=1, kept=1.0),
}


# --- mass: who holds coupling, who moves, what the output layer predicts
def pairs(units, weights, opposite):
    rows = at(units.table("pairs"), weights=weights)
    return at(rows, signs="opposite", where="across rollouts") if opposite else rows


def held(weights="output layer", opposite=False):
    def number(rows):
        return rows.loc[rows["same"] & (rows["unsure"] == 2), "size"].sum() / rows["size"].sum()

    return lambda units: each(pairs(units, weights, opposite), number)


def per_pair(weights="output layer", opposite=False):
    def number(rows):
        sums = (
            rows[rows["where"] != "same context"]
            .groupby(["same", "unsure"])[["size", "pairs"]]
            .sum()
        )
        means = dict(sums["size"] / sums["pairs"])
        return np.log(means.pop((True, 2)) / max(means.values()))

    return lambda units: logs(each(pairs(units, weights, opposite), number))


def moves(units):
    kinds = [
        "different, sure",
        "different, unsure",
        "same token, sure",
        "same token, not both unsure",
    ]
    rows = units.table("training")
    own, rest = (rows[rows["quantity"].isin(names)] for names in (["same token, unsure"], kinds))

    def by_step(rows):
        return np.log(rows.groupby(["seed", "step"])["size"].max())

    return logs((by_step(own) - by_step(rest)).groupby("seed").mean())


def trained(quantity, column, read):
    return lambda units: each(
        at(units.table("training"), quantity=quantity), lambda rows: read(rows[column])
    )


def hidden(units):
    def fall(optimizer):
        rows = at(units.table("adam"), optimizer=optimizer)
        return np.log(one(rows, "size", pushing="unsure")) - np.log(
            one(rows, "size", pushing="sure")
        )

    return logs(fall("sgd") - fall("adamw"))


MASS = {
    "H2": held(),
    "H2 all weights": held("all weights"),
    "H2 per pair": per_pair(),
    "H3": moves,
    "H10": hidden,
    "H2 per pair, all weights": per_pair("all weights"),
    "R2": per_pair("all weights", opposite=True),
    "R2 mass": held("all weights", opposite=True),
    "H3 follows": trained("same token, unsure", "net", np.mean),
    "H5 cosine": lambda u: each(u.table("opposed"), lambda rows: rows["cosine_all"].mean()),
    "H5 cosine, output layer": lambda u: each(
        u.table("opposed"), lambda rows: rows["cosine"].mean()
    ),
    "H4": trained("agreement, all", "size", min),
    "H4 moved": trained("agreement, moved", "size", min),
    "H2 other prompts": lambda u: one(
        u.table("blocks"), "mass", where="other prompts", kind="same token, both unsure"
    ),
    "H4 unsure": trained("agreement, unsure", "size", min),
}

# --- recovered: what part of a step's movement is signal, bias and noise
STEP = {"axis": "rule", "prompts": 16, "group_size": 8}
SIGNAL = ("own_signal", "coupled_signal")


def share(*columns, category="all", rule="grpo"):
    def number(units):
        rows = at(units.table("shares"), **STEP, rule=rule, category=category)
        return each(rows, lambda draws: draws[list(columns)].sum(axis=1, skipna=False).mean())

    return number


def update(column, rule="grpo"):
    return lambda units: each(
        at(units.table("update"), **STEP, rule=rule), lambda draws: draws[column].mean()
    )


def octaves(units):
    def number(unit):
        noise = unit.groupby("group_size")["noise_per_signal"].mean()
        return np.mean(
            [abs(np.log2(noise[g] / (noise[8] * 7 / (g - 1)))) for g in (2, 4, 16, 32, 64)]
        )

    return each(at(units.table("update"), axis="group_size", rule="grpo", prompts=16), number)


def held_out(prompts, group_size):
    place = {"axis": "equal", "rule": "grpo", "prompts": prompts, "group_size": group_size}
    return lambda units: each(
        at(units.table("update"), **place), lambda draws: draws["cosine_held_out"].mean()
    )


def apart(first, second):
    return lambda units: first(units) - second(units)


RECOVERED = {
    "S1": share(*SIGNAL),
    "S1 weights": update("signal"),
    "S1 oracle": share(*SIGNAL, rule="oracle"),
    "S1 coupling": share("coupled_signal", "coupled_bias", "coupled_noise"),
    "S3 cosine": update("expected_cosine"),
    "S1 result": share(*SIGNAL, category="result"),
    "S2": share("own_noise", "coupled_noise", category="style"),
    "S3": lambda u: update("oracle_rollouts")(u) / 128,
    "S5 bias": update("expected_cosine", "positive_only"),
    "S4": octaves,
    "S4 held out": apart(held_out(4, 32), held_out(64, 2)),
    "S5": apart(update("signal", "positive_only"), update("signal")),
    "S5 negative": apart(update("signal", "negative_only"), update("signal")),
}


# --- training_curves: runs of arms at one learning rate, in pairs and in groups of eight
def curve(rows, arm, column):
    own = at(rows, arm=arm).sort_values("batch")
    return own[column].to_numpy(float) * (np.nan if collapsed(own) else 1.0)


def curves(number, size=8, confidence=1.0):
    place = {"permuted": 0, "group_size": size, "confidence": confidence}
    return lambda units: each(at(units.table("curves"), **place), number)


def last(first, second, column, place=(2, 0.8), lost=False):
    def read(rows, arm):
        values = curve(rows, arm, column)
        return values[0] - values[-1] if lost else values[-1]

    return curves(lambda rows: read(rows, first) - read(rows, second), *place)


TRAINING = {
    "D4 over training": last(G, M, "tax"),
    "D4 over training, eight": last(G, M, "tax", (8, 1.0)),
    "D5 over training": last(G, M, "style_entropy", lost=True),
    "D8 over training": last(M, G, "value"),
    "D8 over training, eight": last(M, G, "value", (8, 1.0)),
    "H4 over training": curves(lambda rows: curve(rows, "PPO", "agreement, moved").min()),
    "H4 over training, all": curves(lambda rows: curve(rows, "PPO", "agreement, all").min()),
    "H7 over training": curves(lambda rows: curve(rows, "PPO", "gap")[-3:].mean()),
}


# --- equal_weights: tax under unequal weights over that under equal ones, a ratio judged by its
# logarithm
def weighted(rows, weights, column="tax", objective="GSPO", size=2, permuted=False):
    """A column of a run, batches in order."""
    own = at(
        rows, weights=weights, objective=objective, group_size=size, permuted=permuted
    ).sort_values("batch")
    return own.set_index("batch")[column] * (np.nan if collapsed(own) and not permuted else 1.0)


def versus(first, second, batch=60, nats=False, **place):
    def number(rows):
        one, other = (weighted(rows, weights, **place)[batch] for weights in (first, second))
        return one - other if nats else np.log(one / other)

    return lambda u: each(u.table("runs"), number) if nats else logs(each(u.table("runs"), number))


def at_equal_value(rows):
    runs = [
        (weighted(rows, weights, "value"), weighted(rows, weights))
        for weights in ("unequal", "least")
    ]
    level = min(value.max() for value, _ in runs)
    return np.log(np.divide(*(when(value, tax, level) for value, tax in runs)))


PAIR, SIGN, LEAST, ASYMMETRIC = (
    ("unequal", "equal"),
    ("one sign", "equal"),
    ("unequal", "least"),
    "PPO, 0.2 and 0.28",
)
WEIGHTS = {
    "D-falsifier": versus(*PAIR),
    "D-falsifier nats": versus(*PAIR, nats=True),
    "D-falsifier entropy": versus(*PAIR, nats=True, column="style_entropy"),
    "D-falsifier 12 batches": versus(*PAIR, 12),
    "D-falsifier permuted": versus(*PAIR, 12, permuted=True),
    "D-falsifier beyond twins": apart(
        versus(*PAIR, 12, True), versus(*PAIR, 12, True, permuted=True)
    ),
    "D-falsifier eight": versus(*PAIR, size=8),
    "D-falsifier eight, 12 batches": versus(*PAIR, 12, size=8),
    "D-falsifier eight, PPO": versus(*PAIR, 12, size=8, objective=ASYMMETRIC),
    "D-falsifier control": versus(*SIGN),
    "D-falsifier control, 12 batches": versus(*SIGN, 12),
    "D-falsifier control, eight": versus(*SIGN, 12, size=8),
    "D4": lambda u: logs(each(u.table("runs"), at_equal_value)),
    "D4 at the end": versus(*LEAST),
    "D4 eight": versus(*LEAST, 12, size=8),
}
for name in ("GSPO, no clip", "PPO, 0.2", ASYMMETRIC, "PPO, 0.01"):
    WEIGHTS[f"D-falsifier {name}"] = versus(*PAIR, 12, objective=name)


# --- value_gap: exact value of boosted minus suppressed tokens, and what it grows with
def gap(pool="training", rollouts="all", matched="position", of="value", advantages="own"):
    place = {
        "pool": pool,
        "rollouts": rollouts,
        "matched": matched,
        "of": of,
        "advantages": advantages,
    }
    return lambda units: one(units.table("gaps"), "gap", **place)


def beyond_twin(pool="training", rollouts="all"):
    return apart(gap(pool, rollouts), gap(pool, rollouts, advantages="permuted"))


def slope(axis, along, pool, matched="position"):
    """Least squares of the gap per doubling; a unit needs two cells with a gap."""

    def number(rows):
        rows = rows.dropna(subset=["gap"])
        return (
            np.polyfit(np.log2(rows[along].to_numpy(float)), rows["gap"], 1)[0]
            if len(rows) > 1
            else np.nan
        )

    return lambda units: each(
        at(units.table("budget"), axis=axis, pool=pool, matched=matched), number
    )


def widening(pool, nats=0.01):
    place = {"pool": pool, "nats": nats, "matched": "position"}
    return apart(*(lambda u, s=s: one(u.table("repeated"), "gap", step=s, **place) for s in (8, 1)))


SAMPLE, FIXED = "rollouts per prompt, 16 prompts", "rollouts per prompt, 64 in all"
GAPS = {
    "H7": beyond_twin(),
    "H7 positive": beyond_twin("training", "positive"),
    "H7 negative": beyond_twin("training", "negative"),
    "H7 unmatched": gap(matched="prompt"),
    "H7 credit": gap(of="credit"),
    "H7 permuted": gap(advantages="permuted"),
    "R4": beyond_twin("held-out"),
    "R4 negative": beyond_twin("held-out", "negative"),
    "R4 positive": beyond_twin("held-out", "positive"),
    "R4 permuted": gap("held-out", advantages="permuted"),
    "R1 value": gap(matched="token"),
    "H8": slope(SAMPLE, "group_size", "held-out"),
    "H8 training": slope(SAMPLE, "group_size", "training"),
    "H8 unmatched": slope(SAMPLE, "group_size", "training", "prompt"),
    "H9": widening("training"),
    "H8 prompts": slope("prompts, 8 rollouts each", "prompts", "held-out"),
    "H9 held-out": widening("held-out"),
    "H8 fixed budget": slope(FIXED, "group_size", "held-out"),
    "H9 tenth": widening("training", 0.001),
}
# --- cancelled: minus the other side along the own, over the own side squared, ratios of a unit's
# sums
WORD = {"identity": "word", "rewards": "by reward", "curve": "prompts"}


def taken(kind="style", size=1, batch=False, **place):
    other, own = ("side_cross", "side2") if batch else ("cross", "own2")
    where = WORD | place | {"kind": kind, "size": size}
    return lambda u: -one(u.table("sums"), other, **where) / one(u.table("sums"), own, **where)


def opposed(rollouts, tokens="all"):
    def number(rows):
        rows = rows[(rows["up2"] > 0) & (rows["down2"] > 0)]
        return (rows["product"] / rows["up2"] ** 0.5 / rows["down2"] ** 0.5).mean()

    return lambda u: each(at(u.table("products"), rollouts=rollouts, tokens=tokens), number)


def expected_cosine(rows):
    total = rows[["product", "up_lengths", "down_lengths"]].sum()
    return total["product"] / np.sqrt(total["up_lengths"] * total["down_lengths"])


def own_way(size, curve):
    where = WORD | {"identity": "any word", "kind": "all", "size": size, "curve": curve}
    sums = [
        lambda u, side=side: (
            one(u.table("sums"), f"{side}_follows", **where) / one(u.table("sums"), side, **where)
        )
        for side in ("up", "down")
    ]
    return lambda u: (sums[0](u) + sums[1](u)) / 2


def sets_of(tokens):
    """{(class, in the batch): cancelled share} of one unit from its single tokens: classes, sharing
    and sums anew.
    """
    tokens = tokens.sort_values(["rollout", "position"])
    false = tokens["credit"] < -1e-6
    late = false.groupby(tokens["rollout"]).cumsum() - false > 0
    signs = tokens.groupby(["group", "token_id"])["sign"]
    kept = (
        (tokens["logp"] < np.log(0.9)) & (signs.transform("min") < 0) & (signs.transform("max") > 0)
    )
    result = tokens["category"] == "result"
    kinds = {
        "style": tokens["category"] == "style",
        "right result": result & ~late & ~false,
        "wrong result": result & ~late & false,
    }
    shares = {}
    for name, kind in kinds.items():
        a, b, c, d = (
            tokens.loc[kept & kind, ["same", "other", "others_same", "others_other"]]
            .to_numpy(float)
            .T
        )
        for batch, own, other in ((False, a, b), (True, a + c, b + d)):
            shares[name, batch] = -(own @ other) / (own @ own)
    return shares


RIGHT, WRONG = "right result", "wrong result"
CANCELLED = {
    "C1": taken(),
    "C1 matched": taken("style, matched"),
    "C1 place": taken(identity="word and place"),
    "C1 state": taken(identity="word and state"),
    "C1 cosine": opposed(8, "shared words"),
    "C2": taken(size=64, batch=True),
    "C2 rollouts": taken(size=512, curve="rollouts"),
    "C2 cosine": opposed(512),
    "C2 cosine, 8 rollouts": opposed(8),
    "C2 follows": apart(own_way(512, "rollouts"), own_way(64, "prompts")),
    "C2 cosine, noise free": lambda u: each(
        at(u.table("products"), rollouts=512, tokens="all"), expected_cosine
    ),
    "C3": taken(RIGHT),
    "C3 state": taken(RIGHT, identity="word and state"),
    "C3 batch": taken(RIGHT, 64, batch=True),
    "C3 wrong": taken(WRONG),
}
for row, kind in (("C4", "style"), ("C4 right", RIGHT), ("C4 wrong", WRONG)):
    CANCELLED[row] = apart(taken(kind), taken(kind, rewards="permuted"))


# --- worlds: tokens to half-way at each arm's own rate, the price of one reward, and the line
# through worlds
def first(run, level, budget):
    """Tokens at which a run is first at a level, straight between readings; the budget where it
    never is.
    """
    value, tokens = run["value"].to_numpy(float), run["sampled_tokens"].to_numpy(float)
    for k in range(len(value)):
        if value[k] >= level:
            share = (level - value[k - 1]) / (value[k] - value[k - 1]) if k else 0.0
            return tokens[k] - (1 - share) * (tokens[k] - tokens[k - 1]) if k else tokens[0]
    return budget


def far_off(units):
    """Whether exact values at the start miss sampled ones by more than was allowed."""
    try:
        errors = units.table("errors")
    except Missing:
        return False
    return abs(errors["bias"].mean()) > 0.01 or errors["square"].mean() > 0.03**2


def half_way(units, more=None):
    """A row per unit and arm: tokens, start, and columns where the unit's budget is spent; more:
    units of the arena.
    """
    if far_off(Units("worlds_values", units.scale, 10, units.results)):
        raise Void
    rates = "smollm2_rates" if units.scale.startswith("smollm2") else "worlds_rates"
    rates = Units(rates, units.scale, 1, units.results).table("runs")
    policies = [
        rows.set_index(["arm", "lr", "batch"])["value"] for _, rows in rates.groupby("policy")
    ]
    mean = sum(policies) / len(policies)
    best, start = mean.max(), np.mean([values.xs(0, level="batch").iloc[0] for values in policies])
    if best - start < 0.05:
        raise Missing
    runs, rows = units.table("runs"), []
    budgets = runs.groupby("seed")["sampled_tokens"].max()
    for (unit, arm), run in pd.concat([runs, more.table("runs")] if more else [runs]).groupby(
        ["seed", "arm"]
    ):
        run, budget = run.sort_values("batch"), budgets[unit]
        value, tokens = run["value"].iloc[0], run["sampled_tokens"].to_numpy(float)
        reached = min(first(run, 0.5 * value + 0.5 * best, budget), budget)
        row = {"seed": unit, "arm": arm, "start": value, "tokens": reached}
        rows.append(
            row
            | {name: np.interp(budget, tokens, run[name]) for name in ("value", "tax", "pass_at_8")}
        )
    return pd.DataFrame(rows).pivot(index="seed", columns="arm")


def octaves(arm):
    return lambda units: half_way(units)["tokens"].pipe(
        lambda t: np.log(t["dr_grpo"] / t[arm]) / np.log(2)
    )


def beyond_plain(arm, column="value"):
    return lambda units: half_way(units)[column].pipe(lambda t: t[arm] - t["dr_grpo"])


def gains(arm, read=half_way):
    def number(units):
        ends = read(units)
        both = (ends["value"] - ends["start"])[[arm, "dr_grpo"]]
        return pseudo(lambda mean: mean[arm] / mean["dr_grpo"], both)

    return number


def unless_void(arm):
    def number(units):
        if gains("entropy_minimization")(units).attrs["estimate"] >= 0.2:
            raise Void
        return octaves(arm)(units)

    return number


def taxes_over(arm):
    return lambda units: logs(
        half_way(units)["tax"].pipe(lambda t: np.log(t[arm]) - np.log(t["dr_grpo"]))
    )


def against_third(number):
    return lambda units: number(units) - number(Units("worlds", "world:third", 10, units.results))


def doublings(units):
    """log2 of (signal + noise) / signal of plain's update at the start."""
    rows = at(
        Units("worlds_start", units.scale, 10, units.results).table("updates"), rule="dr_grpo"
    )
    return np.log2(rows["total2"].sum() / rows["mean2"].sum())


def by_world(number):
    return lambda units: pd.Series(
        {k: float(np.mean(number(one))) for k, one in trainable(units).items()}, dtype=float
    )


def trainable(units):
    """Worlds that are not held out, in which something was learned."""
    kept = {}
    for k, one_world in units.worlds.items():
        try:
            half_way(one_world)
        except (Missing, Void):
            continue
        if not list(WORLDS.values())[k].get("held_out"):
            kept[k] = one_world
    return kept


def line(table):
    return np.polyfit(table["x"], table["price"], 1)


def law(units):
    worlds = trainable(units)
    if len(worlds) < 3:
        raise Missing
    known = [(float(doublings(one)), octaves("oracle")(one).mean()) for one in worlds.values()]
    table = pd.DataFrame(known, list(worlds), ["x", "price"])
    return jackknife({k: line(table.drop(k))[0] for k in table.index}, line(table)[0])


def off_line(units):
    others = trainable(Units("worlds", "worlds", len(WORLDS), units.results))
    before = standing(units.results).get("worlds predicted")
    if before is not None:  # the line as it was when its prediction was committed
        named = yaml.safe_load(before)[units.scale[6:]].get("line_of", WORLDS)
        others = {k: one for k, one in others.items() if list(WORLDS)[k] in named}
    if len(others) < 3:
        raise Missing
    known = [(float(doublings(one)), octaves("oracle")(one).mean()) for one in others.values()]
    return octaves("oracle")(units) - np.polyval(
        line(pd.DataFrame(known, columns=["x", "price"])), doublings(units)
    )


def at_last(arm, column="value"):
    def number(units):
        runs = units.table("runs")
        ends = runs[runs["batch"] == runs["batch"].max()].pivot(
            index="seed", columns="arm", values=column
        )
        return ends[arm] - ends["dr_grpo"]

    return number


LASTING = {
    "Q1 300": at_last("oracle"),
    "Q1 300 entropy": at_last("entropy_minimization"),
    "Q2 300": at_last("positive_only"),
    "Q2 300 filtering": at_last("negative_token_filtering"),
    "Q2 300 pass@8": at_last("positive_only", "pass_at_8"),
}


def at_rate_of_plain(arm):
    def number(units):
        ends = []
        for kept, name in (
            (units, arm),
            (Units("worlds_300", units.scale, 6, units.results), "dr_grpo"),
        ):
            runs = kept.table("runs")
            ends.append(
                runs[(runs["arm"] == name) & (runs["batch"] == runs["batch"].max())].set_index(
                    "seed"
                )["value"]
            )
        return ends[0] - ends[1]

    return number


PLAIN_RATE = {
    "Q1 300 plain rate": at_rate_of_plain("oracle"),
    "Q2 300 plain rate": at_rate_of_plain("positive_only"),
    "Q2 300 filtering, plain rate": at_rate_of_plain("negative_token_filtering"),
}
PRICE, GAP = octaves("oracle"), beyond_plain("oracle")
WORLD_ROWS = {
    "Q1": law,
    "Q1 price": by_world(PRICE),
    "Q1 value": by_world(GAP),
    "Q1 world": PRICE,
    "Q1 separates": GAP,
    "Q1 held out": off_line,
    "Q1 forced": against_third(PRICE),
    "Q1 entropy": gains("entropy_minimization"),
    "Q1 forced value": against_third(lambda units: half_way(units)["value"]["dr_grpo"]),
    "Q1 log p": gains("sequence_logp"),
    "Q1 majority": gains("majority_vote"),
    "Q2": unless_void("positive_only"),
    "Q2 filtering": unless_void("negative_token_filtering"),
}
for name, arm in (("", "positive_only"), (", filtering", "negative_token_filtering")):
    WORLD_ROWS |= {f"Q2 right modes{name}": octaves(arm), f"Q2 tax{name}": taxes_over(arm)}
    WORLD_ROWS[f"Q2 pass@8{name}"] = beyond_plain(arm, "pass_at_8")


# --- arena: rules beside plain in two worlds, no number where known credit is not clear of plain
def of_worlds(units):
    return Units("worlds", units.scale, 10, units.results)


def with_arena(units):
    return half_way(of_worlds(units), units)


def if_separated(rule, column):
    def number(units):
        if interval(octaves("oracle")(of_worlds(units)))[0] <= 0:
            raise Void
        plain, own = (with_arena(units)[column][arm] for arm in ("dr_grpo", rule))
        return (np.log2(plain / own) if column == "tokens" else own - plain).dropna()

    return number


ARENA = {"Q1 random": gains("coin_reward", with_arena)}
for claim, rule in (("P1", "prefix_credit"), ("P2", "ibpo"), ("P3", "edit_mask")):
    ARENA |= {claim: if_separated(rule, "tokens"), f"{claim} value": if_separated(rule, "value")}


# --- worlds_groups and worlds_defaults: plain with other group sizes, and with one thing changed
def sixteens(words=""):
    return lambda units: np.log2(half_way(units)["tokens"]).pipe(
        lambda logs: logs[f"16{words}"] - logs[f"2{words}"]
    )


def end_ratio(column, arm, base):
    return lambda units: logs(
        half_way(units)[column].pipe(lambda t: np.log(t[arm]) - np.log(t[base]))
    )


def clearer(units):
    table = units.table("updates").pivot(index="seed", columns="arm", values=["mean2", "total2"])
    return pseudo(
        lambda m: np.log2(m["mean2"] / m["total2"]).pipe(lambda shares: shares["16"] - shares["2"]),
        table,
    )


def off_gradient(arm):
    def number(units):
        rows = at(units.table("updates"), arm=arm).set_index("seed")[["bias2", "mean2"]]
        return pseudo(lambda mean: mean["bias2"] / mean["mean2"], rows)

    return number


SIZES = {
    "Q3": sixteens(),
    "Q3 high start": sixteens(),
    "Q3 between": sixteens(),
    "Q3 signal": clearer,
}
SIZES["Q3 pairs"] = end_ratio("value", "2", "16")
for words in (" half rate", " twice rate"):
    SIZES |= dict.fromkeys((f"Q3{words}", f"Q3 high start,{words}"), sixteens(f",{words}"))
CHANGED = {"Q4 plain": off_gradient("dr_grpo"), "Q4": off_gradient("length")}
for name, own_twin in (("length", True), ("scaling", False), ("clip", True), ("sampler", False)):
    twin = f"{name}, equal" if own_twin else "dr_grpo"
    CHANGED |= {f"Q4 {name}": off_gradient(name), f"Q4 value, {name}": beyond_plain(name)}
    CHANGED |= {
        f"Q4 tax, {name}": end_ratio("tax", name, twin),
        f"Q4 twin, {name}": off_gradient(twin),
    }
    CHANGED[f"Q4 plain tax, {name}"] = end_ratio("tax", name, "dr_grpo")


# --- tuned language models: the same definitions, of tables of the same form
def longer(units):
    runs = units.table("runs")
    last = runs[runs["batch"] == runs["batch"].max()].pivot(
        index="seed", columns="arm", values="wrong_length"
    )
    return logs(np.log(last["length"]) - np.log(last["dr_grpo"]))


def early(units):
    values = units.table("runs").set_index(["batch", "arm", "seed"])["value"]
    return pseudo(
        lambda mean: mean["entropy_minimization"] / mean["dr_grpo"],
        (values[10] - values[0]).unstack("arm"),
    )


AS_THERE = {
    "C1": CANCELLED,
    "C1 place": CANCELLED,
    "C2": CANCELLED,
    "C3": CANCELLED,
    "C3 batch": CANCELLED,
}
AS_THERE |= {
    "C4": CANCELLED,
    "C4 right": CANCELLED,
    "H2": MASS,
    "H2 all weights": MASS,
    "H2 other prompts": MASS,
}
AS_THERE |= {"H4": MASS, "H4 moved": MASS, "H4 unsure": MASS, "H7": GAPS, "H7 permuted": GAPS}
LANGUAGE = {f"{key} sums": rows[key] for key, rows in AS_THERE.items()}
LANGUAGE |= {"H1 sums": rate(prompts=64), "H1 alone sums": rate(prompts=1)}
LANGUAGE |= {"H1 follows sums": rate("follows", "moved", 64)}
TUNED = {
    "Q1 learns": lambda units: -beyond_plain("permuted")(units),
    "Q1 entropy sums": gains("entropy_minimization"),
    "Q1 early sums": early,
    "Q2 sums": octaves("positive_only"),
    "Q2 value sums": beyond_plain("positive_only"),
    "Q4 longer": longer,
    "Q2 tax sums": taxes_over("positive_only"),
    "Q2 pass@8 sums": beyond_plain("positive_only", "pass_at_8"),
    "Q4 value longer": at_last("length"),
}

# --- pairs, masks, opposition, delta: what cancels, and what teaches
KINDS_OF_PAIR = {"cancelling": ("other", "same")}
KINDS_OF_PAIR |= {"a": ("same", "same"), "b": ("other", "other"), "c": ("same", "other")}
PAIRS = {
    name: [f"{sign}_sign_{word}_word_{context}_context" for context in ("same", "other")]
    for name, (sign, word) in KINDS_OF_PAIR.items()
}


def within_cells(rows, values):
    cell = rows.groupby(["group", "sign", "kind"], sort=False).ngroup().to_numpy()
    sums = np.bincount(cell, values)
    return values - (sums / np.bincount(cell))[cell]


def fallen_correlation(rows, of_cancelling=False):
    """Correlation of a token's change with its credit, and how far it falls without what cancels
    beyond three twins.
    """
    parts = {
        name: rows[columns].astype(float).sum(axis=1).to_numpy() for name, columns in PAIRS.items()
    }
    whole = rows["self"].astype(float).to_numpy() + sum(parts.values())
    credit = within_cells(
        rows, parts["cancelling"] if of_cancelling else rows["credit"].astype(float).to_numpy()
    )

    def correlation(values):
        own = within_cells(rows, values)
        return own @ credit / np.sqrt((own @ own) * (credit @ credit))

    full, size, left = correlation(whole), np.abs(parts["cancelling"]).sum(), []
    for twin in "abc":
        left.append(
            full - correlation(whole - min(1, size / np.abs(parts[twin]).sum()) * parts[twin])
        )
    return full, full - correlation(whole - parts["cancelling"]) - np.mean(left)


def excess_of(of_cancelling=False):
    def number(units):
        rows = {
            unit: fallen_correlation(own, of_cancelling)
            for unit, own in units.table("tokens").groupby("seed")
        }
        return pseudo(lambda mean: mean[1] / mean[0], pd.DataFrame(rows).T)

    return number


def permuted_excess(units):
    full = {unit: fallen_correlation(own)[0] for unit, own in units.table("tokens").groupby("seed")}
    falls = units.table("falls")
    excess = falls[falls["permutation"] >= 0].groupby("seed")["excess"].mean()
    return pseudo(
        lambda mean: mean["excess"] / mean["full"], pd.DataFrame({"full": full, "excess": excess})
    )


def whole_correlation(units):
    return pd.Series(
        {unit: fallen_correlation(own)[0] for unit, own in units.table("tokens").groupby("seed")}
    )


def value_at(units, arm, share=None, batch=32):
    runs = units.table("runs")
    runs = runs[(runs["arm"] == arm) & (runs["batch"] == batch)]
    runs = runs if share is None else runs[runs["share"] == share]
    if runs.empty:
        raise Missing
    return runs.set_index("seed")["value"]


def apart_at_end(arm, base):
    return lambda units: value_at(units, arm) - value_at(units, base)


def dialled(share, arm="rewards"):
    return lambda units: value_at(units, arm, share) - value_at(units, "rewards", 1.0)


def gained_over(arm, base, shares=(None, None)):
    def number(units):
        gains = {}
        for name, share in zip((arm, base), shares, strict=True):
            gains[name] = value_at(units, name, share) - value_at(units, name, share, 0)
        return pseudo(lambda mean: mean[arm] / mean[base], pd.DataFrame(gains))

    return number


def rank_beyond(column):
    def number(units):
        rows = units.table("ranks").set_index(["rewards", "seed"])[column]
        return rows["rewards"] - rows["permuted rewards"]

    return number


WHO_PUSHES = {"A1": excess_of(), "A1 elsewhere": excess_of(), "A1 made": excess_of(True)}
WHO_PUSHES["A1 permuted"] = permuted_excess
WHO_PUSHES["A1 correlation"] = whole_correlation
MASKED, SGD = {"A2 sure": gained_over("sure", "plain")}, {}
for claim, mask in (("A2", "specific by place"), ("A3", "shared by place")):
    by_word = mask.replace("place", "word")
    MASKED |= dict.fromkeys(
        (claim, f"{claim} elsewhere"), apart_at_end(mask, f"{mask}, permuted signs")
    )
    MASKED[f"{claim} credit"] = apart_at_end(mask, f"{mask}, matched credit")
    MASKED[f"{claim} word"] = apart_at_end(by_word, f"{by_word}, permuted signs")
    SGD[f"{claim} sgd"] = MASKED[claim]
for rows, end_of_key in ((MASKED, ""), (SGD, ", sgd")):
    rows[f"A2 fifth{end_of_key}"] = apart_at_end("unsure", "shared by place, matched credit")
    rows[f"A2 permuted{end_of_key}"] = gained_over("permuted rewards", "plain")
DIALLED = dict.fromkeys(("A4", "A4 elsewhere"), dialled(0.0))
DIALLED |= {"A4 half": dialled(0.5), "A4 mixed groups": dialled(0.0, "without equal groups")}
DIALLED["A4 known credit"] = lambda units: (
    value_at(units, "known credit") - value_at(units, "rewards", 1.0)
)
DIALLED["A4 permuted"] = gained_over("permuted rewards", "rewards", (0.0, 1.0))
DISCRIMINATING = {
    "A5": apart_at_end("top half", "bottom half"),
    "A5 rule": apart_at_end("delta", "plain"),
}
DISCRIMINATING["A5 random"] = apart_at_end("top half", "random half")
DISCRIMINATING["A5 learns"] = apart_at_end("plain", "permuted rewards")
DISCRIMINATING |= {"A5 size": rank_beyond("by_size"), "A5 side": rank_beyond("by_side")}

DEFINITIONS = {
    "pairs": WHO_PUSHES,
    "masks": MASKED,
    "masks_sgd": SGD,
    "opposition": DIALLED,
    "delta": DISCRIMINATING,
    "smollm2_probes": LANGUAGE,
    "smollm2_training": TUNED,
    "arena": ARENA,
    "batch_composition": BATCHES,
    "cancelled": CANCELLED,
    "confidence": CONFIDENCE,
    "dose": DOSE,
    "batch_one_prompt": {
        f"{claim} one prompt": ordered(order, level=1) for claim, order in ORDERS.items()
    },
    "mass": MASS,
    "recovered": RECOVERED,
    "training_curves": TRAINING,
    "value_gap": GAPS,
    "equal_weights": WEIGHTS,
    "worlds": WORLD_ROWS,
    "worlds_300": LASTING,
    "worlds_300_plain_rate": PLAIN_RATE,
    "worlds_groups": SIZES,
    "worlds_defaults": CHANGED,
}
