"""What training did to the tokens of a run: findings, warnings and text.

A token's push is -d loss / d logp = weight * advantage: how hard training raised (+) or lowered (-)
its log-probability. Opposite pushes on the same token cancel. Of a set of tokens,

    cancelled = 1 - |sum of push| / sum of |push|        0 = all push one way, 1 = nothing is left

A group is the rollouts of one prompt in one step. A place is a token at a position of a group, in
all of the group's rollouts that have that token there. The report is made from logged rollouts and
metrics alone. What a log does not have is in `Report.missing`, with how to get it.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd

from workbook.rollouts.token_files import STOPS
from workbook.statistics import Interval, t_interval
from workbook.theory.choices import SIGNS

# columns that name a group, a rollout and a place
_GROUP = ["step", "group"]
_ROLLOUT = ["step", "group", "rollout"]
_PLACE = ["step", "group", "position", "token"]

SHARED = (
    "same token at the same position",
    "same token elsewhere, under both signs",
    "under one sign only",
)
_ROUNDING = 1e-6  # of the sum of |push|, which files hold in float32
_MIN_CHANGE = 1e-4  # nats; a token of probability 1 moves by rounding alone
# groups or steps; with fewer, a t interval says more about its assumptions than about the data
_MIN_SAMPLE = 6
_MIN_GROUPS = 30  # a share of one half then has a standard error of 0.09
_TINY = 1e-300  # instead of a sum of 0, to divide by

_NO_GROUPS = "No two rollouts are known to be of one prompt; log a column group."
_NO_IDS = (
    "The log has no token ids, so nothing is said of tokens or of what cancels: add"
    " workbook.log_ids to a plain GRPOTrainer's reward_funcs, with weight 0, or train with"
    " record_tokens: 10 (plain TRL: a TokenRecord)."
)


class _Warning(NamedTuple):
    """A sentence of the report, shown where its number is at least `bound`."""

    bound: float
    sentence: str


# the first that applies is the first thing to do; a comment says why the bound is where it is
WARNINGS = {
    # groups: half of all sampling bought nothing; DAPO (arXiv 2503.14476) resamples such groups
    "lost": _Warning(
        0.5, "{lost:.0%} of groups had one reward only: nothing was learned from them. {advice}"
    ),
    # rollouts: a repeated one adds no comparison, and its tokens' pushes add up
    "repeats": _Warning(
        0.25,
        "{repeats:.0%} of rollouts repeat another of their group {unit} by {unit}. Raise the"
        " temperature, or sample fewer rollouts of more prompts.",
    ),
    # of all |advantage|, or tokens: nothing is clipped on-policy, and PPO's usual share is a few
    # per cent
    "clipped": _Warning(
        0.1,
        "Clipping stopped {clipped:.0%} of {of}. Lower the learning rate, or take fewer optimizer"
        " steps on each batch.",
    ),
    # rollouts or advantage: masked rollouts keep their part in the group's mean, so sums are off 0
    "truncated": _Warning(
        0.05,
        "{truncated:.0%} of rollouts were cut off. Raise max_completion_length, or reward brevity.",
    ),
    # push: a twentieth of what should have cancelled
    "stays": _Warning(
        0.05,
        "Where all rollouts of a group have the same token, {residual:.0%} of its push stays;"
        " {equal:.0%} would with equal weights. Stay on-policy, widen the clip range, or set"
        " group_transform: min_replace.",
    ),
    "equal": _Warning(
        0.05,
        "Where all rollouts of a group have the same token, even equal weights leave {equal:.0%} of"
        " its push: advantages do not sum to 0 in a step. Keep groups whole in a mini-batch"
        " (batching: query_preserved).",
    ),
    # pushed tokens: with 0.5 a token's own push has no say in where it goes
    "against": _Warning(
        0.4,
        "{against:.0%} of the tokens that moved went against their own push: others' updates"
        " decide. More rollouts per prompt give a token more push of its own.",
    ),
    # the positive rollouts' length: then 1/T gives their tokens a fifth more push
    "longer": _Warning(
        0.2,
        "Negative rollouts are {longer:.0%} {than} than positive ones, in {unit}s. A loss that"
        " divides by each rollout's length pushes the longer ones' tokens less; loss_type: dapo or"
        " dr_grpo does not.",
    ),
    # the first step's entropy: exploration that is lost does not come back by itself
    "fell": _Warning(
        0.5,
        "Entropy fell from {first:.3f} to {last:.3f} nats a token. Where the reward has not risen"
        " with it, lower the learning rate or raise epsilon_high.",
    ),
    # 1 where there are fewer than _MIN_GROUPS, else 0
    "few": _Warning(
        1.0,
        "There are {groups} groups only, so every share here is rough. Log more steps or prompts.",
    ),
}


@dataclass(frozen=True)
class Report:
    """Findings; tables are empty, and numbers NaN, where `missing` says what was not there.

    counts: steps, groups, rollouts, tokens or words.
    groups: a row per group: size, signal (has an advantage), reward ("highest", "lowest" or "one"
    where it has none).
    signal: share of groups with an advantage.
    tokens: a row per token text: count, up, down, net, total, cancelled.
    shared: a row per class of SHARED: tokens, push, cancelled (shares).
    stopped: share of sum |advantage| that got no gradient, by reason.
    residual: share of push that stays where all rollouts of a group have the same token; and what
    would stay with equal weights.
    against: share of moved tokens that moved against their push.
    lengths: mean tokens (words) of a rollout, by sign of its advantage.
    repeats: share of rollouts equal to another of their group.
    metrics: as `read_logged_metrics` has them.
    notes: a sentence for each column that the log lacked and that follows from others.
    missing: {what is not there: how to get it}.
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


# --- findings


def report_findings(table: pd.DataFrame, metrics: pd.DataFrame | None = None) -> Report:
    """Measure a token table: one of `read_rollouts`, or of a run's `tokens(step)`.

    metrics: as `read_logged_metrics` returns them.

    Raises ValueError for a table without the columns group, rollout, position, token, or without
    both reward and advantage.
    """
    rows, notes = _complete_rows(table)
    source = table.attrs.get("source", {})

    # what the log can tell: which rollouts share a prompt, and which tokens were sampled
    rollouts_per_group = rows.groupby(_GROUP)["rollout"].nunique()
    has_groups = source.get("groups") != "none" and rollouts_per_group.max() > 1
    has_ids = source.get("tokens") not in ("words", "cut anew")
    missing = {}
    if not has_groups:
        missing["groups"] = _NO_GROUPS
    if not has_ids:
        missing["ids"] = _NO_IDS
    for name in ("stopped", "logp_after"):
        if name not in rows:
            missing[name] = (
                f"The log has no column {name}; train with record_tokens: 10, or log the column."
            )

    groups = _group_table(rows) if has_groups else pd.DataFrame()
    return Report(
        counts=_counts(rows, "words" if source.get("tokens") == "words" else "tokens"),
        groups=groups,
        signal=_signal_share(groups) if has_groups else Interval(np.nan, np.nan, np.nan),
        tokens=_pushed_tokens(rows) if has_ids else pd.DataFrame(),
        shared=_shared_tokens(rows) if has_groups and has_ids else pd.DataFrame(),
        stopped=_stopped_shares(rows),
        residual=_whole_residual(rows) if has_groups and has_ids else (np.nan, np.nan),
        against=_share_against_push(rows),
        lengths=_lengths_by_sign(rows),
        repeats=_repeated_share(rows) if has_groups else np.nan,
        metrics=pd.DataFrame() if metrics is None else metrics,
        notes=[*source.get("notes", ()), *notes],
        missing=missing,
    )


def _complete_rows(table: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Rows that all have step, advantage, push and sign, and a note on each that was derived."""
    for name in ("group", "rollout", "position", "token"):
        if name not in table:
            raise ValueError(
                f"a report needs the column {name}; the table has {', '.join(table.columns)}."
            )
    rows = table.reset_index(drop=True).copy()
    rows.attrs = {}
    notes = []
    if "step" not in rows:
        rows["step"] = 0
    if _lacks(rows, "advantage"):
        if _lacks(rows, "reward"):
            raise ValueError(
                "a report needs the column reward or advantage; the table has neither."
            )
        rows["advantage"] = _centred_rewards(rows)
        notes.append(
            "The log has no advantages: they are each rollout's reward minus its group's mean."
        )
    if _lacks(rows, "push"):
        rows["push"] = rows["advantage"].astype(float)
        notes.append("The log has no weights as trained: a push here is the advantage.")
    # a rollout without a number pushes nothing
    for name in ("push", "advantage"):
        rows[name] = rows[name].astype(float).replace([np.inf, -np.inf], np.nan).fillna(0.0)
    rows["sign"] = np.sign(rows["advantage"]).astype(int)
    rows["token"] = rows["token"].astype(str).astype("category")
    return rows, notes


def _lacks(rows: pd.DataFrame, column: str) -> bool:
    """Whether a column is not there, or empty."""
    return column not in rows or rows[column].isna().all()


def _centred_rewards(rows: pd.DataFrame) -> np.ndarray:
    """Each row's reward of its rollout, minus the mean reward of its group."""
    reward = rows.groupby(_ROLLOUT)["reward"].first().astype(float)
    of_group = reward.groupby(level=[0, 1])
    centred = reward - of_group.transform("mean")
    # a mean of equals may be off by a rounding
    centred[of_group.transform(np.ptp) == 0] = 0.0
    return centred.reindex(pd.MultiIndex.from_frame(rows[_ROLLOUT])).to_numpy()


def _counts(rows: pd.DataFrame, unit: str) -> dict[str, int]:
    """Steps, groups, rollouts and tokens (or words) of a log."""
    rollouts = rows.drop_duplicates(_ROLLOUT)
    return {
        "steps": rows["step"].nunique(),
        "groups": len(rollouts.drop_duplicates(_GROUP)),
        "rollouts": len(rollouts),
        unit: len(rows),
    }


def _group_table(rows: pd.DataFrame) -> pd.DataFrame:
    """A row per group: size, signal, and which reward all of its rollouts have if it has none."""
    table = (
        rows.assign(absolute=rows["advantage"].abs())
        .groupby(_GROUP)
        .agg(size=("rollout", "nunique"), signal=("absolute", "max"))
        .reset_index()
    )
    table["signal"] = table["signal"] > 0
    if _lacks(rows, "reward"):
        return table.assign(reward="")

    # a group without signal has the lowest reward of the log throughout, the highest, or another
    ends = rows.groupby(_GROUP)["reward"].agg(["min", "max"]).reset_index()
    lowest = rows["reward"].min()
    highest = rows["reward"].max()
    kind = np.select([ends["max"] == lowest, ends["min"] == highest], ["lowest", "highest"], "one")
    if lowest == highest:
        kind = "one"
    return table.assign(reward=np.where(table["signal"] | ends["min"].isna(), "", kind))


def _signal_share(groups: pd.DataFrame) -> Interval:
    """The share of groups with signal, with an interval over steps, or over groups of few steps."""
    by_step = groups.groupby("step")["signal"].mean()
    units = by_step if len(by_step) >= _MIN_SAMPLE else groups["signal"]
    units = units.to_numpy(float)
    if len(units) < _MIN_SAMPLE:
        return Interval(units.mean(), np.nan, np.nan)
    mean, *ends = t_interval(units)
    return Interval(mean, *np.clip(ends, 0.0, 1.0))


def _pushed_tokens(rows: pd.DataFrame) -> pd.DataFrame:
    """A row per token text, the most pushed first."""
    parts = pd.DataFrame({"token": rows["token"], "count": 1})
    parts["up"] = rows["push"].clip(lower=0.0)
    parts["down"] = rows["push"].clip(upper=0.0)
    table = parts.groupby("token", observed=True).sum().reset_index()
    table["net"] = table["up"] + table["down"]
    table["total"] = table["up"] - table["down"]
    # what float32 leaves of pushes that cancel is no push
    table.loc[table["net"].abs() < _ROUNDING * table["total"], "net"] = 0.0
    table["cancelled"] = _cancelled(table["net"].abs(), table["total"])
    return table.astype({"token": str}).sort_values(
        ["total", "count"], ascending=False, ignore_index=True
    )


def _shared_tokens(rows: pd.DataFrame) -> pd.DataFrame:
    """How much of |push| cancels inside groups, by the first class of SHARED that fits a token."""
    push = rows["push"].to_numpy()
    sign = rows["sign"].to_numpy()
    # number of each row's place, and of its word within the group: (N,)
    place = rows.groupby(_PLACE, observed=True, sort=False).ngroup().to_numpy()
    word = rows.groupby([*_GROUP, "token"], observed=True, sort=False).ngroup().to_numpy()

    in_several_rollouts = np.bincount(place)[place] > 1
    under_plus = np.bincount(word, sign > 0)[word] > 0
    under_minus = np.bincount(word, sign < 0)[word] > 0
    class_of_row = np.select([in_several_rollouts, under_plus & under_minus], [0, 1], 2)

    table = []
    whole = max(float(np.abs(push).sum()), _TINY)
    # pushes of the first class are added up place by place, those of the others word by word
    for number, unit in enumerate((place, word, word)):
        rows_of_class = class_of_row == number
        total = float(np.abs(push[rows_of_class]).sum())
        net = 0.0
        if rows_of_class.any():
            net = float(np.abs(np.bincount(unit[rows_of_class], push[rows_of_class])).sum())
        table.append(
            {
                "shared": SHARED[number],
                "tokens": rows_of_class.mean(),
                "push": total / whole,
                "cancelled": float(_cancelled(net, total)),
            }
        )
    return pd.DataFrame(table)


def _whole_residual(rows: pd.DataFrame) -> tuple[float, float]:
    """|sum of push| / sum of |push| of places in all rollouts of a group; the same, equal weights.

    With equal weights it is 0 if the step holds the whole group, its advantages centred (D1 of
    arXiv 2604.13088).
    """
    group_sizes = rows.groupby(_GROUP)["rollout"].nunique()
    parts = rows.assign(
        push_size=rows["push"].abs(),
        advantage_size=rows["advantage"].abs(),
    )
    places = parts.groupby(_PLACE, observed=True).agg(
        rollouts=("rollout", "nunique"),
        push=("push", "sum"),
        push_size=("push_size", "sum"),
        advantage=("advantage", "sum"),
        advantage_size=("advantage_size", "sum"),
    )
    places = places[(places["rollouts"] > 1) & (places["push_size"] > 0)].reset_index()
    size_of_group = group_sizes.reindex(pd.MultiIndex.from_frame(places[_GROUP])).to_numpy()
    whole = places[places["rollouts"].to_numpy() == size_of_group]
    residual = whole["push"].abs() / whole["push_size"]
    with_equal_weights = whole["advantage"].abs() / whole["advantage_size"]
    return float(residual.mean()), float(with_equal_weights.mean())


def _stopped_shares(rows: pd.DataFrame) -> pd.Series:
    """Share of sum |advantage| that got no gradient, by reason; empty where that is not logged."""
    if "stopped" not in rows:
        return pd.Series(dtype=float)
    size = rows["advantage"].abs()
    share = size.groupby(rows["stopped"].astype(str)).sum() / max(size.sum(), _TINY)
    return share.reindex([reason for reason in STOPS[1:] if reason in share.index])


def _share_against_push(rows: pd.DataFrame) -> float:
    """Share of pushed tokens that moved against their push; NaN where no change is logged."""
    if "logp_after" not in rows or "logp" not in rows:
        return np.nan
    change = rows["logp_after"].astype(float) - rows["logp"].astype(float)
    moved = (change.abs() > _MIN_CHANGE) & (rows["push"] != 0)
    return float((change * rows["push"] < 0)[moved].mean())


def _lengths_by_sign(rows: pd.DataFrame) -> pd.Series:
    """Mean tokens (words) of rollouts, by sign of their advantage; those without are left out."""
    rollouts = rows.groupby(_ROLLOUT).agg(
        length=("position", "size"), advantage=("advantage", "sum")
    )
    rollouts = rollouts[rollouts["advantage"] != 0]
    sign = np.where(rollouts["advantage"] > 0, *SIGNS)
    return rollouts.groupby(sign)["length"].mean()


def _repeated_share(rows: pd.DataFrame) -> float:
    """Share of rollouts that are equal to an earlier one of their group, token by token."""
    texts = rows.groupby(_ROLLOUT)["token"].agg(lambda tokens: hash(tuple(tokens.cat.codes)))
    return float(texts.reset_index().duplicated([*_GROUP, "token"]).mean())


def _cancelled(net, total):
    """1 - net / total, and 0 where nothing pushes."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(np.asarray(total) > 0, 1 - np.asarray(net) / np.asarray(total), 0.0)


# --- warnings


def report_warnings(report: Report) -> list[str]:
    """Sentences of WARNINGS that apply, each with what to change; the first is to be done first."""
    residual, with_equal_weights = report.residual
    clipped, clipped_of = _clipped(report)
    first_entropy, last_entropy = _entropy_ends(report)
    negative_length = report.lengths.get("negative", np.nan)
    longer = negative_length / report.lengths.get("positive", np.nan) - 1

    # the number that decides about each warning
    numbers = {
        "lost": 1 - report.signal.mean,
        "repeats": report.repeats,
        "clipped": clipped,
        "truncated": max(
            report.stopped.get("truncated", 0.0),
            _recent_mean(report, "completions/clipped_ratio"),
        ),
        "stays": residual - with_equal_weights,
        "equal": with_equal_weights,
        "against": report.against,
        "longer": abs(longer),
        "fell": 1 - last_entropy / first_entropy if first_entropy else 0.0,
        "few": float(0 < len(report.groups) < _MIN_GROUPS),
    }
    # what the sentences say beside it
    words = {
        "advice": _advice_on_prompts(report.groups),
        "of": clipped_of,
        "residual": residual,
        "first": first_entropy,
        "last": last_entropy,
        "groups": len(report.groups),
        "unit": "word" if "words" in report.counts else "token",
        "than": "longer" if longer > 0 else "shorter",
    }
    return [
        warning.sentence.format(**words, **numbers)
        for name, warning in WARNINGS.items()
        # NaN, which no log gave, is never as large
        if numbers[name] >= warning.bound
    ]


def _advice_on_prompts(groups: pd.DataFrame) -> str:
    """What to do about groups of one reward: it depends on which reward most of them have."""
    if len(groups):
        best = (groups["reward"] == "highest").mean()
        worst = (groups["reward"] == "lowest").mean()
        if best > 2 * worst:
            return f"{best:.0%} have the highest reward throughout: pick harder prompts."
        if worst > 2 * best:
            return (
                f"{worst:.0%} have the lowest reward throughout: pick easier prompts, or sample"
                " larger groups."
            )
    return (
        "Raise the temperature, sample larger groups, or pick prompts that the policy solves now"
        " and then."
    )


def _clipped(report: Report) -> tuple[float, str]:
    """The share that clipping stopped, and of what: all advantage, or tokens if that is unknown."""
    if len(report.stopped):
        return report.stopped.reindex(["clip low", "clip high"]).sum(), "all advantage"
    return _recent_mean(report, "clip_ratio/region_mean"), "tokens"


def _entropy_ends(report: Report) -> tuple[float, float]:
    """The first and the last logged entropy in nats a token; zeros where none was logged."""
    if "entropy" not in report.metrics:
        return 0.0, 0.0
    entropy = report.metrics["entropy"].dropna().tolist()
    return (entropy[0], entropy[-1]) if entropy else (0.0, 0.0)


def _recent_mean(report: Report, name: str) -> float:
    """Mean of a metric's last five values; 0 where it was not logged."""
    values = report.metrics[name].dropna() if name in report.metrics else []
    return float(values.iloc[-5:].mean()) if len(values) else 0.0


# --- text


def report_text(report: Report) -> str:
    """The report as lines of text.

    The one thing to do comes first, then counts, what was found, what is missing, other warnings.
    """
    first, *others = report_warnings(report) or ["Nothing in this log asks for a change."]
    counts = ", ".join(f"{number:,} {name}" for name, number in report.counts.items())
    found = [*_finding_lines(report), *report.notes, *report.missing.values()]
    lines = [first, counts, *(f"- {line}" for line in found)]
    if others:
        lines.append("Then:")
        lines += [f"{number}. {warning}" for number, warning in enumerate(others, 1)]
    return "\n".join(lines)


def _finding_lines(report: Report) -> list[str]:
    """A sentence for each number that the log gave."""
    lines = []
    if len(report.groups):
        signal = report.signal
        interval = f" [{signal.low:.0%}, {signal.high:.0%}]" if signal.low < signal.high else ""
        lines.append(
            f"{signal.mean:.0%}{interval} of {len(report.groups):,} groups have an advantage to"
            " learn from."
        )
    if len(report.shared):
        shared = report.shared.set_index("shared")
        cancelled = (shared["push"] * shared["cancelled"]).sum()
        place = shared.loc[SHARED[0]]
        lines.append(
            f"{cancelled:.0%} of |push| cancels inside its group. Tokens that several rollouts have"
            f" at the same position hold {place['push']:.0%} of it, and {place['cancelled']:.0%} of"
            " that cancels."
        )
    if len(report.tokens):
        pushed = report.tokens[report.tokens["total"] > 0]
        if len(pushed):
            largest = pushed.loc[pushed["net"].abs().idxmax()]
            lines.append(
                f"The largest net push, {largest['net']:+.3g} of a sum of |push| of"
                f" {largest['total']:.3g} in {largest['count']:,} places, is on"
                f" {largest['token'][:24]!r}."
            )
    stopped = report.stopped[report.stopped > 0]
    if len(stopped):
        reasons = ", ".join(f"{share:.1%} ({reason})" for reason, share in stopped.items())
        lines.append(f"No gradient reached {reasons} of all advantage.")
    if np.isfinite(report.against):
        lines.append(
            f"{report.against:.0%} of the pushed tokens that moved went against their own push."
        )
    if len(report.lengths):
        unit = "words" if "words" in report.counts else "tokens"
        lengths = ", ".join(
            f"{length:.1f} {unit} with {sign} advantage" for sign, length in report.lengths.items()
        )
        lines.append(f"Rollouts have on average {lengths}.")
    return lines
