"""Three kinds of predictions: a number with a range, a choice with a confidence, a curve over given x.

Each kind checks what a page or a file brings (`check`, `check_answer`), says it in words (`describe`, `format_answer`),
and compares it with the answer (`compare`). What comes back is plain JSON values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from workbook.views.style import typeset

RANGE = 0.8  # how sure the reader is that the answer lies in the range of a number


@dataclass(frozen=True)
class Number:
    """A best guess, and a range that holds the answer with a probability of RANGE; low, high: ends of the scale."""

    low: float
    high: float
    kind = "number"

    def __post_init__(self):
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"number=({self.low!r}, {self.high!r}) must be two finite numbers, the smaller one first.")

    def check(self, guess) -> dict:
        """Return a whole guess {guess, low, high}; ValueError, in one sentence, for any other."""
        names = {"guess": "best guess", "low": "lower end", "high": "upper end"}
        values = {key: _finite(_part(guess, key), name) for key, name in names.items()}
        if not values["low"] <= values["guess"] <= values["high"]:
            raise ValueError(
                f"Your best guess, {_text(values['guess'])}, must lie in your range from {_text(values['low'])} to "
                f"{_text(values['high'])}."
            )
        if values["low"] == values["high"]:
            raise ValueError("Your range has no width: give two different ends.")
        for key, name in names.items():
            _within(values[key], name, self.low, self.high)
        return values

    def check_answer(self, answer) -> float:
        """Return the answer as a number; ValueError for what is none."""
        return _finite(answer, "answer")

    def describe(self, guess: Mapping) -> str:
        return f"{_text(guess['guess'])} ({100 * RANGE:.0f} % sure: {_text(guess['low'])} to {_text(guess['high'])})"

    def format_answer(self, answer: float) -> str:
        return f"**{_text(answer)}**"

    def prompt(self) -> str:
        return f"a number from {_text(self.low)} to {_text(self.high)}"

    def compare(self, guess: Mapping, answer: float) -> dict:
        """{distance in shares of the scale, inside, verdict}."""
        away = abs(guess["guess"] - answer)
        inside = guess["low"] <= answer <= guess["high"]
        verdict = f"{'inside' if inside else 'outside'} your range, {_text(away)} from your best guess"
        return {"distance": away / (self.high - self.low), "inside": inside, "verdict": verdict}


@dataclass(frozen=True)
class Choice:
    """One of some options, and how sure the reader is of it, from chance to 1."""

    options: tuple[str, ...]
    kind = "choice"

    def __post_init__(self):
        object.__setattr__(self, "options", tuple(self.options))
        if len(set(self.options)) < 2 or not all(isinstance(one, str) for one in self.options):
            raise ValueError(f"choice={list(self.options)!r} must be two or more different texts.")

    def check(self, guess) -> dict:
        """Return a whole guess {option, sure}; ValueError, in one sentence, for any other."""
        option, sure = _part(guess, "option"), _finite(_part(guess, "sure"), "confidence")
        if option not in self.options:
            raise ValueError(f"Choose one of {self.listed()}.")
        _within(sure, "confidence", 1 / len(self.options) - 1e-6, 1.0)
        return {"option": option, "sure": sure}

    def check_answer(self, answer) -> str:
        """Return the answer; ValueError for what is no option."""
        if answer not in self.options:
            raise ValueError(f"answer={answer!r} is none of the choices: {self.listed()}.")
        return answer

    def listed(self) -> str:
        return ", ".join(f"“{option}”" for option in self.options)

    def describe(self, guess: Mapping) -> str:
        return f"“{guess['option']}”, {100 * guess['sure']:.0f} % sure"

    def format_answer(self, answer: str) -> str:
        return f"**“{answer}”**"

    def prompt(self) -> str:
        return f"one of {self.listed()}"

    def compare(self, guess: Mapping, answer: str) -> dict:
        """{distance (the Brier score), right, sure, verdict}."""
        right = guess["option"] == answer
        brier = (guess["sure"] - right) ** 2
        verdict = f"{'as you said' if right else 'not what you said'}; Brier score {_text(brier)} (0 best, 1 worst)"
        return {"distance": brier, "right": right, "sure": guess["sure"], "verdict": verdict}


@dataclass(frozen=True)
class Curve:
    """A height for each of the given x; y: the scale's two ends."""

    x: tuple[float, ...]
    y: tuple[float, float]
    x_title: str = "x"
    y_title: str = "y"
    kind = "curve"

    def __post_init__(self):
        object.__setattr__(self, "x", tuple(_finite(value, "x") for value in self.x))
        object.__setattr__(self, "y", tuple(_finite(value, "y") for value in self.y))
        if len(self.x) < 2 or list(self.x) != sorted(set(self.x)):
            raise ValueError(f"curve: x={list(self.x)!r} must be two or more rising numbers.")
        if len(self.y) != 2 or self.y[0] >= self.y[1]:
            raise ValueError(f"curve: y={self.y!r} must be the scale's two ends, the smaller one first.")

    def check(self, guess) -> dict:
        """Return a whole guess {y}; ValueError, in one sentence, for any other."""
        heights = self._heights(_part(guess, "y"), "curve")
        for x, height in zip(self.x, heights, strict=True):
            _within(height, f"height at {_text(x)}", *self.y)
        return {"y": heights}

    def check_answer(self, answer) -> list[float]:
        """Return the answer as one number for each x; ValueError for any other."""
        return self._heights(answer, "answer")

    def _heights(self, values, name: str) -> list[float]:
        values = list(values) if isinstance(values, Sequence) or hasattr(values, "__array__") else []
        if isinstance(values, str) or len(values) != len(self.x):
            raise ValueError(f"Your {name} needs {len(self.x)} numbers, one at each of {_listed(self.x)}.")
        return [_finite(value, f"{name} at {_text(x)}") for x, value in zip(self.x, values, strict=True)]

    def describe(self, guess: Mapping) -> str:
        return f"{_listed(guess['y'])} at {self.x_title} {_listed(self.x)}"

    def format_answer(self, answer: Sequence[float]) -> str:
        return f"**{_listed(answer)}** at {self.x_title} {_listed(self.x)}"

    def prompt(self) -> str:
        ends = f"from {_text(self.y[0])} to {_text(self.y[1])}"
        return f"a curve: {self.y_title}, {ends}, at {self.x_title} {_listed(self.x)}"

    def compare(self, guess: Mapping, answer: Sequence[float]) -> dict:
        """{distance: mean, in shares of the scale; verdict}."""
        away = [abs(mine - true) for mine, true in zip(guess["y"], answer, strict=True)]
        k = max(range(len(away)), key=away.__getitem__)
        mean = sum(away) / len(away)
        verdict = (
            f"your curve is {_text(mean)} off on average, most at {_text(self.x[k])}: {_text(guess['y'][k])} against "
            f"{_text(answer[k])}"
        )
        return {"distance": mean / (self.y[1] - self.y[0]), "verdict": verdict}


Kind = Number | Choice | Curve
KINDS = {kind.kind: kind for kind in (Number, Choice, Curve)}


def make_kind(number=None, choice=None, curve=None) -> Kind:
    """The kind of a question: exactly one of number=(low, high), choice=[...], curve={...}; ValueError otherwise."""
    asked = [name for name, value in {"number": number, "choice": choice, "curve": curve}.items() if value is not None]
    if len(asked) != 1:
        raise ValueError(
            f"predict needs exactly one of number, choice and curve; here are {', '.join(asked) or 'none'}."
        )
    if number is not None:
        low, high = number
        return Number(float(low), float(high))
    return Choice(tuple(choice)) if choice is not None else Curve(**curve)


def read_kind(name, about) -> Kind:
    """The kind that a file or a page names; ValueError for none."""
    if name not in KINDS or not isinstance(about, dict):
        raise ValueError(f"{name!r} is no kind of prediction: there are {', '.join(KINDS)}.")
    try:
        return KINDS[name](**about)
    except TypeError:
        raise ValueError(f"{about!r} does not describe a {name}.") from None


def about(kind: Kind) -> dict:
    """What `read_kind` makes the same kind of, as JSON values."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(kind).items()}


def _part(guess, key: str):
    return guess.get(key) if isinstance(guess, Mapping) else None


def _finite(value, name: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if not math.isfinite(number):
        shown = "nothing is there yet" if value in (None, "") else f"{str(value)[:40]!r} is no number"
        raise ValueError(f"The {name} must be a number; {shown}.")
    return number


def _within(value: float, name: str, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"The {name}, {_text(value)}, must lie between {_text(low)} and {_text(high)}.")


def _text(value: float) -> str:
    return typeset(f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}")


def _listed(values: Sequence[float]) -> str:
    return ", ".join(map(_text, values))
