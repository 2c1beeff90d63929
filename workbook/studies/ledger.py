"""The ledger: every measurement of every claim, judged by its registration."""

import json
import pkgutil
import shlex
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd

from workbook import studies
from workbook.files import write_parquet
from workbook.ledger import (
    CANNOT,
    DESCRIBED,
    OPEN,
    fingerprint,
    kept_ledger,
    primaries,
    read_book,
)
from workbook.messages import InvalidValue, one_line
from workbook.places import data_path
from workbook.studies.inference import Judged, conclude, holm, judge_units
from workbook.studies.record import Claim, Measurement, NotMeasured, Tables, Void, check_results
from workbook.studies.registration import (
    ROLES,
    Outcome,
    Registration,
    looked_after,
    named_after,
    read_registration,
)
from workbook.studies.registration import SCALES as STUDIED

SCALES = tuple(
    sorted((name for name in STUDIED if name != "tiny"), key=lambda name: name != "family")
)
# where the printed commands write, so that what is committed stays as it is
REMADE = "build/results"
# columns of lists and dicts that the kept ledger leaves out
NESTED = ("policy_of", "values", "commits")
JUDGED = (
    *(
        "claim",
        "role",
        "study",
        "key",
        "scale",
        "measured",
        "unit",
        "threshold",
        "toward",
        "smallest_effect",
    ),
    *(
        "mean",
        "low",
        "high",
        "units",
        "registered_units",
        "policies",
        "dropped",
        "added",
        "looked",
        "outcome",
        "reason",
    ),
    *(
        "low_90",
        "high_90",
        "p",
        "p_holm",
        "detectable",
        "policy_of",
        "values",
        "log",
        "predicted_low",
        "predicted_high",
    ),
    *(
        "positive_control",
        "changed",
        "paper_effect",
        "place",
        "comparable",
        "testable",
        "source",
        "seen_before",
    ),
    *("registration", "clean", "commits"),
)
_COLUMNS = ["claim", "words", "paper", "statement", "falsifier", *JUDGED[1:], "command"]


# --- the records of all studies


def _collect() -> dict[str, Claim]:
    """{id: claim}: what it states, with the measurements of every module of a topic whose name ends
    in claims.
    """
    rows: dict[str, list[Measurement]] = {}
    for module in pkgutil.walk_packages(studies.__path__, f"{studies.__name__}."):
        if module.name.endswith("claims"):
            for place, measures in import_module(module.name).MEASURES.items():
                study, _, scale = place.partition("@")
                for key, measure in measures.items():
                    rows.setdefault(key.split()[0], []).append(
                        Measurement(study, key, measure, scale or None)
                    )
    # with the threshold that its primary outcome registered
    for id, words in (claims := read_book("claims")).items():
        primary = next(row.outcome() for row in rows[id] if row.key == id)
        words["refuted_if"] = words["refuted_if"].format(threshold=primary.threshold)
    return {id: Claim(id, **words, rows=rows[id]) for id, words in claims.items()}


CLAIMS = _collect()


@cache
def sentences() -> dict[tuple[str, str], str]:
    """{(study, key): the whole sentence} of rows whose registration goes on from the row above, of
    rows.yaml.
    """
    return {
        (study, key): text
        for study, rows in read_book("rows")["sentences"].items()
        for key, text in rows.items()
    }


@cache
def untestable() -> dict[tuple[str, str], str]:
    """{(study, key): why it cannot be tested here} of rows.yaml."""
    reasons = read_book("rows")["untestable"]
    return {
        (study, key): one["why"]
        for one in reasons
        for study, keys in one["rows"].items()
        for key in keys
    }


# --- one row a measurement


def measurements(
    claims: str | Iterable[str | Claim], tables: Tables, roles: Sequence[str] | None = None
) -> pd.DataFrame:
    """Every measurement of some claims at one scale, by their ids or records: a row each, with the
    columns `JUDGED`.

    outcome is the word by the intervals alone: `ledger` adds the reasons, the controls and
    Holm.  roles: wanted.

    Columns: measured (the sentence), toward (+1 if the claim lies above the threshold), dropped
    (units without a number), added (units beyond the registered count, which decide nothing),
    looked (units measured after the outcome of earlier ones was seen), mean ... policies: see
    `inference.Judged`; values: {unit: number}; policy_of: {unit: policy}; log: whether those are
    logarithms; registration ("matches", "superseded", "changed since"), clean (whether all tables
    came from an unmodified tree, None: not known).
    """
    rows = []
    for claim in [claims] if isinstance(claims, str) else claims:
        record = claim if isinstance(claim, Claim) else CLAIMS[claim]
        for measurement in record.rows:
            if measurement.scale in (None, tables.scale):
                rows += _measured(measurement, tables, roles)
    return pd.DataFrame(rows, columns=JUDGED).drop_duplicates(
        ["claim", "study", "key"], ignore_index=True
    )


def _measured(measurement: Measurement, tables: Tables, roles) -> list[dict]:
    """The row of one measurement; none where it is not registered, asked for, or of this scale."""
    study = measurement.study
    key = measurement.key
    outcome = measurement.outcome(tables.folder)
    registration = measurement.registration(tables.folder)
    asked = outcome is not None and (roles is None or outcome.role in roles)
    if not asked or not registration.judges(outcome, tables.scale):
        return []

    # what was registered, whether or not it was measured
    count = registration.units[tables.scale]
    row = _missing("")
    row.update({name: getattr(outcome, name) for name in _OF_OUTCOME})
    row["measured"] = sentences().get((study, key), outcome.sentence).rstrip(".")
    row["paper_effect"] = outcome.paper
    row["study"] = study
    row["key"] = key
    row["scale"] = tables.scale
    row["registered_units"] = count
    row["predicted_low"], row["predicted_high"] = outcome.predicted
    control = named_after(study, tables.folder).get(key)
    if control and not outcome.positive_control:
        row["positive_control"] = control
        row["changed"] = "changed after the data were seen: its control was named then"

    try:
        values = measurement.measure(tables.registered(study, count))
    except Void as void:
        row["outcome"] = CANNOT
        row["reason"] = str(void)
        return [row]
    except (NotMeasured, ValueError) as missing:  # the latter: the tables hold too little
        row["reason"] = f"not measured: {missing}"
        return [row]

    units = tables.provenance(study)
    row.update(_origin(units, registration, count))
    seen = looked_after(study, tables.folder)
    if seen is not None:
        numbers = units["unit"].unique().tolist()
        row["looked"] = tuple(number for number in numbers if seen <= number < count)
    measured = units["unit"].nunique() - len(row["added"])
    policies = units.drop_duplicates("unit").set_index("unit")["policy"]
    row.update(_judged(values, outcome, measured, policies))
    return [row]


# columns that a row takes from the registered outcome as they are
_OF_OUTCOME = (
    "claim",
    "role",
    "unit",
    "place",
    "comparable",
    "testable",
    "source",
    "seen_before",
    "positive_control",
    "changed",
    "threshold",
    "toward",
    "smallest_effect",
)


def _origin(units: pd.DataFrame, registration: Registration, count: int) -> dict:
    """Which tree, commits and registration the registered units came from, and which were added.

    units: of `Tables.provenance`.  count: how many units are registered.
    """
    own = units[units["unit"] < count]
    # whether trees were modified; None of a unit: not known
    modified = set(own["modified"])
    clean = None
    if True in modified:
        clean = False
    elif modified == {False}:
        clean = True

    known = {registration.hash: "matches", registration.supersedes: "superseded"}
    states = {known.get(digest, "changed since") for digest in own["registration"]}
    if not states:
        states = {"changed since"}
    # one unit under another text is enough; "changed since" goes before "superseded"
    state = min(states - {"matches"}, default="matches")
    return {
        "clean": clean,
        "commits": tuple(sorted(set(own["commit"].dropna()))),
        "registration": state,
        "added": tuple(units.loc[units["unit"] >= count, "unit"].unique().tolist()),
    }


def _missing(reason: str) -> dict:
    """What a row has that was not measured."""
    return {
        **dict.fromkeys((*Judged._fields, "p_holm"), np.nan),
        **dict.fromkeys(("units", "registered_units", "dropped"), 0),
        **dict.fromkeys(("added", "looked", "commits"), ()),
        **dict.fromkeys(("registration", "positive_control", "testable", "comparable"), ""),
        "values": {},
        "policy_of": {},
        "log": False,
        "clean": None,
        "outcome": OPEN,
        "reason": reason,
    }


def _judged(values: pd.Series, outcome: Outcome, measured: int, policies: pd.Series) -> dict:
    """What units say; measured: how many there are, with a number or without."""
    finite = values[np.isfinite(values.to_numpy(dtype=float))].sort_index()
    if finite.index.has_duplicates:
        raise ValueError(
            f"{outcome.claim}: {outcome.sentence}: its measure gives a unit more than one number."
        )
    finite.attrs = dict(values.attrs)
    known = policies.reindex(finite.index).dropna()
    facts = {
        "units": len(finite),
        "dropped": max(measured - len(finite), 0),
        "log": bool(values.attrs.get("log")),
        "values": {int(unit): float(value) for unit, value in finite.items()},
        "policy_of": {int(unit): str(policy) for unit, policy in known.items()},
    }
    if finite.empty:
        return {**facts, "reason": "no unit has a number"}
    return {**facts, **judge_units(finite, outcome, policies)._asdict()}


# --- all rows


def compute_ledger(
    scale: str | None = None,
    folder: str | Path | None = None,
    claims: Sequence[str] | None = None,
    described: bool = True,
) -> pd.DataFrame:
    """Every measurement of `CLAIMS` at a scale, or at all of `SCALES`: a row each, primary ones of
    a claim first.

    Columns: claim, words (the statement in at most eight), paper, statement, falsifier (what would
    refute it), those of `measurements`, p_holm (of the experiments' primary rows, over all of
    them), and command, which recomputes the row.
    folder: of the tables, instead of data/results.  claims: those wanted.  described: also the rows
    without a word. Primary rows of experiments that are not asked for are corrected for as they
    were kept.

    Raises ValueError for an unknown scale, and for a folder that holds no tables or one that can't
    be read.
    """
    if scale is not None and scale not in SCALES:
        raise InvalidValue("scale", scale, tuple(SCALES))
    claims = list(CLAIMS if claims is None else claims)
    scales = [scale] if scale else SCALES
    if folder is not None:
        check_results(folder)
    try:
        rows = _concluded(claims, [Tables(name, folder) for name in scales])
    except (LookupError, TypeError, NameError, AttributeError) as error:
        if folder is None:
            raise
        raise ValueError(
            f"A table in {folder} is not as its study makes it: {one_line(error)}."
        ) from error
    rows = [row for row in rows if described or row["role"] != DESCRIBED]

    # a claim without a primary row has one that says so
    where = f"at scale {scale!r}" if scale else "of this claim"
    with_primary = {row["claim"] for row in rows if row["role"] == "primary"}
    for claim in set(claims) - with_primary:
        rows.append(
            {
                **_missing(f"no primary outcome is registered {where}"),
                "claim": claim,
                "role": "primary",
                "scale": scale or SCALES[0],
                "study": "",
                "key": "",
            }
        )
    return _complete(pd.DataFrame(rows, columns=JUDGED))


def _concluded(claims: Sequence[str], tables: Sequence[Tables]) -> list[dict]:
    """The rows of some claims, each with its outcome.

    It follows from the intervals, from reasons, from the outcome of the row's positive control, and
    from Holm's correction.
    """
    rows = [row for part in tables for row in measurements(claims, part).to_dict("records")]
    places = {(row["scale"], row["key"]): row for row in rows}
    # controls may belong to claims that were not asked for
    controls = {(row["scale"], row["positive_control"]) for row in rows if row["positive_control"]}
    absent = controls - set(places)
    for part in tables:
        others = {key.split()[0] for scale, key in absent if scale == part.scale} & set(CLAIMS)
        for row in measurements(sorted(others), part).to_dict("records"):
            places.setdefault((row["scale"], row["key"]), row)
    for place, p in corrected(places).items():
        places[place]["p_holm"] = p
    concluded = set()

    def concluded_row(scale: str, key: str) -> dict | None:
        """The row of a place, after that of its control."""
        row = places.get((scale, key))
        if row is not None and (scale, key) not in concluded:
            concluded.add((scale, key))
            control = None
            if row["positive_control"]:
                control = concluded_row(scale, row["positive_control"])
            row["outcome"], row["reason"] = conclude(row, doubt_about(row), control)
        return row

    return [concluded_row(row["scale"], row["key"]) for row in rows]


def doubt_about(row: dict) -> str:
    """Why a row cannot be tested here: by rows.yaml, or because its registration says so; "" for
    nothing.
    """
    reason = untestable().get((row["study"], row["key"]))
    if reason:
        return reason
    for name in ("testable", "comparable"):
        # "no: " and the reason
        if row[name].lower().startswith("no"):
            return row[name].partition(":")[2].strip() or "as registered"
    return ""


def corrected(places: dict[tuple[str, str], dict]) -> dict[tuple[str, str], float]:
    """Holm's p of the experiments' primary rows that can be tested, of those among the places
    given.

    What the places lack, or have without a number, is corrected for as it was kept.
    """
    p = {(row.scale, row.key): row.p for row in kept_ledger().itertuples() if row.outcome != CANNOT}
    for place, row in places.items():
        if doubt_about(row):
            p.pop(place, None)
        elif np.isfinite(row["p"]):
            p[place] = row["p"]
    p = {place: p[place] for place in primaries() if np.isfinite(p.get(place, np.nan))}
    adjusted = zip(p, holm(list(p.values())), strict=True)
    return {
        place: q for place, q in adjusted if place in places and np.isfinite(places[place]["p"])
    }


def _complete(table: pd.DataFrame) -> pd.DataFrame:
    """All columns, in the order of claims, scales and roles."""
    records = [CLAIMS[name] for name in table["claim"]]
    texts = [
        "study",
        "key",
        "measured",
        "unit",
        "paper_effect",
        "place",
        "comparable",
        "testable",
        "source",
    ]
    texts += ["seen_before", "reason", "registration", "positive_control", "changed"]
    table = table.assign(
        paper=[claim.paper for claim in records],
        words=[claim.words for claim in records],
        statement=[claim.statement for claim in records],
        falsifier=[claim.refuted_if for claim in records],
        command=[
            command(*row) for row in table[["study", "claim", "scale"]].itertuples(index=False)
        ],
        # as the other counts: NaN where nothing was measured
        policies=table["policies"].astype(float),
        **{name: table[name].fillna("") for name in texts},
    )
    orders = {"claim": list(CLAIMS), "scale": SCALES, "role": ROLES}
    places = {
        name: table[name].map({value: i for i, value in enumerate(order)})
        for name, order in orders.items()
    }
    order = pd.DataFrame(places).sort_values(["claim", "scale", "role"], kind="stable").index
    return table.loc[order, _COLUMNS].reset_index(drop=True)


def command(study: str, claim: str, scale: str) -> str:
    """The commands that remake a study's tables, in `REMADE`, and then the claim's rows from them;
    "" for no study.
    """
    if not study:
        return ""
    registration = read_registration(study)
    count = registration.units.get(scale) if registration else None
    seeds = ""
    if count and count != STUDIED[scale].seeds:
        seeds = " --seeds " + " ".join(map(str, range(count)))
    return (
        f"python -m workbook measure {study} --scale {scale}{seeds} --folder {REMADE} && "
        f"python -m workbook claims --scale {scale} --claim {shlex.quote(claim)} --folder {REMADE}"
    )


# --- on disk


def ledger_json(table: pd.DataFrame) -> str:
    """A `ledger` as JSON, with what decided every row: units' numbers, thresholds, commits; NaN as
    null.
    """
    rows = [
        {
            name: None if isinstance(value, float) and not np.isfinite(value) else value
            for name, value in row.items()
        }
        for row in table.to_dict("records")
    ]

    def plain(value):
        return value.item() if isinstance(value, np.generic) else list(value)

    return json.dumps({"rows": rows}, indent=1, ensure_ascii=False, default=plain) + "\n"


def keep_ledger(table: pd.DataFrame, path: Path | None = None) -> Path:
    """Write a `ledger` of data/results for chapters, with a fingerprint of the tables.

    It leaves out the numbers of single units, their policies and commits.
    """
    path = path or data_path("book", "ledger.parquet")
    write_parquet(path, table.drop(columns=list(NESTED)).assign(tables=fingerprint()))
    return path
