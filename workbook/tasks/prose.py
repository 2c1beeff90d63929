"""Sentences around an answer, as a conclusion is usually worded: "So Natalia sold 72 clips in April and May."

Nobody can list the words that change an answer, so this lists those that may stand around one: function words, usual
verbs and the words of the question. A sentence with any other word, or with one that `workbook.tasks.wording` knows to
deny, scale or compare, states nothing here.
"""

import re
from functools import lru_cache

from workbook.tasks.wording import INVERTED, UNITS, asked_nouns, changes, is_unit, vocabulary, words_of

LEADS = vocabulary("so thus therefore hence altogether overall total finally")
FUNCTION_WORDS = LEADS | vocabulary(
    """
    s a an the this that these there it its he his him she her they their them we our us you your i my who all both each
    every together combined now then and in on at for of to with per during is are was were be been has have had will
    would can must do does did also means in entire whole final correct answer option result number amount sum value
    need needs needed make makes made sell sells sold buy buys bought pay pays paid spend spends spent earn earns earned
    get gets got give gives gave take takes took find found save saves saved receive receives received use uses used
    cost costs eat eats ate drive drives drove read run runs ran write wrote win won grow grew build built keep keeps
    kept leave leaves left complete finish there altogether day days week weeks month months year years hour hours
    product difference quotient remainder gcd lcm gcf hcf minute minutes money time distance price age
    """
)
AMOUNTS = vocabulary(
    "total sum amount number cost price value distance answer average profit product difference quotient"
)
NO_END = vocabulary(  # words that make something else of a number right behind them
    "a an the this that these and in on at to with per during each every all both"
)
NO_START = NO_END | vocabulary("of is are was were be been has have had will would can must do does did who")
AFTER_UNIT = vocabulary("in every each per this at on for is are was were to have")
STEM = re.compile(r"(?<=\w\w)(?:ing|ed|es|s|e|d|ly)$")
NUMBER = re.compile(r"(?:[-+]|minus |negative )?[$€£]?[-.]?\d|\\frac")
DIGITS = re.compile(r"\d[\d.,]*\d|\d")
COUNTS = "two|three|four|five|six|seven|eight|nine|ten|twelve"
ASIDE = re.compile(
    rf"\b(?:in|over|for|after|during) (?:all |the |these |those )*(\d{{1,6}}|{COUNTS}) ([A-Za-z]+)\b,?", re.I
)
LETTERS = re.compile(r"(?:[A-Za-z ,'’:]|(?<=[a-z])-(?=[a-z]))*")


def lead(text: str, question: str) -> str:
    r"""Return the words before the first number of a sentence if they leave it as it is, else "".

    A number of the question counts only behind a word like "so": else the sentence may only repeat the question.

    >>> question = "Natalia sold 48 clips in April and half as many in May. How many clips did she sell in total?"
    >>> lead("So Natalia sold 72 clips", question), lead("Natalia lost 72 clips", question)
    ('So Natalia sold ', '')
    """
    verb = " has " if " has " in text else " is "
    head, verb, _ = text.rpartition(verb)
    if verb and leads_up(_without_numbers(head, question) + verb, question):
        return head + verb
    start = NUMBER.search(text)
    if not start or not leads_up(text[: start.start()], question):
        return ""
    if text[start.start()] in "+-" and not re.search(r"(?:\b(?:is|are|was|were|be|of|to)|:) $", text[: start.start()]):
        return ""
    before, figures = text[: start.start()], DIGITS.search(text, start.start())
    is_asked = figures and figures[0] in DIGITS.findall(question)
    return before if not is_asked or LEADS & set(words_of(before)[:2]) else ""


def leads_up(before: str, question: str) -> bool:
    """Return whether the words before an answer, in its sentence, leave it as it is."""
    words = words_of(before)
    if not LETTERS.fullmatch(before) or len(before) > 160 or before[-1:] not in " " or not _is_known(words, question):
        return False
    clause = [word for word in words_of(before.rstrip(" ,").rpartition(",")[2]) if word not in LEADS]
    if clause and clause[0] in INVERTED:
        return False
    if words and words[-1] == "of":
        return len(words) > 1 and words[-2] in AMOUNTS
    return not words or (words[-1] not in NO_END and len(words[-1]) > 1)


def predicate(sentence: str, question: str) -> str:
    """Return what a sentence says of its subject, "Paris" of "The capital of France is Paris", else ""."""
    match = re.fullmatch(r"(.* (?:is|are|was|were)(?: option| choice)?:? )(\S.*)", sentence.strip(), re.DOTALL)
    return match[2] if match and leads_up(match[1], question) else ""


def is_prose(text: str, question: str) -> bool:
    """Return whether a text has only words that leave an answer as it is."""
    return LETTERS.fullmatch(text) is not None and _is_known(words_of(text), question)


def follows(after: str, question: str, is_money: bool = False) -> bool:
    """Return whether the words behind a number are its unit and a plain end of its sentence."""
    words = words_of(after)
    if after[0] != " " or not LETTERS.fullmatch(after) or after.strip()[0] in ",:-" or len(after) > 160 or not words:
        return False
    is_counted = words[0] in asked_nouns(question)
    if not _is_known([word for word in words[1:] if word not in UNITS], question):
        return False
    if is_counted or is_money:
        next_words = words[1:2] if is_counted else words[:1]
        return _is_known(words, question) and not set(next_words) & (NO_START - AFTER_UNIT)
    if words[:2] in (["in", "total"], ["in", "all"]):
        return True
    is_noun = words[0] in UNITS or is_unit(words[0], question) or words[0] in ("altogether", "together", "for")
    return is_noun and words[0] not in NO_START


def is_asked(lhs: str, question: str) -> bool:
    r"""Return whether the left side of an equation is the expression that the question asks for.

    >>> is_asked(r"\sin 30", r"Compute $\sin 30$."), is_asked("2x", "Find x if 2x = 4.")
    (True, False)
    """
    lhs = lhs.strip(" $")
    start = r"\b(?:of|compute|evaluate|calculate|find|is|simplify)[ :$(\\\[]*"
    pattern = rf"{start}{re.escape(lhs)}[ )\]\\]*(?:[$?.]|$)"
    return len(lhs) > 1 and re.search(pattern, question, re.IGNORECASE | re.MULTILINE) is not None


def _without_numbers(text: str, question: str) -> str:
    """Return a text with "it" for the numbers that the question has, too."""
    known = DIGITS.findall(question)
    return DIGITS.sub(lambda match: "it" if match[0] in known else match[0], text)


def without_asides(text: str, question: str) -> str:
    """Return a sentence without phrases like "over 3 months", of a question that has both the number and the noun."""
    known = _stems(question)

    def kept(match: re.Match) -> str:
        number, noun = match.groups()
        is_count = not number.isdigit() or number in DIGITS.findall(question)
        is_ratio = re.search(r"(?<![$€£\d.,])[\d.,]*\d\s*$", text[: match.start()])
        return "" if is_count and STEM.sub("", noun.casefold()) in known and not is_ratio else match[0]

    return " ".join(ASIDE.sub(kept, text).split()) if len(text) < 400 else text


@lru_cache(maxsize=1024)
def _stems(question: str) -> frozenset[str]:
    return frozenset(STEM.sub("", word) for word in words_of(question)) - {""}


def _is_known(words: list[str], question: str) -> bool:
    """Return whether every word may stand around an answer."""
    if changes(words, {"is", "was", "this", "thus", "has", "does", "its", "us"} | asked_nouns(question)):
        return False
    stems = _stems(question) if question else frozenset()
    return all(word in FUNCTION_WORDS or STEM.sub("", word) in stems for word in words)
