"""What credit rules and probes read off rollouts and a policy: a `CreditBatch`, and output states.

What a rule does not ask for is not computed. Sampling in a rule draws from the batch's own
generator, and leaves the global random states, grad mode, and the model's train or eval mode as
they were.

Output states are the hidden states and logits where each token was drawn. Every head is taken as
one linear layer under a softmax: of a bias 1 is appended to the hidden state; a scale s (Cohere,
Granite) makes the input s h; a soft-cap (Gemma 2), z = cap tanh(W h / cap), stays, and theory
applies the chain rule.

Letters: B rollouts, N completion tokens of them, in the order of their token table; D width; V
vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress

import pandas as pd
import torch
from jaxtyping import Float, Int
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
    """hidden (N, D) goes into the output layer, logits (N, V) come out, tokens (N,) were drawn from
    them.

    logits are those the softmax gets. A scale and a bias of the layer are part of hidden, as the
    module's docstring says; cap is the soft-cap on the logits, None without one.
    """

    hidden: Float[Tensor, "N D"]
    logits: Float[Tensor, "N V"]
    tokens: Int[Tensor, " N"]
    cap: float | None = None

    def coupled(self, index: int, weights: Float[Tensor, " N"], lr: float = 1.0) -> pd.DataFrame:
        """Movement of token `index` by a step on every token through the output layer: one row per
        token j.

        delta log pi(i) = sum of contribution over j, to first order, with contribution_j = lr w_j
        <h_i, h_j> <e_i - p_i, e_j - p_j> (arXiv 2605.08666, figure 2; H2 in the claims).

        weights: (N,) update weight x advantage of each token.  Columns: hidden and residual (the
        two inner products), coupling (their product K_ij), weight, contribution (nats).
        """
        hidden, residual = coupling_factors(self.hidden, self.logits, self.tokens, index, self.cap)
        coupling = hidden * residual
        weights = weights.to(coupling)
        columns = {"hidden": hidden, "residual": residual, "coupling": coupling, "weight": weights}
        columns["contribution"] = lr * weights * coupling
        return pd.DataFrame({name: column.cpu().numpy() for name, column in columns.items()})

    def select(self, index: Int[Tensor, " M"]) -> OutputStates:
        return OutputStates(self.hidden[index], self.logits[index], self.tokens[index], self.cap)

    def kernel(self) -> Float[Tensor, "N N"]:
        """K_ij of all pairs, by `coupling_kernel`: take the states of one group, as it is N x N."""
        return coupling_kernel(self.hidden, self.logits, self.tokens, self.cap)

    def strips(self) -> Iterator[tuple[int, Float[Tensor, "m M"]]]:
        """The same in strips K[i : i + m, i:] from the diagonal on, with their i, by
        `kernel_strips`.
        """
        return kernel_strips(self.hidden, self.logits, self.tokens, self.cap)

    def predicted(
        self, weights: Float[Tensor, " N"], lr: float, order: str = "exact"
    ) -> Float[Tensor, " N"]:
        """Change of every token's log-probability by one SGD step on the output layer, by
        `predicted_delta_logp`.
        """
        return predicted_delta_logp(
            self.hidden, self.logits, self.tokens, weights, lr, order, self.cap
        )


@in_batches
def output_states(policy, rollouts: Rollouts) -> OutputStates:
    """The output layer's inputs and outputs at every completion token of the rollouts, by teacher
    forcing.

    Memory: N x (D + V) numbers in the model's dtype, held once, and a pass's: take a group at a
    time. Raises ValueError for a model without an output layer, and for one that changes the logits
    after it by anything but a factor or its config's soft-cap: the coupling formula holds for a
    linear layer under a softmax.
    """
    model = reading(policy).model
    head = model.get_output_embeddings()
    if head is None:
        raise ValueError(
            f"{type(model).__name__} names no output layer; token coupling goes through one."
        )
    (_, length), mask = rollouts.completion_ids.shape, rollouts.completion_mask.bool()
    counts = mask.sum(1)
    first = (counts.cumsum(0) - counts).tolist()  # of each rollout's tokens
    batch_size = rows_at_once(model, rollouts.prompt_ids.shape[1] + length, length, "states")
    # seen: inputs and outputs of the head's latest pass
    seen, hidden, logits, scale, cap = {}, None, None, 1.0, None
    handle = head.register_forward_hook(
        lambda _, inputs, output: seen.update(hidden=inputs[0], logits=output)
    )
    with torch.no_grad(), handle:
        for rows, start in padded_batches(model, rollouts.prompt_mask, batch_size):
            part = rollouts.select(rows).to(model.device)
            columns = (part.prompt_ids, part.prompt_mask, part.completion_ids, part.completion_mask)
            output = completion_logits(model, *columns, start)
            before, raw = (seen.pop(name)[:, -length - 1 : -1] for name in ("hidden", "logits"))
            if logits is None:
                hidden, logits = (x.new_empty(int(counts.sum()), x.shape[2]) for x in (before, raw))
            for k, row in enumerate(rows.tolist()):  # one at a time, since the logits are large
                here, alive = (
                    slice(first[row], first[row] + int(counts[row])),
                    part.completion_mask[k].bool(),
                )
                hidden[here], logits[here] = before[k, alive], output[k, alive]
                if raw.data_ptr() != output.data_ptr() and alive.any():
                    scale, cap = _after_the_head(model, raw[k, alive], logits[here])
            del before, raw, output
    if getattr(head, "bias", None) is not None:
        hidden = torch.cat([hidden, torch.ones_like(hidden[:, :1])], dim=1)
    tokens = rollouts.completion_ids[mask].to(model.device)
    return OutputStates(hidden * scale if scale != 1 else hidden, logits, tokens, cap)


def _after_the_head(model: nn.Module, raw: Float[Tensor, "N V"], logits: Float[Tensor, "N V"]):
    """(scale, cap) with logits = scale * raw, or cap * tanh(raw / cap); ValueError if neither is
    so.
    """
    if torch.equal(raw, logits):
        return 1.0, None
    close = (
        {"rtol": 1e-5, "atol": 1e-5}
        if raw.dtype in (torch.float32, torch.float64)
        else {"rtol": 2e-2, "atol": 0.1}
    )
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    if cap is not None and torch.allclose(cap * torch.tanh(raw / cap), logits, **close):
        return 1.0, float(cap)
    most = raw.abs().argmax()  # where a factor shows best
    scale = float(logits.flatten()[most].double() / raw.flatten()[most].double())
    if torch.allclose(scale * raw, logits, **close):
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
    """What a credit rule is told about rollouts of a policy, in whole groups.

    task: rewards continuations, and knows true credit where it can (`Task.calibrated`); without
    one, the rollouts' own `credits` are the known credit.  seed, step: all that the batch's
    generator depends on.
    max_new_tokens: of prefix and continuation together (None: the width of
    completion_ids).  temperature: of log-probabilities, entropies, states and continuations.  top_p
    ... generation_kwargs: of continuations, as in `sample_rollouts`.  own_tokens: (B, T), 0 on
    tokens that a tool wrote, which no rule credits.
    known: values of `theory.credit.LAZY` that are at hand already, e.g. logps, or functions that
    compute them.

    Where the rollouts' old_logps are not known they are those of now. The batch holds copies.
    Raises ValueError for rewards that are not finite, and on access for what is not known.
    """
    mask = rollouts.completion_mask.bool()
    mask = mask if own_tokens is None else mask & own_tokens.bool()
    source = _Source(policy, rollouts, task, temperature, batch_size, mask)
    if max_new_tokens is None:
        max_new_tokens = rollouts.completion_ids.shape[1]
    sampling = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p}
    sampling |= {"repetition_penalty": repetition_penalty, "max_new_tokens": max_new_tokens}
    # which may be close to one another
    numbers = [*([seed] if isinstance(seed, int) else seed), step]
    digest = hashlib.blake2b(repr(list(map(int, numbers))).encode(), digest_size=7).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "big"))
    lazy = {"logps": lambda: source.scores[0], "entropies": lambda: source.scores[1]}
    lazy |= {"old_logps": lambda: source.old_logps(lambda: batch.logps)}
    lazy |= {"states": source.states, "tokens": source.tokens, "prompts": source.prompts}
    lazy |= (
        {"known_credit": source.known_credit}
        if rollouts.credits or hasattr(task, "annotate")
        else {}
    )
    lazy |= {"answers": source.answers} if hasattr(task, "stated") else {}
    texts = rollouts.prompts is not None and all(
        isinstance(prompt, str) for prompt in rollouts.prompts
    )
    lazy |= {"places": source.places} if hasattr(task, "places") and texts else {}
    can_sample = hasattr(task, "reward") and rollouts.prompts is not None
    batch = CreditBatch(
        rewards=rollouts.rewards.detach().clone(),
        group_ids=rollouts.group_ids.clone(),
        completion_ids=rollouts.completion_ids.clone(),
        mask=mask.clone(),
        step=step,
        generator=generator,
        continuation=(
            _continuation(source, sampling, generation_kwargs or {}, generator)
            if can_sample
            else None
        ),
        **lazy
        | {
            name: value if callable(value) else value.detach().clone()
            for name, value in known.items()
        },
    )
    return batch


@dataclass(frozen=True)
class _Source:
    """What a batch is made from; each method computes one value of it."""

    policy: object
    rollouts: Rollouts
    task: object
    temperature: float
    batch_size: int
    mask: Tensor

    @cached_property
    def rows(self) -> list[dict]:
        rollouts, none = self.rollouts, [None] * len(self.rollouts)
        extras = rollouts.extras or [{}] * len(rollouts)
        columns = zip(rollouts.prompts or none, rollouts.answers or none, extras, strict=True)
        return [{"prompt": prompt, "answer": answer} | extra for prompt, answer, extra in columns]

    @cached_property
    def scores(self) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
        """Log-probabilities and entropies under the policy of now."""
        rollouts, model = self.rollouts, self.policy.model
        inputs = (
            rollouts.prompt_ids,
            rollouts.prompt_mask,
            rollouts.completion_ids,
            rollouts.completion_mask,
        )
        with evaluating(model), torch.no_grad():
            return sequence_logps(
                model, *(tensor.to(model.device) for tensor in inputs), self.temperature
            )

    def old_logps(self, of_now: Callable[[], Tensor]) -> Float[Tensor, "B T"]:
        """Log-probabilities of the policy that sampled, those of now where they are not known."""
        old = self.rollouts.old_logps
        return torch.where(old.isnan(), of_now().to(old), old) if old.isnan().any() else old.clone()

    def states(self) -> OutputStates:
        """Output states of softmax(z / temperature): the output layer takes h / temperature then."""
        # the very model: a trainer has put a forward pass of its own into it
        with evaluating(self.policy.model):
            states, divisor = output_states(self.policy, self.rollouts), self.temperature
        written = self.rollouts.completion_mask.bool()
        if not torch.equal(self.mask, written):
            states = states.select(self.mask[written].nonzero().squeeze(1).to(states.tokens.device))
        if divisor == 1:
            return states
        cap = None if states.cap is None else states.cap / divisor
        return OutputStates(states.hidden / divisor, states.logits / divisor, states.tokens, cap)

    def strings(self) -> list[list[str]]:
        rows = unpadded(self.rollouts.completion_ids, self.rollouts.completion_mask)
        return [
            list(row) for row in self.rollouts.tokens or token_strings(self.policy.tokenizer, rows)
        ]

    def tokens(self) -> list[list[str]]:
        """The policy's own tokens of each completion."""
        own = unpadded(self.mask, self.rollouts.completion_mask)
        return [list(compress(row, kept)) for row, kept in zip(self.strings(), own, strict=True)]

    def prompts(self) -> list[str]:
        """Prompts as text; of a chat, what its template makes of it."""
        prompts = self.rollouts.prompts or [None]
        if isinstance(prompts[0], str):
            return list(prompts)
        rows = unpadded(self.rollouts.prompt_ids, self.rollouts.prompt_mask)
        return [self.policy.tokenizer.decode(row) for row in rows]

    def texts(self) -> list[str]:
        """Completions as text."""
        rows = unpadded(self.rollouts.completion_ids, self.rollouts.completion_mask)
        return self.rollouts.completions or self.policy.tokenizer.batch_decode(
            rows, skip_special_tokens=True
        )

    def places(self) -> Int[Tensor, "B T"]:
        """The slot of each completion token in the task's grammar."""
        mask = self.rollouts.completion_mask.bool()
        rows = map(self.task.places, self.rollouts.prompts, self.strings())
        places = torch.zeros(mask.shape, dtype=torch.long, device=mask.device)
        places[mask] = torch.tensor([place for row in rows for place in row], device=mask.device)
        return places

    def answers(self) -> list[str | None]:
        """The answer that each completion states."""
        return [self.task.stated(text) for text in self.texts()]

    def known_credit(self) -> Float[Tensor, "B T"] | None:
        """True credit of each token, None where it is not known of any."""
        credits = self.rollouts.credits
        if hasattr(self.task, "annotate") and self.rollouts.prompts is not None:
            texts = self.texts()
            task = self.task.calibrated(texts) if hasattr(self.task, "calibrated") else self.task
            credits = annotations(task, self.rows, self.strings())[1]
        if credits is None:
            return None
        mask = self.rollouts.completion_mask.bool()
        known = torch.zeros(mask.shape, dtype=self.rollouts.rewards.dtype, device=mask.device)
        known[mask] = torch.tensor([credit for row in credits for credit in row]).to(known)
        return known


def _continuation(
    source: _Source, sampling: dict, generation_kwargs: dict, generator: torch.Generator
) -> Callable:
    """The function behind `CreditBatch.continue_from`."""
    policy, rollouts = source.policy, source.rollouts
    most, ends = sampling["max_new_tokens"], set(end_tokens(policy))
    prompts = unpadded(rollouts.prompt_ids, rollouts.prompt_mask)

    def continue_from(chosen: Tensor, prefixes: list[list[int]]) -> tuple[list[float], int]:
        vocabulary = policy.model.get_input_embeddings().num_embeddings
        if any(
            len(prefix) > most or not all(0 <= token < vocabulary for token in prefix)
            for prefix in prefixes
        ):
            raise InvalidValue(
                "prefixes",
                prefixes,
                f"lists of at most {most} token ids from 0 to {vocabulary - 1}",
            )
        seed = int(torch.randint(2**62, (), generator=generator))
        completions = [list(prefix) for prefix in prefixes]
        open_ended = [
            i
            for i, prefix in enumerate(prefixes)
            if len(prefix) < most and not ends & set(prefix[-1:])
        ]
        if open_ended:
            asked = sampling | {"max_new_tokens": max(most - len(prefixes[i]) for i in open_ended)}
            config = sampling_config(policy, asked, generation_kwargs)
            contexts = [prompts[int(chosen[i])] + completions[i] for i in open_ended]
            pad = policy.tokenizer.pad_token_id
            with evaluating(policy.model), torch.no_grad():
                ids, mask = pad_rows(contexts, pad, side="left", device=policy.model.device)
                sampled, _ = generate(policy, ids, mask, seed, config, source.batch_size)
            for i, row in zip(open_ended, sampled, strict=True):
                completions[i] += row[: most - len(completions[i])]
        texts = policy.tokenizer.batch_decode(completions, skip_special_tokens=True)
        rows = [source.rows[row] for row in chosen.tolist()]
        count = sum(map(len, completions)) - sum(map(len, prefixes))
        return task_rewards(source.task, rows, texts, completions), count

    return continue_from
