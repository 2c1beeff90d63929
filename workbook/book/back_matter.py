"""The book's lists from data/book: glossary, literature, ten questions, and multiple choices."""

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from string import Template
from types import SimpleNamespace

from workbook.book import chapters
from workbook.book.terminal import literal
from workbook.messages import InvalidValue
from workbook.places import PACKAGE, data_path, load_yaml

ARXIV = "https://arxiv.org/abs/"


@dataclass(frozen=True)
class Term:
    """A term with its formula in TeX and in words, unit, meaning, first chapter, and its code.

    expect, worry: what a reader should see of it, and what is a bad sign.
    forms: the words that chapters use for it.
    constants: {$name in the texts: name below `workbook`}, so that no number stands in two places.
    """

    term: str
    formula: str
    unit: str
    meaning: str
    chapter: str
    code: str
    words: str
    expect: str = ""
    worry: str = ""
    forms: Sequence[str] = ()
    constants: dict[str, str] = field(default_factory=dict)

    @property
    def advice(self) -> str:
        """What to expect and when to worry, as sentences; "" for neither."""
        parts = ("Expect", self.expect), ("Worry", self.worry)
        return " ".join(f"{begin}: {text}." for begin, text in parts if text)


def read_list(name: str) -> list[SimpleNamespace]:
    """Read the records of data/book/NAME.yaml, whose first lines say what the fields are."""
    records = load_yaml(data_path("book", f"{name}.yaml").read_text(encoding="utf-8"))
    return [
        SimpleNamespace(**{"title": "", "arxiv": "", "where": ""} | record) for record in records
    ]


def glossary() -> list[Term]:
    """Read all terms, with the values of their constants filled in."""
    terms = []
    for record in load_yaml(data_path("book", "glossary.yaml").read_text(encoding="utf-8")):
        term = Term(**record)
        values = {key: f"{_read_constant(name):g}" for key, name in term.constants.items()}
        texts = ("formula", "meaning", "words", "expect", "worry")
        filled = {name: Template(getattr(term, name)).substitute(values) for name in texts}
        terms.append(Term(**vars(term) | filled))
    return terms


def _read_constant(name: str) -> float:
    """The value of a module's constant, read from its source: a glossary loads no torch."""
    module, _, constant = name.rpartition(".")
    source = PACKAGE.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == constant:
            return ast.literal_eval(statement.value)
    raise InvalidValue("constant", name, "a number that its module assigns to one name")


def chapter_line(chapter: str) -> str:
    """The line of a chapter (two digits) that links to its literature; "" for none."""
    works = [work for work in read_list("references") if chapter in work.chapters]
    links = [
        f"[{w.label}]({ARXIV}{w.arxiv})" if w.arxiv else f"{w.label} ({w.authors})" for w in works
    ]
    return f"**Literature.** {' · '.join(links)}" if links else ""


def glossary_page() -> str:
    """Write the glossary as Markdown, a section for each term."""
    parts = ["# Glossary\n\nWhat do the book's terms mean, by which formula and in which unit?"]
    for one in sorted(glossary(), key=lambda term: term.term):
        parts += [f"## {one.term}\n\n$$\n{one.formula}\n$$\n\n{one.meaning} {one.advice}"]
        parts += [f"Unit: {one.unit}. First in {_chapter(one.chapter)}; `workbook.{one.code}`"]
    return "\n\n".join(parts)


def glossary_text(name: str = "") -> str:
    """Some terms, or those whose name or forms hold `name`, as paragraphs; ValueError for none."""

    def is_asked(term: Term) -> bool:
        return any(name.lower() in form.lower() for form in (term.term, *term.forms))

    terms = list(filter(is_asked, glossary()))
    if not terms:
        raise InvalidValue("term", name, "a term of the glossary; without one it shows all of them")
    return "\n\n".join(
        f"**{one.term}**: {literal(one.words)} *({one.unit}; chapter {one.chapter})*\n"
        f"  {literal(f'{one.meaning} {one.advice}')} `workbook.{one.code}`"
        for one in sorted(terms, key=lambda term: term.term)
    )


def references_page() -> str:
    """Write the literature as Markdown, a section for each work."""
    parts = ["# Literature\n\nWhich works does the book build on, and what else has been proposed?"]
    for work in sorted(read_list("references"), key=lambda work: work.label.lower()):
        where = f"[arXiv {work.arxiv}]({ARXIV}{work.arxiv})" if work.arxiv else work.where
        title = f"*{work.title}*. " if work.title else ""
        parts += [f"## {work.label}\n\n{work.authors}. {title}{where}.\n\n{work.claim}"]
        parts += [f"In {', '.join(map(_chapter, work.chapters))}."]
    return "\n\n".join(parts)


def losses_table() -> str:
    """Write the table of data/book/losses.md: what each loss of TRL leaves on a shared token."""
    from workbook.views.measured import measured_table

    table = measured_table("drift/losses")
    policies = table["policy"].unique()
    levels = table.pivot(index="arm", columns=["policy", "reuse"], values="mean")
    verdicts = table.query("reuse == 4").set_index(["arm", "policy"])["verdict"]
    head = "".join(f" {policy}: step 1 | step 4 | against dr_grpo |" for policy in policies)
    lines = [f"| loss |{head}", "|---|" + "---:|---:|---|" * len(policies)]
    for arm in table["arm"].unique():
        cells = []
        for policy in policies:
            cells += [f"{levels.loc[arm, (policy, step)]:.3f}" for step in (1, 4)]
            cells.append(verdicts[arm, policy])
        lines.append(f"| {arm} | {' | '.join(cells).replace('nan', '–')} |")
    return "\n".join(lines)


def self_test_page() -> str:
    """Write the self-test as Markdown: ten questions; folded answers lead to their sections."""
    head = (
        "# Ten questions\n\nDo you know what chapters 00 to 05 say? Answer each for yourself, then"
        " open its answer."
    )
    return f"{head}\n\n{_questions(_chapter)}"


def ten_questions():
    """Show the self-test in a notebook, each answer folded."""
    from IPython.display import Markdown

    return Markdown(_questions(lambda chapter, heading: f"chapter {chapter}, “{heading}”"))


def _questions(place) -> str:
    texts = []
    for k, one in enumerate(read_list("self_test"), 1):
        places = "; ".join(place(chapter, heading) for chapter, heading in one.cells.items())
        folded = f"<details><summary>Answer</summary>\n\n{one.answer} ({places})\n\n</details>"
        texts.append(f"**{k}.** {one.question}\n\n{folded}")
    return "\n\n".join(texts)


def _chapter(chapter: str, heading: str = "") -> str:
    """A link to a chapter by its number, or to one of its sections by the heading."""
    anchor = f"#{heading.replace(' ', '-')}" if heading else ""
    text = f"chapter {chapter}, “{heading}”" if heading else f"chapter {chapter}"
    path = next(chapters.NOTEBOOKS.glob(f"{chapter}_*.ipynb"), None)
    return text if path is None else f"[{text}](<{path.name}{anchor}>)"


def grade_choice(exercise: str, answer: str | None) -> None:
    """Print what a reader's letter says of an exercise in data/book/choices.yaml.

    exercise: chapter and number, such as "02-3".  answer: a letter; None is no answer yet.

    >>> grade_choice("02-3", "c")
    Not quite: a larger group lowers the ratio with opposite signs and without them.
    >>> grade_choice("02-3", "E")
    Not quite: 'E' is no option; choose one of A, B, C, D.
    """
    from workbook.chapters.grading import UNANSWERED

    if answer is None:
        print(UNANSWERED)
        return
    options = choice_options()[exercise]
    letter = str(answer).strip(" .").upper()
    if letter == options["right"]:
        print(options[letter])
    elif letter in options and letter != "RIGHT":
        print(f"Not quite: {options[letter]}")
    else:
        # "right" sorts behind the capital letters
        letters = ", ".join(sorted(options)[:-1])
        print(f"Not quite: {str(answer)[:40]!r} is no option; choose one of {letters}.")


@cache
def choice_options() -> dict[str, dict[str, str]]:
    """Read {exercise: {"right": letter, letter: sentence}}."""
    return load_yaml(data_path("book", "choices.yaml").read_text(encoding="utf-8"))
