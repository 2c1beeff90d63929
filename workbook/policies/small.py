"""Small policies of the known worlds: an untrained one, and one stored in 8 bits.

A policy is a word-level tokenizer of its task's vocabulary and a Llama of two layers. The committed
ones are stored as int8 with a scale per row: the rounded weights are the policy, the same on every
machine. They are unpacked into a folder of the user's cache, from which they load as any other
model does. `workbook.studies.making` trains them.
"""

import json
from pathlib import Path

import torch
import transformers  # its models are imported when first used
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

from workbook.places import file_hash
from workbook.policies.models import seeded
from workbook.policies.packaged import RECORD, is_whole, kept, write_record
from workbook.tasks.task import Task

SPECIAL = ("<pad>", "<eos>", "<unk>")


def make_tokenizer(task: Task) -> transformers.PreTrainedTokenizerFast:
    """Return a word-level tokenizer of the task's vocabulary: it splits at spaces and decodes with
    single spaces.
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
    """Return the untrained policy: 2 layers, 4 heads, untied.

    Embedding and output layer are untied, so that their gradients can be told apart.
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


def packed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return weights as int8 with one float16 scale per row (matrices), or as float16 (vectors).

    >>> unpacked(packed({"w": torch.tensor([[1.0, -127.0]])}))["w"].tolist()
    [[1.0, -127.0]]
    """
    stored = {}
    for name, weights in state.items():
        if weights.dim() < 2:
            stored[name] = weights.half()
            continue
        scale = (weights.abs().amax(1) / 127).half()
        steps = weights / scale.float()[:, None].clamp(min=torch.finfo(torch.float16).tiny)
        stored |= {name: steps.round().clamp(-127, 127).to(torch.int8), f"{name}.scale": scale}
    return stored


def unpacked(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the float32 weights that `packed` stored, exactly: 8 bits times 11 are no more than
    float32 holds.
    """
    scales = {
        name: values.float()[:, None] for name, values in stored.items() if name.endswith(".scale")
    }
    plain = {name: values.float() for name, values in stored.items() if name not in scales}
    return {name: values * scales.get(f"{name}.scale", 1.0) for name, values in plain.items()}


def unpack_policy(
    file: Path, target: Path, task: Task, width: int, max_new_tokens: int, facts: dict
) -> Path:
    """Return `target`, the folder of the policy in a committed file; it is written if it is not
    there, torn, or of another file. facts: of its record.
    """
    digest = file_hash(file)

    def write(folder: Path) -> None:
        tokenizer = make_tokenizer(task)
        with seeded(0, torch.device("cpu")):  # leaves the caller's generator as it is
            model = make_model(tokenizer, width, max_new_tokens)
        model.load_state_dict(unpacked(load_file(file)))
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        write_record(folder, facts | {"unpacked": digest})

    def is_right(folder: Path) -> bool:
        record = folder / RECORD
        return is_whole(folder) and json.loads(record.read_text()).get("unpacked") == digest

    return kept(target, write, is_right)
