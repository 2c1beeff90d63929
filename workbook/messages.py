"""What is said while work goes on, and when it fails.

Progress is a bar or a report, an error is one sentence of bounded length that knows its field.

    # what probes do
    for rows in progress(parts, "scoring"):
        ...

    # what a widget does around a probe, in a thread: report(done, total, what) may raise Stopped
    with reporting(report):
        compute()

    # lr=-1 must be above 0.
    raise InvalidValue("lr", lr, "above 0")
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from math import isfinite
from typing import Any

from workbook.places import missing_package

# seconds of work before a bar shows it
_BAR_DELAY_S = 2.0
# report, partial and depth of the work of this thread
_work = threading.local()


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
    """Raise InvalidValue for the first setting outside [low, high], or not finite.

    closed: whether the ends are inside.

    >>> require_range(0, 1, share=0.5)
    """
    for field, value in settings.items():
        inside = low <= value <= high if closed else low < value < high
        if not (inside and isfinite(value)):
            bounds = f"from {low} to {high}" if closed else f"strictly between {low} and {high}"
            raise InvalidValue(field, value, bounds)


def progress(items: Iterable, what: str, total: int | None = None) -> Iterator:
    """Yield the items under a bar of progress, which appears after two seconds and goes at the end.

    Inside `reporting`, the report is called before each item instead, and once all are done.
    """
    report = getattr(_work, "report", None)
    if report is None:
        from tqdm.auto import tqdm

        yield from tqdm(items, desc=what, total=total, delay=_BAR_DELAY_S, leave=False)
        return
    total = total or (len(items) if isinstance(items, Sized) else 0)
    # only the outermost loop says how far the work is
    is_outermost = _work.depth == 0
    done = 0
    _work.depth += 1
    try:
        for item in items:
            if is_outermost:
                report(done, total, what)
            else:
                report(-1, 0, what)
            yield item
            done += 1
        if is_outermost:
            report(total or done, total or done, what)
    finally:
        _work.depth -= 1


def show_partial(**tables) -> None:
    """Hand tables of what is done so far to `reporting`'s `partial`; nothing outside of it."""
    partial = getattr(_work, "partial", None)
    if partial is not None:
        partial(**tables)


@contextmanager
def reporting(report: Callable[[int, int, str], None], partial: Callable | None = None):
    """Call report(done, total, what) for the outermost `progress` of this thread.

    For those within it, it is report(-1, 0, what).  partial: receives the tables of `show_partial`.
    """
    _work.report = report
    _work.partial = partial
    _work.depth = 0
    try:
        yield
    finally:
        _work.report = None
        _work.partial = None


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them.

    >>> duration(0.31), duration(90), duration(9000)
    ('0.31 s', '1.5 min', '2.5 h')
    """
    if seconds >= 1.5 * 3600:
        return f"{seconds / 3600:.2g} h"
    if seconds >= 1.5 * 60:
        return f"{seconds / 60:.2g} min"
    return f"{seconds:.2g} s"


def pace(done: int, total: int, seconds: float, each: float | None = None) -> str:
    """How far work is, and how long the rest will take.

    each: seconds of an item of the rest, by default those of the items so far.

    >>> pace(0, 4, 0.1), pace(1, 4, 5.0)
    ('0 of 4; the first will tell how long all take', '1 of 4, 5 s so far, about 15 s left')
    """
    if not done:
        return f"0 of {total}; the first will tell how long all take"
    if each is None:
        each = seconds / done
    left = each * (total - done)
    text = f"{done} of {total}, {duration(seconds)} so far"
    return f"{text}, about {duration(left)} left" if left else text


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
        place = f"{error.filename}: " if error.filename else ""
        return one_line(f"{place}{error.strerror}.", longest)
    return one_line(error, longest) or f"{type(error).__name__}, without a message."


def markdown_table(names: Sequence[str], rows: Iterable[Sequence]) -> str:
    """Write names and rows as a table in Markdown."""
    rule = ["---"] * len(names)
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in [names, rule, *rows])
