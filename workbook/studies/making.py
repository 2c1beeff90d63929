"""Make small policies by supervised training on demonstrations, without any reward.

Reinforcement is `workbook.training.loop`; here a policy is made that it can start from.

    python -m workbook.studies.making "family:seed=3,alphabets=4"    into the cache

`data/bundled/make_policy.py`, `data/family/make_family.py` and `data/worlds/make_worlds.py` make
the committed policies with it. One thread, one seed: the same machine makes the same bytes, and
another processor others.

A member of the family with alphabets or less confidence starts from the member without, with rows
for its new words, and is trained on for some hundred steps. A member is made once, under a lock.
"""

import argparse
import itertools
import random
import time
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path

import torch
import transformers  # its models are imported when first used
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from workbook.places import file_hash
from workbook.policies.family import (
    DEFAULTS,
    RECIPE,
    Member,
    cached_member,
    committed_file,
    member_folder,
    member_of,
    was_made,
)
from workbook.policies.models import seeded
from workbook.policies.packaged import cached_folder, write_record
from workbook.policies.small import SPECIAL, make_model, make_tokenizer
from workbook.tasks.chain import (
    EQUIVALENTS,
    Chain,
    canonical,
    in_alphabet,
    marked_alphabet,
    to_first_alphabet,
)
from workbook.tasks.task import Task

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
# of the members that start from another one; the more with the alphabets
TUNING_STEPS, MORE_PER_DOUBLING = 100, 25
# alphabet, up to 16 of them, and above
ONE, _FEW, _MANY = {"lr": 3e-3}, {"lr": 5e-3}, {"lr": 8e-3, "right_first": 0.5}
# of an alphabet's direction in its embeddings, and of its margin in the logits, at the start
SIZE, _MARGIN = 0.7, 12.0
MEASURED_PROMPTS = 512


def train_supervised(
    model: transformers.LlamaForCausalLM,
    tokenizer,
    task: Task,
    steps: int,
    batch_size: int = BATCH_SIZE,
    lr: float = LEARNING_RATE,
    seed: int = 0,
    right_first: float = 0.5,
) -> float:
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
    model: transformers.LlamaForCausalLM,
    tokenizer,
    task: Task,
    steps: int,
    batch_size: int = 32,
    lr: float = 3e-3,
    seed: int = 0,
) -> int:
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
def measure_start(
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
        slots = task.parsed(text) if marked_alphabet(text) == marked_alphabet(prompt) else None
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
    words, alphabet = to_first_alphabet(text).split(), marked_alphabet(text)

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


# -- members of the family


def make_member(member: Member) -> Path:
    """Return the folder of a member, which is trained if it is neither committed nor made."""
    if committed_file(member).exists():
        return member_folder(member)
    return cached_folder(
        cached_member(member), lambda folder: _train_member(member, folder), was_made
    )


def _train_member(member: Member, folder: Path) -> None:
    """Train a member and write its files, and a record of them, into a folder."""
    started, task, base = time.perf_counter(), member.task, None
    with ExitStack() as after, seeded(member.seed, torch.device("cpu")):
        after.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)  # sums in another order make other bytes
        tokenizer = make_tokenizer(task)
        if member == member.base:
            model = make_model(tokenizer, member.width, max_new_tokens=max(64, task.longest))
            loss = train_supervised(model, tokenizer, task, member.sft_steps, seed=member.seed)
        else:
            base = make_member(member.base)
            model, loss = tuned(base, tokenizer, task, member.seed)
        model.eval()
        measured = measure_start(model, tokenizer, task, MEASURED_PROMPTS, member.seed)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    start = None
    if base is not None:
        start = {
            "name": member.base.name,
            "sha256": file_hash(base / "model.safetensors"),
            **fine_tuning(task),
        }
    facts = {
        "made_by": "workbook.studies.making",
        "recipe": RECIPE,
        "member": {dial: getattr(member, dial) for dial in DEFAULTS},
        "start": start,
        "last_loss_nats": loss,
        "measured": {"prompts": MEASURED_PROMPTS, "temperature": 1.0, **measured},
        "seconds": round(time.perf_counter() - started, 1),
    }
    write_record(folder, facts)


def fine_tuning(task: Chain) -> dict:
    """Return how a member with more words than its base is trained on: arguments of `train`.

    25 more steps per doubled alphabets. Many of them disturb the arithmetic, which right chains
    alone bring back.
    """
    steps = TUNING_STEPS + MORE_PER_DOUBLING * (task.alphabets - 1).bit_length()
    kind = ONE if task.alphabets == 1 else _FEW if task.alphabets <= 16 else _MANY
    return {"steps": steps, "right_first": 0.0, **kind}


class SharedRows(nn.Module):
    """Rows of a vocabulary in several alphabets, as the sum of a word's and an alphabet's: for
    training alone.

    What one alphabet teaches of a word all others learn, too; `rows` are what the policy gets, a
    row for each token.
    """

    def __init__(self, words: Tensor, directions: Tensor, word: Tensor, alphabet: Tensor):
        super().__init__()
        # (W, H), (A, H)
        self.words, self.directions = nn.Parameter(words.clone()), nn.Parameter(directions.clone())
        # (V,); alphabet -1: of no alphabet, as the special tokens are
        self.word, self.alphabet = word, alphabet

    def rows(self) -> Tensor:
        own = (self.alphabet >= 0).unsqueeze(1)
        return self.words[self.word] + own * self.directions[self.alphabet]  # (V, H)


class _Embedding(SharedRows):
    def forward(self, ids: Tensor) -> Tensor:
        return nn.functional.embedding(ids, self.rows())


class _Head(SharedRows):
    def forward(self, states: Tensor) -> Tensor:
        return nn.functional.linear(states, self.rows())


def tuned(base: Path, tokenizer, task: Chain, seed: int):
    """Return (model, last loss in nats): the policy in a folder, trained on for a task of more
    words.

    A new word starts as a copy of the one it stands for. Each alphabet starts with a small random
    direction in all its embeddings, and in its output rows with the one that tells its texts from
    others' at the last hidden state.
    """
    vocabulary = [
        word for word, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    ]
    words = list(
        dict.fromkeys(word if word in SPECIAL else to_first_alphabet(word) for word in vocabulary)
    )
    model = transformers.LlamaForCausalLM.from_pretrained(base, dtype=torch.float32)
    rows = transformers.AutoTokenizer.from_pretrained(base).convert_tokens_to_ids(
        [word if word in SPECIAL else canonical(word) for word in words]
    )
    of = torch.tensor(
        [words.index(word if word in SPECIAL else to_first_alphabet(word)) for word in vocabulary]
    )
    alphabet = torch.tensor(
        [-1 if word in SPECIAL else marked_alphabet(word) for word in vocabulary]
    )
    old = dict(model.state_dict())
    directions = SIZE * nn.functional.normalize(
        torch.randn(task.alphabets, model.config.hidden_size)
    )
    directions *= task.alphabets > 1
    model.model.embed_tokens = _Embedding(
        old["model.embed_tokens.weight"][rows], directions, of, alphabet
    )
    model.lm_head = _Head(
        old["lm_head.weight"][rows], _discriminants(model, tokenizer, task), of, alphabet
    )
    loss = train_supervised(model.train(), tokenizer, task, seed=seed, **fine_tuning(task))
    config = type(model.config).from_dict({**model.config.to_dict(), "vocab_size": len(tokenizer)})
    trained = type(model)(config)
    trained.generation_config = model.generation_config
    state = {
        name: value for name, value in model.state_dict().items() if name in trained.state_dict()
    }
    with torch.no_grad():
        state |= {
            "model.embed_tokens.weight": model.model.embed_tokens.rows(),
            "lm_head.weight": model.lm_head.rows(),
        }
    trained.load_state_dict(state)
    return trained, loss


@torch.no_grad()
def _discriminants(model, tokenizer, task: Chain) -> Tensor:
    """Return (A, H): MARGIN times the ridge regression of the alphabet, one-hot, on the last hidden
    state.
    """
    rng, prompts = random.Random(0), task.dataset(256, seed=DATA_SEED)["prompt"]
    texts = [f"{prompt} {task.demonstrate(prompt, rng)}" for prompt in prompts]
    states = model.model(**tokenizer(texts, return_tensors="pt")).last_hidden_state  # (B, P + T, H)
    which = torch.tensor([marked_alphabet(prompt) for prompt in prompts]).repeat_interleave(
        states.shape[1]
    )
    x, y = states.flatten(0, 1), nn.functional.one_hot(which, task.alphabets).float()
    margin = _MARGIN * (task.alphabets > 1)
    return margin * torch.linalg.solve(x.T @ x + 0.01 * len(x) * torch.eye(x.shape[1]), x.T @ y).T


def make_from_command() -> None:
    parser = argparse.ArgumentParser(description="Make members of the family, into the cache.")
    parser.add_argument("name", nargs="+", type=member_of, help='e.g. "family:seed=3,alphabets=4"')
    for member in parser.parse_args().name:
        print(make_member(member), flush=True)


if __name__ == "__main__":
    make_from_command()
