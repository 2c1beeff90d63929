"""Compare LaTeX expressions by math-verify: a script that answers lines of JSON.

Each line is `[stated, reference]`, each answer "equal", "different" or "unreadable".
`workbook.tasks.verify` starts the script, decides what is handed over, and ends it when sympy takes
too long.
"""

import json
import logging
import sys

from math_verify import LatexExtractionConfig, parse, verify

_DIGITS = 150  # to which two numbers must agree


def readings(latex: str) -> list:
    """Return what math-verify reads in an expression."""
    config = [LatexExtractionConfig()]
    return parse(f"${latex}$", config, fallback_mode="no_fallback", parsing_timeout=None)


def equal(stated: str, reference: str) -> bool:
    """Return whether two LaTeX expressions are equal; both must be read in one way only."""
    stated_readings = readings(stated)
    reference_readings = readings(reference)
    if len(stated_readings) != 1 or len(reference_readings) != 1:
        return False
    return bool(
        verify(reference_readings, stated_readings, numeric_precision=_DIGITS, timeout_seconds=None)
    )


if __name__ == "__main__":
    # this folder's modules shadow no library's
    del sys.path[0]
    # it warns that its own time limits are off
    logging.disable(logging.WARNING)
    # builds the grammar's tables
    equal(r"\frac{\sqrt{8}}{2}", r"\sqrt{2}+x^{2}")
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            print("equal" if equal(*json.loads(line)) else "different", flush=True)
        except Exception:
            print("unreadable", flush=True)
