"""The arena: a credit rule of your own beside plain group advantages, known credit, and rules that
see no reward, in two worlds.

    python -m workbook arena --rule own:credit.py:my_rule

    mine = compare_rule("own:credit.py:my_rule")    trains it: minutes on two cores, resumable
    arena_chart(add_to_table(mine))                 and places it among all measured rules

Rules are ranked by the value that they end at, with their tax beside it: words without credit that
moved. They are not ranked by how soon they are half-way. Half-way rewards sharpening: a rule that
never sees a reward, or plain with some of it, can be there before known credit is, and end lower or
at more tax.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import joblib
import numpy as np
import pandas as pd

from workbook.app.half_way import KNOWN_CREDIT, PLAIN, most_tokens, run_ends, within
from workbook.app.world_runs import BATCHES, WorldUnit, run_rule
from workbook.files import write_parquet
from workbook.messages import InvalidValue, progress, reporting
from workbook.statistics import t_interval
from workbook.training.credit_calls import credit_call
from workbook.views.measured import measured_table

WORLDS = ("plain", "third")  # likeliest words right, and a third of them wrong
MIX = "entropy_penalty"  # plain and some entropy minimisation, at plain's own rate
BESIDE = {  # what a lead is read beside: {rule: what the headline calls it}
    KNOWN_CREDIT: "known credit",
    "entropy_minimization": "entropy minimisation, which sees no reward,",
    MIX: "plain with a tenth of entropy minimisation",
}
CONTROLS = (PLAIN, *BESIDE)  # what stands beside a rule
# of a comparison: units, and the rate of all where a world's are not measured
UNITS, UNTUNED = 6, 3e-4
# of a unit's exact start value, in reward: another CPU's last digits, no other policy
START_TOLERANCE = 1e-4
# of `run_ends`, in which rules are laid beside plain
COLUMNS = ("value", "tax", "pass_at_8", "tokens")
RATIOS = ("tax",)  # of them
# sources of a table's rows; the last: of all its units
YOURS, COMMITTED, MEASURED = "yours", "committed", "measured"


def compare_rule(
    rule: str,
    units: int = UNITS,
    folder: str | Path = "runs/arena",
    show: Callable[[str], None] | None = None,
    batches: int = BATCHES,
    worlds: Sequence[str] = WORLDS,
    jobs: int = 2,
    retrain_controls: bool = False,
) -> pd.DataFrame:
    """`arena_table` of a rule and of CONTROLS over the first units of each world.

    Its source is YOURS where a rule was trained here, and COMMITTED where its runs were read.

    Every rule has its committed own rate, a rule that has none plain's. Yours is trained here. A
    control is read from the committed runs (`committed_run`), which had the same policies, prompts,
    random numbers and rates; it is trained where there are none. What is trained is kept in
    <folder>/<world>/unit=<k>/<rule>-<digest> (of rate, batches and the rule's source), and read
    again.

    rule: a name of `estimators`, or own:<file.py>:<function>.  show: called with a line per unit,
    and per world whose rates are not measured or whose controls are read.  batches: fewer than the
    committed runs'.  jobs: units trained at a time, each on one core.  retrain_controls: train the
    controls here, too. Raises ValueError, in one sentence, for a rule that can't be called, for
    fewer than two units, where the policies of a world are not there, and where a unit does not
    start at the value of the committed runs.
    """
    if rule == "known_credit":
        rule = KNOWN_CREDIT
    call, show = credit_call(rule), show or (lambda line: None)
    if units < 2:
        raise InvalidValue("units", units, "2 or more: an interval is over units")
    if Path(folder).is_file():
        raise InvalidValue("folder", str(folder), "the path of a folder")
    sources = dict.fromkeys(CONTROLS, "") | {rule: repr(call and call.files)}
    todo, best, trained = [], {}, set()
    for world in worlds:
        _ = WorldUnit(world).policy  # or a sentence, before anything is trained
        rates, best[world] = _committed_rates(world, sources)
        if best[world] is None:
            show(
                f"{world} has no measured rates: every rule has {UNTUNED:g}, half-way is to the"
                " best value here."
            )
        reused = 0
        for unit in range(units):
            files, known = {}, {}
            for name, source in sources.items():
                own = name == rule or retrain_controls
                read = None if own else committed_run(world, unit, name, rates[name], batches)
                if read is not None:
                    known[name] = read
                    continue
                text = repr((rates[name], batches, source))
                digest = hashlib.sha256(text.encode()).hexdigest()[:8]
                place = Path(folder) / world / f"unit={unit}"
                files[name] = place / f"{short_name(name)}-{digest}.parquet"
                trained.add((world, name))
            reused += len(known)
            todo.append(joblib.delayed(_trained)(world, unit, rates, batches, files, known))
        if reused:
            show(
                f"{world}: {reused} runs of controls are the committed ones, and not trained again."
            )
    finished = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")(todo)
    runs: dict[str, list[pd.DataFrame]] = {world: [] for world in worlds}
    for world, unit, table in progress(finished, "units", len(todo)):
        ends = table.groupby("arm", sort=False)["value"].agg(["first", "last"])
        values = ", ".join(
            f"{last:.3f} ({short_name(name)})" for name, last in ends["last"].items()
        )
        start = ends["first"].iloc[0]
        show(f"{world}, unit {unit}: exact held-out value {start:.3f} to {values}")
        runs[world].append(table.assign(seed=unit))
    table = arena_table({world: _ends(parts, best[world]) for world, parts in runs.items()})
    rows = zip(table["world"], table["rule"], strict=True)
    return table.assign(source=[YOURS if row in trained else COMMITTED for row in rows])


def committed_run(
    world: str, unit: int, rule: str, lr: float, batches: int = BATCHES
) -> pd.DataFrame | None:
    """The committed run of a control from a unit's policy at a rate, up to so many batches.

    A shorter run is the beginning of a longer one: prompts and random numbers of a batch depend on
    its number alone. None where no such run is committed, or none that was read after so many
    batches.
    """
    runs = measured_table("worlds/controls")
    own = (
        (runs["world"] == world)
        & (runs["seed"] == unit)
        & (runs["arm"] == rule)
        & np.isclose(runs["lr"], lr, rtol=1e-9, atol=0.0)
    )
    run = runs[own & (runs["batch"] <= batches)].drop(columns="seed")
    return run if len(run) and run["batch"].iloc[-1] == batches else None


def _committed_rates(world: str, rules: Iterable[str]) -> tuple[dict[str, float], float | None]:
    """The committed rates of rules in a world, and its best attainable value; UNTUNED and None
    where it has none.
    """
    rates = measured_table("worlds/rates")
    rates = rates[rates["world"] == world].set_index("rule")
    if rates.empty:
        return dict.fromkeys(rules, UNTUNED), None
    own = rates["lr"]
    return {rule: float(own.get(rule, own[PLAIN])) for rule in rules}, float(rates["best"].iloc[0])


def _trained(
    world: str,
    unit: int,
    rates: dict[str, float],
    batches: int,
    files: dict[str, Path],
    known: dict[str, pd.DataFrame],
) -> tuple[str, int, pd.DataFrame]:
    """(world, unit, the unit's runs): those of `known`, and those of `files`, trained first where
    they are not kept.
    """
    policy = WorldUnit(world, unit)
    with reporting(lambda *_: None):  # several at a time have no room for bars
        for rule, path in files.items():
            if not path.exists():
                write_parquet(path, run_rule(policy, rule, rates[rule], batches))
    runs = [*known.values(), *map(pd.read_parquet, files.values())]
    starts = [float(run["value"].iloc[0]) for run in runs]
    if max(starts) - min(starts) > START_TOLERANCE:
        raise ValueError(
            f"{world}, unit {unit} starts at a value of {starts[-1]:.4f} here and at"
            f" {starts[0]:.4f} in the committed runs, so its policy or prompts are not theirs:"
            " train the controls here, with --retrain-controls."
        )
    return world, unit, pd.concat(runs, ignore_index=True)


def _ends(parts: list[pd.DataFrame], best: float | None) -> pd.DataFrame:
    """`run_ends` of a comparison's units; best: the attainable value, None for the highest mean of
    a rule here.
    """
    runs = pd.concat(parts, ignore_index=True)
    runs = within(runs, most_tokens(runs[runs["arm"].isin(CONTROLS)]))
    best = best or runs.groupby(["arm", "batch"])["value"].mean().max()
    return run_ends(runs, best, by=("arm", "lr"))


def add_to_table(own: pd.DataFrame) -> pd.DataFrame:
    """The rows of `compare_rule` among the measured ones; what stands in a row is to plain of its
    source.

    Of the comparison only what was trained here, and no second row of plain: committed runs stand
    among the measured.
    """
    new = own[(own["rule"] != PLAIN) & (own["source"] == YOURS)]
    return in_order(pd.concat([measured_table("worlds/arena"), new], ignore_index=True))


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

    ends: {world: `run_ends` of its units}. The rule that ends highest in the last world comes
    first, in every world. tokens, the octaves to half-way, count a unit that was never there with
    its budget: where all are censored, or all of plain's, the number is that of the budget and says
    nothing of the rule.
    """
    rows = []
    for world, table in ends.items():
        for rule, own in table.groupby("arm", sort=False):
            row = {
                "world": world,
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


def short_name(rule: str) -> str:
    """A rule's name without the path of its file."""
    return rule.rpartition(":")[2]


def arena_headline(table: pd.DataFrame) -> str:
    """Say whether the arena can tell: what its controls end at beside plain, and at which tax."""
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
    return " ".join(sentences)


def _end(row: dict) -> str:
    """A row's end value minus plain's, with its interval, and its tax."""
    interval = f"[{row['value_low']:+.3f}, {row['value_high']:+.3f}]"
    return f"{row['value']:+.3f} {interval} in value at {row['tax']:.2g} times plain's tax"
