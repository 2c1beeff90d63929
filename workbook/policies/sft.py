"""Supervised training of the chain task's policies: tokenizer, untrained model, demonstrations, measurement.

`data/bundled/make_policy.py` and `workbook.policies.family` share it. One thread, one seed: the same machine makes the
same bytes.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import fields, replace

import torch
import transformers  # its models are imported when first used
from tokenizers import Tokenizer, models, pre_tokenizers

from workbook.tasks.chain import Chain
from workbook.tasks.wording import EQUIVALENTS, canonical, in_alphabet, marked, plain

SPECIAL = ("<pad>", "<eos>", "<unk>")
DATA_SEED = 7  # prompts for training; evaluation prompts come from EVAL_SEED, which shares none with it
EVAL_SEED = 6
BATCH_SIZE = 64
LEARNING_RATE = 5e-3
FLAWS = ("error_rate", "wrong_modes")  # fields of a task that make its demonstrations wrong
SCORED_CHAINS = 64  # completions, whose probabilities over a large vocabulary take most of the memory


def make_tokenizer(task: Chain) -> transformers.PreTrainedTokenizerFast:
    """Return a word-level tokenizer of the task's vocabulary: it splits at spaces and decodes with single spaces."""
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
    ids = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=max(256, max_new_tokens + 64),
        initializer_range=0.1 * (64 / width) ** 0.5,  # near 1/sqrt(width): 0.02 is too quiet to learn arithmetic soon
        tie_word_embeddings=False,
        dtype="float32",
        **ids,
    )
    model = transformers.LlamaForCausalLM(config)
    model.generation_config = transformers.GenerationConfig(
        do_sample=True, temperature=1.0, top_k=0, max_new_tokens=max_new_tokens, **ids
    )
    return model


def train(
    model: transformers.LlamaForCausalLM, tokenizer, task: Chain, steps: int, batch_size: int = BATCH_SIZE,
    lr: float = LEARNING_RATE, seed: int = 0, right_first: float = 0.5,
) -> float:  # fmt: skip
    """Train on fresh demonstrations, loss on completion tokens alone, one-cycle schedule; return the last loss in nats.

    right_first: the share of the steps, from the beginning, that show right chains alone: arithmetic is learned from
    those in far fewer steps, whatever the seed. The others plant the errors, and the probabilities follow.
    """
    rng = random.Random(seed)
    right = replace(task, **{one.name: 0.0 for one in fields(task) if one.name in FLAWS})
    prompts = task.dataset(20_000, seed=DATA_SEED)["prompt"][:]
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    rising = max(0.1, 1.5 / steps)  # of the steps: more than one, or the schedule has no slope
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=lr, total_steps=steps, pct_start=rising)
    padding = tokenizer.pad_token_id
    for step in range(steps):
        batch = rng.choices(prompts, k=batch_size)
        teacher = right if step < int(steps * right_first) else task
        texts = [f"{prompt} {teacher.demonstrate(prompt, rng)} {tokenizer.eos_token}" for prompt in batch]
        rows = [row[row != padding] for row in tokenizer(texts, return_tensors="pt", padding=True).input_ids]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=padding)  # (B, P + T)
        lengths = torch.tensor([len(row) for row in tokenizer(batch).input_ids])  # (B,) of the prompts
        least = int(lengths.min())
        logits = model(input_ids=ids).logits[:, least - 1 : -1]  # (B, T, V)
        of_prompt = torch.arange(least, ids.shape[1]) < lengths[:, None]
        targets = ids[:, least:].masked_fill(of_prompt, padding).flatten()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets, ignore_index=padding)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return loss.item()


@torch.no_grad()
def measure(model: transformers.LlamaForCausalLM, tokenizer, task: Chain, prompts: int, seed: int) -> dict[str, float]:
    """Sample one completion per prompt at temperature 1 and return what they say.

    reward: mean; greedy: mean of the likeliest completions'; top1_right: share of the steps in which the right result
    of what is written is the most likely token; p_right: mean probability of that result; well_formed: share of
    completions that are chains, right or wrong; p_template: mean probability of with ; the, the template words that a
    task of less confidence has equivalents for.
    """
    torch.manual_seed(seed)
    rows = task.dataset(prompts, seed=EVAL_SEED)
    inputs = tokenizer(rows["prompt"][:], return_tensors="pt", padding=True)
    ids = model.generate(**inputs)  # (B, P + T)
    start = inputs.input_ids.shape[1]
    texts = tokenizer.batch_decode(ids[:, start:], skip_special_tokens=True)
    chains = []  # rows of chains of the task's length, right or wrong, in the alphabet of their prompt
    for row, (prompt, text) in enumerate(zip(rows["prompt"][:], texts, strict=True)):
        slots = task.parsed(text) if marked(text) == marked(prompt) else None
        if slots and slots[-1][1].step == task.operands - 2:  # the step whose result is stated at last
            chains.append(row)
    read = []
    for first in range(0, len(chains), SCORED_CHAINS):
        some = chains[first : first + SCORED_CHAINS]
        probs = model(input_ids=ids[some]).logits.softmax(-1)[:, start - 1 : -1]  # (b, T, V): of the token that follows
        read += [_probabilities(task, tokenizer, texts[row], own) for row, own in zip(some, probs, strict=True)]
    steps, template = (list(itertools.chain(*parts)) for parts in zip(*read, strict=True)) if read else ([], [])
    p_right, top1 = (sum(column) / max(1, len(steps)) for column in zip(*steps, strict=True)) if steps else (0.0, 0.0)
    rewards = task.reward(rows["prompt"][:], texts, rows["answer"][:])
    likeliest = model.generate(**inputs, do_sample=False)[:, start:]
    greedy = task.reward(
        rows["prompt"][:], tokenizer.batch_decode(likeliest, skip_special_tokens=True), rows["answer"][:]
    )
    return {
        "reward": sum(rewards) / len(rewards),
        "greedy": sum(greedy) / len(greedy),
        "top1_right": top1,
        "p_right": p_right,
        "well_formed": len(chains) / len(texts),
        "p_template": sum(template) / max(1, len(template)),
    }


def _probabilities(task: Chain, tokenizer, text: str, probs) -> tuple[list[tuple[float, float]], list[float]]:
    """Return (p of the right result, whether it is the most likely token) per step, and p of each replaceable word.

    probs: (T, V), of the token at each place of the chain.
    """
    words, alphabet = plain(text).split(), marked(text)

    def id_of(word: str) -> int:
        return tokenizer.convert_tokens_to_ids(in_alphabet(word, alphabet))

    steps = []
    for i in (i for i, (_, slot) in enumerate(task.parsed(text)) if slot.field == "result"):  # `a op b is result`
        a, operator, b = int(words[i - 4]), words[i - 3], int(words[i - 2])
        right = id_of(str((a + b if operator == "+" else a - b) % task.modulus))
        steps.append((probs[i, right].item(), float(probs[i].argmax() == right)))
    roles = enumerate(map(canonical, words))
    return steps, [probs[i, id_of(word)].item() for i, word in roles if word in EQUIVALENTS]
