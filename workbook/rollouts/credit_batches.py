"""Credit batches: what a credit rule is given of rollouts and a policy.

A credit rule sees rollouts as a `CreditBatch`. Some of it is at hand (rewards, groups, tokens);
some costs a pass through the policy (log-probabilities, states) or samples anew (continuations).
`credit_batch` hands on the dear part as functions, so that what a rule does not ask for is not
computed. Sampling in a rule draws from the batch's own generator, and leaves the global random
states, grad mode, and the model's train or eval mode as they were.

Letters: B rollouts, T completion tokens, N tokens of all rollouts, in the order of their token
table; V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbook.messages import InvalidValue
from workbook.policies.models import evaluating
from workbook.rollouts.sample import (
    Rollouts,
    annotations,
    end_tokens,
    generate,
    sampling_config,
    task_rewards,
)
from workbook.rollouts.scoring import pad_rows, sequence_logps, token_strings, unpadded
from workbook.rollouts.states import OutputStates, output_states
from workbook.theory.credit import CreditBatch


def credit_batch(
    policy,
    rollouts: Rollouts,
    task=None,
    seed: int | Sequence[int] = 0,
    step: int = 0,
    max_new_tokens: int | None = None,
    temperature: float = 1.0,
    batch_size: int = 256,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    generation_kwargs: dict | None = None,
    own_tokens: Tensor | None = None,
    **known: Tensor | Callable[[], Tensor],
) -> CreditBatch:
    """The credit batch of rollouts of a policy, in whole groups.

    task: rewards continuations, and knows true credit where it can (`Task.calibrated`); without
    one, the rollouts' own `credits` are the known credit.
    seed, step: all that the batch's generator depends on.
    max_new_tokens: of prefix and continuation together (None: the width of completion_ids).
    temperature: of log-probabilities, entropies, states and continuations.
    batch_size: rows that continuations are sampled in at once.
    top_p, top_k, min_p, repetition_penalty, generation_kwargs: of continuations, as in
    `sample_rollouts`.
    own_tokens: (B, T), 0 on tokens that a tool wrote, which no rule credits.
    known: values of `theory.credit.LAZY` that are at hand already, e.g. logps, or functions that
    compute them.

    Where the rollouts' old_logps are not known they are those of now. The batch holds copies.

    Raises ValueError for rewards that are not finite and, on access, for what is not known.
    """
    mask = rollouts.completion_mask.bool()
    if own_tokens is not None:
        mask = mask & own_tokens.bool()
    source = _BatchSource(policy, rollouts, task, temperature, batch_size, mask)
    generator = _generator([*([seed] if isinstance(seed, int) else seed), step])

    # computed when a rule first asks
    lazy = {
        "logps": lambda: source.scores[0],
        "entropies": lambda: source.scores[1],
        "old_logps": lambda: source.old_logps(lambda: batch.logps),
        "states": source.states,
        "tokens": source.tokens,
        "prompts": source.prompts,
    }
    # what only some tasks know
    if rollouts.credits or hasattr(task, "annotate"):
        lazy["known_credit"] = source.known_credit
    if hasattr(task, "stated"):
        lazy["answers"] = source.answers
    prompts = rollouts.prompts
    has_texts = prompts is not None and all(isinstance(prompt, str) for prompt in prompts)
    if hasattr(task, "places") and has_texts:
        lazy["places"] = source.places
    for name, value in known.items():
        lazy[name] = value if callable(value) else value.detach().clone()

    # a task without rewards, or unknown prompts, leave nothing to continue
    continuation = None
    if hasattr(task, "reward") and prompts is not None:
        if max_new_tokens is None:
            max_new_tokens = rollouts.completion_ids.shape[1]
        sampling = {
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "max_new_tokens": max_new_tokens,
        }
        continuation = _continuation(source, sampling, generation_kwargs or {}, generator)

    batch = CreditBatch(
        rewards=rollouts.rewards.detach().clone(),
        group_ids=rollouts.group_ids.clone(),
        completion_ids=rollouts.completion_ids.clone(),
        mask=mask.clone(),
        step=step,
        generator=generator,
        continuation=continuation,
        **lazy,
    )
    return batch


def _generator(seeds: Sequence[int]) -> torch.Generator:
    """A random generator that depends on all of these numbers."""
    # a hash, since generators of neighbouring seeds could draw alike
    text = repr([int(seed) for seed in seeds])
    digest = hashlib.blake2b(text.encode(), digest_size=7).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big"))


@dataclass(frozen=True)
class _BatchSource:
    """What a batch is made from; each method computes one value of it."""

    policy: object
    rollouts: Rollouts
    task: object
    temperature: float
    batch_size: int
    mask: Bool[Tensor, "B T"]  # of the policy's own tokens

    @cached_property
    def rows(self) -> list[dict]:
        """The data set's row of each rollout."""
        count = len(self.rollouts)
        prompts = self.rollouts.prompts or [None] * count
        answers = self.rollouts.answers or [None] * count
        extras = self.rollouts.extras or [{}] * count
        return [
            {"prompt": prompt, "answer": answer, **extra}
            for prompt, answer, extra in zip(prompts, answers, extras, strict=True)
        ]

    @cached_property
    def scores(self) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
        """Log-probabilities and entropies under the policy of now, in nats."""
        rollouts = self.rollouts.to(self.policy.model.device)
        with evaluating(self.policy.model) as model, torch.no_grad():
            return sequence_logps(
                model,
                rollouts.prompt_ids,
                rollouts.prompt_mask,
                rollouts.completion_ids,
                rollouts.completion_mask,
                self.temperature,
            )

    def old_logps(self, logps_of_now: Callable[[], Tensor]) -> Float[Tensor, "B T"]:
        """Log-probabilities of the policy that sampled, those of now where they are not known."""
        old = self.rollouts.old_logps
        unknown = old.isnan()
        if not unknown.any():
            return old.clone()
        return torch.where(unknown, logps_of_now().to(old), old)

    def states(self) -> OutputStates:
        """Output states of softmax(z / temperature), at the policy's own tokens."""
        # the very model: a trainer has put a forward pass of its own into it
        with evaluating(self.policy.model):
            states = output_states(self.policy, self.rollouts)
        written = self.rollouts.completion_mask.bool()
        if not torch.equal(self.mask, written):
            own = self.mask[written].nonzero().squeeze(1)
            states = states.select(own.to(states.tokens.device))
        if self.temperature == 1:
            return states

        # z / temperature = W (h / temperature), and a soft-cap divides with it
        cap = None if states.cap is None else states.cap / self.temperature
        hidden = states.hidden / self.temperature
        logits = states.logits / self.temperature
        return OutputStates(hidden, logits, states.tokens, cap)

    def strings(self) -> list[list[str]]:
        """Every token of each completion, a tool's included, as text."""
        tokens = self.rollouts.tokens
        if not tokens:
            ids = unpadded(self.rollouts.completion_ids, self.rollouts.completion_mask)
            tokens = token_strings(self.policy.tokenizer, ids)
        return [list(row) for row in tokens]

    def tokens(self) -> list[list[str]]:
        """The policy's own tokens of each completion, as text."""
        own = unpadded(self.mask, self.rollouts.completion_mask)
        rows = zip(self.strings(), own, strict=True)
        return [list(compress(row, is_own)) for row, is_own in rows]

    def prompts(self) -> list[str]:
        """Prompts as text; of a chat, what its template makes of it."""
        prompts = self.rollouts.prompts
        if prompts and isinstance(prompts[0], str):
            return list(prompts)
        rows = unpadded(self.rollouts.prompt_ids, self.rollouts.prompt_mask)
        return [self.policy.tokenizer.decode(row) for row in rows]

    def texts(self) -> list[str]:
        """Completions as text."""
        if self.rollouts.completions:
            return self.rollouts.completions
        rows = unpadded(self.rollouts.completion_ids, self.rollouts.completion_mask)
        return self.policy.tokenizer.batch_decode(rows, skip_special_tokens=True)

    def places(self) -> Int[Tensor, "B T"]:
        """The slot of each completion token in the task's grammar."""
        mask = self.rollouts.completion_mask.bool()
        rows = map(self.task.places, self.rollouts.prompts, self.strings())
        flat = [place for row in rows for place in row]
        places = torch.zeros(mask.shape, dtype=torch.long, device=mask.device)
        places[mask] = torch.tensor(flat, device=mask.device)
        return places

    def answers(self) -> list[str | None]:
        """The answer that each completion states."""
        return [self.task.stated(text) for text in self.texts()]

    def known_credit(self) -> Float[Tensor, "B T"] | None:
        """True credit of each token, None where it is not known of any."""
        credits = self.rollouts.credits
        if hasattr(self.task, "annotate") and self.rollouts.prompts is not None:
            task = self.task
            if hasattr(task, "calibrated"):
                # a task of the policy that wrote these texts, not of the demonstrator
                task = task.calibrated(self.texts())
            _, credits = annotations(task, self.rows, self.strings())
        if credits is None:
            return None
        mask = self.rollouts.completion_mask.bool()
        flat = [credit for row in credits for credit in row]
        known = torch.zeros(mask.shape, dtype=self.rollouts.rewards.dtype, device=mask.device)
        known[mask] = torch.tensor(flat).to(known)
        return known


def _continuation(
    source: _BatchSource, sampling: dict, generation_kwargs: dict, generator: torch.Generator
) -> Callable:
    """The function behind `CreditBatch.continue_from`."""
    policy = source.policy
    tokenizer = policy.tokenizer
    most = sampling["max_new_tokens"]
    ends = set(end_tokens(policy))
    prompts = unpadded(source.rollouts.prompt_ids, source.rollouts.prompt_mask)

    # chosen (n,): the rollout whose prompt each prefix continues
    def continue_from(chosen: Tensor, prefixes: list[list[int]]) -> tuple[list[float], int]:
        _check_prefixes(prefixes, most, policy.model.get_input_embeddings().num_embeddings)
        seed = int(torch.randint(2**62, (), generator=generator))
        completions = [list(prefix) for prefix in prefixes]

        # prefixes that are neither full nor ended
        unfinished = [
            i
            for i, prefix in enumerate(prefixes)
            if len(prefix) < most and not ends & set(prefix[-1:])
        ]
        if unfinished:
            longest = max(most - len(prefixes[i]) for i in unfinished)
            config = sampling_config(
                policy, {**sampling, "max_new_tokens": longest}, generation_kwargs
            )
            contexts = [prompts[int(chosen[i])] + completions[i] for i in unfinished]
            with evaluating(policy.model) as model, torch.no_grad():
                ids, mask = pad_rows(
                    contexts, tokenizer.pad_token_id, side="left", device=model.device
                )
                sampled, _ = generate(policy, ids, mask, seed, config, source.batch_size)
            for i, row in zip(unfinished, sampled, strict=True):
                completions[i] += row[: most - len(completions[i])]

        texts = tokenizer.batch_decode(completions, skip_special_tokens=True)
        rows = [source.rows[row] for row in chosen.tolist()]
        rewards = task_rewards(source.task, rows, texts, completions)
        new_tokens = sum(map(len, completions)) - sum(map(len, prefixes))
        return rewards, new_tokens

    return continue_from


def _check_prefixes(prefixes: list[list[int]], most: int, vocabulary: int) -> None:
    """Raise InvalidValue for a prefix that is too long, or has a token that is none."""
    for prefix in prefixes:
        if len(prefix) > most or not all(0 <= token < vocabulary for token in prefix):
            raise InvalidValue(
                "prefixes",
                prefixes,
                f"lists of at most {most} token ids from 0 to {vocabulary - 1}",
            )
