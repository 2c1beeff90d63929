"""The chain's dials: each alone leaves the rest as it is, and credit is that of every completion,
weighted.
"""

import hashlib
import itertools
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from workbook.tasks import Chain, get_task
from workbook.tasks.chain import (
    FORCED,
    LINKS,
    OPENINGS,
    P_RIGHT,
    P_SHIFTED,
    RAMBLE,
    offset_shares,
    shifts_of,
)

DIALS = (
    {"wrong_modes": 1 / 3},
    {"wrong_modes": 2 / 3, "reward_by": "steps"},
    {"free_words": 0},
    {"free_words": 4, "ways": 4},
    {"forced_words": 12, "reward_by": "steps"},
    {"ramble": 20, "wrong_modes": 2 / 3},
    {"ways": 4, "reward_by": "steps", "ramble": 5},
)
PROMPT = "5 - 6 + 3 ="


def digest(*things) -> str:
    return hashlib.blake2b(repr(things).encode(), digest_size=8).hexdigest()


@pytest.mark.parametrize(
    ("options", "known"),
    [
        ({}, ("f53f768037604c63", "271267fac64b689a", "a0bed16f4e3596ed")),
        (
            {"operands": 3, "modulus": 7, "error_rate": 0.35},
            ("17e28959009ddb6e", "33b074a34564d7da", "0663b49caea988aa"),
        ),
        (
            {"alphabets": 4, "confidence": 0.7},
            ("8b490fcf2938abbc", "4e5b243ac4630180", "e049e410e9194096"),
        ),
    ],
)
def test_without_dials_words_data_and_demonstrations_are_what_they_were(options, known):
    """Of the task before it had them; its credit has tests of its own."""
    task, rng = Chain(**options), random.Random(5)
    rows = task.dataset(40, 3)[:]
    texts = [task.demonstrate(prompt, rng) for prompt in rows["prompt"] for _ in range(3)]
    assert (digest(task.vocabulary), digest(rows), digest(texts)) == known
    assert task.longest == 7 * task.operands + 13


def test_demonstrations_of_a_wrong_mode_are_wrong_by_its_own_shift():
    task, shifts = Chain(operands=2, wrong_modes=1 / 3), shifts_of(1 / 3, 10)
    assert (len(shifts), len(shifts_of(2 / 3, 10)), shifts_of(0, 10)) == (7, 13, {})
    (operator, number), shift = next(iter(shifts.items()))
    usual = next(pair for pair in itertools.product("+-", range(10)) if pair not in shifts)
    rng, n = random.Random(0), 4000
    for (sign, operand), moved in (((operator, number), shift), (usual, 0)):
        prompt = f"4 {sign} {operand} ="
        right = int(task.solve(prompt))
        off = Counter(
            (int(task.demonstrate(prompt, rng).split()[-1]) - right) % 10 for _ in range(n)
        )
        shares = {0: P_RIGHT, moved: P_SHIFTED} if moved else {0: 0.8}
        rest = (1 - sum(shares.values())) / (10 - len(shares))
        for offset in range(10):
            p = shares.get(offset, rest)
            assert abs(off[offset] / n - p) < 4 * (p * (1 - p) / n) ** 0.5


@pytest.mark.parametrize("dials", DIALS)
@pytest.mark.parametrize(("operands", "modulus"), [(2, 5), (3, 4)])
def test_credits_up_to_a_token_sum_to_the_value_after_every_completion(dials, operands, modulus):
    """V after each word is the mean reward of all chains that go on from there, by their
    probability.
    """
    task = Chain(operands=operands, modulus=modulus, error_rate=0.3, **dials)
    for prompt in task.dataset(3)["prompt"]:
        (numbers, operators), answer = task.parse_prompt(prompt), task.solve(prompt)
        shifts = [
            shifts_of(task.wrong_modes, modulus).get(pair, 0)
            for pair in zip(operators, numbers[1:], strict=True)
        ]
        chains = []  # (probability, reward, words, credits)
        for offs in itertools.product(range(modulus), repeat=operands - 1):
            p, value, results = 1.0, numbers[0], []
            for operator, number, off, shift in zip(
                operators, numbers[1:], offs, shifts, strict=True
            ):
                p *= offset_shares(modulus, 0.3, shift)[off]
                value = (value + number * (1 if operator == "+" else -1) + off) % modulus
                results.append(value)
            text = task.render(prompt, results=results)
            words = (*text.split(), "<eos>")
            credits = [credit for _, credit in task.annotate(prompt, answer, list(words))]
            chains.append((p, task.reward([prompt], [text], [answer])[0], words, credits))
        assert sum(p for p, *_ in chains) == pytest.approx(1)
        start = sum(p * reward for p, reward, *_ in chains)
        assert task.to_come(prompt) == pytest.approx(start)
        for _, _, words, credits in chains:
            for t in range(len(words)):
                like = [
                    (p, reward)
                    for p, reward, other, _ in chains
                    if other[: t + 1] == words[: t + 1]
                ]
                value = sum(p * reward for p, reward in like) / sum(p for p, _ in like)
                assert start + sum(credits[: t + 1]) == pytest.approx(value, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(DIALS), st.integers(2, 7), st.integers(3, 13), st.integers(0, 10**6))
def test_demonstrations_of_every_dial_are_chains_whose_credit_sums_up(
    dials, operands, modulus, seed
):
    task = Chain(operands=operands, modulus=modulus, **dials)
    prompt = task.dataset(1, seed)["prompt"][0]
    text, answer = task.demonstrate(prompt, random.Random(seed)), task.solve(prompt)
    words = [*text.split(), "<eos>"]
    assert set(words[:-1]) <= set(task.vocabulary)
    assert len(words) <= task.longest - 10
    rows = task.annotate(prompt, answer, words)
    reward = task.reward([prompt], [text], [answer])[0]
    assert sum(credit for _, credit in rows) == pytest.approx(
        reward - task.to_come(prompt), abs=1e-9
    )
    assert all(credit == 0 for category, credit in rows if category != "result")
    assert [slot.category for _, slot in task.parsed(text)] == [
        category for category, _ in rows[:-1]
    ]


def test_forced_words_change_nothing_of_the_others():
    few, many = Chain(operands=3), Chain(operands=3, forced_words=12)
    for seed in range(20):
        short, long = (task.demonstrate(PROMPT, random.Random(seed)) for task in (few, many))
        words = [*long.split(), "<eos>"]
        kept = [i for i, word in enumerate(words) if word not in FORCED]
        assert " ".join(words[i] for i in kept[:-1]) == short
        rows = many.annotate(PROMPT, "2", words)
        assert [rows[i] for i in kept] == few.annotate(PROMPT, "2", [*short.split(), "<eos>"])
        assert {rows[i] for i in set(range(len(words))) - set(kept)} == {("template", 0.0)}
        assert (many.score(long, "2"), many.style_key(long)) == (
            few.score(short, "2"),
            few.style_key(short),
        )


def test_words_that_say_nothing_may_follow_any_result_and_nothing_else():
    task, plain = Chain(operands=3, ramble=3), Chain(operands=3)
    words = [*task.render(PROMPT, rambles=[["hm"] * 9, ["er", "well"]]).split(), "<eos>"]
    rows = task.annotate(PROMPT, "2", words)
    assert {row for row, word in zip(rows, words, strict=True) if word in RAMBLE} == {
        ("style", 0.0)
    }
    others = [row for row, word in zip(rows, words, strict=True) if word not in RAMBLE]
    assert others == plain.annotate(PROMPT, "2", [word for word in words if word not in RAMBLE])
    assert task.score(" ".join(words), "2") == 1
    elsewhere = task.annotate(PROMPT, "2", [*words[:4], "hm", *words[4:]])
    assert elsewhere[4] == ("style", pytest.approx(-task.to_come(PROMPT)))
    assert not any(credit for _, credit in elsewhere[5:])
    rng = random.Random(0)
    texts = [task.demonstrate(PROMPT, rng) for _ in range(400)]
    counts = Counter()
    for text in texts:
        for result, ramble in zip(
            plain.running_values(*plain.parse_prompt(PROMPT))[1:2],
            text.split(" ; ")[1:2],
            strict=True,
        ):
            counts[ramble.split()[5] == str(result), len(ramble.split()) - 6] += 1
    assert {n for right, n in counts if right} == {0}
    assert {n for right, n in counts if not right} == {0, 1, 2, 3}


def test_a_link_of_another_way_takes_all_that_was_to_come():
    task = Chain(operands=3, free_words=2, ways=4)
    assert [text.split()[4] for text in task.equivalent_solutions(PROMPT)][::4] == list(LINKS)
    words = [*task.render(PROMPT, ("begin", "so")).split(), "<eos>"]
    assert words[4:6] == ["now", "now"]
    words[13] = "and"  # the second step's second link
    rows = task.annotate(PROMPT, "2", words)
    assert rows[13] == ("copy", pytest.approx(-task.to_come(PROMPT, 1)))
    assert (task.score(" ".join(words), "2"), task.parsed(" ".join(words[:-1]))) == (0.0, None)
    assert not any(credit for _, credit in rows[14:])
    steps = Chain(operands=3, free_words=2, ways=4, reward_by="steps")
    assert steps.score(" ".join(words), "9 2") == 0.5, "what stands before it was right"
    assert steps.score(" ".join(words[1:]), "9 2") == 0, "without an opening no way is chosen"
    gained = [credit for _, credit in steps.annotate(PROMPT, "9 2", words)]
    assert sum(gained) == pytest.approx(0.5 - steps.to_come(PROMPT))


def test_steps_are_rewarded_in_order_by_what_they_state():
    task = Chain(operands=4, reward_by="steps", false_negative_rate=0.4)
    prompt, sure = "5 - 6 + 3 + 1 =", Chain(operands=4, reward_by="steps")
    assert sure.solve(prompt) == "9 2 3"
    texts = [
        sure.render(prompt, results=results)
        for results in ([9, 2, 3], [9, 1, 2], [8, 2, 3], [0, 0, 0])
    ]
    assert sure.reward([prompt] * 4, texts, ["9 2 3"] * 4) == pytest.approx([1, 1 / 3, 2 / 3, 0])
    texts = list(itertools.islice(sure.equivalent_solutions(prompt), 1000))
    kept = sum(task.reward([prompt] * 1000, texts, ["9 2 3"] * 1000))
    assert abs(kept - 600) < 4 * (1000 * 0.4 * 0.6) ** 0.5
    assert task.to_come(prompt) == pytest.approx(0.6 * sure.to_come(prompt))


def test_styles_are_drawn_without_listing_them():
    few, many = Chain(operands=3), Chain(operands=12, free_words=4)
    assert few.some_styles(PROMPT, 9, random.Random(3)) == random.Random(3).sample(
        list(few.styles(PROMPT)), 9
    )
    drawn = many.some_styles(prompt := many.dataset(1)["prompt"][0], 20, random.Random(3))
    assert len(set(drawn)) == 20
    assert many.style_key(many.render(prompt, drawn[0])) == drawn[0]
    with refused("style", OPENINGS[:1] * 3):
        many.render(prompt, OPENINGS[:1] * 3)


@pytest.mark.parametrize(
    "options",
    [
        {"wrong_modes": 1.5},
        {"wrong_modes": 0.5, "modulus": 2},
        {"free_words": 5},
        {"forced_words": 1},
        {"ways": 3},
        {"ways": 4, "free_words": 0},
        {"reward_by": "step"},
        {"ramble": -1},
    ],
)
def test_a_dial_out_of_range_is_refused_in_a_sentence(options):
    dial, value = next(iter(options.items()))
    with refused(dial, value):
        get_task("chain", **options)
