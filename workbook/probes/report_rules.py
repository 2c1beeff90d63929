"""Warnings that follow from a report's findings: one sentence with its number, and what to change.

Every threshold is a named constant with its reason. A rule takes a `Report` and returns a `Warned`, or None.
"""

from __future__ import annotations

from typing import NamedTuple

from workbook.probes.report import Report, percent
from workbook.probes.report_tokens import against_share, mean_residual
from workbook.theory.choices import SIGNS

ONE_REWARD = 0.5  # of groups: half of all sampling bought nothing; DAPO (arXiv 2503.14476) resamples such groups
REPEATED = 0.25  # of rollouts: a repeated one adds no comparison, and its tokens' pushes add up
CLIPPED = 0.1  # of sum |advantage|: on-policy nothing is clipped, and PPO's usual share is a few per cent
TRUNCATED = 0.05  # of tokens with an advantage: masked rollouts keep their part in the group's mean, so sums are off 0
MASKED = 0.1  # of sum |advantage|, by any other reason
IMPORTANCE_MEAN = 0.1  # distance from 1: an unbiased correction averages 1
RATIO_SPREAD = 0.5  # between the 1st and the 99th percentile: as wide as the usual clip range [0.8, 1.28]
RESIDUAL = 0.05  # where equal weights leave 0: a twentieth of what should have cancelled stays
AGAINST = 0.4  # of pushed tokens: with 0.5 a token's own push has no say in where it goes
LONGER = 0.2  # of the positive rollouts' length: then 1/T gives their tokens a fifth more push
ENTROPY_LOSS = 0.5  # of the first step's entropy: exploration that is lost does not come back by itself
MIN_GROUPS = 30  # for which a share of one half has a standard error of 0.09
PER_ROLLOUT = ("grpo", "sapo", "luspo")  # loss types that divide by each rollout's own length


class Warned(NamedTuple):
    """A warning: its number, the sentence that has it, and what to change."""

    name: str
    value: float
    sentence: str
    advice: str

    def __str__(self) -> str:
        return f"{self.sentence} {self.advice}"


def report_warnings(report: Report) -> list[Warned]:
    """List the warnings that follow from the findings, in the order in which a practitioner should look at them."""
    return [warned for rule in RULES if (warned := rule(report)) is not None]


def one_reward_groups(report: Report) -> Warned | None:
    """Groups whose rollouts all have one reward: their advantages are 0."""
    if report.signal.empty:
        return None
    lost = 1 - report.signal_share.mean
    if lost < ONE_REWARD:
        return None
    shares = (report.signal[["highest", "lowest"]].mul(report.signal["groups"], axis=0)).sum()
    best, worst = shares / report.signal["groups"].sum()
    if best > 2 * worst:
        advice = f"{percent(best)} have the highest reward throughout: pick harder prompts."
    elif worst > 2 * best:
        advice = f"{percent(worst)} have the lowest reward throughout: pick easier prompts, or sample larger groups."
    else:
        advice = "Raise the temperature, sample larger groups, or pick prompts that the policy solves now and then."
    return Warned(
        "one reward", lost, f"{percent(lost)} of groups had one reward only: nothing was learned from them.", advice
    )


def repeated_rollouts(report: Report) -> Warned | None:
    """Rollouts that repeat another of their group, token by token."""
    if report.repeats is None or report.repeats < REPEATED:
        return None
    return Warned(
        "repeats",
        report.repeats,
        f"{percent(report.repeats)} of rollouts repeat another of their group token by token.",
        "Raise the temperature, or sample fewer rollouts of more prompts.",
    )


def clipped(report: Report) -> Warned | None:
    """Clipping, with the sign that it hits more."""
    share, low, high = (
        _mass(report, *reasons) for reasons in (("clip low", "clip high"), ("clip low",), ("clip high",))
    )
    if share < CLIPPED:
        return None
    side = "the lower bound" if low > high else "the upper bound"
    return Warned(
        "clipped",
        share,
        f"Clipping stopped {percent(share)} of all advantage, more of it at {side}.",
        "Lower the learning rate, or take fewer optimizer steps on each generation batch (num_iterations, "
        "steps_per_generation).",
    )


def truncated(report: Report) -> Warned | None:
    """Rollouts masked because they were cut off."""
    share = _mass(report, "truncated")
    if share < TRUNCATED:
        return None
    return Warned(
        "truncated",
        share,
        f"Masking truncated rollouts removed {percent(share)} of all advantage, so their groups no longer sum to 0.",
        "Raise max_completion_length, or reward brevity.",
    )


def masked(report: Report) -> Warned | None:
    """Tokens that an entropy or off-policy mask took."""
    share, entropy = _mass(report, "entropy", "off-policy"), _mass(report, "entropy")
    if share < MASKED:
        return None
    return Warned(
        "masked",
        share,
        f"Masks removed {percent(share)} of all advantage, {percent(entropy)} by entropy and the rest as off-policy.",
        "Check that this is meant: a mask by token or by rollout leaves shared tokens with unequal weights.",
    )


def importance_off(report: Report) -> Warned | None:
    """A correction for the sampler that does not average 1."""
    mean = _ratio(report, "importance", "mean")
    if mean is None or abs(mean - 1) < IMPORTANCE_MEAN:
        return None
    return Warned(
        "importance",
        mean,
        f"The importance ratio of trainer and sampler averages {mean:.2f} instead of 1.",
        "Make the sampler's numbers the trainer's (same dtype, temperature and weights), or correct by token: "
        "one factor per rollout multiplies the mismatch of all its tokens.",
    )


def ratio_wide(report: Report) -> Warned | None:
    """Ratios that a few optimizer steps on one batch spread."""
    low, high = _ratio(report, "ratio", "p1"), _ratio(report, "ratio", "p99")
    if low is None or high - low < RATIO_SPREAD:
        return None
    return Warned(
        "ratio",
        high - low,
        f"The middle 98 % of ratios reach from {low:.2f} to {high:.2f}: the batch was far off-policy when it was used.",
        "Take fewer steps on each generation batch, or lower the learning rate.",
    )


def unequal_weights(report: Report) -> Warned | None:
    """What weights leave where every rollout of a group has the same token, beyond what advantages leave."""
    if report.residuals.empty:
        return None
    value, equal = (mean_residual(report.residuals, f"whole_{name}") for name in ("residual", "equal"))
    if not value - equal >= RESIDUAL:
        return None
    return Warned(
        "unequal weights",
        value,
        f"Where all rollouts of a group have the same token, {percent(value)} of its push stays, and only "
        f"{percent(equal)} would with equal weights.",
        "Stay on-policy, widen the clip range, or set group_transform: min_replace.",
    )


def cut_groups(report: Report) -> Warned | None:
    """What advantages leave where every rollout of a group in a step has the same token."""
    if report.residuals.empty:
        return None
    equal = mean_residual(report.residuals, "whole_equal")
    if not equal >= RESIDUAL:
        return None
    return Warned(
        "cut groups",
        equal,
        f"Where all rollouts of a group in a step have the same token, even equal weights leave {percent(equal)} of "
        "its push: advantages do not sum to 0 there.",
        "Keep groups whole in a mini-batch (batching: query_preserved); with an estimator that does not centre "
        "(reinforce, positive_only) it is meant.",
    )


def against(report: Report) -> Warned | None:
    """Tokens that a step moved against their own push."""
    share = against_share(report.movement)
    if not share >= AGAINST:
        return None
    return Warned(
        "against",
        share,
        f"{percent(share)} of the tokens that moved went against their own push: others' updates decide for them.",
        "More rollouts per prompt give a token more push of its own; --model shows which tokens pull on which.",
    )


def longer_negatives(report: Report) -> Warned | None:
    """Length coupled with sign, under a loss that divides by length."""
    table = report.lengths.set_index("sign")["length"] if len(report.lengths) else {}
    loss = report.objective.get("loss_type")
    if not set(SIGNS) <= set(getattr(table, "index", ())) or (loss is not None and loss not in PER_ROLLOUT):
        return None
    share = float(table["negative"] / table["positive"] - 1)
    if abs(share) < LONGER:
        return None
    which = "longer" if share > 0 else "shorter"
    return Warned(
        "length",
        share,
        f"Negative rollouts are {percent(abs(share))} {which} than positive ones ({table['negative']:.0f} tokens "
        f"against {table['positive']:.0f}).",
        f"{'This' if loss else 'A'} loss that divides by each rollout's length pushes the tokens of "
        f"{'positive' if share > 0 else 'negative'} ones harder for it; loss_type: dapo or dr_grpo does not.",
    )


def entropy_lost(report: Report) -> Warned | None:
    """Entropy of the sampled tokens, the last step against the first."""
    if "entropy" not in report.movement or report.movement["step"].nunique() < 2:
        return None
    steps = report.movement.groupby("step")["entropy"].mean()
    lost = 1 - steps.iloc[-1] / steps.iloc[0] if steps.iloc[0] > 0 else 0.0
    if lost < ENTROPY_LOSS:
        return None
    return Warned(
        "entropy",
        lost,
        f"Entropy fell by {percent(lost)}, from {steps.iloc[0]:.3f} nats at step {steps.index[0]} to "
        f"{steps.iloc[-1]:.3f} at step {steps.index[-1]}.",
        "Where the reward has not risen with it, lower the learning rate or raise epsilon_high.",
    )


def few_groups(report: Report) -> Warned | None:
    """A file too small for its shares."""
    groups = report.counts["groups"]
    if report.signal.empty or groups >= MIN_GROUPS:
        return None
    return Warned(
        "groups",
        groups,
        f"There are {groups} groups only, so every share here is rough." if groups > 1 else "There is one group only.",
        "Give a file of more steps, or of more prompts.",
    )


RULES = (
    one_reward_groups,
    repeated_rollouts,
    clipped,
    truncated,
    masked,
    importance_off,
    ratio_wide,
    unequal_weights,
    cut_groups,
    against,
    longer_negatives,
    entropy_lost,
    few_groups,
)


def _mass(report: Report, *reasons: str) -> float:
    """Share of sum |advantage| that these reasons stopped."""
    table = report.stopped
    return float(table.loc[table["reason"].isin(reasons), "mass"].sum()) if len(table) else 0.0


def _ratio(report: Report, quantity: str, column: str) -> float | None:
    table = report.ratios
    rows = table[table["quantity"] == quantity] if len(table) else table
    return float(rows[column].iloc[0]) if len(rows) else None
