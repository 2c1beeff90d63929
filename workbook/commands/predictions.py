"""Print what the reader predicted in the chapters, what came out, and how well calibrated the reader is."""

from __future__ import annotations


def _predictions(args) -> int:
    from workbook.views.calibrated import calibration_table, calibration_text
    from workbook.views.predictions import read_predictions

    predictions, problem = read_predictions()
    for key, mine in sorted(predictions.items()):
        print(f"{key}  {mine.question}\n    {mine.summary()}")
    print(calibration_text(calibration_table(predictions)))
    if problem:
        print(problem)
    return 0


def add_predictions(commands) -> None:
    """`predictions`: the reader's own, and how often they held."""
    predictions = commands.add_parser("predictions", help="your predictions in the chapters, and how often they held")
    predictions.set_defaults(command=_predictions)
