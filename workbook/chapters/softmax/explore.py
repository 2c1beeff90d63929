"""Explorers and exercises of chapter 01: two contexts, coupled through one softmax layer."""

import math

import altair as alt
import pandas as pd
import torch

from workbook.chapters.grading import UNANSWERED, answer_of, grade, settings_fault
from workbook.chapters.softmax.charts import (
    coupling_map_chart,
    example_coupling_chart,
    pair_chart,
)
from workbook.chapters.softmax.toy import SOURCES, compute_map, compute_pair, make_pair, map_verdict
from workbook.rollouts.example import example_policy, example_rollouts
from workbook.rollouts.states import output_states
from workbook.theory import coupling_kernel
from workbook.views.explorer import Explorer, menu, slider

SIGNS = [("+1, too", 1.0), ("0, not in the batch", 0.0), ("−1", -1.0)]
KINDS = [("the same token", True), ("another token", False)]


def explore_pair() -> Explorer:
    """Slide both probabilities, the hidden states, the advantages and the learning rate."""

    def describe(moves, kernel, **_) -> str:
        # by token: first order, closed form, real step
        first, _, real = (
            moves[moves["source"] == source].set_index("token")["dlogp"] for source in SOURCES
        )
        steps = [
            f"{token} moves by {real[token]:+.3f} nats (first order {first[token]:+.3f})"
            for token in real.index
        ]
        return f"{'; '.join(steps)}. K of the pair is {kernel['K'].iloc[1]:+.3f}."

    controls = {
        "p_a": slider(0.2, 0.02, 0.98, 0.02, "probability of A's token"),
        "p_b": slider(0.2, 0.02, 0.98, 0.02, "probability of B's token"),
        "angle": slider(30, 0, 180, 5, "angle (degrees)"),
        "same": menu(True, KINDS, "B says"),
        "advantage_b": menu(0.0, SIGNS, "advantage of B"),
        "rivalry": slider(0.0, 0.0, 0.98, 0.02, "rivalry of both words"),
        "lr": slider(1.0, 0.1, 10.0, 0.1, "learning rate"),
    }
    presets = {
        "turn to 90°": {"angle": 90},
        "turn to 180°": {"angle": 180},
        "B pushes against A": {"angle": 0, "advantage_b": -1.0},
        "both tokens sure": {"p_a": 0.9, "p_b": 0.9},
        "B says another word": {"same": False},
        "and they are rivals": {"same": False, "rivalry": 0.9},
        "a large step": {"lr": 5.0},
    }
    return Explorer(compute_pair, pair_chart, controls, describe, presets=presets)


def explore_map() -> Explorer:
    """Where coupling is large: by confidence, same or other token, temperature and vocabulary."""

    def describe(map, here) -> str:
        verdict = map_verdict(map)
        now = here.iloc[0]
        return (
            f"Here p is {now['p_a']:.2f} and {now['p_b']:.2f}, K is {now['K']:+.3f}, and the rival"
            f" has {now['rival']:.1%} of the rest. On the whole map: of the cells above half the"
            f" largest |K|, {verdict['below_half']:.0%} have both tokens below one half; different"
            f" tokens reach {verdict['other']:.0%} of the same token's largest |K|."
        )

    controls = {
        "p_a": slider(0.2, 0.02, 0.98, 0.02, "A's p at temperature 1"),
        "p_b": slider(0.2, 0.02, 0.98, 0.02, "B's p at temperature 1"),
        "same": menu(True, KINDS, "B says"),
        "angle": slider(0, 0, 180, 5, "angle (degrees)"),
        "temperature": slider(1.0, 0.5, 2.0, 0.1, "temperature"),
        "vocabulary": menu(32, [4, 8, 32, 128, 1024, 4096], "vocabulary (words)"),
        "rivalry": slider(0.9, 0.0, 0.98, 0.02, "rivalry of both words"),
    }
    presets = {"rest spread evenly": {"rivalry": 0.0}, "temperature 2": {"temperature": 2.0}}
    return Explorer(compute_map, coupling_map_chart, controls, describe, presets=presets)


def draw_example_coupling(coupling=None) -> alt.LayerChart:
    """Draw how words of A couple with words of B in the policy that answers the book's prompt.

    coupling: a reader's function as of `check_coupling`; the workbook's own where it is None, fails
    or returns None.
    """
    rollouts = example_rollouts(policy := example_policy())
    # the opening, the result at which A and B part, the link behind it, the second result
    words = rollouts.token_table().query("position in (0, 9, 11, 16)")
    states = output_states(policy, rollouts).select(torch.tensor(words.index.to_numpy()))
    layer = states.hidden.double(), states.logits.double(), states.tokens
    kernel = None
    if coupling is not None:
        try:
            kernel = coupling(*layer)
        except Exception:  # of a reader's unfinished function
            kernel = None
    print("Drawn with", "your function." if kernel is not None else "the workbook's own.")
    if kernel is None:
        kernel = coupling_kernel(*layer)
    K = torch.as_tensor(kernel)
    size = K.diagonal().sqrt()
    cosine = K / size[:, None] / size
    labels = (words["token"] + words["rollout"].map({0: " of A", 1: " of B"})).tolist()
    rows = [
        (labels[i], labels[4 + j], round(float(cosine[i, 4 + j]), 4) + 0.0)
        for i in range(4)
        for j in range(4)
    ]
    return example_coupling_chart(pd.DataFrame(rows, columns=["a", "b", "cosine"]))


# --- exercises


def check_coupling(function) -> None:
    """Check a function (hidden (N, D), logits (N, V), tokens (N,)) -> K (N, N).

    >>> check_coupling(lambda hidden, logits, tokens: hidden @ hidden.T)
    Not quite: this is the inner product of hidden states alone; that of the scores multiplies it.
    """
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    logits = 2 * torch.randn(4, 6, generator=generator, dtype=torch.float64)
    # not the last word, which `one_hot` would miss without its number of classes
    tokens = torch.tensor([0, 0, 2, 4])
    right = coupling_kernel(hidden, logits, tokens)
    p = logits.softmax(-1)  # (N, V)
    e = torch.nn.functional.one_hot(tokens, 6).double()  # (N, V)
    contexts = hidden @ hidden.T  # (N, N)
    scores = (e - p) @ (e - p).T  # (N, N)

    # what the usual mistakes give
    directions = torch.nn.functional.normalize(hidden, dim=1)
    cosines = directions @ directions.T
    mistakes = {
        "this is the inner product of hidden states alone; that of the scores multiplies it.": (
            contexts
        ),
        "this is the inner product of the scores e - p alone; multiply by the hidden states'.": (
            scores
        ),
        "lengths of hidden states count, too: take their inner product, not the cosine.": (
            cosines * scores
        ),
        "the score is e - p, with the one-hot e; yours seems to have p alone.": (
            contexts * (p @ p.T)
        ),
        "the score is e - p, with p the softmax of the logits; yours seems to be e - logits.": (
            contexts * ((e - logits) @ (e - logits).T)
        ),
        "for different tokens K is not 0: p at the other's token pulls against it.": (
            right * (e @ e.T)
        ),
        "both inner products are right, but they are multiplied, not added.": contexts + scores,
        "the sign is turned around: K_ii is a squared length and so never negative.": -right,
    }
    praise = (
        "Right: one inner product for the contexts, one for the tokens, and their product for the"
        " pair."
    )
    got = answer_of(function, hidden.clone(), logits.clone(), tokens.clone())
    grade(got, right, mistakes, praise, "pair of tokens")


def check_rivals(settings: dict | None) -> None:
    """Check settings of compute_pair in which A's step pushes another word of B down 0.9 as hard.

    The measure is how far A's own token goes up.

    >>> check_rivals({"same": True})
    Not quite: both contexts say the same token here; add same=False.
    """
    if settings is None:
        print(UNANSWERED)
        return
    fault = settings_fault(settings, compute_pair, make_pair)
    if fault:
        print(f"Not quite: {fault}")
        return
    try:
        kernel = compute_pair(**settings)["kernel"]["K"].tolist()
    except (TypeError, ValueError) as error:
        print(f"Not quite: {error}")
        return

    # K of A on A, B on A, A on B, B on B: what A's step does to B, over what it does to A
    ratio = kernel[2] / kernel[0] if kernel[0] > 0 else 0.0
    cosine = math.cos(math.radians(settings.get("angle", 30.0)))
    if settings.get("same", True):
        print("Not quite: both contexts say the same token here; add same=False.")
    elif settings.get("length_a", 1.0) != settings.get("length_b", 1.0):
        print("Not quite: a longer hidden state does it alone here; take length_a = length_b.")
    elif ratio <= -0.9:
        print(
            f"Right: K_BA is {ratio:.2f} of K_AA. Different tokens compete as hard as equal ones"
            " agree."
        )
    elif ratio > 0:
        print(
            f"Not quite: A's step lifts B here ({ratio:+.2f} of A's own); look at the hidden"
            " states' angle."
        )
    elif settings.get("rivalry", 0.0) < 0.5:
        print(
            f"Not quite: {ratio:+.2f}; most of the rest goes to words that neither says: which"
            " setting moves it?"
        )
    elif cosine < 0.9:
        print(
            f"Not quite: {ratio:+.2f}; the rivals compete, but the hidden states share only"
            f" {cosine:.2f}."
        )
    else:
        print(
            f"Not quite: {ratio:+.2f}; compare lengths and probabilities of A and B, and the"
            " rivalry."
        )
