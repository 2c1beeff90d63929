"""Supervised training of policies: tokenizer, untrained model, demonstrations, measurement.

`data/bundled/make_policy.py`, `data/worlds/make_worlds.py` and `workbook.policies.family` share it.
One thread, one
seed: the same machine makes the same bytes.
"""

import itertools
import random
from dataclasses import fields, replace

import torch
import transformers  # its models are imported when first used
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.nn.utils.rnn import pad_sequence

from workbook.tasks.chain import Chain
from workbook.tasks.task import Task
from workbook.tasks.wording import EQUIVALENTS, canonical, in_alphabet, marked, plain

SPECIAL = ("<pad>", "<eos>", "<unk>")
# prompts for training; evaluation prompts come from EVAL_SEED, which shares none with it
DATA_SEED = 7
EVAL_SEED = 6
BATCH_SIZE = 64
LEARNING_RATE = 5e-3
FLAWS = ("error_rate", "wrong_modes")  # fields of a task that make its demonstrations wrong
NO_LABEL = -100  # of prompts and padding
# steps between two looks at what was learned; share of right answers that will do
LOOK, ENOUGH_RIGHT = 25, 0.97
# completions, whose probabilities over a large vocabulary take most of the memory
SCORED_CHAINS = 64


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


def train(
    model: transformers.LlamaForCausalLM, tokenizer, task: Task, steps: int, batch_size: int = BATCH_SIZE,
    lr: float = LEARNING_RATE, seed: int = 0, right_first: float = 0.5,
) -> float:  # fmt: skip
    """Train on fresh demonstrations, loss on completion tokens alone, one-cycle schedule; return
    the last loss in nats.

    right_first: the share of the steps, from the beginning, that show right chains alone:
    arithmetic is learned from those in far fewer steps, whatever the seed. The others plant the
    errors, and the probabilities follow.
    """
    rng, right = random.Random(seed), flawless(task)
    prompts = task.dataset(20_000, seed=DATA_SEED)["prompt"][:]
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    rising = max(0.1, 1.5 / steps)  # of the steps: more than one, or the schedule has no slope
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=lr, total_steps=steps, pct_start=rising
    )
    for step in range(steps):
        teacher = right if step < int(steps * right_first) else task
        loss = _step(model, tokenizer, teacher, rng.choices(prompts, k=batch_size), rng, optimizer)
        schedule.step()
    return loss


def learn(
    model: transformers.LlamaForCausalLM, tokenizer, task: Task, steps: int, batch_size: int = 32, lr: float = 3e-3,
    seed: int = 0,
) -> int:  # fmt: skip
    """Train on right demonstrations at a constant rate until the likeliest completions are right;
    return the steps.

    At most `steps`; every LOOK steps the likeliest completions of 64 prompts are looked at. Seeds
    differ twofold in how long they take, so a fixed number of steps is too many for most and too
    few for some. The loss has the results of a chain once more by themselves: they alone are hard
    to learn, and a tenth of the words.
    """
    rng, right, rows = random.Random(seed), flawless(task), task.dataset(64, seed=EVAL_SEED)
    prompts = task.dataset(20_000, seed=DATA_SEED)["prompt"][:]
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    rising = torch.optim.lr_scheduler.LinearLR(optimizer, 0.02, total_iters=LOOK)
    for step in range(1, steps + 1):
        _step(
            model,
            tokenizer,
            right,
            rng.choices(prompts, k=batch_size),
            rng,
            optimizer,
            isinstance(task, Chain),
        )
        rising.step()
        if step % LOOK == 0 and sum(
            greedy_rewards(model, tokenizer, right, rows)
        ) >= ENOUGH_RIGHT * len(rows):
            return step
    return steps


def flawless(task: Task) -> Task:
    """The task whose demonstrations are right."""
    return replace(task, **{one.name: 0.0 for one in fields(task) if one.name in FLAWS})


def _step(
    model,
    tokenizer,
    teacher: Task,
    prompts: list[str],
    rng: random.Random,
    optimizer,
    results_apart: bool = False,
) -> float:
    """Take a step on a demonstration of each prompt; return the loss in nats.

    results_apart: whether the mean loss of results is added to that of all words; for right chains,
    which are of one shape.
    """
    texts = [teacher.demonstrate(prompt, rng) for prompt in prompts]
    rows = [
        f"{prompt} {text} {tokenizer.eos_token}"
        for prompt, text in zip(prompts, texts, strict=True)
    ]
    padding = tokenizer.pad_token_id
    rows = [
        row[row != padding] for row in tokenizer(rows, return_tensors="pt", padding=True).input_ids
    ]
    ids = pad_sequence(rows, batch_first=True, padding_value=padding)  # (B, P + T)
    lengths = torch.tensor([len(prompt.split()) for prompt in prompts]).unsqueeze(1)
    unread = (torch.arange(ids.shape[1]) < lengths) | (ids == padding)
    first = int(lengths.min())
    logits = model(input_ids=ids).logits[:, first - 1 : -1]  # (B, T, V)
    labels = ids.masked_fill(unread, NO_LABEL)[:, first:]
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=NO_LABEL
    )
    if results_apart:
        at = [
            place
            for place, (_, slot) in enumerate(teacher.parsed(texts[0]))
            if slot.category == "result"
        ]
        loss = loss + torch.nn.functional.cross_entropy(
            logits[:, at].flatten(0, 1), labels[:, at].flatten()
        )
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


@torch.no_grad()
def greedy_rewards(
    model: transformers.LlamaForCausalLM, tokenizer, task: Task, rows
) -> list[float]:
    """Rewards of the likeliest completions of a data set's prompts."""
    inputs = tokenizer(rows["prompt"][:], return_tensors="pt", padding=True)
    ids = model.generate(**inputs, do_sample=False)[:, inputs.input_ids.shape[1] :]
    return task.reward(
        rows["prompt"][:], tokenizer.batch_decode(ids, skip_special_tokens=True), rows["answer"][:]
    )


@torch.no_grad()
def measure(
    model: transformers.LlamaForCausalLM, tokenizer, task: Chain, prompts: int, seed: int
) -> dict[str, float]:
    """Sample one completion per prompt at temperature 1 and return what they say.

    reward: mean; greedy: mean of the likeliest completions'; top1_right: share of the steps in
    which the right result of what is written is the most likely token; p_right: mean probability of
    that result; well_formed: share of completions that are chains, right or wrong; p_template: mean
    probability of with ; the, the template words that a task of less confidence has equivalents
    for.
    """
    torch.manual_seed(seed)
    rows = task.dataset(prompts, seed=EVAL_SEED)
    inputs = tokenizer(rows["prompt"][:], return_tensors="pt", padding=True)
    ids = model.generate(**inputs)  # (B, P + T)
    start = inputs.input_ids.shape[1]
    texts = tokenizer.batch_decode(ids[:, start:], skip_special_tokens=True)
    # rows of chains of the task's length, right or wrong, in the alphabet of their prompt
    chains = []
    for row, (prompt, text) in enumerate(zip(rows["prompt"][:], texts, strict=True)):
        slots = task.parsed(text) if marked(text) == marked(prompt) else None
        # the step whose result is stated at last
        if slots and slots[-1][1].step == task.operands - 2:
            chains.append(row)
    read = []
    for first in range(0, len(chains), SCORED_CHAINS):
        some = chains[first : first + SCORED_CHAINS]
        # (b, T, V): of the token that follows
        probs = model(input_ids=ids[some]).logits.softmax(-1)[:, start - 1 : -1]
        read += [
            _probabilities(task, tokenizer, texts[row], own)
            for row, own in zip(some, probs, strict=True)
        ]
    steps, template = (
        (list(itertools.chain(*parts)) for parts in zip(*read, strict=True)) if read else ([], [])
    )
    p_right, top1 = (
        (sum(column) / max(1, len(steps)) for column in zip(*steps, strict=True))
        if steps
        else (0.0, 0.0)
    )
    rewards = task.reward(rows["prompt"][:], texts, rows["answer"][:])
    greedy = greedy_rewards(model, tokenizer, task, rows)
    return {
        "reward": sum(rewards) / len(rewards),
        "greedy": sum(greedy) / len(greedy),
        "top1_right": top1,
        "p_right": p_right,
        "well_formed": len(chains) / len(texts),
        "p_template": sum(template) / max(1, len(template)),
    }


def _probabilities(
    task: Chain, tokenizer, text: str, probs
) -> tuple[list[tuple[float, float]], list[float]]:
    """Return (p of the right result, whether it is the most likely token) per step, and p of each
    replaceable word.

    probs: (T, V), of the token at each place of the chain.
    """
    words, alphabet = plain(text).split(), marked(text)

    def id_of(word: str) -> int:
        return tokenizer.convert_tokens_to_ids(in_alphabet(word, alphabet))

    steps = []
    # `a op b is result`
    for i in (i for i, (_, slot) in enumerate(task.parsed(text)) if slot.field == "result"):
        a, operator, b = int(words[i - 4]), words[i - 3], int(words[i - 2])
        right = id_of(str((a + b if operator == "+" else a - b) % task.modulus))
        steps.append((probs[i, right].item(), float(probs[i].argmax() == right)))
    roles = enumerate(map(canonical, words))
    return steps, [probs[i, id_of(word)].item() for i, word in roles if word in EQUIVALENTS]
