"""Equality of two LaTeX expressions by math-verify, alone in a file: it runs in a process that can be ended.

`workbook.tasks.latex` decides what is handed over. math-verify's own time limits are signals, which other threads than
the main one cannot have; they are off.
"""

import logging

from math_verify import LatexExtractionConfig, parse, verify

DIGITS = 150  # to which two numbers must agree
LATEX = [LatexExtractionConfig()]

logging.disable(logging.WARNING)  # it warns that its time limits are off


def equal(completion: str, answer: str) -> float:
    r"""Return 1.0 if two LaTeX expressions are equal, else 0.0.

    >>> equal(r"\sqrt{8}", r"2\sqrt{2}"), equal("x+2", "x+1")
    (1.0, 0.0)
    """
    stated, reference = (
        parse(f"${text}$", LATEX, fallback_mode="no_fallback", parsing_timeout=None) for text in (completion, answer)
    )
    if len(stated) != 1 or len(reference) != 1:
        return 0.0
    return float(verify(reference, stated, numeric_precision=DIGITS, timeout_seconds=None))


equal(r"\frac{\sqrt{8}}{2}", r"\sqrt{2}+x^{2}")  # the grammar's tables are built at first use, which takes long
