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

from workbook.tasks.prose import follows, lead, without_asides
from workbook.tasks.wording import COMPARISONS, DENIALS, FILLERS, HEDGES, SCALES, is_unit, vocabulary, words_of

MAX_EXPONENT = 20  # of a power in a calculation
MAX_LENGTH = 300  # characters of a sentence that states a number
PAIRS = (
    ("**", "**"),
    ("*", "*"),
    ("__", "__"),
    ("`", "`"),
    ('"', '"'),
    ("'", "'"),
    ("“", "”"),
    ("$$", "$$"),
    ("$", "$"),
    ("\\(", "\\)"),
    ("\\[", "\\]"),
    ("(", ")"),
    ("\\boxed{", "}"),
    ("\\text{", "}"),
    ("\\textbf{", "}"),
    ("\\mathbf{", "}"),
    ("\\mathrm{", "}"),
    ("<b>", "</b>"),
    ("<strong>", "</strong>"),
)
CURRENCIES = "$€£"
ATTACHED = vocabulary("cm mm km kg mg ml ft lb lbs oz hr hrs mins sec ms mph kph km/h m/s")
DIGITS = r"(?:\d{1,3}(?:,\d{3}){1,10}|\d{1,40})"
DECIMAL = rf"(?:{DIGITS}(?:\.\d{{1,40}})?|\.\d{{1,40}})"
LITERAL = re.compile(
    rf"(?P<sign>[-+] ?|minus |negative )?(?P<currency>[{CURRENCIES}] ?)?(?P<inner>-(?=[\d.]))?"
    rf"(?:(?P<units>\d{{1,20}})? ?\\frac\{{(?P<top>-?\d{{1,20}})\}}\{{(?P<bottom>\d{{1,20}})\}}"
    rf"|(?:(?P<whole>\d{{1,20}}) )?(?P<over>\d{{1,20}}) ?/ ?(?P<under>\d{{1,20}})(?![\d./])"
    rf"|(?P<decimal>{DECIMAL})(?:[eE](?P<e>[-+]?\d{{1,3}})"
    r"| ?(?:\\times|×|\\cdot|\*) ?10 ?\^ ?(?P<p>\{[-+]?\d{1,3}\}|[-+]?\d{1,3}))?"
    rf")(?P<percent> ?%)?(?P<rest>.*)",
    re.ASCII | re.IGNORECASE,
)
EXCLAIMED = re.compile(r"(?<=[a-z]{3})!+$")
EQUALS = re.compile(r"(?<=\d)\)? (?:equals|is equal to) (?=[-$\d])")
NOT_EQUATIONS = re.compile(r"[<>!:≠≤≥≈~]|==|\\(?:n?eq|ne|leq?|geq?|lt|gt|approx|sim|pm|not)(?![a-z])")
SPACING = [
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
POSTPOSED = re.compile(
    rf" is (?:the|our|my) (?:(?:final|correct|right|exact) )*{NOUNS}(?: (?:to|of|for) [a-z ]{{1,40}})?$",
    re.IGNORECASE,
)
FUNCTIONS = vocabulary("sin cos tan log ln exp sqrt max min abs floor ceil arcsin arccos arctan lim det")
NAME = re.compile(
    r"(?:[a-z]+(?:'s)?,? )*"
    r"(?:\\(?:alpha|beta|gamma|delta|theta|lambda|mu|phi|omega|angle ?[a-z]+)|[a-z]+(?:_(?:\w|\{\w+\}))?"
    r"|[a-z]\([a-z0-9, ]{1,12}\)),?",
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
        text = EXCLAIMED.sub("", text)
        text = EQUALS.sub(" = ", without_asides(text, question) if question else text)
    if "=" in text:
        text = unwrap(text)
        text = text.replace("$", "") if text.count("$") == 2 and text.endswith("$") else text
    if "=" not in text:
        return _literal(text, question, spoken)
    *lefts, right = text.split("=")
    if NOT_EQUATIONS.search(text) or not right.strip():
        return None
    quantity = _literal(right, question, False, spoken)
    if quantity is None:
        return None
    for left in filter(None, map(str.strip, lefts)):
        if not names(left) and sum_value(_without_prose(left) if spoken else left) != quantity.value:
            return None
    return quantity


def _without_prose(text: str) -> str:
    """Return a calculation without the words that lead up to it, if none of them changes it."""
    match = re.match(r"[A-Za-z ,']{1,80}[A-Za-z,] (?=[\d($€£-])", text)
    changing = DENIALS | HEDGES | COMPARISONS | SCALES - {"is", "was", "has", "this", "thus"}
    return text[match.end() :] if match and not set(words_of(match[0])) & changing else text


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
    is_end = is_end or (ends_in_prose and not attached and bool(question) and follows(match["rest"], question))
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
    text = unwrap(re.split(r"[.:;]\s", text)[-1].strip()).rstrip("$ ").lstrip("$ ")
    if len(text) > 80 or not NAME.fullmatch(text):
        return False
    return not set(words_of(text)) & (DENIALS | HEDGES | COMPARISONS | FUNCTIONS | SCALES - {"is", "was", "us", "thus"})


def sum_value(text: str) -> Fraction | None:
    """Return the value of a calculation with + - * / and brackets, None of what is none.

    >>> sum_value("4 + 8"), sum_value("(2 + 1) x 4"), sum_value("2 ** 9"), sum_value("1 / 0")
    (Fraction(12, 1), Fraction(12, 1), None, None)
    """
    text = re.sub(r"(?<=\d) [a-z]{3,20}s\b", "", re.sub(rf"[{CURRENCIES}]", "", text))
    text = re.sub(r"\\times|\\cdot|×|(?<=[\d )])x(?=[\d (])", "*", text).replace("\\div", "/").replace("÷", "/")
    tokens = re.findall(rf"{DECIMAL}|[-+*/()]|[^\s\d]", re.sub(r"\^\{(\d{1,2})\}", r"^\1", text.strip()))
    if len(tokens) > 40 or not tokens:
        return None
    try:
        value, rest = _sum(tokens)
    except (ValueError, ZeroDivisionError, IndexError):
        return None
    return None if rest else value


def _sum(tokens: list[str]) -> tuple[Fraction, list[str]]:
    value, rest = _product(tokens)
    while rest and rest[0] in "+-":
        sign = -1 if rest[0] == "-" else 1
        term, rest = _product(rest[1:])
        value += sign * term
    return value, rest


def _product(tokens: list[str]) -> tuple[Fraction, list[str]]:
    value, rest = _factor(tokens)
    while rest and rest[0] in "*/":
        operator = rest[0]
        factor, rest = _factor(rest[1:])
        value = value * factor if operator == "*" else value / factor
    return value, rest


def _factor(tokens: list[str]) -> tuple[Fraction, list[str]]:
    first, rest = tokens[0], tokens[1:]
    if first == "-":
        value, rest = _factor(rest)
        return -value, rest
    if first == "(":
        value, rest = _sum(rest)
        if rest[0] != ")":
            raise ValueError("a bracket is not closed")
        return value, rest[1:]
    value = Fraction(first.replace(",", ""))
    if len(rest) > 1 and rest[0] == "^" and rest[1].isdigit() and int(rest[1][:3]) <= MAX_EXPONENT:
        return value ** int(rest[1]), rest[2:]
    return value, rest


def unwrap(text: str) -> str:
    r"""Return a text without the quotes, emphasis, brackets and LaTeX that enclose all of it.

    >>> unwrap("**$\\boxed{12}$**"), unwrap("(1, 2)"), unwrap("(1) + (2)")
    ('12', '(1, 2)', '(1) + (2)')
    """
    for _ in range(12):
        before, text = text, text.strip()
        for left, right in PAIRS:
            inner = text[len(left) : len(text) - len(right)]
            if len(text) <= len(left) + len(right) or not (text.startswith(left) and text.endswith(right)):
                continue
            is_pair = _balanced(inner) if right[-1] in "})" else left != right or left not in inner
            if not is_pair or (left == "(" and "," in inner):
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
    if match and not set(words_of(match[0])) & (DENIALS | HEDGES | COMPARISONS | SCALES - {"is", "was", "has", "this"}):
        text = text[match.end() :]
    first, _, rest = text.partition(" ")
    while rest and first.casefold().strip(",:") in FILLERS:
        text = rest
        first, _, rest = text.partition(" ")
    return unwrap(text)


def plain_decimal(value: Fraction) -> str | None:
    """Return a value as a plain decimal number, None where that has no end or too many digits.

    >>> plain_decimal(Fraction(-25, 2)), plain_decimal(Fraction(12)), plain_decimal(Fraction(1, 3))
    ('-12.5', '12', None)
    """
    for places in range(41):
        scaled = value * 10**places
        if scaled.denominator == 1 and abs(scaled.numerator) < 10**80:
            digits = str(abs(scaled.numerator)).rjust(places + 1, "0")
            whole, decimals = (digits[:-places], "." + digits[-places:]) if places else (digits, "")
            return f"{'-' * (value < 0)}{whole}{decimals}"
    return None
