"""Compare LaTeX expressions by math-verify: a script that answers lines of JSON, `[stated,
reference]`.

`workbook.tasks.verify` starts it, decides what is handed over, and ends it when sympy takes too
long.
"""

import json
import logging
import sys

from math_verify import LatexExtractionConfig, parse, verify

DIGITS = 150  # to which two numbers must agree
LATEX = [LatexExtractionConfig()]


def equal(completion: str, answer: str) -> bool:
    """Return whether two LaTeX expressions are equal."""
    stated, reference = (
        parse(f"${text}$", LATEX, fallback_mode="no_fallback", parsing_timeout=None)
        for text in (completion, answer)
    )
    if len(stated) != 1 or len(reference) != 1:
        return False
    return bool(verify(reference, stated, numeric_precision=DIGITS, timeout_seconds=None))


if __name__ == "__main__":
    del sys.path[0]  # this folder's modules shadow no library's
    logging.disable(logging.WARNING)  # it warns that its own time limits are off
    equal(r"\frac{\sqrt{8}}{2}", r"\sqrt{2}+x^{2}")  # builds the grammar's tables
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            print("equal" if equal(*json.loads(line)) else "different", flush=True)
        except Exception:
            print("unreadable", flush=True)
