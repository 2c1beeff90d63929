"""The ledger: every measurement of every claim, judged by its registration and corrected for the number of claims."""

import hashlib
import json
import pkgutil
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd

from workbook import topics
from workbook.claims import inference
from workbook.claims.inference import DESCRIBED, NOT_MEASURED, NOT_TESTABLE, Judged, adjusted, conclude, judge_units
from workbook.places import data_path, parse_yaml
from workbook.studies.record import Claim, Measurement, NotMeasured, Tables, Void, check_results
from workbook.studies.registration import ROLES, Outcome, looked_after, named_after, read_registration
from workbook.studies.registration import SCALES as STUDIED
from workbook.training.messages import one_line

SCALES = tuple(sorted((name for name in STUDIED if name != "tiny"), key=lambda name: name != "family"))
REMADE = "build/results"  # where the printed commands write, so that what is committed stays as it is
NESTED = ("added", "looked", "policy_of", "values", "clean", "commits")  # columns of lists and dicts
STALE = "data/results has changed since the ledger was kept; `python -m workbook claims --keep` computes it anew."
MEANT = {"H2 all weights": "H2"}  # rows of the same: what they go on from, where it is not the sentence above
SIGNS = {  # before an outcome; a dash before any other
    "supported": "✓",
    "contradicted": "✗",
    "inconclusive": "?",
    **dict.fromkeys(("equivalent to none", "not zero, too small to matter here", "at its threshold"), "≈"),
}
JUDGED = (
    *("claim", "role", "study", "key", "scale", "measured", "unit", "threshold", "toward", "smallest_effect"),
    *("mean", "low", "high", "units", "registered_units", "dropped", "added", "looked", "outcome", "here", "reason"),
    *("p", "q", "q_all", "p_equivalent", "p_flips", "detectable", "without_low", "without_high", "decided_by"),
    *("policies", "p_units", "policy_of"),
    *("sd", "values", "log", "predicted_low", "predicted_high", "positive_control", "changed"),
    *("paper_effect", "place", "comparable", "testable", "source", "seen_before", "registration", "clean", "commits"),
)
COLUMNS = ["claim", "words", "paper", "statement", "falsifier", *JUDGED[1:], "command"]


# --- the records of all topics


def stated() -> dict[str, dict[str, str]]:
    """{id: what data/book/claims.yaml states of a claim}."""
    return parse_yaml(data_path("book", "claims.yaml").read_text(encoding="utf-8"))


def _collect() -> dict[str, Claim]:
    """{id: claim}: what it states, with the measurements of every module of a topic whose name ends in claims."""
    rows: dict[str, list[Measurement]] = {}
    for module in pkgutil.walk_packages(topics.__path__, f"{topics.__name__}."):
        if module.name.endswith("claims"):
            for place, measures in import_module(module.name).MEASURES.items():
                study, _, scale = place.partition("@")
                for key, measure in measures.items():
                    rows.setdefault(key.split()[0], []).append(Measurement(study, key, measure, scale or None))
    for id, words in (claims := stated()).items():  # with the threshold that the claim's primary outcome registered
        primary = next(row.outcome() for row in rows[id] if row.key == id)
        words["refuted_if"] = words["refuted_if"].format(threshold=primary.threshold)
    return {id: Claim(id, **words, rows=rows[id]) for id, words in claims.items()}


class _Claims(Mapping):
    """{id: claim}, collected when one is first asked for: a kept ledger is read without all that measures."""

    @cached_property
    def _records(self) -> dict[str, Claim]:
        return _collect()

    def __getitem__(self, id: str) -> Claim:
        return self._records[id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)


CLAIMS = _Claims()


# --- one row a measurement


def measurements(
    claims: str | Iterable[str | Claim], tables: Tables, roles: Sequence[str] | None = None
) -> pd.DataFrame:
    """Every measurement of some claims at one scale, by their ids or records: a row each, with the columns `JUDGED`.

    Outcomes of primary rows do not yet know of one another: `ledger` corrects them for their number.  roles: wanted.

    Columns: measured (the sentence), toward (+1 if the claim lies above the threshold), dropped (units without a
    number), added (units beyond the registered count, which decide nothing), looked (units measured after the outcome
    of earlier ones was seen), here (the outcome if the setting were comparable), p ... sd: see `inference.Judged`;
    values: {unit: number}; policy_of: {unit: policy}; log: whether those are logarithms; registration ("matches",
    "superseded", "changed since"), clean (whether all tables came from an unmodified tree, None: not known).
    """
    rows = []
    for claim in [claims] if isinstance(claims, str) else claims:
        record = claim if isinstance(claim, Claim) else CLAIMS[claim]
        for measurement in record.rows:
            if measurement.scale in (None, tables.scale):
                rows += _measured(measurement, tables, roles)
    return pd.DataFrame(rows, columns=JUDGED).drop_duplicates(["claim", "study", "key"], ignore_index=True)


def _measured(measurement: Measurement, tables: Tables, roles) -> list[dict]:
    """The row of one measurement, or none."""
    outcome, registration = measurement.outcome(tables.folder), measurement.registration(tables.folder)
    asked = outcome is not None and (roles is None or outcome.role in roles)
    if not asked or not registration.judges(outcome, tables.scale):
        return []
    count = registration.units[tables.scale]
    names = ("claim", "unit", "place", "comparable", "testable", "source", "seen_before", "positive_control", "changed")
    row = _missing("") | {name: getattr(outcome, name) for name in (*names, "threshold", "toward", "smallest_effect")}
    row |= {"measured": outcome.sentence, "paper_effect": outcome.paper, "role": outcome.role}
    row |= {"study": measurement.study, "key": measurement.key, "scale": tables.scale, "registered_units": count}
    row["predicted_low"], row["predicted_high"] = outcome.predicted
    if not outcome.positive_control and (control := named_after(measurement.study, tables.folder).get(measurement.key)):
        row |= {"positive_control": control, "changed": "changed after the data were seen: its control was named then"}
    try:
        measured = measurement.measure(tables.registered(measurement.study, count))
    except Void as void:
        return [row | {"outcome": NOT_TESTABLE, "here": NOT_TESTABLE, "reason": str(void)}]
    except (NotMeasured, ValueError) as missing:  # the latter: the tables hold too little
        return [row | {"reason": str(missing)}]
    # which tree, registration and policy the units came from
    units = tables.provenance(measurement.study)
    own = units[units["unit"] < count]
    modified = set(own["modified"])
    row["clean"] = False if True in modified else True if modified == {False} else None
    row["commits"] = tuple(sorted(set(own["commit"].dropna())))
    known = {registration.hash: "matches", registration.supersedes: "superseded"}
    under = {known.get(digest, "changed since") for digest in own["registration"]} or {"changed since"}
    row["registration"] = min(under - {"matches"}, default="matches")
    row["added"] = tuple(units.loc[units["unit"] >= count, "unit"].unique().tolist())
    if (seen := looked_after(measurement.study, tables.folder)) is not None:
        row["looked"] = tuple(unit for unit in units["unit"].unique().tolist() if seen <= unit < count)
    policies = units.drop_duplicates("unit").set_index("unit")["policy"]
    return [row | _judged(measured, outcome, units["unit"].nunique() - len(row["added"]), policies)]


def _missing(reason: str) -> dict:
    """What a row has that was not measured."""
    nothing = dict.fromkeys((*Judged._fields, "q", "q_all"), np.nan)
    nothing |= dict.fromkeys(("units", "registered_units", "dropped"), 0) | dict.fromkeys(("added", "looked"), ())
    nothing |= {"values": {}, "policy_of": {}, "log": False, "registration": "", "clean": None, "commits": ()}
    return nothing | {"outcome": NOT_MEASURED, "here": NOT_MEASURED, "reason": reason}


def _judged(values: pd.Series, outcome: Outcome, measured: int, policies: pd.Series) -> dict:
    """What units say; measured: how many there are, with a number or without."""
    kept = values[np.isfinite(values.to_numpy(dtype=float))].sort_index()
    if kept.index.has_duplicates:
        raise ValueError(f"{outcome.claim}: {outcome.sentence}: its measure gives a unit more than one number.")
    kept.attrs = dict(values.attrs)
    facts = {"units": len(kept), "dropped": max(measured - len(kept), 0), "log": bool(values.attrs.get("log"))}
    facts["values"] = {int(unit): float(value) for unit, value in kept.items()}
    known = policies.reindex(kept.index).dropna()
    facts["policy_of"] = {int(unit): str(policy) for unit, policy in known.items()}
    if kept.empty:
        return facts | {"reason": "no unit has a number"}
    judged = judge_units(kept, outcome, policies)._asdict()
    judged["here"] = judged["outcome"] = DESCRIBED if outcome.role == DESCRIBED else judged["outcome"]
    return judged | facts


# --- all rows


def ledger(
    scale: str | None = None,
    folder: str | Path | None = None,
    claims: Sequence[str] | None = None,
    described: bool = True,
) -> pd.DataFrame:
    """Every measurement of `CLAIMS` at a scale, or at all of `SCALES`: a row each, primary ones of a claim first.

    Columns: claim, words (the statement in at most eight), paper, statement, falsifier (what would refute it), those of
    `measurements`, and command, which recomputes the row.  The Benjamini-Hochberg corrections are over all primary rows
    that can be judged (q), and over all rows (q_all), whichever are asked for.  folder: of the tables, instead of
    data/results; rows that it does not hold are corrected for as they are there.  claims: those wanted.  described:
    also the rows that decide nothing.

    Raises ValueError for an unknown scale, and for a folder that holds no tables or one that can't be read.
    """
    if scale is not None and scale not in SCALES:
        raise ValueError(f"scale={scale!r} is unknown: choose one of {', '.join(SCALES)}.")
    claims = list(CLAIMS if claims is None else claims)
    if folder is not None:
        check_results(folder)
    try:
        rows, every = _judged_rows(claims, [scale] if scale else SCALES, folder, described)
    except (LookupError, TypeError, NameError, AttributeError) as error:
        if folder is None:
            raise
        raise ValueError(f"A table in {folder} is not as its study makes it: {one_line(error)}.") from error
    q, q_all = corrected(every, ["primary"]), corrected(every, ROLES)
    controls = {(row["scale"], row["key"]): row for row in every.values()}
    for row in rows:
        row["q"], row["q_all"] = q.get(_place(row), np.nan), q_all.get(_place(row), np.nan)
        concluded = conclude(row, len(q), controls.get((row["scale"], row["positive_control"])))
        row |= dict(zip(("outcome", "here", "reason"), concluded, strict=True))
    reason = f"no primary outcome is registered {f'at scale {scale!r}' if scale else 'of this claim'}"
    for claim in set(claims) - {row["claim"] for row in rows if row["role"] == "primary"}:
        row = _missing(reason) | {"role": "primary", "scale": scale or SCALES[0], "study": "", "key": ""}
        rows.append(row | {"claim": claim})
    return _complete(pd.DataFrame(rows, columns=JUDGED))


def _place(row: dict) -> tuple[str, str, str]:
    return row["scale"], row["study"], row["key"]


def _judged_rows(claims, scales, folder, described: bool) -> tuple[list[dict], dict[tuple, dict]]:
    """The rows of some claims at some scales, and those of all claims that decide something, by their `_place`."""
    tables = {name: Tables(name, folder) for name in SCALES}

    def rows(claims, tables, roles) -> list[dict]:
        return [row for part in tables for row in measurements(claims, part, roles).to_dict("records")]

    deciding = [role for role in ROLES if role != DESCRIBED]
    own = rows(CLAIMS, tables.values(), deciding)
    every = {_place(row): row for row in own}
    if folder is not None:  # what this folder does not hold is corrected for as it is in data/results
        every = {_place(row): row for row in rows(CLAIMS, map(Tables, SCALES), deciding)}
        every |= {_place(row): row for row in own if np.isfinite(row["p"])}
    wanted = [row for row in own if row["claim"] in claims and row["scale"] in scales]
    return [*wanted, *rows(claims, [tables[name] for name in scales], [DESCRIBED] if described else [])], every


def corrected(rows: dict[tuple, dict], roles: Sequence[str]) -> dict[tuple, float]:
    """Benjamini-Hochberg q of those rows of some roles that can be judged, by their `_place`."""
    p = {
        place: row["p"]
        for place, row in rows.items()
        if row["role"] in roles
        and np.isfinite(row["p"])
        and not any(row[name].lower().startswith("no") for name in ("testable", "comparable"))
    }
    return dict(zip(p, adjusted(np.array(list(p.values()), dtype=float)), strict=True))


def _complete(table: pd.DataFrame) -> pd.DataFrame:
    """All columns, in the order of claims, scales and roles."""
    records = [CLAIMS[name] for name in table["claim"]]
    texts = ["study", "key", "measured", "unit", "paper_effect", "place", "comparable", "testable", "source"]
    texts += ["seen_before", "reason", "registration", "positive_control", "changed"]
    table = table.assign(
        paper=[claim.paper for claim in records],
        words=[claim.words for claim in records],
        statement=[claim.statement for claim in records],
        falsifier=[claim.refuted_if for claim in records],
        command=[command(*row) for row in table[["study", "claim", "scale"]].itertuples(index=False)],
        policies=table["policies"].astype(float),  # as the other counts: NaN where nothing was measured
        **{name: table[name].fillna("") for name in texts},
    )
    orders = {"claim": list(CLAIMS), "scale": SCALES, "role": ROLES}
    places = {name: table[name].map({value: i for i, value in enumerate(order)}) for name, order in orders.items()}
    order = pd.DataFrame(places).sort_values(["claim", "scale", "role"], kind="stable").index
    return table.loc[order, COLUMNS].reset_index(drop=True)


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """The primary rows of a `ledger`, one a claim and scale: claim, words, scale, statement, outcome, its numbers."""
    columns = ["claim", "words", "paper", "scale", "statement", "outcome", "mean", "low", "high", "unit", "units"]
    columns += ["reason"]
    return table.loc[table["role"] == "primary", columns].reset_index(drop=True)


def predictions(table: pd.DataFrame) -> str:
    """How often a mean lay in the interval that its registration predicted, of a `ledger`'s rows measured under it."""
    rows = table[table["predicted_low"].notna() & table["mean"].notna() & (table["registration"] == "matches")]
    inside = rows["mean"].between(rows["predicted_low"], rows["predicted_high"]).sum()
    known = f"for {(rows['seen_before'] != 'no').sum()} of the {len(rows)} such a number had been seen before"
    return f"{inside} of {len(rows)} means lie in the interval that was predicted; {known}." if len(rows) else ""


def command(study: str, claim: str, scale: str) -> str:
    """The commands that remake a study's tables, in `REMADE`, and then the claim's rows from them; "" for no study."""
    if not study:
        return ""
    registration = read_registration(study)
    count = registration.units.get(scale) if registration else None
    seeds = " --seeds " + " ".join(map(str, range(count))) if count and count != STUDIED[scale].seeds else ""
    return (
        f"python -m workbook measure {study} --scale {scale}{seeds} --folder {REMADE} && "
        f"python -m workbook claims --scale {scale} --claim {shlex.quote(claim)} --folder {REMADE}"
    )


# --- on disk


def ledger_json(table: pd.DataFrame) -> str:
    """A `ledger` as JSON, with what decided every row: units' numbers, thresholds, commits; NaN as null."""
    rows = [
        {name: None if isinstance(value, float) and not np.isfinite(value) else value for name, value in row.items()}
        for row in table.to_dict("records")
    ]

    def plain(value):
        return value.item() if isinstance(value, np.generic) else list(value)

    return json.dumps({"rows": rows}, indent=1, ensure_ascii=False, default=plain) + "\n"


def keep_ledger(table: pd.DataFrame, path: Path | None = None) -> Path:
    """Write a `ledger` of data/results for chapters: without lists and dicts, with a fingerprint of the tables."""
    from workbook.training.files import write_parquet

    path = path or data_path("book", "ledger.parquet")
    write_parquet(path, table.drop(columns=[*NESTED, "words"]).assign(tables=fingerprint()))
    return path


@cache
def kept_ledger(path: Path | None = None) -> pd.DataFrame:
    """Read the kept rows of all scales, and print a sentence if the tables have changed since."""
    table = pd.read_parquet(path or data_path("book", "ledger.parquet"))
    if (table["tables"] != fingerprint()).any():
        print(STALE)
    words = {id: claim["words"] for id, claim in stated().items()}  # what a chapter shows loads nothing that measures
    table.insert(1, "words", table["claim"].map(words))
    return table.drop(columns="tables")


def fingerprint() -> str:
    """SHA-256 over the tables, manifests and registrations of data/results."""
    folder = data_path("results")
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*/*.parquet"), *folder.glob("*/*.yaml")]):
        digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def format_summary(table: pd.DataFrame) -> str:
    """A `ledger` as text, outcome by outcome: each primary row's claim, in words, and its scales."""
    claims, lines = summary(table), []
    order = {name: place for place, name in enumerate(SIGNS)}
    for outcome, part in sorted(claims.groupby("outcome"), key=lambda pair: order.get(pair[0], len(order))):
        lines += [f"**{signed(outcome)}: {len(part)}**"]
        for id, own in part.groupby("claim", sort=False):
            scales = ", ".join(own["scale"]).replace(", world:", ", ")
            lines += [f"  {id:<13}{own['words'].iloc[0]:<57}{scales}"]
        lines += [""]
    counts = ", ".join(f"{count} {outcome}" for outcome, count in claims["outcome"].value_counts().items())
    return "\n".join([*lines, f"{len(claims)} primary rows: {counts}. {predictions(table)}".rstrip()])


def signed(outcome: str) -> str:
    """An outcome with its sign before it."""
    return f"{SIGNS.get(outcome, '–')} {outcome}"


def format_ledger(table: pd.DataFrame, commands: bool = False) -> str:
    """A `ledger` as text, claim by claim and scale by scale; commands: with those that recompute each measurement."""
    lines = []
    for claim, part in table.groupby("claim", sort=False):
        row = part.iloc[0]
        lines += ["", f"{claim}  {row['statement']}"]
        lines += [f"    {'met' if claim.endswith('falsifier') else 'refuted'} if {row['falsifier']}"]
        for scale, rows in part.groupby("scale", sort=False):
            deciding, described = rows[rows["role"] != DESCRIBED], rows[rows["role"] == DESCRIBED]
            lines += ["", f"    {scale}"]
            for one in deciding.itertuples():
                lines += [f"        {line}" for line in _deciding(one)]
            lines += ["        described, decides nothing:"] if len(described) else []
            lines += [f"            {one.measured}: {format_effect(one)}" for one in described.itertuples()]
            if commands:
                lines += [f"        $ {text}" for text in dict.fromkeys(rows["command"]) if text]
    return "\n".join(lines[1:])


def format_effect(row, digits: int = 3) -> str:
    """Mean and interval of a row of the ledger; the mean alone where there is no interval."""
    if not np.isfinite(row.mean):
        return "not measured"
    if not np.isfinite(row.low):
        return f"{row.mean:.{digits}g}"
    return f"{row.mean:.{digits}g} [{row.low:.{digits}g}, {row.high:.{digits}g}]"


def measured_of(row) -> str:
    """What a row's number is of; where that begins with "the same", behind the sentence which it goes on from."""
    return _measured_under(row.key, read_registration(row.study).outcomes)


def _measured_under(key: str, outcomes: dict[str, Outcome]) -> str:
    """Go back to the key before the last comma, else to the last sentence above that is whole."""
    text = outcomes[key].sentence.rstrip(".")
    if not _goes_on(text):
        return text
    whole = [name for name in list(outcomes)[: list(outcomes).index(key)] if not _goes_on(outcomes[name].sentence)]
    parent = MEANT.get(key, key.rpartition(", ")[0])
    return f"{_measured_under(parent if parent in outcomes else whole[-1], outcomes)}; {text[0].lower()}{text[1:]}"


def _goes_on(sentence: str) -> bool:
    return re.match("the same(?! as )", sentence, re.IGNORECASE) is not None


def stated_of(row) -> str:
    """A row's number, how many units it rests on, and what was registered of it."""
    shared = f" on {row.policies:.0f} policies, whose means are judged" if row.policies < row.units else ""
    text = f"{format_effect(row)} {row.unit}".rstrip() + f"; {row.units} of {row.registered_units} registered units"
    if not np.isfinite(row.toward):
        return text + shared
    return f"{text}{shared}; {claim_of(row)}, smallest effect of interest {row.smallest_effect:g}"


def claim_of(row) -> str:
    """On which side of its threshold the claim lies, and why a number decides neither for it nor against it."""
    claim = f"the claim: {'above' if row.toward > 0 else 'below'} {row.threshold:g}"
    if row.outcome in (inference.SUPPORTED, inference.CONTRADICTED, NOT_MEASURED):
        return claim
    if row.outcome not in (inference.EQUIVALENT, inference.TOO_SMALL, inference.AT_THRESHOLD):
        return f"{claim}; {row.reason}"
    from scipy.special import stdtrit

    c, d, (scale, back) = row.threshold, row.smallest_effect, (np.log, np.exp) if row.log else (float, float)
    half = (scale(row.high) - scale(row.mean)) * stdtrit(row.policies - 1, 0.95) / stdtrit(row.policies - 1, 0.975)
    low, high = (back(scale(row.mean) + end) for end in (-half, half))
    return f"{claim}; its 90 % interval, [{low:.3g}, {high:.3g}], lies within {c - d:g} to {c + d:g}"


def _deciding(row) -> list[str]:
    """A registered measurement: outcome, number, what was computed beside the interval, and where it came from."""
    lines = [f"{row.role}: {row.outcome.upper()}" + (f" ({row.reason})" if row.reason else "")]
    if not row.values:
        return [*lines, *([f"    {row.measured}"] if row.measured else [])]
    lines += [f"    {row.measured}", f"    {stated_of(row)}"]
    if np.isfinite(row.p):
        thing = ("policy", "policies") if row.policies < row.units else ("unit", "units")
        corrections = (("q", row.q, "the primary rows"), ("q", row.q_all, "all rows"))
        over = [f", {name} = {q:.2g} over {which}" for name, q, which in corrections if np.isfinite(q)]
        checks = [f"p = {row.p:.2g}{''.join(over)}"]
        checks += [f"sign flips p = {row.p_flips:.2g}", f"equivalence p = {row.p_equivalent:.2g}"]
        checks += [f"as if all units were independent p = {row.p_units:.2g}"] if row.policies < row.units else []
        checks += [f"minimum detectable effect {row.detectable:.2g}"]
        checks += [f"one {thing[0]} left out {row.without_low:.3g} to {row.without_high:.3g}"]
        fewest = f"decided by {row.decided_by:.0f} {thing[row.decided_by > 1]}"
        checks += [fewest if np.isfinite(row.decided_by) else f"no removal of {thing[1]} changes it"]
        lines += [f"    {'; '.join(checks)}"]
    facts = {"paper": row.paper_effect or "not known", "comparable": row.comparable.removeprefix("yes")}
    facts |= {"place": row.place, "changed": row.changed.removeprefix("changed ")}
    facts["predicted"] = f"[{row.predicted_low:g}, {row.predicted_high:g}]" if np.isfinite(row.predicted_low) else ""
    lines += ["    " + "; ".join(f"{name}: {text}" for name, text in facts.items() if text)]
    clean = {True: "clean tree", False: "a modified tree"}.get(row.clean, "tree not known")
    origin = [f"source: {row.source}", f"seen before: {row.seen_before}", f"tables from {clean}"]
    origin += [f"registration {row.registration}"]
    origin += [f"{row.dropped} units without a number"] if row.dropped else []
    if row.looked:
        origin += [f"units {row.looked[0]} to {row.looked[-1]} were measured after the earlier ones' outcome was seen"]
    origin += [f"units added after registration: {', '.join(map(str, row.added))}"] if row.added else []
    return [*lines, f"    {'; '.join(origin)}"]


# --- in a chapter


@cache
def registered(scale: str = "family") -> dict[str, tuple]:
    """Every registered row of the kept ledger at a scale, by its key."""
    table = kept_ledger()
    return {row.key: row for row in table[(table["scale"] == scale) & (table["key"] != "")].itertuples()}
