"""A prompt computed once for all its rollouts gives the numbers and gradients of one row per
rollout.
"""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from workbook.rollouts.scoring import PACKABLE, rollout_logps, sequence_logps


def tiny(kind: str, **options):
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 50,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "head_dim": 8,
    }
    config = AutoConfig.for_model(
        kind, num_attention_heads=4, num_key_value_heads=2, **sizes | options
    )
    return AutoModelForCausalLM.from_config(config).eval()


def batch(prompts=3, group=4, longest=12, new=5):
    """Prompts of unequal length, left-padded, each with rollouts of unequal length, in no order."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(4, longest + 1, (prompts,), generator=generator).repeat_interleave(
        group
    )
    ids = torch.randint(0, 50, (prompts, longest), generator=generator).repeat_interleave(group, 0)
    mask = (torch.arange(longest) >= longest - lengths[:, None]).long()
    tokens = torch.randint(0, 50, (prompts * group, new), generator=generator)
    alive = (
        torch.arange(new) < torch.randint(1, new + 1, (prompts * group, 1), generator=generator)
    ).long()
    # one prompt has fewer rollouts
    order = torch.randperm(prompts * group, generator=generator)[:-1]
    return [x[order] for x in (ids, mask, tokens, alive)]


def positions(model):
    seen = []
    handle = model.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    return seen, handle


@pytest.mark.parametrize("kind", PACKABLE)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packed_rows_give_the_same_numbers_and_gradients(kind, attention):
    model = tiny(kind)
    model.set_attn_implementation(attention)
    ids, mask, tokens, alive = batch()
    plain, _ = sequence_logps(model, ids, mask, tokens, alive)
    pushes = torch.linspace(-1, 1, plain.numel()).view_as(plain)
    expected = torch.autograd.grad((pushes * plain).sum(), list(model.parameters()))
    seen, handle = positions(model)
    packed = rollout_logps(model, ids, mask, tokens, alive)
    handle.remove()
    assert sum(seen) < 0.75 * len(ids) * (ids.shape[1] + tokens.shape[1]), "it was not packed"
    torch.testing.assert_close(packed, plain, atol=1e-5, rtol=1e-5)
    got = torch.autograd.grad((pushes * packed).sum(), list(model.parameters()))
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_what_cannot_be_packed_is_scored_row_by_row():
    ids, mask, tokens, alive = batch()
    sliding = tiny("qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=0)
    assert "sliding_attention" in sliding.config.layer_types
    for model in (sliding, tiny("mistral")):
        expected = sequence_logps(model, ids, mask, tokens, alive)[0]
        seen, handle = positions(model)
        torch.testing.assert_close(rollout_logps(model, ids, mask, tokens, alive), expected)
        handle.remove()
        assert seen[0] == len(ids) * (ids.shape[1] + int(alive.sum(1).max()))


@pytest.mark.parametrize(("words", "packed"), [(50, True), (5_000, False)])
def test_rows_are_not_packed_where_that_holds_more_logits(words, packed):
    """A prompt with one rollout beside one with all of a group's: the packed row of the first is
    mostly empty slots.
    """
    columns, model = batch(prompts=2, group=8), tiny("llama", vocab_size=words)
    same = (columns[0] == columns[0][0]).all(1)
    rows = torch.cat([same.nonzero(), (~same).nonzero()[:1]]).squeeze(1)
    columns = [values[rows] for values in columns]
    expected = sequence_logps(model, *columns)[0]
    seen, _ = positions(model)
    torch.testing.assert_close(rollout_logps(model, *columns), expected)
    assert (sum(seen) < 0.75 * len(rows) * (columns[0].shape[1] + columns[2].shape[1])) == packed
