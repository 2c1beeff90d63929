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
FELL_WINDOW = 5  # generation batches at each end
FELL_ERRORS = 3.0  # standard errors: about 1 in 100 by luck


def diagnose(metrics: pd.DataFrame) -> list[str]:
    """What is wrong with a run, as far as its logged numbers tell; [] if nothing.

    metrics: as of `Run.metrics`, a row per optimizer step; `reward` is logged where a generation
    batch was sampled.  Returns sentences, the weightiest first.
    """
    if not {"step", "reward"} <= set(metrics):
        return []
    metrics = metrics.reset_index(drop=True)
    # what the second rules find would come from what the first ones say
    for rules in ((_not_finite, _collapsed), (_no_signal, _no_gradient, _fell, _cut_off)):
        sentences = [rule(metrics) for rule in rules]
        sentences = [sentence for sentence in sentences if sentence]
        if sentences:
            return sentences
    return []


def _not_finite(metrics: pd.DataFrame) -> str:
    """The gradient was infinite or no number in some step."""
    if "grad_norm" not in metrics:
        return ""
    # the rate is logged with every step; a gradient may be missing for other reasons
    column = "learning_rate" if "learning_rate" in metrics else "step"
    bad = metrics[metrics[column].notna() & ~np.isfinite(metrics["grad_norm"])]
    if bad.empty:
        return ""
    return (
        f"The gradient was not a finite number in step {_step(bad)}: the weights are ruined."
        f" {_lower_rate(metrics)}"
    )


def _collapsed(metrics: pd.DataFrame) -> str:
    """Entropy fell to a small share of what it was, or rose far above, without a reward for it."""
    logged = _column(metrics, "entropy")
    rewards = _column(metrics, "reward")
    if len(logged) < 2 or rewards.empty:
        return ""
    first = logged.iloc[0]
    last = logged.tail(STEADY).median()
    if COLLAPSED_SHARE * first <= last <= first + ENTROPY_JUMP:
        return ""

    # since when: the first of the steps at the end that are far from the start
    if last < first:
        near = logged >= 2 * COLLAPSED_SHARE * first
    else:
        near = logged <= first + ENTROPY_JUMP / 2
    since = logged.index[len(logged) - _at_the_end(~near)]
    after = rewards[rewards.index > since]
    if len(after) and after.mean() >= rewards.iloc[0] > 0:
        return ""  # it learned to be sure

    clipped = _clipped_before(metrics, since)
    if last < first:
        change, became = "ntropy fell", "collapsed to one text"
    else:
        change, became = "ntropy rose", "now writes nearly at random"
    beginning = f"{clipped}, then e" if clipped else "E"
    step = _step(metrics.loc[[since]])
    paid = f", and reward from {rewards.iloc[0]:.3f} to {after.mean():.3f}" if len(after) else ""
    return (
        f"{beginning}{change} from {first:.3f} to {logged[since]:.3f} nats by step {step}{paid}:"
        f" the policy {became}. {_lower_rate(metrics)}"
    )


def _clipped_before(metrics: pd.DataFrame, since) -> str:
    """The step up to a row in which most tokens were clipped, if they were many."""
    for name in ("cancellation/clipped", "clip_ratio/region_mean"):
        shares = _column(metrics, name).loc[:since]
        if len(shares) and shares.max() >= CLIP_JUMP:
            at = shares.idxmax()
            return f"{shares[at]:.0%} of tokens were clipped in step {_step(metrics.loc[[at]])}"
    return ""


def _at_the_end(holds: pd.Series) -> int:
    """How many rows at the end of a column hold without a gap."""
    return int(holds[::-1].cumprod().sum())


def _no_signal(metrics: pd.DataFrame) -> str:
    """No group held two different rewards, ever or of late: every advantage is 0."""
    equal = _column(metrics, "frac_reward_zero_std")
    rewards = _column(metrics, "reward")
    if equal.empty or equal.iloc[-1] < 1 or rewards.empty:
        return ""
    silent = _at_the_end(equal == 1)  # generation batches
    batches = metrics.loc[equal.index[-silent:]]
    reward = batches["reward"].mean()

    if silent == len(equal) >= MIN_BATCHES:
        steps = int(metrics["step"].max() - metrics["step"].min()) + 1
        if reward == 0:
            advice = (
                "Every reward was 0: read some completions, and see whether the model can read the"
                " prompts (words that it knows, its chat template) and whether the reward pays a"
                " right answer."
            )
        else:
            advice = (
                f"The mean reward was {reward:.3f}: take prompts that are harder or easier, or"
                " larger groups."
            )
        return (
            f"No group held two different rewards in {steps} steps: nothing could be learned."
            f" {advice}"
        )

    if len(equal) > silent >= LATE_BATCHES:
        late = (
            f"Since step {_step(batches)} no group has held two different rewards (mean reward"
            f" {reward:.3f})"
        )
        first = rewards.iloc[0]
        if reward < first:
            unlearned = f"after {first:.3f} in the first batch: it unlearned."
            return f"{late}, {unlearned} {_lower_rate(metrics)}"
        return f"{late}: nothing is learned any more. End it here, or take harder prompts."
    return ""


def _no_gradient(metrics: pd.DataFrame) -> str:
    """Groups held different rewards, and still no step had a gradient."""
    norms = _column(metrics, "grad_norm")
    equal = _column(metrics, "frac_reward_zero_std")
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
    first = rewards.head(n)
    last = rewards.tail(n)
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
