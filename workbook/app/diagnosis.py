"""Diagnosis of a run: what is wrong with it, from what it logged, in sentences, the weightiest
first.

A rule reads a few logged columns and is silent where they are missing, or where too little is
logged to tell.
"""

import numpy as np
import pandas as pd

MIN_BATCHES = 3  # generation batches without a difference that are no longer called luck
# the same for a run that had differences before: near the end of learning they get rare
LATE_BATCHES = 5
# of the first entropy: e^2 times fewer words to choose from; learning a task takes less
COLLAPSED_SHARE = 0.1
ENTROPY_JUMP = 1.0  # nats above the first entropy: e times as many words to choose from
STEADY = 3  # steps at the end whose median entropy counts
# clipped share of a step's tokens that names the step before it as too long; below 0.1 is usual
CLIP_JUMP = 0.25
CUT_OFF_SHARE = 0.95  # of completions at the token limit: the rest are no sample to learn from
# generation batches at each end; standard errors, about 1 in 100 by luck
FELL_WINDOW, FELL_ERRORS = 5, 3.0


def diagnose(metrics: pd.DataFrame) -> list[str]:
    """What is wrong with a run, as far as its logged numbers tell: sentences, the weightiest first;
    [] if nothing.

    metrics: as of `Run.metrics`, a row per optimizer step; `reward` is logged where a generation
    batch was sampled.
    """
    if not {"step", "reward"} <= set(metrics):
        return []
    metrics = metrics.reset_index(drop=True)
    # The rest would come from what these two say.
    first = [sentence for rule in (_not_finite, _collapsed) if (sentence := rule(metrics))]
    return first or [
        s for rule in (_no_signal, _no_gradient, _fell, _cut_off) if (s := rule(metrics))
    ]


def _not_finite(metrics: pd.DataFrame) -> str:
    """The gradient was infinite or no number in some step."""
    if "grad_norm" not in metrics:
        return ""
    logged = (
        metrics["learning_rate"].notna() if "learning_rate" in metrics else metrics["step"].notna()
    )
    bad = metrics[logged & ~np.isfinite(metrics["grad_norm"])]
    if bad.empty:
        return ""
    return (
        f"The gradient was not a finite number in step {_step(bad)}: the weights are ruined."
        f" {_lower_rate(metrics)}"
    )


def _collapsed(metrics: pd.DataFrame) -> str:
    """Entropy fell to a small share of what it was, or rose far above, without a reward for it."""
    logged, rewards = _column(metrics, "entropy"), _column(metrics, "reward")
    if len(logged) < 2 or rewards.empty:
        return ""
    first, last = logged.iloc[0], logged.tail(STEADY).median()
    if COLLAPSED_SHARE * first <= last <= first + ENTROPY_JUMP:
        return ""
    near = (
        logged >= 2 * COLLAPSED_SHARE * first
        if last < first
        else logged <= first + ENTROPY_JUMP / 2
    )
    # the first of those at the end
    since = logged.index[len(logged) - int((~near)[::-1].cumprod().sum())]
    after = rewards[rewards.index > since]
    if len(after) and after.mean() >= rewards.iloc[0] > 0:
        return ""
    # The step up to the collapse in which most tokens were clipped, if they were many, comes first.
    clipped = ""
    for name in ("cancellation/clipped", "clip_ratio/region_mean"):
        shares = _column(metrics, name).loc[:since]
        if not clipped and len(shares) and shares.max() >= CLIP_JUMP:
            at = shares.idxmax()
            clipped = (
                f"{shares[at]:.0%} of tokens were clipped in step {_step(metrics.loc[[at]])}, then "
            )
    verb, words = (
        ("fell", "collapsed to one text")
        if last < first
        else ("rose", "now writes nearly at random")
    )
    change = (
        f"ntropy {verb} from {first:.3f} to {logged[since]:.3f} nats by step"
        f" {_step(metrics.loc[[since]])}"
    )
    paid = f", and reward from {rewards.iloc[0]:.3f} to {after.mean():.3f}" if len(after) else ""
    return (
        f"{clipped}{'e' if clipped else 'E'}{change}{paid}: the policy {words}."
        f" {_lower_rate(metrics)}"
    )


def _no_signal(metrics: pd.DataFrame) -> str:
    """No group held two different rewards, ever or of late: every advantage is 0."""
    equal, rewards = _column(metrics, "frac_reward_zero_std"), _column(metrics, "reward")
    if equal.empty or equal.iloc[-1] < 1 or rewards.empty:
        return ""
    silent = int((equal == 1)[::-1].cumprod().sum())  # batches at the end
    batches = metrics.loc[equal.index[-silent:]]
    reward, first = batches["reward"].mean(), rewards.iloc[0]
    if silent == len(equal) >= MIN_BATCHES:
        steps = int(metrics["step"].max() - metrics["step"].min()) + 1
        why = (
            f"The mean reward was {reward:.3f}: take prompts that are harder or easier, or larger"
            " groups."
        )
        if reward == 0:
            why = (
                "Every reward was 0: read some completions, and see whether the model can read the"
                " prompts (words that it knows, its chat template) and whether the reward pays a"
                " right answer."
            )
        return (
            f"No group held two different rewards in {steps} steps: nothing could be learned. {why}"
        )
    if len(equal) > silent >= LATE_BATCHES:
        late = (
            f"Since step {_step(batches)} no group has held two different rewards (mean reward"
            f" {reward:.3f})"
        )
        if reward < first:
            return (
                f"{late}, after {first:.3f} in the first batch: it unlearned."
                f" {_lower_rate(metrics)}"
            )
        return f"{late}: nothing is learned any more. End it here, or take harder prompts."
    return ""


def _no_gradient(metrics: pd.DataFrame) -> str:
    """Groups held different rewards, and still no step had a gradient."""
    norms, equal = _column(metrics, "grad_norm"), _column(metrics, "frac_reward_zero_std")
    if len(norms) < MIN_BATCHES or (norms != 0).any() or equal.empty or equal.min() == 1:
        return ""
    return (
        f"The gradient was 0 in all {len(norms)} steps, though groups held different rewards:"
        " nothing is trained. See whether all tokens are masked or clipped, or all weights frozen."
    )


def _fell(metrics: pd.DataFrame) -> str:
    """The last batches were paid less than the first ones, by more than their scatter."""
    rewards = _column(metrics, "reward")
    n = min(FELL_WINDOW, len(rewards) // 2)
    if n < MIN_BATCHES:
        return ""
    first, last = rewards.head(n), rewards.tail(n)
    error = ((first.var() + last.var()) / n) ** 0.5
    if first.mean() - last.mean() <= max(0, FELL_ERRORS * error):
        return ""
    means = f"{first.mean():.3f} in the first {n} batches to {last.mean():.3f} in the last {n}"
    return f"Reward fell from {means}: it unlearns. {_lower_rate(metrics)}"


def _cut_off(metrics: pd.DataFrame) -> str:
    """Nearly all of the latest completions ended at the token limit."""
    shares = _column(metrics, "completions/clipped_ratio").tail(MIN_BATCHES)
    if len(shares) < MIN_BATCHES or shares.min() < CUT_OFF_SHARE:
        return ""
    lengths = _column(metrics, "completions/max_length")
    limit = f" of {lengths.iloc[-1]:.0f} tokens" if len(lengths) else ""
    share = "All completions" if shares.min() == 1 else f"{shares.mean():.0%} of completions"
    return (
        f"{share} of the last {MIN_BATCHES} batches were cut off at the limit{limit}: no answer is"
        " complete. Raise max_completion_length, or ask for shorter answers."
    )


def _lower_rate(metrics: pd.DataFrame) -> str:
    rates = _column(metrics, "learning_rate")
    rate = f" ({rates.max():.3g})" if len(rates) else ""
    return f"Lower the learning rate{rate}, and start again."


def _column(metrics: pd.DataFrame, name: str) -> pd.Series:
    """The finite numbers of a column, by row; none if it is not logged."""
    column = metrics[name] if name in metrics else pd.Series(dtype=float)
    return column[np.isfinite(column)].astype(float)


def _step(rows: pd.DataFrame) -> int:
    return int(rows["step"].iloc[0])
