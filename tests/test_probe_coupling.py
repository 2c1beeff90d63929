"""Coupling of real tokens against explicit gradients, token by token, for all weights and for
adapters.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from refusals import refused
from small_run import nudge_adapters
from transformers import LlamaConfig, LlamaForCausalLM

from workbook.policies.load import load_policy
from workbook.probes import choose_tokens, coupling_by_confidence, gradient_products, shared_token
from workbook.probes.coupling import FOLLOWER_KINDS, PAIR_COLUMNS, followers
from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import sequence_logps

CUTS = (0.05, 0.1)


def make_policy(lora=None, **options):
    """A tiny Llama in double precision, its weights large enough to have opinions."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "pad_token_id": 0}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, **options)).double()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(8 if p.dim() == 2 else 1)
    if lora is not None:
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(r=lora, target_modules="all-linear", task_type="CAUSAL_LM")
        model = get_peft_model(model.requires_grad_(False), config).double()
        nudge_adapters(model, std=0.3)
    return replace(load_policy("bundled"), model=model.eval())


def make_rollouts():
    generator = torch.Generator().manual_seed(3)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 0]])
    ids = torch.randint(1, 4, (4, 4), generator=generator) * mask
    ids[1, 0] = ids[0, 0]
    prompts = torch.tensor([[1, 2], [1, 2], [0, 3], [0, 3]])
    return Rollouts(
        prompt_ids=prompts,
        prompt_mask=(prompts > 0).long(),
        completion_ids=ids,
        completion_mask=mask,
        group_ids=torch.tensor([0, 0, 1, 1]),
        rewards=torch.zeros(4),
        advantages=torch.tensor([1.0, -1.0, 0.0, 1.0]),
        old_logps=torch.zeros(4, 4),
        entropies=torch.zeros(4, 4),
    )


def gradients(policy, rollouts, parameters):
    """The gradient of every completion token's log-probability, one after the other."""
    fields = (
        rollouts.prompt_ids,
        rollouts.prompt_mask,
        rollouts.completion_ids,
        rollouts.completion_mask,
    )
    logps = sequence_logps(policy.model, *fields)[0][rollouts.completion_mask.bool()]
    rows = []
    for logp in logps:
        gradients = torch.autograd.grad(logp, parameters, retain_graph=True, allow_unused=True)
        pairs = zip(gradients, parameters, strict=True)
        rows.append(
            torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs])
        )
    return torch.stack(rows), logps.exp().detach()


@pytest.mark.parametrize("kind", ["untied", "tied", "lora"])
@pytest.mark.parametrize("method", ["jvp", "difference"])
def test_products_are_those_of_explicit_gradients(kind, method):
    policy = make_policy(
        **({"lora": 2} if kind == "lora" else {"tie_word_embeddings": kind == "tied"})
    )
    rollouts = make_rollouts()
    before = {name: p.clone() for name, p in policy.model.state_dict().items()}
    pairs = gradient_products(policy, rollouts, anchors=6, cuts=CUTS, method=method)
    trained = [p for p in policy.model.parameters() if p.requires_grad]
    rows, p = gradients(policy, rollouts, trained)
    expected = (rows @ rows.T).numpy()[pairs["anchor"], pairs["other"]]
    # Llama's norms are float32 at any dtype; a difference has curvature
    near = 1e-5 if method == "jvp" else 5e-3
    np.testing.assert_allclose(
        pairs["product"], expected, rtol=0, atol=near * np.abs(expected).max()
    )
    assert set(pairs["method"]) == {method}
    np.testing.assert_allclose(pairs["p_other"], p.numpy()[pairs["other"]], rtol=1e-6)
    itself = pairs[pairs["where"] == "itself"]
    assert (itself["anchor"] == itself["other"]).all()
    assert len(itself) == pairs["anchor"].nunique() == 6 + 6
    for name, q in policy.model.state_dict().items():
        assert torch.equal(q, before[name])
    assert all(q.grad is None for q in policy.model.parameters())


def test_the_kernel_is_the_output_layers_part():
    policy, rollouts = make_policy(), make_rollouts()
    pairs = gradient_products(policy, rollouts, anchors=5, parameters=["lm_head.weight"])
    np.testing.assert_allclose(pairs["kernel"], pairs["product"], rtol=1e-8, atol=1e-9)


def test_kinds_of_pairs_are_counted_as_a_loop_counts_them():
    policy, rollouts = make_policy(), make_rollouts()
    rows, p = gradients(policy, rollouts, [policy.model.lm_head.weight])
    table, kernel = rollouts.token_table(), (rows @ rows.T).numpy()
    by_place, prefix = {}, []
    for _, row in table.iterrows():
        prefix.append(
            (row["group"], *rollouts.completion_ids[row["rollout"], : row["position"]].tolist())
        )
    for i in range(len(table)):
        for j in range(i):
            a, b = table.loc[i], table.loc[j]
            if a["group"] != b["group"]:
                continue
            where = "within a rollout" if a["rollout"] == b["rollout"] else "across rollouts"
            where = "same context" if prefix[i] == prefix[j] else where
            sign = a["advantage"] * b["advantage"]
            signs = "same" if sign > 0 else "opposite" if sign < 0 else "none"
            bins = sorted(int(sum(x >= cut for cut in CUTS)) for x in (p[i], p[j]))
            by_place.setdefault(
                (a["group"], a["token_id"] == b["token_id"], where, signs, *bins), []
            ).append(kernel[i, j])
    cells = coupling_by_confidence(policy, rollouts, CUTS).set_index(PAIR_COLUMNS)
    assert set(cells.index) == set(by_place)
    assert len(cells["pairs"]) > 12
    for kind, values in by_place.items():
        assert cells.loc[kind, "pairs"] == len(values)
        np.testing.assert_allclose(
            cells.loc[kind, ["mean", "size"]], [np.mean(values), np.abs(values).mean()], rtol=1e-5
        )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("anchors", 0),
        ("method", "magic"),
        ("parameters", "lora"),
        ("parameters", "head"),
        ("parameters", [torch.nn.Parameter(torch.ones(1))]),
        ("cuts", [0.5, 0.2]),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(field, value):
    with refused(field, value):
        gradient_products(make_policy(), make_rollouts(), **{field: value})


def few_rollouts(table):
    """Rollouts of one prompt from rows (advantage, [(token, probability), ...]) of one length."""
    ids = torch.tensor([[token for token, _ in tokens] for _, tokens in table])
    logps = torch.tensor([[p for _, p in tokens] for _, tokens in table]).log()
    one, nothing = torch.ones(len(table), 1, dtype=torch.long), torch.zeros(len(table))
    advantages = torch.tensor([advantage for advantage, _ in table])
    alive = torch.ones_like(ids)
    return Rollouts(
        one, one, ids, alive, nothing.long(), nothing, advantages, logps, torch.zeros_like(logps)
    )


SAID = [
    (1.0, [(5, 0.2), (6, 0.9), (5, 0.3)]),
    (-1.0, [(7, 0.4), (5, 0.2), (6, 0.9)]),
    (-1.0, [(5, 0.2), (8, 0.3), (5, 0.8)]),
    (0.0, [(8, 0.1), (8, 0.1), (8, 0.1)]),
]


def test_followers_are_sorted_by_what_they_share_with_the_pushing_token():
    rollouts = few_rollouts(SAID)
    assert shared_token(rollouts, (0.0, 0.5)) == 5
    assert shared_token(rollouts, (0.0, 0.15)) is None  # 8 stands in a rollout that pushes nothing
    chosen = choose_tokens(rollouts, token_id=5, confidence=(0.0, 0.5), sign=1)
    moved = rollouts.token_table().assign(chosen=chosen[rollouts.completion_mask.bool()].numpy())
    moved["dlogp"] = np.arange(12.0) - 6
    moved["predicted"] = -moved["dlogp"]
    kinds = followers(rollouts, moved).set_index("kind")
    at_start = [3, 6, 9]  # of the other three rollouts, where the pushing token stood, too
    expected = {
        "pushing": [0, 2],
        "same context": at_start,
        "same token, unsure": [4],
        "same token, sure": [8],
        "different, unsure": [7, 10, 11],
        "different, sure": [1, 5],
    }
    assert set(kinds.index) == set(expected) == set(FOLLOWER_KINDS)
    for kind, rows in expected.items():
        values = moved["dlogp"].iloc[rows]
        assert kinds.loc[kind, "tokens"] == len(rows)
        np.testing.assert_allclose(
            kinds.loc[kind, ["dlogp", "size"]], [values.mean(), values.abs().mean()]
        )
        assert kinds.loc[kind, "predicted"] == -kinds.loc[kind, "dlogp"]
    moved["chosen"] = True
    with pytest.raises(ValueError, match="4 tokens push"):
        followers(rollouts, moved)
