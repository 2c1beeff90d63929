"""Checks of exercises: each mistake is named, and what is right is called right."""

import re
from types import SimpleNamespace

import pytest
import torch

from workbook import sequence_logps
from workbook.chapters.batching.toy import check_order, compute_cut
from workbook.chapters.credit.explore import check_continued, continued_rewards
from workbook.chapters.credit.repeated import check_value_gap
from workbook.chapters.drift.exercises import check_residual, residual_on_shared
from workbook.chapters.exchange.exercises import check_sequence_weights, sequence_weights
from workbook.chapters.exchange.explore import check_unequal_weights
from workbook.chapters.exercises import (
    BATCHES,
    batch_numbers,
    blame_differences,
    check_batch,
    check_reward,
    check_rule,
)
from workbook.chapters.flips.explore import check_undone, undone_step
from workbook.chapters.groups.exercises import check_group_advantages, four_rules
from workbook.chapters.groups.explore import (
    OPENINGS,
    check_signs,
    check_word_push,
)
from workbook.chapters.groups.toy import push_on_word
from workbook.chapters.language.exercises import grade_products
from workbook.chapters.softmax.explore import check_coupling, check_rivals
from workbook.probes import cell_gap
from workbook.theory import coupling_kernel


def but(rule, other):
    """The four rules of chapter 02, one of which is another."""
    return lambda rewards, asked: other(rewards) if asked == rule else four_rules(rewards, asked)


def centred(rewards):
    return rewards - rewards.mean(1, keepdim=True)


def spread(rewards):
    return centred(rewards) / (rewards.std(1, keepdim=True) + 1e-4)


def those_who_said(factor):
    def push(word, said, advantages, p):
        return sum(
            a * factor(p) for other, a in zip(said, advantages, strict=True) if other == word
        )

    return push


BEST = [1, -1, 1, 1, -1, 1, -1, -1]


def square(x):
    return x @ x.T


def kernel_with(residual, near):
    return lambda hidden, logits, tokens: (
        near(hidden)
        * (residual(logits.softmax(-1), torch.nn.functional.one_hot(tokens, logits.shape[1])))
    )


def sequence_by(mean):
    """Weights of a sequence ratio by another mean of the logs, (B, T) and a mask -> (B,)."""

    def weights(logs, mask, advantages, low, high):
        log_ratio = mean(logs, mask)[:, None].expand(logs.shape)
        return sequence_weights(log_ratio, mask, advantages, low, high)

    return weights


def step_by_step(policy, rollouts, lr, put_back=True, masked=True, mean=True):
    """A step of SGD that is measured and undone, with the mistakes that a reader may make."""
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    batch = [getattr(rollouts, name) for name in names]
    weights = list(policy.model.parameters())
    start = [weight.detach().clone() for weight in weights]
    before = sequence_logps(policy.model, *batch)[0]
    objective = (rollouts.advantages[:, None] * before).sum()
    (objective / before.numel() if mean else objective).backward()
    with torch.no_grad():
        for weight in weights:
            if weight.grad is not None:
                weight += lr * weight.grad
                weight.grad = None
        change = sequence_logps(policy.model, *batch)[0] - before.detach()
        if put_back:
            for weight, value in zip(weights, start, strict=True):
                weight.copy_(value)
    return change[rollouts.completion_mask.bool()] if masked else change


def behind(text):
    return text.rpartition("answer is")[2]


def residual_by(mean):
    """Residual of a group by another mean of net push and size, (T,) each, and shared places."""

    def residual(weights, advantages, ids, mask):
        pushes = weights * advantages[:, None] * mask
        return mean(pushes.sum(0).abs(), pushes.abs().sum(0), (ids == ids[0]).all(0) & mask.all(0))

    return residual


ANSWERS = [
    (check_value_gap, lambda tokens, limit: None, "Not answered"),
    (check_value_gap, lambda t, limit: cell_gap(t, ("cell",), eps=limit), "Right"),
    (check_value_gap, lambda t, limit: cell_gap(t, ("cell",), eps=0.0), "less than the limit"),
    (check_value_gap, lambda t, limit: -cell_gap(t, ("cell",), eps=limit), "the reverse"),
    (check_value_gap, lambda t, limit: cell_gap(t.assign(c=0), ("c",), eps=limit), "within a cell"),
    (check_value_gap, lambda t, limit: 0.5 * (0.6 + 0.1), "plain mean of cells"),
    (check_word_push, lambda word, said, advantages, p: None, "Not answered"),
    (check_word_push, push_on_word, "Right"),
    (check_word_push, lambda *group: push_on_word(*group) / 5, "their pushes add up"),
    (check_word_push, lambda *group: -push_on_word(*group), "sign is turned round"),
    (check_word_push, lambda w, said, a, p: sum(a) * (1 - p), "said another word push this one"),
    (check_word_push, those_who_said(lambda p: 1 - p), "left out the rollouts"),
    (check_word_push, those_who_said(lambda p: 1.0), "this is e alone"),
    (check_word_push, lambda w, said, a, p: said.nothing, "AttributeError"),
    (check_group_advantages, lambda r, rule: None, "Not answered yet"),
    (check_group_advantages, four_rules, "Right: all four"),
    (
        check_group_advantages,
        lambda r, rule: r - r.mean(1, keepdim=True),
        "mean of the whole batch",
    ),
    (check_group_advantages, lambda r, rule: r, "no baseline is subtracted"),
    (check_group_advantages, lambda r, rule: r - r.mean(0), "a row is a group"),
    (check_group_advantages, lambda r, rule: r - r.mean(), "rloo: this baseline is the mean of"),
    (check_group_advantages, but("rloo", lambda r: centred(r)), "factor G / (G - 1) is missing"),
    (check_group_advantages, but("rloo", lambda r: centred(r) * 3 / 4), "upside down"),
    (check_group_advantages, but("rloo", lambda r: r - (r.sum(1, True) - r) / 4), "by G."),
    (check_group_advantages, but("rloo", lambda r: r - (r.sum() - r) / 11), "of the whole batch"),
    (check_group_advantages, but("dr_grpo", spread), "Dr. GRPO does not"),
    (check_group_advantages, but("dr_grpo", lambda r: centred(r) * 4 / 3), "as RLOO does"),
    (check_group_advantages, but("grpo", centred), "not divided"),
    (check_group_advantages, but("grpo", lambda r: centred(r) / r.std(1, keepdim=True)), "0 by 0"),
    (
        check_group_advantages,
        but("grpo", lambda r: centred(r) / (r.std(1, keepdim=True, correction=0) + 1e-4)),
        "spread of a population",
    ),
    (
        check_group_advantages,
        but("grpo", lambda r: centred(r) / (r.std() + 1e-4)),
        "deviation is the batch's",
    ),
    (
        check_group_advantages,
        but("grpo", lambda r: centred(r) / (r.var(1, keepdim=True) + 1e-4)),
        "square root",
    ),
    (check_group_advantages, but("grpo", lambda r: r.nothing), "AttributeError"),
    (check_group_advantages, but("grpo", lambda r: r[:2]), "shape (2, 4)"),
    (check_group_advantages, but("grpo", lambda r: 2 * spread(r)), "grpo: rollout (0, 0) should"),
    (check_signs, None, "Not answered yet"),
    (check_signs, BEST, "Right"),
    (check_signs, [-s for s in BEST], "`so` gets -3"),
    (check_signs, [1] * len(OPENINGS), "pushed up 8 times"),
    (check_signs, [1] * 7, "there are 7"),
    (check_coupling, lambda h, z, y: coupling_kernel(h, z, y), "Right"),
    (check_coupling, kernel_with(lambda p, e: square(e - p), square), "Right"),
    (
        check_coupling,
        kernel_with(lambda p, e: square(e - p), lambda h: 1.0),
        "inner product of the scores e - p alone",
    ),
    (
        check_coupling,
        lambda h, z, y: square(h) * square(torch.nn.functional.one_hot(y) - z.softmax(-1)),
        "RuntimeError",
    ),
    (check_coupling, kernel_with(lambda p, e: square(p), square), "p alone"),
    (
        check_coupling,
        kernel_with(lambda p, e: square(e - p), lambda h: square(h / h.norm(dim=1)[:, None])),
        "cosine",
    ),
    (
        check_coupling,
        lambda h, z, y: coupling_kernel(h, z, y) * (y[:, None] == y),
        "different tokens K is not 0",
    ),
    (check_rivals, {"same": False, "angle": 0.0, "rivalry": 0.95}, "Right"),
    (check_rivals, {"same": True}, "same token"),
    (check_rivals, {"same": False}, "which setting"),
    (check_rivals, {"same": False, "rivalry": 0.9, "angle": 60.0}, "hidden states share"),
    (check_rivals, {"same": False, "length_b": 3.0}, "length_a = length_b"),
    (check_rivals, {"same": False, "speed": 1}, "speed"),
    (check_rivals, {"p_a": 2.0}, "p_a=2.0"),
    (check_rivals, None, "yet"),
    (check_unequal_weights, None, "Not answered"),
    (check_unequal_weights, [1, 2, 0.5, 0.5], "Right"),
    (check_unequal_weights, [1, 2, 3], "shape is (3,)"),
    (check_unequal_weights, [1, 2, 3, 4], "sum is -3"),
    (check_unequal_weights, "abc", "is no number, nor a list"),
    (check_sequence_weights, sequence_weights, "Right"),
    (check_sequence_weights, lambda logs, *rest: logs.exp(), "token ratios"),
    (check_sequence_weights, sequence_by(lambda logs, mask: logs.mean(1)), "padding counts"),
    (
        check_sequence_weights,
        sequence_by(lambda logs, mask: (logs * mask).mean(1)),
        "a rollout's own tokens",
    ),
    (check_sequence_weights, sequence_by(lambda logs, mask: (logs * mask).sum(1)), "product"),
    (
        check_sequence_weights,
        sequence_by(
            lambda logs, mask: ((logs.exp() * mask).sum(1) / mask.sum(1)).log(),
        ),
        "mean of the ratios",
    ),
    (check_sequence_weights, lambda *batch: sequence_weights(*batch[:3], -99, 99), "nothing is"),
    (
        check_sequence_weights,
        lambda *batch: sequence_weights(*batch) * batch[2][:, None],
        "without the advantage",
    ),
    (
        check_sequence_weights,
        lambda *batch: sequence_weights(*batch[:3], -99, 99).clamp(batch[3], batch[4]) * batch[1],
        "you clamp",
    ),
    (check_residual, residual_on_shared, "Right"),
    (check_residual, residual_by(lambda net, size, shared: (net / size)[shared].mean()), "0 / 0"),
    (check_residual, residual_by(lambda net, size, shared: net[shared].mean()), "net push"),
    (
        check_residual,
        residual_by(lambda net, size, shared: (net / size.clamp(min=1e-9)).mean()),
        "all places",
    ),
    (
        check_residual,
        residual_by(lambda net, size, shared: (net / size)[shared & (size > 0)].mean()),
        "nobody pushes; it counts",
    ),
    (check_continued, continued_rewards, "Right"),
    (check_continued, lambda *ids: continued_rewards(*ids).mean(), "return each reward"),
    (check_continued, lambda p, i, w, k: continued_rewards(p, i, w[:0], k), "keep what was"),
    (check_continued, lambda *ids: torch.zeros(ids[-1]), "leave the prompt out"),
    (check_continued, lambda p, i, w, k: torch.full((k,), 0.01), "without a mean"),
    (check_continued, lambda *ids: None, "Not answered"),
    (check_undone, step_by_step, "Right"),
    (check_undone, lambda *batch: step_by_step(*batch, put_back=False), "has moved"),
    (check_undone, lambda *batch: step_by_step(*batch, masked=False), "within the mask"),
    (check_undone, lambda *batch: step_by_step(*batch, mean=False), "too long"),
    (check_undone, lambda *batch: -undone_step(*batch), "turned around"),
    (check_undone, lambda *batch: 0 * undone_step(*batch), "nothing moved"),
    (check_undone, lambda *batch: None, "Not answered"),
    (check_residual, lambda *group: None, "Not answered"),
    (
        check_reward,
        lambda text, answer: float("answer is" in text and behind(text).split()[:1] == [answer]),
        "Right",
    ),
    (check_reward, lambda text, answer: float(answer in text), "'so the answer is 12'"),
    (
        check_reward,
        lambda text, answer: float(behind(text).strip().startswith(answer)),
        "'so the answer is 23'",
    ),
    (
        check_reward,
        lambda text, answer: float(re.findall(r"\d+", behind(text))[:1] == [answer]),
        "another sign",
    ),
    (check_reward, lambda text, answer: float(text.split()[-1:] == [answer]), "'I give up 2'"),
    (
        check_reward,
        lambda text, answer: float("answer is" in text and behind(text).strip() == answer),
        "before a `;`",
    ),
    (
        check_reward,
        lambda text, answer: float(behind(text).split()[:1] == [answer]),
        "never says `answer is`",
    ),
    (
        check_reward,
        lambda text, answer: float(f"answer is {answer} " in text + " "),
        "the last is 7",
    ),
    (check_batch, batch_numbers, "Right"),
    (check_batch, lambda *case: batch_numbers(*case[:5], 1), "of all processes"),
    (check_batch, lambda *case: batch_numbers(*case[:4], 1, case[5]), "`passes` times"),
    (check_batch, lambda *case: [*batch_numbers(*case)[:3], 4], "nothing was updated"),
    (check_batch, lambda *case: batch_numbers(*case) if case != BATCHES[-1] else [8] * 4, "zeros"),
    (check_batch, lambda *case: [1, 2, 3, 5], "number 1 should be 16, not 2"),
    (check_rule, blame_differences, "Right"),
    (check_rule, lambda batch: batch.group_advantages("dr_grpo")[:, None] * batch.mask, "words"),
]


@pytest.mark.parametrize(("check", "answer", "words"), ANSWERS)
def test_a_check_says_what_went_wrong(check, answer, words, capsys):
    check(answer)
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    "answer", [[0], 1j, lambda *_: [1, 2], lambda *_: object(), lambda *_: None]
)
def test_an_answer_that_is_no_number_gets_one_sentence(answer, capsys):
    check_order(answer)
    assert len(capsys.readouterr().out.strip().splitlines()) == 1


def dealt_order(group_ids, advantages, parts):
    """Whole prompts, dealt out by their number of positive rollouts, every second round back."""
    rollouts = group_ids.argsort(stable=True).view(len(group_ids.unique()), -1)
    rounds = (advantages[rollouts] > 0).sum(1).argsort(descending=True).view(-1, parts)
    rounds[1::2] = rounds[1::2].flip(1)
    return rollouts[rounds.T.flatten()].flatten()


@pytest.mark.parametrize(
    ("order", "says"),
    [
        (dealt_order, "Right: no prompt is cut apart, and each mini-batch has as many"),
        (lambda group_ids, advantages, parts: None, "Not answered yet"),
        (lambda group_ids, advantages, parts: group_ids, "these are the prompts' labels"),
        (lambda group_ids, advantages, parts: group_ids[:4], "it returned the shape (4,)"),
        (lambda group_ids, advantages, parts: 0 * group_ids + 40, "exactly once"),
        (lambda group_ids, advantages, parts: advantages.argsort(), "keep it in one"),
        (lambda group_ids, advantages, parts: group_ids.argsort(stable=True), "many with few"),
    ],
)
def test_an_order_keeps_prompts_whole_and_signs_in_balance_or_its_fault_is_named(
    order, says, capsys
):
    check_order(order)
    assert says in capsys.readouterr().out


def test_a_readers_order_cuts_a_batch():
    batches = compute_cut(dealt_order, draw=3)["batches"]
    assert batches["cut"].sum() == 0
    assert batches["positives"].max() - batches["positives"].min() <= 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda right: right + 0.02, "Right: one backward pass"),
        (lambda right: 2 * right, "this is twice too large"),
        (lambda right: -right, "the sign is turned round"),
        (lambda right: 1e-4 * right, "divide it by the length of the way"),
        (lambda right: right[:, :2], "it returned the shape (2, 2)"),
        (lambda right: right + 1, "token 0 should be 4, but yours is 5."),
        (lambda right: None, "Not answered yet"),
    ],
)
def test_products_of_gradients_are_right_within_what_finite_differences_miss(change, says, capsys):
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    right = torch.tensor([[4.0, -1.0, 0.5], [2.0, 0.0, 0.0]])
    batch = SimpleNamespace(completion_mask=mask)
    exact = right[mask.bool()].numpy()
    grade_products(lambda *_: change(right), None, batch, (0, 0), exact)
    assert says in capsys.readouterr().out
