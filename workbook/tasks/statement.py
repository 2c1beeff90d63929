"""Statements: the place at which a completion states its answer, and a check of the words around it."""

import re
from fractions import Fraction
from html import unescape
from typing import NamedTuple

from workbook.tasks.quantity import names, sum_value
from workbook.tasks.wording import (
    CHANGING,
    COMPARISONS,
    SCALES,
    SENTENCE_END,
    asked_nouns,
    last_sentence,
    spoils_what_follows,
    takes_back,
    words_of,
)

WINDOW = 2000  # characters: an answer is looked for in this much of the end of a completion
ASCII_LOWER = {upper: upper + 32 for upper in range(65, 91)}  # one character stays one: positions agree
LOOKALIKES = str.maketrans({"−": "-", "–": "-", "‐": "-", "‑": "-", "﹣": "-", "－": "-", "\u00a0": " ", "’": "'"})
MARKERS = ("<answer>", "\\boxed{", "####", "answer is", "answer:")
CLOSED = ("<answer>", "\\boxed{")  # they end where their tag or brace closes
OPENING = re.compile(r"(?:[\s:=]|[*_`]+(?=\s)|\\[\[(]\s*\n|\$\$\s*\n)*")
MARKUP_BEFORE = re.compile(r"(?:\s|\$|\\[(\[]|[*_`:{]|^>|\\displaystyle|\\(?:text|mathbf|boxed)\{)+$")
MARKUP_AFTER = re.compile(r"^(?:\s*(?:\$+|\\[)\]]|[*_`}]))+")


class Statement(NamedTuple):
    """An answer as stated: the marker that announces it, the text before that, the answer's own text, what follows."""

    marker: str
    before: str
    span: str
    after: str


def read_statement(text: str, length: int = 0) -> Statement:
    r"""Return where a completion states its answer: after the last marker, else anywhere.

    >>> read_statement("It is \\boxed{4}.")
    Statement(marker='\\boxed{', before='It is ', span='4', after='.')
    """
    tail = _plain(text, max(WINDOW, 2 * length))
    marker, before, span = _around_marker(tail)
    if marker == "<answer>":
        span, _, after = span.partition("</")
        return Statement(marker, before, span.strip(), after.partition(">")[2])
    if marker == "\\boxed{":
        content = _until_closed(span)
        return Statement(marker, before, content.strip(), span[len(content) + 1 :])
    return Statement(marker, before, _opened(span.split("</answer", 1)[0]) if marker else span, "")


def first_sentence(text: str) -> tuple[str, str, str]:
    """Cut a text at the end of its first sentence."""
    text = _opened(text)
    match = SENTENCE_END.search(text)
    return (text[: match.start()], match[0], text[match.end() :]) if match else (text, "", "")


def last_numeric_sentence(text: str) -> tuple[Statement, str]:
    """Return the last sentence of a text that has a digit, and the statement that it makes."""
    start, before, sentence, after = 0, "", "", ""
    ends = [match.span() for match in SENTENCE_END.finditer(text)]
    for end, next_start in [*ends, (len(text), len(text))]:
        if any(c in "0123456789" for c in text[start:end]):
            before, sentence, after = text[:start], text[start:end], text[next_start:]
        start = next_start
    return Statement("", before, sentence, after), sentence.strip()


def stands(statement: Statement, value: Fraction | None = None, question: str = "") -> bool:
    """Return whether the words around an answer leave it as it is; value: of an answer that is a number."""
    marker, before, _, after = statement
    if takes_back(after, question) or (
        spoils_what_follows(before, "answer" in marker and marker not in CLOSED) if marker else _is_cut_off(before)
    ):
        return False
    return marker not in CLOSED or (_fits_before(before, value) and _fits_after(after, marker, question))


def _is_cut_off(before: str) -> bool:
    """Return whether the line before an unmarked answer goes on into it, and changes it."""
    return before.rstrip(" ").endswith("\n") and spoils_what_follows(before)


def _fits_before(before: str, value: Fraction | None) -> bool:
    """Return whether what stands before a box or tag, in its sentence, does not calculate with it or add an answer."""
    here, is_line_before = last_sentence(before)
    preceding = "" if is_line_before else MARKUP_BEFORE.sub("", here)
    if "\\boxed{" in preceding or "<answer" in preceding.casefold():
        return False
    if not preceding.endswith("="):
        is_word = preceding[-1:].isalpha() and not re.search(r"\\[a-zA-Z]+$", preceding)
        return not preceding or preceding[-1] in ",." or is_word
    preceding = preceding[:-1].rpartition("=")[2]
    letters = set(re.findall(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", preceding)))
    if names(preceding) or len(letters) > 1:
        return True
    calculated = sum_value(preceding.strip(" $"))
    return not letters and (calculated is None or value is None or calculated == value)


def _fits_after(after: str, marker: str, question: str) -> bool:
    """Return whether what follows a box or tag, in its sentence, can be a unit or prose."""
    right = re.split(r"\n|</", after, maxsplit=1)[0]
    right = MARKUP_AFTER.sub("", right)
    right = re.split(r"\.(?=\s|$)", right, maxsplit=1)[0]
    if not right or right[0] in ",;:" or right == "</":
        return True
    words = words_of(right)
    if marker == "<answer>":  # its tag says where it ends; only what scales it would change it
        return right[0] == " " and not set(words[:1]) & (SCALES | COMPARISONS) and right.strip()[0] not in "%!^*/+-=<>"
    spoiling = set(words) & CHANGING | set(words[:2]) & (SCALES - {"is", "was", "as", "this"})
    spoiling -= asked_nouns(question)
    is_prose = re.fullmatch(r"(?:[ (]|\\text|\\mathrm|\\,|\\ )[a-zA-Z ,/'\-$\\(){}]*", right)
    return not spoiling and is_prose is not None


def _plain(text: str, window: int = WINDOW) -> str:
    """Return the window of a text without HTML entities, look-alikes of a minus sign and most control characters."""
    tail = unescape(text[-window:])
    tail = tail if tail.isprintable() else "".join(c for c in tail if c.isprintable() or c in "\n\t\u00a0")
    return tail.translate(LOOKALIKES)


def _around_marker(tail: str) -> tuple[str, str, str]:
    """Return the last marker of a text, what stands before it and what follows; "", "" and the text without one."""
    lowered = tail.translate(ASCII_LOWER)
    start, marker = max((lowered.rfind(marker), marker) for marker in MARKERS)
    return (marker, tail[:start], tail[start + len(marker) :]) if start >= 0 else ("", "", tail)


def _until_closed(span: str) -> str:
    """Cut a span at the brace that closes it."""
    depth = 1
    for i, c in enumerate(span):
        depth += (c == "{") - (c == "}")
        if depth == 0:
            return span[:i]
    return span


def _opened(text: str) -> str:
    """Return a text without the spaces and markup that open it."""
    return text[OPENING.match(text).end() :]
