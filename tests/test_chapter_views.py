"""Checks of chapters 00 and 04 name the mistake."""

import pytest
import torch

from workbook.theory.advantages import group_advantages
from workbook.topics.groups.explore import check_rloo, check_shared_push


@pytest.mark.parametrize(
    ("answer", "message"),
    [(None, "Not answered"), (0, "Right"), (0.5, "alone"), (1.0, "adds sizes"), (7, "advantage times")],
)
def test_shared_push_says_what_went_wrong(capsys, answer, message):
    check_shared_push(answer)
    assert message in capsys.readouterr().out


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda r, g: None, "Not answered"),
        (lambda r, g: group_advantages(r, g, "rloo"), "Right"),
        (lambda r, g: group_advantages(r, g, "dr_grpo"), "leave it out"),
        (lambda r, g: group_advantages(r, g, "grpo"), "standard deviation"),
        (lambda r, g: r[:3], "shape (3,)"),
        (lambda r, g: torch.zeros(12), "rollout 0 should be 1, but yours is 0."),
        (lambda r, g: r / 0 + g.nothing, "AttributeError"),
    ],
)
def test_rloo_says_what_went_wrong(capsys, function, message):
    check_rloo(function)
    assert message in capsys.readouterr().out
