"""Words that deny, doubt or scale an answer beside them.

"Not 12", "12 or 13" and "12 million" contain 12 and do not state it. A policy soon finds that a
reward pays such texts, so verifiers look for these words around an answer: `workbook.tasks.verify`
in any language model's text, `workbook.tasks.chain.clock_answer` in a chain, whose own words are
none of them.
"""

import re

ANSWER_WINDOW = 2000  # characters at the end of a completion, in which an answer is looked for


def word_set(words: str) -> frozenset[str]:
    """Return the set of the words of a text."""
    return frozenset(words.split())


DENIALS = word_set("""
    not no nor never neither none nobody nothing nowhere cannot cant isnt aint wasnt dont doesnt
    didnt wont hardly scarcely false wrong wrongly incorrect incorrectly untrue unlikely
    impossible invalid deny denies denied doubt doubts doubtful doubted refute refuted reject
    rejected lie lies fake bogus mistake mistaken mistakenly error erroneous without except
    excluding other opposite contrary anything unlike nope nah negation far fails failed kidding
    joke joking pretend disagree rule ruled lacks misses errs overestimates underestimates
    contradicts violates disagrees differs overshoots undershoots sans seldom rarely barely
    """)
HEDGES = word_set("""
    or either maybe perhaps possibly possible probably presumably might may could if unless
    whether alternatively versus vs guess guesses guessing suppose supposing assume assuming
    imagine say says said claim claims claimed someone somebody alleged allegedly supposedly
    unsure uncertain unclear unknown depends between among unlikely hypothetically theoretically
    ironically sarcastically somewhere roughly approximately approx around nearly almost circa
    about rather
    """)
SCALES = word_set("""
    hundred hundreds thousand thousands million millions billion billions trillion trillions
    dozen dozens score scores lakh lakhs crore crores gross half halves third thirds fourth
    fourths fifth fifths sixth sixths seventh sevenths eighth eighths ninth ninths tenth tenths
    twentieth twentieths hundredth hundredths thousandth thousandths millionth millionths tens
    twice thrice double triple quadruple times fold squared cubed square cube root roots power
    powers percent percents percentage percentages permille factorial reciprocal inverse
    opposite negative negated minus plus modulo mod log logarithm sine cosine tangent point pi
    squares cubes inverses opposites negatives complement previous next first second last former
    latter is was has does goes less unless yes this thus its us as multiples factors divisors
    digits decimals exponents bits radians pairs couples trios couple pair am pm zeros zeroes
    ones twos threes fours fives sixes sevens eights nines elevens missing short off away
    """)
# words that spoil an answer in whose clause, or behind which, they stand
SPOILING = (
    DENIALS
    | HEDGES
    | word_set("""
    another wait actually oops sorry psych un less fewer more wish forgot pseudo instead
    """)
)
# behind an answer scales spoil it too, but for those that begin a remark: "12. This is it"
SPOILING_AFTER = SPOILING | SCALES - word_set("""
    is was has this thus its us as yes last first next second total times
    """)
# words that are no unit of a number
NO_UNIT = (
    SPOILING
    | SCALES
    | word_set("""
    k x i e th ish at than too below above under over most least quintillion sixteenths
    """)
)


def words_of(text: str) -> list[str]:
    """Return the words of a text, folded but for the month of May; "n't" is the word "not"."""
    text = re.sub(r"n't\b", " not", text.replace("&nbsp;", " "))
    return [word if word == "May" else word.casefold() for word in re.findall(r"[^\W\d_]+", text)]
