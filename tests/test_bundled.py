"""The bundled policy is what its provenance says, starts where the chapters start, and can be made
again.
"""

import hashlib
import json
import runpy
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from workbook.tasks import get_task

BUNDLED = Path(__file__).parents[1] / "data" / "bundled"


@pytest.fixture(scope="module")
def make_policy():
    return runpy.run_path(str(BUNDLED / "make_policy.py"))


@pytest.fixture(scope="module")
def provenance():
    return json.loads((BUNDLED / "provenance.json").read_text())


@pytest.fixture(scope="module")
def policy():
    return AutoModelForCausalLM.from_pretrained(BUNDLED).eval(), AutoTokenizer.from_pretrained(
        BUNDLED
    )


def test_provenance_names_these_files(provenance, policy):
    digests = provenance["sha256"]
    # and the script's, as it was on that day
    assert set(digests) > {"model.safetensors", "tokenizer.json"}
    for name, digest in digests.items() - {"make_policy.py": digests["make_policy.py"]}.items():
        assert hashlib.sha256((BUNDLED / name).read_bytes()).hexdigest() == digest, name
    assert (BUNDLED / "model.safetensors").stat().st_size < 2 * 2**20
    assert provenance["parameters"] == policy[0].num_parameters()
    assert not policy[0].config.tie_word_embeddings
    assert 0.35 <= provenance["measured"]["reward"] <= 0.45
    assert provenance["measured"]["top1_right"] > 0.9
    assert provenance["measured"]["prompts"] >= 2000


def test_it_starts_where_the_chapters_start(make_policy, provenance, policy):
    task = get_task("chain", **{k: v for k, v in provenance["task"].items() if k != "name"})
    n, measured = 512, provenance["measured"]
    got = make_policy["measure_start"](*policy, task, n, seed=1)
    half_width = (
        3.5
        * (measured["reward"] * (1 - measured["reward"]) * (1 / n + 1 / measured["prompts"])) ** 0.5
    )
    assert abs(got["reward"] - measured["reward"]) < half_width
    assert got["top1_right"] > 0.9
    assert got["well_formed"] > 0.95
    assert abs(got["p_right"] - (1 - task.error_rate)) < 0.05


def test_the_tokenizer_is_word_by_word(policy):
    tokenizer, task = policy[1], get_task("chain")
    text = f"5 - 6 + 3 = {task.render('5 - 6 + 3 =')}"
    ids = tokenizer(text).input_ids
    assert len(ids) == len(text.split())
    assert tokenizer.unk_token_id not in tokenizer(" ".join(task.vocabulary)).input_ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == text
    batch = tokenizer(["5 - 6 + 3 =", "1 + 1 ="], padding=True)
    assert batch["input_ids"][1][:2] == [tokenizer.pad_token_id] * 2
    assert batch["attention_mask"][1] == [0, 0, 1, 1, 1, 1]


def test_the_same_seed_makes_the_same_bytes(make_policy, tmp_path):
    """A short training, twice from the same seed and once from another."""
    task, tokenizer = get_task("chain"), make_policy["make_tokenizer"](get_task("chain"))
    digests = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for run, seed in enumerate((0, 0, 1)):
        torch.manual_seed(seed)
        model = make_policy["make_model"](tokenizer)
        learn = make_policy["train_supervised"]
        learn(model, tokenizer, task, steps=6, batch_size=8, lr=5e-3, seed=seed)
        model.save_pretrained(tmp_path / str(run))
        digests.append(
            hashlib.sha256((tmp_path / str(run) / "model.safetensors").read_bytes()).hexdigest()
        )
    torch.set_num_threads(threads)
    assert digests[0] == digests[1] != digests[2]
