"""The tables that chapters draw: they are what the studies make of data/results, and all of them
are drawn by name.
"""

import pandas as pd
import pytest
from refusals import refused

from workbook.places import data_path
from workbook.studies.figures import figures, write_figures
from workbook.views import measured_table


@pytest.mark.parametrize("study", sorted(figures()))
def test_a_committed_table_is_what_its_study_makes(study):
    name, make = next(iter(figures()[study].items()))
    pd.testing.assert_frame_equal(measured_table(name), make().reset_index(drop=True))


def test_data_figures_holds_the_tables_that_studies_write_and_no_other():
    folder = data_path("figures")
    committed = {
        path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.parquet")
    }
    assert committed == {name for tables in figures().values() for name in tables}


def test_a_name_that_is_not_there_is_refused_with_its_neighbours():
    study = min(figures())
    name = next(iter(figures()[study]))
    with refused("table", f"{name}s") as refusal:
        measured_table(f"{name}s")
    assert name in refusal.value.valid
    with refused("study", "nothing"):
        write_figures("nothing")
