"""Claims about worlds, ours, and of the arena: what rows measure stands in
data/results/worlds/registration.yaml.

Rows of a world have its policies as units. At the scale "worlds" a unit is a world, and its number
the mean over its
policies: of all worlds but those held out.
"""

from functools import partial

import pandas as pd

from workbook.app.arena import beside_plain
from workbook.app.half_way import KNOWN_CREDIT, PLAIN
from workbook.statistics import logs, pseudo_values, t_interval
from workbook.studies.record import Tables, Void
from workbook.studies.worlds.arena_outcomes import read_rule, rule_ends
from workbook.studies.worlds.outcomes import (
    fit_price_line,
    lead,
    over_worlds,
    predicted_prices,
    price_points,
    read_outcome,
    world_tables,
)

_POSITIVE, FILTERING = "positive_only", "negative_token_filtering"
# of rewards
_FREE = {"entropy": "entropy_minimization", "log p": "sequence_logp", "majority": "majority_vote"}
# of plain's gain: where a rule without rewards gets so much, a lead there is no matter of credit
VOID = 0.2


def end_difference_of_worlds(
    tables: Tables, arm: str, base: str = PLAIN, column: str = "value", study: str = "worlds"
) -> pd.Series:
    """A column at the end, one arm minus another."""
    return read_outcome(tables, column, arm, study) - read_outcome(tables, column, base, study)


def at_plain_rate(tables: Tables, arm: str) -> pd.Series:
    """Value after 300 batches, an arm at plain's rate minus plain."""
    return read_outcome(tables, "value", arm, "worlds_300_plain_rate") - read_outcome(
        tables, "value", PLAIN, "worlds_300"
    )


def share_of_plain_gain(tables: Tables, arm: str, read=read_outcome) -> pd.Series:
    """Pseudo-values of an arm's gain in value over plain's, a ratio of means over units.

    read: (tables, column, arm) -> a number per unit; `read_rule` reads the arena.
    """
    gains = [read(tables, "value", one) - read(tables, "start", one) for one in (arm, PLAIN)]
    units = pd.concat(gains, axis=1, keys=("arm", "plain")).rename_axis("seed").reset_index()
    return pseudo_values(units, lambda rows: float(rows["arm"].mean() / rows["plain"].mean()))


def lead_beyond_sharpening(tables: Tables, arm: str) -> pd.Series:
    """An arm's lead over plain; Void where sharpening alone gets VOID of plain's gain or more."""
    if (share := share_of_plain_gain(tables, _FREE["entropy"]).attrs["estimate"]) >= VOID:
        raise Void(
            f"void: entropy minimisation gains {share:.2f} of what plain gains, so a lead may be"
            " that"
        )
    return lead(tables, arm)


def lead_where_credit_is_clear(tables: Tables, rule: str, column: str = "tokens") -> pd.Series:
    """`beside_plain` of a rule of the arena; Void where known credit is not clear of plain."""
    price = t_interval(PRICE(tables))
    if price.low <= 0:
        text = f"{price.mean:.2f} [{price.low:.2f}, {price.high:.2f}]"
        raise Void(
            f"void: known credit is {text} octaves ahead of plain, which does not separate them"
        )
    return beside_plain(rule_ends(tables), rule, column)


def end_ratio(
    tables: Tables, arm: str, base: str = PLAIN, column: str = "tax", study: str = "worlds"
) -> pd.Series:
    """A column at the end, one arm over another, a ratio."""
    return logs(
        read_outcome(tables, column, arm, study) / read_outcome(tables, column, base, study)
    )


def difference_of_worlds(tables: Tables, measure, other: str = "world:third") -> pd.Series:
    """A measure here minus the same in another world, unit by unit; their policies have nothing in
    common.
    """
    return measure(tables) - measure(world_tables(other, tables.folder))


def slope(tables: Tables) -> pd.Series:
    """Pseudo-values of the law's slope, one per world."""
    trained = price_points(tables).dropna(subset="price").rename_axis("seed").reset_index()
    return pseudo_values(trained, lambda rows: fit_price_line(rows).slope)


def price_off_the_line(tables: Tables) -> pd.Series:
    """The price in a world held out minus what the line through the others says of it."""
    on_the_line = predicted_prices(tables).set_index("world")["mean"]
    return lead(tables, KNOWN_CREDIT) - on_the_line[tables.scale.removeprefix("world:")]


PRICE, AFTER_300 = (
    partial(lead, arm=KNOWN_CREDIT),
    partial(end_difference_of_worlds, study="worlds_300"),
)
# rules of other papers, our readings
NEIGHBOURS = {"P1": "prefix_credit", "P2": "ibpo", "P3": "edit_mask"}
RULES = {
    "Q2 right modes": lead,
    "Q2 tax": end_ratio,
    "Q2 pass@8": partial(end_difference_of_worlds, column="pass_at_8"),
}
MEASURES = {
    "arena": {
        **{
            claim: partial(lead_where_credit_is_clear, rule=rule)
            for claim, rule in NEIGHBOURS.items()
        },
        **{
            f"{claim} value": partial(lead_where_credit_is_clear, rule=rule, column="value")
            for claim, rule in NEIGHBOURS.items()
        },
        "Q1 random": partial(share_of_plain_gain, arm="coin_reward", read=read_rule),
    },
    "worlds@worlds": {
        "Q1": slope,
        "Q1 price": partial(over_worlds, PRICE),
        "Q1 value": partial(over_worlds, partial(end_difference_of_worlds, arm=KNOWN_CREDIT)),
    },
    "worlds": {
        "Q1 world": PRICE,
        "Q1 separates": partial(end_difference_of_worlds, arm=KNOWN_CREDIT),
        "Q1 held out": price_off_the_line,
        "Q1 forced": partial(difference_of_worlds, measure=PRICE),
        "Q1 forced value": partial(
            difference_of_worlds, measure=partial(read_outcome, column="value", arm=PLAIN)
        ),
        **{f"Q1 {name}": partial(share_of_plain_gain, arm=arm) for name, arm in _FREE.items()},
        **{
            f"{key}{name}": partial(measure, arm=arm)
            for name, arm in (("", _POSITIVE), (", filtering", FILTERING))
            for key, measure in RULES.items()
        },
        "Q2": partial(lead_beyond_sharpening, arm=_POSITIVE),
        "Q2 filtering": partial(lead_beyond_sharpening, arm=FILTERING),
    },
    "worlds_300": {
        "Q1 300": partial(AFTER_300, arm=KNOWN_CREDIT),
        "Q1 300 entropy": partial(AFTER_300, arm=_FREE["entropy"]),
        "Q2 300": partial(AFTER_300, arm=_POSITIVE),
        "Q2 300 filtering": partial(AFTER_300, arm=FILTERING),
        "Q2 300 pass@8": partial(AFTER_300, arm=_POSITIVE, column="pass_at_8"),
    },
    "worlds_300_plain_rate": {
        "Q1 300 plain rate": partial(at_plain_rate, arm=KNOWN_CREDIT),
        "Q2 300 plain rate": partial(at_plain_rate, arm=_POSITIVE),
        "Q2 300 filtering, plain rate": partial(at_plain_rate, arm=FILTERING),
    },
}
