"""Rollouts: sampled completions with rewards, advantages and log-probabilities, and their token
table.

`sample_rollouts` draws groups of completions from a policy as TRL's GRPOTrainer would (same prompt
tokens, same reward call, same mask), `sequence_logps` scores completions by teacher forcing, and
`Rollouts.token_table` lays everything out as one row per completion token. Probes add columns to
that table and charts read columns from it.

Letters: B rollouts, G rollouts per prompt, P prompt tokens (left-padded), T completion tokens
(right-padded).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from workbook.messages import InvalidValue
from workbook.policies.models import check_length, evaluating, free_bytes, padding_error, seeded
from workbook.rollouts.scoring import (
    BYTES_AT_ONCE,
    SHARE_OF_FREE,
    packable,
    pad_rows,
    padded_batches,
    sequence_logps,
    token_scores,
    token_strings,
    tokenize_prompts,
    unpadded,
)
from workbook.rollouts.small import is_plain, is_small, sample_small
from workbook.theory.advantages import group_advantages

# Fields of a GenerationConfig that would give anything but one row of tokens for each row, and
# their only value
ONE_ROW = {
    "num_return_sequences": 1,
    "num_beams": 1,
    "return_dict_in_generate": False,
    "is_assistant": False,
}


def end_tokens(policy) -> list[int]:
    """Every token id that ends a completion: the tokenizer's and those of the model's generation
    config, as in TRL.
    """
    declared = policy.model.generation_config.eos_token_id
    declared = (
        [] if declared is None else declared if isinstance(declared, (list, tuple)) else [declared]
    )
    if not all(isinstance(token, int) for token in declared):
        raise InvalidValue("eos_token_id", declared, "token ids, in the model's generation config")
    return list(dict.fromkeys([policy.tokenizer.eos_token_id, *declared]))


def sampling_config(policy, sampling: dict, generation_kwargs: Mapping):
    """The GenerationConfig that TRL's trainer makes of these settings; ValueError for one that is
    out of range.
    """
    from transformers import GenerationConfig

    valid = {
        "temperature": ("a finite number above 0", lambda value: 0 < value < float("inf")),
        "top_p": ("above 0 and at most 1", lambda value: 0 < value <= 1),
        "top_k": (
            "a whole number of 0 (no limit) or more",
            lambda value: value >= 0 and value % 1 == 0,
        ),
        "min_p": ("None or between 0 and 1", lambda value: value is None or 0 <= value <= 1),
        "repetition_penalty": ("a finite number above 0", lambda value: 0 < value < float("inf")),
    }
    for name, (words, holds) in valid.items():
        value = sampling[name]
        given = isinstance(value, int | float) and not isinstance(value, bool)
        if not (given or (name == "min_p" and value is None)) or not holds(value):
            raise InvalidValue(name, value, words)
    known = GenerationConfig().to_dict()
    if not isinstance(generation_kwargs, Mapping):
        raise InvalidValue(
            "generation_kwargs", generation_kwargs, "a mapping of GenerationConfig's fields"
        )
    for name, value in generation_kwargs.items():
        if name not in known:
            raise InvalidValue(
                f"generation_kwargs[{name!r}]",
                value,
                "left out: it is no field of transformers' GenerationConfig",
            )
        if name in ONE_ROW and value not in (None, ONE_ROW[name]):
            raise InvalidValue(
                f"generation_kwargs[{name!r}]",
                value,
                f"{ONE_ROW[name]}, since groups are sampled as one row of tokens for each rollout",
            )
    ends = {"pad_token_id": policy.tokenizer.pad_token_id, "eos_token_id": end_tokens(policy)}
    settings = (
        {"do_sample": True} | ends | sampling | dict(generation_kwargs) | {"disable_compile": True}
    )
    try:
        return GenerationConfig(**settings)
    except TypeError as problem:
        raise InvalidValue(
            "generation_kwargs",
            generation_kwargs,
            "fields of a GenerationConfig",
            f"generation_kwargs={generation_kwargs!r} makes no GenerationConfig: {problem}.",
        ) from None


def generate(
    policy,
    prompt_ids: Int[Tensor, "B P"],
    prompt_mask: Int[Tensor, "B P"],
    seed: int,
    config,
    batch_size: int,
) -> tuple[list[list[int]], tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]] | None]:
    """Sampled completions as ragged rows, each up to and including its first end token, and their
    scores.

    Scores are log-probabilities and entropies as `sequence_logps` gives them, any numbers outside
    the completions; None where sampling does not know them.
    """
    model, ends = policy.model, end_tokens(policy)
    check_length(model, prompt_mask.sum(1) + config.max_new_tokens)
    # nor is RWKV's state, carried from token to token, that of a whole pass
    if padding_error(model) > 1:
        config.use_cache = False
    # An object of its own around the same layers, which may hold our config: generate() fills in
    # from the model's own (a top_k, say) otherwise. Adapters are in the base model's layers.
    base = copy.copy(model.get_base_model() if hasattr(model, "get_base_model") else model)
    # to others generate() names none
    positions = "position_ids" in inspect.signature(base.forward).parameters
    rows, scores = [[]] * len(prompt_ids), []
    known = is_plain(config) and padding_error(model) <= 1
    small = known and is_small(model)
    known = small or (
        known and _keeps_logits(model, min(batch_size, len(rows)) * config.max_new_tokens)
    )
    base.generation_config = asked = copy.copy(config)
    asked.return_dict_in_generate, asked.output_logits = True, known
    with seeded(seed, model.device):
        for part, start in padded_batches(model, prompt_mask, batch_size, positions):
            ids, mask = prompt_ids[part, start:], prompt_mask[part, start:]
            if small:
                out, logits = sample_small(model, ids, mask, config)
            else:
                made = base.generate(input_ids=ids, attention_mask=mask, generation_config=asked)
                out, logits = (
                    made.sequences[:, ids.shape[1] :],
                    torch.stack(made.logits, 1) if known else None,
                )
            if known:
                short = (0, config.max_new_tokens - out.shape[1])
                scores.append(
                    [pad(part, short) for part in token_scores(logits, out, config.temperature)]
                )
            is_end = torch.isin(out, torch.tensor(ends, device=out.device)).long()
            for row, completion in zip(
                part.tolist(), unpadded(out, is_end.cumsum(dim=1) - is_end == 0), strict=True
            ):
                rows[row] = completion
    return rows, tuple(map(torch.cat, zip(*scores, strict=True))) if known else None


def _keeps_logits(model, tokens: int) -> bool:
    """Whether the logits that tokens are drawn from are those of a whole pass, up to rounding, and
    fit into memory.
    """
    needed, free = (
        4 * tokens * model.config.get_text_config().vocab_size,
        SHARE_OF_FREE * free_bytes(model.device),
    )
    return model.dtype == torch.float32 and packable(model) and needed <= min(BYTES_AT_ONCE, free)


@dataclass(frozen=True)
class Rollouts:
    """B sampled completions and what is known about them, one row each; per-token tensors are zero
    outside the mask.

    What is unknown is NaN in a tensor and None in place of a tuple. A completion's tokens include
    its end-of-sequence token. tokens, categories and credits hold one tuple per rollout, with one
    entry per unmasked token.
    """

    prompt_ids: Int[Tensor, "B P"]
    prompt_mask: Int[Tensor, "B P"]
    completion_ids: Int[Tensor, "B T"]
    completion_mask: Int[Tensor, "B T"]
    group_ids: Int[Tensor, " B"]
    rewards: Float[Tensor, " B"]
    advantages: Float[Tensor, " B"] | Float[Tensor, "B T"]
    old_logps: Float[Tensor, "B T"]
    entropies: Float[Tensor, "B T"]
    prompts: tuple | None = None  # as in the data set: strings, or lists of chat messages
    completions: tuple[str, ...] | None = None
    answers: tuple | None = None
    # the data set's further columns, which a verifier may need
    extras: tuple[dict, ...] | None = None
    tokens: tuple[tuple[str, ...], ...] | None = None
    categories: tuple[tuple[str | None, ...], ...] | None = None
    credits: tuple[tuple[float, ...], ...] | None = None

    def __len__(self) -> int:
        return self.completion_ids.shape[0]

    def select(self, index) -> Rollouts:
        """The rollouts at index: a slice, a list or tensor of positions, or a boolean mask over the
        B rollouts.
        """
        rows = torch.arange(len(self))[index.cpu() if isinstance(index, Tensor) else index].reshape(
            -1
        )

        def take(value):
            if isinstance(value, Tensor):
                return value[rows.to(value.device)]
            return None if value is None else tuple(value[row] for row in rows.tolist())

        return replace(
            self, **{field.name: take(getattr(self, field.name)) for field in fields(self)}
        )

    def to(self, device: str | torch.device) -> Rollouts:
        """The same rollouts with every tensor on device."""
        tensors = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if isinstance(getattr(self, f.name), Tensor)
        }
        return replace(self, **{name: tensor.to(device) for name, tensor in tensors.items()})

    def token_table(self) -> pd.DataFrame:
        """One row per unmasked completion token, ordered by rollout and position; NaN or None where
        unknown.

        Columns: group, rollout (row of this object), position, token_id, token, advantage, reward,
        logp and entropy (nats, under the policy that sampled), category, credit. Where prompts are
        known, attrs["prompts"] has {group: (prompt, right answer)}, texts.
        """
        rollout, position = self.completion_mask.bool().nonzero(as_tuple=True)
        per_token = self.advantages.dim() == 2
        columns = {
            "group": self.group_ids[rollout],
            "rollout": rollout,
            "position": position,
            "token_id": self.completion_ids[rollout, position],
            "token": self.tokens,
            "advantage": (
                self.advantages[rollout, position] if per_token else self.advantages[rollout]
            ),
            "reward": self.rewards[rollout],
            "logp": self.old_logps[rollout, position],
            "entropy": self.entropies[rollout, position],
            "category": self.categories,
            "credit": self.credits,
        }
        table = {name: [None] * len(rollout) for name in columns} | {
            "credit": [float("nan")] * len(rollout)
        }
        for name, values in columns.items():
            if isinstance(values, Tensor):
                table[name] = values.detach().cpu().numpy()
            elif values is not None:  # one tuple per rollout
                table[name] = [value for row in values for value in row]
        made = pd.DataFrame(table)
        if self.prompts is not None:
            asked = [
                prompt if isinstance(prompt, str) else prompt[-1]["content"]
                for prompt in self.prompts
            ]
            answers = [
                "" if self.answers is None else str(answer) for answer in self.answers or asked
            ]
            groups = map(str, self.group_ids.tolist())
            made.attrs["prompts"] = dict(zip(groups, zip(asked, answers, strict=True), strict=True))
        return made

    @classmethod
    def from_batch(
        cls, batch: Mapping, tokenizer=None, group_ids: Int[Tensor, " B"] | None = None
    ) -> Rollouts:
        """Rollouts from a TRL batch (or any mapping of tensors).

        Needed: prompt_ids, prompt_mask, completion_ids, completion_mask, advantages, and group_ids
        (in the batch or as the argument). Taken if there: rewards, old_per_token_logps or
        old_logps, entropies. With a tokenizer the prompts, completions and tokens are decoded, too.
        Raises ValueError for a missing tensor.
        """
        batch = {**batch, **({} if group_ids is None else {"group_ids": group_ids})}
        needed = (
            "prompt_ids",
            "prompt_mask",
            "completion_ids",
            "completion_mask",
            "advantages",
            "group_ids",
        )
        if missing := [name for name in needed if batch.get(name) is None]:
            raise ValueError(f"batch lacks {missing}: it must hold the tensors {list(needed)}.")
        given = {name: batch[name] for name in needed}
        mask = given["completion_mask"]
        unknown = torch.full(mask.shape, float("nan"), device=mask.device).masked_fill(
            mask == 0, 0.0
        )
        logps = batch.get("old_logps", batch.get("old_per_token_logps"))
        rewards = batch.get("rewards")
        given |= {
            "rewards": (
                unknown.new_full(mask.shape[:1], float("nan")) if rewards is None else rewards
            ),
            "old_logps": unknown if logps is None else logps.float() * mask,
            "entropies": (
                unknown if batch.get("entropies") is None else batch["entropies"].float() * mask
            ),
        }
        if tokenizer is not None:
            completions = unpadded(given["completion_ids"], mask)
            prompts = unpadded(given["prompt_ids"], given["prompt_mask"])
            given["prompts"] = tuple(tokenizer.decode(ids) for ids in prompts)
            given["completions"] = tuple(
                tokenizer.decode(ids, skip_special_tokens=True) for ids in completions
            )
            given["tokens"] = token_strings(tokenizer, completions)
        return cls(**given)


def sample_rollouts(
    policy,
    task,
    prompts,
    group_size: int,
    seed: int = 0,
    max_new_tokens: int = 64,
    temperature: float = 1.0,
    batch_size: int = 256,
    estimator: str = "grpo",
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    chat_template_kwargs: Mapping | None = None,
    generation_kwargs: Mapping | None = None,
) -> Rollouts:
    """Sample group_size completions for each prompt, reward them, and score them under the policy
    that sampled.

    prompts: a number of prompts to draw as task.dataset(prompts, seed), or a data set with a column
    prompt. Tokens come from softmax(logits / temperature) of the model in eval mode; log-probs and
    entropies are of that distribution. The global random state and the model's mode are left as
    they were. batch_size bounds the rollouts generated at once; it is part of what seed reproduces.

    top_p, top_k, min_p, repetition_penalty and generation_kwargs (any other field of a
    GenerationConfig) change what is sampled as in TRL's trainer, by default not at all; as there,
    scores leave them out of account. chat_template_kwargs goes to the chat template. ValueError for
    settings out of range, prompts without tokens, and rewards that are not finite numbers.
    """
    limits = {"group_size": group_size, "max_new_tokens": max_new_tokens, "batch_size": batch_size}
    for name, value in limits.items():
        if not isinstance(value, int) or value < 1:
            raise InvalidValue(name, value, "a whole number of 1 or more")
    sampling = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p}
    sampling |= {"repetition_penalty": repetition_penalty, "max_new_tokens": max_new_tokens}
    config = sampling_config(
        policy, sampling, {} if generation_kwargs is None else generation_kwargs
    )
    rows = _repeated_rows(task, prompts, group_size, seed)
    with evaluating(policy.model), torch.no_grad():
        prompts = _padded_prompts(policy, rows, group_size, chat_template_kwargs)
        completion_rows, scores = generate(policy, *prompts, seed, config, batch_size)
    return _scored(
        policy, task, rows, prompts, completion_rows, group_size, temperature, estimator, scores
    )


def written_rollouts(policy, task, prompts, completions: list[list[str]]) -> Rollouts:
    """Rollouts of given completions, as if the policy had sampled them.

    prompts: rows with a column prompt.  completions: for each, equally many texts; an end token is
    added to each. Raises ValueError if the numbers do not fit.
    """
    sizes = {len(texts) for texts in completions}
    if len(completions) != len(prompts) or len(sizes) != 1:
        raise InvalidValue(
            "completions",
            completions,
            f"{len(prompts)} lists of equally many texts, one list for each prompt",
        )
    tokenizer, group_size = policy.tokenizer, sizes.pop()
    rows = _repeated_rows(task, prompts, group_size, 0)
    ids = tokenizer([text for texts in completions for text in texts], add_special_tokens=False)[
        "input_ids"
    ]
    completion_rows = [[*row, tokenizer.eos_token_id] for row in ids]
    return _scored(
        policy, task, rows, _padded_prompts(policy, rows, group_size), completion_rows, group_size
    )


def _padded_prompts(
    policy, rows, group_size: int, chat_template_kwargs=None
) -> tuple[Int[Tensor, "B P"], Int[Tensor, "B P"]]:
    """Prompt tokens and mask of all rollouts; rows repeat each prompt group_size times, and it is
    tokenized once.
    """
    distinct = tokenize_prompts(
        policy.tokenizer, [row["prompt"] for row in rows[::group_size]], chat_template_kwargs
    )
    repeated = [tokens for tokens in distinct for _ in range(group_size)]
    return pad_rows(
        repeated, policy.tokenizer.pad_token_id, side="left", device=policy.model.device
    )


def _scored(
    policy,
    task,
    rows,
    prompts,
    completion_rows,
    group_size: int,
    temperature=1.0,
    estimator="grpo",
    scores=None,
) -> Rollouts:
    """Rewards, log-probabilities, texts and annotations of completions, group_size to a prompt."""
    model, tokenizer, (prompt_ids, prompt_mask) = policy.model, policy.tokenizer, prompts
    completion_ids, mask = pad_rows(
        completion_rows, tokenizer.pad_token_id, side="right", device=model.device
    )
    if scores is None:
        with evaluating(model), torch.no_grad():
            scores = sequence_logps(
                model, prompt_ids, prompt_mask, completion_ids, mask, temperature
            )
    logps, entropies = (part[:, : mask.shape[1]].masked_fill(mask == 0, 0.0) for part in scores)
    completions = tuple(tokenizer.batch_decode(completion_rows, skip_special_tokens=True))
    rewards = torch.tensor(
        task_rewards(task, rows, completions, completion_rows), device=model.device
    )
    group_ids = torch.arange(len(rows), device=model.device) // group_size
    tokens = token_strings(tokenizer, completion_rows)
    categories, credits = annotations(task, rows, tokens)
    return Rollouts(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        completion_ids=completion_ids,
        completion_mask=mask,
        group_ids=group_ids,
        rewards=rewards,
        advantages=group_advantages(rewards, group_ids, estimator=estimator),
        old_logps=logps,
        entropies=entropies,
        prompts=tuple(row["prompt"] for row in rows),
        completions=completions,
        answers=tuple(row.get("answer") for row in rows),
        extras=tuple(
            {name: row[name] for name in row if name not in ("prompt", "answer")} for row in rows
        ),
        tokens=tokens,
        categories=categories,
        credits=credits,
    )


def _repeated_rows(task, prompts, group_size: int, seed: int) -> list[dict]:
    if isinstance(prompts, int):
        if prompts < 1:
            raise InvalidValue("prompts", prompts, "1 or more, or a data set with a column prompt")
        prompts = task.dataset(prompts, seed)
    rows = list(prompts)
    if not rows or "prompt" not in rows[0]:
        raise InvalidValue(
            "prompts",
            prompts,
            "a number or a data set of at least one row with a column prompt",
            "prompts must be a number or a data set of at least one row with a column prompt.",
        )
    return [row for row in rows for _ in range(group_size)]


def task_rewards(task, rows, completions, completion_rows) -> list[float]:
    """The task's rewards, asked for as TRL asks: every other column of the data set goes along,
    chats get messages.
    """
    prompts = [row["prompt"] for row in rows]
    is_chat = not isinstance(prompts[0], str)
    messages = (
        [[{"role": "assistant", "content": text}] for text in completions]
        if is_chat
        else list(completions)
    )
    columns = {
        name: [row[name] for row in rows]
        for name in rows[0]
        if name not in ("prompt", "completion")
    }
    rewards = task.reward(
        prompts=prompts, completions=messages, completion_ids=completion_rows, **columns
    )
    if len(rewards) != len(rows):
        raise InvalidValue(
            "task.reward",
            rewards,
            f"{len(rows)} numbers",
            f"task.reward returned {len(rewards)} rewards, but {len(rows)} were asked for.",
        )
    for completion, reward in zip(completions, rewards, strict=True):
        if reward is None or not -float("inf") < reward < float("inf"):
            raise InvalidValue(
                "task.reward",
                reward,
                "a finite number",
                f"task.reward returned {reward!r} for {completion!r}: it must be a finite number.",
            )
    return [float(reward) for reward in rewards]


def annotations(task, rows, tokens):
    """Categories and credits per token where the task knows them, (None, None) where it knows none."""
    if not hasattr(task, "annotate"):
        return None, None
    nan, categories, credits = float("nan"), [], []
    for row, strings in zip(rows, tokens, strict=True):
        known = task.annotate(row["prompt"], row.get("answer"), list(strings)) or [
            (None, None)
        ] * len(strings)
        categories.append(tuple(category for category, _ in known))
        credits.append(tuple(nan if credit is None else float(credit) for _, credit in known))
    if not any(any(row) for row in categories):
        return None, None
    return tuple(categories), tuple(credits)
