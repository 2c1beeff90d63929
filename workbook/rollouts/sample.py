"""Rollouts: sampled completions with rewards, advantages, log-probabilities and a token table.

Training by GRPO begins with a group: several completions of one prompt, each with one reward. What
follows depends on details that are easily lost: which tokens the prompt became, which ids end a
completion, which distribution a token was drawn from. `sample_rollouts` settles them as TRL's
GRPOTrainer does (same prompt tokens, same reward call, same mask), in four steps:

    prompts       repeated, tokenized, padded on the left          (B, P)
    completions   drawn token by token, up to an end token         (B, T)
    scores        log-probability and entropy of every token       (B, T)
    rewards       one of each completion, and from them advantages (B,)

`Rollouts.token_table` lays the result out as one row per completion token. Probes add columns to
that table and charts read columns from it.

Letters: B rollouts, G rollouts per prompt, P prompt tokens (left-padded), T completion tokens
(right-padded), N completion tokens of all rollouts.
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

# Fields of a GenerationConfig that must have these values: with others, generate() returns
# something else than one row of tokens for each row.
ONE_ROW = {
    "num_return_sequences": 1,
    "num_beams": 1,
    "return_dict_in_generate": False,
    "is_assistant": False,
}
_BATCH_TENSORS = (
    "prompt_ids",
    "prompt_mask",
    "completion_ids",
    "completion_mask",
    "advantages",
    "group_ids",
)


@dataclass(frozen=True)
class Rollouts:
    """B sampled completions and what is known about them, one row each.

    Per-token tensors are zero outside the mask. What is unknown is NaN in a tensor and None in
    place of a tuple. A completion's tokens include its end-of-sequence token. tokens, categories
    and credits hold one tuple per rollout, with one entry per unmasked token.
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
    # as in the data set: strings, or lists of chat messages
    prompts: tuple | None = None
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
        """The rollouts at `index`.

        index: a slice, a list or tensor of positions, or a boolean mask over the B rollouts.
        """
        if isinstance(index, Tensor):
            index = index.cpu()
        rows = torch.arange(len(self))[index].reshape(-1)

        def take(value):
            if value is None:
                return None
            if isinstance(value, Tensor):
                return value[rows.to(value.device)]
            return tuple(value[row] for row in rows.tolist())

        selected = {field.name: take(getattr(self, field.name)) for field in fields(self)}
        return replace(self, **selected)

    def to(self, device: str | torch.device) -> Rollouts:
        """The same rollouts with every tensor on device."""
        moved = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                moved[field.name] = value.to(device)
        return replace(self, **moved)

    def token_table(self) -> pd.DataFrame:
        """One row per unmasked completion token, ordered by rollout and position.

        Columns: group, rollout (row of this object), position, token_id, token, advantage, reward,
        logp and entropy (nats, under the policy that sampled), category, credit; NaN or None where
        unknown. Where prompts are known, attrs["prompts"] has {group: (prompt, right answer)},
        texts.
        """
        rollout, position = self.completion_mask.bool().nonzero(as_tuple=True)  # (N,), (N,)
        if self.advantages.dim() == 2:
            advantage = self.advantages[rollout, position]
        else:
            advantage = self.advantages[rollout]

        # tensors have a number per token, the others a tuple per rollout
        columns = {
            "group": self.group_ids[rollout],
            "rollout": rollout,
            "position": position,
            "token_id": self.completion_ids[rollout, position],
            "token": self.tokens,
            "advantage": advantage,
            "reward": self.rewards[rollout],
            "logp": self.old_logps[rollout, position],
            "entropy": self.entropies[rollout, position],
            "category": self.categories,
            "credit": self.credits,
        }
        per_token = {}
        for name, values in columns.items():
            if isinstance(values, Tensor):
                per_token[name] = values.detach().cpu().numpy()
            elif values is not None:
                per_token[name] = [value for row in values for value in row]
            else:
                unknown = float("nan") if name == "credit" else None
                per_token[name] = [unknown] * len(rollout)
        table = pd.DataFrame(per_token)
        if self.prompts is not None:
            table.attrs["prompts"] = self._prompts_of_groups()
        return table

    def _prompts_of_groups(self) -> dict[str, tuple[str, str]]:
        """{group: (prompt, right answer)}, as texts.

        The prompt of a chat is its last message; an answer that is unknown is "".
        """
        prompts = [
            prompt if isinstance(prompt, str) else prompt[-1]["content"] for prompt in self.prompts
        ]
        answers = [""] * len(prompts) if self.answers is None else map(str, self.answers)
        groups = map(str, self.group_ids.tolist())
        return dict(zip(groups, zip(prompts, answers, strict=True), strict=True))

    @classmethod
    def from_batch(
        cls, batch: Mapping, tokenizer=None, group_ids: Int[Tensor, " B"] | None = None
    ) -> Rollouts:
        """Rollouts from a TRL batch (or any mapping of tensors).

        Needed: prompt_ids, prompt_mask, completion_ids, completion_mask, advantages, and group_ids
        (in the batch or as the argument). Taken if present: rewards, old_per_token_logps or
        old_logps, entropies. With a tokenizer the prompts, completions and tokens are decoded, too.

        Raises ValueError for a missing tensor.
        """
        batch = dict(batch)
        if group_ids is not None:
            batch["group_ids"] = group_ids
        missing = [name for name in _BATCH_TENSORS if batch.get(name) is None]
        if missing:
            raise ValueError(
                f"batch lacks {missing}: it must hold the tensors {list(_BATCH_TENSORS)}."
            )
        given = {name: batch[name] for name in _BATCH_TENSORS}
        mask = given["completion_mask"]

        # unknown numbers are NaN, and zero outside the mask as all per-token numbers
        unknown = torch.full(mask.shape, float("nan"), device=mask.device)
        unknown = unknown.masked_fill(mask == 0, 0.0)
        rewards = batch.get("rewards")
        if rewards is None:
            rewards = unknown.new_full(mask.shape[:1], float("nan"))
        logps = batch.get("old_logps", batch.get("old_per_token_logps"))
        entropies = batch.get("entropies")
        given["rewards"] = rewards
        given["old_logps"] = unknown if logps is None else logps.float() * mask
        given["entropies"] = unknown if entropies is None else entropies.float() * mask

        if tokenizer is not None:
            prompts = unpadded(given["prompt_ids"], given["prompt_mask"])
            completions = unpadded(given["completion_ids"], mask)
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
    """Sample group_size completions of each prompt, reward them, and score them.

    Tokens come from softmax(logits / temperature) of the model in eval mode; log-probabilities and
    entropies are of that distribution. The global random state and the model's mode are left as
    they were.

    prompts: a number of prompts, drawn as task.dataset(prompts, seed), or a data set with a column
    prompt.
    batch_size: bounds the rollouts generated at once; it is part of what seed reproduces.
    estimator: of the advantages, as `group_advantages` takes it.
    top_p, top_k, min_p, repetition_penalty, generation_kwargs (any other field of a
    GenerationConfig): change what is sampled as in TRL's trainer, by default not at all; as in
    TRL, scores leave them out of account.
    chat_template_kwargs: what else the chat template is given.

    Raises ValueError for settings out of range, prompts without tokens, and rewards that are not
    finite numbers.
    """
    limits = {"group_size": group_size, "max_new_tokens": max_new_tokens, "batch_size": batch_size}
    for name, value in limits.items():
        if not isinstance(value, int) or value < 1:
            raise InvalidValue(name, value, "a whole number of 1 or more")
    sampling = {
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "max_new_tokens": max_new_tokens,
    }
    if generation_kwargs is None:
        generation_kwargs = {}
    config = sampling_config(policy, sampling, generation_kwargs)

    # a row for each rollout, those of a prompt one behind the other
    rows = _repeated_rows(task, prompts, group_size, seed)
    with evaluating(policy.model), torch.no_grad():
        padded_prompts = _padded_prompts(policy, rows, group_size, chat_template_kwargs)
        completion_rows, scores = generate(policy, *padded_prompts, seed, config, batch_size)
    return _scored(
        policy,
        task,
        rows,
        padded_prompts,
        completion_rows,
        group_size,
        temperature,
        estimator,
        scores,
    )


def written_rollouts(policy, task, prompts, completions: list[list[str]]) -> Rollouts:
    """Rollouts of given completions, as if the policy had sampled them.

    prompts: rows with a column prompt.
    completions: for each prompt equally many texts; an end token is added to each.

    Raises ValueError if the numbers do not fit.
    """
    sizes = {len(texts) for texts in completions}
    if len(completions) != len(prompts) or len(sizes) != 1:
        raise InvalidValue(
            "completions",
            completions,
            f"{len(prompts)} lists of equally many texts, one list for each prompt",
        )
    (group_size,) = sizes
    rows = _repeated_rows(task, prompts, group_size, 0)
    padded_prompts = _padded_prompts(policy, rows, group_size)

    # as a policy writes them: every completion ends
    tokenizer = policy.tokenizer
    texts = [text for group in completions for text in group]
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    completion_rows = [[*row, tokenizer.eos_token_id] for row in ids]
    return _scored(policy, task, rows, padded_prompts, completion_rows, group_size)


# -- prompts


def _repeated_rows(task, prompts, group_size: int, seed: int) -> list[dict]:
    """The data set's rows, each repeated for the rollouts of its group."""
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


def _padded_prompts(
    policy, rows: list[dict], group_size: int, chat_template_kwargs: Mapping | None = None
) -> tuple[Int[Tensor, "B P"], Int[Tensor, "B P"]]:
    """Prompt tokens of all rollouts, left-padded, and their mask."""
    # rows repeat each prompt group_size times; it is tokenized once
    distinct = [row["prompt"] for row in rows[::group_size]]
    token_rows = tokenize_prompts(policy.tokenizer, distinct, chat_template_kwargs)
    repeated = [tokens for tokens in token_rows for _ in range(group_size)]
    return pad_rows(
        repeated, policy.tokenizer.pad_token_id, side="left", device=policy.model.device
    )


# -- sampling


def sampling_config(policy, sampling: dict, generation_kwargs: Mapping):
    """The GenerationConfig that TRL's trainer makes of these settings.

    sampling: temperature, top_p, top_k, min_p, repetition_penalty and max_new_tokens.
    generation_kwargs: further fields.

    Raises ValueError for a setting that is out of range, or no field of a GenerationConfig.
    """
    from transformers import GenerationConfig

    _check_sampling(sampling)
    if not isinstance(generation_kwargs, Mapping):
        raise InvalidValue(
            "generation_kwargs", generation_kwargs, "a mapping of GenerationConfig's fields"
        )
    known = GenerationConfig().to_dict()
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

    # later ones override earlier ones, as in TRL
    settings = {
        "do_sample": True,
        "pad_token_id": policy.tokenizer.pad_token_id,
        "eos_token_id": end_tokens(policy),
        **sampling,
    }
    settings.update(generation_kwargs)
    settings["disable_compile"] = True
    try:
        return GenerationConfig(**settings)
    except TypeError as problem:
        raise InvalidValue(
            "generation_kwargs",
            generation_kwargs,
            "fields of a GenerationConfig",
            f"generation_kwargs={generation_kwargs!r} makes no GenerationConfig: {problem}.",
        ) from None


def _check_sampling(sampling: dict) -> None:
    """Raise InvalidValue for the first sampling setting that is out of range."""
    for name in ("temperature", "repetition_penalty"):
        value = sampling[name]
        if not (_is_number(value) and 0 < value < float("inf")):
            raise InvalidValue(name, value, "a finite number above 0")
    top_p, top_k, min_p = sampling["top_p"], sampling["top_k"], sampling["min_p"]
    if not (_is_number(top_p) and 0 < top_p <= 1):
        raise InvalidValue("top_p", top_p, "above 0 and at most 1")
    if not (_is_number(top_k) and top_k >= 0 and top_k % 1 == 0):
        raise InvalidValue("top_k", top_k, "a whole number of 0 (no limit) or more")
    if min_p is not None and not (_is_number(min_p) and 0 <= min_p <= 1):
        raise InvalidValue("min_p", min_p, "None or between 0 and 1")


def _is_number(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def end_tokens(policy) -> list[int]:
    """Every token id that ends a completion, as in TRL.

    They are the tokenizer's and those of the model's generation config.
    """
    declared = policy.model.generation_config.eos_token_id
    if declared is None:
        declared = []
    elif not isinstance(declared, list | tuple):
        declared = [declared]
    if not all(isinstance(token, int) for token in declared):
        raise InvalidValue("eos_token_id", declared, "token ids, in the model's generation config")

    # each once, in order
    return list(dict.fromkeys([policy.tokenizer.eos_token_id, *declared]))


def generate(
    policy,
    prompt_ids: Int[Tensor, "B P"],
    prompt_mask: Int[Tensor, "B P"],
    seed: int,
    config,
    batch_size: int,
) -> tuple[list[list[int]], tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]] | None]:
    """Sampled completions as ragged rows, each up to its first end token, and their scores.

    Scores are log-probabilities and entropies as `sequence_logps` gives them, any numbers outside
    the completions; None where sampling does not know them.

    config: of `sampling_config`.
    """
    model = policy.model
    check_length(model, prompt_mask.sum(1) + config.max_new_tokens)
    if padding_error(model) > 1:
        # RWKV's state, carried from token to token, is not that of a whole pass
        config.use_cache = False

    # Sampling computes the logits that a token is drawn from. Where they are those of a whole pass,
    # nothing has to be scored again.
    is_exact = is_plain(config) and padding_error(model) <= 1
    layer_by_layer = is_exact and is_small(model)
    tokens_at_once = min(batch_size, len(prompt_ids)) * config.max_new_tokens
    with_scores = layer_by_layer or (is_exact and _keeps_logits(model, tokens_at_once))

    # An object of its own around the same layers, which may hold our config: generate() fills in
    # from the model's own (a top_k, say) otherwise. Adapters are in the base model's layers.
    base = copy.copy(model.get_base_model() if hasattr(model, "get_base_model") else model)
    asked = copy.copy(config)
    asked.return_dict_in_generate = True
    asked.output_logits = with_scores
    base.generation_config = asked

    # generate() tells positions only to models that take them
    positions = "position_ids" in inspect.signature(base.forward).parameters
    ends = torch.tensor(end_tokens(policy), device=prompt_ids.device)
    completions = [[]] * len(prompt_ids)
    logps, entropies = [], []
    with seeded(seed, model.device):
        for rows, start in padded_batches(model, prompt_mask, batch_size, positions):
            ids, mask = prompt_ids[rows, start:], prompt_mask[rows, start:]  # (b, P - start)
            if layer_by_layer:
                sampled, logits = sample_small(model, ids, mask, config)
            else:
                output = base.generate(input_ids=ids, attention_mask=mask, generation_config=asked)
                sampled = output.sequences[:, ids.shape[1] :]  # (b, t), of the longest completion
                logits = torch.stack(output.logits, 1) if with_scores else None  # (b, t, V)

            if with_scores:
                batch_logps, batch_entropies = token_scores(logits, sampled, config.temperature)
                missing = (0, config.max_new_tokens - sampled.shape[1])
                logps.append(pad(batch_logps, missing))
                entropies.append(pad(batch_entropies, missing))

            # a completion ends with its first end token, which belongs to it
            is_end = torch.isin(sampled, ends).long()
            ends_before = is_end.cumsum(dim=1) - is_end
            token_rows = unpadded(sampled, ends_before == 0)
            for row, tokens in zip(rows.tolist(), token_rows, strict=True):
                completions[row] = tokens
    # scores are kept only where padding changes nothing: such batches come in the order of the rows
    scores = (torch.cat(logps), torch.cat(entropies)) if with_scores else None
    return completions, scores


def _keeps_logits(model, tokens: int) -> bool:
    """Whether sampling can hand on the logits that `tokens` tokens are drawn from.

    They must be those of a whole pass, up to rounding, and fit into memory.
    """
    needed = 4 * tokens * model.config.get_text_config().vocab_size
    free = SHARE_OF_FREE * free_bytes(model.device)
    same_logits = model.dtype == torch.float32 and packable(model)
    return same_logits and needed <= min(BYTES_AT_ONCE, free)


# -- scores, rewards, annotations


def _scored(
    policy,
    task,
    rows: list[dict],
    padded_prompts: tuple[Int[Tensor, "B P"], Int[Tensor, "B P"]],
    completion_rows: list[list[int]],
    group_size: int,
    temperature: float = 1.0,
    estimator: str = "grpo",
    scores: tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]] | None = None,
) -> Rollouts:
    """Rollouts of completions, with rewards, log-probabilities, texts and annotations.

    scores: log-probabilities and entropies where sampling knew them; None scores by a pass.
    """
    model, tokenizer = policy.model, policy.tokenizer
    prompt_ids, prompt_mask = padded_prompts
    completion_ids, completion_mask = pad_rows(
        completion_rows, tokenizer.pad_token_id, side="right", device=model.device
    )
    # scores of a pass, where sampling did not know them
    if scores is None:
        columns = (prompt_ids, prompt_mask, completion_ids, completion_mask)
        with evaluating(model), torch.no_grad():
            scores = sequence_logps(model, *columns, temperature)

    # sampling may have gone on beyond the longest completion, and scores padding
    length = completion_mask.shape[1]
    logps, entropies = (part[:, :length].masked_fill(completion_mask == 0, 0.0) for part in scores)

    # rewards are of texts without special tokens, annotations of every token
    completions = tuple(tokenizer.batch_decode(completion_rows, skip_special_tokens=True))
    rewards = task_rewards(task, rows, completions, completion_rows)
    rewards = torch.tensor(rewards, device=model.device)  # (B,)
    group_ids = torch.arange(len(rows), device=model.device) // group_size
    tokens = token_strings(tokenizer, completion_rows)
    categories, credits = annotations(task, rows, tokens)
    extras = [
        {name: value for name, value in row.items() if name not in ("prompt", "answer")}
        for row in rows
    ]
    return Rollouts(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        completion_ids=completion_ids,
        completion_mask=completion_mask,
        group_ids=group_ids,
        rewards=rewards,
        advantages=group_advantages(rewards, group_ids, estimator=estimator),
        old_logps=logps,
        entropies=entropies,
        prompts=tuple(row["prompt"] for row in rows),
        completions=completions,
        answers=tuple(row.get("answer") for row in rows),
        extras=tuple(extras),
        tokens=tokens,
        categories=categories,
        credits=credits,
    )


def task_rewards(
    task, rows: list[dict], completions, completion_rows: list[list[int]]
) -> list[float]:
    """The task's rewards, asked for as TRL asks.

    Every other column of the data set goes along, and chats get messages.

    Raises ValueError unless there is one finite number for each completion.
    """
    # a chat's completion is a list of messages, here of one
    prompts = [row["prompt"] for row in rows]
    if isinstance(prompts[0], str):
        answers = list(completions)
    else:
        answers = [[{"role": "assistant", "content": text}] for text in completions]
    names = [name for name in rows[0] if name not in ("prompt", "completion")]
    columns = {name: [row[name] for row in rows] for name in names}
    rewards = task.reward(
        prompts=prompts, completions=answers, completion_ids=completion_rows, **columns
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


def annotations(task, rows: list[dict], tokens) -> tuple[tuple | None, tuple | None]:
    """Categories and credits of every token, as the task knows them.

    Credit is NaN where it is unknown; (None, None) where no token has a category.
    """
    if not hasattr(task, "annotate"):
        return None, None
    categories, credits = [], []
    for row, strings in zip(rows, tokens, strict=True):
        known = task.annotate(row["prompt"], row.get("answer"), list(strings))
        if not known:
            known = [(None, None)] * len(strings)
        categories.append(tuple(category for category, _ in known))
        credits.append(
            tuple(float("nan") if credit is None else float(credit) for _, credit in known)
        )
    if not any(any(row) for row in categories):
        return None, None
    return tuple(categories), tuple(credits)
