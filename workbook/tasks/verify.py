r"""Read an answer where it is asked for, and compare it exactly; no character of a completion is
evaluated.

A reward that pays a text which merely contains the answer teaches a policy to list candidates. So
an answer counts in one *prescribed place* only: the last of `<answer>...</answer>`, `\boxed{...}`
and `#### ...`; a completion without one states its answer in its last line, alone or after "the
answer is", "answer:", "A:" or an equals sign. Words beside it that deny, doubt or scale it spoil
it. What stands there is compared as a fraction if the reference is a number, which may have a
currency or a unit; LaTeX by math-verify, in a process that is ended in time; all else as text
without case, markup and end stops.

What it can still be fooled by: a lucky guess and an answer copied from the question are paid, as
right steps are not asked for; so is a place inside a sentence that says the contrary in words not
listed in `workbook.tasks.denials` ("only a fool: \boxed{12}"); a unit is not compared (12 miles
pays for 12 hours). What it misses: an answer in a sentence of its own ("So she has 12 left.").
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

from workbook.places import require_package
from workbook.tasks.denials import ANSWER_WINDOW, NO_UNIT, SPOILING, SPOILING_AFTER, words_of

TIME_LIMIT_S = 5.0  # for one comparison by math-verify

# -- the prescribed place

_LOOKALIKES = str.maketrans(
    {"−": "-", "–": "-", "‐": "-", "‑": "-", "－": "-", "\u00a0": " ", "’": "'"}
)
_THINKING = re.compile(r"<think>.*?</think>", re.DOTALL)
_PLACES = (
    re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL),
    re.compile(r"\\boxed\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}"),
    re.compile(r"####([^\n]*)"),
)
_MARKER = re.compile(
    r"(?:\banswer(?:(?: to (?:the|this)[a-z ]{1,40}?)? is|:)|^A:)\**:?[ \n]*(?:\\\[)?",
    re.IGNORECASE,
)
# the first sentence of a line, or what stands before a reason, and the rest
_SENTENCE = re.compile(r"(.*?[^.\s])(?:\.|(?<=[a-z]{3})!|(?<=\*)!)\**(?= |$)(.*)", re.DOTALL)
_REASON = re.compile(r"(.*?),? (?:because|since) .*")
# nothing may touch a place but markup and the stops of a sentence, and no relation or sign may lead
# to it
_TOUCHED_BEFORE = re.compile(
    r"(?:[^\s$*`\[({:=>]|\b[a-z]\s*(?:[<>]|!=|\\n?eq?|\\[lg]e?)\s*\$?|-\s*\$?)\Z"
)
_TOUCHED_AFTER = re.compile(r"(?!\\[)\]])[^\s$*`.,\])}!<]")
# a number, a question mark or a factor after an answer
_MORE_AFTER = re.compile(r"[\d?]|\\times")
_ENCLOSING = r"""**…** *…* `…` "…" '…' $…$ \(…\) \[…\] \boxed{…} \text{…} \mathrm{…}"""
_PAIRS = [pair.split("…") for pair in _ENCLOSING.split()]


def agrees(completion: str, answer: str) -> bool:
    r"""Return whether a completion states the reference in the prescribed place, without reserve.

    >>> paid = ("The answer is **12**.", "4 + 8 = 12 apples", "so \\boxed{12.0}", "#### 12")
    >>> [agrees(text, "12") for text in paid]
    [True, True, True, True]
    >>> unpaid = ("the answer isn't 12", "12 or 13", "x > 12", "12 million", "not \\boxed{12}")
    >>> [agrees(text, "12") for text in unpaid]
    [False, False, False, False, False]
    """
    stated = stated_answer(completion)
    return stated is not None and same_answer(stated, answer)


def stated_answer(completion: str) -> str | None:
    r"""Return what stands in the prescribed place.

    None where words around it deny it, doubt it or add to it.

    >>> stated_answer("4 + 8 = \\boxed{12}."), stated_answer("so\nthe answer is 12")
    ('12', '12')
    >>> stated_answer("not \\boxed{12}") is None
    True
    """
    # a bounded end of the text, without what a reasoning model thinks
    text = _THINKING.sub("", completion[-ANSWER_WINDOW:].translate(_LOOKALIKES)).strip()
    places = [match for place in _PLACES for match in place.finditer(text)]
    if places:
        # of several places the last one counts
        last = max(places, key=lambda match: match.end())
        before = text[: last.start()]
        after = text[last.end() :]
        if _is_part_of_more(before, after):
            return None
        # <answer>The answer is 12</answer>
        *lead, stated = _MARKER.split(last[1].strip())
        before = " ".join([before, *lead])
    else:
        # no place: the last line, or what follows "the answer is" in it
        line = text.splitlines()[-1] if text else ""
        *lead, stated = _MARKER.split(line)
        before = text.removesuffix(line) + "answer is".join(lead)
        after = ""
        sentence = _SENTENCE.match(stated)
        reason = _REASON.match(stated)
        # 12. I hope this helps!
        if sentence:
            stated, after = sentence.groups()
        # 12, because 3 * 4 is 12
        elif reason:
            stated = reason[1]
        # "A. B" is no sentence and a remark, but two answers
        if 0 < len(after.split()) < 3:
            return None
    if _MORE_AFTER.search(after) or _is_spoiled(before, after):
        return None
    return unwrap(stated)


def _is_part_of_more(before: str, after: str) -> bool:
    """Return whether something touches a place, or another place stands on its line."""
    line = before.rpartition("\n")[2]
    touched_before = _TOUCHED_BEFORE.search(re.sub(r"\\[(\[]\Z", "", line))
    touched_after = _TOUCHED_AFTER.match(after)
    one_of_two = any(place.search(line) for place in _PLACES)
    return bool(touched_before or touched_after or one_of_two)


def _is_spoiled(before: str, after: str) -> bool:
    """Return whether words before an answer, in its clause, or anywhere after it spoil it."""
    *above, line = before.rstrip(" ").split("\n")
    clause = re.split(r"[.,;:!?](?:\s|$)", line)[-1]
    near = words_of(clause)
    # "It is not", and the answer on a line of its own
    if not clause.strip():
        last_above = next((other for other in reversed(above) if other.strip()), "")
        if len(last_above.split()) < 5:
            near += words_of(last_above)
    # "It is false, I think, that the answer is 12"
    reach = near + words_of(line) if "that" in near else near
    is_scaled = {"half", "twice", "double", "square", "opposite", "negative"} & set(near)
    return bool(SPOILING & set(reach) or is_scaled or SPOILING_AFTER & set(words_of(after)))


def unwrap(text: str) -> str:
    """Return a text without end stops and the quotes, emphasis and LaTeX that enclose it."""
    for _ in range(8):
        wrapped = text
        text = text.strip().rstrip(".").strip()
        for opening, closing in _PAIRS:
            inner = text[len(opening) : len(text) - len(closing)]
            is_enclosed = text.startswith(opening) and text.endswith(closing)
            if is_enclosed and inner and opening not in inner:
                text = inner
        if text == wrapped:
            break
    return text


# -- comparison

_LATEX_FRACTION = re.compile(r"\\[dt]?frac(?:\{(\d{1,20})\}\{(\d{1,20})\}|(\d)(\d))", re.ASCII)
_NUMBER = re.compile(
    r"(?P<sign>[-+] ?|minus )?[$€£]?"
    r"(?P<value>\d{1,20} ?/ ?\d{1,20}"
    r"|(?:(?:\d{1,3}(?:,\d{3}){1,10}|\d{1,40})(?:\.\d{1,40})?|\.\d{1,40})(?:[eE][-+]?\d{1,2})?)"
    r"(?: ?\\?%)?"
    r"(?P<unit>(?:(?: |\\text\{ ?)[A-Za-z][A-Za-z/ ]{0,40}\}?)?)",
    re.ASCII,
)
# what an equation may give a value to
_NAME = re.compile(r"\s*\$?(?:[A-Za-z][A-Za-z ]{0,40}|[A-Za-z]\([a-z0-9]\))\s*")
_EXPRESSION = re.compile(r"[0-9A-Za-z\\{}()\[\]^_+\-*/., ]{1,120}")
_PROSE = re.compile(r"[A-Za-z]{3,}|\d-\d+-|\*\*|\d_")
# towers, large exponents, many roots or powers, sums: what sympy takes long over
_COSTLY = re.compile(
    r"\^\s*\{?[^{}]{0,9}(?:\d{3}|\^)|\^\{[^}]*\^|\^\{?[4-9]\d|\d{16}|(?:\\sqrt.*){5}|(?:\^.*){5}"
    r"|\(\(|\^\w\^|!|\\(?:int|sum|prod|binom|lim)"
)


def same_answer(stated: str, answer: str) -> bool:
    """Return whether a stated answer is the reference: as a number, as text, or as LaTeX."""
    reference = read_number(answer)
    # numbers are compared exactly, as fractions, and never handed to math-verify
    if reference is not None:
        if "%" in stated and "%" not in answer:
            return False
        return read_number(stated) == reference
    if folded(stated) == folded(answer):
        return True
    # x = 2\sqrt{3}
    stated = re.sub(r"^[A-Za-z] ?= ?", "", stated)
    return is_expression(answer) and is_expression(stated) and equal_expressions(stated, answer)


def read_number(text: str) -> Fraction | None:
    r"""Return the number that all of a text is, else None.

    It may have a unit, and a name or a sum before an equals sign.

    >>> numbers = ("$1,200.50", "\\frac{1}{2}", "x = 12 cm", "7 + 5 = 12")
    >>> [str(read_number(text)) for text in numbers]
    ['2401/2', '1/2', '12', '12']
    >>> read_number("7 + 5"), read_number("12 million")
    (None, None)
    """
    left, equals, right = unwrap(text)[-200:].rpartition("=")
    # **12** apples
    right = unwrap(re.sub(r"^(\*\*|\$)(.*?)\1(?= |$)", r"\2", right.strip()))
    match = _NUMBER.fullmatch(_LATEX_FRACTION.sub(r"\1\3/\2\4", right))
    if match is None:
        return None
    unit = re.sub(r"\\text|\b(?:square|cubic) (?=\w)", "", match["unit"])
    if NO_UNIT & set(words_of(unit)):
        return None
    digits = match["value"].replace(",", "").replace(" ", "")
    try:
        value = Fraction(digits)
    except ZeroDivisionError:
        return None
    # only in lowest terms: 2/4 is no answer to "simplify"
    if "/" in digits and digits != str(value):
        return None
    if (match["sign"] or "").strip() in ("-", "minus"):
        value = -value

    if not equals:
        return value
    # "x = 12" names the value; "7 + 5 = 12" must be true
    if _NAME.fullmatch(left):
        names_scale = NO_UNIT & set(words_of(left)) - {"x", "k", "i"}
        return None if names_scale else value
    is_sum = is_expression(left) and equal_expressions(left.strip(), str(value))
    return value if is_sum else None


def folded(text: str) -> str:
    """Return a text without markup, end stops, runs of spaces and, but for one letter, case."""
    text = " ".join(unwrap(text).rstrip(" .,;:").split())
    # (A), option A: a letter is an answer of its own, in its case
    option = re.fullmatch(r"(?:option |choice )?\(?([A-Za-z])\)?", text, re.IGNORECASE)
    return option[1] if option else text.casefold()


def is_expression(text: str) -> bool:
    """Return whether a text is LaTeX of a kind that math-verify compares in little time."""
    without_commands = re.sub(r"\\[A-Za-z]+", " ", text)
    return bool(
        _EXPRESSION.fullmatch(text)
        and re.search(r"[\\^+*/,\d-]", text)
        and not _PROSE.search(without_commands)
        and not _COSTLY.search(text)
    )


_child: subprocess.Popen | None = None
_lock = threading.Lock()


@lru_cache(maxsize=4096)
def equal_expressions(stated: str, answer: str) -> bool:
    """Ask math-verify whether two LaTeX expressions are equal, in a child process.

    The child is ended after TIME_LIMIT_S: math-verify's own limits are signals, which only a main
    thread can have.
    """
    global _child
    with _lock:
        if _child is None:
            require_package("math_verify")
            script = Path(__file__).with_name("math_equality.py")
            _child = subprocess.Popen(
                [sys.executable, str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            # it says so once it has imported sympy
            _child.stdout.readline()
        _child.stdin.write(json.dumps([stated, answer]) + "\n")
        _child.stdin.flush()
        limit = threading.Timer(TIME_LIMIT_S, _child.kill)
        limit.start()
        verdict = _child.stdout.readline()
        limit.cancel()
        # it was killed: the next comparison starts another
        if not verdict:
            _child.wait()
            _child = None
    return verdict == "equal\n"
