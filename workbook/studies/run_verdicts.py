"""The claims about whole runs at one scale: what the sweeps measured, against what threshold, and the verdict.

Every threshold was written down before the sweeps' results were looked at. Baseline is TRL's default unless said.
"Not clipped" is epsilon 1e9; "reused" runs go over their rollouts at least twice.

- H11: sign-partitioned mini-batches cancel less inside a step than shuffled ones (the mechanism), and learn less (the
  harm), averaged over optimizers, learning rates and gradient clipping.  H12, H13: query-preserved and reward-balanced
  ones learn more (they improve), with less jitter and fewer collapses (they stabilize).
- D1 to D7: sequence ratios without clipping, exchangeable weights (min_replace, advantage_orthogonal) against none.
  D8: GSPO's clipped objective with and without min_replace.  D9: that gain by rollouts per prompt.
- A falsifier is "met" where its claim does not replicate, "not met" where it does: the claims here are that shared
  tokens move less than specific ones, that boosted tokens are worth more than suppressed ones in rollouts of either
  sign, that exchangeable runs pay no tax and that others do.

Rows without a threshold say more about a claim than it stated; they are "described" and decide nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pandas as pd

from workbook.statistics import Interval, verdict
from workbook.studies.effects import attribution, effect, having, level, ratio, slope
from workbook.studies.sweeps import load_runs, passes
from workbook.studies.verdicts import COLUMNS, SHARED, judged_row, known_scale, unmeasured
from workbook.topics.batching import study as minibatches
from workbook.topics.drift import counterfactual

DESCRIBED = "described"
FALSIFIED = {"replicates": "not met", "does not replicate": "met", "inconclusive": "inconclusive"}  # the claim: it
CLAIMS = {
    "H11": "mini-batches of one sign keep opposite pushes from cancelling inside a step, and hurt",
    "H12": "keeping a prompt's rollouts in one mini-batch stabilizes and improves GRPO",
    "H13": "balancing the signs in every mini-batch stabilizes and improves GRPO",
    "D1": "shared tokens stay where they are if weights are exchangeable within the group",
    "D2": "a sequence-level ratio leaves an update on shared tokens, a token-level one does not",
    "D3": "asymmetric clipping leaves an update on shared tokens, symmetric clipping does not",
    "D4": "without cancellation reward-irrelevant tokens drift, more with every step: the learning tax",
    "D5": "without cancellation the entropy over equivalent solutions falls",
    "D6": "the group's least weight for all of it restores cancellation",
    "D7": "weights made orthogonal to the advantages restore cancellation",
    "D8": "with that fix training scores higher, with less jitter and less compute",
    "D9": "the fix gains more with more rollouts per prompt",
    "IBPO": "comparing rollouts where they part gives step credit that teaches faster [reading]",
    "H-falsifier": "shared tokens move as much as specific ones, or boosted tokens are worth no more than suppressed",
    "D-falsifier": "runs with exchangeable weights still fail, or runs without them do not",
}
CELL = ["learning_rate", "max_grad_norm"]  # of the batching study; each optimizer has learning rates of its own
NO_CLIP = 1e9
TAXED, DRIFTED = 0.01, 0.1  # nats: movement of style words, and change of odds, that count as a failure
DEFAULTS = {"clipping": "asymmetric", "group_transform": "none"}  # where a run sets none
FIX, NO_FIX = {"group_transform": "min_replace"}, {"group_transform": "none"}
ORTHOGONAL = {"group_transform": "advantage_orthogonal"}
FREE = {"importance_sampling_level": "sequence", "epsilon": NO_CLIP}
GSPO = {"importance_sampling_level": "sequence", "epsilon": 0.03, "clipping": "asymmetric"}
DENSE = {"sparsity": "none"}
FACTORS = {
    "group_transform": ["none", "min_replace"],
    "optim": ["adamw_torch", "sgd"],
    "sparsity": ["none", "less able policy", "false negatives"],
}


def run_verdicts(scale: str, probes: pd.DataFrame, described: bool = True) -> pd.DataFrame:
    """Every measurement of `CLAIMS` at a scale, with the columns of `workbook.studies.verdicts.verdicts`.

    probes: what that gives at the scale, since paper H's falsifier rests on the same intervals.  n counts runs for
    sweeps.  described: also the rows that decide nothing.  Raises ValueError for an unknown scale.
    """
    known_scale(scale)
    rows = [*_batching(scale), *_exchange(scale), *_gain(scale), *_ibpo(scale)]
    rows += [*_falsifier_h(probes), *_falsifier_d(scale)]
    rows += [*_other_reading(scale), *_other_failures(scale), *_attributed(scale)] if described else []
    order = {claim: place for place, claim in enumerate(CLAIMS)}
    return pd.DataFrame(rows, columns=COLUMNS).sort_values("claim", key=lambda c: c.map(order), kind="stable")


def _batching(scale: str) -> Iterator[tuple]:
    def compare(claim, strategy, told, outcome, **threshold):
        kinds = ({"batching": strategy}, {"batching": "shuffled"})
        told = f"{strategy} - shuffled: {told}"
        return _compared(claim, "batching", scale, told, outcome, *kinds, by=CELL, **threshold)

    parted = "sign_partitioned"
    yield compare("H11", parted, "share of the gradient that cancels in a step", "in_step", below=0)
    yield compare("H11", parted, "area under the reward curve", "area", below=0)
    told = f"{parted} - shuffled: share of the gradient that cancels in a step, before training"
    measure = partial(minibatches.less_cancelled, scale, parted)
    yield judged_row("H11", "minibatches", told, measure, below=0)
    for claim, strategy in {"H12": "query_preserved", "H13": "reward_balanced"}.items():
        yield compare(claim, strategy, "area under the reward curve", "area", above=0)
        yield compare(claim, strategy, "jitter", "jitter", below=0)
        yield compare(claim, strategy, "share of runs that collapse", "collapsed", below=0)


def _exchange(scale: str) -> Iterator[tuple]:
    def compare(claim, told, outcome, chosen, baseline, among, how=effect, **threshold):
        settings = {"among": {"reused": True, **among}, "by": ["num_iterations"], "how": how}
        return _compared(claim, "drift_fixing", scale, told, outcome, chosen, baseline, **settings, **threshold)

    yield compare("D1", "tax: min_replace / no fix", "tax", FIX, NO_FIX, FREE, how=ratio, below=0.5)
    left = "left of the update on tokens all rollouts share"
    kinds = ({"importance_sampling_level": each} for each in ("sequence", "token"))
    among = {"epsilon": NO_CLIP, **NO_FIX}
    yield compare("D2", f"sequence - token ratio: {left}", "shared_residual", *kinds, among, above=0)
    kinds = ({"clipping": each} for each in ("asymmetric", "symmetric"))
    among = {"importance_sampling_level": "token", "epsilon": 0.2, **NO_FIX}
    yield compare("D3", f"asymmetric - symmetric clipping: {left}", "shared_residual", *kinds, among, above=0)
    yield compare("D4", "no fix - min_replace: tax, nats", "tax", NO_FIX, FIX, FREE, above=0)
    grows = partial(slope, outcome="tax", setting="num_iterations", chosen=NO_FIX)
    told = "no fix: tax, nats per doubling of reuse"
    yield _row("D4", "drift_fixing", scale, told, FREE | NO_FIX, grows, above=0)
    lost = "solution_entropy_lost"
    yield compare("D5", "no fix - min_replace: entropy of solutions lost, nats", lost, NO_FIX, FIX, FREE, above=0)
    for claim, fix in {"D6": FIX, "D7": ORTHOGONAL}.items():
        name, among = fix["group_transform"], FREE | fix | {"reused": True}
        residual = partial(level, outcome="shared_residual", chosen=fix)
        yield _row(claim, "drift_fixing", scale, f"{name}: {left}", among, residual, below=0.01)
        yield compare(claim, f"{name} - no fix: tax, nats", "tax", fix, NO_FIX, FREE, below=0)


def _gain(scale: str) -> Iterator[tuple]:
    def compare(told, outcome, **settings):
        settings = {"among": {"reused": True, **GSPO}, "by": ["num_iterations"], **settings}
        return _compared("D8", "drift_fixing", scale, told, outcome, FIX, NO_FIX, **settings)

    yield compare("min_replace - no fix: held-out reward at the end", "final", above=0)
    yield compare("min_replace - no fix: jitter", "jitter", below=0)
    yield compare("compute to a score: min_replace / no fix", "spent", how=ratio, below=1)
    told = "min_replace - no fix: held-out reward at the end, per doubling of G"
    among = {"importance_sampling_level": "sequence", "per_device_train_batch_size": 32}
    grows = partial(slope, outcome="final", setting="num_generations", chosen=FIX, baseline=NO_FIX)
    yield _row("D9", "group_size", scale, told, among, grows, above=0)


def _other_reading(scale: str) -> Iterator[tuple]:
    """The fixes on the weights of the clipped surrogate; thought of after the rest, so it decides nothing."""
    among = {"by": ["num_iterations"], "judge": _described}
    for fix in (FIX, ORTHOGONAL):
        told = f"{fix['group_transform']} on clipped weights - no fix"
        for outcome, name in {
            "final": "held-out reward at the end",
            "jitter": "jitter",
            "tax": "tax, nats",
            "collapsed": "share of runs that collapse",
        }.items():
            compared = (f"{told}: {name}", outcome, fix, NO_FIX)
            yield _compared("D8", "drift_fixing_clipped", scale, *compared, **among)


def _ibpo(scale: str) -> Iterator[tuple]:
    told = "counterfactual - grpo: correlation with true credit, within a prompt"
    if scale == "smollm2":
        yield unmeasured("IBPO", "counterfactual", told, "> 0", "true credit is known of the chain task alone")
    else:
        yield judged_row("IBPO", "counterfactual", told, partial(counterfactual.nearer_to_credit, scale), above=0)
    kinds = ({"advantage_estimator": each} for each in ("counterfactual", "grpo"))
    told = "counterfactual - grpo: area under the reward curve"
    yield _compared("IBPO", "advantages", scale, told, "area", *kinds, above=0)


def _falsifier_h(probes: pd.DataFrame) -> Iterator[tuple]:
    """The intervals of H5 and H7, asked the other way round; too few prompts stay inconclusive."""
    parts = {
        "1: ": (probes["measured"] == SHARED, {"below": 1}),
        "2: boosted - suppressed tokens, value: ": (probes["claim"] == "H7", {"above": 0}),
    }
    for part, (chosen, threshold) in parts.items():
        for row in probes[chosen].itertuples(index=False):
            said = row.verdict
            if np.isfinite(row.mean):
                said = "inconclusive" if row.reason else _falsified(Interval(row.mean, row.low, row.high), **threshold)
            stated = _stated_falsified(threshold)
            yield row._replace(claim="H-falsifier", measured=part + row.measured, stated=stated, verdict=said)


def _falsifier_d(scale: str) -> Iterator[tuple]:
    row = partial(_row, "D-falsifier", "what_causes_what", scale)
    tax = partial(level, outcome="tax")
    told = "1: tax of exchangeable runs (min_replace), nats"
    yield row(told, DENSE | FIX, partial(tax, chosen=FIX), judge=_falsified, below=TAXED)
    told = "2: tax of runs without the fix, nats, if none of them collapses"
    yield row(told, DENSE | NO_FIX, partial(tax, chosen=NO_FIX), judge=_falsified, unless="collapsed", above=TAXED)


def _other_failures(scale: str) -> Iterator[tuple]:
    """What paper D's falsifier names beside the tax, of the same runs."""
    kinds = {"exchangeable runs (min_replace)": FIX, "runs without the fix": NO_FIX}
    for name, kind in kinds.items():
        for outcome, unit in {
            "odds": "change of the odds of solutions, nats",
            "collapsed": "share that collapse",
        }.items():
            measure = partial(level, outcome=outcome, chosen=kind)
            among = DENSE | kind
            yield _row("D-falsifier", "what_causes_what", scale, f"{name}: {unit}", among, measure, judge=_described)


def _attributed(scale: str) -> Iterator[tuple]:
    """What each factor adds to each failure, beside the others."""
    for outcome in ("tax", "odds", "collapsed"):
        try:
            runs = labelled_runs("what_causes_what", scale).dropna(subset=outcome)
            table = attribution(runs, outcome, FACTORS)
        except ValueError as missing:
            yield unmeasured("D-falsifier", "what_causes_what", f"{outcome} by factor", "", missing)
            continue
        for row in table[~table["term"].str.contains(" x ")].itertuples():
            factor, _, at = row.term.partition("=")
            told = f"{outcome} by {factor}: {at} - {FACTORS[factor][0]} ({row.share:.0%} of the variance)"
            size = (runs["seed"].nunique(), len(runs), "")
            yield ("D-falsifier", "what_causes_what", told, "", row.mean, row.low, row.high, DESCRIBED, *size)


def _described(_: Interval) -> str:
    return DESCRIBED


def _falsified(interval: Interval, **threshold: float) -> str:
    return FALSIFIED[verdict(interval, **threshold)]


def _stated_falsified(threshold: dict[str, float]) -> str:
    return " ".join(f"met if {'<=' if name == 'above' else '>='} {value:g}" for name, value in threshold.items())


def _compared(
    claim: str,
    study: str,
    scale: str,
    told: str,
    outcome: str,
    chosen: dict,
    baseline: dict,
    among=None,
    how=effect,
    by=(),
    **threshold: float,
) -> tuple:
    """A row on the difference (or ratio) that a setting makes among the runs with some others."""

    def measure(runs):
        varied = [name for name in by if name in runs]  # a setting that all runs share is no column
        return how(runs, outcome, chosen, baseline, varied)

    def kinds(runs):
        return having(runs, chosen) | having(runs, baseline)

    return _row(claim, study, scale, told, among or {}, measure, kinds=kinds, **threshold)


def _row(
    claim: str,
    study: str,
    scale: str,
    told: str,
    among: dict,
    measure: Callable[[pd.DataFrame], Interval],
    judge: Callable[..., str] = verdict,
    kinds: Callable | None = None,
    unless: str = "",
    **threshold: float,
) -> tuple:
    """A row of `COLUMNS` from the study's runs with the settings `among`; n counts them.

    judge: as `verdict`.  unless: an outcome that takes away "met": if some run has it, that is not sure any more, and
    if its interval lies above 0, it is not met.
    """
    stated = " ".join(f"{'>' if name == 'above' else '<'} {value:g}" for name, value in threshold.items())
    stated = _stated_falsified(threshold) if judge is _falsified else stated
    try:
        runs = labelled_runs(study, scale)
        runs = runs[having(runs, among)]
        found, used = measure(runs), runs[kinds(runs)] if kinds else runs
        said = judge(found, **threshold)
        if unless and (found_too := level(runs, unless, {})).high > 0:
            said = "not met" if found_too.low > 0 or said == "not met" else "inconclusive"
    except ValueError as missing:
        return unmeasured(claim, study, told, stated, missing)
    return (claim, study, told, stated, *found, said, used["seed"].nunique(), len(used), "")


def labelled_runs(study: str, scale: str) -> pd.DataFrame:
    """A sweep's runs, what they left at its default filled in, with the columns that claims select or compare by.

    reused: whether rollouts are gone over at least twice.  spent: compute to a score, or of the whole run if it never
    got there.  sparsity: of FACTORS.
    """
    runs = load_runs(study, scale)
    runs = runs.fillna({name: value for name, value in DEFAULTS.items() if name in runs})
    if "num_iterations" in runs:
        rewards = load_runs(study, scale, "curves").groupby("run")["reward"].count()
        whole = runs["run"].map(rewards) * passes(runs["num_iterations"])
        runs = runs.assign(reused=runs["num_iterations"] > 1, spent=runs["compute_to_score"].fillna(whole))
    if "false_negative_rate" in runs:
        told = [runs["false_negative_rate"] > 0, runs["policy"] != "bundled"]
        runs = runs.assign(sparsity=np.select(told, ["false negatives", "less able policy"], "none"))
    return runs
