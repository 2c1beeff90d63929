"""Score completions: the log-probability of every token in them, by teacher forcing.

A causal language model that reads a prompt and its completion in one pass predicts each next token
on the way. So the logits at a position score the token that stands behind it, and a completion that
somebody else wrote costs one pass:

    reads      prompt  y1  y2           logits at prompt's last token, y1, y2
    scores             y1  y2  y3       log softmax of them, at y1, y2, y3

Rows of unequal length are padded to one rectangle. Padding is masked and positions count real
tokens only, so that a row's numbers are those of the row alone (`sequence_logps`).

Rollouts of one prompt repeat that prompt. `rollout_logps` computes it once: the completions stand
side by side behind it, each sees the prompt and itself, and counts on from the prompt's last
position.

    prompt | completion 1 | completion 2 | ...

The numbers are those of `sequence_logps` up to rounding, gradients included. It takes a model whose
layers all attend to everything before, with positions that are given: `PACKABLE`.

Letters: B sequences, P prompt tokens, T completion tokens, V vocabulary; of packed rows n prompts,
S slots behind each, L = P + S T positions.
"""

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from workbook.messages import InvalidValue
from workbook.policies.models import (
    check_length,
    free_bytes,
    padding_error,
    recomputing,
    row_bytes,
    varies_with_length,
)

# What a pass may hold. It takes this share of the memory that is free, and on a CPU no more than
# BYTES_AT_ONCE, since larger passes gain nothing there.
SHARE_OF_FREE = 0.25
BYTES_AT_ONCE = 2**29
ALWAYS_FREE_BYTES = 2**26
MAX_ROWS_SAMPLED = 1_024
MAX_ROWS_CUDA = 512
MAX_ROWS_CPU = 64

# The rank that adapters are taken to have where weights are frozen: their share is small anyway.
ADAPTER_RANK = 16

# Logits whose log-softmax is taken at a time, where no gradient needs it whole.
LOGITS_AT_ONCE = 2**21

# Kinds of models that take packed rows. Rows are packed where that leaves at most this share of the
# positions, and an attention mask of at most so many entries, the square of the rows' length each.
PACKABLE = ("llama", "qwen2", "qwen3")
MAX_POSITION_SHARE = 0.75
MAX_MASK = 2**27


def sequence_logps(
    model: nn.Module,
    prompt_ids: Int[Tensor, "B P"],
    prompt_mask: Int[Tensor, "B P"] | Bool[Tensor, "B P"],
    completion_ids: Int[Tensor, "B T"],
    completion_mask: Int[Tensor, "B T"] | Bool[Tensor, "B T"],
    temperature: float = 1.0,
    batch_size: int | None = None,
    entropies: bool = True,
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Log-probability of each completion token, and entropy of its distribution, in nats.

        logp_t = log softmax(z_t / temperature)[y_t]        H_t = - sum_v p_tv log p_tv

    Both are (B, T), float32 (float64 for a float64 model), and zero outside completion_mask.
    Prompts may be padded on either side: rows are aligned by their mask and positions count real
    tokens only, so that padding does not change results. Only completion positions pass the output
    head. Gradients flow if enabled; the model's mode is the caller's choice.

    batch_size: rows of a pass; None takes as many as `rows_at_once` says.
    entropies: False leaves them at 0.

    Raises ValueError for a prompt without tokens, for a completion_mask with a hole in it, and for
    sequences that are too long (`check_length`).
    """
    if not prompt_mask.bool().any(dim=1).all():
        raise InvalidValue(
            "prompt_mask",
            prompt_mask,
            "1 somewhere in each row",
            "prompt_mask has a row without tokens: each prompt needs at least one.",
        )
    completion_mask = completion_mask.long()
    if (completion_mask.diff(dim=1) > 0).any():
        raise InvalidValue(
            "completion_mask",
            completion_mask,
            "ones, then zeros, in each row (right padding)",
            "completion_mask has a hole: it must be ones, then zeros, in each row (right padding).",
        )
    prompt_ids, prompt_mask = _left_padded(prompt_ids, prompt_mask)
    length = completion_ids.shape[1]
    batch_size = batch_size or rows_at_once(model, prompt_ids.shape[1] + length, length)

    batches = []
    batch_logps = []
    batch_entropies = []
    for rows, start in padded_batches(model, prompt_mask, batch_size):
        logits = completion_logits(
            model,
            prompt_ids[rows],
            prompt_mask[rows],
            completion_ids[rows],
            completion_mask[rows],
            start,
        )
        logps, entropy = token_scores(logits, completion_ids[rows], temperature, entropies)
        batches.append(rows)
        batch_logps.append(logps)
        batch_entropies.append(entropy)
        # the largest tensor of all, which the next pass must not find beside its own
        del logits

    # batches hold rows of one length where padding changes the model: back to the given order
    order = torch.cat(batches).argsort()
    outside = completion_mask == 0
    logps = torch.cat(batch_logps)[order].masked_fill(outside, 0.0)
    entropy = torch.cat(batch_entropies)[order].masked_fill(outside, 0.0)
    return logps, entropy


def _left_padded(
    ids: Int[Tensor, "B P"], mask: Int[Tensor, "B P"] | Bool[Tensor, "B P"]
) -> tuple[Int[Tensor, "B P"], Int[Tensor, "B P"]]:
    """Ids and mask of rows with their padding on the left, wherever it was."""
    # a stable sort by the mask moves padding to the front and keeps the tokens' order
    order = mask.long().argsort(dim=1, stable=True)
    return ids.gather(1, order), mask.long().gather(1, order)


def completion_logits(
    call: Callable,
    prompt_ids: Int[Tensor, "B P"],
    prompt_mask: Int[Tensor, "B P"],
    completion_ids: Int[Tensor, "B T"],
    completion_mask: Int[Tensor, "B T"],
    start: int = 0,
) -> Float[Tensor, "B T V"]:
    """Logits that each completion token is drawn from, by one pass over left-padded prompts.

    call: a model, or a function with a model's arguments.
    start: the column where the pass begins; what stands before it is padding in every row.
    """
    length = completion_ids.shape[1]
    ids = torch.cat([prompt_ids, completion_ids], dim=1)[:, start:]  # (B, P + T - start)
    mask = torch.cat([prompt_mask, completion_mask], dim=1).long()[:, start:]
    if isinstance(call, nn.Module):
        check_length(call, mask.sum(1))

    # positions count real tokens only
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    output = call(
        input_ids=ids,
        attention_mask=mask,
        position_ids=positions,
        logits_to_keep=length + 1,
        use_cache=False,
    )

    # the logits at a position predict the next token: from the prompt's last to the last but one
    return output.logits[:, -length - 1 : -1]  # (B, T, V)


def token_scores(
    logits: Float[Tensor, "B T V"],
    ids: Int[Tensor, "B T"],
    temperature: float = 1.0,
    entropies: bool = True,
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Log-probability of each token, and entropy of its distribution, from the token's own logits.

    Both are (B, T), in nats. Without gradients some columns are taken at a time, since a softmax of
    all needs several times the logits' memory.

    entropies: False leaves them at 0.
    """
    rows, length, vocabulary = logits.shape
    if logits.requires_grad:
        columns = max(1, length)
    else:
        columns = max(1, LOGITS_AT_ONCE // max(1, rows * vocabulary))

    parts_logps = []
    parts_entropies = []
    for z, tokens in zip(logits.split(columns, 1), ids.split(columns, 1), strict=True):
        # half precision rounds a log-softmax to two or three digits
        z = z.to(torch.promote_types(z.dtype, torch.float32))
        if temperature != 1:
            z = z / temperature
        log_probs = z.log_softmax(dim=-1)  # (B, columns, V)
        logps = log_probs.gather(2, tokens.unsqueeze(2)).squeeze(2)
        if entropies:
            entropy = -(log_probs.exp() * log_probs).sum(dim=-1)
        else:
            entropy = torch.zeros_like(logps)
        parts_logps.append(logps)
        parts_entropies.append(entropy)
    return torch.cat(parts_logps, 1), torch.cat(parts_entropies, 1)


# -- how many rows a pass takes


# rows: the batch_size that the probe running in this thread was called with
_batch_size_override = threading.local()


def in_batches(probe: Callable) -> Callable:
    """A probe that also takes `batch_size`, the rows of each pass inside it.

    None, the default, takes as many as memory holds.
    """

    @wraps(probe)
    def limited(*args, batch_size: int | None = None, **settings):
        if batch_size is not None and not (isinstance(batch_size, int) and batch_size >= 1):
            raise InvalidValue("batch_size", batch_size, "a whole number of 1 or more, or None")
        # a probe that calls another hands its own batch_size on to it
        before = getattr(_batch_size_override, "rows", None)
        _batch_size_override.rows = batch_size or before
        try:
            return probe(*args, **settings)
        finally:
            _batch_size_override.rows = before

    # help() and notebooks show the added parameter, behind the probe's own of its kind
    signature = inspect.signature(probe)
    added = inspect.Parameter("batch_size", inspect.Parameter.KEYWORD_ONLY, default=None)
    parameters = sorted([*signature.parameters.values(), added], key=lambda p: p.kind)
    limited.__signature__ = signature.replace(parameters=parameters)
    return limited


def rows_at_once(
    model: nn.Module, length: int, logit_tokens: int | None = None, kind: str | None = None
) -> int:
    """Rows of `length` tokens in one pass: as `in_batches` was asked, else as many as memory holds.

    logit_tokens: of these tokens those whose logits are computed, by default all.
    kind: of `row_bytes`; by default "gradient" where gradients are recorded, else "scoring".
    """
    asked = getattr(_batch_size_override, "rows", None)
    if asked:
        return asked
    if kind is None:
        kind = "gradient" if torch.is_grad_enabled() else "scoring"
    free = free_bytes(model.device)
    rows, _ = rows_within(
        free, model.device.type, kind, length, logit_tokens or length, *_model_sizes(model)
    )
    return rows


def rows_within(
    free: float, device: str, kind: str, length: int, logit_tokens: int, *model_sizes
) -> tuple[int, float]:
    """How many rows fit into `free` bytes, and bytes per row.

    At least one row; a pass takes `SHARE_OF_FREE` of what is free.

    device: its type, e.g. "cuda".
    kind, length, logit_tokens, model_sizes: as `row_bytes` takes them.
    """
    budget = SHARE_OF_FREE * free
    per_row = row_bytes(kind, length, logit_tokens, *model_sizes)
    if kind == "gradient" and per_row > budget:
        # `rollout_logps` has the layers computed again in the backward pass then
        per_row = row_bytes("recomputed", length, logit_tokens, *model_sizes)

    # more rows than these gain nothing
    if kind == "sampling":
        most = MAX_ROWS_SAMPLED
    elif device == "cuda":
        most = MAX_ROWS_CUDA
    else:
        most = MAX_ROWS_CPU
        budget = min(BYTES_AT_ONCE, budget)
    return max(1, min(most, int(budget // per_row))), per_row


def _model_sizes(model: nn.Module) -> tuple:
    """What `row_bytes` asks of a model: config, dtype, and rank of its adapters (None: no LoRA)."""
    all_trained = all(p.requires_grad for p in model.parameters())
    return model.config, model.dtype, None if all_trained else ADAPTER_RANK


def padded_batches(
    model: nn.Module, prompt_mask: Int[Tensor, "B P"], batch_size: int, positions: bool = True
) -> Iterator[tuple[Int[Tensor, " b"], int]]:
    """The rows in batches, and the column where each batch starts; prompts are left-padded.

    A model that padding changes (`padding_error`) gets rows of one length at a time, from their
    first token on.

    positions: whether the model is told the positions of tokens.
    """
    rows = torch.arange(len(prompt_mask), device=prompt_mask.device)
    if prompt_mask.all() or padding_error(model, positions) <= 1:
        for batch in rows.split(batch_size):
            yield batch, 0
        return
    lengths = prompt_mask.long().sum(1)
    for length in lengths.unique().tolist():
        for batch in rows[lengths == length].split(batch_size):
            yield batch, prompt_mask.shape[1] - length


# -- rollouts that share a prompt


class _Layout(NamedTuple):
    """Where rollouts stand in packed rows: `row` and `slot` of each, `first` of each prompt."""

    row: Int[Tensor, " B"]  # the packed row, one for each distinct prompt
    slot: Int[Tensor, " B"]  # the place behind the prompt, from 0
    first: Int[Tensor, " n"]  # one rollout of each prompt, to take the prompt from

    @property
    def slots(self) -> int:
        """Slots behind each prompt: those of the prompt with most rollouts."""
        return int(self.slot.max()) + 1


def rollout_logps(
    model: nn.Module,
    prompt_ids: Int[Tensor, "B P"],
    prompt_mask: Int[Tensor, "B P"],
    completion_ids: Int[Tensor, "B T"],
    completion_mask: Int[Tensor, "B T"],
) -> Float[Tensor, "B T"]:
    """Log-probability of each completion token, zero outside the mask, in nats.

    Rows that share a prompt are packed where that saves work and memory. Where a backward pass does
    not fit into memory otherwise, the model's layers are computed again in it.
    """
    # columns that are padding in every row are not computed
    width = completion_ids.shape[1]
    longest = max(1, int(completion_mask.sum(1).max()))
    completion_ids = completion_ids[:, :longest]
    completion_mask = completion_mask[:, :longest]

    if torch.is_grad_enabled():
        row_length = prompt_ids.shape[1] + longest
        per_row = row_bytes("gradient", row_length, longest, *_model_sizes(model))
        needed = len(prompt_ids) * per_row
        if needed > ALWAYS_FREE_BYTES and needed > SHARE_OF_FREE * free_bytes(model.device):
            model = recomputing(model)

    columns = (prompt_ids, prompt_mask, completion_ids, completion_mask)
    layout = _layout(prompt_ids, prompt_mask)
    if packable(model) and _packing_saves(model, layout, prompt_ids.shape[1], longest):
        logps = _packed_logps(model, *columns, layout)
    else:
        logps, _ = sequence_logps(model, *columns, entropies=False)
    return torch.nn.functional.pad(logps, (0, width - longest))


def packable(model: nn.Module) -> bool:
    """Whether a model takes rows in which not each token sees all before it."""
    config = model.config.get_text_config()
    takes_mask_of_numbers = config._attn_implementation in ("sdpa", "eager")
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    return (
        config.model_type in PACKABLE
        and takes_mask_of_numbers
        and layer_types == {"full_attention"}
        and not any(map(varies_with_length, model.modules()))
    )


def _layout(prompt_ids: Int[Tensor, "B P"], prompt_mask: Int[Tensor, "B P"]) -> _Layout:
    """Put rollouts of the same prompt into one row, one slot each."""
    # prompts are the same if their tokens are, whatever id stands under the padding
    tokens = prompt_ids.masked_fill(prompt_mask == 0, -1)
    _, row = torch.unique(tokens, dim=0, return_inverse=True)

    # rollouts sorted by row, and where each row begins among them
    order = row.argsort(stable=True)
    counts = row.bincount()
    begins = counts.cumsum(0) - counts
    ranks = torch.arange(len(row), device=row.device)
    slot = torch.empty_like(row)
    slot[order] = ranks - begins.repeat_interleave(counts)
    return _Layout(row, slot, first=order[begins])


def _packing_saves(model: nn.Module, layout: _Layout, width: int, length: int) -> bool:
    """Whether packed rows take less work and no more memory than a row for each rollout.

    width: of the prompts.  length: of the completions.
    """
    rollouts, prompts = len(layout.row), len(layout.first)
    behind = layout.slots * length
    packed_length = width + behind
    plain_length = width + length
    fewer = prompts * packed_length <= MAX_POSITION_SHARE * rollouts * plain_length
    mask_fits = prompts * packed_length**2 <= MAX_MASK

    # empty slots hold logits, too: a prompt with many rollouts beside one with few wastes them
    sizes = _model_sizes(model)
    packed_bytes = prompts * row_bytes("scoring", packed_length, behind, *sizes)
    plain_bytes = rollouts * row_bytes("scoring", plain_length, length, *sizes)
    return fewer and mask_fits and packed_bytes <= plain_bytes


def _packed_logps(
    model: nn.Module,
    prompt_ids: Int[Tensor, "B P"],
    prompt_mask: Int[Tensor, "B P"],
    completion_ids: Int[Tensor, "B T"],
    completion_mask: Int[Tensor, "B T"],
    layout: _Layout,
) -> Float[Tensor, "B T"]:
    """Log-probability of each completion token, by one pass over a row for each prompt."""
    slots, length = layout.slots, completion_ids.shape[1]
    ids, alive = _left_padded(prompt_ids[layout.first], prompt_mask[layout.first])  # (n, P)

    # completions in their slots; empty slots are masked
    blocks = completion_ids.new_zeros(len(ids), slots, length)  # (n, S, T)
    blocks[layout.row, layout.slot] = completion_ids
    inside = torch.zeros_like(blocks, dtype=torch.bool)
    inside[layout.row, layout.slot] = completion_mask.bool()

    # every completion counts on from the prompt's last position
    positions = (alive.cumsum(1) - 1).clamp(min=0)  # (n, P)
    steps = torch.arange(length, device=ids.device).expand(1, slots, length)
    behind = positions[:, -1:, None] + 1 + steps  # (n, S, T)

    logits = model(
        input_ids=torch.cat([ids, blocks.flatten(1)], dim=1),  # (n, L)
        attention_mask=_packed_mask(alive.bool(), inside, next(model.parameters()).dtype),
        position_ids=torch.cat([positions, behind.flatten(1)], dim=1),
        logits_to_keep=slots * length + 1,
        use_cache=False,
    ).logits  # (n, 1 + S T, V), from the prompt's last position on

    # the prompt's last position predicts the first token of every completion
    first_logits = logits[:, :1].expand(-1, slots, -1)
    first, _ = token_scores(first_logits, blocks[:, :, 0], entropies=False)  # (n, S)

    # a completion's position predicts the token behind it; its last one predicts nothing
    followers = torch.nn.functional.pad(blocks[:, :, 1:], (0, 1)).flatten(1)
    others, _ = token_scores(logits[:, 1:], followers, entropies=False)
    others = others.unflatten(1, (slots, length))[:, :, :-1]  # (n, S, T - 1)

    logps = torch.cat([first.unsqueeze(2), others], dim=2)[layout.row, layout.slot]  # (B, T)
    return logps.masked_fill(completion_mask == 0, 0.0)


def _packed_mask(
    alive: Bool[Tensor, "n P"], inside: Bool[Tensor, "n S T"], dtype: torch.dtype
) -> Float[Tensor, "n 1 L L"]:
    """Additive attention mask of packed rows; `alive` masks prompts, `inside` completions."""
    _, slots, length = inside.shape
    device = alive.device

    # the slot that owns each position, -1 for the prompt's
    in_prompt = torch.full((alive.shape[1],), -1, device=device)
    in_slots = torch.arange(slots, device=device).repeat_interleave(length)
    owner = torch.cat([in_prompt, in_slots])  # (L,)

    # a position sees what stands before it in the prompt and in its own slot, padding excepted
    causal = torch.ones(len(owner), len(owner), dtype=torch.bool, device=device).tril()
    related = (owner[None, :] == -1) | (owner[:, None] == owner[None, :])
    keys = torch.cat([alive, inside.flatten(1)], dim=1)  # (n, L)
    return additive((causal & related)[None] & keys[:, None, :], dtype)


def additive(seen: Bool[Tensor, "n L L"], dtype: torch.dtype) -> Float[Tensor, "n 1 L L"]:
    """Additive attention mask: 0 where a position sees another, the dtype's lowest elsewhere.

    A position always sees itself.
    """
    # a softmax over nothing is NaN, and padding sees nothing else
    itself = torch.eye(seen.shape[-1], dtype=torch.bool, device=seen.device)
    unseen = ~(seen | itself)
    mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return mask.masked_fill(unseen, torch.finfo(dtype).min)[:, None]


# -- texts to tokens and back


def tokenize_prompts(
    tokenizer, prompts: Sequence, chat_template_kwargs: Mapping | None = None
) -> list[list[int]]:
    """Token ids of prompts, as TRL's trainer makes them.

    Strings are tokenized as they are, chats (lists of messages) through the chat template.

    chat_template_kwargs: what else the chat template is given.

    Raises ValueError for a prompt without tokens, and for a chat when the tokenizer has no chat
    template or one that fails.
    """
    if isinstance(prompts[0], str):
        rows = tokenizer(text=list(prompts))["input_ids"]
    elif tokenizer.chat_template is None:
        raise InvalidValue(
            "prompts", prompts[0], "plain strings, since this tokenizer has no chat template"
        )
    else:
        options = {
            "add_generation_prompt": True,
            "tokenize": True,
            "return_dict": True,
            **(chat_template_kwargs or {}),
        }
        try:
            rows = tokenizer.apply_chat_template(list(prompts), **options)["input_ids"]
        except Exception as problem:
            # a template is a program, which may raise anything
            text = " ".join(str(problem).split())[:200]
            raise ValueError(
                f"The chat template can't render these prompts: {type(problem).__name__}: {text}"
            ) from None
    for prompt, row in zip(prompts, rows, strict=True):
        if not row:
            raise InvalidValue("prompt", prompt, "a text of at least one token")
    return rows


def pad_rows(
    rows: Sequence[Sequence[int]], value: int, side: str, device=None
) -> tuple[Int[Tensor, "B L"], Int[Tensor, "B L"]]:
    """Ragged rows of token ids as one padded tensor with its mask.

    side: where the padding goes, "left" or "right".

    >>> pad_rows([[1, 2], [3]], value=0, side="left")
    (tensor([[1, 2],
            [0, 3]]), tensor([[1, 1],
            [0, 1]]))
    """
    lengths = torch.tensor([len(row) for row in rows])
    width = int(lengths.max())
    columns = torch.arange(width).expand(len(rows), width)
    mask = columns >= width - lengths[:, None] if side == "left" else columns < lengths[:, None]

    # a mask picks entries row by row, the order in which the tokens come
    ids = torch.full((len(rows), width), value)
    ids[mask] = torch.tensor([token for row in rows for token in row], dtype=torch.long)
    return ids.to(device), mask.long().to(device)


def token_strings(tokenizer, rows: Sequence[Sequence[int]]) -> tuple[tuple[str, ...], ...]:
    """Each token of each row decoded by itself, special tokens included."""
    distinct = {token for row in rows for token in row}
    text = {token: tokenizer.decode([token]) for token in distinct}
    return tuple(tuple(text[token] for token in row) for row in rows)


def unpadded(
    ids: Int[Tensor, "B L"], mask: Int[Tensor, "B L"] | Bool[Tensor, "B L"]
) -> list[list[int]]:
    """The unmasked token ids of each row."""
    ids, mask = ids.cpu(), mask.bool().cpu()
    return [row[is_token].tolist() for row, is_token in zip(ids, mask, strict=True)]
