"""What is said while work goes on, and when it fails: a bar or a report of progress, one sentence
of bounded length, an error that knows its field.

    for rows in progress(parts, "scoring"):     # what probes do
        ...

    with reporting(report):                     # what a widget does around a probe, in a thread
        compute()                               # report(done, total, what) may raise Stopped

    raise InvalidValue("lr", lr, "above 0")     # lr=-1 must be above 0.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from math import isfinite
from typing import Any

from workbook.places import missing_package

SHOWN_AFTER = 2.0  # seconds of work until a bar shows it
_HERE = threading.local()  # report, partial and depth of the work of this thread


class Stopped(Exception):
    """The work was asked to stop."""


class InvalidValue(ValueError):
    """A value that a field cannot take; its text is one sentence.

    field: the field's name.
    value: what was given, None where nothing was.
    valid: what the field can take: a phrase that completes "must be ...", or the choices.
    sentence: said instead of "field=value must be valid.", where there is more to say.

    >>> print(InvalidValue("lr", -1, "above 0"))
    lr=-1 must be above 0.
    >>> print(InvalidValue("level", "word", ("token", "sequence")))
    level='word' must be one of token, sequence.
    >>> from copy import copy  # as a process hands it to another
    >>> copy(InvalidValue("lr", -1, "above 0")).value
    -1
    """

    def __init__(
        self, field: str, value: object, valid: str | Collection, sentence: str | None = None
    ):
        if sentence is None:
            phrase = valid if isinstance(valid, str) else f"one of {', '.join(map(str, valid))}"
            sentence = f"{field}={show_value(value)} must be {phrase}."
        super().__init__(sentence)
        self.field = field
        self.value = value
        self.valid = valid

    def __reduce__(self):
        # an error comes back whole from another process
        return type(self), (self.field, self.value, self.valid, str(self))


def reworded(error: ValueError, sentence: str) -> ValueError:
    """Make the same error with another sentence: it keeps what it knows of its field.

    >>> reworded(InvalidValue("lr", -1, "above 0"), "run.yaml: lr=-1 must be above 0.").field
    'lr'
    """
    if isinstance(error, InvalidValue):
        return InvalidValue(error.field, error.value, error.valid, sentence)
    return ValueError(sentence)


def require_one_of(field: str, value: object, choices: Collection) -> None:
    """Raise InvalidValue unless the value is one of the choices.

    >>> require_one_of("level", "token", ("token", "sequence"))
    """
    if value not in choices:
        raise InvalidValue(field, value, choices)


def require_range(low: float, high: float, closed: bool = True, **settings: float) -> None:
    """Raise InvalidValue for the first setting outside [low, high] (not closed: (low, high)), or
    not finite.

    >>> require_range(0, 1, share=0.5)
    """
    for field, value in settings.items():
        inside = low <= value <= high if closed else low < value < high
        if not (inside and isfinite(value)):
            bounds = f"from {low} to {high}" if closed else f"strictly between {low} and {high}"
            raise InvalidValue(field, value, bounds)


def progress(items: Iterable, what: str, total: int | None = None) -> Iterator:
    """Yield the items, with a bar that shows how far the work is once it has taken two seconds, and
    is gone at the end.

    Inside `reporting`, the report is called before each item instead, and once all are done.
    """
    if (report := getattr(_HERE, "report", None)) is None:
        from tqdm.auto import tqdm

        yield from tqdm(items, desc=what, total=total, delay=SHOWN_AFTER, leave=False)
        return
    total = total or (len(items) if isinstance(items, Sized) else 0)
    outermost, done = _HERE.depth == 0, 0
    _HERE.depth += 1
    try:
        for item in items:
            report(*((done, total) if outermost else (-1, 0)), what)
            yield item
            done += 1
        if outermost:
            report(total or done, total or done, what)
    finally:
        _HERE.depth -= 1


def show_partial(**tables) -> None:
    """Hand tables of what is done so far to `reporting`'s `partial`; nothing outside of it."""
    if partial := getattr(_HERE, "partial", None):
        partial(**tables)


@contextmanager
def reporting(report: Callable[[int, int, str], None], partial: Callable | None = None):
    """Call report(done, total, what) for the outermost `progress` of this thread, and report(-1, 0,
    what) within it.

    partial: receives the tables of `show_partial`.
    """
    _HERE.report, _HERE.partial, _HERE.depth = report, partial, 0
    try:
        yield
    finally:
        _HERE.report = _HERE.partial = None


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them.

    >>> duration(0.31), duration(90), duration(9000)
    ('0.31 s', '1.5 min', '2.5 h')
    """
    unit, name = next(
        ((unit, name) for unit, name in ((3600, "h"), (60, "min")) if seconds >= 1.5 * unit),
        (1, "s"),
    )
    return f"{seconds / unit:.2g} {name}"


def pace(done: int, total: int, seconds: float, each: float | None = None) -> str:
    """How far work is, and how long it will still take: each of the rest as long as those so far,
    if not `each`.

    >>> pace(0, 4, 0.1), pace(1, 4, 5.0)
    ('0 of 4; the first will tell how long all take', '1 of 4, 5 s so far, about 15 s left')
    """
    if not done:
        return f"0 of {total}; the first will tell how long all take"
    left = (seconds / done if each is None else each) * (total - done)
    return (
        f"{done} of {total}, {duration(seconds)} so"
        f" far{f', about {duration(left)} left' if left else ''}"
    )


def one_line(text: object, longest: int = 300) -> str:
    """Text on one line, cut off after so many characters."""
    line = " ".join(str(text).split())
    return line if len(line) <= longest else line[: longest - 3] + "..."


def show_value(value: Any) -> str:
    """A value as Python writes it, on one line and cut off where it is long."""
    try:
        return one_line(repr(value), 80)
    except (ValueError, RecursionError):
        # an integer of more than 4,300 digits, or nested too deeply
        return f"a {type(value).__name__} that is too large to show"


def explain_error(error: BaseException, longest: int = 300) -> str:
    """An error's message as one sentence, without the names that Python has for errors."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return missing_package(error.name)
    if isinstance(error, OSError) and error.strerror:
        return one_line(
            f"{f'{error.filename}: ' if error.filename else ''}{error.strerror}.", longest
        )
    return one_line(error, longest) or f"{type(error).__name__}, without a message."


def markdown_table(names: Sequence[str], rows: Iterable[Sequence]) -> str:
    """Write names and rows as a table in Markdown."""
    return "\n".join(
        f"| {' | '.join(map(str, row))} |" for row in [names, ["---"] * len(names), *rows]
    )
