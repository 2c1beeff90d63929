"""What training did to the tokens of a run, by its logged rollouts and metrics: findings, warnings
and text.

A token's push is -d loss / d logp = weight * advantage. Opposite pushes on the same token cancel:
of a set of tokens,

    cancelled = 1 - |sum of push| / sum of |push|        0 = all push one way, 1 = nothing is left

Letters: a group is the rollouts of one prompt in one step; a place is a token at a position of a
group, in all of its rollouts that have that token there. What a log does not have is in
`Report.missing`, with how to get it.
"""

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from workbook.rollouts.token_files import STOPS
from workbook.statistics import Interval, t_interval
from workbook.theory.choices import SIGNS

GROUP, ROLLOUT, PLACE = (
    ["step", "group"],
    ["step", "group", "rollout"],
    ["step", "group", "position", "token"],
)
SHARED = (
    "same token at the same position",
    "same token elsewhere, under both signs",
    "under one sign only",
)
ROUNDING = 1e-6  # of the sum of |push|, which files hold in float32
MIN_CHANGE = 1e-4  # nats; a token of probability 1 moves by rounding alone
# groups or steps below which a t interval says more about its assumptions than about the data
MIN_SAMPLE = 6
BOUNDS = {  # of the warnings: they stand where a number is as large
    # groups: half of all sampling bought nothing; DAPO (arXiv 2503.14476) resamples such groups
    "lost": 0.5,
    "repeats": 0.25,  # rollouts: a repeated one adds no comparison, and its tokens' pushes add up
    # sum |advantage|, or tokens: on-policy nothing is clipped, and PPO's usual share is a few per
    # cent
    "clipped": 0.1,
    # rollouts or advantage: masked rollouts keep their part in the group's mean, so sums are off 0
    "truncated": 0.05,
    "stays": 0.05,  # push: a twentieth of what should have cancelled
    "equal": 0.05,
    "against": 0.4,  # pushed tokens: with 0.5 a token's own push has no say in where it goes
    "longer": 0.2,  # the positive rollouts' length: then 1/T gives their tokens a fifth more push
    "fell": 0.5,  # the first step's entropy: exploration that is lost does not come back by itself
    "few": 1.0,
}
NO_IDS = (
    "The log has no token ids, so nothing is said of tokens or of what cancels: add"
    " workbook.log_ids to a plain GRPOTrainer's reward_funcs, with weight 0, or train with"
    " record_tokens: 10 (plain TRL: a TokenRecord)."
)
MIN_GROUPS = 30  # groups, for which a share of one half has a standard error of 0.09
WARNINGS = """
lost: {lost:.0%} of groups had one reward only: nothing was learned from them. {advice}
repeats: {repeats:.0%} of rollouts repeat another of their group {unit} by {unit}. Raise the temperature, or sample \
fewer rollouts of more prompts.
clipped: Clipping stopped {clipped:.0%} of {of}. Lower the learning rate, or take fewer optimizer steps on each batch.
truncated: {truncated:.0%} of rollouts were cut off. Raise max_completion_length, or reward brevity.
stays: Where all rollouts of a group have the same token, {residual:.0%} of its push stays; {equal:.0%} would with \
equal weights. Stay on-policy, widen the clip range, or set group_transform: min_replace.
equal: Where all rollouts of a group have the same token, even equal weights leave {equal:.0%} of its push: advantages \
do not sum to 0 in a step. Keep groups whole in a mini-batch (batching: query_preserved).
against: {against:.0%} of the tokens that moved went against their own push: others' updates decide. More rollouts \
per prompt give a token more push of its own.
longer: Negative rollouts are {longer:.0%} {than} than positive ones, in {unit}s. A loss that divides by each \
rollout's length pushes the longer ones' tokens less; loss_type: dapo or dr_grpo does not.
fell: Entropy fell from {first:.3f} to {last:.3f} nats a token. Where the reward has not risen with it, lower the \
learning rate or raise epsilon_high.
few: There are {groups} groups only, so every share here is rough. Log more steps or prompts.
"""


@dataclass(frozen=True)
class Report:
    """Findings; tables are empty, and numbers NaN, where `missing` says what was not there.

    counts: steps, groups, rollouts, tokens or words.  groups: a row per group: size, signal (has an
    advantage), reward ("highest", "lowest" or "one" of one without).  signal: share of groups with
    an advantage.  tokens: a row per token
    text: count, up, down, net, total, cancelled.  shared: a row per class of SHARED: tokens, push,
    cancelled (shares).
    stopped: share of sum |advantage| by reason.  residual: of places in all rollouts of a group,
    and what equal weights would leave.  against: share of moved tokens that moved against their
    push.  lengths: mean tokens (words) by sign.
    repeats: share of rollouts equal to another of their group.  metrics: as
    `read_logged_metrics` has them.
    """

    counts: dict[str, int]
    groups: pd.DataFrame
    signal: Interval
    tokens: pd.DataFrame
    shared: pd.DataFrame
    stopped: pd.Series
    residual: tuple[float, float]
    against: float
    lengths: pd.Series
    repeats: float
    metrics: pd.DataFrame
    notes: list[str]
    missing: dict[str, str] = field(default_factory=dict)


def report_findings(table: pd.DataFrame, metrics: pd.DataFrame | None = None) -> Report:
    """Measure a token table: one of `read_rollouts`, or of a run's `tokens(step)`.

    metrics: as `read_logged_metrics` returns them.

    Raises ValueError for a table without the columns group, rollout, position, token, or without
    both reward and advantage.
    """
    rows, notes = _prepare(table)
    source = table.attrs.get("source", {})
    grouped = source.get("groups") != "none" and rows.groupby(GROUP)["rollout"].nunique().max() > 1
    missing = (
        {}
        if grouped
        else {"groups": "No two rollouts are known to be of one prompt; log a column group."}
    )
    counted = "words" if source.get("tokens") == "words" else "tokens"
    if not (ids := source.get("tokens") not in ("words", "cut anew")):
        missing["ids"] = NO_IDS
    for name in ("stopped", "logp_after"):
        if name not in rows:
            missing[name] = (
                f"The log has no column {name}; train with record_tokens: 10, or log the column."
            )
    groups = _groups(rows) if grouped else pd.DataFrame()
    size, units = rows["advantage"].abs(), rows.drop_duplicates(ROLLOUT)
    stopped, against, repeats = pd.Series(dtype=float), np.nan, np.nan
    if "stopped" in rows:
        mass = size.groupby(rows["stopped"].astype(str)).sum() / max(size.sum(), 1e-300)
        stopped = mass.reindex([reason for reason in STOPS[1:] if reason in mass.index])
    if "logp_after" in rows and "logp" in rows:
        change = rows["logp_after"].astype(float) - rows["logp"].astype(float)
        moved = (change.abs() > MIN_CHANGE) & (rows["push"] != 0)
        against = float((change * rows["push"] < 0)[moved].mean())
    if grouped:
        texts = rows.groupby(ROLLOUT)["token"].agg(lambda tokens: hash(tuple(tokens.cat.codes)))
        repeats = float(texts.reset_index().duplicated([*GROUP, "token"]).mean())
    lengths = (
        rows.groupby(ROLLOUT)
        .agg(length=("position", "size"), a=("advantage", "sum"))
        .query("a != 0")
    )
    counts = (rows["step"].nunique(), len(units.drop_duplicates(GROUP)), len(units), len(rows))
    return Report(
        counts=dict(zip(("steps", "groups", "rollouts", counted), counts, strict=True)),
        groups=groups,
        signal=_signal_share(groups) if grouped else Interval(np.nan, np.nan, np.nan),
        tokens=_pushed_tokens(rows) if ids else pd.DataFrame(),
        shared=_shared_tokens(rows) if grouped and ids else pd.DataFrame(),
        stopped=stopped,
        residual=_whole_residual(rows) if grouped and ids else (np.nan, np.nan),
        against=against,
        lengths=lengths.groupby(np.where(lengths["a"] > 0, *SIGNS))["length"].mean(),
        repeats=repeats,
        metrics=pd.DataFrame() if metrics is None else metrics,
        notes=[*source.get("notes", ()), *notes],
        missing=missing,
    )


def _prepare(table: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The table with step, advantage, push and sign in every row, and a sentence for each that was
    made.
    """
    if lacking := [name for name in ("group", "rollout", "position", "token") if name not in table]:
        raise ValueError(
            f"a report needs the column {lacking[0]}; the table has {', '.join(table.columns)}."
        )
    rows, notes = table.reset_index(drop=True).copy(), []
    rows.attrs = {}
    if "step" not in rows:
        rows["step"] = 0
    if "advantage" not in rows or rows["advantage"].isna().all():
        if "reward" not in rows or rows["reward"].isna().all():
            raise ValueError(
                "a report needs the column reward or advantage; the table has neither."
            )
        reward = rows.groupby(ROLLOUT)["reward"].first().astype(float)
        centred = reward - reward.groupby(level=[0, 1]).transform("mean")
        # a mean of equals may be off by a rounding
        centred[reward.groupby(level=[0, 1]).transform(np.ptp) == 0] = 0.0
        rows["advantage"] = centred.reindex(pd.MultiIndex.from_frame(rows[ROLLOUT])).to_numpy()
        notes.append(
            "The log has no advantages: they are each rollout's reward minus its group's mean."
        )
    if "push" not in rows or rows["push"].isna().all():
        rows["push"] = rows["advantage"].astype(float)
        notes.append("The log has no weights as trained: a push here is the advantage.")
    for name in ("push", "advantage"):
        rows[name] = rows[name].astype(float).replace([np.inf, -np.inf], np.nan).fillna(0.0)
    rows["sign"] = np.sign(rows["advantage"]).astype(int)
    rows["token"] = rows["token"].astype(str).astype("category")
    return rows, notes


def _groups(rows: pd.DataFrame) -> pd.DataFrame:
    """A row per group: size, signal, and the reward of a group that has none."""
    table = rows.assign(absolute=rows["advantage"].abs()).groupby(GROUP)
    table = table.agg(size=("rollout", "nunique"), signal=("absolute", "max")).reset_index()
    table["signal"] = table["signal"] > 0
    if "reward" not in rows or rows["reward"].isna().all():
        return table.assign(reward="")
    rewards = rows.groupby(GROUP)["reward"].agg(["min", "max"]).reset_index()
    low, high = rows["reward"].min(), rows["reward"].max()
    one = np.select([rewards["max"] == low, rewards["min"] == high], ["lowest", "highest"], "one")
    return table.assign(
        reward=np.where(table["signal"] | rewards["min"].isna(), "", one if low < high else "one")
    )


def _signal_share(groups: pd.DataFrame) -> Interval:
    """The share of groups with signal; its interval is over steps, or over groups if steps are few."""
    steps = groups.groupby("step")["signal"].mean()
    units = (steps if len(steps) >= MIN_SAMPLE else groups["signal"]).to_numpy(float)
    interval = (
        t_interval(units) if len(units) >= MIN_SAMPLE else Interval(units.mean(), np.nan, np.nan)
    )
    return Interval(interval.mean, *np.clip(interval[1:], 0.0, 1.0))


def _pushed_tokens(rows: pd.DataFrame) -> pd.DataFrame:
    """A row per token text, the most pushed first."""
    parts = pd.DataFrame({"token": rows["token"], "count": 1})
    parts["up"], parts["down"] = rows["push"].clip(lower=0.0), rows["push"].clip(upper=0.0)
    table = parts.groupby("token", observed=True).sum().reset_index()
    table["net"], table["total"] = table["up"] + table["down"], table["up"] - table["down"]
    table.loc[table["net"].abs() < ROUNDING * table["total"], "net"] = 0.0
    table["cancelled"] = _cancelled(table["net"].abs(), table["total"])
    return table.astype({"token": str}).sort_values(
        ["total", "count"], ascending=False, ignore_index=True
    )


def _shared_tokens(rows: pd.DataFrame) -> pd.DataFrame:
    """How much of |push| cancels inside groups, by the first class of SHARED that fits a token."""
    place, word = (
        rows.groupby(names, observed=True, sort=False).ngroup().to_numpy()
        for names in (PLACE, [*GROUP, "token"])
    )
    both = (np.bincount(word, rows["sign"] > 0)[word] > 0) & (
        np.bincount(word, rows["sign"] < 0)[word] > 0
    )
    classes = np.select([np.bincount(place)[place] > 1, both], [0, 1], 2)
    push, table = rows["push"].to_numpy(), []
    for number, unit in enumerate((place, word, word)):
        chosen = classes == number
        total = float(np.abs(push[chosen]).sum())
        net = float(np.abs(np.bincount(unit[chosen], push[chosen])).sum()) if chosen.any() else 0.0
        share = total / max(float(np.abs(push).sum()), 1e-300)
        row = {"shared": SHARED[number], "tokens": chosen.mean(), "push": share}
        table.append(row | {"cancelled": float(_cancelled(net, total))})
    return pd.DataFrame(table)


def _whole_residual(rows: pd.DataFrame) -> tuple[float, float]:
    """|sum of push| / sum of |push| of places that all rollouts of a group have, and with equal weights.

    With equal weights it is 0 if the step holds the whole group, its advantages centred (D1 of
    arXiv 2604.13088).
    """
    sizes = rows.groupby(GROUP)["rollout"].nunique()
    parts = rows.assign(absolute=rows["push"].abs(), a=rows["advantage"], b=rows["advantage"].abs())
    places = parts.groupby(PLACE, observed=True).agg(
        n=("rollout", "nunique"),
        net=("push", "sum"),
        total=("absolute", "sum"),
        a=("a", "sum"),
        b=("b", "sum"),
    )
    places = places[(places["n"] > 1) & (places["total"] > 0)].reset_index()
    whole = places[
        places["n"].to_numpy() == sizes.reindex(pd.MultiIndex.from_frame(places[GROUP])).to_numpy()
    ]
    return float((whole["net"].abs() / whole["total"]).mean()), float(
        (whole["a"].abs() / whole["b"]).mean()
    )


def _cancelled(net, total):
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(np.asarray(total) > 0, 1 - np.asarray(net) / np.asarray(total), 0.0)


def report_warnings(report: Report) -> list[str]:
    """What is out of order, each with what to change, in the order of WARNINGS: the first is the
    first thing to do.
    """
    (residual, equal), groups = report.residual, len(report.groups)
    advice = (
        "Raise the temperature, sample larger groups, or pick prompts that the policy solves now"
        " and then."
    )
    if groups:
        best, worst = ((report.groups["reward"] == name).mean() for name in ("highest", "lowest"))
        if best > 2 * worst:
            advice = f"{best:.0%} have the highest reward throughout: pick harder prompts."
        elif worst > 2 * best:
            advice = (
                f"{worst:.0%} have the lowest reward throughout: pick easier prompts, or sample"
                " larger groups."
            )
    clipped, of = _last(report, "clip_ratio/region_mean"), "tokens"
    if len(report.stopped):
        clipped, of = report.stopped.reindex(["clip low", "clip high"]).sum(), "all advantage"
    longer = report.lengths.get("negative", np.nan) / report.lengths.get("positive", np.nan) - 1
    entropy = report.metrics["entropy"].dropna().tolist() if "entropy" in report.metrics else []
    first, last = (entropy[0], entropy[-1]) if entropy else (0.0, 0.0)
    numbers = {
        "lost": 1 - report.signal.mean,
        "repeats": report.repeats,
        "clipped": clipped,
        "truncated": max(
            report.stopped.get("truncated", 0.0), _last(report, "completions/clipped_ratio")
        ),
        "stays": residual - equal,
        "equal": equal,
        "against": report.against,
        "longer": abs(longer),
        "fell": 1 - last / first if first else 0.0,
        "few": float(0 < groups < MIN_GROUPS),
    }
    words = {
        "advice": advice,
        "of": of,
        "residual": residual,
        "first": first,
        "last": last,
        "groups": groups,
    }
    words |= {
        "unit": "word" if "words" in report.counts else "token",
        "than": "longer" if longer > 0 else "shorter",
    }
    words |= numbers
    sentences = dict(line.split(": ", 1) for line in WARNINGS.strip().splitlines())
    return [
        text.format(**words) for name, text in sentences.items() if numbers[name] >= BOUNDS[name]
    ]


def _last(report: Report, name: str) -> float:
    """Mean of a metric's last five values; 0 where it was not logged."""
    values = report.metrics[name].dropna() if name in report.metrics else []
    return float(values.iloc[-5:].mean()) if len(values) else 0.0


def report_text(report: Report) -> str:
    """The findings as lines of text: the one thing to do, counts, what was found, what is missing,
    other warnings.
    """
    lines = []
    if len(report.groups):
        ends = report.signal
        interval = f" [{ends.low:.0%}, {ends.high:.0%}]" if ends.low < ends.high else ""
        lines.append(
            f"{ends.mean:.0%}{interval} of {len(report.groups):,} groups have an advantage to learn"
            " from."
        )
    if len(report.shared):
        shared = report.shared.set_index("shared")
        place, cancelled = shared.loc[SHARED[0]], (shared["push"] * shared["cancelled"]).sum()
        lines.append(
            f"{cancelled:.0%} of |push| cancels inside its group. Tokens that several rollouts have"
            f" at the same position hold {place['push']:.0%} of it, and {place['cancelled']:.0%} of"
            " that cancels."
        )
    if len(report.tokens) and len(pushed := report.tokens[report.tokens["total"] > 0]):
        first = pushed.loc[pushed["net"].abs().idxmax()]
        where = f"in {first['count']:,} places, is on {first['token'][:24]!r}"
        lines.append(
            f"The largest net push, {first['net']:+.3g} of a sum of |push| of {first['total']:.3g}"
            f" {where}."
        )
    if len(stopped := report.stopped[report.stopped > 0]):
        reasons = ", ".join(f"{share:.1%} ({name})" for name, share in stopped.items())
        lines.append(f"No gradient reached {reasons} of all advantage.")
    if np.isfinite(report.against):
        lines.append(
            f"{report.against:.0%} of the pushed tokens that moved went against their own push."
        )
    units = "words" if "words" in report.counts else "tokens"
    lengths = ", ".join(
        f"{length:.1f} {units} with {sign} advantage" for sign, length in report.lengths.items()
    )
    lines += [f"Rollouts have on average {lengths}."] if lengths else []
    first, *more = report_warnings(report) or ["Nothing in this log asks for a change."]
    counts = ", ".join(f"{number:,} {name}" for name, number in report.counts.items())
    lines = [
        first,
        counts,
        *(f"- {line}" for line in [*lines, *report.notes, *report.missing.values()]),
    ]
    lines += ["Then:"] * bool(more)
    return "\n".join([*lines, *(f"{number}. {warning}" for number, warning in enumerate(more, 1))])
