r"""Equality of two LaTeX expressions, by math-verify, of which only the part that parses and compares is used.

math-verify finds answers in prose and forgives much on the way: of `2x = 12` it takes the 12, `12%` is 12 to it, `f'`
is `f`, `X` is `x`. So it is given one bare expression that this module has looked at: known commands, no relation,
no percent sign, no letter that the reference lacks, exponents below 31. Lists, tuples, sets and intervals are taken
apart here and compared one by one. It parses LaTeX by a grammar and evaluates no text (its reader of plain expressions,
which does, is not used). What sympy takes too long over is ended with the process that it runs in.
"""

import math
import re
from functools import lru_cache
from pathlib import Path

from workbook.tasks.wording import vocabulary

MAX_LENGTH = 120  # characters of an expression
MAX_EXPONENT = 30
MAX_POWERS = 4
MAX_PRODUCT = 1000  # of all exponents, since powers of powers multiply them
SECONDS = 5.0  # for one comparison; what is handed over takes 0.04 s in the median and at most about 1 s
COMMANDS = vocabulary(
    """
    frac sqrt pi cdot times div left right sin cos tan cot sec csc arcsin arccos arctan ln log exp infty alpha
    beta gamma delta theta lambda mu phi omega
    """
)
EXPRESSION = re.compile(r"[0-9A-Za-z\\{}()\[\]^_+\-*/., ]+")
COMMAND = re.compile(r"\\([A-Za-z]+)")
POWER = re.compile(r"\^\s*(?:\{([^{}]*)\}|(\\?[A-Za-z0-9]))")
NAMED = re.compile(r"([A-Za-z](?:_\w)?|[A-Za-z]\([a-z]\))=([^=]*)")  # x = ..., f(x) = ...
TOWER = re.compile(r"\^\s*(?:\{[^{}]*\}|\\?[A-Za-z0-9])\s*\^")

_process = None


def is_expression(text: str) -> bool:
    r"""Return whether a text is one LaTeX expression, or a list of them, of a kind that `same_expression` compares.

    >>> [is_expression(text) for text in (r"2\sqrt{3}", "x^2+1", "(1, 2)", "cat", "x > 2", "9^{9^{9}}", "f'")]
    [True, True, True, False, False, False, False]
    """
    text = _clean(text)
    if not 0 < len(text) <= MAX_LENGTH or not EXPRESSION.fullmatch(text.replace("\\{", "{").replace("\\}", "}")):
        return False
    if not set(COMMAND.findall(text)) <= COMMANDS or re.search(r"[A-Za-z]{3,}", COMMAND.sub(" ", text)):
        return False
    if not re.search(r"[\\^_+*/,\d]|-", text) or re.search(
        r"\\(?![A-Za-z{}])|\d\s*\\frac|\d\s+\d|\d\s*_|\*\*|\.\s*\.", text
    ):
        return False
    if re.fullmatch(r"[\d.]+(?:-[\d.]+)+", text):  # a range, a date
        return False
    powers = [braced or bare for braced, bare in POWER.findall(text)]
    if len(powers) > MAX_POWERS or text.count("^") != len(powers) or TOWER.search(text):
        return False
    if text.count("sqrt") > 4 or text.count("(") > 8 or text.count("/") > 1 or re.search(r"\d{16}", text):
        return False
    exponents = [int(digits) for power in powers for digits in re.findall(r"\d{1,16}", power)]
    return all(exponent <= MAX_EXPONENT for exponent in exponents) and math.prod(filter(None, exponents)) <= MAX_PRODUCT


def same_expression(stated: str, reference: str, question: str = "") -> bool:
    r"""Return whether an expression equals a reference expression, unless it only repeats the question.

    Of an equation with one symbol on the left (`x = 2\sqrt{3}`) the right side counts. Tuples and intervals must have
    the reference's brackets and order, sets and bare lists may have another order.
    """
    stated, reference = _clean(stated), _clean(reference)
    sides, reference_sides = NAMED.fullmatch(stated), NAMED.fullmatch(reference)
    if sides and (not reference_sides or sides[1] == reference_sides[1]):
        stated = sides[2]
    if reference_sides and not (sides and sides[1] != reference_sides[1]):
        reference = reference_sides[2]
    if stated == reference:
        return True
    if not (is_expression(stated) and is_expression(reference)) or stated in _clean(question):
        return False
    bracket, items = _items(stated)
    reference_bracket, reference_items = _items(reference)
    if bracket != reference_bracket or len(items) != len(reference_items):
        return False
    if bracket in ("", "{"):
        return _same_set(items, reference_items)
    return all(map(_equal, items, reference_items))


def _same_set(items: list[str], reference: list[str]) -> bool:
    """Return whether the items of two lists are equal, each to another one."""
    missing = list(reference)
    for item in items:
        match = next((other for other in missing if _equal(item, other)), None)
        if match is None:
            return False
        missing.remove(match)
    return True


def _items(text: str) -> tuple[str, list[str]]:
    r"""Return the opening and closing bracket of a list and its items; of what is no list "" and the text itself.

    >>> _items("(1,\\infty)"), _items("1,2"), _items("(x+1)")
    (('()', ['1', '\\infty']), ('', ['1', '2']), ('', ['(x+1)']))
    """
    bracket = ""
    if text.startswith("\\{") and text.endswith("\\}"):
        bracket, text = "{", text[2:-2]
    elif text[:1] in "([" and text[-1:] in ")]" and len(_split(text)) == 1 and len(_split(text[1:-1])) > 1:
        bracket, text = text[0] + text[-1], text[1:-1]
    return bracket, _split(text)


def _split(text: str) -> list[str]:
    """Split a text at the commas that stand in no bracket."""
    depth, start, items = 0, 0, []
    for i, c in enumerate(text):
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            items.append(text[start:i])
            start = i + 1
    return [*items, text[start:]]


@lru_cache(maxsize=4096)
def _equal(stated: str, reference: str) -> bool:
    """Return whether two expressions without a comma are equal, asked of a process that is ended after SECONDS."""
    if stated == reference:
        return True
    letters = [set(re.findall(r"[A-Za-z]", COMMAND.sub(" ", text))) for text in (stated, reference)]
    if not letters[0] <= letters[1] or "," in stated + reference or not (stated and reference):
        return False
    return _compare()(_exact(stated), _exact(reference), {}).get("reward") == 1.0


def _compare():
    """Return the process that compares, started at its first use."""
    global _process
    if _process is None:
        from workbook.tasks.own_reward import InProcess

        _process = InProcess(Path(__file__).with_name("math_equality.py"), "equal", SECONDS)
    return _process


def _exact(text: str) -> str:
    """Return an expression with its decimals as fractions, so that nothing is rounded.

    >>> _exact("0.5x")
    '\\\\frac{5}{10}x'
    """
    return re.sub(r"(\d*)\.(\d+)", lambda match: rf"\frac{{{int(match[1] + match[2])}}}{{{10 ** len(match[2])}}}", text)


def _clean(text: str) -> str:
    """Return LaTeX without the spacing and sizes that mean nothing; `\\frac12` and `\\sqrt2` get their braces."""
    text = re.sub(r"\\(?:left|right|displaystyle|limits)(?![A-Za-z])|\\[,;:! ]|\$|(?<=\w)~(?=[\w\\])", "", text.strip())
    text = re.sub(r"\\[dtc]frac(?![A-Za-z])", r"\\frac", text)
    text = re.sub(r"\\frac\s*(\d)\s*(\d)(?!\d)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\sqrt\s*(\d)(?!\d)", r"\\sqrt{\1}", text)
    text = re.sub(r"(?<=\\)([A-Za-z]+)\s+(?=[A-Za-z])", r"\1 ", text)
    return re.sub(r"(?<![A-Za-z])\s+|\s+(?![A-Za-z])", "", text).rstrip(".")
