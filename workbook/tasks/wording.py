"""Words that deny, doubt or scale an answer, and the verifier of the chain task, which knows them."""

from __future__ import annotations

import re

WINDOW = 2000  # characters: an answer is looked for in this much of the end of a completion


def vocabulary(words: str) -> frozenset[str]:
    """Return the set of the words of a text."""
    return frozenset(words.split())


DENIALS = vocabulary(
    """
    not no nor never neither none nobody nothing nowhere cannot cant isnt aint wasnt dont doesnt didnt wont hardly
    scarcely false wrong wrongly incorrect incorrectly untrue unlikely impossible invalid deny denies denied doubt
    doubts doubtful doubted refute refuted reject rejected lie lies fake bogus mistake mistaken mistakenly error
    erroneous without except excluding other opposite contrary anything unlike nope nah negation far fails failed
    kidding joke joking pretend disagree rule ruled lacks misses errs overestimates underestimates contradicts violates
    disagrees differs overshoots undershoots sans seldom rarely barely
    """
)
HEDGES = vocabulary(
    """
    or either maybe perhaps possibly possible probably presumably might may could if unless whether alternatively
    versus vs guess guesses guessing suppose supposing assume assuming imagine say says said claim claims claimed
    someone somebody alleged allegedly supposedly unsure uncertain unclear unknown depends between among unlikely
    hypothetically theoretically ironically sarcastically somewhere roughly approximately approx around nearly almost
    circa about rather
    """
)
REFUTATIONS = vocabulary("wrong incorrect false mistaken untrue instead bogus fake")
SCALES = vocabulary(
    """
    hundred hundreds thousand thousands million millions billion billions trillion trillions dozen dozens score scores
    lakh lakhs crore crores gross half halves third thirds fourth fourths fifth fifths sixth sixths seventh sevenths
    eighth eighths ninth ninths tenth tenths twentieth twentieths hundredth hundredths thousandth thousandths millionth
    millionths tens twice thrice double triple quadruple times fold squared cubed square cube root roots power powers
    percent percents percentage percentages permille factorial reciprocal inverse opposite negative negated minus plus
    modulo mod log logarithm sine cosine tangent point pi squares cubes inverses opposites negatives complement
    previous next first second last former latter is was has does goes less unless yes this thus its us as multiples
    factors divisors digits decimals exponents bits radians pairs couples trios couple pair am pm zeros zeroes ones
    twos threes fours fives sixes sevens eights nines elevens missing short off away
    """
)


def words_of(text: str) -> list[str]:
    """Return the words of a text, folded but for the month of May; a contracted "n't" is the word "not"."""
    text = re.sub(r"n't\b", " not", text.replace("&nbsp;", " "))
    return [word if word == "May" else word.casefold() for word in re.findall(r"[^\W\d_]+", text)]


def clock_answer(text: str) -> int | None:
    """Return the number after the last `answer is` of a chain, None where that is not a plain ASCII number, alone.

    >>> clock_answer("now 9 + 3 is 2 ; so the answer is 2"), clock_answer("the answer is 2 ; so the answer is maybe")
    (2, None)
    """
    words = text[-WINDOW:].split()
    for i in range(len(words) - 2, 0, -1):
        if words[i] == "is" and words[i - 1] == "answer":
            word = words[i + 1]
            is_number = word.isascii() and word.isdigit() and len(word) <= 9
            return int(word) if is_number and not _changes_between(words[: i - 1], words[i + 2 :]) else None
    return None


def _changes_between(before: list[str], after: list[str]) -> bool:
    """Return whether one of the words just before or after a chain's answer denies, doubts or scales it."""
    near = {word.casefold().strip(".,:;!?") for word in after[:4]}
    if near & (DENIALS | HEDGES | REFUTATIONS | SCALES - {"is", "thus", "next", "this"}):
        return True
    return not {word.casefold().strip(".,:;!?") for word in before[-8:]}.isdisjoint(DENIALS | HEDGES)
