"""Words of the chain task: roles, private alphabets, equivalents.

In a task of k alphabets each prompt belongs to one of them by a hash. Alphabet 0 has the plain words, alphabet 3 words
of its own ("7'3", ";'3"), in prompts and completions alike. So prompts of two alphabets share no token but the end of
sequence: what couples them is the network between the embedding and the output layer, never a row of either.
"""

import hashlib

OPENINGS = ("start", "begin", "open", "go")
LINKS = ("then", "now", "next", "and")
CLOSINGS = ("so", "thus", "hence", "therefore")
TEMPLATE = ("with", ";", "is", "the", "answer", "=")
OPERATORS = ("+", "-")
EOS = ("<eos>", "</s>", "<|im_end|>", "<|endoftext|>")
EQUIVALENTS = {"with": "at", ";": ",", "the": "my"}  # template words that neither a step nor the verifier needs
MARK = "'"


def alphabet_of(prompt: str, alphabets: int) -> int:
    """Return the alphabet of a plain prompt: a hash modulo the number of alphabets, unrelated to its seed class.

    Of k alphabets and a multiple of k, the fewer are made by merging the more.
    """
    digest = hashlib.blake2b(prompt.encode(), digest_size=4, person=b"alphabet").digest()
    return int.from_bytes(digest, "big") % alphabets


def marked(text: str) -> int:
    """Return the alphabet that a text's first word is marked with, 0 for a plain one.

    >>> marked("9'4 +'4"), marked("9 +"), marked("")
    (4, 0, 0)
    """
    mark = (text.split() or [""])[0].partition(MARK)[2]
    return int(mark) if mark.isascii() and mark.isdigit() and len(mark) < 4 else 0


def in_alphabet(text: str, alphabet: int) -> str:
    """Return a plain text in the words of an alphabet.

    >>> in_alphabet("9 + 3 is 2", 4), in_alphabet("9 + 3 is 2", 0)
    ("9'4 +'4 3'4 is'4 2'4", '9 + 3 is 2')
    """
    return " ".join(f"{word}{MARK}{alphabet}" for word in text.split()) if alphabet else text


def plain(text: str) -> str:
    """Return a text of any alphabet in plain words.

    >>> plain("9'4 +'4 3'4 is'4 2'4")
    '9 + 3 is 2'
    """
    return " ".join(word.partition(MARK)[0] or word for word in text.split())


def read(word: str, alphabet: int) -> str:
    """Return a word of an alphabet in plain; the words of another one stay as they are, and so do end tokens.

    >>> read("7'4", 4), read("7'4", 5), read("7", 4), read("<eos>", 4)
    ('7', "7'4", "7'", '<eos>')
    """
    if not alphabet or word in EOS:
        return word
    own = f"{MARK}{alphabet}"
    return word.removesuffix(own) if word.endswith(own) else word if MARK in word else word + MARK


def canonical(word: str) -> str:
    """Return the plain word of the first alphabet that a word stands for, its equivalents undone.

    >>> canonical(",'4"), canonical("so'4")
    (';', 'so')
    """
    word = word.partition(MARK)[0] or word
    return {other: first for first, other in EQUIVALENTS.items()}.get(word, word)
