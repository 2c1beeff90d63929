"""What a chapter draws of the evidence: committed tables, one a figure, which the studies write.

A chapter never opens a study's tables. It reads `data/figures/<room>/<name>.parquet`, where the
study has already taken means and intervals over its units, and draws it:

    curve_chart(measured_table("flips/follows"), ...)

`python -m workbook measure STUDY --figures` writes the tables of a study anew, from its tables in
data/results (`workbook.studies.figures`).
"""

from difflib import get_close_matches

import pandas as pd

from workbook.messages import InvalidValue
from workbook.places import data_path


def measured_table(name: str) -> pd.DataFrame:
    """Read the table of a figure, "<room>/<name>" below data/figures.

    Raises ValueError, with the nearest names, where there is none.
    """
    path = data_path("figures", f"{name}.parquet")
    if not path.is_file():
        folder = data_path("figures")
        names = [
            one.relative_to(folder).with_suffix("").as_posix() for one in folder.glob("*/*.parquet")
        ]
        near = get_close_matches(name, names, 4, 0.3) or sorted(names)[:4]
        raise InvalidValue("table", name, f"below data/figures; there are {', '.join(near)}")
    return pd.read_parquet(path)
