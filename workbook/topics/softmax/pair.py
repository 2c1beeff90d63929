"""Two contexts, one softmax layer: coupling of their tokens through one update, small enough for a slider.

Context i (A or B) reads the word x_i and says the word y_i. Its hidden state and its logits are

    h_i = M_i E[x_i]        z_i = (W h_i + c_i) / temperature

M_i and c_i stand for the rest of a network and stay frozen. W, the output layer, is trained; E, the embeddings, may be
frozen, trained, or the same matrix as W (tied). c_i is chosen so that the probabilities are what the settings say.
Source of the formulas: arXiv 2605.08666, figure 2 (H2, H4 in the claims); the input side is ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbook.theory import coupling_kernel
from workbook.theory.choices import check_choice, check_range

WORDS, CONTEXTS = ("so", "now"), ("A", "B")  # what A says, and what B says if not the same
READS = {"another word": 3, "the word that A reads": 2, "the word that A says": 0}  # what B reads; A reads word 2
TRAINED = {  # what an update may change, in words
    "output": "output layer only, the proxy",
    "untied": "embeddings too, untied",
    "tied": "embeddings too, tied",
}
PARTS = ("output × output", "input × input", "input × output")


@dataclass(frozen=True)
class Pair:
    """Two contexts: embeddings (V, D), maps M (2, D, D), reads x (2,), offsets c (2, V), tokens y (2,)."""

    embeddings: Float[Tensor, "V D"]
    maps: Float[Tensor, "2 D D"]
    reads: Int[Tensor, " 2"]
    offsets: Float[Tensor, "2 V"]
    tokens: Int[Tensor, " 2"]
    temperature: float

    def logps(self, output: Tensor, embeddings: Tensor) -> Float[Tensor, "2 V"]:
        """Log-probabilities with this output layer and these embeddings, both (V, D)."""
        return ((self._states(embeddings) @ output.T + self.offsets) / self.temperature).log_softmax(-1)

    @property
    def hidden(self) -> Float[Tensor, "2 D"]:
        """Hidden states over the temperature: dividing logits by it is dividing the output layer's input by it."""
        return self._states(self.embeddings) / self.temperature

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

    def token_values(self, values: Float[Tensor, "2 V"]) -> Float[Tensor, " 2"]:
        """Values of the two tokens out of those of all words."""
        return values.gather(1, self.tokens[:, None]).squeeze(1)

    def _states(self, embeddings: Tensor) -> Tensor:
        return (self.maps @ embeddings[self.reads].unsqueeze(2)).squeeze(2)  # h_i = M_i E[x_i], (2, D)


def distributions(
    p: Float[Tensor, " n"], tokens: Int[Tensor, " n"], vocabulary: int, rivalry: float
) -> Float[Tensor, "n V"]:
    """Build probabilities: row i's token (word 0 or 1) has p_i, the other of both the share rho of 1 - p_i.

    rho = rivalry + (1 - rivalry) / (V - 1); all other words share the remainder evenly. rivalry 0 spreads 1 - p_i
    evenly, 1 would give all of it to the rival.

    >>> distributions(torch.tensor([0.4]), torch.tensor([0]), 4, 0.0)
    tensor([[0.4000, 0.2000, 0.2000, 0.2000]])
    """
    share = rivalry + (1 - rivalry) / (vocabulary - 1)
    rest = (1 - p)[:, None]
    rows = (rest * (1 - share) / (vocabulary - 2)).repeat(1, vocabulary)
    rows.scatter_(1, 1 - tokens[:, None], rest * share)
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
    """Build two contexts with these probabilities (at temperature 1), angle (degrees) and lengths of hidden states.

    same: B says the word that A says.  rivalry: see `distributions`.  b_reads: a key of READS.  width, seed: D, and of
    the random embeddings, whose rows are unit vectors.  Double precision.  ValueError for a setting out of range.
    """
    check_settings(p_a=p_a, p_b=p_b, vocabulary=vocabulary, rivalry=rivalry, temperature=temperature)
    check_choice("b_reads", b_reads, tuple(READS))
    check_range(0, math.inf, length_a=length_a, length_b=length_b)
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(vocabulary, width, dtype=torch.float64, generator=generator)
    embeddings = torch.nn.functional.normalize(embeddings, dim=1)
    tokens, reads = torch.tensor([0, 0 if same else 1]), torch.tensor([2, READS[b_reads]])
    wanted = torch.zeros(2, width, dtype=torch.float64)  # directions of h
    wanted[0, 0] = 1.0
    wanted[1, 0], wanted[1, 1] = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    maps = torch.stack([_reflection(embeddings[x], h) for x, h in zip(reads, wanted, strict=True)])
    lengths = torch.tensor([length_a, length_b], dtype=torch.float64)
    p = distributions(torch.tensor([p_a, p_b], dtype=torch.float64), tokens, vocabulary, rivalry)
    offsets = p.log() - lengths[:, None] * wanted @ embeddings.T
    return Pair(embeddings, lengths[:, None, None] * maps, reads, offsets, tokens, temperature)


def real_step(pair: Pair, advantages: Float[Tensor, " 2"], lr: float, trained: str = "output") -> Float[Tensor, " 2"]:
    """Take one real step, autograd and torch.optim.SGD on -sum A logp; return logp after minus before (2,).

    trained: "output" W alone, "untied" W and E as two matrices, "tied" one matrix that is both.
    """
    check_choice("trained", trained, tuple(TRAINED))
    output = pair.embeddings.clone().requires_grad_()
    embeddings = output if trained == "tied" else pair.embeddings.clone().requires_grad_(trained == "untied")
    optimizer = torch.optim.SGD([output, embeddings] if trained == "untied" else [output], lr=lr)
    before = pair.token_values(pair.logps(output, embeddings))
    (-(advantages * before).sum()).backward()
    optimizer.step()
    with torch.no_grad():
        return pair.token_values(pair.logps(output, embeddings)) - before.detach()


def coupling_parts(pair: Pair) -> dict[str, Float[Tensor, "2 2"]]:
    """Split the coupling <grad logp_i, grad logp_j> of one tied matrix into three parts.

    With r = (e - p) / temperature, v_i = M_i' W' r_i the gradient at the embedding that i reads, and h undivided:

    - output × output: <h_i, h_j> <r_i, r_j>, which is K; all that there is if the output layer alone is trained
    - input × input: [x_i = x_j] <v_i, v_j>; added if the embeddings are trained, too, tied or not
    - input × output: r_i[x_j] <h_i, v_j> + r_j[x_i] <h_j, v_i>; added if both are one matrix
    """
    scores, hidden = pair.scores, pair.hidden
    at_input = ((scores / pair.temperature @ pair.embeddings).unsqueeze(1) @ pair.maps).squeeze(1)  # v, (2, D)
    crossed = scores[:, pair.reads] * (hidden @ at_input.T)
    parts = (
        coupling_kernel(hidden, pair.logits, pair.tokens),
        (pair.reads[:, None] == pair.reads) * (at_input @ at_input.T),
        crossed + crossed.T,
    )
    return dict(zip(PARTS, parts, strict=True))


def _reflection(start: Tensor, end: Tensor) -> Tensor:
    """Build the reflection (D, D) that maps the unit vector start to the unit vector end."""
    axis = start - end
    size = axis @ axis
    return torch.eye(len(start), dtype=start.dtype) - (2 * torch.outer(axis, axis) / size if size > 1e-24 else 0)


def check_settings(vocabulary: int, rivalry: float, temperature: float, **probabilities: float) -> None:
    """Raise a ValueError that names the first setting out of range."""
    check_range(0, 1, closed=False, **probabilities)
    if not (isinstance(vocabulary, int) and vocabulary >= 4):
        raise ValueError(f"vocabulary={vocabulary} is too small: it must be a whole number of words, 4 or more.")
    if not 0 <= rivalry < 1:
        raise ValueError(f"rivalry={rivalry} is out of range: it must be 0 or more and below 1.")
    check_range(0, math.inf, closed=False, temperature=temperature)
