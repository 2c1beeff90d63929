"""Sampling from a small Llama layer by layer draws what transformers' generate() draws."""

import pytest
import torch

from workbook.policies import load_policy
from workbook.rollouts import sample, sample_rollouts
from workbook.rollouts.small import is_plain, is_small
from workbook.tasks import get_task

TASK = get_task("chain")
ROWS = [
    {"prompt": prompt, "answer": "0"}
    for prompt in ("5 - 6 + 3 =", "5 + 3 =", "5 - 6 + 3 - 4 + 2 =")
]


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 1.7}, {"max_new_tokens": 9}, {"batch_size": 5}], ids=repr
)
@pytest.mark.parametrize("prompts", [4, ROWS], ids=["one length", "padded"])
def test_tokens_and_scores_are_those_of_generate(policy, monkeypatch, prompts, settings):
    ours = sample_rollouts(policy, TASK, prompts, 4, seed=3, **settings)
    # scores are of generate()'s logits, then of a pass over what it drew
    for known in ("is_small", "_keeps_logits"):
        monkeypatch.setattr(sample, known, lambda *_: False)
        theirs = sample_rollouts(policy, TASK, prompts, 4, seed=3, **settings)
        assert torch.equal(ours.completion_ids, theirs.completion_ids)
        assert torch.equal(ours.completion_mask, theirs.completion_mask)
        torch.testing.assert_close(ours.old_logps, theirs.old_logps, atol=2e-5, rtol=0)
        torch.testing.assert_close(ours.entropies, theirs.entropies, atol=2e-5, rtol=0)


def test_what_is_not_small_or_plain_is_left_to_generate(policy):
    assert is_small(policy.model)
    assert not is_small(load_policy("bundled", lora=2).model)
    handle = policy.model.model.layers[0].mlp.register_forward_hook(lambda *_: None)
    assert not is_small(policy.model)
    handle.remove()
    sampling = {
        "temperature": 0.5,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": None,
        "repetition_penalty": 1.0,
    }
    sampling |= {"max_new_tokens": 8}
    assert is_plain(sample.sampling_config(policy, sampling, {}))
    for changed in ({"top_k": 3}, {"min_p": 0.1}, {"repetition_penalty": 1.2}):
        assert not is_plain(sample.sampling_config(policy, sampling | changed, {}))
    assert not is_plain(sample.sampling_config(policy, sampling, {"bad_words_ids": [[3]]}))
