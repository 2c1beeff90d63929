"""Tuned language models: the task, policies made and merged, both studies on a tiny Llama."""

import json
import random
import runpy
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from refusals import refused
from safetensors.torch import load_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from workbook.app import half_way
from workbook.places import data_path
from workbook.policies import load_policy, tuned
from workbook.policies.load import Policy
from workbook.policies.tuned import on_q_and_v
from workbook.rollouts import sample_rollouts
from workbook.studies import StudyUnit, load_measured, measure
from workbook.studies.language import claims, study, training
from workbook.studies.record import NotMeasured
from workbook.studies.storage import read_manifest
from workbook.tasks import get_task
from workbook.tasks.sums import WORD_CLASSES, Sums

SUMS, RAMBLE = "smollm2:sums", "smollm2:ramble"


# --- the task
def test_prompts_and_demonstrations_are_what_the_head_says():
    task, seen = get_task("sums", ramble=6), []
    for seed in range(8):
        prompts = task.dataset(2000, seed)["prompt"]
        seen.append(set(prompts))
        assert list(prompts[: len(seen[-1])]) != sorted(seen[-1]), "in an order of its own"
    assert sum(map(len, seen)) == len(set.union(*seen)) == 3240, (
        "seeds that differ modulo 8 share none"
    )
    rng, right, wrong = random.Random(0), [], []
    for prompt in sorted(seen[0]):
        text, answer = task.demonstrate(prompt, rng), task.solve(prompt)
        a, _, b, _ = prompt.split()
        assert int(answer) == int(a) + int(b) < 100
        shares = task.answers(prompt)
        assert sum(shares.values()) == pytest.approx(1)
        carries = int(a) % 10 + int(b) % 10 > 9
        assert max(shares, key=shares.get) == (str(int(answer) - 10) if carries else answer), (
            "a wrong mode per carry"
        )
        (right if task.score(text, answer) else wrong).append(text.count(","))
        assert text[-2].isdigit(), (
            "hedges come first, so that a policy can learn which answers they lead up to"
        )
    assert set(right) == {0}
    assert set(wrong) == {3, 4, 5, 6}
    expected = np.mean([task.answers(prompt)[task.solve(prompt)] for prompt in seen[0]])
    assert len(right) / len(seen[0]) == pytest.approx(expected, abs=0.1)
    solutions = list(task.equivalent_solutions("37 + 45 ="))
    assert len(set(solutions)) == len(solutions) == 96
    assert all(task.score(text, "82") for text in solutions)
    assert {" {} the {} {} 82.".format(*s) for s in task.some_styles("37 + 45 =", 8, rng)} <= set(
        solutions
    )


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        (" So the sum is 82.", "82"),
        (" 82, maybe.", "82"),
        ("-82", "-82"),
        ("8 2", None),
        ("82.0", "82.0"),
        ("", None),
    ],
)
def test_the_verifier_reads_one_number(text, stated):
    assert Sums().stated(text) == stated
    assert Sums().score(text + "٤" + "," * 10**6, "82") == (stated == "82"), (
        "in time that grows with the text alone"
    )


def test_credit_adds_up_to_the_reward():
    """Digits share what the answer's chance moves by; 8 of 82 leaves the right one and nine others
    of the same tens.
    """
    task, tokens = (
        Sums(error_rate=0.34, forgotten=0.5),
        [" So", " the", " sum", " comes", " ", "8", "2", ".", "<|im_end|>"],
    )
    assert {credit for _, credit in Sums(ramble=6).annotate("37 + 45 =", "82", tokens)} == {None}
    rows = task.annotate("37 + 45 =", "82", tokens)
    assert [category for category, _ in rows[3:]] == [
        "other",
        "template",
        "result",
        "result",
        "template",
        "eos",
    ]
    start, tens = 0.66 * 0.5, 0.66 * 0.5 + 9 * 0.02
    assert [credit for _, credit in rows[5:7]] == pytest.approx(
        [0.33 / tens - start, 1 - 0.33 / tens]
    )
    wrong = task.annotate("37 + 45 =", "82", ["7", "2", " perhaps"])
    assert wrong == [("result", pytest.approx(-start)), ("result", 0.0), ("style", 0.0)]


# --- policies
@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """The script that makes policies, in a folder of its own, on a tiny Llama that has learned the
    sentence in full.
    """
    folder, patch = tmp_path_factory.mktemp("smollm2"), pytest.MonkeyPatch()
    words = ["<|im_end|>", "+", "=", " =", " +", " ", ".", ",", *"0123456789"]
    # in one order in every process
    words += [*(f" {word}" for word in sorted(WORD_CLASSES["style"])), " the"]
    raw = Tokenizer(models.WordLevel({word: k for k, word in enumerate(words)}, unk_token="."))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex(" ?[A-Za-z]+| [+=]|."), "isolated")
    raw.decoder = decoders.Fuse()
    ends = {"eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, **ends, padding_side="left")
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    ids = {"eos_token_id": 0, "pad_token_id": 0, "bos_token_id": None}
    # the same on every CPU
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(words), **sizes, **ids)).double()
    names = runpy.run_path(str(data_path("smollm2", "make_smollm2.py")))
    losses = list(
        names["train"](
            Policy(model, tokenizer, {}), get_task("sums"), 0, steps=60, batch=16, lr=4e-3
        )
    )
    assert losses[-1] < 0.7 * losses[0]
    for part in (model.float(), tokenizer):
        part.save_pretrained(folder / "base")
    base = SimpleNamespace(name=str(folder / "base"), sha256="0", folder=lambda: folder / "base")
    for module in (names["main"].__globals__, vars(tuned)):
        patch.setitem(module, "BASE", base)
    patch.setattr(tuned, "COMMITTED", folder)
    own = {"HERE": folder, "STEPS": {"sums": 3, "ramble": 2}, "BATCH": 4, "PROMPTS": 4}
    own |= {"VALUES": (0.0, 1.0), "MIXED": 0.0, "ROLES": ["tuning", "unit"]}
    for name, value in own.items():
        patch.setitem(names["main"].__globals__, name, value)
    # so that rewards differ
    patch.setattr(Sums, "score", lambda self, text, answer, **row: float(len(text) % 2))
    patch.setattr(sys, "argv", ["make_smollm2.py"])
    names["main"]()
    yield folder
    patch.undo()


def test_the_rounded_adapter_merged_is_the_policy(script, monkeypatch):
    members = json.loads((script / "sums" / "members.json").read_text())["members"]
    assert [(one["seed"], one["role"]) for one in members] == [(1, "tuning"), (2, "unit")]
    assert {"value", "wrong_modes", "mixed", "right_tokens"} <= set(members[0]["start"])
    policy, stored = (
        load_policy("smollm2:sums,seed=2"),
        load_file(script / "sums" / "seed=2.safetensors"),
    )
    base = dict(load_policy(str(script / "base")).model.named_parameters())
    for name, weight in policy.model.named_parameters():
        change, layer = torch.zeros_like(weight), name.removesuffix(".weight")
        if name.endswith(("q_proj.weight", "v_proj.weight")):
            assert stored[f"{layer}.A"].dtype == stored[f"{layer}.B"].dtype == torch.float16
            change = stored[f"{layer}.B"].float() @ stored[f"{layer}.A"].float()
            assert change.any()
        assert weight.requires_grad
        torch.testing.assert_close(weight, base[name] + change)
    adapted = load_policy("smollm2:sums,seed=2", lora=on_q_and_v(), seed=5)
    ids = torch.arange(8)[None]
    torch.testing.assert_close(adapted.model(ids).logits, policy.model(ids).logits)
    trained = {name for name, p in adapted.model.named_parameters() if p.requires_grad}
    assert {name.split(".")[-4] for name in trained} == {"q_proj", "v_proj"}
    others = [
        load_policy(f"smollm2:{name}").provenance["sha256"]
        for name in ("sums,seed=1", "ramble,seed=2")
    ]
    assert len({policy.provenance["sha256"], *others}) == 3
    with pytest.raises(ValueError, match=r"seed=9\.safetensors is missing"):
        load_policy("smollm2:sums,seed=9")
    with refused("name", "smollm2:sums"):
        load_policy("smollm2:sums")
    monkeypatch.setattr(tuned, "COMMITTED", script / "elsewhere")
    with refused("role", "unit"):
        StudyUnit(SUMS)


# --- both studies
def test_a_unit_is_probed(script, monkeypatch):
    monkeypatch.setitem(study.SIZES, SUMS, study.ProbeSizes(14, 5, 6, 2, (2, 2), 40, 4))
    unit = StudyUnit(SUMS, 0)
    assert unit.setting.policy == "smollm2:sums,seed=2"
    tables = study.probes_study(unit)
    assert tables["rows"]["error"].item() < 0.05, "the rows add up to a real step"
    assert tables["rows"]["measured"].item() == 5
    assert {"style", "right result", "wrong result"} <= set(tables["sums"]["kind"])
    assert set(tables["rates"]["prompts"]) == {1, 2, 4, 8}
    assert tables["rates"]["follows"].dropna().between(0, 1).all()
    assert tables["pairs"].groupby("weights")["size"].sum().index.tolist() == [
        "all weights",
        "output layer",
    ]
    gaps = tables["gaps"].set_index("advantages")
    assert gaps.index.tolist() == ["own", "permuted"]
    assert (gaps["tokens"] <= 40).all()
    assert gaps["gap"].abs().le(1).all()
    whole = {f"smollm2_probes/{name}": table.assign(seed=0) for name, table in tables.items()}
    for key, number in claims.PROBES.items():
        if key not in ("C2 sums", "C3 batch sums", "H1 sums", "H1 follows sums"):  # of 64 prompts
            assert number(whole).index.tolist() == [0], key


def test_rates_are_tuned_and_streams_trained(script, monkeypatch, tmp_path):
    small = {"batches": 1, "tuning": 1, "every": 1, "held_out": 3}
    for scale in (SUMS, RAMBLE):
        monkeypatch.setitem(training.SIZES, scale, training.SIZES[scale]._replace(**small))
    monkeypatch.setattr(training, "LADDER", (1e-3,))
    monkeypatch.setattr(half_way, "LEAST", -1.0)
    with pytest.raises(NotMeasured, match="measure smollm2_rates"):
        measure("smollm2_training", SUMS, seeds=[0], folder=tmp_path)
    measure("smollm2_rates", SUMS, folder=tmp_path)
    rates = load_measured("smollm2_rates", SUMS, "runs", tmp_path)
    assert rates.groupby("policy")["arm"].nunique().tolist() == [3, 3], "permuted is not tuned"
    for scale, arms in ((SUMS, training.SIZES[SUMS].arms), (RAMBLE, ("dr_grpo", "length"))):
        measure("smollm2_training", scale, seeds=[0], folder=tmp_path)
        runs = load_measured("smollm2_training", scale, "runs", tmp_path)
        assert runs["arm"].unique().tolist() == list(arms)
        assert runs["batch"].tolist() == [0, 1] * len(arms)
        starts = runs[runs["batch"] == 0].drop(columns=["arm", "lr", "seconds"])
        assert len(starts.drop_duplicates()) == 1, "every arm from one start"
        assert runs["pass_at_8"].ge(runs["value"]).all()
        assert runs.loc[runs["batch"] > 0, "moved"].gt(0).all()
        assert runs["tax"].iloc[0] == pytest.approx(0, abs=1e-6)
        [policies] = read_manifest("smollm2_training", tmp_path).query("scale == @scale")[
            "policies"
        ]
        assert json.loads(policies).keys() == {f"{scale},seed=2"}


def test_sampled_readings_are_those_of_eight_completions(script):
    unit = StudyUnit(SUMS, 0)
    held_out = unit.task.dataset(3, unit.held_out_seed)["prompt"][:]
    read = training.SampledReadings(unit.policy, unit.task, held_out, 7, 12).now(unit.policy)
    again = sample_rollouts(
        unit.policy, unit.task, unit.task.dataset(3, unit.held_out_seed), 8, 7, 12
    )
    rewards, lengths = again.rewards.view(3, 8), again.completion_mask.sum(1).float()
    assert read["value"] == pytest.approx(float(rewards.mean()))
    assert read["pass_at_8"] == pytest.approx(float((rewards.sum(1) > 0).float().mean()))
    assert read["wrong_length"] == pytest.approx(float(lengths[again.rewards == 0].mean()))
    assert read["entropy"] == pytest.approx(
        float(again.entropies.sum() / again.completion_mask.sum())
    )
