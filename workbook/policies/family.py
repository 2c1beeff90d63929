"""The family: policies of the chain task that differ in one thing.

    load_policy("family:seed=3")                    a committed one: the same weights on every machine
    load_policy("family:seed=3,alphabets=4")        the same, its prompts spread over 4 private alphabets

data/family holds the policies that studies take as units, and some for tuning, in 8 bits: the
rounded weights are the policy. Every other member is made once by supervised training, whose bytes
depend on the processor. A member with alphabets or less confidence starts from the member without,
with rows for its new words, and is trained on for some hundred steps. All lie in the user's cache
folder, below family/; a member is made once, under a lock.
"""

import json
import random
import re
import time
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from pathlib import Path

import torch
import transformers  # its models are imported when first used
from safetensors.torch import load_file
from torch import Tensor, nn

from workbook.places import cache_folder, data_path, file_hash
from workbook.policies.models import seeded
from workbook.policies.packaged import RECORD, is_whole, kept, write_record
from workbook.policies.sft import DATA_SEED, SPECIAL, make_model, make_tokenizer, measure, train
from workbook.tasks.chain import Chain
from workbook.tasks.task import positive_int, short
from workbook.tasks.wording import canonical, marked, plain

FAMILY = "family:"  # how members' names begin
# seed=K.safetensors, one of other dials, and members.json: what each is
COMMITTED = data_path("family")
RECIPE = 2  # counted up when training changes, so that a cached member of an older one is made anew
# of the members that start from another one; the more with the alphabets
TUNING_STEPS, MORE_PER_DOUBLING = 100, 25
# alphabet, up to 16 of them, and above
ONE, FEW, MANY = {"lr": 3e-3}, {"lr": 5e-3}, {"lr": 8e-3, "right_first": 0.5}
# of an alphabet's direction in its embeddings, and of its margin in the logits, at the start
SIZE, MARGIN = 0.7, 12.0
MEASURED_PROMPTS = 512
NUMBER = r"[0-9]{1,10}|[0-9]{0,3}\.[0-9]{1,20}"  # a dial's value in a name
LIMITS = {"seed": (0, 2**31 - 1), "alphabets": (1, 256), "width": (8, 1024), "operands": (2, 12)}
LIMITS |= {"sft_steps": (2, 100_000)}


@dataclass(frozen=True)
class Member:
    """One policy of the family: the seed of its supervised training, and dials that say what it was
    trained on.

    alphabets, confidence, operands: of its task (`workbook.tasks.chain`). width: of the residual
    stream. sft_steps: of the supervised training, 64 demonstrations each. Raises ValueError naming
    the dial that is out of range.

    >>> Member(3, confidence=0.8).name, Member(3).name
    ('family:seed=3,confidence=0.8', 'family:seed=3')
    """

    seed: int
    alphabets: int = 1
    confidence: float = 1.0
    width: int = 64
    operands: int = 5
    sft_steps: int = 600

    def __post_init__(self) -> None:
        for dial, (least, most) in LIMITS.items():
            positive_int(dial, getattr(self, dial), least, most)
        if self.width % 8:
            raise ValueError(
                f"width is {self.width}, but must be a multiple of 8: of 4 heads of an even width"
                " each."
            )
        self.task  # noqa: B018, which checks confidence

    @property
    def name(self) -> str:
        """The name that `load_policy` knows it by; dials at their default are left out."""
        dials = {dial: getattr(self, dial) for dial in DEFAULTS}
        return FAMILY + ",".join(
            f"{dial}={_digits(value)}" for dial, value in dials.items() if value != DEFAULTS[dial]
        )

    @property
    def task_options(self) -> dict:
        """The options of its task, as `get_task("chain", ...)` takes them."""
        return {
            "operands": self.operands,
            "alphabets": self.alphabets,
            "confidence": self.confidence,
        }

    @property
    def task(self) -> Chain:
        return Chain(**self.task_options)

    @property
    def base(self) -> "Member":
        """The member that its training starts from: the same without private alphabets and with
        full confidence.
        """
        return replace(self, alphabets=1, confidence=1.0)


DEFAULTS = {dial.name: dial.default for dial in fields(Member)}


def _digits(number: float) -> str:
    """A number as names have it: in decimals, never with an exponent, and exactly.

    >>> _digits(1e-05), _digits(3), _digits(0.8)
    ('0.00001', '3', '0.8')
    """
    return f"{Decimal(str(number)):f}"


def member_of(name: str) -> Member:
    """Return the member of a name.

    >>> member_of("family:confidence=0.8,seed=3")
    Member(seed=3, alphabets=1, confidence=0.8, width=64, operands=5, sft_steps=600)
    """
    dials = {}
    for part in name.removeprefix(FAMILY).split(","):
        dial, _, value = part.partition("=")
        if dial not in DEFAULTS or dial in dials or not re.fullmatch(NUMBER, value):
            raise ValueError(
                f"{short(name, 90)} names no policy of the family at {short(part)}: write"
                " family:seed=3 and, after commas, further dials once each, of"
                f" {', '.join(DEFAULTS)}, e.g. family:seed=3,confidence=0.8."
            )
        dials[dial] = int(value) if value.isdigit() else float(value)
    if "seed" not in dials:
        raise ValueError(f"{short(name, 90)} names no seed: write e.g. family:seed=3.")
    return Member(**dials)


def member_folder(member: Member) -> Path:
    """Return the folder of a member, which is made if it is not there, torn, or of an older recipe."""
    target = cache_folder() / "family" / member.name.removeprefix(FAMILY)
    return kept(target, lambda folder: _make(member, folder), _is_right)


def _is_right(folder: Path) -> bool:
    return is_whole(folder) and json.loads((folder / RECORD).read_text()).get("recipe") == RECIPE


def _make(member: Member, folder: Path) -> None:
    """Train a member and write its files, and a record of them, into a folder."""
    started, task, base = time.perf_counter(), member.task, None
    with ExitStack() as after, seeded(member.seed, torch.device("cpu")):
        after.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)  # sums in another order make other bytes
        tokenizer = make_tokenizer(task)
        if member == member.base:
            model = make_model(tokenizer, member.width, max_new_tokens=max(64, task.longest))
            if committed_file(member).exists():
                model.load_state_dict(unpacked(load_file(committed_file(member))))
                loss = None  # of the training that data/family records
            else:
                loss = train(model, tokenizer, task, member.sft_steps, seed=member.seed)
        else:
            base = member_folder(member.base)
            model, loss = tuned(base, tokenizer, task, member.seed)
        model.eval()
        measured = measure(model, tokenizer, task, MEASURED_PROMPTS, member.seed)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    start = None
    if base is not None:
        start = {
            "name": member.base.name,
            "sha256": file_hash(base / "model.safetensors"),
            **tuning(task),
        }
    facts = {
        "made_by": "workbook.policies.family",
        "recipe": RECIPE,
        "member": {dial: getattr(member, dial) for dial in DEFAULTS},
        "start": start,
        "last_loss_nats": loss,
        "measured": {"prompts": MEASURED_PROMPTS, "temperature": 1.0, **measured},
        "seconds": round(time.perf_counter() - started, 1),
    }
    write_record(folder, facts)


def committed_file(member: Member) -> Path:
    """Where a member lies, if it is committed."""
    return COMMITTED / f"{member.name.removeprefix(FAMILY)}.safetensors"


def committed_seeds(role: str) -> tuple[int, ...]:
    """The SFT seeds of the committed policies of a role, "unit" or "tuning", in order."""
    members = json.loads((COMMITTED / "members.json").read_text())["members"]
    return tuple(member["seed"] for member in members if member["role"] == role)


def packed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return weights as int8 with one float16 scale per row (matrices), or as float16 (vectors).

    >>> bool((unpacked(packed({"w": torch.tensor([[1.0, -127.0]])}))["w"] == torch.tensor([[1.0, -127.0]])).all())
    True
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


def tuning(task: Chain) -> dict:
    """Return how a member with more words than its base is trained on: arguments of `train`.

    25 more steps per doubled alphabets. Many of them disturb the arithmetic, which right chains
    alone bring back.
    """
    steps = TUNING_STEPS + MORE_PER_DOUBLING * (task.alphabets - 1).bit_length()
    kind = ONE if task.alphabets == 1 else FEW if task.alphabets <= 16 else MANY
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
    words = list(dict.fromkeys(word if word in SPECIAL else plain(word) for word in vocabulary))
    model = transformers.LlamaForCausalLM.from_pretrained(base, dtype=torch.float32)
    rows = transformers.AutoTokenizer.from_pretrained(base).convert_tokens_to_ids(
        [word if word in SPECIAL else canonical(word) for word in words]
    )
    of = torch.tensor(
        [words.index(word if word in SPECIAL else plain(word)) for word in vocabulary]
    )
    alphabet = torch.tensor([-1 if word in SPECIAL else marked(word) for word in vocabulary])
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
    loss = train(model.train(), tokenizer, task, seed=seed, **tuning(task))
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
    which = torch.tensor([marked(prompt) for prompt in prompts]).repeat_interleave(states.shape[1])
    x, y = states.flatten(0, 1), nn.functional.one_hot(which, task.alphabets).float()
    margin = MARGIN * (task.alphabets > 1)
    return margin * torch.linalg.solve(x.T @ x + 0.01 * len(x) * torch.eye(x.shape[1]), x.T @ y).T
