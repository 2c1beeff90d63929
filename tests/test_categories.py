"""Categories of real tokens: whole words decide, whatever the vocabulary cuts them into; text is
only compared.
"""

import time
from dataclasses import replace

import pytest
import torch
from refusals import refused

from workbook.probes.categories import TOKEN_CLASSES, categorized, token_classes
from workbook.rollouts.sample import Rollouts, sample_rollouts

SENTENCE = (
    "Therefore the answer to \\frac{3}{4} + x is not $12.5$, since two apples cost **more**.\n-"
    " done 🎉"
)
OF_CLASS = {
    "Reasoning": ["Therefore", "answer", "since", "apples"],
    "Math": ["\\frac", "3", "+", "x", "$", "12.5", "two"],
    "Template": ["the", "not", "**", "-"],
    "other": ["🎉"],
}


def rollouts_of(tokens, texts):
    width = max(map(len, tokens))
    mask = torch.tensor([[k < len(row) for k in range(width)] for row in tokens]).long()
    batch = {
        "prompt_ids": mask[:, :1],
        "prompt_mask": torch.ones(len(tokens), 1, dtype=torch.long),
        "completion_ids": torch.zeros_like(mask),
        "completion_mask": mask,
        "advantages": torch.ones(len(tokens)),
        "group_ids": torch.zeros(len(tokens), dtype=torch.long),
    }
    return replace(Rollouts.from_batch(batch), tokens=tokens, completions=texts)


@pytest.mark.parametrize(
    ("kind", "word"), [(kind, word) for kind, words in OF_CLASS.items() for word in words]
)
def test_words_and_signs_by_the_rules(kind, word):
    text = SENTENCE
    start = text.index(word)
    tokens = (text[:start], word, text[start + len(word) :])
    assert token_classes(tokens, text)[1] == kind


@pytest.mark.parametrize("cut", [1, 2, 3, 5])
def test_all_pieces_of_a_word_have_its_class(cut):
    words = [(" " if k else "") + word for k, word in enumerate(SENTENCE.split(" "))]
    whole = dict(zip(words, token_classes(tuple(words), SENTENCE), strict=True))
    parts = [(word, word[k : k + cut]) for word in words for k in range(0, len(word), cut)]
    classes = token_classes(tuple(part for _, part in parts), SENTENCE)
    checked = 0
    for (word, part), kind in zip(parts, classes, strict=True):
        if word.strip().isalpha() and part.strip():  # no punctuation hangs on the word
            assert kind == whole[word], (word, part)
            checked += 1
    assert checked > 8


def test_vocabularies_that_lose_the_space_before_a_word_are_aligned_all_the_same():
    text = "So the answer is 12"
    spaced = token_classes(("So", " the", " answ", "er", " is", " 1", "2"), text)
    assert token_classes(("So", "the", "answ", "er", "is", "1", "2"), text) == spaced
    assert spaced == ("Reasoning", "Template", "Reasoning", "Reasoning", "Template", "Math", "Math")


def test_special_tokens_fragments_and_space_stand_outside_the_text():
    tokens = ("<|im_start|>", "\n\n", "4", " �", "�", " is", "</s>", "[PAD]", "")
    expected = (
        "Template",
        "Template",
        "Math",
        "other",
        "other",
        "Template",
        "Template",
        "Template",
        "Template",
    )
    assert token_classes(tokens, "\n\n4 é is") == expected


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("5 - 3", "Math"),
        ("well-known", "Reasoning"),
        ("* item", "Template"),
        ("2*3", "Math"),
        ("a < b", "Math"),
    ],
)
def test_ambiguous_signs_follow_their_neighbours(text, kind):
    sign = next(c for c in text if c in "-*<")
    before, after = text.split(sign)
    tokens = tuple(token for token in (before, sign, after) if token)
    assert token_classes(tokens, text)[tokens.index(sign)] == kind


def test_true_classes_stay_unless_asked(policy, task):
    rollouts = sample_rollouts(policy, task, 2, 4, seed=0)
    assert categorized(rollouts) is rollouts
    ours = categorized(rollouts, overwrite=True)
    assert set(ours.token_table()["category"]) <= set(TOKEN_CLASSES)
    numbers = ours.token_table().query("token.str.fullmatch('[0-9]')")
    assert (numbers["category"] == "Math").all()
    with refused("rollouts.tokens", None):
        categorized(replace(rollouts, tokens=None), overwrite=True)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "<script>alert(1)</script> {{7*7}} ${x} %s %n",
        "(" * 50_000,
        "a'" * 50_000,
        "1," * 50_000,
        "<" * 50_000,
        "\\" * 50_000,
        "\u202e\x00\ud800 ٣ 你好",
    ],
    ids=range(8),
)
def test_hostile_text_is_only_compared_and_quickly(text):
    tokens = tuple(text[k : k + 3] for k in range(0, len(text), 3))
    start = time.process_time()
    categories = categorized(rollouts_of((tokens,), (text,))).categories
    assert time.process_time() - start < 2
    assert len(categories[0]) == len(tokens)
    assert set(categories[0]) <= set(TOKEN_CLASSES)


def test_letters_that_are_not_latin_and_tokens_that_lie_are_other():
    assert token_classes(("你好", "ñandú"), "你好 ñandú") == ("other", "Reasoning")
    assert token_classes(("nowhere", "to", "be", "found"), "") == ("other",) * 4
