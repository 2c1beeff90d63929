"""The book: chapters run in cold kernels, rendered as pages, with the glossary and the literature
beside them.
"""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "book.back_matter": "grade_choice ten_questions",
    "book.cards": "show_claims show_outcomes",
    "book.chapters": "describe find_chapters run_chapters",
    "book.conclusions": "decisions findings undecided",
    "book.evidence": "evidence_table",
    "book.gallery": "gallery_table show_figure",
    "book.pages": "render_book",
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
