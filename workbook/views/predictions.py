"""The reader's predictions: one JSON file, written by a click alone, whole or not at all, and never thrown away.

The first guess is what counts. A later one is kept beside it, and so is whether the answer had been shown before.
What of the file can't be read is kept under another name when the next prediction is written.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from workbook.places import predictions_file
from workbook.training.files import read_json, write_json
from workbook.views.guesses import Kind, about, read_kind

VERSION = 1


@dataclass(frozen=True)
class Prediction:
    """What a reader predicted, and what came out.

    first, latest: guesses as of `guesses`, latest None if the first was never changed.  late: whether the answer had
    been shown before the first guess.  answer: as last revealed, None before.
    """

    key: str
    question: str
    kind: Kind
    first: dict
    recorded: str
    late: bool = False
    latest: dict | None = None
    answer: object = None

    @property
    def chapter(self) -> str:
        return self.key[:2]

    @property
    def counts(self) -> bool:
        """Whether the calibration counts it: answered, and predicted before."""
        return self.answer is not None and not self.late

    def compared(self) -> dict:
        """The first guess compared with the answer."""
        return self.kind.compare(self.first, self.answer)

    def summary(self) -> str:
        """The first guess and the answer, in a line."""
        if self.answer is None:
            return f"{self.kind.describe(self.first)}; the answer is not shown yet."
        late = " Predicted after the answer had been shown, so it does not count." if self.late else ""
        answer = self.kind.format_answer(self.answer).replace("**", "")
        return f"{self.kind.describe(self.first)}; the answer is {answer}: {self.compared()['verdict']}.{late}"

    def to_json(self) -> dict:
        names = ("question", "first", "recorded", "late", "latest", "answer")
        return {name: getattr(self, name) for name in names} | {"kind": self.kind.kind, "about": about(self.kind)}


def read_predictions(path: Path | None = None) -> tuple[dict[str, Prediction], str]:
    """Read {key: prediction} and a sentence on what of the file can't be read, "" for nothing."""
    path = path or predictions_file()
    if not path.exists() and not path.is_symlink():
        return {}, ""
    remedy = "the next prediction starts a new file and keeps this one beside it"
    try:
        entries = read_json(path, dict).get("predictions")
        if not isinstance(entries, dict):
            raise ValueError(f"{path} is damaged: it holds no predictions.")
    except ValueError as error:
        return {}, f"{str(error).rstrip('.')}; {remedy}."
    whole, damaged = {}, []
    for key, entry in entries.items():
        try:
            whole[key] = _read(key, entry)
        except ValueError:
            damaged.append(key[:40])
    problem = f"{path} is damaged at {', '.join(map(repr, damaged[:3]))}; {remedy}." if damaged else ""
    return whole, problem


def _read(key: str, entry) -> Prediction:
    """One entry of the file; ValueError for one that is not whole."""
    if not isinstance(entry, dict) or not all(isinstance(entry.get(name), str) for name in ("question", "recorded")):
        raise ValueError(f"{key!r} is not whole.")
    kind = read_kind(entry.get("kind"), entry.get("about"))
    latest, answer = entry.get("latest"), entry.get("answer")
    return Prediction(
        key,
        entry["question"],
        kind,
        first=kind.check(entry.get("first")),
        recorded=entry["recorded"],
        late=bool(entry.get("late")),
        latest=None if latest is None else kind.check(latest),
        answer=None if answer is None else kind.check_answer(answer),
    )


def find_prediction(key: str, kind: Kind) -> tuple[Prediction | None, str]:
    """What the file holds for a question of this kind, and a sentence on what can't be read."""
    predictions, problem = read_predictions()
    mine = predictions.get(key)
    return (mine if mine is not None and mine.kind == kind else None), problem


def record(key: str, question: str, kind: Kind, guess, seen: bool) -> Prediction:
    """Write a guess: the first one, or a later one beside it. seen: whether the answer has been shown.

    Raises ValueError for a guess that is not whole, StorageError where the file can't be written.
    """
    guess = kind.check(guess)
    mine, _ = find_prediction(key, kind)
    if mine is None:
        day = time.strftime("%Y-%m-%d")
        mine = Prediction(key, question, kind, first=guess, recorded=day, late=seen)
    else:
        mine = replace(mine, latest=guess)
    _write(mine)
    return mine


def record_answer(mine: Prediction, answer) -> Prediction:
    """Write the answer to a prediction, if it is another than the file holds."""
    if mine.answer == answer:
        return mine
    _write(mine := replace(mine, answer=answer))
    return mine


def _write(mine: Prediction) -> None:
    path = predictions_file()
    predictions, problem = read_predictions(path)
    if problem:
        path.rename(_unused(path))
    entries = {key: one.to_json() for key, one in (predictions | {mine.key: mine}).items()}
    write_json(path, {"version": VERSION, "predictions": entries})


def _unused(path: Path) -> Path:
    """A name for a damaged file, e.g. predictions.damaged-1.json."""
    names = (path.with_name(f"{path.stem}.damaged-{k}{path.suffix}") for k in range(1, 1000))
    return next(name for name in names if not name.exists())
