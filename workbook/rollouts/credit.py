"""Credit batches and output states: what credit rules and probes ask of rollouts and a policy.

A credit rule sees rollouts as a `CreditBatch`. Some of it is at hand (rewards, groups, tokens);
some costs a pass through the policy (log-probabilities, states) or samples anew (continuations).
`credit_batch` hands on the dear part as functions, so that what a rule does not ask for is not
computed. Sampling in a rule draws from the batch's own generator, and leaves the global random
states, grad mode, and the model's train or eval mode as they were.

Output states are the hidden states h and logits z where each token was drawn. Coupling theory
takes every head as one linear layer under a softmax, p = softmax(W h). Heads that are not so simple
are brought to this form:

    a bias b (Phi)                    h becomes [h, 1], W becomes [W, b]
    a scale s (Cohere, Granite)       h becomes s h
    a soft-cap c (Gemma 2)            z = c tanh(W h / c) stays; theory applies the chain rule

Letters: B rollouts, T completion tokens, N tokens of all rollouts, in the order of their token
table; D width; V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from workbook.messages import InvalidValue
from workbook.policies.models import evaluating, reading
from workbook.rollouts.sample import (
    Rollouts,
    annotations,
    end_tokens,
    generate,
    sampling_config,
    task_rewards,
)
from workbook.rollouts.scoring import (
    completion_logits,
    in_batches,
    pad_rows,
    padded_batches,
    rows_at_once,
    sequence_logps,
    token_strings,
    unpadded,
)
from workbook.theory.coupling import (
    coupling_factors,
    coupling_kernel,
    kernel_strips,
    predicted_delta_logp,
)
from workbook.theory.credit import CreditBatch


@dataclass(frozen=True)
class OutputStates:
    """Inputs and outputs of the output layer where each token was drawn.

    hidden (N, D) goes into the layer, logits (N, V) come out as the softmax gets them, tokens (N,)
    were drawn from them. A scale and a bias of the layer are part of hidden, as the module's
    docstring says; cap is the soft-cap on the logits, None without one.
    """

    hidden: Float[Tensor, "N D"]
    logits: Float[Tensor, "N V"]
    tokens: Int[Tensor, " N"]
    cap: float | None = None

    def coupled(self, index: int, weights: Float[Tensor, " N"], lr: float = 1.0) -> pd.DataFrame:
        """What each token j adds to token `index` by a step through the output layer: a row per j.

            delta log pi(i) = sum over j of contribution_j, to first order
            contribution_j  = lr w_j <h_i, h_j> <e_i - p_i, e_j - p_j>

        weights: (N,) update weight times advantage of each token.

        Columns: hidden and residual (the two inner products), coupling (their product K_ij),
        weight, contribution (nats). Source: arXiv 2605.08666, figure 2; H2 in the claims.
        """
        hidden, residual = coupling_factors(self.hidden, self.logits, self.tokens, index, self.cap)
        coupling = hidden * residual  # (N,)
        weights = weights.to(coupling)
        columns = {
            "hidden": hidden,
            "residual": residual,
            "coupling": coupling,
            "weight": weights,
            "contribution": lr * weights * coupling,
        }
        return pd.DataFrame({name: column.cpu().numpy() for name, column in columns.items()})

    def select(self, index: Int[Tensor, " M"]) -> OutputStates:
        """The states of the tokens at `index`."""
        return OutputStates(self.hidden[index], self.logits[index], self.tokens[index], self.cap)

    def kernel(self) -> Float[Tensor, "N N"]:
        """K_ij of all pairs, by `coupling_kernel`: N x N numbers, so take the states of a group."""
        return coupling_kernel(self.hidden, self.logits, self.tokens, self.cap)

    def strips(self) -> Iterator[tuple[int, Float[Tensor, "m M"]]]:
        """The kernel in strips, (i, K[i : i + m, i:]) from the diagonal on, by `kernel_strips`."""
        return kernel_strips(self.hidden, self.logits, self.tokens, self.cap)

    def predicted(
        self, weights: Float[Tensor, " N"], lr: float, order: str = "exact"
    ) -> Float[Tensor, " N"]:
        """Change of every token's log-probability by one SGD step on the output layer, in nats.

        weights, lr, order: as `predicted_delta_logp` takes them.
        """
        return predicted_delta_logp(
            self.hidden, self.logits, self.tokens, weights, lr, order, self.cap
        )


@in_batches
def output_states(policy, rollouts: Rollouts) -> OutputStates:
    """The output layer's inputs and outputs at every completion token, by teacher forcing.

    Memory: N x (D + V) numbers in the model's dtype, held once, beside a pass: take a group at a
    time.

    Raises ValueError for a model without an output layer, and for one that changes the logits after
    it by anything but a factor or its config's soft-cap: the coupling formula holds for a linear
    layer under a softmax.
    """
    model = reading(policy).model
    head = model.get_output_embeddings()
    if head is None:
        raise ValueError(
            f"{type(model).__name__} names no output layer; token coupling goes through one."
        )
    length = rollouts.completion_ids.shape[1]
    mask = rollouts.completion_mask.bool()

    # tokens of rollout b stand at [first[b], first[b] + counts[b]) of the N
    counts = mask.sum(1)
    first = (counts.cumsum(0) - counts).tolist()
    total = int(counts.sum())

    # a hook on the head catches what goes in and what comes out in the latest pass
    seen = {}

    def catch(_, inputs, output):
        seen.update(hidden=inputs[0], logits=output)

    batch_size = rows_at_once(model, rollouts.prompt_ids.shape[1] + length, length, "states")
    hidden = logits = cap = None
    scale = 1.0
    with torch.no_grad(), head.register_forward_hook(catch):
        for rows, start in padded_batches(model, rollouts.prompt_mask, batch_size):
            part = rollouts.select(rows).to(model.device)
            output = completion_logits(
                model,
                part.prompt_ids,
                part.prompt_mask,
                part.completion_ids,
                part.completion_mask,
                start,
            )  # (b, T, V), as the model returns them

            # the position before a token is where it was drawn
            before = seen.pop("hidden")[:, -length - 1 : -1]  # (b, T, D)
            raw = seen.pop("logits")[:, -length - 1 : -1]  # (b, T, V), as the head returns them
            if logits is None:
                hidden = before.new_empty(total, before.shape[2])
                logits = raw.new_empty(total, raw.shape[2])

            # a rollout at a time, since the logits are large
            for k, row in enumerate(rows.tolist()):
                place = slice(first[row], first[row] + int(counts[row]))
                alive = part.completion_mask[k].bool()
                hidden[place] = before[k, alive]
                logits[place] = output[k, alive]
                if raw.data_ptr() != output.data_ptr() and alive.any():
                    scale, cap = _after_the_head(model, raw[k, alive], logits[place])
            # the next pass must not find them beside its own
            del before, raw, output

    # a bias and a scale of the layer become part of its input
    if getattr(head, "bias", None) is not None:
        hidden = torch.cat([hidden, torch.ones_like(hidden[:, :1])], dim=1)
    if scale != 1:
        hidden = hidden * scale
    tokens = rollouts.completion_ids[mask].to(model.device)
    return OutputStates(hidden, logits, tokens, cap)


def _after_the_head(
    model: nn.Module, raw: Float[Tensor, "N V"], logits: Float[Tensor, "N V"]
) -> tuple[float, float | None]:
    """(scale, cap) with logits = scale * raw, or cap * tanh(raw / cap).

    Raises ValueError if the model does something else to the logits that its head returns.
    """
    if torch.equal(raw, logits):
        return 1.0, None
    if raw.dtype in (torch.float32, torch.float64):
        tolerance = {"rtol": 1e-5, "atol": 1e-5}
    else:
        # half precision rounds to two or three digits
        tolerance = {"rtol": 2e-2, "atol": 0.1}

    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    if cap is not None and torch.allclose(cap * torch.tanh(raw / cap), logits, **tolerance):
        return 1.0, float(cap)

    # the largest logit shows a factor best
    largest = raw.abs().argmax()
    scale = float(logits.flatten()[largest].double() / raw.flatten()[largest].double())
    if torch.allclose(scale * raw, logits, **tolerance):
        return scale, None
    raise ValueError(
        f"{type(model).__name__} changes the logits after its output layer by more than a factor or"
        " the soft-cap of its config; token coupling through that layer needs to know how."
    )


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
