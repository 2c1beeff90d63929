"""Token values against transformers' generate() over the same prefixes, as ratios from one run.

Both decode and reward what they sample. CPU seconds of one thread; each figure is its least over interleaved turns,
since other work on the machine can only add to it. Batches are of equal size, in the same order.
"""

import time

import pytest
import torch
from transformers import GenerationConfig

from workbook.policies.load import load_policy
from workbook.probes import token_values
from workbook.rollouts.sample import end_tokens, sample_rollouts, task_rewards
from workbook.rollouts.scoring import pad_rows, unpadded
from workbook.tasks import get_task

K, LIMIT, BATCH = 8, 48, 512  # K: the default of token_values


@pytest.fixture(scope="module")
def bench():
    policy, task = load_policy("bundled"), get_task("chain")
    rollouts = sample_rollouts(policy, task, 8, 8, seed=0, max_new_tokens=LIMIT)
    return policy, task, rollouts


def ours(policy, task, rollouts, tokens):
    began = time.process_time()
    table = token_values(policy, task, rollouts, K, tokens, max_new_tokens=LIMIT, credit=False, batch_size=BATCH)
    return time.process_time() - began, table["value"].mean()


@torch.no_grad()
def theirs(policy, task, rollouts, tokens, prefixes_at_once):
    """The same values by generate(): K sequences of each prefix, left-padded, `prefixes_at_once` in a batch."""
    began = time.process_time()
    prompts = unpadded(rollouts.prompt_ids, rollouts.prompt_mask)
    completions = unpadded(rollouts.completion_ids, rollouts.completion_mask)
    table = rollouts.token_table().loc[tokens].sort_values("position", ascending=False)
    rewards = []
    for start in range(0, len(table), prefixes_at_once):
        part = table.iloc[start : start + prefixes_at_once]
        pairs = list(zip(part["rollout"], part["position"] + 1, strict=True))
        ids, mask = pad_rows(
            [prompts[r] + completions[r][:n] for r, n in pairs], policy.tokenizer.pad_token_id, side="left"
        )
        config = GenerationConfig(
            max_new_tokens=LIMIT - min(n for _, n in pairs),
            do_sample=True,
            top_k=0,
            top_p=1.0,
            temperature=1.0,
            num_return_sequences=K,
            eos_token_id=end_tokens(policy),
            pad_token_id=policy.tokenizer.pad_token_id,
            disable_compile=True,
        )
        out = policy.model.generate(input_ids=ids, attention_mask=mask, generation_config=config)[:, ids.shape[1] :]
        whole = [
            completions[r][:n] + new
            for (r, n), new in zip([p for p in pairs for _ in range(K)], out.tolist(), strict=True)
        ]
        rows = [{"prompt": rollouts.prompts[r], "answer": rollouts.answers[r]} for r, _ in pairs for _ in range(K)]
        texts = tuple(policy.tokenizer.batch_decode(whole, skip_special_tokens=True))
        rewards += task_rewards(task, rows, texts, whole)
    return time.process_time() - began, sum(rewards) / len(rewards)


@pytest.mark.parametrize(
    ("name", "per_rollout", "prefixes_at_once", "rounds"),
    [("one by one", 4, 1, 2), ("in equal batches", 6, BATCH // K, 4)],
)
def test_time_against_generate(bench, capsys, name, per_rollout, prefixes_at_once, rounds):
    policy, task, rollouts = bench
    table = rollouts.token_table()
    unended = table[table["category"] != "eos"].drop_duplicates(["group", "position", "token_id"])
    tokens = unended.sample(frac=1, random_state=1).groupby("rollout").head(per_rollout).index
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        ours(policy, task, rollouts, tokens[:8])
        turns = [
            (ours(policy, task, rollouts, tokens), theirs(policy, task, rollouts, tokens, prefixes_at_once))
            for _ in range(rounds)
        ]
    finally:
        torch.set_num_threads(threads)
    mine, other = (min(turn[i][0] for turn in turns) for i in (0, 1))
    with capsys.disabled():
        print(f"\ntoken values, {name}: generate {other:.2f} s / ours {mine:.2f} s = {other / mine:.2f}")
    assert turns[0][0][1] == pytest.approx(turns[0][1][1], abs=0.06)
