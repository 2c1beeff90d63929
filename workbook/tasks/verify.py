r"""Read an answer where it is asked for, and compare it exactly; no character of a completion is
evaluated.

The prescribed place is the last of `<answer>...</answer>`, `\boxed{...}` and `#### ...`; a
completion without one states its answer in its last line, alone or after "the answer is",
"answer:", "A:" or an equals sign. A number may have a currency or a unit there. Numbers are
compared as fractions, LaTeX by math-verify in a process that is ended in time, all else as text
without case, markup and end stops.

What it can still be fooled by: a lucky guess and an answer copied from the question are paid, as
right steps are not asked for; so is a place inside a sentence that says the contrary in words not
listed here ("only a fool: \boxed{12}"); a unit is not compared (12 miles pays for 12 hours). What
it misses: an answer in a sentence of its own ("So she has 12 left.").
`workbook.tasks.attack_reward` shows what a reward pays for.
"""

import json
import re
import subprocess
import sys
import threading
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

from workbook.places import require
from workbook.tasks.denials import (
    ANSWER_WINDOW,
    DENIALS,
    HEDGES,
    REFUTATIONS,
    SCALES,
    word_set,
    words_of,
)

SECONDS = 5.0  # for one comparison by math-verify
LOOKALIKES = str.maketrans(
    {"−": "-", "–": "-", "‐": "-", "‑": "-", "－": "-", "\u00a0": " ", "’": "'"}
)
THINKING = re.compile(r"<think>.*?</think>", re.DOTALL)
PLACES = (
    re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL),
    re.compile(r"\\boxed\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}"),
    re.compile(r"####([^\n]*)"),
)
MARKER = re.compile(
    r"(?:\banswer(?:(?: to (?:the|this)[a-z ]{1,40}?)? is|:)|^A:)\**:?[ \n]*(?:\\\[)?",
    re.IGNORECASE,
)
ENCLOSING = r"""**…** *…* `…` "…" '…' $…$ \(…\) \[…\] \boxed{…} \text{…} \mathrm{…}"""
SENTENCE = re.compile(r"(.*?[^.\s])(?:\.|(?<=[a-z]{3})!|(?<=\*)!)\**(?= |$)(.*)", re.DOTALL)
# nothing may touch a place but markup and the stops of a sentence, and no relation or sign may lead
# to it
TOUCHED_BEFORE = re.compile(
    r"(?:[^\s$*`\[({:=>]|\b[a-z]\s*(?:[<>]|!=|\\n?eq?|\\[lg]e?)\s*\$?|-\s*\$?)\Z"
)
TOUCHED_AFTER = re.compile(r"(?!\\[)\]])[^\s$*`.,\])}!<]")
PAIRS = [pair.split("…") for pair in ENCLOSING.split()]
NUMBER = re.compile(
    r"(?P<sign>[-+] ?|minus )?(?P<currency>[$€£])?"
    r"(?:\\[dt]?frac(?P<short>\d\d)|(?P<ratio>\d{1,20} ?/"
    r" ?\d{1,20}|\\[dt]?frac\{\d{1,20}\}\{\d{1,20}\})"
    r"|(?P<decimal>(?:\d{1,3}(?:,\d{3}){1,10}|\d{1,40})(?:\.\d{1,40})?|\.\d{1,40})(?:[eE](?P<exponent>[-+]?\d{1,2}))?)"
    r"(?P<percent> ?\\?%)?(?P<unit>(?:(?: |\\text\{ ?)[A-Za-z][A-Za-z/ ]{0,40}\}?)?)",
    re.ASCII,
)
# of what an equation states
NAME = re.compile(r"\s*\$?(?:[A-Za-z][A-Za-z ]{0,40}|[A-Za-z]\([a-z0-9]\))\s*")
EXPRESSION = re.compile(r"[0-9A-Za-z\\{}()\[\]^_+\-*/., ]{1,120}")
# towers, large exponents, many roots or powers, sums: what sympy takes long over
COSTLY = re.compile(
    r"\^\s*\{?[^{}]{0,9}(?:\d{3}|\^)|\^\{[^}]*\^|\^\{?[4-9]\d|\d{16}|(?:\\sqrt.*){5}|(?:\^.*){5}|\(\(|\^\w\^|!|\\(?:int|sum|prod|binom|lim)"
)
# words that spoil an answer beside them, and words that no unit has
SPOILING = DENIALS | HEDGES | REFUTATIONS
SPOILING |= word_set("another wait actually oops sorry psych un less fewer more wish forgot pseudo")
NO_UNIT = (
    SPOILING
    | SCALES
    | word_set("k x i e th ish at than too below above under over most least quintillion")
)
NO_UNIT |= word_set("sixteenths")
HARMLESS = word_set("is was has this thus its us as yes last first next second total times")


def agrees(completion: str, answer: str) -> bool:
    r"""Return whether a completion states the reference answer in the prescribed place, alone and
    without reserve.

    >>> [agrees(text, "12") for text in ("The answer is **12**.", "4 + 8 = 12 apples", "so \\boxed{12.0}", "#### 12")]
    [True, True, True, True]
    >>> [agrees(text, "12") for text in ("the answer isn't 12", "12 or 13", "x > 12", "12 million", "not \\boxed{12}")]
    [False, False, False, False, False]
    """
    stated = stated_answer(completion)
    return stated is not None and same_answer(stated, answer)


def stated_answer(completion: str) -> str | None:
    r"""Return what stands in the prescribed place, None where the words around it deny it, doubt it
    or add to it.

    >>> stated_answer("4 + 8 = \\boxed{12}."), stated_answer("so\nthe answer is 12"), stated_answer("not \\boxed{12}")
    ('12', '12', None)
    """
    text = THINKING.sub("", completion[-ANSWER_WINDOW:].translate(LOOKALIKES)).strip()
    if places := [match for place in PLACES for match in place.finditer(text)]:
        match = max(places, key=lambda match: match.end())
        before, span, after = text[: match.start()], match[1].strip(), text[match.end() :]
        line = before.rpartition("\n")[2]
        touched = TOUCHED_BEFORE.search(re.sub(r"\\[(\[]\Z", "", line)) or TOUCHED_AFTER.match(
            after
        )
        if (
            touched
            or any(place.search(line) for place in PLACES)
            or (match[0][0] == "#" and after.strip())
        ):
            return None  # a part of something larger, or one of two answers
        *lead, span = MARKER.split(span)
        before = " ".join([before, *lead])
    else:
        lines = text.splitlines()[-3:] if text.endswith("\n\\]") else text.splitlines()[-1:]
        line = " ".join(lines)
        *lead, span = MARKER.split(line)
        before, after = f"{text[: len(text) - len(line)]}{'answer is'.join(lead)}", ""
        if sentence := SENTENCE.match(span):  # "12. I hope this helps!"
            span, after = sentence.groups()
        elif reason := re.match(r"(.*?),? (?:because|since) .*", span):
            span = reason[1]
        if 0 < len(after.split()) < 3:
            return None
    return None if re.search(r"[\d?]|\\times", after) or _spoiled(before, after) else unwrap(span)


def _spoiled(before: str, after: str) -> bool:
    """Return whether the clause before an answer, a few words on the line above, or anything after
    spoils it.
    """
    *above, line = before.rstrip(" ").split("\n")
    above = next((other for other in reversed(above) if other.strip()), "")
    clause = re.split(r"[.,;:!?](?:\s|$)", line)[-1]
    near = words_of(clause) + (
        words_of(above) if len(above.split()) < 5 and not clause.strip() else []
    )
    scaled = {"half", "twice", "double", "square", "opposite", "negative"} & set(near)
    that = "that" in near and SPOILING & set(words_of(line))
    return bool(
        SPOILING & set(near)
        or scaled
        or that
        or (SPOILING | (SCALES - HARMLESS)) & set(words_of(after))
    )


def unwrap(text: str) -> str:
    """Return a text without the quotes, emphasis and LaTeX that enclose all of it, and without an
    end stop.
    """
    for _ in range(8):
        before, text = text, text.strip().rstrip(".").strip()
        for opening, closing in PAIRS:
            inner = text[len(opening) : len(text) - len(closing)]
            if (
                text.startswith(opening)
                and text.endswith(closing)
                and inner
                and opening not in inner
            ):
                text = inner
        if text == before:
            break
    return text


def read_number(text: str) -> Fraction | None:
    r"""Return the number that all of a text is, but for a unit, a name or a sum before an equals
    sign; else None.

    >>> [read_number(text) for text in ("$1,200.50", "\\frac{1}{2}", "x = 12 cm", "7 + 5 = 12", "7 + 5", "12 million")]
    [Fraction(2401, 2), Fraction(1, 2), Fraction(12, 1), Fraction(12, 1), None, None]
    """
    name, equals, value_text = unwrap(text)[-200:].rpartition("=")
    match = NUMBER.fullmatch(unwrap(re.sub(r"^(\*\*|\$)(.*?)\1(?= |$)", r"\2", value_text.strip())))
    if match is None or NO_UNIT & set(
        words_of(re.sub(r"\\text|\b(?:square|cubic) (?=\w)", "", match["unit"]))
    ):
        return None
    if match["decimal"]:
        value = Fraction(match["decimal"].replace(",", "")) * Fraction(10) ** int(
            match["exponent"] or 0
        )
    else:
        top, bottom = match["short"] or re.findall(r"\d+", match["ratio"])
        if not int(bottom) or str(Fraction(int(top), int(bottom))) != f"{top}/{bottom}":
            return None  # only in lowest terms: 2/4 is no answer to "simplify"
        value = Fraction(int(top), int(bottom))
    if (match["sign"] or "").strip() in ("-", "minus"):
        value = -value
    if equals and NAME.fullmatch(name):
        return None if NO_UNIT & set(words_of(name)) - {"x", "k", "i"} else value
    return (
        value
        if not equals or (is_expression(name) and equal_expressions(name.strip(), str(value)))
        else None
    )


def same_answer(stated: str, answer: str) -> bool:
    """Return whether a stated answer is the reference: as an exact number, as LaTeX, else as
    normalized text.
    """
    reference = read_number(answer)
    if reference is not None:
        if "%" in stated and "%" not in answer:
            return False
        return read_number(stated) == reference
    if folded(stated) == folded(answer):
        return True
    stated = re.sub(r"^[A-Za-z] ?= ?", "", stated)
    return is_expression(answer) and is_expression(stated) and equal_expressions(stated, answer)


def folded(text: str) -> str:
    """Return a text without markup, end stops and runs of spaces, and (but for one letter) without
    case.
    """
    text = " ".join(unwrap(text).rstrip(" .,;:").split())
    if option := re.fullmatch(r"(?:option |choice )?\(?([A-Za-z])\)?", text, re.IGNORECASE):
        return option[1]
    return text.casefold()


def is_expression(text: str) -> bool:
    """Return whether a text is LaTeX of a kind that math-verify compares in little time."""
    prose = re.search(r"[A-Za-z]{3,}|\d-\d+-|\*\*|\d_", re.sub(r"\\[A-Za-z]+", " ", text))
    return bool(
        EXPRESSION.fullmatch(text)
        and not prose
        and re.search(r"[\\^+*/,\d-]", text)
        and not COSTLY.search(text)
    )


_child: subprocess.Popen | None = None
_lock = threading.Lock()


@lru_cache(maxsize=4096)
def equal_expressions(stated: str, answer: str) -> bool:
    """Ask math-verify, in a process that is ended after SECONDS, whether two LaTeX expressions are
    equal.

    Its own time limits are signals, which only a main thread can have.
    """
    global _child
    letters = [
        set(re.findall(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", " ", text))) for text in (stated, answer)
    ]
    if not letters[0] <= letters[1]:
        return False
    with _lock:
        if _child is None:
            require("math_verify")
            command = [sys.executable, str(Path(__file__).with_name("math_equality.py"))]
            _child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            _child.stdout.readline()  # it has imported sympy
        _child.stdin.write(json.dumps([stated, answer]) + "\n")
        _child.stdin.flush()
        limit = threading.Timer(SECONDS, _child.kill)
        limit.start()
        line = _child.stdout.readline()
        limit.cancel()
        if not line:  # it was killed
            _child.wait()
            _child = None
    return line == "equal\n"
