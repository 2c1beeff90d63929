"""False and true statements of known answers, composed at random: reference x corruption x framing.

Half of a trial's statements are false: another answer, the answer with something done to it (a sign, a power, a
multiplier, a relation), with a second one beside it, denied, doubted or taken back. The other half states the answer in
the forms that people and models use.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from pathlib import Path

from workbook.tasks import Task, get_task

PROMISE = "No false statement is paid, and no true statement goes unpaid."
TRIALS = 100
STATEMENTS = 1000  # of a trial

PLAIN = (
    "{}",
    "{}.",
    "  {}\n",
    "The answer is {}",
    "The answer is {}.",
    "so the answer is {}",
    "Final answer: {}",
    "**Answer:** {}",
    "#### {}",
    "3 rows, then 5 more.\n#### {}",
    "<answer>{}</answer>",
    "<think>Is it 3? No, not 3 or 4.</think>\n<answer>{}</answer>",
    "<answer> {} </answer>\n",
    "I think the answer is {}.",
    "Since 5 is not even, the answer is {}.",
    "First I got 99. That was wrong.\nThe answer is {}.",
    "The answer is {}. I hope this helps you.",
)
ALSO_TRUE = (
    "**{}**",
    "`{}`",
    "\\boxed{{{}}}",
    "The answer is $\\boxed{{{}}}$.",
    "The answer is **{}**.",
    "\\[ \\boxed{{{}}} \\]",
)
DENYING = (
    "The answer is not {}",
    "The answer is not {}.",
    "The answer isn't {}.",
    "not {}",
    "It is not {}",
    "It isn’t {}",
    "Not the answer: {}",
    "It is not true that the answer is {}.",
    "I doubt that the answer is {}.",
    "I don't think the answer is {}",
    "Nobody says the answer is {}",
    "The wrong answer is {}",
    "If the answer is {}",
    "Unless the answer is {}",
    "Maybe the answer is {}",
    "the answer is maybe {}",
    "The answer is anything but {}.",
    "The answer is {} or not",
    "The answer is {}?",
    "{} is wrong",
    "{}, which is wrong",
    "{}? No.",
    "{}\nNo, that is wrong",
    "The answer is {}. Wait, no.",
    "The answer is {}. That is incorrect.",
    "The opposite of the answer is {}",
    "not <answer>{}</answer>",
    "<answer>not {}</answer>",
    "The answer is not <answer>{}</answer>",
    "\\boxed{{\\text{{not }} {}}}",
    "It is not \\boxed{{{}}}",
    "\\boxed{{{}}} is wrong",
    "<answer>{}</answer> or not",
    "never {}",
    "no {}",
    "anything except {}",
    "These are all wrong:\n{}",
    "Definitely not\n\n{}",
    "<del>{}</del>",
    "~~{}~~",
    "\\cancel{{{}}}",
    "{} (wrong)",
    "Incorrect: {}",
    "Another answer is {}",
    "The pseudo answer is {}",
    "I wish the answer is {}",
    "He forgot that the answer is {}",
    "Hypothetically the answer is {}",
    "The answer is {}. Negative.",
    "{}. Hardly.",
    "Guess: {}",
    "{} isn't it",
    "{}? I doubt it",
    "{} if you ask a fool",
    "The answer is far from {}",
)
BOTH = (
    "{r} or {w}",
    "{w} or {r}",
    "either {r} or {w}",
    "{r}, maybe {w}",
    "{r}, {w}",
    "{w}, {r}",
    "{w}; {r}; {w}",
    "[{r}, {w}]",
    "{r} / {w} / {r}",
    "{r} and {w}",
    "{r} or maybe {w}",
    "{r} (or {w})",
    "{r}. Or {w}",
    "{r}. No, {w}",
    "{r}. {w}",
    "{r}\nor {w}",
    "{r}\n{w}",
    "{r} — no, {w}",
    "{r} … {w}",
    "{r} || {w}",
    "{r} vs {w}",
    "{w}{r}",
    "x = {r} or x = {w}",
    "x = {w}, y = {r}",
    "\\boxed{{{w}}}\\boxed{{{r}}}",
    "\\boxed{{{w}}} and \\boxed{{{r}}}",
    "between {r} and {w}",
    "one of {w}, {r}",
    "{r} {w}",
    "{w} {r}",
    "not {w} but maybe {r}",
    "{r} | {w}",
    "{r} not {w} or so",
    "\\boxed{{{w}}} or \\boxed{{{r}}}",
    "\\boxed{{{r}}} or \\boxed{{{w}}}",
    "\\boxed{{{r}, {w}}}",
    "<answer>{r}</answer> or <answer>{w}</answer>",
    "<answer>{w}</answer> or <answer>{r}</answer>",
    "<answer>{r} or {w}</answer>",
    "The answer is {r}. The answer is {w}.",
    "The answer is {r}\nActually, the answer is {w}",
    '{{"answer": [{r}, {w}]}}',
)
CHANGED = (
    "{} million",
    "{} thousand",
    "{} hundred",
    "{} dozen",
    "{}%",
    "{} percent",
    "{}!",
    "{}^2",
    "{}^{{2}}",
    "{}²",
    "{}x",
    "{} x",
    "{}k",
    "{}K",
    "{}e3",
    "{}E+2",
    "{}\\pi",
    "{}π",
    "{} squared",
    "{} cubed",
    "{} factorial",
    "{}/5",
    "{} / 5",
    "{}:30",
    "{},5",
    "{}th",
    "{}i",
    "{} mod 7",
    "{} times 2",
    "{} and a half",
    "{} plus 1",
    "{} + 1",
    "{} - 1",
    "{}*2",
    "{}·2",
    "{} \\times 10^3",
    "{} \\cdot 2",
    "{}±1",
    "{}-ish",
    "{} or so",
    "{} or more",
    "{} at most",
    "{} too many",
    "{} zeros",
    "{} sixteenths",
    "{} quintillion",
    "{} am",
    "{} short",
    "{}/1/2020",
    "{}-1",
    "{}(2)",
    "{}'",
    "{}**2",
    "{} =/= x",
    "{} = 0",
    "{} \\neq x",
    "1 - {}",
    "0.{}",
    "{0}.{0}",
    "{} less than 100",
    "{} below zero",
    "{}_3",
    "{}.5.1",
    "{} (mod 7)",
    "{} halves",
    "{} tenths",
    "{}\\frac{{1}}{{2}}",
    "{} 1/2",
    "\\sqrt{{{}}}",
    "√{}",
    "\\frac{{{}}}{{5}}",
    "\\frac{{1}}{{{}}}",
    "\\dfrac{{{}}}{{7}}",
    "1/{}",
    "x > {}",
    "x \\ge {}",
    "≥ {}",
    "< {}",
    "> {}",
    "x \\neq {}",
    "x != {}",
    "≠ {}",
    "2x = {}",
    "-x = {}",
    "x^2 = {}",
    "x + 1 = {}",
    "\\sqrt{{x}} = {}",
    "x/2 = {}",
    "~{}",
    "≈ {}",
    "±{}",
    "\\pm {}",
    "about {}",
    "at least {}",
    "more than {}",
    "less than {}",
    "half of {}",
    "twice {}",
    "the square root of {}",
    "log {}",
    "\\log {}",
    "sin({})",
    "f({})",
    "x_{{{}}}",
    "x^{{{}}}",
    "2^{}",
    "1{}",
    "0x{}",
    "({}, 1)",
    "{{{}}}",
    "1,{}",
    "3 {}",
    "--{}",
    "+-{}",
    "2 * {}",
    "2({})",
)
UNITS = (
    "apples",
    "dollars",
    "square feet",
    "miles per hour",
    "cm",
    "boxes of cookies",
    "degrees",
    "hours a day",
    "children",
)
WORDS = ("Paris", "the cat", "blue", "Alice", "north-west", "photosynthesis", "a red door")
LATEX = {
    "2\\sqrt{3}": ["\\sqrt{12}", "2\\sqrt3", "2 \\sqrt{3}", "\\sqrt{3}\\cdot 2", "x = 2\\sqrt{3}"],
    "\\frac{\\pi}{2}": ["\\pi/2", "\\dfrac{\\pi}{2}", "\\frac12\\pi", "0.5\\pi"],
    "x^2+1": ["1+x^2", "x^{2} + 1"],
    "\\frac{x}{y}": ["x/y", "\\dfrac{x}{y}"],
    "(1,2)": ["(1, 2)", "\\left(1,2\\right)"],
    "[0,\\infty)": ["[0, \\infty)", "\\left[0,\\infty\\right)"],
    "\\{1,3\\}": ["\\{3, 1\\}", "\\left\\{1,3\\right\\}"],
    "n": ["n"],
    "f": ["$f$"],
}


def trials(seed: int) -> Iterator[tuple[str, tuple]]:
    """Trials are batches: the seed of one and how many statements it has."""
    for number in range(10**6):
        yield f"batch {number}", (seed * 10**6 + number, STATEMENTS)


def attempt(folder: Path, seed: int, statements: int) -> str | None:
    """Score a batch of statements with a hub task; one sentence on those that were judged wrongly."""
    rng = random.Random(seed)
    batch = [(make(rng), truth) for _ in range(statements // 2) for make, truth in ((true, True), (false, False))]
    answers = [answer for (answer, _), _ in batch]
    rewards = hub_task().reward(["What is it?"] * len(batch), [text for (_, text), _ in batch], answers)
    wrong = [
        f"{text!r} for {answer!r} {'unpaid' if truth else 'paid'}"
        for ((answer, text), truth), reward in zip(batch, rewards, strict=True)
        if reward != float(truth)
    ]
    return f"{len(wrong)} of {len(batch)} were judged wrongly: {'; '.join(wrong[:6])}." if wrong else None


@cache
def hub_task() -> Task:
    """A task of the hub's kind; its rows do not matter."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.jsonl").write_text('{"question": "What is it?", "answer": "12"}\n', encoding="utf-8")
        return get_task(f"hub:{folder}", chat=False)


def reference(rng: random.Random) -> tuple[str, str, Fraction | None]:
    """A reference answer as (kind, text, value of a number)."""
    kind = rng.choice(
        ("integer", "integer", "integer", "negative", "decimal", "fraction", "word", "letter", "choice", "latex")
    )
    if kind == "integer":
        value = Fraction(rng.choice((rng.randint(3, 20), rng.randint(21, 999), rng.randint(1000, 10**7))))
        return kind, f"{int(value):,}" if rng.random() < 0.3 else str(value), value
    if kind == "negative":
        value = Fraction(-rng.randint(3, 500))
        return kind, str(value), value
    if kind == "decimal":
        value = Fraction(rng.randint(30, 9999) * 10 + rng.randint(1, 9), 100)
        return kind, f"{float(value):.2f}", value
    if kind == "fraction":
        value = Fraction(rng.choice((1, 3, 7, 11)), rng.choice((2, 4, 5, 8)))
        slashed = f"{value.numerator}/{value.denominator}"
        return kind, rng.choice((slashed, f"\\frac{{{value.numerator}}}{{{value.denominator}}}")), value
    if kind == "word":
        return kind, rng.choice(WORDS), None
    if kind == "letter":
        return kind, rng.choice("ABCDE"), None
    if kind == "choice":
        return kind, rng.choice(("yes", "no", "Yes", "No", "True", "False")), None
    return kind, rng.choice(list(LATEX)), None


def another(rng: random.Random, kind: str, text: str, value: Fraction | None) -> str:
    """Another answer of the same kind."""
    if value is not None:
        return (
            f"{float(value + rng.choice((1, -1, 2, 10, 7))):g}"
            if kind == "decimal"
            else str(value + rng.choice((1, -1, 2, 5)))
        )
    if kind == "choice":
        return {"yes": "no", "no": "yes", "true": "false", "false": "true"}[text.lower()]
    pool = {"word": WORDS, "letter": "ABCDE", "latex": ("3\\sqrt{2}", "x^2-1", "\\pi", "(2,1)", "N", "g")}[kind]
    return rng.choice([other for other in pool if other != text])


def true(rng: random.Random) -> tuple[str, str]:
    """A reference answer and a statement of it."""
    kind, text, value = reference(rng)
    forms = [text]
    if kind in ("integer", "negative"):
        number = int(value)
        part = rng.randint(1, 50)
        forms += [str(number), f"{number:,}", f"{number}.0", f"{number} {rng.choice(UNITS)}", f"x = {number}"]
        forms += [f"{number - part} + {part} = {number}", f"${number}$", f"\\({number}\\)", f"$x = {number}$"]
        forms += [f"{number}\\text{{ cm}}"]
        forms += (
            [f"${number}", f"${number:,}.00"] if number > 0 else [f"−{-number}", f"minus {-number}", f"-${-number}"]
        )
    elif kind == "decimal":
        forms += [f"{text}0", f"${text}", f"{text} kg", f"x = {text}", f"${text}$"]
    elif kind == "fraction":
        slashed = f"{value.numerator}/{value.denominator}"
        forms += [str(float(value)), slashed, f"\\frac{{{value.numerator}}}{{{value.denominator}}}", f"x = {slashed}"]
    elif kind == "letter":
        forms += [f"({text})", f"{text})", f"option {text}"] if rng.random() < 0.5 else [text]
    elif kind == "choice":
        forms += [text.lower(), text.upper()]
    elif kind == "latex":
        forms += LATEX[text]
    stated = rng.choice(forms)
    framings = PLAIN if stated.endswith(")") or "$" in stated or "\\(" in stated else PLAIN + ALSO_TRUE
    return text, rng.choice(framings).format(stated)


def false(rng: random.Random) -> tuple[str, str]:
    """A reference answer and a statement of something else."""
    kind, text, value = reference(rng)
    other = another(rng, kind, text, value)
    way = rng.choice(("other", "denied", "both", "changed", "changed", "nonsense"))
    if way == "denied":
        return text, rng.choice(DENYING).format(text)
    if way == "both":
        stated = rng.choice(BOTH).format(r=text, w=other)
        return text, stated if "answer" in stated or "boxed" in stated else rng.choice(PLAIN).format(stated)
    if way == "nonsense":
        stated = rng.choice(
            ("", " ", "nan", "inf", "1e999", "qzx", "None", "[]", "{}", "the answer", "reward: 1", "9" * 50)
        )
    elif way == "other":
        stated = rng.choice((other, *wrong_sign(text, value)))
    elif value is not None:
        stated = rng.choice(CHANGED).format(text)
    else:
        changes = (
            "{}'",
            "{}!",
            "-{}",
            "non-{}",
            "{0}{0}",
            "{0} {0}",
            "{}?",
            "anti{}",
            "{}_1",
            "({})^2",
            "2{}",
            "all but {}",
        )
        stated = rng.choice(changes).format(text)
    return text, rng.choice(PLAIN).format(stated)


def wrong_sign(text: str, value: Fraction | None) -> list[str]:
    """The same number with the other sign, in the ways that people write one."""
    if value is None:
        return []
    if value < 0:
        return [text.lstrip("-"), f"+{text.lstrip('-')}"]
    return [f"-{text}", f"−{text}", f"minus {text}", f"negative {text}", f"- {text}", f"-${text}"]
