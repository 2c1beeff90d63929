"""The arena's table: what each credit rule comes to in a world, at its own rate, beside plain group credit.

The rules that the study `worlds` trains stand here with its runs, all others with those of `arena`. Half-way is that of
`worlds_rates`. A rule that samples more itself is read where its unit's budget is spent, the most tokens that any run
of `worlds` sampled there: in between two readings on a straight line.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import pandas as pd

from workbook.statistics import t_interval
from workbook.studies.record import NotMeasured, Tables
from workbook.topics.worlds.outcomes import (
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
    *("grpo", "reinforce", "negative_only", "prefix_credit", "lambda_grpo", "gtpo", "nthr", "token_hidden_reward"),
    *("advantage_reweighting", "lopti", "w_reinforce", "balanced_aggregation", "ibpo", "worst_token_reset"),
)
RANDOM = "coin_reward"  # runs at plain's own rate
SCALES = ("world:plain", "world:third")  # likeliest words right, and a third of them wrong
COLUMNS = ("tokens", "value", "tax", "pass_at_8")  # of `run_ends`, in which rules are laid beside plain
RATIOS = ("tax",)  # of them
YOURS, MEASURED = "yours", "measured"  # sources of a table's rows


def within(runs: pd.DataFrame, budgets: pd.Series, unit: str = "seed") -> pd.DataFrame:
    """Runs up to their units' budgets of sampled tokens, the last reading of a longer one on a straight line there."""
    parts = []
    for (name, *_), run in runs.groupby([unit, "arm", "lr"], sort=False):
        if run["sampled_tokens"].iloc[-1] > (budget := budgets[name]):
            tokens = run["sampled_tokens"]
            end = {column: np.interp(budget, tokens, run[column]) for column in ("batch", "sampled_tokens", *ENDS)}
            run = pd.concat([run[tokens < budget], run.tail(1).assign(**end)])
        parts.append(run)
    return pd.concat(parts, ignore_index=True)


def most_tokens(runs: pd.DataFrame, unit: str = "seed") -> pd.Series:
    """The budget of each unit: the most tokens that any of its runs sampled."""
    return runs.groupby(unit)["sampled_tokens"].max()


@lru_cache(maxsize=64)
def rule_rates(tables: Tables) -> pd.DataFrame:
    """`own_rates` of every rule of a world: those of `worlds_rates`, and the arena's with their budget and half-way."""
    known = tables["worlds_rates/runs"]
    own = within(tables["arena_rates/runs"], most_tokens(known, "policy"), "policy")
    return own_rates(pd.concat([known, own], ignore_index=True), best_attainable(known))


@lru_cache(maxsize=64)
def rule_ends(tables: Tables, whole: bool = True) -> pd.DataFrame:
    """`run_ends` of a world's units, every rule at its own rate, with the column lr; not whole: of `worlds` alone."""
    runs = known = tables["worlds/runs"]
    if whole:
        runs = pd.concat([known, within(tables["arena/runs"], most_tokens(known))], ignore_index=True)
    return run_ends(runs, best_attainable(tables["worlds_rates/runs"]), by=("arm", "lr"))


def read_rule(tables: Tables, column: str, rule: str) -> pd.Series:
    """A column of `rule_ends` of one rule, one number per unit."""
    ends = rule_ends(tables)
    return ends[ends["arm"] == rule].set_index("seed")[column].rename_axis("unit")


def beside_plain(ends: pd.DataFrame, rule: str, column: str = "tokens") -> pd.Series:
    """What a rule ends at beside plain, one number per unit.

    tokens: octaves of sampled tokens to half-way that it needs less; tax: the logarithm of a ratio; any other column of
    `run_ends`: the difference.
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
    """A row per world and rule: lr, units, end (mean value there), `censored` (share of units that were never half-way)
    and for each of COLUMNS, beside plain, mean, low and high (NaN where there are none).

    ends: {scale: its `rule_ends`}. The rule that is half-way first in the last world comes first, in every world.
    """
    rows = []
    for scale, table in ends.items():
        for rule, own in table.groupby("arm", sort=False):
            row = {"world": world_name(scale), "rule": rule, "lr": own["lr"].median(), "units": len(own)}
            row |= {"end": own["value"].mean(), "censored": own["censored"].mean()}
            for column in COLUMNS:
                values = beside_plain(table, rule, column)
                spread = t_interval(values) if len(values) > 1 else (values.mean(), np.nan, np.nan)
                spread = np.exp(spread) if column in RATIOS else spread
                row |= dict(zip((column, f"{column}_low", f"{column}_high"), spread, strict=True))
            rows.append(row)
    return in_order(pd.DataFrame(rows))


def in_order(table: pd.DataFrame) -> pd.DataFrame:
    """Rows world by world, rules as the last world has them: by tokens to half-way, and equal ones by the value."""
    last = table[table["world"] == table["world"].iloc[-1]].sort_values(["tokens", "value"], ascending=False)
    places = {"world": {name: k for k, name in enumerate(table["world"].drop_duplicates())}}
    places["rule"] = {name: k for k, name in enumerate(dict.fromkeys([*last["rule"], *table["rule"]]))}
    return table.sort_values(["world", "rule"], key=lambda names: names.map(places[names.name]), ignore_index=True)


def measured_table(scales: Sequence[str] = SCALES) -> pd.DataFrame:
    """The `arena_table` of the committed studies; without rules of RULES as long as not every world has theirs.

    Raises NotMeasured, naming the command, where a world lacks the runs of `worlds`.
    """
    tables, whole = {scale: world_tables(scale, None) for scale in scales}, True
    try:
        _ = [one["arena/runs"] for one in tables.values()]
    except NotMeasured:
        whole = False
    return arena_table({scale: rule_ends(one, whole) for scale, one in tables.items()}).assign(source=MEASURED)


def short_name(rule: str) -> str:
    """A rule's name without the path of its file."""
    return rule.rpartition(":")[2]


def headline(table: pd.DataFrame) -> str:
    """Whether the arena can tell: what known credit and a rule without rewards come to beside plain, by world; which
    rules wait to be measured."""
    measured = table[table["source"] == MEASURED]
    texts = []
    for world, rows in (table if measured.empty else measured).groupby("world", sort=False):
        known, free = (rows.set_index("rule").loc[rule] for rule in (EXACT, "entropy_minimization"))
        octaves = f"{known['tokens']:.2f} [{known['tokens_low']:.2f}, {known['tokens_high']:.2f}] octaves of tokens"
        value = f"{free['value']:+.3f} [{free['value_low']:+.3f}, {free['value_high']:+.3f}]"
        if (known[["tokens", "tokens_low", "tokens_high"]] == 0).all():  # all runs count with all of their tokens
            octaves = "not seen (half-way was not reached)"
        texts.append(f"{world}, known credit is {octaves} ahead of plain group advantages, and ")
        texts[-1] += f"entropy minimisation, which sees no reward, differs from them in final value by {value}."
    sentences, missing = [f"In world {text}" for text in texts], {*RULES, RANDOM} - set(table["rule"])
    if len(measured) and missing:
        names = ", ".join(rule for rule in (*RULES, RANDOM) if rule in missing)
        sentences.append(f"Not measured yet: {names} (`python -m workbook measure arena_rates`, then `arena`).")
    return " ".join(sentences)
