"""predict and reveal: a prediction is recorded by a click, and scored once the answer is shown.

    predict("05-shares", "Which share of tokens in worse rollouts becomes more likely?",
            number=(0, 1))
    reveal("05-shares", measured_share)

Keys begin with the two digits of their chapter. One JSON file holds all predictions. Running cells
records nothing and shows no answer: the answer waits behind a button until it is asked for or a
prediction is recorded. A guess is recorded once; it counts if the answer had not been shown.
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

# how sure the reader is that the answer lies in the range of a number
RANGE_CONFIDENCE = 0.8
_KIND_NAMES = {"number": "80 % ranges", "choice": "choices", "curve": "curves"}
_RANGE_ENDS = {"low": "lower end", "guess": "best guess", "high": "upper end"}
# of this kernel: key -> question and what is asked for
_asked: dict[str, tuple[str, dict]] = {}
# keys whose answer has been shown
_shown: set[str] = set()
# key -> the Answer that waits for a prediction
_hidden: dict[str, "Answer"] = {}


def question_of(number=None, choice=None, curve=None) -> dict:
    """What is asked for: kind, and low and high, options, or x, y, x_title and y_title."""
    if choice is not None:
        return {"kind": "choice", "options": list(choice)}
    low, high = map(float, number if curve is None else curve["y"])
    if curve is None:
        return {"kind": "number", "low": low, "high": high}
    axes = {"x": list(map(float, curve["x"])), "y": [low, high]}
    return {"kind": "curve", "x_title": "x", "y_title": "y", **curve, **axes}


def check_guess(about: dict, guess) -> dict:
    """A whole guess: {guess, low, high}, {option, sure} or {y}.

    Raises ValueError, in one sentence, for a guess that is not whole.
    """
    guess = guess if isinstance(guess, dict) else {}
    if about["kind"] == "choice":
        if guess.get("option") not in about["options"]:
            raise ValueError(f"Choose one of {', '.join(about['options'])}.")
        # nobody is less sure of the option chosen than by chance
        chance = 1 / len(about["options"])
        sure = _number(guess.get("sure"), "confidence", chance - 1e-6, 1.0)
        return {"option": guess["option"], "sure": sure}
    if about["kind"] == "curve":
        return {"y": _heights(about, guess.get("y"), *about["y"])}
    ends = {
        key: _number(guess.get(key), name, about["low"], about["high"])
        for key, name in _RANGE_ENDS.items()
    }
    if not ends["low"] <= ends["guess"] <= ends["high"] or ends["low"] == ends["high"]:
        raise ValueError(
            "Your best guess must lie in your range, and the range needs two different ends."
        )
    return ends


def describe_guess(about: dict, guess: dict) -> str:
    """A guess in words."""
    if about["kind"] == "choice":
        return f"“{guess['option']}”, {100 * guess['sure']:.0f} % sure"
    if about["kind"] == "curve":
        return f"{_text(*guess['y'])} at {about['x_title']} {_text(*about['x'])}"
    return f"{_text(guess['guess'])} (80 % sure: {_text(guess['low'])} to {_text(guess['high'])})"


def score(about: dict, guess: dict, answer) -> dict:
    """A guess beside the answer: distance, whether it held, and a verdict in words.

    distance: as a share of the scale; of a choice its Brier score.  held: None of a curve.
    """
    if about["kind"] == "choice":
        held = guess["option"] == answer
        brier = (guess["sure"] - held) ** 2
        words = "as you said" if held else "not what you said"
        verdict = f"{words}; Brier score {_text(brier)} (0 best, 1 worst)"
        return {"distance": brier, "held": held, "verdict": verdict}
    if about["kind"] == "number":
        error = abs(guess["guess"] - answer)
        held = guess["low"] <= answer <= guess["high"]
        side = "inside" if held else "outside"
        verdict = f"{side} your range, {_text(error)} from your best guess"
        scale = about["high"] - about["low"]
        return {"distance": error / scale, "held": held, "verdict": verdict}
    errors = [abs(mine - true) for mine, true in zip(guess["y"], answer, strict=True)]
    mean = sum(errors) / len(errors)
    worst = errors.index(max(errors))
    verdict = f"your curve is {_text(mean)} off on average, most at {_text(about['x'][worst])}"
    low, high = about["y"]
    return {"distance": mean / (high - low), "held": None, "verdict": verdict}


def read_predictions() -> dict[str, dict]:
    """Read {key: question, about, first (the guess), recorded, late, answer}.

    Raises ValueError for a damaged file.
    """
    path = predictions_file()
    try:
        return json.loads(path.read_text("utf-8"))["predictions"] if path.exists() else {}
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"{path} is damaged: move it away, and your predictions start anew."
        ) from None


def _write(key: str, entry: dict) -> None:
    text = json.dumps({"predictions": {**read_predictions(), key: entry}}, indent=2)
    path = predictions_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", "utf-8")


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
    # what stands in the form, whole or not
    draft = traitlets.Dict().tag(sync=True)
    # a sentence once a guess is recorded, "" before
    recorded = traitlets.Unicode().tag(sync=True)
    message = traitlets.Unicode().tag(sync=True)

    def __init__(self, key: str, question: str, about: dict):
        super().__init__(key=key, question=question, about=about)
        self._show_recorded()
        self.on_msg(lambda _, content, buffers: self.record(content.get("guess")))

    def record(self, guess) -> None:
        """Record a guess once, as the button does; answer one that is not whole in a sentence."""
        try:
            first = check_guess(self.about, guess)
            if find_prediction(self.key, self.about) is None:
                entry = {
                    "first": first,
                    "recorded": time.strftime("%Y-%m-%d"),
                    "question": self.question,
                    "about": self.about,
                    "late": self.key in _shown,
                    "answer": None,
                }
                _write(self.key, entry)
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

    def picture(self) -> tuple[dict, dict]:
        """The question as text, where no kernel runs."""
        about = self.about
        if about["kind"] == "choice":
            form = f"one of {', '.join(about['options'])}"
        elif about["kind"] == "number":
            form = f"a number from {_text(about['low'])} to {_text(about['high'])}"
        else:
            form = f"a curve over {about.get('x_title')}"
        text = f"{self.question} ({form})"
        return {"text/markdown": f"> **Predict.** {text}", "text/plain": f"Predict. {text}"}, {}


class Answer(PageWidget):
    """An answer behind a button; shown at a click, or as soon as a prediction is recorded."""

    kind = traitlets.Unicode("predict").tag(sync=True)
    text = traitlets.Unicode().tag(sync=True)
    shown = traitlets.Bool(False).tag(sync=True)

    def __init__(self, key: str, answer):
        self.key = key
        self.answer = answer
        super().__init__(text=_judged(key, answer))
        self.observe(lambda _: _shown.add(key), "shown")

    def judge(self) -> None:
        """Show the answer beside what has been recorded."""
        self.text = _judged(self.key, self.answer)
        self.shown = True

    def picture(self) -> tuple[dict, dict]:
        """The answer behind a line that opens it, where no kernel runs."""
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
    """Show the answer beside the reader's guess and how far off it was, and record it.

    Where no guess is recorded yet, the answer waits behind a button.
    answer: a number, one of the choices, or the heights of the curve.
    """
    if key not in _asked:
        raise InvalidValue(
            "key", key, f"asked before: run the cell with predict({key!r}, ...) first"
        )
    question, about = _asked[key]
    if about["kind"] == "number":
        answer = _number(answer, "answer")
    elif about["kind"] == "curve":
        answer = _heights(about, answer)
    mine = find_prediction(key, about)
    if mine is None:
        _hidden[key] = Answer(key, answer)
        display(_hidden[key])
        return
    text = _judged(key, answer)
    bundle = {
        "text/markdown": html.escape(printable(text), quote=False),
        "text/plain": text.replace("**", ""),
    }
    DisplayHandle().display(bundle, raw=True)
    if about["kind"] == "curve":
        display(_answer_chart(question, about, mine["first"]["y"], answer))


def _answer_chart(question: str, about: dict, guess: list[float], answer: list[float]):
    """The predicted curve and the true one."""
    tables = []
    for name, heights in (("your prediction", guess), ("answer", answer)):
        columns = {"x": about["x"], "mean": heights, "low": heights, "high": heights}
        tables.append(pd.DataFrame(columns).assign(curve=name))
    return curve_chart(
        pd.concat(tables),
        "x",
        series="curve",
        log2=about["x"][0] > 0,
        title="Your prediction and the answer",
        x_title=about["x_title"],
        y_title=about["y_title"],
        subtitle=question[:110],
    )


def _judged(key: str, answer) -> str:
    """The answer in a sentence, beside the guess that is recorded, if any.

    With a guess, the answer is recorded, too.
    """
    about = _asked[key][1]
    if about["kind"] == "choice":
        shown = f"**{answer}**"
    else:
        numbers = answer if about["kind"] == "curve" else [answer]
        shown = f"**{_text(*numbers)}**"
    mine = find_prediction(key, about)
    if mine is None:
        return f"The answer is {shown}."
    _shown.add(key)
    _write(key, {**mine, "answer": answer})
    verdict = score(about, mine["first"], answer)["verdict"]
    guess = describe_guess(about, mine["first"])
    text = f"You predicted {guess}. The answer is {shown}: {verdict}."
    if mine["late"]:
        text += " (Only a guess before the answer was shown counts.)"
    return text


def calibration() -> None:
    """Show how well the reader's predictions held: how often, against how sure the reader was."""
    rows = []
    for mine in read_predictions().values():
        if mine["answer"] is not None and not mine["late"]:
            scored = score(mine["about"], mine["first"], mine["answer"])
            sure = mine["first"].get("sure", RANGE_CONFIDENCE)
            rows.append({"kind": mine["about"]["kind"], "sure": sure, **scored})
    table = pd.DataFrame(rows)
    if table.empty:
        print(
            "No prediction counts so far: press a prediction's button before its answer is shown."
        )
        return
    for kind, part in table.groupby("kind"):
        text = f"{len(part)} {_KIND_NAMES[kind]}: mean distance {part['distance'].mean():.2f}"
        if kind != "curve":
            held = int(part["held"].sum())
            low, high = binomtest(held, len(part)).proportion_ci(method="wilson")
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
    is_list = hasattr(values, "__len__") and not isinstance(values, str)
    values = list(values) if is_list else []
    if len(values) != len(about["x"]):
        raise ValueError(
            f"Your curve needs {len(about['x'])} numbers, one at each of {_text(*about['x'])}."
        )
    return [
        _number(value, f"height at {_text(x)}", *ends)
        for x, value in zip(about["x"], values, strict=True)
    ]


def _text(*values: float) -> str:
    numbers = [f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}" for value in values]
    return typeset(", ".join(numbers))
