"""Read an answer out of whatever a model wrote: bounded, total, and without evaluating a single character of it.

Every reader here looks at the last `WINDOW` characters only, uses patterns of bounded length, and never raises on text.
When a completion states several answers, the last one counts: a verifier that takes the first pays for guessing early.
"""

import math
import re
from decimal import Decimal

WINDOW = 2000  # characters: an answer is looked for in this much of the end of a completion
SPAN = 200  # characters: an answer itself is never longer than this
NUMBER = re.compile(r"[-+]?(?:[0-9][0-9,]{0,30}(?:\.[0-9]{1,30})?|\.[0-9]{1,30})")
ASCII_LOWER = {upper: upper + 32 for upper in range(65, 91)}  # one character stays one: positions agree
MARKERS = ("<answer>", "\\boxed{", "####", "answer is", "answer:")


def completion_text(completion: object) -> str:
    """Return the text of one completion: a string as it is, of chat messages the last one's content, of all else "".

    >>> completion_text([{"role": "assistant", "content": "so the answer is 2"}])
    'so the answer is 2'
    """
    if isinstance(completion, list | tuple) and completion:
        completion = completion[-1]
    if isinstance(completion, dict):
        completion = completion.get("content")
    return completion if isinstance(completion, str) else ""


def clock_answer(text: str) -> int | None:
    """Return the number after the last `answer is` of a chain, None where that is not a plain ASCII number.

    >>> clock_answer("now 9 + 3 is 2 ; so the answer is 2"), clock_answer("the answer is 2 ; so the answer is maybe")
    (2, None)
    """
    words = text[-WINDOW:].split()
    for i in range(len(words) - 2, 0, -1):
        if words[i] == "is" and words[i - 1] == "answer":
            word = words[i + 1]
            return int(word) if word.isascii() and word.isdigit() and len(word) <= 9 else None
    return None


def stated_answer(text: str, lines: bool = False) -> str:
    r"""Return the span in which free text states its answer: after the last marker, else the last line with text.

    Markers: `<answer>`, `\boxed{`, `####`, `answer is`, `answer:`. After `<answer>` the span is what stands before the
    closing tag; else it ends with its line and has at most `SPAN` characters. With lines=True it runs to the end of the
    text, and without a marker it is all of the window.

    >>> stated_answer("The answer is **12**. Done"), stated_answer("#### 3\n#### 4"), stated_answer("4 + 3\n= 7\n")
    ('12', '4', '= 7')
    """
    tail = _plain(text)
    marker, span = _after_marker(tail)
    if marker == "<answer>":
        return span.split("</", 1)[0].strip()
    span = span if marker else tail
    if marker == "\\boxed{":
        span = _until_closed(span)
    if lines:
        return span.strip("\n")
    if not marker:
        return (span.strip().splitlines() or [""])[-1][-SPAN:].strip()
    span = span.lstrip(" \t\n*:$")[:SPAN].split("\n", 1)[0].split(". ", 1)[0]
    return span.strip().strip("*$`").rstrip(".").strip()


def stated_number(text: str) -> str | None:
    """Return the number that free text states as its answer, as a string without commas; None if it states none.

    Of a span with `=` the part after the last one counts (`4 + 3 = 7` states 7); without a marker, the last number
    of the text.

    >>> stated_number("the answer is 4 + 3 = 7 apples"), stated_number("I get 1,200, then 1,250."), stated_number("no")
    ('7', '1250', None)
    """
    tail = _plain(text)
    if _after_marker(tail)[0]:
        numbers = NUMBER.findall(stated_answer(tail).rsplit("=", 1)[-1][:SPAN])[:1]
    else:
        numbers = NUMBER.findall(tail)[-1:]
    return numbers[0].replace(",", "") if numbers else None


def as_number(text: str) -> Decimal | None:
    """Return text as an exact number if all of it is one (sign, commas, currency and percent signs allowed), else None.

    >>> as_number(" $1,234.50 "), as_number("nan"), as_number("4 apples"), as_number("\\u0664")
    (Decimal('1234.50'), None, None, None)
    """
    text = text.strip().strip("$€£%").strip()
    return Decimal(text.replace(",", "")) if len(text) <= 64 and NUMBER.fullmatch(text) else None


def same_answer(stated: str, answer: str) -> bool:
    """Return whether two answers agree: as numbers if both are, else as text without case, spaces and end stops.

    >>> same_answer("1,200.0", "1200"), same_answer(" The Cat. ", "the cat"), same_answer("NaN", "5")
    (True, True, False)
    """
    left, right = as_number(stated), as_number(answer)
    if left is not None and right is not None:
        return left == right
    return _folded(stated) == _folded(answer) != ""


def clamp(score: object) -> float:
    """Return a score as a float in [0, 1]; what is not a finite number gives 0.

    >>> clamp(1.7), clamp(float("nan")), clamp(None), clamp(True)
    (1.0, 0.0, 0.0, 1.0)
    """
    try:
        number = float(score)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return min(1.0, max(0.0, number)) if math.isfinite(number) else 0.0


def _plain(text: str) -> str:
    """Return the window of a text without control characters, line ends and tabs excepted."""
    tail = text[-WINDOW:]
    return tail if tail.isprintable() else "".join(c for c in tail if c.isprintable() or c in "\n\t")


def _after_marker(tail: str) -> tuple[str, str]:
    """Return the last marker of a text and what follows it, ("", "") without one."""
    lowered = tail.translate(ASCII_LOWER)
    start, marker = max((lowered.rfind(marker), marker) for marker in MARKERS)
    return (marker, tail[start + len(marker) :]) if start >= 0 else ("", "")


def _folded(text: str) -> str:
    return " ".join(text.casefold().split()).strip(" .,;:!?\"'`*$")


def _until_closed(span: str) -> str:
    """Cut a span at the brace that closes it."""
    depth = 1
    for i, c in enumerate(span):
        depth += (c == "{") - (c == "}")
        if depth == 0:
            return span[:i]
    return span
