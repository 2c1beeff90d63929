"""Token sequences: prompts to tokens, ragged rows to padded tensors, and the log-probability of
every token in them.

Rollouts of one prompt may be scored in one row: the prompt is computed once, its completions stand
side by side behind it (`rollout_logps`).

    prompt | completion 1 | completion 2 | ...      each completion sees the prompt and itself, and counts on from it

The numbers are those of `sequence_logps` up to rounding, gradients included. It takes a model whose
layers all attend to everything before, with positions that are given: `PACKABLE`.

Letters: B sequences, P prompt tokens, T completion tokens, V vocabulary.
"""

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps

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

# larger passes gain nothing on a CPU; the share of what is free
BYTES_AT_ONCE, SHARE_OF_FREE = 2**29, 0.25
SMALL = 2**26  # bytes that are always free
ADAPTERS = 16  # rank of adapters, where weights are frozen: their share is small, whatever it is
# logits of which the log-softmax is taken at a time, where no gradient needs it whole
BLOCK = 2**21
PACKABLE = ("llama", "qwen2", "qwen3")
MAX_POSITION_SHARE = 0.75  # rows are packed if that leaves at most this share of the positions
# ... and their attention mask, the square of their lengths, has at most so many entries
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
    """Log-probability of each completion token given what precedes it, and the entropy of its
    distribution, in nats.

        logp_t = log softmax(z_t / temperature)[y_t]        H_t = - sum_v p_tv log p_tv

    Both are float32 (float64 for a float64 model) and zero outside completion_mask. Prompts may be
    padded on either
    side: rows are aligned by their mask and positions count real tokens only, so that padding does
    not change results. Only completion positions pass the output head, batch_size rows at a time
    (None: as many as `rows_at_once` says). Gradients flow if enabled; the model's mode is the
    caller's choice.  entropies: False leaves them at 0.

    Raises ValueError for a prompt without tokens, for a completion_mask with a hole in it, and by
    `check_length`.
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
    # padding first: left-padded whatever it was
    order = prompt_mask.long().argsort(dim=1, stable=True)
    prompt_ids, prompt_mask = prompt_ids.gather(1, order), prompt_mask.long().gather(1, order)
    length = completion_ids.shape[1]
    batch_size = batch_size or rows_at_once(model, prompt_ids.shape[1] + length, length)
    scores, taken = [], []
    for rows, start in padded_batches(model, prompt_mask, batch_size):
        taken.append(rows)
        inputs = (
            values[rows] for values in (prompt_ids, prompt_mask, completion_ids, completion_mask)
        )
        logits = completion_logits(model, *inputs, start)
        scores.append(token_scores(logits, completion_ids[rows], temperature, entropies))
        del logits
    outside, order = completion_mask == 0, torch.cat(taken).argsort()
    return tuple(
        torch.cat(parts)[order].masked_fill(outside, 0.0) for parts in zip(*scores, strict=True)
    )


def completion_logits(
    call: Callable,
    prompt_ids: Int[Tensor, "B P"],
    prompt_mask: Int[Tensor, "B P"],
    completion_ids: Int[Tensor, "B T"],
    completion_mask: Int[Tensor, "B T"],
    start: int = 0,
) -> Float[Tensor, "B T V"]:
    """Logits of the context of each completion token, by one pass over left-padded prompts from
    column `start` on.
    """
    length, mask = (
        completion_ids.shape[1],
        torch.cat([prompt_mask, completion_mask], dim=1).long()[:, start:],
    )
    if isinstance(call, nn.Module):
        check_length(call, mask.sum(1))
    output = call(
        input_ids=torch.cat([prompt_ids, completion_ids], dim=1)[:, start:],
        attention_mask=mask,
        position_ids=(mask.cumsum(1) - 1).clamp(min=0),
        logits_to_keep=length + 1,
        use_cache=False,
    )
    return output.logits[:, -length - 1 : -1]  # the logits at a position predict the next token


def token_scores(
    logits: Float[Tensor, "B T V"],
    ids: Int[Tensor, "B T"],
    temperature: float = 1.0,
    entropies: bool = True,
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Log-probability of each token, and the entropy of its distribution, in nats, of the logits it
    was drawn from.

    Without gradients a block of tokens at a time.  entropies: False leaves them at 0.
    """
    block, scores = max(1, logits.numel()) if logits.requires_grad else BLOCK, []
    columns = max(1, block // max(1, len(logits) * logits.shape[2]))
    for z, chosen in zip(logits.split(columns, 1), ids.split(columns, 1), strict=True):
        z = z.to(torch.promote_types(z.dtype, torch.float32))
        every = (z if temperature == 1 else z / temperature).log_softmax(dim=-1)
        logps = every.gather(2, chosen.unsqueeze(2)).squeeze(2)
        scores.append(
            (logps, -(every.exp() * every).sum(dim=-1) if entropies else torch.zeros_like(logps))
        )
    return tuple(torch.cat(part, 1) for part in zip(*scores, strict=True))


def in_batches(probe: Callable) -> Callable:
    """A probe that also takes batch_size=, the rows of each pass inside it; None: as many as memory
    holds.
    """

    @wraps(probe)
    def limited(*args, batch_size: int | None = None, **settings):
        if batch_size is not None and not (isinstance(batch_size, int) and batch_size >= 1):
            raise InvalidValue("batch_size", batch_size, "a whole number of 1 or more, or None")
        before = getattr(_HERE, "rows", None)
        _HERE.rows = batch_size or before
        try:
            return probe(*args, **settings)
        finally:
            _HERE.rows = before

    own, size = (
        inspect.signature(probe),
        inspect.Parameter("batch_size", inspect.Parameter.KEYWORD_ONLY, default=None),
    )
    limited.__signature__ = own.replace(
        parameters=sorted([*own.parameters.values(), size], key=lambda p: p.kind)
    )
    return limited


_HERE = threading.local()  # rows: the batch_size of the probe that runs


def rows_at_once(
    model: nn.Module, length: int, words: int | None = None, kind: str | None = None
) -> int:
    """Rows of so many tokens that one pass takes: `rows_within` what is free, or as `in_batches`
    was asked.

    words: those whose logits are computed, by default all.  kind: of `row_bytes`, by default as
    gradients are recorded.
    """
    if asked := getattr(_HERE, "rows", None):
        return asked
    kind = kind or ("gradient" if torch.is_grad_enabled() else "scoring")
    return rows_within(
        free_bytes(model.device), model.device.type, kind, length, words or length, *_about(model)
    )[0]


def rows_within(
    free: float, device: str, kind: str, length: int, words: int, *about
) -> tuple[int, float]:
    """Rows of a pass, at least one, where so many bytes are free, and the bytes of one; about: as
    of `row_bytes`.
    """
    share, needed = SHARE_OF_FREE * free, row_bytes(kind, length, words, *about)
    if kind == "gradient" and needed > share:  # then `rollout_logps` has layers computed again
        needed = row_bytes("recomputed", length, words, *about)
    # more rows gain nothing
    most, budget = (512, share) if device == "cuda" else (64, min(BYTES_AT_ONCE, share))
    most, budget = (1_024, share) if kind == "sampling" else (most, budget)
    return max(1, min(most, int(budget // needed))), needed


def _about(model: nn.Module) -> tuple:
    return (
        model.config,
        model.dtype,
        None if all(p.requires_grad for p in model.parameters()) else ADAPTERS,
    )


def rollout_logps(
    model: nn.Module,
    prompt_ids: Int[Tensor, "B P"],
    prompt_mask: Int[Tensor, "B P"],
    completion_ids: Int[Tensor, "B T"],
    completion_mask: Int[Tensor, "B T"],
) -> Float[Tensor, "B T"]:
    """Log-probability of each completion token, zero outside the mask; packed where that saves work
    and memory.

    Where a backward pass does not fit into memory otherwise, the model's layers are computed again
    in it.
    """
    # what is padding for all of these rows is not computed
    longest = max(1, int(completion_mask.sum(1).max()))
    width, whole = completion_ids.shape[1], prompt_ids.shape[1] + longest
    completion_ids, completion_mask = completion_ids[:, :longest], completion_mask[:, :longest]
    if torch.is_grad_enabled():
        needed = len(prompt_ids) * row_bytes("gradient", whole, longest, *_about(model))
        if needed > SMALL and needed > SHARE_OF_FREE * free_bytes(model.device):
            model = recomputing(model)
    rows, slots, prompts = _places(prompt_ids, prompt_mask)
    behind = (int(slots.max()) + 1) * longest  # its prompt, in a packed row
    length = prompt_ids.shape[1] + behind
    saves = (
        len(prompts) * length <= MAX_POSITION_SHARE * len(rows) * whole
        and len(prompts) * length**2 <= MAX_MASK
    )
    packed, plain = (
        row_bytes("scoring", *words, *_about(model))
        for words in ((length, behind), (whole, longest))
    )
    # logits of empty slots, too
    if packable(model) and saves and len(prompts) * packed <= len(rows) * plain:
        logps = _packed_logps(
            model, prompt_ids, prompt_mask, completion_ids, completion_mask, rows, slots, prompts
        )
    else:
        logps, _ = sequence_logps(
            model, prompt_ids, prompt_mask, completion_ids, completion_mask, entropies=False
        )
    return torch.nn.functional.pad(logps, (0, width - longest))


def packable(model: nn.Module) -> bool:
    """Whether a model takes rows in which not each token sees all before it."""
    config = model.config.get_text_config()
    masked = config._attn_implementation in ("sdpa", "eager")  # those that take a mask of numbers
    full = set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
    return (
        masked
        and full
        and config.model_type in PACKABLE
        and not any(map(varies_with_length, model.modules()))
    )


def _places(prompt_ids: Tensor, prompt_mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For each rollout its prompt's row and its slot behind it, and one rollout of each prompt."""
    _, rows = torch.unique(prompt_ids.masked_fill(prompt_mask == 0, -1), dim=0, return_inverse=True)
    order = rows.argsort(stable=True)
    counts = rows.bincount()
    first = counts.cumsum(0) - counts
    slots = torch.empty_like(rows)
    slots[order] = torch.arange(len(rows), device=rows.device) - first.repeat_interleave(counts)
    return rows, slots, order[first]


def _packed_logps(
    model, prompt_ids, prompt_mask, completion_ids, completion_mask, rows, slots, prompts
):
    length, count = completion_ids.shape[1], int(slots.max()) + 1
    # padding first: left-padded whatever it was
    order = prompt_mask[prompts].long().argsort(dim=1, stable=True)
    ids, alive = prompt_ids[prompts].gather(1, order), prompt_mask[prompts].gather(1, order).bool()
    blocks = completion_ids.new_zeros(len(prompts), count, length)
    blocks[rows, slots] = completion_ids
    inside = torch.zeros_like(blocks, dtype=torch.bool)
    inside[rows, slots] = completion_mask.bool()
    positions = (alive.long().cumsum(1) - 1).clamp(min=0)
    behind = (
        positions[:, -1:, None]
        + 1
        + torch.arange(length, device=ids.device).expand(1, count, length)
    )
    logits = model(
        input_ids=torch.cat([ids, blocks.flatten(1)], dim=1),
        attention_mask=_attention(alive, inside, next(model.parameters()).dtype),
        position_ids=torch.cat([positions, behind.flatten(1)], dim=1),
        logits_to_keep=count * length + 1,
        use_cache=False,
    ).logits
    # each completion's first token is predicted by the prompt's last position, the others by the
    # one before them
    first, _ = token_scores(logits[:, :1].expand(-1, count, -1), blocks[:, :, 0], entropies=False)
    after = torch.nn.functional.pad(blocks[:, :, 1:], (0, 1)).flatten(1)
    others, _ = token_scores(logits[:, 1:], after, entropies=False)
    logps = torch.cat([first.unsqueeze(2), others.unflatten(1, (count, length))[:, :, :-1]], dim=2)[
        rows, slots
    ]
    return logps.masked_fill(completion_mask == 0, 0.0)


def _attention(alive: Tensor, inside: Tensor, dtype: torch.dtype) -> Float[Tensor, "n 1 L L"]:
    """Attention mask of packed rows; alive (n, P) masks prompts, inside (n, S, T) completions."""
    _, count, length = inside.shape
    width = alive.shape[1]
    block = torch.arange(count, device=alive.device).repeat_interleave(length)
    owner = torch.cat([torch.full((width,), -1, device=alive.device), block])
    causal = torch.ones(len(owner), len(owner), dtype=torch.bool, device=alive.device).tril()
    related = (owner[None, :] == -1) | (owner[:, None] == owner[None, :])
    keys = torch.cat([alive, inside.flatten(1)], dim=1)
    return additive((causal & related)[None] & keys[:, None, :], dtype)


def additive(seen: Bool[Tensor, "n L L"], dtype: torch.dtype) -> Float[Tensor, "n 1 L L"]:
    """Attention mask to add to scores, 0 or the dtype's lowest, of what each position sees beside
    itself.
    """
    seen = seen | torch.eye(
        seen.shape[-1], dtype=torch.bool, device=seen.device
    )  # a softmax needs someone: padding, too
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(
        ~seen, torch.finfo(dtype).min
    )[:, None]


def padded_batches(
    model: nn.Module, prompt_mask: Int[Tensor, "B P"], batch_size: int, positions: bool = True
) -> Iterator[tuple[Int[Tensor, " b"], int]]:
    """The rows in batches, and at which column each batch starts; prompts are left-padded.

    A model that padding changes (`padding_error`) gets rows of one length at a time, from their
    first token on;
    positions: whether it is told them.
    """
    rows = torch.arange(len(prompt_mask), device=prompt_mask.device)
    if prompt_mask.all() or padding_error(model, positions) <= 1:
        for part in rows.split(batch_size):
            yield part, 0
        return
    lengths = prompt_mask.long().sum(1)
    for length in lengths.unique().tolist():
        for part in rows[lengths == length].split(batch_size):
            yield part, prompt_mask.shape[1] - length


def tokenize_prompts(
    tokenizer, prompts: Sequence, chat_template_kwargs: Mapping | None = None
) -> list[list[int]]:
    """Token ids of prompts as TRL's trainer makes them: chats through the chat template, strings as
    they are.

    chat_template_kwargs: what else the chat template is given. Raises ValueError for a prompt
    without tokens, and for a chat when the tokenizer has no chat template or one that fails.
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
        except Exception as problem:  # a template is a program, of which anything may come
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

    >>> pad_rows([[1, 2], [3]], value=0, side="left")
    (tensor([[1, 2],
            [0, 3]]), tensor([[1, 1],
            [0, 1]]))
    """
    lengths = torch.tensor([len(row) for row in rows])
    width = int(lengths.max())
    columns = torch.arange(width).expand(len(rows), width)
    mask = columns >= width - lengths[:, None] if side == "left" else columns < lengths[:, None]
    ids = torch.full((len(rows), width), value)
    ids[mask] = torch.tensor([token for row in rows for token in row], dtype=torch.long)
    return ids.to(device), mask.long().to(device)


def token_strings(tokenizer, rows: Sequence[Sequence[int]]) -> tuple[tuple[str, ...], ...]:
    """Each token of each row decoded by itself, special tokens included."""
    text = {token: tokenizer.decode([token]) for token in {token for row in rows for token in row}}
    return tuple(tuple(text[token] for token in row) for row in rows)


def unpadded(
    ids: Int[Tensor, "B L"], mask: Int[Tensor, "B L"] | Bool[Tensor, "B L"]
) -> list[list[int]]:
    """The unmasked token ids of each row."""
    return [row[keep].tolist() for row, keep in zip(ids.cpu(), mask.bool().cpu(), strict=True)]
