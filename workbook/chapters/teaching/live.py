"""Chapter 07's experiments at small size, on one policy: they show how, and decide nothing.

The same settings as the committed experiments (`data/book/evidence.md`), where ten policies decide:
batches of 8 prompts with 8 rollouts each, gradients of one length, exact value on held-out prompts.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch

from workbook.probes.agreement import TWINS, falls, pushed_by, unsure_pairs
from workbook.probes.baseline_noise import baseline_gradients, noise_of
from workbook.probes.readings import Readings
from workbook.probes.recovered import exact_gradient
from workbook.probes.step import pushing_prompts
from workbook.probes.values import exact_credit, exact_values
from workbook.rollouts.credit_batches import credit_batch
from workbook.rollouts.sample import sample_rollouts
from workbook.theory.credit import CreditBatch, Rule
from workbook.theory.credit_controls import Opposition
from workbook.theory.credit_masks import MatchedCredit, UnsureTokens
from workbook.training.loop import LoopConfig, train

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the group's mean reward, at which runs are trained
PROMPTS, GROUP_SIZE, BATCHES = 8, 8, 32
NEW_TOKENS = 48  # of a completion, at most
# the rate at which group advantages end highest in the world `third`, on other policies
RATE = 6e-4
_HELD_OUT, _HELD_OUT_SEED = 32, 1_000
_EVERY = 4  # batches between two readings of value
_MASK_PROMPTS = 24  # on which the credit that a mask holds is read

# --- runs


def train_rules(
    policy, task, rules: Mapping[str, str | Rule], batches: int = BATCHES, seed: int = 0
) -> pd.DataFrame:
    """A run of each rule from one policy, all gradients of length 1: rule, batch, value.

    rules: {name: a name or function that `LoopConfig` takes as its rule}.
    value: exact expected reward on held-out prompts, 0 to 1.

    About five seconds a run of 32 batches on one core.
    """
    readings = Readings(policy, task, task.dataset(_HELD_OUT, _HELD_OUT_SEED)["prompt"])
    parts = []
    for name, rule in rules.items():
        config = LoopConfig(
            prompts=PROMPTS,
            group_size=GROUP_SIZE,
            batches=batches,
            lr=RATE,
            rule=rule,
            match="grad_norm",
            max_new_tokens=NEW_TOKENS,
            known_credit=exact_credit if isinstance(rule, MatchedCredit) else None,
        )
        table = train(policy, task, config, seed, readings, every=min(_EVERY, batches))
        parts.append(table[["batch", "value"]].assign(rule=name))
    return pd.concat(parts, ignore_index=True)


def end_values(runs: pd.DataFrame) -> pd.Series:
    """Value after the last batch, by rule."""
    return runs[runs["batch"] == runs["batch"].max()].set_index("rule")["value"]


# --- the dial of opposition


def train_shares(policy, task, batches: int = BATCHES, seed: int = 0) -> pd.DataFrame:
    """`train_rules` with each of SHARES of the group's mean subtracted: share, batch, value."""
    runs = train_rules(policy, task, {share: Opposition(share) for share in SHARES}, batches, seed)
    return runs.rename(columns={"rule": "share"}).astype({"share": float})


def gradient_noise(policy, task, prompts: int = 16, groups: int = 4, seed: int = 0) -> pd.DataFrame:
    """Noise of a step's gradient by the share of the group's mean that is subtracted.

    Columns share, from 0 to 1, and noise: the squared length of what one batch of 8 prompts adds by
    chance, over that of its own prompts' expected gradient, relative to share 1.
    groups: drawn of each prompt, two or more.
    """
    rows = task.dataset(prompts, seed)
    repeated = rows.select([row for row in range(prompts) for _ in range(groups)])
    rollouts = sample_rollouts(policy, task, repeated, GROUP_SIZE, seed, NEW_TOKENS)
    rewarded, baseline = (
        gradients.unflatten(0, (prompts, groups))
        for gradients in baseline_gradients(policy, rollouts)
    )
    exact = torch.stack([exact_gradient(policy, task, [one]).double() for one in rows["prompt"]])
    shares = np.linspace(0, 1, 21)
    noise = []
    for share in shares:
        parts = noise_of(rewarded - share * baseline, exact, share)
        noise.append(parts["noise"] / parts["own_signal"])
    return pd.DataFrame({"share": shares, "noise": np.array(noise) / noise[-1]})


# --- pairs of pushes


def sampled_pairs(policy, task, prompts: int = 12, seed: int = 0) -> pd.DataFrame:
    """`unsure_pairs` of so many prompts whose rewards differ, each of them pushing alone."""
    drawn = sample_rollouts(
        policy, task, 3 * prompts, GROUP_SIZE, seed, NEW_TOKENS, estimator="dr_grpo"
    )
    return unsure_pairs(policy, task, pushing_prompts(drawn, prompts))


LEFT_OUT = {
    "cancelling": "opposite pushes on the same word",
    "same sign, same word": "like pushes on the same word",
    "other sign, other words": "opposite pushes on other words",
    "same sign, other words": "like pushes on other words",
}
ALL_PAIRS = "nothing"


def agreement_table(tokens: pd.DataFrame) -> pd.DataFrame:
    """Agreement of a step with exact credit, whole and without each set of pairs.

    tokens: of `unsure_pairs`.  Columns left_out, agreement (a correlation).
    """
    numbers = falls(tokens)
    rows = {ALL_PAIRS: numbers["correlation"]}
    for name, label in LEFT_OUT.items():
        rows[label] = numbers["correlation"] - numbers[name]
    return pd.DataFrame({"left_out": list(rows), "agreement": list(rows.values())})


def excess_row(tokens: pd.DataFrame, label: str, scale: str) -> pd.DataFrame:
    """A row of the table "teaching/pairs" from one policy, its interval the number itself."""
    numbers = falls(tokens)
    share = numbers["excess"] / numbers["correlation"]
    row = {"label": label, "scale": scale, "mean": share, "low": share, "high": share}
    return pd.DataFrame([row])


GIVERS = (
    "same sign, same word",
    "other sign, same word",
    "other sign, other words",
    "other sign in all",
)


def givers_table(tokens: pd.DataFrame, kind: str = "style") -> pd.DataFrame:
    """Who pushes words of a class along what their own sign's same word does, which is 1.

    A push of pushers f counts as sum(f own) / sum(own^2), with own: the token itself and the same
    word of the same sign.  Columns pushers (of GIVERS), push.
    """
    words = tokens[tokens["kind"] == kind]
    own = words["self"] + pushed_by(words, TWINS[0])
    same, others = pushed_by(words, "cancelling"), pushed_by(words, TWINS[1])
    pushes = [float((own * part).sum() / (own**2).sum()) for part in (own, same, others)]
    return pd.DataFrame({"pushers": GIVERS, "push": [*pushes, pushes[1] + pushes[2]]})


# --- masks


def credit_shares(
    policy, task, rules: Mapping[str, Rule], prompts: int = _MASK_PROMPTS, seed: int = 0
) -> pd.Series:
    """Share of the unsure tokens' exact |credit| that each mask pushes, at the start; by name."""
    rollouts = sample_rollouts(policy, task, prompts, GROUP_SIZE, seed, NEW_TOKENS)
    credit = exact_values(policy, task, rollouts).credit
    known = {"known_credit": credit, "logps": rollouts.old_logps}

    def held(rule: Rule) -> float:
        batch: CreditBatch = credit_batch(policy, rollouts, task, seed, **known)
        return float(credit.abs()[rule(batch) != 0].sum())

    whole = held(UnsureTokens())
    return pd.Series({name: held(rule) / whole for name, rule in rules.items()})


def masks_table(runs: pd.DataFrame, credit: pd.Series, plain: str, kind: str) -> pd.DataFrame:
    """Rows of the table "teaching/masks" from one policy's runs: value at the end minus plain's.

    credit: of `credit_shares`, of the rules that are shown.  plain: the rule without a mask.
    """
    ends = end_values(runs)
    gains = pd.Series({name: ends[name] - ends[plain] for name in credit.index})
    table = pd.DataFrame({"label": credit.index, "credit": credit.to_numpy(), "mean": gains.array})
    batches = int(runs["batch"].max())
    return table.assign(kind=kind, low=table["mean"], high=table["mean"], batches=batches)
