"""Categories of tokens where no task knows them: Math, Template, Reasoning and other, read off the
text (H6).

The paper groups tokens by NLTK's part-of-speech tags (arXiv 2605.08666, figure 4). Here each
completion is cut into words, and a token gets the class of the word that it is a part of, so that
all pieces of "therefore" are one class:

- Math: numbers, in digits or in words; operators; LaTeX; a lone letter beside an operator
- Template: function words (articles, prepositions, pronouns, auxiliaries), punctuation, space and
line breaks,
  Markdown, chat markup and special tokens
- Reasoning: the remaining words (content verbs, nouns, adjectives, adverbs), and connectives such
as "therefore"
- other: what is none of these: emoji, letters that are not Latin, pieces of a character, tokens
that can't be aligned

Lists of English function words decide, so that classes are the same on every machine. **[reading]**
The paper's table of tags is not at hand: which tag belongs to which class is our reconstruction.
Texts are compared, never evaluated.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import replace

from workbook.messages import InvalidValue
from workbook.rollouts.sample import Rollouts

CLASSES = ("Math", "Template", "Reasoning", "other")
RESYNC = 16  # characters by which a token may be displaced in the text, beyond its own length


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NUMBER_WORDS = _words(
    """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
    seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million
    billion half plus minus times"""
)
CONNECTIVES = _words(
    """therefore thus hence so because since then if otherwise however but although though whereas consequently
    accordingly next first second third finally lastly now again instead also moreover"""
)
FUNCTION_WORDS = _words(
    """be am is are was were been being have has had having do does did done doing will would shall should can
    could may might must let let's ain't isn't aren't wasn't weren't don't doesn't didn't won't can't cannot i'm
    it's that's we're you're they're i've we've you've i'll we'll you'll
    a an the this that these those some any each every either neither no all both such what which who whom whose
    i you he she it we they me him her us them my your his its our their mine yours hers ours theirs myself
    yourself himself herself itself ourselves themselves there here where when how why of in on at by for with
    about against between into through during before after above below to from up down out off over under as
    than per via within without upon among across along until while and or nor yet not only just very too more
    most please yes ok okay oh well hi hello"""
)

WORDS = re.compile(
    r"""(?P<tag><\|[\w ]{1,40}\|>|</?[A-Za-z]\w{0,30}>|\[/?[A-Z]{2,12}\])
    |(?P<latex>\\[A-Za-z]+|\\[()\[\]{},;!\ ]|\$+)
    |(?P<number>\d+(?:[.,]\d+)*)
    |(?P<word>[^\W\d_]+(?:['’-][^\W\d_]+)*)
    |(?P<operator>[+=×÷±∓≤≥≠≈≡√∑∏∫∞−·∙⋅%]+)
    |(?P<maybe>[-*/<>^]+)
    |(?P<rest>\s+|.)""",
    re.VERBOSE | re.DOTALL,
)
SPECIAL = re.compile(r"<[^<>\s]{1,40}>|\[[A-Z_]{2,20}\]")


def categorized(rollouts: Rollouts, overwrite: bool = False) -> Rollouts:
    """The rollouts with a class of CLASSES for every completion token.

    overwrite: replace classes that the task knew (those of "chain" are true and stay by default).
    Raises ValueError for rollouts without token strings.
    """
    if rollouts.categories is not None and not overwrite:
        return rollouts
    if rollouts.tokens is None:
        raise InvalidValue(
            "rollouts.tokens",
            None,
            "token strings: sample the rollouts, or give Rollouts.from_batch a tokenizer",
        )
    texts = rollouts.completions or tuple("".join(tokens) for tokens in rollouts.tokens)
    classes = (
        token_classes(tokens, text) for tokens, text in zip(rollouts.tokens, texts, strict=True)
    )
    return replace(rollouts, categories=tuple(classes))


def token_classes(tokens: tuple[str, ...], text: str) -> tuple[str, ...]:
    """The class of each token: that of the word which holds most of its characters, the earlier one
    of two.

    >>> token_classes(("There", "fore", " x", " =", " 1", "2", ".", "<|im_end|>"), "Therefore x = 12.")
    ('Reasoning', 'Reasoning', 'Math', 'Math', 'Math', 'Math', 'Template', 'Template')
    """
    by_character = [None] * len(text)
    for start, stop, kind in _word_classes(text):
        by_character[start:stop] = [kind] * (stop - start)
    classes = []
    for token, place in zip(tokens, _places(tokens, text), strict=True):
        if place is None:  # space and special tokens are no part of the text
            is_markup = not token.strip() or SPECIAL.fullmatch(token.strip())
            classes.append("Template" if is_markup else "other")
        else:
            held = by_character[place : place + len(token.strip())]
            classes.append(max(dict.fromkeys(held), key=held.count))
    return tuple(classes)


def _places(tokens: tuple[str, ...], text: str) -> Iterator[int | None]:
    """Start of each token's characters, without the space around them, in the text; None where they
    do not stand.

    Tokens of some vocabularies carry the space before a word and those of others lose it when
    decoded alone, and special tokens are left out of the text. So each is looked for from where the
    last one ended, not far.
    """
    cursor = 0
    for token in tokens:
        core = token.strip()
        while cursor < len(text) and text[cursor].isspace():
            cursor += 1
        start = text.find(core, cursor, cursor + len(core) + RESYNC) if core else -1
        if start < 0:
            yield None
        else:
            yield start
            cursor = start + len(core)


def _word_classes(text: str) -> Iterator[tuple[int, int, str]]:
    """(start, stop, class) of every piece of the text, in order."""
    pieces = [
        (match.start(), match.end(), match.lastgroup, match.group())
        for match in WORDS.finditer(text)
    ]
    solid = [piece for piece in pieces if not piece[3].isspace()]
    around = [None, *solid, None]
    beside = {piece[0]: (around[k], around[k + 2]) for k, piece in enumerate(solid)}
    for start, stop, kind, piece in pieces:
        yield start, stop, _piece_class(kind, piece, beside.get(start, ()))


def _piece_class(kind: str, piece: str, beside: tuple) -> str:
    """The class of one piece, given the pieces on either side."""
    if kind == "word":
        if len(piece) == 1 and any(
            one and one[2] in ("operator", "maybe", "number") for one in beside
        ):
            return "Math"
        plain = piece.lower().replace("’", "'")
        if not plain[0].isascii() and not unicodedata.name(plain[0], "").startswith("LATIN"):
            return "other"
        if plain in NUMBER_WORDS:
            return "Math"
        return "Template" if plain in FUNCTION_WORDS and plain not in CONNECTIVES else "Reasoning"
    # a hyphen or a bullet, or minus and times beside a number, LaTeX or a lone letter
    if kind == "maybe":
        terms = [
            one[2] in ("number", "latex") or (len(one[3]) == 1 and one[3].isalpha())
            for one in beside
            if one
        ]
        return "Math" if any(terms) else "Template"
    if kind in ("number", "operator", "latex"):
        return "Math"
    if (
        kind == "tag"
        or piece.isspace()
        or unicodedata.category(piece)[0] == "P"
        or piece in "`|~^_"
    ):
        return "Template"
    return "other"
