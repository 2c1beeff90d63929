"""predict and reveal: a prediction that is recorded by a click before the answer is shown, and compared with it after.

    predict("05-shares", "Which share of tokens in worse rollouts becomes more likely?", number=(0, 1))
    reveal("05-shares", measured_share)

Keys begin with the two digits of their chapter. Running cells records nothing: what `reveal` adds to a prediction is
the answer, and a first guess after that answer was shown does not count (`workbook.views.calibrated`).
"""

from __future__ import annotations

import html
import re
from pathlib import Path

import anywidget
import traitlets
from IPython.display import DisplayHandle, display

from workbook.training.files import StorageError
from workbook.views.guesses import Curve, Kind, about, make_kind
from workbook.views.live import OpenedWhenShown, show
from workbook.views.predictions import Prediction, find_prediction, record, record_answer
from workbook.views.style import printable

HERE = Path(__file__).parent
KEY = re.compile(r"\d\d-[a-z0-9-]+")
_asked: dict[str, tuple[str, Kind]] = {}  # key -> question and kind, of this kernel
_shown: set[str] = set()  # keys whose answer this kernel has shown


class PredictionForm(OpenedWhenShown, anywidget.AnyWidget):
    """One question with its form; what is recorded before stands in it when it is shown."""

    _esm = (HERE / "predict.js").read_text(encoding="utf-8")
    _css = (HERE / "predict.css").read_text(encoding="utf-8")
    key = traitlets.Unicode().tag(sync=True)
    question = traitlets.Unicode().tag(sync=True)
    kind = traitlets.Unicode().tag(sync=True)
    about = traitlets.Dict().tag(sync=True)
    draft = traitlets.Dict().tag(sync=True)  # what stands in the form, whole or not
    editing = traitlets.Bool(True).tag(sync=True)
    recorded = traitlets.Unicode().tag(sync=True)  # a sentence, "" before
    message = traitlets.Unicode().tag(sync=True)

    def __init__(self, key: str, question: str, kind: Kind):
        super().__init__(key=key, question=question, kind=kind.kind, about=about(kind))
        self.asked = kind
        mine, self.message = find_prediction(key, kind)
        if mine is not None:
            self._show_recorded(mine)
        self.on_msg(self._answer)

    def record(self, guess) -> None:
        """Record a guess, as the button does; a guess that is not whole is answered by a sentence."""
        try:
            mine = record(self.key, self.question, self.asked, guess, self.key in _shown)
        except (ValueError, StorageError) as error:
            self.message = printable(error)
            return
        self.message = ""
        self._show_recorded(mine)

    def picture(self) -> tuple[dict, dict]:
        """The question as text, where no kernel runs."""
        text = f"{self.question} ({self.asked.prompt()})"
        return {"text/markdown": f"> **Predict.** {text}", "text/plain": f"Predict. {text}"}, {}

    def _show_recorded(self, mine: Prediction) -> None:
        with self.hold_sync():
            self.draft, self.editing = dict(mine.latest or mine.first), False
            self.recorded = _sentence(mine)

    def _answer(self, _, content: dict, buffers) -> None:
        if isinstance(content, dict) and content.get("kind") == "record":
            self.record(content.get("guess"))

    def _ipython_display_(self, **_) -> None:
        show(self, self)


def _sentence(mine: Prediction) -> str:
    text = f"Recorded {mine.recorded}: {mine.kind.describe(mine.first)}."
    if mine.late:
        text += " The answer had been shown before, so it does not count."
    if mine.latest is not None:
        text += f" Changed to {mine.kind.describe(mine.latest)}; the first one counts."
    return text


def predict(key: str, question: str, *, number=None, choice=None, curve=None) -> None:
    """Ask for a prediction, whose answer `reveal` shows under the same key.

    number: (low, high), the scale of a best guess and of an 80 % range.  choice: the options.  curve: x (rising
    numbers), y (the scale's ends), x_title and y_title.

    Raises ValueError for a key that is not like "05-shares", or a question of no kind or of several.
    """
    if not KEY.fullmatch(key):
        raise ValueError(f"key={key!r} must be the chapter's two digits, a hyphen and a word, like '05-shares'.")
    _asked[key] = (question, kind := make_kind(number, choice, curve))
    display(PredictionForm(key, question, kind))


def reveal(key: str, answer) -> None:
    """Show the answer to a prediction, the reader's own guess and how far off it was; record the answer beside it.

    answer: a number, one of the choices, or the heights of the curve.

    Raises ValueError for a key that nothing was predicted under, or an answer of another kind.
    """
    if key not in _asked:
        raise ValueError(f"key={key!r} was not asked: run the cell with predict({key!r}, ...) first.")
    question, kind = _asked[key]
    answer = kind.check_answer(answer)
    mine, problem = find_prediction(key, kind)
    _shown.add(key)
    if mine is None:
        _display(f"No prediction is recorded; the answer is {kind.format_answer(answer)}.", problem)
        return
    try:
        mine = record_answer(mine, answer)
    except StorageError as error:
        problem = str(error)
    _display(compared_text(mine, answer), problem)
    if isinstance(kind, Curve):
        from workbook.views.calibrated import curve_against_answer

        display(curve_against_answer(mine, answer, question))


def compared_text(mine: Prediction, answer) -> str:
    """What was predicted, the answer, and how far apart they are, as a line of Markdown."""
    kind, guess = mine.kind, mine.latest or mine.first
    text = (
        f"You predicted {kind.describe(guess)}. The answer is {kind.format_answer(answer)}: "
        f"{kind.compare(guess, answer)['verdict']}."
    )
    if mine.late:
        text += " (You predicted it after the answer had been shown, so it does not count.)"
    elif mine.latest is not None:
        text += f" (Your first prediction, {kind.describe(mine.first)}, is the one that counts.)"
    return text


def _display(*sentences: str) -> None:
    text = " ".join(filter(None, map(printable, sentences)))
    bundle = {"text/markdown": html.escape(text, quote=False), "text/plain": text.replace("**", "")}
    DisplayHandle().display(bundle, raw=True)
