"""Two contexts, one softmax layer: how one update couples their tokens.

Context i (A or B) reads the word x_i and says the word y_i. Its hidden state and its logits are

    h_i = M_i E[x_i]        z_i = (W h_i + c_i) / temperature

M_i and c_i stand for the rest of a network and stay frozen. W, the output layer, is trained; E, the
embeddings, may be frozen, trained, or the same matrix as W (tied). c_i is chosen so that the
probabilities are what the settings say.

A step on A's token moves B's by the learning rate times the coupling of both

    K_AB = <h_A, h_B> <e_A - p_A, e_B - p_B>

With the same hidden state of length 1, the same word and p = .2 of 32 words, K = .8^2 + 31 (.8 /
31)^2 = .66; at p = .9 it is .01. So unsure tokens couple and sure ones hardly do.

Source of the formulas: arXiv 2605.08666, figure 2 (H2, H4 in the claims); the input side is ours.
V words, D width of a hidden state.
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbook.messages import InvalidValue, require_one_of, require_range
from workbook.theory import coupling_kernel, kl_drift, predicted_delta_logp
from workbook.theory.coupling import BELOW_HALF

CONTEXTS = ("A", "B")
_WORDS = ("now", "then")  # what A says, and what B says if not the same
_READ_BY_A = 2
# what B reads
READS = {"another word": 3, "the word that A reads": _READ_BY_A, "the word that A says": 0}
TRAINED = {  # what an update may change, in words
    "output": "output layer only, the proxy",
    "untied": "embeddings too, untied",
    "tied": "embeddings too, tied",
}
PARTS = ("output × output", "input × input", "input × output")
SOURCES = ("first order", "closed form", "real SGD step")
GRID = 10  # cells along a side of the map


@dataclass(frozen=True)
class Pair:
    """Two contexts, A and B.

    Attributes:
        embeddings: E, (V, D); W starts as the same matrix
        maps: M, (2, D, D)
        reads: x, (2,) the words read
        offsets: c, (2, V)
        tokens: y, (2,) the words said
        temperature: of the softmax
    """

    embeddings: Float[Tensor, "V D"]
    maps: Float[Tensor, "2 D D"]
    reads: Int[Tensor, " 2"]
    offsets: Float[Tensor, "2 V"]
    tokens: Int[Tensor, " 2"]
    temperature: float

    def states(self, embeddings: Tensor) -> Float[Tensor, "2 D"]:
        """Hidden states h_i = M_i E[x_i] with these embeddings."""
        return (self.maps @ embeddings[self.reads].unsqueeze(2)).squeeze(2)

    def logps(self, output: Tensor, embeddings: Tensor) -> Float[Tensor, "2 V"]:
        """Log-probabilities with this output layer and these embeddings, both (V, D)."""
        logits = self.states(embeddings) @ output.T + self.offsets
        return (logits / self.temperature).log_softmax(-1)

    @property
    def hidden(self) -> Float[Tensor, "2 D"]:
        """Hidden states over the temperature.

        Dividing the logits by the temperature is dividing the output layer's input by it.
        """
        return self.states(self.embeddings) / self.temperature

    @property
    def logits(self) -> Float[Tensor, "2 V"]:
        """Normalized logits, which are log-probabilities."""
        return self.logps(self.embeddings, self.embeddings)

    @property
    def probabilities(self) -> Float[Tensor, " 2"]:
        """Probability of the token that each context says."""
        return self.token_values(self.logits.exp())

    @property
    def scores(self) -> Float[Tensor, "2 V"]:
        """Scores e - p of both contexts, the gradients of their log-probabilities by the logits."""
        return torch.nn.functional.one_hot(self.tokens, len(self.embeddings)) - self.logits.exp()

    @property
    def kernel(self) -> Float[Tensor, "2 2"]:
        """Coupling K of both tokens through the output layer."""
        return coupling_kernel(self.hidden, self.logits, self.tokens)

    def token_values(self, values: Float[Tensor, "2 V"]) -> Float[Tensor, " 2"]:
        """Values of the two tokens out of those of all words."""
        return values.gather(1, self.tokens[:, None]).squeeze(1)


def distributions(
    p: Float[Tensor, " n"], tokens: Int[Tensor, " n"], vocabulary: int, rivalry: float
) -> Float[Tensor, "n V"]:
    """Build a row of probabilities per token, with a share of what is left for its rival.

    Row i's token (word 0 or 1) has p_i; its rival, the other of these two words, has rho (1 - p_i),

        rho = rivalry + (1 - rivalry) / (V - 1)

    and all other words share the remainder evenly. rivalry 0 spreads 1 - p_i evenly, 1 would give
    all of it to the rival.

    >>> distributions(torch.tensor([0.4]), torch.tensor([0]), 4, 0.0)
    tensor([[0.4000, 0.2000, 0.2000, 0.2000]])
    """
    share = rivalry + (1 - rivalry) / (vocabulary - 1)
    rest = (1 - p)[:, None]  # (n, 1)
    rows = (rest * (1 - share) / (vocabulary - 2)).repeat(1, vocabulary)
    rivals = 1 - tokens
    rows.scatter_(1, rivals[:, None], rest * share)
    return rows.scatter_(1, tokens[:, None], p[:, None])


def make_pair(
    p_a: float = 0.2,
    p_b: float = 0.2,
    angle: float = 30.0,
    length_a: float = 1.0,
    length_b: float = 1.0,
    same: bool = True,
    vocabulary: int = 32,
    rivalry: float = 0.0,
    temperature: float = 1.0,
    b_reads: str = "another word",
    width: int = 2,
    seed: int = 0,
) -> Pair:
    """Build two contexts with given probabilities, angle and lengths of hidden states.

    p_a, p_b: probabilities of the words said, at temperature 1.
    angle: between the hidden states, in degrees.
    same: B says the word that A says.
    rivalry: see `distributions`.
    b_reads: a key of READS.
    width, seed: D, and of the random embeddings, whose rows are unit vectors.
    Double precision. Raises ValueError for a setting out of range.
    """
    require_range(0, 1, closed=False, p_a=p_a, p_b=p_b)
    if not (isinstance(vocabulary, int) and vocabulary >= 4):
        raise InvalidValue("vocabulary", vocabulary, "a whole number of words, 4 or more")
    if not 0 <= rivalry < 1:
        raise InvalidValue("rivalry", rivalry, "0 or more and below 1")
    require_range(0, math.inf, closed=False, temperature=temperature)
    require_one_of("b_reads", b_reads, tuple(READS))
    require_range(0, math.inf, length_a=length_a, length_b=length_b)
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(vocabulary, width, dtype=torch.float64, generator=generator)
    embeddings = torch.nn.functional.normalize(embeddings, dim=1)
    tokens = torch.tensor([0, 0 if same else 1])
    reads = torch.tensor([_READ_BY_A, READS[b_reads]])

    # directions of h: A's along the first axis, B's at the angle to it
    turned = math.radians(angle)
    directions = torch.zeros(2, width, dtype=torch.float64)
    directions[0, 0] = 1.0
    directions[1, 0] = math.cos(turned)
    directions[1, 1] = math.sin(turned)

    # M_i reflects the embedding that is read onto its direction, and stretches it
    lengths = torch.tensor([length_a, length_b], dtype=torch.float64)
    reflections = [
        _reflection(embeddings[read], direction)
        for read, direction in zip(reads, directions, strict=True)
    ]
    maps = lengths[:, None, None] * torch.stack(reflections)

    # c_i is what W h_i lacks to give the probabilities
    p = distributions(torch.tensor([p_a, p_b], dtype=torch.float64), tokens, vocabulary, rivalry)
    offsets = p.log() - lengths[:, None] * directions @ embeddings.T
    return Pair(embeddings, maps, reads, offsets, tokens, temperature)


def _reflection(start: Float[Tensor, " D"], end: Float[Tensor, " D"]) -> Float[Tensor, "D D"]:
    """Householder reflection of one unit vector onto another, I - 2 a a' / a'a with a their gap."""
    axis = start - end
    size = axis @ axis
    # equal vectors need no reflection
    turn = 2 * torch.outer(axis, axis) / size if size > 1e-24 else 0
    return torch.eye(len(start), dtype=torch.float64) - turn


def real_step(
    pair: Pair, advantages: Float[Tensor, " 2"], lr: float, trained: str = "output"
) -> Float[Tensor, " 2"]:
    """Change of both tokens' log-probabilities (2,), by a real step of SGD on -sum A logp.

    trained: "output" W alone, "untied" W and E as two matrices, "tied" one matrix that is both.
    """
    require_one_of("trained", trained, tuple(TRAINED))
    output = pair.embeddings.clone().requires_grad_()
    if trained == "tied":
        embeddings = output
    else:
        embeddings = pair.embeddings.clone().requires_grad_(trained == "untied")
    weights = [output, embeddings] if trained == "untied" else [output]
    optimizer = torch.optim.SGD(weights, lr=lr)

    before = pair.token_values(pair.logps(output, embeddings))
    loss = -(advantages * before).sum()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        after = pair.token_values(pair.logps(output, embeddings))
        return after - before.detach()


def coupling_parts(pair: Pair) -> dict[str, Float[Tensor, "2 2"]]:
    """Split the coupling <grad logp_i, grad logp_j> of one tied matrix into PARTS.

    With r = (e - p) / temperature, v_i = M_i' W' r_i the gradient at the embedding that i reads,
    and h undivided:

        output × output   <h_i, h_j> <r_i, r_j>                       K, the output layer's own
        input × input     [x_i = x_j] <v_i, v_j>                      if embeddings are trained, too
        input × output    r_i[x_j] <h_i, v_j> + r_j[x_i] <h_j, v_i>   if both are one matrix
    """
    # v, (2, D)
    at_state = pair.scores / pair.temperature @ pair.embeddings
    at_input = (at_state.unsqueeze(1) @ pair.maps).squeeze(1)

    same_read = pair.reads[:, None] == pair.reads
    input_input = same_read * (at_input @ at_input.T)
    # what i's output row gives to the word that j reads
    crossed = pair.scores[:, pair.reads] * (pair.hidden @ at_input.T)
    parts = (pair.kernel, input_input, crossed + crossed.T)
    return dict(zip(PARTS, parts, strict=True))


# --- tables


def compute_pair(
    advantage_a: float = 1.0, advantage_b: float = 0.0, lr: float = 0.5, **settings
) -> dict:
    """Tabulate one SGD step on the output layer, predicted and real.

    settings: of `make_pair`.

    Returns four tables:
        moves: dlogp (nats) of both tokens by SOURCES
        kernel: K, a row per pair of moved token and step
        coordinates: what each word contributes to <e_A - p_A, e_B - p_B>
        states: the ends (x, y) of both hidden states, and their inner product
    """
    pair = make_pair(**settings)
    advantages = torch.tensor([advantage_a, advantage_b], dtype=torch.float64)
    layer = pair.hidden, pair.logits, pair.tokens, advantages, lr
    steps = {
        "first order": predicted_delta_logp(*layer, "first"),
        "closed form": predicted_delta_logp(*layer, "exact"),
        "real SGD step": real_step(pair, advantages, lr),
    }
    moves = []
    for i, context in enumerate(CONTEXTS):
        token = f"{context}'s “{_WORDS[pair.tokens[i]]}”"
        for source in SOURCES:
            moves.append((f"{context}, {source}", token, source, float(steps[source][i])))

    kernel = pair.kernel
    couplings = []
    for i, moved in enumerate(CONTEXTS):
        for j, by in enumerate(CONTEXTS):
            couplings.append((moved, f"step on {by}", float(kernel[i, j])))

    products = pair.scores.prod(0)  # (V,)
    coordinates = {
        "word": (f"“{_WORDS[0]}”", f"“{_WORDS[1]}”", "all other words"),
        "product": [float(part) for part in (products[0], products[1], products[2:].sum())],
    }
    hidden = pair.hidden
    x, y = hidden[:, :2].T.tolist()
    states = {"context": CONTEXTS, "x": x, "y": y, "product": float(hidden[0] @ hidden[1])}
    return {
        "moves": pd.DataFrame(moves, columns=["row", "token", "source", "dlogp"]),
        "kernel": pd.DataFrame(couplings, columns=["moved", "by", "K"]),
        "coordinates": pd.DataFrame(coordinates),
        "states": pd.DataFrame(states),
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
    """Tabulate K_AB over both probabilities, for the same token and for different ones.

    Hidden states have length 1. The map's axes are probabilities at the temperature; p_a and p_b
    are at temperature 1.

    Returns two tables:
        map: p_a, p_b, K, token ("same" or "different")
        here: the same of the one setting, and rival, the share of 1 - p that the rival has
    """
    pair = make_pair(
        p_a, p_b, angle, same=same, vocabulary=vocabulary, rivalry=rivalry, temperature=temperature
    )
    # the temperature changes how the rest is shared, whatever p is; so find the rivalry of
    # the tempered softmax from any p
    any_p = torch.tensor([0.5], dtype=torch.float64)
    row = distributions(any_p, torch.tensor([0]), vocabulary, rivalry)[0]
    rest = row[1:].pow(1 / temperature)
    share = float(rest[0] / rest.sum())
    tempered_rivalry = (share * (vocabulary - 1) - 1) / (vocabulary - 2)

    # three rows of contexts: A, B with the same token, B with the other one
    p = (torch.arange(GRID, dtype=torch.float64) + 0.5) / GRID
    tokens = torch.tensor([0, 0, 1]).repeat_interleave(GRID)
    logits = distributions(p.repeat(3), tokens, vocabulary, tempered_rivalry).log()
    hidden = pair.hidden[[0, 1, 1]].repeat_interleave(GRID, 0)
    kernel = coupling_kernel(hidden, logits, tokens)[:GRID, GRID:]  # (GRID, 2 GRID)

    rows, columns = torch.meshgrid(p, p.repeat(2), indexing="ij")
    table = pd.DataFrame(
        {
            "p_a": rows.flatten().tolist(),
            "p_b": columns.flatten().tolist(),
            "K": kernel.flatten().tolist(),
            "token": (["same"] * GRID + ["different"] * GRID) * GRID,
        }
    )
    p_here = pair.probabilities.tolist()
    here = {
        "p_a": p_here[0],
        "p_b": p_here[1],
        "token": "same" if same else "different",
        "K": float(pair.kernel[0, 1]),
        "rival": share,
    }
    return {"map": table, "here": pd.DataFrame([here])}


def map_verdict(table: pd.DataFrame) -> dict[str, float]:
    """Sum up H2 on a map, in two numbers between 0 and 1.

    below_half: of the cells with |K| above half the largest, the share in which both tokens lie
        below one half
    other: the largest |K| of different tokens over the largest of the same token
    """
    size = np.abs(table["K"].to_numpy())
    same = (table["token"] == "same").to_numpy()
    below_half = np.maximum(table["p_a"].to_numpy(), table["p_b"].to_numpy()) < BELOW_HALF
    peak = size[same].max()
    return {
        "below_half": float(below_half[size > size.max() / 2].mean()) if size.max() > 0 else 0.0,
        "other": float(size[~same].max() / peak) if peak > 0 else 0.0,
    }


def compute_learning_rates(lrs, advantages=(1.0, -1.0), **settings) -> pd.DataFrame:
    """Tabulate a step's first-order and exact dlogp, and the KL divergence between them.

        exact = first - KL(old || new), whatever the step

    Columns lr, token, first, exact, kl (nats).
    """
    pair = make_pair(**settings)
    advantages = torch.tensor(advantages, dtype=torch.float64)
    gradient = advantages[:, None] * pair.scores  # of the logits, (2, V)
    rows = []
    for lr in lrs:
        layer = pair.hidden, pair.logits, pair.tokens, advantages, lr
        first = predicted_delta_logp(*layer, "first").tolist()
        exact = predicted_delta_logp(*layer, "exact").tolist()

        # the KL of the old policy from the new one
        after = (pair.logits + lr * pair.hidden @ pair.hidden.T @ gradient).log_softmax(-1)
        kl = kl_drift(after, pair.logits - after).tolist()
        rows += [(float(lr), CONTEXTS[i], first[i], exact[i], kl[i]) for i in (0, 1)]
    return pd.DataFrame(rows, columns=["lr", "token", "first", "exact", "kl"])
