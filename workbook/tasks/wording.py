"""Words around an answer: those that deny it, leave it open or take it back, and those that only name its unit.

An answer is paid where the words around it are known to leave it as it is (a subject and a verb before it, a unit after
it), since nobody can list all words that change it. Where prose is free, before a marker and after the answer, it must
have no word of the lists below.
"""

import re


def vocabulary(words: str) -> frozenset[str]:
    """Return the set of the words of a text."""
    return frozenset(words.split())


DENIALS = vocabulary(
    """
    not no nor never neither none nobody nothing nowhere cannot cant isnt aint wasnt dont doesnt didnt wont hardly
    scarcely false wrong wrongly incorrect incorrectly untrue unlikely impossible invalid deny denies denied doubt
    doubts doubtful doubted refute refuted reject rejected lie lies fake bogus mistake mistaken mistakenly error
    erroneous without except excluding other opposite contrary anything unlike nope nah negation far fails failed
    kidding joke joking pretend disagree rule ruled lacks misses errs overestimates underestimates contradicts
    violates disagrees differs overshoots undershoots sans seldom rarely barely
    """
)
HEDGES = vocabulary(
    """
    or either maybe perhaps possibly possible probably presumably might may could if unless whether alternatively
    versus vs guess guesses guessing suppose supposing assume assuming imagine say says said claim claims claimed
    someone somebody alleged allegedly supposedly unsure uncertain unclear unknown depends between among unlikely
    hypothetically theoretically ironically sarcastically somewhere roughly approximately approx around nearly
    almost circa about rather
    """
)
COMPARISONS = vocabulary(
    """
    less more fewer greater smaller larger bigger lower higher above below under over least most than beyond
    exceeds exceed exceeding within up upto minimum maximum
    """
)
SCALES = vocabulary(
    """
    hundred hundreds thousand thousands million millions billion billions trillion trillions dozen dozens score
    scores lakh lakhs crore crores gross half halves third thirds fourth fourths fifth fifths sixth sixths seventh
    sevenths eighth eighths ninth ninths tenth tenths twentieth twentieths hundredth hundredths thousandth
    thousandths millionth millionths tens twice thrice double triple quadruple times fold squared cubed square
    cube root roots power powers percent percents percentage percentages permille factorial reciprocal inverse
    opposite negative negated minus plus modulo mod log logarithm sine cosine tangent point pi squares cubes
    inverses opposites negatives complement previous next first second last former latter is was has does goes
    less unless yes this thus its us as multiples factors divisors digits decimals exponents bits radians pairs
    couples trios couple pair am pm zeros zeroes ones twos threes fours fives sixes sevens eights nines elevens
    missing short off away
    """
)
RETRACTIONS = vocabulary(
    """
    no nor not never neither nope nah or wait actually oops sorry correction alternatively maybe perhaps possibly
    probably instead rather hmm hm else reconsider recheck scratch retract either but might could guess unsure
    joke joking kidding lie thought psych sike lol jk haha
    """
)
REFUTATIONS = vocabulary("wrong incorrect false mistaken untrue instead bogus fake")
UNITS = vocabulary(
    """
    cm mm km kg mg ml ft in lb lbs oz hr hrs min mins sec ms mph kph km/h m/s feet foot inch mile meter metre
    liter litre gram kilogram second minute hour day week month year dollar cent euro pound people men women
    children person child mice geese teeth sheep fish deer degree unit cookie apple money usd eur inches
    """
)
SCALE = re.compile(r".*(?:illions?|teenths?|tieths?|elevenths?|twel[fv]ths?|fold)")
PRAISE = vocabulary(
    "best final correct right total overall numerical numeric exact simplified full true actual whole short"
)
POINTERS = vocabulary("the my our its this so thus hence therefore and then now answer is")
BELIEFS = vocabulary(
    """
    think thinks believe believes know knows get gets find finds found conclude concludes see sees calculate
    compute determine have has obtain deduce note notice say
    """
)
EACH = vocabulary("day week month year hour minute second mile person gallon pound piece item unit dozen night")
CHANGING = DENIALS | HEDGES | COMPARISONS
INVERTED = vocabulary("had has have is are was were did do does can could should would will must may might")  # or asks
WORD = re.compile(r"[^\W\d_]+")
MONTH = re.compile(r"(\b(?:in|and|of|during|until|since|for),? )May\b(?! (?:be|have|not|or|well)\b)")
CONTRACTION = re.compile(r"n['’]t\b|n['’]t(?=\W|$)")
SENTENCE_END = re.compile(
    r"(?!(?<=\bno)\.\s*[-$\\]*(?:\d|frac))(?<!\bapprox)(?<!\bca)\.+(?=[\s\"'*)$<\]}]|\\[)\]]|$)|\n|;"
    r"|</?(?:answer|think|thinking|reasoning|solution|result|final|assistant|eos|p|br|b|strong|i|em)/?>|</s>\s*$",
    re.IGNORECASE,
)
CLAUSE_END = re.compile(r"[,:;](?=\s|$)|[()]")
UNIT_SUFFIX = re.compile(
    r"(?:left|remaining|in total|in all|total|altogether|overall|each|old|now|again"
    r"|(?:(?:per|a|an|each|every) |/ ?)(?P<each>[a-z]+))"
)


def words_of(text: str) -> list[str]:
    """Return the words of a text, folded; a contracted "n't" is the word "not".

    >>> words_of("It isn't 4 APPLES")
    ['it', 'is', 'not', 'apples']
    """
    return WORD.findall(CONTRACTION.sub(" not", MONTH.sub(r"\1month", text).casefold()))


def changes(words: list[str], exempt: frozenset[str] | set[str] = frozenset()) -> bool:
    """Return whether a word denies, leaves open, compares or scales an answer; exempt: words of SCALES that do not."""
    return any(word in CHANGING or (word in SCALES and word not in exempt) for word in words)


def sentences(text: str) -> list[str]:
    """Return the sentences, lines and tagged parts of a text that are not blank.

    >>> sentences("It is 4.5. Good\\nbye")
    ['It is 4.5', 'Good', 'bye']
    """
    return [part.strip() for part in SENTENCE_END.split(text) if part.strip()]


def last_sentence(text: str) -> tuple[str, bool]:
    """Return what stands behind the last end of a sentence in a text, and whether that end was only a line's.

    >>> last_sentence("No. It is not\\n"), last_sentence("No. It is ")
    (('It is not', True), ('It is', False))
    """
    if text.strip() and text.rstrip(" \t").endswith("\n"):
        line = text.rstrip().rsplit("\n", 1)[-1]
        return "" if re.search(r"[.!?;>]\W*$", line) else SENTENCE_END.split(line)[-1].strip(), True
    return SENTENCE_END.split(text)[-1].strip(), False


def spoils_what_follows(before: str, says_answer: bool = False) -> bool:
    """Return whether the words before an answer's marker deny it, leave it open or change it.

    Within the sentence, the last clause counts whole, and an earlier one if it denies "that" which follows. Of a line
    before, without a full stop, the last words count, and all of them if it ends with a colon. says_answer: whether the
    marker has the word "answer", to which the words before it must point.

    >>> [spoils_what_follows(text) for text in ("I don't think that the ", "Since 5 is not even, the ", "5 or ")]
    [True, False, True]
    """
    sentence, is_line_before = last_sentence(before)
    if is_line_before:
        words = words_of(sentence)
        return bool(set(words if sentence.endswith(":") else words[-2:]) & (DENIALS | HEDGES | {"minus", "negative"}))
    words = words_of(CLAUSE_END.split(sentence)[-1])
    changes = (set(words[-4:]) & (COMPARISONS | SCALES)) - {"is", "this", "thus", "so", "as", "last", "total", "over"}
    if words and words[-1] in ("is", "are"):  # "the roots are", unlike "the roots of"
        changes -= {"point", "points", "roots", "pair", "zeros", "first", "second", "next"}
    if says_answer and not _points(words):
        return True
    return bool(set(words) & (DENIALS | HEDGES) or changes) or _denies_that(words_of(sentence))


def _points(words: list[str]) -> bool:
    """Return whether the words before "answer is" point to the answer: "the final", not "another"; "I think that the",
    not "I wish that the".
    """
    words = list(words)
    while words and words[-1] in PRAISE:
        words.pop()
    if words and words[-1] not in POINTERS:
        return False
    while words and words[-1] in POINTERS | {"that"}:
        words.pop()
    return len(words) < 2 or words[-2] not in ("i", "we", "you", "he", "she", "they") or words[-1] in BELIEFS


def _denies_that(words: list[str]) -> bool:
    """Return whether a denial stands before a "that"."""
    denied = next((i for i, word in enumerate(words) if word in DENIALS), len(words))
    return "that" in words[denied:]


def changes_between(before: list[str], after: list[str]) -> bool:
    """Return whether one of the words just before or after a number denies, doubts or scales it.

    >>> changes_between(["so", "the"], [";"]), changes_between(["so", "the"], ["or", "5"])
    (False, True)
    """
    near = {word.casefold().strip(".,:;!?") for word in after[:4]}
    if near & (DENIALS | HEDGES | REFUTATIONS | SCALES - {"is", "thus", "next", "this"}):
        return True
    return not {word.casefold().strip(".,:;!?") for word in before[-8:]}.isdisjoint(DENIALS | HEDGES)


def takes_back(after: str, question: str = "") -> bool:
    """Return whether what follows an answer takes it back or sets another beside it; numbers are another matter.

    >>> [takes_back(text) for text in ("Or 5", "No, wait.", "Well done", "since 3 + 9 is even", "That is wrong")]
    [True, True, False, False, True]
    """
    exempt = {"is", "this", "yes", "thus"} | asked_nouns(question)
    for sentence in sentences(after):
        words = words_of(sentence)
        gives_reason = bool(words) and words[0] in ("because", "since")
        if set(words) & REFUTATIONS or (set(words[:4]) & RETRACTIONS and not gives_reason):
            return True
        if len(words) < 3 and changes(words, exempt):
            return True
    return False


def is_unit(text: str, question: str = "") -> bool:
    """Return whether the text after a number is its unit: a noun in the plural, of measure or of the question.

    >>> [is_unit(text) for text in ("apples", "square feet", "dollars per hour", "million", "more than that", "x")]
    [True, True, True, False, False, False]
    """
    folded = text.casefold().strip()
    if not folded:
        return True
    if len(folded) > 80 or not re.fullmatch(r"[a-z]+(?:[ /-][a-z]+)*", folded):
        return False
    folded, suffix = _without_suffix(folded)
    words = folded.split()
    if not words:
        return suffix
    if words[0] in ("square", "cubic", "whole", "full", "us"):
        words = words[1:]
    known, asked = set(words_of(question)), asked_nouns(question)
    nouns = [word for word in words if word != "of"]
    return (
        1 <= len(nouns) <= 4
        and len(words) <= 5
        and words[0] != "of"
        and all(word in asked or _is_noun(word, known) for word in nouns)
    )


def asked_nouns(question: str) -> frozenset[str]:
    """Return the words behind "how many" that scale elsewhere but are what is counted here, as in "how many times".

    >>> sorted(asked_nouns("How many more pairs than Ann has he?"))
    ['more', 'pairs']
    """
    counted = re.findall(r"\bhow many ((?:[a-z]+ ){0,2}[a-z]+)", question.casefold())
    asked = set(" ".join(counted).split()) & (SCALES | {"more"})
    return frozenset(asked | ({"away"} if "how far" in question.casefold() else set())) - {"is", "was", "does", "has"}


def _without_suffix(text: str) -> tuple[str, bool]:
    """Return a unit without "left", "in total", "per hour" and the like, and whether it had one."""
    has_suffix = False
    while match := re.search(rf"(?:^|\s)(?:{UNIT_SUFFIX.pattern})$", text):
        if match["each"] and match["each"] not in EACH | UNITS:
            break
        text, has_suffix = text[: match.start()].strip(), True
    return text, has_suffix


def _is_noun(word: str, known: set[str]) -> bool:
    """Return whether a word may be a unit: known and none that scales, compares, denies or leaves open."""
    if changes([word]) or SCALE.fullmatch(word) or (len(word) < 2 and "/" not in word):
        return False
    return word in UNITS or word in known or (len(word) > 3 and word.endswith("s"))
