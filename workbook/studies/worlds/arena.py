"""Studies of the arena (`workbook.app.arena`): `arena_rates` (each rule's rate), `arena` and
`arena_mix` (ten units).

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

from functools import partial
from itertools import product

import pandas as pd

from workbook.app.arena import MIX
from workbook.app.half_way import PLAIN, own_rates
from workbook.studies.record import Tables
from workbook.studies.registration import WORLD_SCALES
from workbook.studies.unit import StudyUnit
from workbook.studies.worlds.arena_outcomes import RANDOM, RULES, rule_rates
from workbook.studies.worlds.study import TUNED, run_world_arm

# dr_grpo times 8/7 in groups of eight: AdamW divides that away, so it is the same run
NOT_TRAINED = ("rloo",)
_STEPS = (0.5, 1.0, 2.0)  # of plain's own rate


def arena_rates_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Table runs of a world: every rule on its tuning policies at the three rates of the ladder."""
    plain = own_rates(Tables(unit.setting.name, unit.results)["worlds_rates/runs"]).loc[PLAIN, "lr"]
    role = "tuning" if unit.setting.name in WORLD_SCALES else "unit"
    units, runs = [unit, *(StudyUnit(unit.setting.name, k, role) for k in range(1, TUNED))], []
    for policy, one in enumerate(units):
        one.loaded, one.parts = unit.loaded, unit.parts
        for rule, lr in product(RULES, (plain * step for step in _STEPS)):
            run = one.cached_table(f"{rule}-{lr:g}-{policy}", partial(run_world_arm, one, rule, lr))
            runs.append(run.assign(policy=policy))
    return {"runs": pd.concat(runs, ignore_index=True)}


def arena_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Table runs of one unit: every rule at its own rate. Raises NotMeasured until the world's
    rates are tuned.
    """
    rates = rule_rates(Tables(unit.setting.name, unit.results))["lr"]
    given = {rule: float(rates[rule]) for rule in RULES} | {RANDOM: float(rates[PLAIN])}
    runs = [
        unit.cached_table(f"{rule}-{lr:g}", partial(run_world_arm, unit, rule, lr))
        for rule, lr in given.items()
    ]
    return {"runs": pd.concat(runs, ignore_index=True)}


def mix_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Table runs of one unit: plain with an entropy penalty, at plain's own rate. Raises
    NotMeasured as `arena_study`.

    No rate of its own was tuned, so that what it is ahead of plain by is no matter of rates.
    """
    lr = float(
        own_rates(Tables(unit.setting.name, unit.results)["worlds_rates/runs"]).loc[PLAIN, "lr"]
    )
    return {"runs": unit.cached_table(f"{MIX}-{lr:g}", partial(run_world_arm, unit, MIX, lr))}
