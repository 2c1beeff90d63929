"""Equality of two LaTeX expressions by math-verify, alone in a file: it runs in a process that can be ended.

`workbook.tasks.latex` decides what is handed over. math-verify's own time limits are signals, which other threads than
the main one cannot have; they are off. Before sympy simplifies a difference, which may take long, the two are evaluated
at a point: where they differ there, they differ.
"""

import logging

from math_verify import LatexExtractionConfig, parse, verify
from sympy import Expr, Rational

DIGITS = 150  # to which two numbers must agree
LATEX = [LatexExtractionConfig()]
POINT = [Rational(*pair) for pair in ((13, 7), (29, 11), (17, 5), (31, 13))]  # values of the letters, in their order

logging.disable(logging.WARNING)  # it warns that its time limits are off


def equal(completion: str, answer: str) -> float:
    r"""Return 1.0 if two LaTeX expressions are equal, else 0.0.

    >>> equal(r"\sqrt{8}", r"2\sqrt{2}"), equal("x+2", "x+1")
    (1.0, 0.0)
    """
    stated, reference = (
        parse(f"${text}$", LATEX, fallback_mode="no_fallback", parsing_timeout=None) for text in (completion, answer)
    )
    if len(stated) != 1 or len(reference) != 1 or _differ_at_a_point(stated[0], reference[0]):
        return 0.0
    return float(verify(reference, stated, numeric_precision=DIGITS, timeout_seconds=None))


def _differ_at_a_point(stated: object, reference: object) -> bool:
    """Return whether two expressions have different values at POINT; False of what has no value there."""
    if not isinstance(stated, Expr) or not isinstance(reference, Expr):
        return False
    letters = sorted(stated.free_symbols | reference.free_symbols, key=str)
    point = dict(zip(letters, POINT * len(letters), strict=False))
    values = [expression.subs(point).evalf(30) for expression in (stated, reference)]
    if not all(value.is_number and value.is_finite for value in values):
        return False
    return bool(abs(values[0] - values[1]) > abs(values[1]) * 10**-20 + 10**-25)


equal(r"\frac{\sqrt{8}}{2}", r"\sqrt{2}+x^{2}")  # the grammar's tables are built at first use, which takes long
