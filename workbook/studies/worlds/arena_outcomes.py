"""The arena's table: what each credit rule comes to in a world, at its own rate, beside plain group
credit.

Rules are ranked by the value that they end at, with their tax beside it: words without credit that
moved. They are not ranked by how soon they are half-way. Half-way rewards sharpening: a rule that
never sees a reward, or plain with some of it, can be there before known credit is, and end lower or
at more tax.

The rules that the study `worlds` trains stand here with its runs, plain with an entropy penalty
with those of `arena_mix`, all others with those of `arena`. Half-way is that of `worlds_rates`. A
rule that samples more itself is read where its unit's budget is spent, the most tokens that any run
of `worlds` sampled there: in between two readings on a straight line.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache

import numpy as np
import pandas as pd

from workbook.statistics import t_interval
from workbook.studies.record import NotMeasured, Tables
from workbook.studies.worlds.outcomes import (
    ENDS,
    EXACT,
    PLAIN,
    best_attainable,
    own_rates,
    run_ends,
    world_name,
    world_tables,
)

RULES = (
    *(
        "grpo",
        "reinforce",
        "negative_only",
        "prefix_credit",
        "lambda_grpo",
        "gtpo",
        "nthr",
        "token_hidden_reward",
    ),
    *(
        "advantage_reweighting",
        "lopti",
        "w_reinforce",
        "balanced_aggregation",
        "ibpo",
        "worst_token_reset",
    ),
)
RANDOM = "coin_reward"  # runs at plain's own rate
MIX = "entropy_penalty"  # plain and some entropy minimisation, at plain's own rate
SCALES = ("world:plain", "world:third")  # likeliest words right, and a third of them wrong
# of `run_ends`, in which rules are laid beside plain
COLUMNS = ("value", "tax", "pass_at_8", "tokens")
RATIOS = ("tax",)  # of them
BESIDE = {  # what a lead is read beside: {rule: what the headline calls it}
    EXACT: "known credit",
    "entropy_minimization": "entropy minimisation, which sees no reward,",
    MIX: "plain with a tenth of entropy minimisation",
}
# sources of a table's rows; the last: of all its units
YOURS, COMMITTED, MEASURED = "yours", "committed", "measured"


def within(runs: pd.DataFrame, budgets: pd.Series, unit: str = "seed") -> pd.DataFrame:
    """Runs up to their units' budgets of sampled tokens, the last reading of a longer one on a
    straight line there.
    """
    parts = []
    for (name, *_), run in runs.groupby([unit, "arm", "lr"], sort=False):
        if run["sampled_tokens"].iloc[-1] > (budget := budgets[name]):
            tokens = run["sampled_tokens"]
            end = {
                column: np.interp(budget, tokens, run[column])
                for column in ("batch", "sampled_tokens", *ENDS)
            }
            run = pd.concat([run[tokens < budget], run.tail(1).assign(**end)])
        parts.append(run)
    return pd.concat(parts, ignore_index=True)


def most_tokens(runs: pd.DataFrame, unit: str = "seed") -> pd.Series:
    """The budget of each unit: the most tokens that any of its runs sampled."""
    return runs.groupby(unit)["sampled_tokens"].max()


@lru_cache(maxsize=64)
def rule_rates(tables: Tables) -> pd.DataFrame:
    """`own_rates` of every rule of a world: those of `worlds_rates`, and the arena's with their
    budget and half-way.
    """
    known = tables["worlds_rates/runs"]
    own = within(tables["arena_rates/runs"], most_tokens(known, "policy"), "policy")
    return own_rates(pd.concat([known, own], ignore_index=True), best_attainable(known))


@lru_cache(maxsize=64)
def rule_ends(tables: Tables, whole: bool = True) -> pd.DataFrame:
    """`run_ends` of a world's units, every rule at its own rate, with the column lr; not whole: of
    `worlds`, and of `arena_mix` where it is measured."""
    known = tables["worlds/runs"]
    parts = [known, tables["arena/runs"]] if whole else [known]
    with suppress(NotMeasured):
        parts.append(tables["arena_mix/runs"])
    runs = within(pd.concat(parts, ignore_index=True), most_tokens(known))
    return run_ends(runs, best_attainable(tables["worlds_rates/runs"]), by=("arm", "lr"))


def read_rule(tables: Tables, column: str, rule: str) -> pd.Series:
    """A column of `rule_ends` of one rule, one number per unit."""
    ends = rule_ends(tables)
    return ends[ends["arm"] == rule].set_index("seed")[column].rename_axis("unit")


def beside_plain(ends: pd.DataFrame, rule: str, column: str = "tokens") -> pd.Series:
    """What a rule ends at beside plain, one number per unit.

    tokens: octaves of sampled tokens to half-way that it needs less; tax: the logarithm of a ratio;
    any other column of `run_ends`: the difference.
    """
    units = ends.pivot(index="seed", columns="arm", values=column).rename_axis("unit")
    own, plain = units[rule], units[PLAIN]
    ratio = (own / plain).where(own > 0)  # none of a rule that moved no style word
    if column == "tokens":
        return np.log2(1 / ratio).dropna()
    values = (np.log(ratio) if column in RATIOS else own - plain).dropna()
    values.attrs["log"] = column in RATIOS
    return values


def arena_table(ends: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """A row per world and rule: lr, units, end (mean value there), `censored` (share of units that
    were never half-way) and for each of COLUMNS, beside plain, mean, low and high (NaN where there
    are none).

    ends: {scale: its `rule_ends`}. The rule that ends highest in the last world comes first, in
    every world. tokens, the octaves to half-way, count a unit that was never there with its budget:
    where all are censored, or all of plain's, the number is that of the budget and says nothing of
    the rule.
    """
    rows = []
    for scale, table in ends.items():
        for rule, own in table.groupby("arm", sort=False):
            row = {
                "world": world_name(scale),
                "rule": rule,
                "lr": own["lr"].median(),
                "units": len(own),
            }
            row |= {"end": own["value"].mean(), "censored": own["censored"].mean()}
            for column in COLUMNS:
                values = beside_plain(table, rule, column)
                spread = t_interval(values) if len(values) > 1 else (values.mean(), np.nan, np.nan)
                spread = np.exp(spread) if column in RATIOS else spread
                row |= dict(zip((column, f"{column}_low", f"{column}_high"), spread, strict=True))
            rows.append(row)
    return in_order(pd.DataFrame(rows))


def in_order(table: pd.DataFrame) -> pd.DataFrame:
    """Rows world by world, rules as the last world has them: by the value at the end, equal ones by
    the lower tax.
    """
    last = table[table["world"] == table["world"].iloc[-1]].sort_values(
        ["value", "tax"], ascending=[False, True]
    )
    places = {"world": {name: k for k, name in enumerate(table["world"].drop_duplicates())}}
    places["rule"] = {
        name: k for k, name in enumerate(dict.fromkeys([*last["rule"], *table["rule"]]))
    }
    return table.sort_values(
        ["world", "rule"], key=lambda names: names.map(places[names.name]), ignore_index=True
    )


def measured_table(scales: Sequence[str] = SCALES) -> pd.DataFrame:
    """The `arena_table` of the committed studies; without rules of RULES as long as not every world
    has theirs.

    Raises NotMeasured, naming the command, where a world lacks the runs of `worlds`.
    """
    tables, whole = {scale: world_tables(scale, None) for scale in scales}, True
    try:
        _ = [one["arena/runs"] for one in tables.values()]
    except NotMeasured:
        whole = False
    return arena_table({scale: rule_ends(one, whole) for scale, one in tables.items()}).assign(
        source=MEASURED
    )


def short_name(rule: str) -> str:
    """A rule's name without the path of its file."""
    return rule.rpartition(":")[2]


def headline(table: pd.DataFrame) -> str:
    """Whether the arena can tell: what its controls end at beside plain, and at which tax, by
    world; which rules wait to be measured."""
    measured = table[table["source"] == MEASURED]
    sentences = []
    for world, rows in (table if measured.empty else measured).groupby("world", sort=False):
        of_rule = rows.set_index("rule").to_dict("index")
        beside = [
            f"{what} {_end(of_rule[rule])}" for rule, what in BESIDE.items() if rule in of_rule
        ]
        sentences.append(
            f"In world {world}, beside plain group advantages at the end: {'; '.join(beside)}."
        )
    missing = {*RULES, RANDOM, MIX} - set(table["rule"])
    if len(measured) and missing:
        names = ", ".join(rule for rule in (*RULES, RANDOM, MIX) if rule in missing)
        commands = "`python -m workbook measure arena_rates`, then `arena` and `arena_mix`"
        sentences.append(f"Not measured yet: {names} ({commands}).")
    return " ".join(sentences)


def _end(row: dict) -> str:
    """A row's end value minus plain's, with its interval, and its tax."""
    interval = f"[{row['value_low']:+.3f}, {row['value_high']:+.3f}]"
    return f"{row['value']:+.3f} {interval} in value at {row['tax']:.2g} times plain's tax"
