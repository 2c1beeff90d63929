"""The book: its chapters, run in cold kernels and rendered as pages, and its lists."""

from workbook.places import lazy_names

# module: what it offers
_NAMES = {
    "book.back_matter": "grade_choice ten_questions",
    "book.cards": "show_claims",
    "book.chapters": "describe find_chapters run_chapters",
    "book.conclusions": "decisions findings",
    "book.evidence": "evidence_table",
    "book.gallery": "gallery_table show_gallery",
    "book.pages": "render_book",
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
