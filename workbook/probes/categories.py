"""Categories of tokens where no task knows them: Math, Template, Reasoning and other (H6).

The paper groups tokens by NLTK's part-of-speech tags (arXiv 2605.08666, figure 4). Tags need a
tagger, and tokens are pieces of words. Here each completion is cut into words, and a token gets the
class of the word that it is a part of, so that all pieces of "therefore" are of one class:

- Math: numbers, in digits or in words; operators; LaTeX; a lone letter beside an operator
- Template: function words (articles, prepositions, pronouns, auxiliaries), punctuation, spaces and
  line breaks, Markdown, chat markup and special tokens
- Reasoning: the remaining words (content verbs, nouns, adjectives, adverbs), and connectives such
  as "therefore"
- other: none of these: emoji, letters that are not Latin, pieces of a character, tokens that can't
  be aligned

Lists of English function words decide, so that classes are the same on every machine. **[reading]**
The paper's table of tags is not at hand: which tag belongs to which class is our reconstruction.
Texts are compared, never evaluated.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from workbook.messages import InvalidValue
from workbook.rollouts.sample import Rollouts

TOKEN_CLASSES = ("Math", "Template", "Reasoning", "other")
RESYNC = 16  # characters by which a token may be displaced in the text, beyond its own length


def _word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


NUMBER_WORDS = _word_set(
    """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
    fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy
    eighty ninety hundred thousand million billion half plus minus times"""
)
# Reasoning, although some of them are function words, too
CONNECTIVES = _word_set(
    """therefore thus hence so because since then if otherwise however but although though whereas
    consequently accordingly next first second third finally lastly now again instead also
    moreover"""
)
FUNCTION_WORDS = _word_set(
    """be am is are was were been being have has had having do does did done doing will would shall
    should can could may might must let let's ain't isn't aren't wasn't weren't don't
    doesn't didn't won't can't cannot i'm it's that's we're you're they're i've we've you've
    i'll we'll you'll a an the this that these those some any each every either neither no
    all both such what which who whom whose i you he she it we they me him her us them my
    your his its our their mine yours hers ours theirs myself yourself himself herself
    itself ourselves themselves there here where when how why of in on at by for with about
    against between into through during before after above below to from up down out off
    over under as than per via within without upon among across along until while and or nor
    yet not only just very too more most please yes ok okay oh well hi hello"""
)

# alternatives are tried in order, and together they match every character
_PIECES = re.compile(
    r"""(?P<tag><\|[\w ]{1,40}\|>|</?[A-Za-z]\w{0,30}>|\[/?[A-Z]{2,12}\])
    |(?P<latex>\\[A-Za-z]+|\\[()\[\]{},;!\ ]|\$+)
    |(?P<number>\d+(?:[.,]\d+)*)
    |(?P<word>[^\W\d_]+(?:['’-][^\W\d_]+)*)
    |(?P<operator>[+=×÷±∓≤≥≠≈≡√∑∏∫∞−·∙⋅%]+)
    |(?P<maybe>[-*/<>^]+)
    |(?P<rest>\s+|.)""",
    re.VERBOSE | re.DOTALL,
)
_SPECIAL_TOKEN = re.compile(r"<[^<>\s]{1,40}>|\[[A-Z_]{2,20}\]")


def categorized(rollouts: Rollouts, overwrite: bool = False) -> Rollouts:
    """The rollouts with a class of TOKEN_CLASSES for every completion token.

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
    texts = rollouts.completions or ["".join(tokens) for tokens in rollouts.tokens]
    classes = [
        token_classes(tokens, text) for tokens, text in zip(rollouts.tokens, texts, strict=True)
    ]
    return replace(rollouts, categories=tuple(classes))


def token_classes(tokens: tuple[str, ...], text: str) -> tuple[str, ...]:
    """The class of each token: that of the word which holds most of its characters.

    Of two words that hold as many, the earlier one counts.

    >>> tokens = ("There", "fore", " x", " =", " 1", "2", ".", "<|im_end|>")
    >>> token_classes(tokens, "Therefore x = 12.")
    ('Reasoning', 'Reasoning', 'Math', 'Math', 'Math', 'Math', 'Template', 'Template')
    """
    # a class for each character of the text, then a vote of each token's characters
    class_of_character = []
    for piece, name in _classified_pieces(text):
        class_of_character += [name] * len(piece.text)

    classes = []
    for token, start in zip(tokens, _token_starts(tokens, text), strict=True):
        core = token.strip()
        if start is not None:
            candidates = class_of_character[start : start + len(core)]
            # dict.fromkeys keeps the order, so that max takes the earlier of two
            classes.append(max(dict.fromkeys(candidates), key=candidates.count))
        # spaces and special tokens are no part of the text
        elif not core or _SPECIAL_TOKEN.fullmatch(core):
            classes.append("Template")
        else:
            classes.append("other")
    return tuple(classes)


def _token_starts(tokens: tuple[str, ...], text: str) -> Iterator[int | None]:
    """Start of each token's characters, without the space around them; None if the text lacks them.

    Tokens of some vocabularies carry the space before a word and those of others lose it when
    decoded alone, and special tokens are left out of the text. So each is searched for from the end
    of the last one, not far.
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


class _Piece(NamedTuple):
    """A piece of a text: a word, a number, a sign; kind: the group of _PIECES that matched it."""

    kind: str
    text: str


def _classified_pieces(text: str) -> Iterator[tuple[_Piece, str]]:
    """Every piece of the text, in order, with its class."""
    pieces = [_Piece(match.lastgroup, match.group()) for match in _PIECES.finditer(text)]
    solid = [piece for piece in pieces if not piece.text.isspace()]
    k = 0
    for piece in pieces:
        if piece.text.isspace():
            yield piece, "Template"
            continue
        # neighbours beyond the space between them
        before = solid[k - 1 : k]
        after = solid[k + 1 : k + 2]
        yield piece, _piece_class(piece, before + after)
        k += 1


def _piece_class(piece: _Piece, neighbours: list[_Piece]) -> str:
    """The class of one piece that is not space, given the pieces on either side."""
    if piece.kind in ("number", "operator", "latex"):
        return "Math"
    if piece.kind == "tag":
        return "Template"
    if piece.kind == "word":
        return _word_class(piece.text, neighbours)
    # minus or times beside a term; else a hyphen or a bullet
    if piece.kind == "maybe":
        return "Math" if any(_is_term(one) for one in neighbours) else "Template"
    # the remaining pieces are single characters
    is_punctuation = unicodedata.category(piece.text)[0] == "P" or piece.text in "`|~^_"
    return "Template" if is_punctuation else "other"


def _word_class(word: str, neighbours: list[_Piece]) -> str:
    """The class of a word: of a lone letter beside an operator or a number Math, a variable."""
    beside_math = any(one.kind in ("operator", "maybe", "number") for one in neighbours)
    if len(word) == 1 and beside_math:
        return "Math"
    plain = word.lower().replace("’", "'")
    # lists of English words say nothing of other scripts
    is_latin = plain[0].isascii() or unicodedata.name(plain[0], "").startswith("LATIN")
    if not is_latin:
        return "other"
    if plain in NUMBER_WORDS:
        return "Math"
    if plain in FUNCTION_WORDS and plain not in CONNECTIVES:
        return "Template"
    return "Reasoning"


def _is_term(piece: _Piece) -> bool:
    """Whether the piece is a number, LaTeX or a lone letter."""
    is_letter = len(piece.text) == 1 and piece.text.isalpha()
    return piece.kind in ("number", "latex") or is_letter
