"""A report as one page of HTML, which needs neither scripts nor the net, and as a few lines of text.

Texts of the run, its file and its model are untrusted: they are escaped, and control and direction marks are shown.
"""

from __future__ import annotations

import re
from pathlib import Path

from jinja2 import Environment

from workbook.book.report_movement import lengths_section, model_section, movement_section, ratios_section
from workbook.book.report_parts import figure
from workbook.book.report_sections import cancelled_section, signal_section, stopped_section, tokens_section
from workbook.probes.report import Report
from workbook.probes.report_rules import report_warnings
from workbook.training.files import write_text
from workbook.views.style import printable, visible

PAGE = Path(__file__).with_name("report.html")  # the template
GENERATOR = "workbook report"  # by which a page is known for one of ours
PARTS = ("tokens", "completions", "token_exports", "samples")  # folders of a run's, above which the page is put
SECTIONS = (
    signal_section,
    tokens_section,
    cancelled_section,
    stopped_section,
    ratios_section,
    movement_section,
    lengths_section,
)
TOKENS = {
    "file": "as in the file",
    "tokenizer": "cut by the model's tokenizer",
    "words": "words of the text; --model cuts it into tokens",
    "ids": "ids without texts; --model gives them theirs",
}
GROUPS = {"file": "as in the file", "prompt": "rollouts of one step and prompt", "none": "unknown"}


def report_page(report: Report, title: str) -> str:
    """The report as HTML, its warnings first."""
    sections = [section(report) for section in (*SECTIONS, *([model_section] if report.model is not None else []))]
    page = Environment(autoescape=True).from_string(PAGE.read_text(encoding="utf-8"))
    text = printable(
        page.render(
            title=visible(title, 120, " "),
            generator=GENERATOR,
            facts=facts(report),
            warnings=report_warnings(report),
            sections=[vars(section) | {"figures": map(figure, section.figures)} for section in sections],
            about=_about(report),
            notes=[*report.notes, *(report.model.notes if report.model is not None else ())],
        )
    )
    return re.sub(r"(?<=\d) %", "\u00a0%", text)  # a line never ends between the two


def report_text(report: Report) -> str:
    """The report in a few lines for a terminal: what it is of, a sentence per section, its warnings."""
    lines = [facts(report)]
    lines += [f"- {section.lead[0]}" for make in SECTIONS if (section := make(report)).lead]
    warnings = report_warnings(report)
    lines.append(f"{len(warnings) or 'No'} warning{'s' * (len(warnings) != 1)}{':' * bool(warnings)}")
    lines += [f"{number}. {warned}" for number, warned in enumerate(warnings, 1)]
    return "\n".join(visible(line, 2_000, " ") for line in lines)


def facts(report: Report) -> str:
    """What the report is of, e.g. "2 steps, 64 groups, 512 rollouts, 19,456 tokens"."""
    return ", ".join(f"{n:,} {name[:-1] if n == 1 else name}" for name, n in report.counts.items())


def _about(report: Report) -> dict[str, str]:
    source = report.source
    about = {
        "file": source.get("path", "a table"),
        "format": source.get("format", "token table"),
        "tokens": TOKENS.get(source.get("tokens", "file"), "partly cut here"),
        "groups": GROUPS[source.get("groups", "file")],
    }
    if report.model is not None:
        about["model"] = report.model.name
    settings = {
        name: value
        for name, value in report.objective.items()
        if isinstance(value, str | int | float) and name not in ("format", "step", "normalizer")
    }
    if settings:
        about["objective"] = ", ".join(f"{name}: {_short(value)}" for name, value in settings.items())
    return {name: visible(text, 1_000, " ") for name, text in about.items()}


def _short(value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def default_page(path: str | Path) -> Path:
    """Where a report on a run or file goes: into the run's folder, or beside the file, as report.html.

    Raises ValueError if there is no such run or file, or if another page of that name is there.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise ValueError(f"there is no file or folder {str(path)!r}.")
    folder = path.parent if path.is_file() else path
    page = (folder.parent if folder.name in PARTS else folder) / "report.html"
    if page.exists() and not _is_ours(page):
        raise ValueError(f"{page} is there and is no report; give another file with --html.")
    return page


def _is_ours(page: Path) -> bool:
    with page.open("rb") as file:
        return f'<meta name="generator" content="{GENERATOR}">'.encode() in file.read(1_000)


def write_report(report: Report, page: str | Path) -> None:
    """Write the report's page, atomically."""
    source = Path(report.source.get("path", "a table"))
    write_text(Path(page), report_page(report, f"What training did to the tokens of {source.name}"))
