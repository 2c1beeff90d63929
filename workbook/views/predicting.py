"""predict and reveal: a prediction that is recorded by a click before the answer is shown, and
scored after it.

    predict("05-shares", "Which share of tokens in worse rollouts becomes more likely?", number=(0,
    1)) reveal("05-shares", measured_share)

Keys begin with the two digits of their chapter. One JSON file holds them all. Running cells records
nothing and shows no answer: that waits behind a button until it is asked for or a prediction is
recorded. A guess is recorded once; it counts if the answer had not been shown.
"""

import html
import json
import math
import re
import time

import pandas as pd
import traitlets
from IPython.display import DisplayHandle, display
from scipy.stats import binomtest

from workbook.messages import InvalidValue
from workbook.places import predictions_file
from workbook.views.charts import curve_chart
from workbook.views.live import PageWidget
from workbook.views.style import printable, typeset

RANGE = 0.8  # how sure the reader is that the answer lies in the range of a number
NAMES = {"number": "80 % ranges", "choice": "choices", "curve": "curves"}
ENDS = {"low": "lower end", "guess": "best guess", "high": "upper end"}
_asked: dict[str, tuple[str, dict]] = {}  # key -> question and `about`, of this kernel
_shown: set[str] = set()  # keys whose answer this kernel has shown
_hidden = {}  # key -> the Answer that waits for it


def question_of(number=None, choice=None, curve=None) -> dict:
    """What is asked for: kind, and low and high, options, or x, y, x_title and y_title."""
    if choice is not None:
        return {"kind": "choice", "options": list(choice)}
    low, high = map(float, number if curve is None else curve["y"])
    if curve is None:
        return {"kind": "number", "low": low, "high": high}
    axes = {"x": list(map(float, curve["x"])), "y": [low, high]}
    return {"kind": "curve", "x_title": "x", "y_title": "y"} | curve | axes


def check_guess(about: dict, guess) -> dict:
    """A whole guess, {guess, low, high}, {option, sure} or {y}; ValueError, in one sentence, for
    any other.
    """
    guess = guess if isinstance(guess, dict) else {}
    if about["kind"] == "choice":
        if guess.get("option") not in about["options"]:
            raise ValueError(f"Choose one of {', '.join(about['options'])}.")
        chance = 1 / len(about["options"])
        return {
            "option": guess["option"],
            "sure": _number(guess.get("sure"), "confidence", chance - 1e-6, 1.0),
        }
    if about["kind"] == "curve":
        return {"y": _heights(about, guess.get("y"), *about["y"])}
    ends = {
        key: _number(guess.get(key), name, about["low"], about["high"])
        for key, name in ENDS.items()
    }
    if not ends["low"] <= ends["guess"] <= ends["high"] or ends["low"] == ends["high"]:
        raise ValueError(
            "Your best guess must lie in your range, and the range needs two different ends."
        )
    return ends


def describe_guess(about: dict, guess: dict) -> str:
    if about["kind"] == "choice":
        return f"“{guess['option']}”, {100 * guess['sure']:.0f} % sure"
    if about["kind"] == "curve":
        return f"{_text(*guess['y'])} at {about['x_title']} {_text(*about['x'])}"
    return f"{_text(guess['guess'])} (80 % sure: {_text(guess['low'])} to {_text(guess['high'])})"


def score(about: dict, guess: dict, answer) -> dict:
    """A guess beside the answer: distance in shares of the scale (of a choice its Brier score),
    held, verdict.
    """
    if about["kind"] == "choice":
        held = guess["option"] == answer
        brier = (guess["sure"] - held) ** 2
        words = "as you said" if held else "not what you said"
        return {
            "distance": brier,
            "held": held,
            "verdict": f"{words}; Brier score {_text(brier)} (0 best, 1 worst)",
        }
    if about["kind"] == "number":
        away, held = abs(guess["guess"] - answer), guess["low"] <= answer <= guess["high"]
        words = f"{'inside' if held else 'outside'} your range, {_text(away)} from your best guess"
        return {"distance": away / (about["high"] - about["low"]), "held": held, "verdict": words}
    away = [abs(mine - true) for mine, true in zip(guess["y"], answer, strict=True)]
    mean, worst = sum(away) / len(away), away.index(max(away))
    words = f"your curve is {_text(mean)} off on average, most at {_text(about['x'][worst])}"
    return {"distance": mean / (about["y"][1] - about["y"][0]), "held": None, "verdict": words}


def read_predictions() -> dict[str, dict]:
    """Read {key: question, about, first (the guess), recorded, late, answer}; ValueError for a
    damaged file.
    """
    path = predictions_file()
    try:
        return json.loads(path.read_text("utf-8"))["predictions"] if path.exists() else {}
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"{path} is damaged: move it away, and your predictions start anew."
        ) from None


def _write(key: str, entry: dict) -> None:
    text = json.dumps({"predictions": read_predictions() | {key: entry}}, indent=2)
    predictions_file().parent.mkdir(parents=True, exist_ok=True)
    predictions_file().write_text(text + "\n", "utf-8")


def find_prediction(key: str, about: dict) -> dict | None:
    """What is recorded under a key for this very question."""
    mine = read_predictions().get(key)
    return mine if mine and mine["about"] == about else None


class PredictionForm(PageWidget):
    """One question with its form, or what was recorded before."""

    kind = traitlets.Unicode("predict").tag(sync=True)
    key = traitlets.Unicode().tag(sync=True)
    question = traitlets.Unicode().tag(sync=True)
    about = traitlets.Dict().tag(sync=True)
    draft = traitlets.Dict().tag(sync=True)  # what stands in the form, whole or not
    recorded = traitlets.Unicode().tag(sync=True)  # a sentence, "" before
    message = traitlets.Unicode().tag(sync=True)

    def __init__(self, key: str, question: str, about: dict):
        super().__init__(key=key, question=question, about=about)
        self._show_recorded()
        self.on_msg(lambda _, content, buffers: self.record(content.get("guess")))

    def record(self, guess) -> None:
        """Record a guess once, as the button does; a guess that is not whole is answered by a
        sentence.
        """
        try:
            first = {"first": check_guess(self.about, guess), "recorded": time.strftime("%Y-%m-%d")}
            if find_prediction(self.key, self.about) is None:
                first |= {
                    "question": self.question,
                    "about": self.about,
                    "late": self.key in _shown,
                    "answer": None,
                }
                _write(self.key, first)
            self.message = ""
            if self.key in _hidden:
                _hidden.pop(self.key).judge()
        except (ValueError, OSError) as error:
            self.message = printable(error)
        self._show_recorded()

    def _show_recorded(self) -> None:
        mine = find_prediction(self.key, self.about)
        if mine is None:
            return
        text = f"Recorded {mine['recorded']}: {describe_guess(self.about, mine['first'])}."
        if mine["late"]:
            text += " The answer had been shown before, so it does not count."
        self.recorded = text

    def picture(self) -> tuple[dict, dict]:  # where no kernel runs
        about, kind = self.about, self.about["kind"]
        form = (
            f"one of {', '.join(about['options'])}"
            if kind == "choice"
            else f"a curve over {about.get('x_title')}"
        )
        form = (
            f"a number from {_text(about['low'])} to {_text(about['high'])}"
            if kind == "number"
            else form
        )
        text = f"{self.question} ({form})"
        return {"text/markdown": f"> **Predict.** {text}", "text/plain": f"Predict. {text}"}, {}


class Answer(PageWidget):
    """An answer behind a button; shown at a click, or as soon as a prediction is recorded."""

    kind = traitlets.Unicode("predict").tag(sync=True)
    text = traitlets.Unicode().tag(sync=True)
    shown = traitlets.Bool(False).tag(sync=True)

    def __init__(self, key: str, answer):
        self.key, self.answer = key, answer
        super().__init__(text=_judged(key, answer))
        self.observe(lambda _: _shown.add(key), "shown")

    def judge(self) -> None:
        """Show the answer beside what has been recorded."""
        self.text, self.shown = _judged(self.key, self.answer), True

    def picture(self) -> tuple[dict, dict]:  # where no kernel runs
        words = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", html.escape(self.text))
        text = f"<details><summary>Show the answer</summary>\n<p>{words}</p></details>"
        return {"text/html": text, "text/plain": self.text.replace("**", "")}, {}


def predict(key: str, question: str, *, number=None, choice=None, curve=None) -> None:
    """Ask for a prediction, whose answer `reveal` shows under the same key.

    One of number: (low, high), the scale of a best guess and of an 80 % range; choice: the options;
    curve: x (rising numbers), y (the scale's ends), x_title and y_title.
    """
    about = question_of(number, choice, curve)
    _asked[key] = question, about
    display(PredictionForm(key, question, about))


def reveal(key: str, answer) -> None:
    """Show the answer to a prediction, the reader's own guess and how far off it was; record the
    answer beside it.

    Where none is recorded yet, the answer waits behind a button.

    answer: a number, one of the choices, or the heights of the curve.
    """
    if key not in _asked:
        raise InvalidValue(
            "key", key, f"asked before: run the cell with predict({key!r}, ...) first"
        )
    question, about = _asked[key]
    if about["kind"] != "choice":
        answer = _number(answer, "answer") if about["kind"] == "number" else _heights(about, answer)
    if (mine := find_prediction(key, about)) is None:
        _hidden[key] = Answer(key, answer)
        return display(_hidden[key])
    text = _judged(key, answer)
    bundle = {
        "text/markdown": html.escape(printable(text), quote=False),
        "text/plain": text.replace("**", ""),
    }
    DisplayHandle().display(bundle, raw=True)
    if about["kind"] == "curve":
        lines = {"your prediction": mine["first"]["y"], "answer": answer}
        tables = [
            pd.DataFrame({"x": about["x"], "mean": ys, "low": ys, "high": ys})
            for ys in lines.values()
        ]
        curve = pd.concat(
            [table.assign(curve=name) for name, table in zip(lines, tables, strict=True)]
        )
        look = {
            "series": "curve",
            "log2": about["x"][0] > 0,
            "title": "Your prediction and the answer",
        }
        axes = {name: about[name] for name in ("x_title", "y_title")}
        display(curve_chart(curve, "x", **look, **axes, subtitle=question[:110]))


def _judged(key: str, answer) -> str:
    """The answer in a sentence, beside the guess that is recorded, if any; then the answer is
    recorded, too.
    """
    about = _asked[key][1]
    shown = f"**{answer if about['kind'] == 'choice' else _text(*(answer if about['kind'] == 'curve' else [answer]))}**"
    if (mine := find_prediction(key, about)) is None:
        return f"The answer is {shown}."
    _shown.add(key)
    _write(key, mine | {"answer": answer})
    verdict = score(about, mine["first"], answer)["verdict"]
    text = (
        f"You predicted {describe_guess(about, mine['first'])}. The answer is {shown}: {verdict}."
    )
    return text + " (Only a guess before the answer was shown counts.)" * mine["late"]


def calibration() -> None:
    """Show how well the reader's predictions held: how often, against how sure the reader was."""
    rows = []
    for mine in read_predictions().values():
        if mine["answer"] is not None and not mine["late"]:
            scored = score(mine["about"], mine["first"], mine["answer"])
            sure = mine["first"].get("sure", RANGE)
            rows.append({"kind": mine["about"]["kind"], "sure": sure} | scored)
    table = pd.DataFrame(rows)
    if table.empty:
        return print(
            "No prediction counts so far: press a prediction's button before its answer is shown."
        )
    for kind, part in table.groupby("kind"):
        text = f"{len(part)} {NAMES[kind]}: mean distance {part['distance'].mean():.2f}"
        if kind != "curve":
            low, high = binomtest(held := int(part["held"].sum()), len(part)).proportion_ci(
                method="wilson"
            )
            text += (
                f"; {held} held, at {part['sure'].mean():.0%} confidence (95 % interval {low:.0%}"
                f" to {high:.0%})"
            )
        print(f"{text}.")


def _number(value, name: str, low: float = -math.inf, high: float = math.inf) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not low <= number <= high or math.isinf(number):
        ends = f" from {_text(low)} to {_text(high)}" if math.isfinite(low) else ""
        shown = "nothing is there yet" if value in (None, "") else f"there is {str(value)[:40]!r}"
        raise ValueError(f"The {name} must be a number{ends}; {shown}.")
    return number


def _heights(about: dict, values, *ends: float) -> list[float]:
    values = list(values) if hasattr(values, "__len__") and not isinstance(values, str) else []
    if len(values) != len(about["x"]):
        raise ValueError(
            f"Your curve needs {len(about['x'])} numbers, one at each of {_text(*about['x'])}."
        )
    return [
        _number(value, f"height at {_text(x)}", *ends)
        for x, value in zip(about["x"], values, strict=True)
    ]


def _text(*values: float) -> str:
    return typeset(
        ", ".join(f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}" for value in values)
    )
