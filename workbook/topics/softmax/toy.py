"""Tables for the explorers of the two contexts in `pair`, a map over both probabilities, and its verdict.

Pure functions: settings -> tables. Couplings come from `workbook.theory`, the moves also from real SGD steps.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbook.theory import coupling_kernel, kl_drift, predicted_delta_logp
from workbook.theory.coupling import UNSURE
from workbook.topics.softmax.pair import (
    CONTEXTS,
    PARTS,
    TRAINED,
    WORDS,
    Pair,
    check_settings,
    coupling_parts,
    distributions,
    make_pair,
    real_step,
)

SOURCES = ("first order", "closed form", "real SGD step")
GRID = 10  # cells along a side of the map


def compute_pair(advantage_a: float = 1.0, advantage_b: float = 0.0, lr: float = 0.5, **settings) -> dict:
    """Tabulate one SGD step on the output layer, predicted and real: tables moves, kernel, vectors, coordinates.

    settings: of `make_pair`.  moves: dlogp (nats) of both tokens by SOURCES.  kernel: K.  vectors: hidden states.
    coordinates: the words' contributions to <e_A - p_A, e_B - p_B>.
    """
    pair = make_pair(**settings)
    advantages = torch.tensor([advantage_a, advantage_b], dtype=torch.float64)
    deltas = [_predict(pair, advantages, lr, order) for order in ("first", "exact")] + [real_step(pair, advantages, lr)]
    names = [f"{context}'s “{WORDS[token]}”" for context, token in zip(CONTEXTS, pair.tokens, strict=True)]
    kernel = coupling_kernel(pair.hidden, pair.logits, pair.tokens).tolist()
    products = pair.scores.prod(0)
    where = (f"“{WORDS[0]}”", f"“{WORDS[1]}”", "all other words")
    parts = (products[0], products[1], products[2:].sum())
    ends = pair.hidden[:, :2] * pair.temperature
    return {
        "moves": pd.DataFrame(
            [
                {"row": f"{CONTEXTS[i]}, {source}", "token": names[i], "source": source, "dlogp": float(delta[i])}
                for i in (0, 1)
                for source, delta in zip(SOURCES, deltas, strict=True)
            ]
        ),
        "kernel": pd.DataFrame(
            [{"moved": CONTEXTS[i], "by": f"step on {CONTEXTS[j]}", "K": kernel[i][j]} for i in (0, 1) for j in (0, 1)]
        ),
        "vectors": pd.DataFrame(
            [{"context": name, "x": x, "y": y} for name, (x, y) in zip(CONTEXTS, ends.tolist(), strict=True)]
        ),
        "coordinates": pd.DataFrame({"word": where, "product": [float(part) for part in parts]}),
    }


def compute_map(
    p_a: float = 0.2,
    p_b: float = 0.2,
    same: bool = True,
    angle: float = 0.0,
    vocabulary: int = 32,
    rivalry: float = 0.0,
    temperature: float = 1.0,
) -> dict:
    """Tabulate K_AB over both probabilities, for same and different tokens: tables map, and here (the one setting).

    Hidden states have length 1. The map's axes are probabilities at the temperature; p_a and p_b are at temperature 1.
    """
    check_settings(p_a=p_a, p_b=p_b, vocabulary=vocabulary, rivalry=rivalry, temperature=temperature)
    pair = make_pair(p_a, p_b, angle, same=same, vocabulary=vocabulary, rivalry=rivalry, temperature=temperature)
    here_a, here_b = pair.probabilities.tolist()
    tempered = distributions(torch.tensor([0.5], dtype=torch.float64), torch.tensor([0]), vocabulary, rivalry)
    tempered = tempered[0, 1:].pow(1 / temperature)  # how the rest is shared does not depend on p
    share = float(tempered[0] / tempered.sum())
    rivalry = (share * (vocabulary - 1) - 1) / (vocabulary - 2)
    p = (torch.arange(GRID, dtype=torch.float64) + 0.5) / GRID
    tokens = torch.tensor([0, 0, 1]).repeat_interleave(GRID)  # A, B with the same token, B with the other one
    logits = distributions(p.repeat(3), tokens, vocabulary, rivalry).log()
    hidden = pair.hidden[[0, 1, 1]].repeat_interleave(GRID, 0)
    kernel = coupling_kernel(hidden, logits, tokens)[:GRID, GRID:]  # (GRID, 2 GRID)
    a, b = (axis.flatten().tolist() for axis in torch.meshgrid(p, p.repeat(2), indexing="ij"))
    table = pd.DataFrame({"p_a": a, "p_b": b, "K": kernel.flatten().tolist()})
    table["token"] = (["same"] * GRID + ["different"] * GRID) * GRID
    value = float(coupling_kernel(pair.hidden, pair.logits, pair.tokens)[0, 1])
    here = {"p_a": here_a, "p_b": here_b, "token": "same" if same else "different", "K": value, "rival": share}
    return {"map": table, "here": pd.DataFrame([here])}


def map_verdict(table: pd.DataFrame) -> dict[str, float]:
    """Sum up H2 on a map, in two numbers between 0 and 1.

    unsure: of the cells with |K| above half the largest, the share in which both tokens are unsure (p < 0.5).
    other: the largest |K| of different tokens over the largest of the same token.
    """
    size, same = np.abs(table["K"].to_numpy()), (table["token"] == "same").to_numpy()
    unsure = np.maximum(table["p_a"].to_numpy(), table["p_b"].to_numpy()) < UNSURE
    peak = size[same].max()
    return {
        "unsure": float(unsure[size > size.max() / 2].mean()) if size.max() > 0 else 0.0,
        "other": float(size[~same].max() / peak) if peak > 0 else 0.0,
    }


def compute_tied(
    p_a: float = 0.2,
    p_b: float = 0.2,
    angle: float = 90.0,
    same: bool = True,
    b_reads: str = "the word that A reads",
    vocabulary: int = 32,
    width: int = 16,
    seed: int = 0,
    lr: float = 1e-5,
) -> dict:
    """Tabulate how a step on A moves B, by what is trained: tables parts and real (dlogp of B over lr)."""
    pair = make_pair(p_a, p_b, angle, same=same, b_reads=b_reads, vocabulary=vocabulary, width=width, seed=seed)
    parts = {name: float(part[1, 0]) for name, part in coupling_parts(pair).items()}
    step = torch.tensor([1.0, 0.0], dtype=torch.float64)
    rows = [(TRAINED[name], part, parts[part]) for k, name in enumerate(TRAINED) for part in PARTS[: k + 1]]
    moves = [(label, float(real_step(pair, step, lr, name)[1]) / lr) for name, label in TRAINED.items()]
    return {
        "parts": pd.DataFrame(rows, columns=["trained", "part", "K"]),
        "real": pd.DataFrame(moves, columns=["trained", "moved"]),
    }


def compute_learning_rates(lrs, advantages=(1.0, -1.0), **settings) -> pd.DataFrame:
    """Tabulate lr, token, first, exact and kl (nats): exact = first - KL(old || new), whatever the step."""
    pair, advantages = make_pair(**settings), torch.tensor(advantages, dtype=torch.float64)
    gradient = advantages[:, None] * pair.scores  # of the logits, (2, V)
    rows = []
    for lr in lrs:
        first, exact = (_predict(pair, advantages, lr, order).tolist() for order in ("first", "exact"))
        after = (pair.logits + lr * pair.hidden @ pair.hidden.T @ gradient).log_softmax(-1)
        kl = kl_drift(after, pair.logits - after).tolist()  # of the old policy from the new one
        rows += [
            {"lr": float(lr), "token": CONTEXTS[i], "first": first[i], "exact": exact[i], "kl": kl[i]} for i in (0, 1)
        ]
    return pd.DataFrame(rows)


def compute_cells(
    kernel: Float[Tensor, "N N"],
    tokens: Int[Tensor, " N"],
    probabilities: Float[Tensor, " N"],
    contexts: Int[Tensor, " N"],
) -> pd.DataFrame:
    """Average coupling over all pairs i < j of N tokens, by kind of pair.

    Columns context, token, confidence, pairs, total, mean, signed.
    context: same or different (tokens drawn from one softmax have equal `contexts`).  token: same or different.
    confidence: both unsure (p < 0.5), one unsure, both sure.  mean and total: of |K|, and signed the mean of K.
    """
    unsure = (probabilities < UNSURE).long()
    i, j = torch.triu_indices(len(tokens), len(tokens), 1)
    kind = (contexts[i] == contexts[j]).long() * 6 + (tokens[i] == tokens[j]).long() * 3 + unsure[i] + unsure[j]
    values = kernel[i, j].double()
    pairs, total, signed = (torch.bincount(kind, weights, minlength=12) for weights in (None, values.abs(), values))
    same = ("different", "same")
    kinds = product(same, same, ("both sure", "one unsure", "both unsure"))  # in the order of `kind`
    columns = {"pairs": pairs, "total": total, "mean": total / pairs, "signed": signed / pairs}
    table = pd.DataFrame(kinds, columns=["context", "token", "confidence"])
    return table.assign(**{name: column.numpy() for name, column in columns.items()})


def _predict(pair: Pair, advantages: Tensor, lr: float, order: str) -> Tensor:
    return predicted_delta_logp(pair.hidden, pair.logits, pair.tokens, advantages, lr, order)
