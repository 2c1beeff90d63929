r"""Numbers as people and models write them, read exactly: `-1,234.5`, `$12`, `\frac{1}{2}`, `4 + 8 = 12 apples`.

A text is a number only if all of it is one, but for a unit that leaves it as it is, a subject and a verb before it, or
an equation whose left side is a name or a sum that comes to the right one. `12 million`, `12x`, `12/5`, `12:30`, `1,2`,
`12!`, `x > 12` and `2x = 12` are not the number 12. Values are fractions: nothing is rounded, and no power beyond
`10^{999}` is formed.
"""

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from workbook.tasks.calculation import CURRENCIES, DECIMAL, sum_value
from workbook.tasks.prose import follows, is_asked, lead, without_asides
from workbook.tasks.wording import BELIEFS, INVERTED, changes, is_unit, vocabulary, words_of

MAX_LENGTH = 300  # characters of a sentence that states a number
ENCLOSING = r"""
    **…** *…* __…__ `…` "…" '…' “…” $$…$$ $…$ \(…\) \[…\] (…)
    \boxed{…} \text{…} \textbf{…} \mathbf{…} \mathrm{…} <b>…</b> <strong>…</strong>
"""
PAIRS = [tuple(pair.split("…")) for pair in ENCLOSING.split()]
ATTACHED = vocabulary("cm mm km kg mg ml ft lb lbs oz hr hrs mins sec ms mph kph km/h m/s")
LITERAL = re.compile(
    rf"(?P<sign>[-+] ?|minus |negative )?(?P<currency>[{CURRENCIES}] ?)?(?P<inner>-(?=[\d.]))?"
    rf"(?:(?P<units>\d{{1,20}})? ?\\frac\{{(?P<top>-?\d{{1,20}})\}}\{{(?P<bottom>\d{{1,20}})\}}"
    rf"|(?:(?P<whole>\d{{1,20}}) )?(?P<over>\d{{1,20}}) ?/ ?(?P<under>\d{{1,20}})(?![\d./])"
    rf"|(?P<decimal>{DECIMAL})(?:[eE](?P<e>[-+]?\d{{1,3}})"
    r"| ?(?:\\times|×|\\cdot|\*) ?10 ?\^ ?(?P<p>\{[-+]?\d{1,3}\}|[-+]?\d{1,3}))?"
    rf")(?P<percent> ?%)?(?P<rest>.*)",
    re.ASCII | re.IGNORECASE,
)
LABEL = re.compile(
    r"(?:step|part) ?\d{1,2}[.:)] |\d{1,2}[.)] (?=.*=)|[A-Za-z][A-Za-z ,]{0,40}(?: \d{1,3})?: (?=.*=)", re.IGNORECASE
)
FOLLOWS = re.compile(r"\\(?:implies|(?:Long)?[Rr]ightarrow)|⇒|⟹|→")
OPERATORS = [
    (re.compile(r"(?<=\d) (?:times|multiplied by) (?=\d)"), " * "),
    (re.compile(r"(?<=\d) divided by (?=\d)"), " / "),
    (re.compile(r"(?<=\d) (?:plus|added to) (?=\d)"), " + "),
    (re.compile(r"(?<=\d) minus (?=\d)"), " - "),
    (re.compile(r"(?<=\d\)) (?:equals|is equal to|is) (?=[-$\d])|(?<=\d) (?:equals|is equal to) (?=[-$\d])"), " = "),
    (re.compile(r"(?<=\d)( ?[-+*/×÷x] ?[$\d.,]*\d) is (?=[-$\d])"), r"\1 = "),
]
CONDITION = re.compile(r"\b(?:Had|Were|Should) ")
EXCLAIMED = re.compile(r"(?<=[a-z]{3})!+$")
NOT_EQUATIONS = re.compile(r"[<>!≠≤≥≈~]|==|:(?! )|\\(?:n?eq|ne|leq?|geq?|lt|gt|approx|sim|pm|not)(?![a-z])")
SPACING = [
    (re.compile(r"<<[\d+*/.=() -]{1,60}>>"), ""),
    (
        re.compile(r"\\(?:text|mathrm|mbox|textbf|mathbf|operatorname)\{([^{}]*)\}(?:(?<=[a-z]\})\^\{?[23]\}?)?"),
        r" \1 ",
    ),
    (re.compile(r"(?<=\d)\\,(?=\d{3}(?!\d))"), ","),
    (re.compile(r"\{,\}|,\\!"), ","),
    (re.compile(r"\\!|\\left(?![a-z])|\\right(?![a-z])|\\displaystyle"), ""),
    (re.compile(r"\\[,;: ]|(?<=\w)~(?=[\w\\])|\\quad"), " "),
    (re.compile(r"\\[dtc]frac(?![a-z])"), r"\\frac"),
    (re.compile(r"\\frac\s*(\d)(\d)(?!\d)"), r"\\frac{\1}{\2}"),
    (re.compile(r"\$\\\$([\d.,]{1,40})\$"), r"$\1"),
    (re.compile(r"\\([%$])"), r"\1"),
    (re.compile(r" ?(?:\^\s*\{?\\circ\}?|°)"), " degrees "),
    (re.compile(r"(\*\*|\*|__|`|\$)([-+]?[$€£]?[\d.,]{1,40}%?)\1"), r"\2"),
    (re.compile(r"\\\(([^\\]{1,80})\\\)"), r"\1"),
    (re.compile(r"\\[()\[\]]"), " "),
    (re.compile(r"\$(?=\S)([^$\n]*[=\\][^$\n]*)(?<=\S)\$(?!\d)"), r" \1 "),
    (re.compile(r"(?<![\d*)])\*\*(?=\S)([^*]{1,80}?)(?<=\S)\*\*(?![\d*(])"), r"\1"),
    (re.compile(r"\s+"), " "),
]
LEADS = r"(?:(?:so|thus|therefore|hence|then|finally|and|now|ok|okay|well|in total|in all|altogether|overall),? )*"
NOUNS = (
    r"(?:answer|total|sum|result|value|number|difference|product|quotient|remainder|solution|cost|price|amount|age"
    r"|distance|time|length|width|height|area|perimeter|volume|speed|weight|profit|average|mean|probability)"
)
BE = r"(?: is| are|'s| equals| =)"
IS = rf"(?:{BE}|:)"
HAS = (
    r"(?:(?: now)? ha(?:s|ve)| gets?| got| makes?| gives?| totals?| comes to| needs?| finds?| obtains?"
    r"| will (?:have|need)| sold| bought| earn(?:ed|s)| spen(?:t|ds)| pa(?:id|ys)| saved| received| used)"
)
SUBJECT = re.compile(
    rf"{LEADS}(?:(?:(?:the|our|my|its|a) )?(?:(?:final|total|correct|exact) )*{NOUNS}(?: of [a-z ]{{1,40}}?{IS}|{IS})?"
    rf"|(?:it|that|this|there|he|she|they|we|i|you|[a-z]|(?-i:[A-Z][a-z]{{1,20}}))(?:{BE}|{HAS})"
    rf"(?: a? ?{NOUNS} (?:of|is))?"
    rf"|(?-i:A):|{LEADS}(?:=|:)) ",
    re.IGNORECASE,
)
FILLERS = re.compile(
    r"(?:(?:definitely|certainly|clearly|exactly|precisely|simply|just|indeed|therefore|thus|hence|then|so|now|obviously"
    r"|of course|equal to|equals|given by|the(?: number)?|option|choice|only),? )+",
    re.IGNORECASE,
)
POSTPOSED = re.compile(
    rf" is (?:the|our|my) (?:(?:final|correct|right|exact) )*{NOUNS}(?: (?:to|of|for) [a-z ]{{1,40}})?$",
    re.IGNORECASE,
)
FUNCTIONS = vocabulary("sin cos tan log ln exp sqrt max min abs floor ceil arcsin arccos arctan lim det")
NAME = re.compile(
    r"(?:[a-z]+(?:'s)?,? )*"
    r"(?:\\(?:alpha|beta|gamma|delta|theta|lambda|mu|phi|omega|angle ?[a-z]+)|[a-z]+(?:_(?:\w|\{\w+\}))?"
    r"|(?:[a-z]|\\?(?:gcd|lcm|gcf|hcf))\([a-z0-9, ]{1,20}\)),?",
    re.IGNORECASE | re.ASCII,
)


class Quantity(NamedTuple):
    """A number as written: its exact value, its figures alone, and what stood with them."""

    value: Fraction
    figures: str
    currency: str = ""
    percent: bool = False
    reduced: bool = True

    def agrees(self, reference: "Quantity", question: str = "") -> bool:
        """Return whether this number, as stated, is the reference: of equal value, and in terms that do not differ.

        A currency must be the reference's, if it has one; "%" must stand there too, unless the question asks for
        percent; a fraction must be in lowest terms, and other figures must not be those of the question.
        """
        if self.value != reference.value or (self.currency and reference.currency not in ("", self.currency)):
            return False
        if self.percent and not reference.percent and not re.search(r"%|\bpercent", question, re.IGNORECASE):
            return False
        if self.figures == reference.figures:
            return True
        return self.reduced and not re.search(rf"(?<![\w.]){re.escape(self.figures)}(?![\w/]|\.\d)", question)


def read_quantity(text: str, question: str = "", spoken: bool = False) -> Quantity | None:
    r"""Return the number that all of a text is, else None. spoken: a subject and a verb may stand before it.

    >>> read_quantity("4 + 8 = $12").value, read_quantity("\\frac{1}{2}").value, read_quantity("12 million")
    (Fraction(12, 1), Fraction(1, 2), None)
    """
    if len(text) > MAX_LENGTH or not any(c in "0123456789" for c in text):
        return None
    return _read(text, question if spoken or question else "", spoken)


@lru_cache(maxsize=4096)
def _read(text: str, question: str, spoken: bool) -> Quantity | None:
    text = _spaced(unwrap(text).rstrip("."))
    if spoken:
        text = _without_lead(text, question)
    if "=" in text:
        text = unwrap(text)
        text = text.replace("$", "") if text.count("$") == 2 and text.endswith("$") else text
    if "=" not in text:
        return _literal(text, question, spoken)
    *sides, rhs = text.split("=")
    if NOT_EQUATIONS.search(text) or not rhs.strip():
        return None
    quantity = _literal(rhs, question, False, spoken)
    if quantity is None:
        return None
    for lhs in filter(None, map(str.strip, sides)):
        if (
            not names(lhs)
            and not is_asked(lhs, _spaced(question))
            and sum_value(_without_prose(lhs) if spoken else lhs) != quantity.value
        ):
            return None
    return quantity


def _without_lead(text: str, question: str) -> str:
    """Return a sentence without a label, an aside or an equation that leads to the next; words are operators."""
    if CONDITION.search(text):
        return ""
    text = EXCLAIMED.sub("", without_asides(text, question) if question else text)
    for pattern, operator in OPERATORS:
        text = pattern.sub(operator, text)
    earlier, arrow, last = text.rpartition((FOLLOWS.findall(text) or ["\n"])[-1])
    label = LABEL.match(text)
    if arrow and "=" in earlier and not _changes(earlier):
        return last.strip()
    return text[label.end() :] if label and not _changes(label[0]) else text


def _changes(text: str) -> bool:
    """Return whether a text has a word that changes an answer."""
    return changes(words_of(text), {"is", "was", "has", "this", "thus"})


def _without_prose(text: str) -> str:
    """Return a calculation without the words that lead up to it, if none of them changes it."""
    match = re.match(r"[A-Za-z ,']{1,80}[A-Za-z,] (?=[\d($€£-])", text)
    words = words_of(match[0]) if match else []
    believed = "that" not in words[1:] or words[words.index("that", 1) - 1] in BELIEFS | {"so", "means"}
    return text[match.end() :] if words and believed and words[0] not in INVERTED and not _changes(match[0]) else text


def _literal(text: str, question: str, spoken: bool, ends_in_prose: bool = False) -> Quantity | None:
    text = _spaced(unwrap(text)).rstrip(".,:").strip()
    text = unwrap(text)
    if not spoken:
        return _figures(text, question, ends_in_prose)
    quantity = _figures(POSTPOSED.sub("", _without_subject(text)), question, True)
    if quantity is None and question and (before := lead(text, question)):
        quantity = _figures(text.removeprefix(before), question, True)
    return quantity


def _figures(text: str, question: str, ends_in_prose: bool) -> Quantity | None:
    match = LITERAL.fullmatch(text)
    if not match:
        return None
    rest = unwrap(match["rest"].strip()) if match["rest"][:1] in (" ", "(", "") else match["rest"].casefold()
    attached = match["rest"][:1] not in (" ", "(", "")
    is_end = not rest or (rest in ATTACHED if attached else is_unit(rest, question))
    is_end = is_end or (
        ends_in_prose and not attached and bool(question) and follows(match["rest"], question, bool(match["currency"]))
    )
    return _quantity(match) if is_end else None


def _quantity(match: re.Match) -> Quantity | None:
    negative = (match["sign"] or "").strip().casefold() in ("-", "minus", "negative")
    if match["inner"] and match["sign"]:
        return None
    currency, percent = (match["currency"] or "").strip(), bool(match["percent"])
    if match["decimal"]:
        figures = match["decimal"].replace(",", "")
        exponent = int((match["e"] or match["p"] or "0").strip("{}"))
        value, reduced = Fraction(figures) * Fraction(10) ** exponent, True
    else:
        top, bottom = int(match["top"] or match["over"]), int(match["bottom"] or match["under"])
        if bottom == 0:
            return None
        whole = match["whole"] or match["units"] or ""
        if whole and not 0 < top < bottom:
            return None
        value = Fraction(int(whole or 0)) + Fraction(top, bottom)
        figures = f"{whole} {top}/{bottom}".strip()
        reduced = bottom > 1 and Fraction(top, bottom).denominator == bottom
    minus = negative or bool(match["inner"])
    return Quantity(-value if minus else value, "-" * minus + figures, currency, percent, reduced)


def names(text: str) -> bool:
    r"""Return whether a text is the mere name of a quantity, as in `x`, `f(3)`, `the total cost`, not `2x` or `-x`.

    >>> [names(text) for text in ("x", "So AB", "f(3)", "the total cost", "2x", "-x", "x^2", "sin x", "half of x")]
    [True, True, True, True, False, False, False, False, False]
    """
    label, _, name = text.rpartition(": ")
    text = unwrap(re.split(r"[.;]\s", name)[-1].strip()).rstrip("$ ").lstrip("$ ")
    if _changes(label) or len(text) > 80 or not NAME.fullmatch(text):
        return False
    words = words_of(text)
    return FUNCTIONS.isdisjoint(words) and not changes(words, {"is", "was", "us", "thus"})


def unwrap(text: str) -> str:
    r"""Return a text without the quotes, emphasis, brackets and LaTeX that enclose all of it.

    >>> unwrap("**$\\boxed{12}$**"), unwrap("(1, 2)"), unwrap("(1) + (2)")
    ('12', '(1, 2)', '(1) + (2)')
    """
    for _ in range(12):
        before, text = text, text.strip()
        for opening, closing in PAIRS:
            inner = text[len(opening) : len(text) - len(closing)]
            if len(text) <= len(opening) + len(closing) or not (text.startswith(opening) and text.endswith(closing)):
                continue
            is_pair = _balanced(inner) if closing[-1] in "})" else opening != closing or opening not in inner
            if not is_pair or (opening == "(" and "," in inner):
                continue
            text = inner
            break
        text = re.sub(r"^\*+(?=[^*]*$)|(?<=[^*])\*+$", "", text) if text.count("*") <= 2 else text
        if text == before:
            break
    return text


def _balanced(text: str) -> bool:
    depth = 0
    for c in text:
        depth += (c in "({") - (c in ")}")
        if depth < 0:
            return False
    return depth == 0


def _spaced(text: str) -> str:
    for pattern, replacement in SPACING:
        text = pattern.sub(replacement, text)
    return text.strip()


def _without_subject(text: str) -> str:
    """Return a sentence without the subject and verb, or the adverbs, that leave the number behind them as it is."""
    match = SUBJECT.match(text)
    if match and not _changes(match[0]):
        text = text[match.end() :]
    return unwrap(FILLERS.sub("", text))
