"""Exact values: of a calculation that a completion writes out, such as `48 / 2 + 48`, and as a decimal number."""

import re
from fractions import Fraction

MAX_EXPONENT = 20
CURRENCIES = "$€£"
DIGITS = r"(?:\d{1,3}(?:,\d{3}){1,10}|\d{1,40})"
DECIMAL = rf"(?:{DIGITS}(?:\.\d{{1,40}})?|\.\d{{1,40}})"


def sum_value(text: str) -> Fraction | None:
    """Return the value of a calculation with + - * / and brackets, None of what is none.

    >>> sum_value("4 + 8"), sum_value("(2 + 1) x 4"), sum_value("2 ** 9"), sum_value("1 / 0")
    (Fraction(12, 1), Fraction(12, 1), None, None)
    """
    text = re.sub(r"(?<=\d) [a-z]{3,20}s\b", "", re.sub(rf"[{CURRENCIES}]", "", text))
    text = re.sub(r"\\frac\{([^{}]{1,20})\}\{([^{}]{1,20})\}", r"((\1)/(\2))", text)
    text = re.sub(r"\\times|\\cdot|×|(?<=[\d )])x(?=[\d (])", "*", text).replace("\\div", "/").replace("÷", "/")
    tokens = re.findall(rf"{DECIMAL}|[-+*/()]|[^\s\d]", re.sub(r"\^\{(\d{1,2})\}", r"^\1", text.strip()))
    if len(tokens) > 40 or not tokens:
        return None
    try:
        value, rest = _sum(tokens)
    except (ValueError, ZeroDivisionError, IndexError):
        return None
    return None if rest else value


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
