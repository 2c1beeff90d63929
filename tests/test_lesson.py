"""Chapters speak as a lesson: plain words, one meaning a letter, numbers that can be computed."""

import re

import nbformat
import pytest
import torch
from torch.distributions import Binomial

from workbook.book.chapters import ROOT, find_chapters, find_notebooks
from workbook.theory import group_advantages

CHAPTERS = {path.stem[:2]: nbformat.read(path, as_version=4) for path in find_chapters()}
# what belongs to the page of the evidence
PROTOCOL = re.compile(
    r"\bregistered\b|\bpilot|\bprimary\b|\b(?:supported|inconclusive)\b"
    r"|(?:policy|seed) x (?:seed|policy)|looked at twice|(?<!run of )one policy decides"
)
CODE = re.compile(r"(?<!--claim )\b[HDCSRQN]\d{1,2}\b")
# against the step's own prompts, or against all prompts
BARE_SHARE = re.compile(r"(?<!own-prompt )(?<!population )share of signal")
each_notebook = pytest.mark.parametrize("path", find_notebooks(), ids=lambda path: path.stem)


def markdown(path) -> str:
    cells = nbformat.read(path, as_version=4).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


@each_notebook
def test_a_chapter_has_no_word_of_the_protocol(path):
    text = markdown(path)
    for pattern in (PROTOCOL, CODE, BARE_SHARE):
        assert [text[m.start() - 40 : m.end() + 40] for m in pattern.finditer(text)] == []


@each_notebook
def test_a_letter_has_one_meaning(path):
    text = markdown(path)
    assert "\\epsilon" not in text, "the clip range is \\varepsilon, a small constant \\delta"
    assert not re.search(r"(?<!\\hat )\bA_\{?i", text), "an advantage is \\hat A; A is a rollout"
    assert not re.search(r"\$B\$|\\frac1B", text), "B is a rollout"


@pytest.mark.parametrize("number", CHAPTERS)
def test_a_chapter_asks_for_at_most_one_hypothesis(number):
    code = "\n".join(cell.source for cell in CHAPTERS[number].cells if cell.cell_type == "code")
    assert len(re.findall(r"^check_hypothesis\(", code, re.MULTILINE)) <= 1


def test_what_is_known_of_the_papers_is_said_alike():
    texts = [
        *(
            (ROOT / name).read_text(encoding="utf-8")
            for name in ("README.md", "data/book/claims.md")
        ),
        *(markdown(find_chapters([number])[0]) for number in ("00", "14")),
    ]
    for text in texts:
        assert "by their abstracts, captions and openings" in " ".join(text.split())


@pytest.mark.parametrize(
    ("rule", "success", "factor"),
    [
        ("grpo", 0.05, 2.31),
        ("grpo", 0.5, 1.74),
        ("grpo", 0.9, 2.18),
        ("dr_grpo", 0.05, 0.875),
        ("dr_grpo", 0.9, 0.875),
    ],
)
def test_the_factor_of_a_rule_is_what_chapter_02_says(rule, success, factor):
    """k = E[A | R = 1] - E[A | R = 0] in groups of eight, over the seven other rewards."""
    group, chance = torch.zeros(8), Binomial(7, torch.tensor(success)).log_prob(torch.arange(8.0))
    difference = 0.0
    for right, log_chance in enumerate(chance):
        others = torch.tensor([1.0] * right + [0.0] * (7 - right))
        one, zero = (
            group_advantages(torch.cat([torch.tensor([own]), others]), group, rule)[0]
            for own in (1.0, 0.0)
        )
        difference += float(log_chance.exp() * (one - zero))
    assert difference == pytest.approx(factor, abs=0.005)
    said = markdown(find_chapters(["02"])[0])
    assert f"{factor:g}".removeprefix("0") in said


@pytest.mark.parametrize(("aligned", "falls"), [(True, True), (False, False)])
def test_more_prompts_lower_noise_per_signal_only_where_their_signals_align(aligned, falls):
    """Chapter 13: a mean of n prompts' gradients, each of a signal and a noise of length 1."""

    def noise_per_signal(prompts: int) -> float:
        directions = torch.zeros(prompts, dtype=torch.long) if aligned else torch.arange(prompts)
        signal = torch.eye(64)[directions].mean(0).norm()
        return float(1 / prompts**0.5 / signal)

    ratio = noise_per_signal(64) / noise_per_signal(4)
    assert (ratio < 0.5) == falls
    assert falls or ratio == pytest.approx(1)
