"""Read an answer out of whatever a model wrote: bounded, total, and without evaluating a single character of it.

Every reader here looks at the last `WINDOW` characters only, uses patterns of bounded length, and never raises on text.
When a completion states several answers, the last one counts: a verifier that takes the first pays for guessing early.
What is stated must *be* the answer, alone but for a unit, and nothing around it may deny it, leave it open or take it
back: `agrees` is that rule; `workbook.tasks.wording` knows the words, `workbook.tasks.quantity` the numbers.
"""

import re
from decimal import Decimal
from functools import lru_cache

from workbook.tasks.latex import is_expression, same_expression
from workbook.tasks.prose import is_prose, predicate
from workbook.tasks.quantity import Quantity, read_quantity, unwrap
from workbook.tasks.statement import (
    CLOSED,
    LOOKALIKES,
    WINDOW,
    Statement,
    first_sentence,
    last_numeric_sentence,
    read_statement,
    stands,
)
from workbook.tasks.wording import changes_between, is_unit, sentences, vocabulary, words_of

NUMBER = re.compile(r"[-+]?(?:[0-9][0-9,]{0,30}(?:\.[0-9]{1,30})?|\.[0-9]{1,30})")
REASON = re.compile(r",?\s+(?=(?:because|since)\b)|,\s*(?=(?:as|so|which|where|making|giving)\b)")
MAX_OTHER, MAX_OTHERS = 80, 40  # characters of a sentence that may state another number, and how many are read
OTHER_END = re.compile(rf"(?:=|\bis) ?\$?({NUMBER.pattern})\W*$")
CLOSING = re.compile(r"\W*i hope (?:it|this|that)(?: is)? (?:correct|right|helps?)(?: you)?\W*", re.IGNORECASE)
ANSWERING = vocabulary("it its answer correct choose option choice that")  # words of another answer
CHOICES = vocabulary("yes no true false y n agree disagree")


def clock_answer(text: str) -> int | None:
    """Return the number after the last `answer is` of a chain, None where that is not a plain ASCII number, alone.

    >>> clock_answer("now 9 + 3 is 2 ; so the answer is 2"), clock_answer("the answer is 2 ; so the answer is maybe")
    (2, None)
    """
    words = text[-WINDOW:].split()
    for i in range(len(words) - 2, 0, -1):
        if words[i] == "is" and words[i - 1] == "answer":
            word = words[i + 1]
            is_number = word.isascii() and word.isdigit() and len(word) <= 9
            return int(word) if is_number and not changes_between(words[: i - 1], words[i + 2 :]) else None
    return None


def agrees(completion: str, answer: str, question: str = "") -> bool:
    r"""Return whether a completion states the reference answer, and states it alone and without reserve.

    A reference that is a number (2, 1,200, 1/2, \frac{1}{2}, 12%) is compared exactly as a number, LaTeX with letters
    or roots by math-verify, all else as text without case, spaces and end stops. question: where known, its words may
    be units, a "%" counts as one if it asks for percent, and what only repeats the question is no answer.

    >>> [agrees(text, "12") for text in ("The answer is **12**.", "4 + 8 = 12 apples", "\\boxed{12.0}", "#### 12")]
    [True, True, True, True]
    >>> [agrees(text, "12") for text in ("the answer isn't 12", "12 or 13", "x > 12", "12 million", "\u221212", "12!")]
    [False, False, False, False, False, False]
    """
    if only_repeats(completion, question):
        return False
    reference = read_quantity(answer)
    if reference is not None:
        stated = stated_quantity(completion, question, len(answer))
        return stated is not None and stated.agrees(reference, question)
    return any(_same(span, answer, question) for span in stated_texts(completion, answer, question))


def only_repeats(completion: str, question: str) -> bool:
    """Return whether a completion, or what it states in tags or a box, ends with all of the question.

    >>> only_repeats("The answer is 2 + 2 =", "2 + 2 ="), only_repeats("2 + 2 = 4", "2 + 2 =")
    (True, False)
    """
    asked = "".join(question[-WINDOW:].split())
    spans = (completion[-2 * WINDOW :], read_statement(completion, len(question)).span)
    return len(asked) > 1 and any("".join(span.split()).rstrip(".}").endswith(asked.rstrip(".}")) for span in spans)


def stated_quantity(completion: str, question: str = "", length: int = 0) -> Quantity | None:
    """Return the number that a completion states as its answer, None where it states none, several or none surely.

    length: of the reference; a completion's window is never shorter than twice that.
    """
    statement = read_statement(completion, length)
    if statement.marker in CLOSED:
        quantity, sentence = read_quantity(statement.span, question), statement.span
    elif statement.marker:
        sentence, _, rest = first_sentence(statement.span)
        statement = statement._replace(after=rest)
        quantity = read_quantity(sentence, question, spoken=True)
    else:
        statement, sentence = last_numeric_sentence(statement.span)
        quantity = read_quantity(sentence, question, spoken=True)
    if quantity is None and statement.marker not in CLOSED and (match := REASON.search(sentence)):
        reason = sentence[match.end() :]
        quantity = read_quantity(sentence[: match.start()], question, spoken=True)
        statement = statement._replace(after=f"{reason}\n{statement.after}")
    if (
        quantity is None
        or not stands(statement, quantity.value, question)
        or _other_number(statement, quantity, question)
    ):
        return None
    is_bare = len(sentence) <= len(quantity.figures) + 1
    return quantity if is_bare or f" {sentence} " not in f" {' '.join(question.split())} " else None


def stated_texts(completion: str, answer: str, question: str = "") -> list[str]:
    """Return the spans in which a completion may state a textual answer; none where words around it spoil it."""
    statement = read_statement(completion, len(answer))
    if statement.marker in CLOSED:
        candidates = [(statement.span, statement.after)]
    elif statement.marker:
        line, _, later = statement.span.strip("\n").partition("\n")
        sentence, _, rest = first_sentence(statement.span)
        candidates = [(statement.span, ""), (line, later), (sentence, rest)]
    else:
        earlier, end, line = statement.span.strip().rpartition("\n")
        candidates, statement = [(statement.span, ""), (line, "")], statement._replace(before=earlier + end)
        *_, last = sentences(line) or [""]
        if question and (predicated := predicate(last, question)):
            candidates.append((predicated, ""))
        elif question and not end and folded(answer) in CHOICES:
            candidates.append((_choice(line, answer, question), ""))
    if match := REASON.search(candidates[-1][0]):
        span, rest = candidates[-1]
        candidates.append((span[: match.start()], f"{span[match.end() :]}\n{rest}"))
    return [span for span, after in candidates if stands(statement._replace(after=after)) and not _other(after, answer)]


@lru_cache(maxsize=4096)
def folded(text: str) -> str:
    """Return a text without case (of one letter alone: with it), runs of spaces, markup around it and end stops."""
    text = " ".join(unwrap(text.translate(LOOKALIKES)).rstrip(" .,;:").split())
    text = unwrap(text)
    if letter := re.fullmatch(r"(?:option |choice )?\(?([A-Za-z])\)?", text, re.IGNORECASE):
        return letter[1]
    return text.casefold()


def _same(span: str, answer: str, question: str) -> bool:
    """Return whether a span says what the reference says: as text or, of LaTeX, as an expression."""
    stated, reference = folded(_option(span, question)), folded(answer)
    expression = unwrap(answer)
    if is_expression(expression) or ("=" in expression and is_expression(expression.partition("=")[2])):
        return same_expression(_without_unit(unwrap(span)), expression, question)
    if len(reference) == 1 and reference.isupper():  # the letter of an option
        stated = stated.upper()
    return stated == reference != ""


def _choice(line: str, answer: str, question: str) -> str:
    """Return "Yes" of "Yes, a whale is a mammal", where the words behind it say no more than the question."""
    choice, comma, rest = line.strip(" .*").partition(",")
    denial = r"\bnot\b" if folded(answer) in ("no", "false", "n") else r"$^"
    if set(words_of(rest)) & CHOICES:
        return ""
    return choice if comma and is_prose(re.sub(denial, "", rest, count=1), question) else ""


def _without_unit(span: str) -> str:
    """Return an expression without the text that names its unit."""
    if match := re.fullmatch(r"\$([^$]+)\$ ([a-z ]+)\.?|\\\((.+)\\\) ([a-z ]+)\.?", span):
        math, unit = match[1] or match[3], match[2] or match[4]
        return math.strip() if is_unit(unit) else span
    match = re.search(r"\\(?:text|mathrm)\{([^{}\\]*)\}$", span)
    return span[: match.start()].rstrip() if match and match.start() and is_unit(match[1]) else span


def _option(span: str, question: str) -> str:
    """Return the letter of "(B) Paris" where the question has that option, else the span."""
    match = re.fullmatch(r"\(?([A-J])(?:\)|[.:]) ?(\S.{0,80})", unwrap(span).rstrip("."))
    if match and re.search(rf"\b{match[1]}[).:] ?{re.escape(match[2])}(?!\w)", question):
        return match[1]
    return span


def _other_number(statement: Statement, quantity: Quantity, question: str) -> bool:
    """Return whether what follows an answer states another number, be it as the last one on the answer's line."""
    line, _, later = statement.after.partition("\n")
    if statement.marker != "<answer>":
        for sentence in sentences(line):
            numbers = NUMBER.findall(sentence)
            if numbers and not sentence.endswith("?") and Decimal(numbers[-1].replace(",", "")) != quantity.value:
                return True
    short = [text for text in sentences(f"{line}\n{later}") if len(text) < MAX_OTHER and re.search("[0-9]", text)]
    ends = (OTHER_END.search(sentence) for sentence in short)
    if any(end and Decimal(end[1].replace(",", "")) != quantity.value for end in ends):
        return True
    others = (read_quantity(sentence, question, spoken=True) for sentence in short[:MAX_OTHERS])
    return len(short) > MAX_OTHERS or any(other is not None and other.value != quantity.value for other in others)


def _other(after: str, answer: str) -> bool:
    """Return whether what follows a textual answer states another, as far as its kind or its brevity tells."""
    for sentence in sentences(after):
        words = words_of(sentence)
        if not any(c.isalnum() for c in sentence) or CLOSING.fullmatch(sentence):
            continue
        if len(sentence.split()) < 4 or set(words) & ANSWERING:
            return True
        if folded(answer) in CHOICES and set(words) & CHOICES - {folded(answer)}:
            return True
        if len(folded(answer)) == 1 and set(re.findall(r"\b[A-Z]\b", sentence)) - {folded(answer).upper(), "I"}:
            return True
    return False
