"""Claims of chapter 09: what restores cancellation, and whether that helps (D1 to D9, P1, paper D's falsifier).

Every threshold was written down before the sweeps' results were looked at. "Not clipped" is epsilon 1e9; "reused" runs
take at least two epochs on each batch of rollouts.

- D1 to D7: sequence ratios without clipping, exchangeable weights (min_replace, advantage_orthogonal) against none.
  D8: GSPO's clipped objective with and without min_replace.  D9: that gain by rollouts per prompt.
- P1: within a prompt, the correlation of a token's advantage with its true credit is higher for prefix credit than for
  grpo, over all tokens, at the group size of the other studies (8); and it learns more. Thought of as a reading of
  IBPO (arXiv 2605.16302), which it is not: that revises rollouts, and no threshold was stated for it.
- A falsifier is "met" where its claim does not replicate, "not met" where it does: the claim here is that exchangeable
  runs pay no tax and that others do.

Rows without a threshold say more about a claim than it stated; they are "described" and decide nothing.
"""

from __future__ import annotations

from functools import partial

from workbook.statistics import Estimate, nested_estimate
from workbook.studies.claim import Claim, Measurement, Tables
from workbook.studies.paired import attribution, comparison, effect, labelled_runs, level, of_runs, ratio, slope

UNCLIPPED = 1e9  # an epsilon that clips nothing
MIN_TAX = 0.01  # nats: movement of style words that counts as a failure
MAX_RESIDUAL = 0.01  # of the update on shared tokens, that counts as cancelled
FIX, NO_FIX = {"group_transform": "min_replace"}, {"group_transform": "none"}
ORTHOGONAL = {"group_transform": "advantage_orthogonal"}
NO_CLIP = {"epsilon": UNCLIPPED}
RATIOS = [{"importance_sampling_level": level} for level in ("sequence", "token")]
CLIPPINGS = [{"clipping": clipping} for clipping in ("asymmetric", "symmetric")]
SEQUENCE = RATIOS[0] | NO_CLIP
PPO = RATIOS[1] | {"epsilon": 0.2} | NO_FIX
GSPO = {"importance_sampling_level": "sequence", "epsilon": 0.03, "clipping": "asymmetric"}
REUSED = {"reused": True}
DENSE = {"sparsity": "none"}
FACTORS = {
    "group_transform": ["none", "min_replace"],
    "optim": ["adamw_torch", "sgd"],
    "sparsity": ["none", "less able policy", "false negatives"],
}
RESIDUAL = "left of the update on tokens all rollouts share"
FINAL, LOST = "held-out reward at the end", "entropy of solutions lost, nats"


def nearer_to_credit(
    tables: Tables, estimator: str = "prefix_credit", than: str = "grpo", group_size: int = 8
) -> Estimate:
    """Correlation with true credit of one estimator minus that of another, over seeds and prompts."""
    if tables.scale.startswith("smollm2"):
        raise ValueError("true credit is known of the chain task alone")
    table = tables["prefix_credit/prompts"].query("group_size == @group_size")
    wide = table.pivot_table(index=["seed", "group"], columns="estimator", values="correlation").reset_index()
    return nested_estimate(wide.assign(nearer=wide[estimator] - wide[than]), "nearer", resamples=tables.resamples)


def changed(
    label: str, outcome: str, chosen: dict, baseline: dict, among: dict, how=effect, **threshold
) -> Measurement:
    """What a setting changes in an outcome of drift_fixing's reused runs, paired by seed and epochs."""
    settings = {"among": REUSED | among, "by": ["num_iterations"], "how": how}
    return Measurement(
        "drift_fixing", label, comparison("drift_fixing", outcome, chosen, baseline, **settings), **threshold
    )


def repairs(name: str, fix: dict) -> list[Measurement]:
    """Measurements of a fix that is said to restore cancellation."""
    residual = of_runs("drift_fixing", SEQUENCE | fix | REUSED, partial(level, outcome="shared_residual", chosen=fix))
    return [
        Measurement("drift_fixing", f"{name}: {RESIDUAL}", residual, below=MAX_RESIDUAL),
        changed(f"{name} - no fix: tax, nats", "tax", fix, NO_FIX, SEQUENCE, below=0),
    ]


def on_clipped_weights() -> list[Measurement]:
    """The fixes on the weights of the clipped surrogate; thought of after the rest, so they decide nothing."""
    outcomes = {"final": FINAL, "jitter": "jitter", "tax": "tax, nats", "collapsed": "share of runs that collapse"}
    study = "drift_fixing_clipped"
    return [
        Measurement(
            study,
            f"{fix['group_transform']} on clipped weights - no fix: {name}",
            comparison(study, outcome, fix, NO_FIX, by=["num_iterations"]),
        )
        for fix in (FIX, ORTHOGONAL)
        for outcome, name in outcomes.items()
    ]


def causes(label: str, outcome: str, kind: dict, **threshold) -> Measurement:
    """Level of an outcome among the runs of what_causes_what under dense rewards."""
    return Measurement("what_causes_what", label, _level(outcome, kind), **threshold)


def _level(outcome: str, kind: dict):
    return of_runs("what_causes_what", DENSE | kind, partial(level, outcome=outcome, chosen=kind))


def other_failures() -> list[Measurement]:
    """What paper D's falsifier names beside the tax, of the same runs."""
    kinds = {"exchangeable runs (min_replace)": FIX, "runs without the fix": NO_FIX}
    outcomes = {"odds": "change of the odds of solutions, nats", "collapsed": "share that collapse"}
    return [
        causes(f"{name}: {unit}", outcome, kind) for name, kind in kinds.items() for outcome, unit in outcomes.items()
    ]


def attributed(tables: Tables, outcome: str) -> dict[str, Estimate]:
    """What each factor of what_causes_what adds to an outcome, beside the others."""
    runs = labelled_runs("what_causes_what", tables).dropna(subset=outcome)
    rows = {}
    for row in attribution(runs, outcome, FACTORS).query("not term.str.contains(' x ')").itertuples():
        factor, _, at = row.term.partition("=")
        label = f"{outcome} by {factor}: {at} - {FACTORS[factor][0]} ({row.share:.0%} of the variance)"
        rows[label] = Estimate(row.mean, row.low, row.high, runs["seed"].nunique(), len(runs))
    return rows


tax_per_doubling = of_runs(
    "drift_fixing", SEQUENCE | NO_FIX, partial(slope, outcome="tax", setting="num_iterations", chosen=NO_FIX)
)
gain_per_doubling = of_runs(
    "group_size",
    RATIOS[0] | {"per_device_train_batch_size": 32},
    partial(slope, outcome="final", setting="num_generations", chosen=FIX, baseline=NO_FIX),
)
learned = comparison("advantages", "area", *({"advantage_estimator": name} for name in ("prefix_credit", "grpo")))
AGAINST, CORRELATION = "prefix credit - grpo", "correlation with true credit, within a prompt"

CLAIMS = [
    Claim(
        "D1",
        "shared tokens stay where they are if weights are exchangeable within the group",
        "condition on the weights",
        "with exchangeable weights style words move at least half as far as without",
        [changed("tax: min_replace / no fix", "tax", FIX, NO_FIX, SEQUENCE, how=ratio, below=0.5)],
    ),
    Claim(
        "D2",
        "a sequence-level ratio leaves an update on shared tokens, a token-level one does not",
        "Cor 3.3",
        "the sequence-level ratio leaves no more on shared tokens than the token-level one",
        [
            changed(f"sequence - token ratio: {RESIDUAL}", "shared_residual", *RATIOS, NO_FIX | NO_CLIP, above=0),
        ],
    ),
    Claim(
        "D3",
        "asymmetric clipping leaves an update on shared tokens, symmetric clipping does not",
        "clipping in the objective",
        "asymmetric clipping leaves no more on shared tokens than symmetric clipping",
        [
            changed(f"asymmetric - symmetric clipping: {RESIDUAL}", "shared_residual", *CLIPPINGS, PPO, above=0),
        ],
    ),
    Claim(
        "D4",
        "without cancellation reward-irrelevant tokens drift, more with every step: the learning tax",
        "Prop 3.1",
        "runs without the fix pay no more tax, or it does not grow with reuse",
        [
            changed("no fix - min_replace: tax, nats", "tax", NO_FIX, FIX, SEQUENCE, above=0),
            Measurement("drift_fixing", "no fix: tax, nats per doubling of reuse", tax_per_doubling, above=0),
        ],
    ),
    Claim(
        "D5",
        "without cancellation the entropy over equivalent solutions falls",
        "Cor 3.2",
        "runs without the fix lose no more entropy over equivalent solutions",
        [
            changed(f"no fix - min_replace: {LOST}", "solution_entropy_lost", NO_FIX, FIX, SEQUENCE, above=0),
        ],
    ),
    Claim(
        "D6",
        "the group's least weight for all of it restores cancellation",
        "Eq 17",
        "more than a hundredth of the update is left on shared tokens, or the tax does not fall",
        repairs("min_replace", FIX),
    ),
    Claim(
        "D7",
        "weights made orthogonal to the advantages restore cancellation",
        "Eq 18",
        "more than a hundredth of the update is left on shared tokens, or the tax does not fall",
        repairs("advantage_orthogonal", ORTHOGONAL),
    ),
    Claim(
        "D8",
        "with that fix training scores higher, with less jitter and less compute",
        "Tables 1, 2",
        "the held-out reward is not higher, or jitter or compute to a score not lower",
        [
            changed(f"min_replace - no fix: {FINAL}", "final", FIX, NO_FIX, GSPO, above=0),
            changed("min_replace - no fix: jitter", "jitter", FIX, NO_FIX, GSPO, below=0),
            changed("compute to a score: min_replace / no fix", "spent", FIX, NO_FIX, GSPO, how=ratio, below=1),
            *on_clipped_weights(),
        ],
    ),
    Claim(
        "D9",
        "the fix gains more with more rollouts per prompt",
        "Table 4",
        "the gain in held-out reward does not grow with the group",
        [
            Measurement("group_size", f"min_replace - no fix: {FINAL}, per doubling of G", gain_per_doubling, above=0),
        ],
    ),
    Claim(
        "P1",
        "comparing rollouts where they part gives step credit that teaches faster [reading]",
        "the hidden process reward",
        "its advantages come no nearer to true credit, or no more is learned",
        [
            Measurement("prefix_credit", f"{AGAINST}: {CORRELATION}", nearer_to_credit, above=0),
            Measurement("advantages", f"{AGAINST}: area under the reward curve", learned, above=0),
        ],
    ),
    Claim(
        "D-falsifier",
        "runs with exchangeable weights still fail, or runs without them do not",
        "what would settle it",
        "runs with exchangeable weights pay a tax, or runs without them pay none",
        [
            causes("1: tax of exchangeable runs (min_replace), nats", "tax", FIX, below=MIN_TAX),
            causes(
                "2: tax of runs without the fix, nats, if none of them collapses",
                "tax",
                NO_FIX,
                above=MIN_TAX,
                unless=_level("collapsed", NO_FIX),
            ),
            *other_failures(),
            *(
                Measurement("what_causes_what", f"{outcome} by factor", partial(attributed, outcome=outcome))
                for outcome in ("tax", "odds", "collapsed")
            ),
        ],
    ),
]
