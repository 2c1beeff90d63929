"""Small policies of the known worlds: an untrained one, and one stored in 8 bits.

A policy is a word-level tokenizer of its task's vocabulary and a Llama of two layers. The committed
ones are stored as int8 with a scale per row: the rounded weights are the policy, the same on every
machine. They are unpacked into a folder of the user's cache, from which they load as any other
model does. `workbook.studies.making` trains them.
"""

import json
from pathlib import Path

import torch

# its models are imported when first used
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

from workbook.places import file_hash
from workbook.policies.models import seeded
from workbook.policies.packaged import RECORD, cached_folder, is_whole, write_record
from workbook.tasks.task import Task

# before the task's words, so that their ids are the same for every task
SPECIAL = ("<pad>", "<eos>", "<unk>")


def make_tokenizer(task: Task) -> transformers.PreTrainedTokenizerFast:
    """A word-level tokenizer of the task's vocabulary.

    It splits at spaces and decodes with single spaces.
    """
    words = {word: i for i, word in enumerate((*SPECIAL, *task.vocabulary))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=max(256, 2 * task.longest),
    )


def make_model(
    tokenizer: transformers.PreTrainedTokenizerFast, width: int = 64, max_new_tokens: int = 64
) -> transformers.LlamaForCausalLM:
    """The untrained policy: a Llama of 2 layers with 4 heads each.

    Embedding and output layer are untied, so that their gradients can be told apart.

    width: of the residual stream.
    max_new_tokens: of a completion; prompts may have 64 tokens beside it.
    """
    ids = {
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=max(256, max_new_tokens + 64),
        # near 1/sqrt(width): 0.02 is too quiet to learn arithmetic soon
        initializer_range=0.1 * (64 / width) ** 0.5,
        tie_word_embeddings=False,
        dtype="float32",
        **ids,
    )
    model = transformers.LlamaForCausalLM(config)
    model.generation_config = transformers.GenerationConfig(
        do_sample=True, temperature=1.0, top_k=0, max_new_tokens=max_new_tokens, **ids
    )
    return model


def to_int8(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights as int8 with one float16 scale per row (matrices), or as float16 (vectors).

        W[i, j] is about scale[i] * q[i, j]        scale[i] = max |W[i, :]| / 127

    >>> from_int8(to_int8({"w": torch.tensor([[1.0, -127.0]])}))["w"].tolist()
    [[1.0, -127.0]]
    """
    stored = {}
    for name, weights in state.items():
        if weights.dim() < 2:
            stored[name] = weights.half()
            continue
        scale = (weights.abs().amax(1) / 127).half()  # (rows,)
        # a row of zeros has the scale 0
        divisor = scale.float()[:, None].clamp(min=torch.finfo(torch.float16).tiny)
        stored[name] = (weights / divisor).round().clamp(-127, 127).to(torch.int8)
        stored[f"{name}.scale"] = scale
    return stored


def from_int8(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """The float32 weights that `to_int8` stored.

    They are the same on every machine: 8 bits times 11 are no more than float32 holds.
    """
    weights = {}
    for name, values in stored.items():
        if name.endswith(".scale"):
            continue
        weights[name] = values.float()
        scale = stored.get(f"{name}.scale")
        if scale is not None:
            weights[name] = weights[name] * scale.float()[:, None]
    return weights


def unpack_policy(
    file: Path, target: Path, task: Task, width: int, max_new_tokens: int, facts: dict
) -> Path:
    """The folder `target` of the policy in a committed file, as `load_policy` reads it.

    It is written if it does not exist, is torn, or is of another file.

    facts: what its record says beside the file's digest.
    """
    digest = file_hash(file)

    def write(folder: Path) -> None:
        tokenizer = make_tokenizer(task)
        # first weights are drawn, and replaced: the caller's generator stays as it is
        with seeded(0, torch.device("cpu")):
            model = make_model(tokenizer, width, max_new_tokens)
        model.load_state_dict(from_int8(load_file(file)))
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        write_record(folder, {**facts, "unpacked": digest})

    def is_right(folder: Path) -> bool:
        if not is_whole(folder):
            return False
        record = json.loads((folder / RECORD).read_text())
        return record.get("unpacked") == digest

    return cached_folder(target, write, is_right)
