"""Study masks: which tokens teach, those that good and bad rollouts share or those that one side
alone says?

Runs push the unsure tokens of one mask alone (`workbook.theory.credit_masks`), all with gradients
of one length. Every mask has two twins: from signs permuted within the group, and random unsure
tokens of as much exact |credit|. The deciding numbers are end values, a mask by place minus its
permuted-sign twin. Arms beside them: all tokens (plain), all unsure ones, the sure ones (which must
gain nothing), and permuted rewards (which must not gain).

Rates are tuned on other policies: one for plain, and one for all masks, at which the four masks end
highest on average.
"""

from functools import partial

import pandas as pd

from workbook.probes.cancellation import kinds
from workbook.probes.values import exact_credit, exact_values
from workbook.rollouts.credit_batches import credit_batch
from workbook.rollouts.sample import sample_rollouts
from workbook.studies.record import load_measured
from workbook.studies.unit import StudyUnit
from workbook.theory.credit_masks import Masked, MatchedCredit, SureTokens, UnsureTokens
from workbook.training.loop import LoopConfig, train

PROMPTS, GROUP_SIZE, BATCHES, _EVERY, _HELD_OUT = 8, 8, 32, 4, 32
_TUNED = 3  # policies that rates are tuned on
RATES = {"adamw": (1.5e-4, 3e-4, 6e-4, 1.2e-3, 2.4e-3), "sgd": (0.0125, 0.025, 0.05, 0.1, 0.2)}
_KEPT = [
    "batch",
    "value",
    "reward",
    "grad_norm",
    "step_length",
    "moved",
    "tax",
    "style_entropy",
    "pass_at_8",
]
MASKS = {  # name: whether its words are shared, whether by place
    "shared by word": (True, False),
    "specific by word": (False, False),
    "shared by place": (True, True),
    "specific by place": (False, True),
}
PLAIN, PERMUTED, SURE, UNSURE = "plain", "permuted rewards", "sure", "unsure"
SIGNS, CREDIT = "permuted signs", "matched credit"  # twins
SHARED_PROMPTS = 24  # that the shares of masks are read on


def mask_rules() -> dict[str, object]:
    """{name: rule} of every arm; a twin is named "<mask>, <twin>"."""
    rules = {PLAIN: "dr_grpo", PERMUTED: "dr_grpo", SURE: SureTokens(), UNSURE: UnsureTokens()}
    for name, (shared, by_place) in MASKS.items():
        rules[name] = Masked(shared, by_place)
        rules[f"{name}, {SIGNS}"] = Masked(shared, by_place, permute_signs=True)
        rules[f"{name}, {CREDIT}"] = MatchedCredit(shared, by_place)
    return rules


def run_mask(
    unit: StudyUnit, rule, lr: float, optimizer: str = "adamw", permuted: bool = False
) -> pd.DataFrame:
    """A run of one rule from a unit's policy, all gradients of length 1: readings of _KEPT."""
    loop = LoopConfig(
        prompts=PROMPTS,
        group_size=GROUP_SIZE,
        batches=BATCHES,
        optimizer=optimizer,
        lr=lr,
        rule=rule,
        known_credit=exact_credit,
        permuted=permuted,
        match="grad_norm",
        max_new_tokens=unit.setting.max_new_tokens,
    )
    given = (unit.policy, unit.task, loop, unit.data_seed, unit.readings(_HELD_OUT))
    return train(*given, every=_EVERY)[_KEPT].assign(lr=lr)


def mask_rates_study(
    unit: StudyUnit, optimizer: str = "adamw", names: tuple[str, ...] = (PLAIN, *MASKS)
) -> dict:
    """Table runs: plain and the four masks at each of RATES, on so many tuning policies of the
    scale.
    """
    rules, parts = mask_rules(), []
    for policy in range(_TUNED):
        own = unit if policy == unit.number else StudyUnit(unit.setting.name, policy, "tuning")
        own.loaded, own.parts = unit.loaded, unit.parts
        for name in names:
            for lr in RATES[optimizer]:
                made = own.cached_table(
                    f"{name}-{lr:g}-{policy}", partial(run_mask, own, rules[name], lr, optimizer)
                )
                parts.append(made.assign(arm=name, policy=policy))
    return {"runs": pd.concat(parts, ignore_index=True).assign(optimizer=optimizer)}


def sgd_rates_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """`mask_rates_study` with plain SGD."""
    return mask_rates_study(unit, "sgd")


def plain_rates_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """`mask_rates_study` of plain alone, in worlds where masks are not trained."""
    return mask_rates_study(unit, names=(PLAIN,))


def rates_by_end_value(runs: pd.DataFrame) -> dict[str, float]:
    """{"plain": rate, "masks": rate}: at which plain, and the four masks on average, end highest in
    value.
    """
    ends = runs[runs["batch"] == BATCHES].groupby(["arm", "lr"])["value"].mean().unstack("lr")
    rates = {PLAIN: float(ends.loc[PLAIN].idxmax())}
    if ends.index.isin(MASKS).any():
        rates["masks"] = float(ends.loc[[*MASKS]].mean().idxmax())
    return rates


def tuned_mask_rates(unit: StudyUnit, study: str) -> dict[str, float]:
    """`rates_by_end_value` of the unit's scale; NotMeasured until they have been tuned."""
    return rates_by_end_value(load_measured(study, unit.setting.name, "runs", unit.results))


def masks_study(
    unit: StudyUnit, optimizer: str = "adamw", rates: str = "mask_rates"
) -> dict[str, pd.DataFrame]:
    """Tables runs (every arm) and shares (what each mask and twin holds of tokens, |credit| and (1
    - p)^2).
    """
    known, parts = tuned_mask_rates(unit, rates), []
    for name, rule in mask_rules().items():
        lr = known[PLAIN] if name in (PLAIN, PERMUTED) else known["masks"]
        made = unit.cached_table(
            name, partial(run_mask, unit, rule, lr, optimizer, permuted=name == PERMUTED)
        )
        parts.append(made.assign(arm=name, optimizer=optimizer))
    return {"runs": pd.concat(parts, ignore_index=True), "shares": mask_shares(unit)}


def sgd_masks_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Table runs of `masks_study` with plain SGD; the shares at the start are the same."""
    return {"runs": masks_study(unit, "sgd", "mask_rates_sgd")["runs"]}


def mask_shares(unit: StudyUnit) -> pd.DataFrame:
    """What each mask and twin holds at the start, by class of token: tokens, |credit|, (1 - p)^2,
    of all unsure ones.

    Over groups whose rewards differ. Columns arm, kind, tokens, credit, squares: sums; UNSURE is
    the whole.
    """
    given = (
        unit.policy,
        unit.task,
        SHARED_PROMPTS,
        GROUP_SIZE,
        unit.data_seed,
        unit.setting.max_new_tokens,
    )
    rollouts = sample_rollouts(*given)
    credit = exact_values(unit.policy, unit.task, rollouts).credit
    known = {"known_credit": credit, "logps": rollouts.old_logps}
    alive = rollouts.completion_mask.bool()
    place = tuple(alive.nonzero().T)
    table = rollouts.token_table().assign(credit=credit[place].double().cpu().numpy())
    kind = kinds(table)
    squares = (1 - rollouts.old_logps.exp()).square()[place].double().cpu().numpy()
    parts = []
    for name, rule in mask_rules().items():
        if name in (PLAIN, PERMUTED, SURE):
            continue
        batch = credit_batch(unit.policy, rollouts, unit.task, unit.data_seed, **known)
        chosen = (rule(batch) != 0)[place].cpu().numpy()
        sums = pd.DataFrame({"tokens": 1.0, "credit": table["credit"].abs(), "squares": squares})[
            chosen
        ]
        parts.append(
            sums.groupby(kind[chosen]).sum().rename_axis("kind").reset_index().assign(arm=name)
        )
    return pd.concat(parts, ignore_index=True)
