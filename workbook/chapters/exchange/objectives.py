"""One table of objectives: what TRL's own loss gives rollouts A and B, and the formula behind it.

Every objective pushes a token by

    push_it = A_i w_it / D_i + KL term

with the advantage A, the weight w that ratio and clip make, and the divisor D. The functions
here ask TRL's loss (`workbook.training.given_scores`) for the push, and write the same product out
with its numbers, so that the two can be compared.

Two questions are answered by computing. Does a token that A and B share stand still? That is asked
in four situations of `situations`. And is the expected step a multiple of the gradient of the
expected reward? That is summed over all groups of a small world of two prompts and three answers
(`expected_step`), on fresh rollouts.

Letters: B = 2 rollouts of A and B, T tokens, V = 3 answers of the small world.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import combinations_with_replacement

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbook.chapters.exchange.toy import single_thread
from workbook.messages import require_one_of, require_range
from workbook.policies.models import private_copy
from workbook.probes.step import matched_lr, update
from workbook.rollouts.example import TASK, example_policy, example_rollouts
from workbook.rollouts.likelihood import logps
from workbook.theory import cancellation_residual, group_advantages
from workbook.theory.advantages import shared_places
from workbook.training.given_scores import objective_trainer, pushes_on

LENGTH = 32  # tokens, of the constant normalizer
STEPS = 4  # on A and B, before the batch counts as reused
STEP_NATS = 0.1  # of the first of them, root mean square over A and B
MOVED = 1.3  # by which other prompts have multiplied the probability of each shared token
CANCELS = 1e-4  # a residual below this is rounding
UNBIASED = 1e-6  # 1 - cosine below this is rounding
SITUATIONS = {  # what a shared token meets, and the words for it in the table
    "fresh": "a fresh batch",
    "reused": f"after {STEPS} steps on A and B",
    "moved": f"other prompts have made each shared token {MOVED:g} times as likely",
    "lengths": "B ends with its error, so it is shorter",
}


@dataclass(frozen=True)
class Objective:
    """One objective: how it makes an advantage, TRL's settings, and words for its columns.

    estimator: of `group_advantages`, or "reward", the reward itself.  on_policy: every ratio is
    taken as 1, as where rollouts are used once.
    """

    estimator: str
    settings: dict = field(default_factory=dict)
    on_policy: bool = False
    advantage: str = ""
    weight: str = ""
    clip: str = ""
    normalizer: str = ""
    kl: str = ""


_TOKEN, _SEQUENCE = "ratio of the token", "mean ratio of the rollout"
_BY_SPREAD, _CENTRED = "(R − mean) / spread", "R − mean"
_SINGLE = {"loss_type": "dr_grpo"}
OBJECTIVES = {
    "REINFORCE": Objective("reward", _SINGLE, True, "R", "1", "none", "constant", "none"),
    "RLOO": Objective(
        "rloo", _SINGLE, True, "R − mean of others", "1", "none", "constant", "in the reward"
    ),
    "GRPO": Objective(
        "grpo", {"loss_type": "grpo"}, False, _BY_SPREAD, _TOKEN, "0.8 to 1.2", "own length", "β"
    ),
    "Dr. GRPO": Objective(
        "dr_grpo", _SINGLE, False, _CENTRED, _TOKEN, "0.8 to 1.2", "constant", "none"
    ),
    "DAPO": Objective(
        "grpo",
        {"loss_type": "dapo", "epsilon_high": 0.28},
        False,
        _BY_SPREAD,
        _TOKEN,
        "0.8 to 1.28",
        "batch's tokens",
        "none",
    ),
    "GSPO": Objective(
        "grpo",
        {
            "loss_type": "grpo",
            "importance_sampling_level": "sequence",
            "epsilon": 0.03,
            "epsilon_high": 0.03,
        },
        False,
        _BY_SPREAD,
        _SEQUENCE,
        "0.97 to 1.03",
        "own length",
        "none",
    ),
    "CISPO": Objective(
        "grpo",
        {"loss_type": "cispo", "epsilon_high": 5.0},
        False,
        _BY_SPREAD,
        _TOKEN,
        "held at 5, never 0",
        "batch's tokens",
        "none",
    ),
}


@dataclass(frozen=True)
class Batch:
    """A and B in one situation: log-probabilities now and when sampled (nats), mask, and tokens."""

    now: Float[Tensor, "B T"]
    old: Float[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]
    shared: Bool[Tensor, " T"]
    tokens: tuple[tuple[str, ...], ...]


@cache
def _policy():
    """The example's policy, loaded once; nothing here moves it."""
    return example_policy()


@cache
def situations() -> dict[str, Batch]:
    """A and B in each of SITUATIONS, by the small policy of the example."""
    policy = _policy()
    pair = example_rollouts(policy)
    mask = pair.completion_mask.bool()
    shared = shared_places(pair.completion_ids, mask, pair.group_ids)[0]
    tokens = tuple(
        tuple(policy.tokenizer.convert_ids_to_tokens(row)) for row in pair.completion_ids.tolist()
    )
    old = logps(policy, pair)

    mine = private_copy(policy)
    lr = matched_lr(policy, pair, "sgd", STEP_NATS)
    optimizer = torch.optim.SGD(mine.model.parameters(), lr)
    for _ in range(STEPS):
        update(mine, pair, optimizer)

    # B ends with the token at which the two part
    short = mask.clone()
    short[1, _parting(shared) + 1 :] = False
    rest = {"shared": shared, "tokens": tokens}
    return {
        "fresh": Batch(old, old, mask, **rest),
        "reused": Batch(logps(mine, pair), old, mask, **rest),
        "moved": Batch(old + math.log(MOVED) * shared, old, mask, **rest),
        "lengths": Batch(old, old, short, **rest),
    }


def _parting(shared: Bool[Tensor, " T"]) -> int:
    """The first place at which the rollouts differ; behind it all contexts differ, too."""
    return int((~shared).nonzero()[0])


def advantages_of(name: str, rewards: Float[Tensor, " G"]) -> Float[Tensor, " G"]:
    """Advantages (G,) that an objective of OBJECTIVES gives one group's rewards."""
    require_one_of("objective", name, tuple(OBJECTIVES))
    estimator = OBJECTIVES[name].estimator
    if estimator == "reward":
        return rewards.clone()
    return group_advantages(rewards, torch.zeros(len(rewards)), estimator)


@lru_cache(maxsize=64)
def trainer_of(name: str, beta: float = 0.0):
    """TRL's trainer with an objective's loss; beta: of its KL penalty."""
    # the penalty of GRPO's paper: TRL's default multiplies it by a ratio that has a slope, too
    common = {"max_completion_length": LENGTH, "beta": beta, "use_bias_correction_kl": False}
    settings = common | OBJECTIVES[name].settings
    return objective_trainer(_policy(), TASK, settings)


def trl_pushes(name: str, batch: Batch, beta: float = 0.0) -> Float[Tensor, "B T"]:
    """Pushes (B, T) of TRL's own loss; the reference model is the policy that sampled."""
    advantages = advantages_of(name, torch.tensor([1.0, 0.0]))
    old = None if OBJECTIVES[name].on_policy else batch.old
    trainer = trainer_of(name, beta)
    return pushes_on(trainer, batch.now, old, advantages, batch.mask, batch.old)


# --- the table


@single_thread()
def compute_objectives() -> pd.DataFrame:
    """Tabulate every objective: its columns in words, and what TRL's loss answers.

    Columns advantage, weight, clip, normalizer, KL; shared token cancels ("yes", "never", or where
    it does not); unbiased ("yes", or "no" with the cosine of the expected step and the gradient).
    """
    residual = residual_by_situation().pivot(
        index="objective", columns="situation", values="residual"
    )
    rows = {}
    for name, objective in OBJECTIVES.items():
        broken = [key for key in SITUATIONS if residual.loc[name, key] > CANCELS]
        cosine = step_cosine(name)
        rows[name] = {
            "advantage": objective.advantage,
            "weight": objective.weight,
            "clip": objective.clip,
            "normalizer": objective.normalizer,
            "KL": objective.kl,
            "shared token cancels": _cancels(broken),
            "unbiased": "yes" if 1 - cosine < UNBIASED else f"no: cosine {cosine:.2f}",
        }
    return pd.DataFrame(rows).T


def _cancels(broken: list[str]) -> str:
    if not broken:
        return "yes"
    return "never" if len(broken) == len(SITUATIONS) else f"not: {', '.join(broken)}"


def residual_by_situation() -> pd.DataFrame:
    """Residual on the tokens before A and B part, by objective and situation.

    Columns objective, situation, residual (|sum of pushes| / sum of |pushes|, mean over the shared
    tokens at which any rollout pushes; NaN where none does).
    """
    rows = []
    for name in OBJECTIVES:
        for situation, batch in situations().items():
            pushes = trl_pushes(name, batch)[:, : _parting(batch.shared)]
            pushing = pushes.abs().sum(0) > 0
            residual = cancellation_residual(
                pushes[:, pushing], torch.ones_like(pushes[:, pushing]), torch.zeros(2)
            ).mean()
            rows.append((name, situation, float(residual)))
    return pd.DataFrame(rows, columns=["objective", "situation", "residual"])


# --- is the expected step the gradient?

# an easy and a hard prompt: probabilities of a right answer, a short wrong and a long wrong one
_WORLD = torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.2, 0.6]], dtype=torch.float64)
_REWARDS = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
_LENGTHS = torch.tensor([2, 2, 6])
_GROUP = 4


def expected_step(name: str) -> Float[Tensor, "prompts V"]:
    """Expected step on the logits of both prompts, over all groups of 4 fresh rollouts.

    A rollout's first token chooses the answer, and all further tokens are certain. A batch is one
    group.
    """
    trainer = trainer_of(name)
    steps = torch.zeros_like(_WORLD)
    for prompt, p in enumerate(_WORLD):
        for group in combinations_with_replacement(range(len(p)), _GROUP):
            drawn = torch.tensor(group)
            counts = drawn.bincount(minlength=len(p))
            ways = math.factorial(_GROUP) / math.prod(math.factorial(int(n)) for n in counts)
            chance = ways * float(p[drawn].prod())

            mask = torch.arange(int(_LENGTHS.max())) < _LENGTHS[drawn][:, None]
            now = torch.zeros(mask.shape, dtype=torch.float64)
            now[:, 0] = p[drawn].log()
            advantages = advantages_of(name, _REWARDS[drawn])
            pushes = pushes_on(trainer, now, None, advantages, mask)[:, 0]  # (G,), on the choice
            score = torch.eye(len(p), dtype=torch.float64)[drawn] - p  # (G, V)
            steps[prompt] += chance * (pushes[:, None] * score).sum(0)
    return steps


def step_cosine(name: str) -> float:
    """Cosine of `expected_step` and the gradient of the expected reward, p (R - V) a logit."""
    gradient = _WORLD * (_REWARDS - (_WORLD @ _REWARDS)[:, None])
    step = expected_step(name)
    return float((step * gradient).sum() / (step.norm() * gradient.norm()))


# --- one token's push, with its numbers


def token_names() -> list[str]:
    """A name for each token of A and B, for a menu: "A 10: 9" is the tenth token of A."""
    tokens = situations()["fresh"].tokens
    return [
        f"{rollout} {place}: {token}"
        for rollout, row in zip("AB", tokens, strict=True)
        for place, token in enumerate(row, 1)
        if token != "<eos>"
    ]


def filled_formula(
    token: str = "A 10: 9", objective: str = "GRPO", situation: str = "reused", beta: float = 0.0
) -> dict[str, float | str]:
    """Write out the push of one token with its own numbers.

    beta: of the KL penalty to the policy that sampled, as the reference model.

    Returns advantage, ratio (of the token or its rollout), weight, divisor, kl (the penalty's part,
    already divided), push (their product and sum), latex (the equation), why (of a weight of 0).
    """
    require_one_of("token", token, tuple(token_names()))
    require_one_of("objective", objective, tuple(OBJECTIVES))
    require_one_of("situation", situation, tuple(SITUATIONS))
    require_range(0, math.inf, beta=beta)
    batch, (row, place) = situations()[situation], _index(token)
    settings = OBJECTIVES[objective].settings
    advantage = float(advantages_of(objective, torch.tensor([1.0, 0.0]))[row])
    alive = batch.mask[row]

    # the ratio of the token, or the geometric mean over its rollout
    log_ratio = (batch.now - batch.old)[row]
    sequence = settings.get("importance_sampling_level") == "sequence"
    if OBJECTIVES[objective].on_policy:
        ratio = 1.0
    else:
        ratio = math.exp(float(log_ratio[alive].mean() if sequence else log_ratio[place]))
    weight, why = _clipped(objective, ratio, advantage)

    divisor, divisor_latex = _divisor(settings["loss_type"], batch, row)
    pull = beta * (math.exp(float((batch.old - batch.now)[row, place])) - 1) / divisor
    if not alive[place]:
        weight, pull, why = 0.0, 0.0, "B has ended before this token"
    push = advantage * weight / divisor + pull
    symbol = r"s_i" if sequence else r"r_{i,t}"
    kl = (
        r" + \frac{\beta}{D}\Big(\frac{\pi_\text{ref}}{\pi} - 1\Big)"
        if beta and alive[place]
        else ""
    )
    kl_number = rf" {pull:+.4f}" if kl else ""
    latex = (
        rf"\underbrace{{\hat A_i}}_{{{advantage:.3g}}} \cdot"
        rf" \underbrace{{w({symbol})}}_{{{symbol} = {ratio:.3g},\ w = {weight:.3g}}} \cdot"
        rf" \underbrace{{\tfrac{{1}}{{D}}}}_{{{divisor_latex}}}{kl} \;=\;"
        rf" {advantage:.3g} \cdot {weight:.3g} \cdot \tfrac{{1}}{{{divisor:g}}}{kl_number}"
        rf" \;=\; {push:+.4f}"
    )
    return {
        "advantage": advantage,
        "ratio": ratio,
        "weight": weight,
        "divisor": divisor,
        "kl": pull,
        "push": push,
        "latex": latex,
        "why": why,
    }


def _index(token: str) -> tuple[int, int]:
    rollout, place = token.split(":")[0].split()
    return "AB".index(rollout), int(place) - 1


def _clipped(objective: str, ratio: float, advantage: float) -> tuple[float, str]:
    """The weight that the clip makes of a ratio, and why it is not the ratio."""
    settings = OBJECTIVES[objective].settings
    if OBJECTIVES[objective].on_policy:
        return 1.0, ""
    low, high = settings.get("epsilon", 0.2), settings.get("epsilon_high", 0.2)
    if settings["loss_type"] == "cispo":
        return min(ratio, high), "the ratio is held at its bound" if ratio > high else ""
    if advantage > 0 and ratio > 1 + high:
        return 0.0, "the clip stops it: it has risen far enough"
    if advantage < 0 and ratio < 1 - low:
        return 0.0, "the clip stops it: it has fallen far enough"
    return ratio, ""


def _divisor(loss_type: str, batch: Batch, row: int) -> tuple[float, str]:
    """What the loss divides a token's push by, as a number and as LaTeX."""
    rollouts = len(batch.mask)
    by_loss: dict[str, Callable[[], tuple[float, str]]] = {
        "grpo": lambda: _product(rollouts, int(batch.mask[row].sum())),
        "dr_grpo": lambda: _product(rollouts, LENGTH),
    }
    tokens = int(batch.mask.sum())
    return by_loss.get(loss_type, lambda: (float(tokens), rf"D = {tokens}"))()


def _product(rollouts: int, length: int) -> tuple[float, str]:
    return float(rollouts * length), rf"D = {rollouts} \cdot {length}"


@single_thread()
def compute_formula(
    token: str = "A 10: 9", objective: str = "GRPO", situation: str = "reused", beta: float = 0.0
) -> dict[str, pd.DataFrame]:
    """Compute the filled formula of a token, and TRL's pushes on all tokens of A and B.

    Returns two tables:
        formula: one row, the columns of `filled_formula` and autograd (TRL's push on the token)
        pushes: rollout, position, token, push (of TRL's loss), chosen
    """
    formula = filled_formula(token, objective, situation, beta)
    batch = situations()[situation]
    pushes = trl_pushes(objective, batch, beta)
    chosen = _index(token)
    rows = [
        ("AB"[i], t + 1, word, float(pushes[i, t]), (i, t) == chosen)
        for i, row in enumerate(batch.tokens)
        for t, word in enumerate(row)
        if word != "<eos>"
    ]
    columns = ["rollout", "position", "token", "push", "chosen"]
    autograd = float(pushes[chosen])
    return {
        "formula": pd.DataFrame([{**formula, "autograd": autograd}]),
        "pushes": pd.DataFrame(rows, columns=columns),
    }


def formula_errors(beta: float = 0.04) -> list[float]:
    """Filled formula minus TRL's autograd, for every token, objective and situation."""
    errors = []
    for objective in OBJECTIVES:
        for situation, batch in situations().items():
            pushes = trl_pushes(objective, batch, beta)
            for token in token_names():
                formula = filled_formula(token, objective, situation, beta)
                errors.append(formula["push"] - float(pushes[_index(token)]))
    return errors


# --- the KL penalty

PULLS = {  # what the penalty adds to a token's push, by log ratio d = log pi / pi_ref
    "reward alone": lambda d: 0.0,
    "with GRPO's penalty": lambda d: math.exp(-d) - 1,
    "with TRL's default": lambda d: -d,
}


@single_thread()
def compute_reference_pull(
    beta: float = 0.04, advantage: float = -0.7, log2_ratio: float = -2.0
) -> dict[str, pd.DataFrame]:
    """Push on a token with and without the KL penalty, against pi over pi_ref, on a fresh batch.

        GRPO's paper     A + beta (pi_ref / pi - 1)       slope of pi_ref / pi - log - 1
        TRL's default    A - beta log(pi / pi_ref)        the same times a ratio that has a slope

    beta: weight of the penalty, >= 0.  log2_ratio: of the chosen token, log2 of pi / pi_ref.
    Returns curve: ratio, series, push; chosen: the same at `log2_ratio`.
    """
    require_range(0, math.inf, beta=beta)

    def pushes(powers: list[float]) -> pd.DataFrame:
        rows = [
            (2**power, name, advantage + beta * pull(power * math.log(2)))
            for name, pull in PULLS.items()
            for power in powers
        ]
        return pd.DataFrame(rows, columns=["ratio", "series", "push"])

    return {"curve": pushes([k / 8 for k in range(-48, 49)]), "chosen": pushes([log2_ratio])}


def reference_pull_errors(beta: float = 0.04) -> list[float]:
    """Both formulas of the penalty minus TRL's own loss, at nine ratios to the reference."""
    ratios = torch.linspace(-2, 2, 9)[None]
    advantages, mask = torch.tensor([-0.7]), torch.ones(1, 9)
    settings = {"loss_type": "dapo", "beta": beta}
    errors = []
    for name, corrected in (("with GRPO's penalty", False), ("with TRL's default", True)):
        trainer = objective_trainer(
            _policy(), TASK, settings | {"use_bias_correction_kl": corrected}
        )
        got = pushes_on(trainer, ratios, None, advantages, mask, torch.zeros(1, 9))[0] * 9
        wanted = [-0.7 + beta * PULLS[name](float(d)) for d in ratios[0]]
        errors += (got - torch.tensor(wanted)).tolist()
    return errors
