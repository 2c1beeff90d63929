"""A resumed run ends in the same bits under every schedule, with optimizers of every kind and all that has a state."""

import pytest
from soak import sample
from soak.resume import EXTRAS, attempt

from workbook.training.config import SCHEDULES

MATRIX = sample("resume", len(SCHEDULES) + 2)


@pytest.mark.parametrize("arguments", [arguments for _, arguments in MATRIX], ids=[name for name, _ in MATRIX])
def test_every_schedule_resumes_bit_for_bit(tmp_path, arguments):
    assert attempt(tmp_path, *arguments) is None


@pytest.mark.parametrize("extra", EXTRAS)
def test_what_else_has_a_state_resumes_bit_for_bit(tmp_path, extra):
    assert attempt(tmp_path, "stop", "cosine", "adamw_torch", extra) is None
