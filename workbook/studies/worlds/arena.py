"""Studies of the arena: `arena_rates` (each rule's rate), `arena` and `arena_mix` (ten units), and
a rule of one's own.

    python -m workbook arena --rule own:credit.py:my_rule

Trained are the credit rules that `worlds` does not train, in two of its worlds, with its runs: 32
generation batches of 8 prompts x 8 rollouts, one AdamW step each, on-policy. A rule's ladder is
plain's own rate of `worlds_rates`, half and twice it; its own rate is the one with the fewest
tokens to half-way on the tuning policies. Random rewards, which teach at no rate, run at plain's.
What a rule samples itself counts. Stated before: data/results/arena/registration.yaml. `arena_mix`
is described and was not registered: plain with an entropy penalty, at plain's rate, a control
beside which a lead has to be more than sharpening.

Tables: runs, a row per reading of a run, as those of worlds; of `arena_rates` with policy, of the
tuning ones.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path

import joblib
import numpy as np
import pandas as pd

from workbook.files import write_parquet
from workbook.messages import progress, reporting
from workbook.policies.load import load_policy
from workbook.studies.bench import Bench
from workbook.studies.record import NotMeasured, Tables
from workbook.studies.registration import WORLD_SCALES
from workbook.studies.worlds.arena_outcomes import (
    BESIDE,
    COMMITTED,
    MIX,
    RANDOM,
    RULES,
    SCALES,
    YOURS,
    arena_table,
    in_order,
    measured_table,
    most_tokens,
    rule_rates,
    short_name,
    within,
)
from workbook.studies.worlds.outcomes import (
    PLAIN,
    best_attainable,
    own_rates,
    run_ends,
    world_name,
    world_tables,
)
from workbook.studies.worlds.study import SIZES, TUNED, run_arm
from workbook.training.credit import credit_call

# dr_grpo times 8/7 in groups of eight: AdamW divides that away, so it is the same run
NOT_TRAINED = ("rloo",)
STEPS = (0.5, 1.0, 2.0)  # of plain's own rate
# of a contest: units, and the rate of all where a world's are not measured
UNITS, UNTUNED = 6, 3e-4
CONTROLS = (PLAIN, *BESIDE)  # what stands beside a rule in a contest
# of a unit's exact start value, in reward: another CPU's last digits, no other policy
START_TOLERANCE = 1e-4


def arena_rates_study(bench: Bench) -> dict[str, pd.DataFrame]:
    """Table runs of a world: every rule on its tuning policies at the three rates of the ladder."""
    plain = own_rates(Tables(bench.scale.name, bench.results)["worlds_rates/runs"]).loc[PLAIN, "lr"]
    role = "tuning" if bench.scale.name in WORLD_SCALES else "unit"
    benches, runs = [bench, *(Bench(bench.scale.name, k, role) for k in range(1, TUNED))], []
    for policy, one in enumerate(benches):
        one.loaded, one.parts = bench.loaded, bench.parts
        for rule, lr in product(RULES, (plain * step for step in STEPS)):
            run = one.kept(f"{rule}-{lr:g}-{policy}", partial(run_arm, one, rule, lr))
            runs.append(run.assign(policy=policy))
    return {"runs": pd.concat(runs, ignore_index=True)}


def arena_study(bench: Bench) -> dict[str, pd.DataFrame]:
    """Table runs of one unit: every rule at its own rate. Raises NotMeasured until the world's
    rates are tuned.
    """
    rates = rule_rates(Tables(bench.scale.name, bench.results))["lr"]
    given = {rule: float(rates[rule]) for rule in RULES} | {RANDOM: float(rates[PLAIN])}
    runs = [
        bench.kept(f"{rule}-{lr:g}", partial(run_arm, bench, rule, lr))
        for rule, lr in given.items()
    ]
    return {"runs": pd.concat(runs, ignore_index=True)}


def mix_study(bench: Bench) -> dict[str, pd.DataFrame]:
    """Table runs of one unit: plain with an entropy penalty, at plain's own rate. Raises
    NotMeasured as `arena_study`.

    No rate of its own was tuned, so that what it is ahead of plain by is no matter of rates.
    """
    lr = float(
        own_rates(Tables(bench.scale.name, bench.results)["worlds_rates/runs"]).loc[PLAIN, "lr"]
    )
    return {"runs": bench.kept(f"{MIX}-{lr:g}", partial(run_arm, bench, MIX, lr))}


# -- a rule of one's own beside the measured ones
# ---------------------------------------------------------------------


def contest(
    rule: str,
    units: int = UNITS,
    folder: str | Path = "runs/arena",
    show: Callable[[str], None] | None = None,
    batches: int | None = None,
    scales: Sequence[str] = SCALES,
    jobs: int = 2,
    retrain_controls: bool = False,
) -> pd.DataFrame:
    """`arena_table` of a rule and of CONTROLS over the first units of each world.

    Its source is YOURS where an arm was trained here, and COMMITTED where its runs were read.

    Every arm has its committed own rate, a rule that has none plain's. The rule is trained here. A
    control is read from the committed runs (`committed_run`), which had the same policies, prompts,
    random numbers and rates; it is trained where there are none. What is trained is kept in
    <folder>/<world>/unit=<k>/<rule>-<digest> (of rate, batches and the rule's source), and read
    again.

    rule: a name of `estimators`, or own:<file.py>:<function>.  show: called with a line per unit,
    and per world whose rates are not measured or whose controls are read.  batches: fewer than the
    study's.  jobs: units trained at a time, each on one core.  retrain_controls: train the controls
    here, too. Raises ValueError, in one sentence, for a rule that can't be called, for fewer than
    two units, where the policies of a world are not there, and where a unit does not start at the
    value of the committed runs.
    """
    call, show = credit_call(rule), show or (lambda line: None)
    if units < 2:
        raise ValueError(f"units={units} must be 2 or more: an interval is over units.")
    if Path(folder).is_file():
        raise ValueError(f"folder={str(folder)!r} is no folder; give the path of one.")
    sources = dict.fromkeys(CONTROLS, "") | {rule: repr(call and call.files)}
    todo, best, trained, runs = [], {}, set(), {scale: [] for scale in scales}
    for scale in scales:
        load_policy(Bench(scale, 0).scale.policy)  # or a sentence, before anything is trained
        rates, best[scale] = _committed(scale, sources)
        if best[scale] is None:
            show(
                f"{scale} has no measured rates: every arm has {UNTUNED:g}, half-way is to the best"
                " value here."
            )
        reused = 0
        for unit in range(units):
            place, files, known = Path(folder) / world_name(scale) / f"unit={unit}", {}, {}
            for arm, source in sources.items():
                read = (
                    None
                    if arm == rule or retrain_controls
                    else committed_run(scale, unit, arm, rates[arm], batches)
                )
                if read is not None:
                    known[arm] = read
                    continue
                digest = hashlib.sha256(repr((rates[arm], batches, source)).encode()).hexdigest()[
                    :8
                ]
                files[arm] = place / f"{short_name(arm)}-{digest}.parquet"
                trained.add((world_name(scale), arm))
            reused += len(known)
            todo.append(joblib.delayed(_trained)(scale, unit, rates, batches, files, known))
        if reused:
            show(
                f"{world_name(scale)}: {reused} runs of controls are the committed ones, and not"
                " trained again."
            )
    finished = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")(todo)
    for scale, unit, table in progress(finished, "units", len(todo)):
        ends = table.groupby("arm", sort=False)["value"].agg(["first", "last"])
        values = ", ".join(
            f"{value:.3f} ({short_name(arm)})" for arm, value in ends["last"].items()
        )
        show(
            f"{world_name(scale)}, unit {unit}: exact held-out value {ends['first'].iloc[0]:.3f} to"
            f" {values}"
        )
        runs[scale].append(table.assign(seed=unit))
    table = arena_table({scale: _ends(parts, best[scale]) for scale, parts in runs.items()})
    rows = zip(table["world"], table["rule"], strict=True)
    return table.assign(source=[YOURS if row in trained else COMMITTED for row in rows])


def committed_run(
    scale: str, unit: int, arm: str, lr: float, batches: int | None = None
) -> pd.DataFrame | None:
    """The committed run of a control from a unit's policy at a rate, up to so many batches (None:
    all of the study's).

    A shorter run is the beginning of a longer one: prompts and random numbers of a batch depend on
    its number alone. None where no such run is committed, or none that was read after so many
    batches.
    """
    try:
        runs = world_tables(scale, None)["arena_mix/runs" if arm == MIX else "worlds/runs"]
    except NotMeasured:
        return None
    length = batches or SIZES[scale].batches
    own = (
        (runs["seed"] == unit)
        & (runs["arm"] == arm)
        & np.isclose(runs["lr"], lr, rtol=1e-9, atol=0.0)
    )
    run = runs[own & (runs["batch"] <= length)].drop(columns="seed")
    return run if len(run) and run["batch"].iloc[-1] == length else None


def _committed(scale: str, arms: Iterable[str]) -> tuple[dict[str, float], float | None]:
    """The committed rates of arms in a world, and its best attainable value; UNTUNED and None where
    it has none.
    """
    try:
        known = world_tables(scale, None)["worlds_rates/runs"]
    except NotMeasured:
        return dict.fromkeys(arms, UNTUNED), None
    own = own_rates(known)["lr"]
    return {arm: float(own.get(arm, own[PLAIN])) for arm in arms}, best_attainable(known)


def _trained(
    scale: str,
    unit: int,
    rates: dict[str, float],
    batches: int | None,
    files: dict[str, Path],
    known: dict[str, pd.DataFrame],
) -> tuple[str, int, pd.DataFrame]:
    """(scale, unit, the unit's runs): those of `known`, and those of `files`, trained first where
    they are not kept.
    """
    bench, size = Bench(scale, unit), SIZES[scale]
    size = size._replace(batches=batches or size.batches)
    with reporting(lambda *_: None):  # several at a time have no room for bars
        for arm, path in files.items():
            if not path.exists():
                write_parquet(path, run_arm(bench, arm, rates[arm], size))
    runs = [*known.values(), *map(pd.read_parquet, files.values())]
    starts = [float(run["value"].iloc[0]) for run in runs]
    if max(starts) - min(starts) > START_TOLERANCE:
        raise ValueError(
            f"{scale}, unit {unit} starts at a value of {starts[-1]:.4f} here and at"
            f" {starts[0]:.4f} in the committed runs, so its policy or prompts are not theirs:"
            " train the controls here, with --retrain-controls."
        )
    return scale, unit, pd.concat(runs, ignore_index=True)


def _ends(parts: list[pd.DataFrame], best: float | None) -> pd.DataFrame:
    """`run_ends` of a contest's units; best: the attainable value, None for the highest mean of an
    arm here.
    """
    runs = pd.concat(parts, ignore_index=True)
    runs = within(runs, most_tokens(runs[runs["arm"].isin(CONTROLS)]))
    return run_ends(
        runs, best or runs.groupby(["arm", "batch"])["value"].mean().max(), by=("arm", "lr")
    )


def place(own: pd.DataFrame) -> pd.DataFrame:
    """A contest's rows among the measured ones, where there are any; what stands in a row is to
    plain of its source.

    Of the contest only what was trained here, and no second row of plain: committed runs stand
    among the measured.
    """
    with suppress(NotMeasured):
        new = own[(own["rule"] != PLAIN) & (own["source"] == YOURS)]
        own = pd.concat([measured_table(), new], ignore_index=True)
    return in_order(own)
