"""Run a chapter as a test does: offline, in the smoke profile, its file left as it is."""

from pathlib import Path

from workbook.book import chapters


def run_smoke(path: Path) -> None:
    """Run a notebook whole; ChapterFailed, with the cell, if one of its cells fails."""
    before = path.read_bytes()
    chapters.run_chapters("smoke", [path.name])
    assert path.read_bytes() == before
