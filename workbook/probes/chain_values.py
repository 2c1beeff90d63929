"""Exact values of the chain task as a Markov chain over (slot, running value), to a close
approximation.

A prompt's expected reward is a product of m x m matrices of the policy's own probabilities, read
off one pass over m completions a prompt: the right chain, and m - 1 whose first result is off by 1
... m - 1 and which go on faithfully.

    V(t, r) = sum_w p(w | t, r) (g(t, w) + V(t + 1, r'(r, w)))        r' the running value that word w leaves, modulo m

g is what a right result earns where each step is rewarded. A word that the grammar does not admit
ends the chain: no more is earned; one of another alphabet counts as the plain word; a wrong
operator or operand counts as the running value that would give the same result. Words that say
nothing and may stand any number of times leave slot and value as they are: the sum is over all
others, divided by 1 - p of those. Of several ways each has a Markov chain of its own, whose links
are the way's alone, and the opening chooses among them; a second one holds after words that say
nothing, with some of them written after the first result, and the first such word leads there. Left
out: that a step's probabilities depend on style words, on errors before it, and on a wrong first
number. The right chain, which most of the value passes through, is read in several styles if it is
long or rambles. `values.value_error` measures the rest.

Letters: P prompts (times their chains), m modulus, T slots or tokens, W admitted words, B rollouts,
V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbook.messages import InvalidValue
from workbook.rollouts.likelihood import context_logits
from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import pad_rows, tokenize_prompts
from workbook.tasks.chain import (
    OPENINGS,
    OPERATORS,
    Chain,
    Slot,
    in_alphabet,
    marked_alphabet,
    to_first_alphabet,
)

PROMPTS_AT_ONCE = 64  # whose chains share a pass
STYLE_SEED = 0  # of the order of style words over the chains
# steps from which, and ramblings with which, so many more right chains are read
LONG, MORE_RIGHT = 7, 10
MIN_LEAVING = 1e-6  # probability that words that say nothing end


@dataclass(frozen=True)
class ChainTables:
    """A Markov chain of one prompt."""

    # token ids of the words that each slot admits, -1 where it has fewer
    word_ids: Int[Tensor, "T W"]
    stays: Bool[Tensor, "T W"]  # whether the slot is still to come after a word
    moves: Int[Tensor, "T m W"]  # the running value after each word
    gains: Float[Tensor, "T W"]  # what each word earns
    values: Float[Tensor, "T1 m"]  # expected reward to come before each slot, by the running value


def chain_rewards(policy, task: Chain, prompts: Sequence[str]) -> Float[Tensor, " P"]:
    """Expected reward of each prompt: `workbook.probes.values.expected_reward` of a chain."""
    return torch.stack(
        [table.values[0, 0] for table in _tables(policy, task, prompts)[:: _tables_each(task)]]
    )


def chain_values(
    policy, task: Chain, rollouts: Rollouts, vocabulary: int
) -> dict[str, Tensor | None]:
    """The fields of a `workbook.probes.values.TokenValues` of rollouts but for what every policy
    has: before, after.
    """
    prompts = list(dict.fromkeys(rollouts.prompts))
    tables, device = _tables(policy, task, prompts), policy.model.device
    each = _tables_each(task)
    # (B,)
    own = torch.tensor([prompts.index(prompt) * each for prompt in rollouts.prompts], device=device)
    classes = _classes(policy.tokenizer, task, vocabulary, device)
    prompt = torch.stack([table.values[0, 0] for table in tables])[own]
    return {**_follow(tables, own, rollouts, classes, task), "prompt": prompt, "classes": classes}


# -- the Markov chain
# -------------------------------------------------------------------------------------------------


def slots_of(task: Chain, prompt: str, opening: str = "") -> list[Slot]:
    """The slots of a prompt's well-formed completions, in its alphabet; residues and operators
    stand in order.

    opening: of several ways, the one that chooses the completions' way.
    """
    slots, alphabet = (
        task._slots(len(task._parse(prompt)[1]), opening),
        marked_alphabet(prompt) if task.alphabets > 1 else 0,
    )

    def written(words) -> tuple[str, ...]:
        return tuple(in_alphabet(word, alphabet) for word in words)

    own = [
        slot._replace(words=written(slot.words), before=written(slot.before)) for slot in slots[:-1]
    ]
    return [*own, slots[-1]]  # all alphabets have one end of sequence


def _layers(task: Chain) -> int:
    """Markov chains of each way: one, or two, before and after the first word that says nothing."""
    return 2 if task.ramble else 1


def _tables_each(task: Chain) -> int:
    """Markov chains of each prompt: way by way, layer by layer."""
    return task.ways * _layers(task)


def _tables(policy, task: Chain, prompts: Sequence[str]) -> list[ChainTables]:
    """The Markov chains of each prompt; prompts with equally many steps share a pass."""
    prompts, by_steps, tables = list(prompts), {}, {}  # a column of a dataset, too
    each = _tables_each(task)
    for i, prompt in enumerate(prompts):
        by_steps.setdefault(len(task._parse(prompt)[1]), []).append(i)
    for rows in by_steps.values():
        for part in torch.tensor(rows).split(PROMPTS_AT_ONCE):
            chains = _Chains(policy, task, [prompts[i] for i in part])
            places = [i * each + k for i in part.tolist() for k in range(each)]
            tables |= dict(zip(places, chains.tables(), strict=True))
    return [tables[i] for i in range(len(tables))]


class _Chains:
    """P prompts with equally many steps: their slots, completions that pass through every state,
    and their values.

    A prompt stands there once for each of its Markov chains: of a way, with the way's opening, and
    of a layer.
    """

    def __init__(self, policy, task: Chain, prompts: list[str]):
        self.policy, self.task, self.device = policy, task, policy.model.device
        self.layers = _layers(task)
        self.prompts = [prompt for prompt in prompts for _ in range(_tables_each(task))]
        openings = [opening for opening in OPENINGS[: task.ways] for _ in range(self.layers)] * len(
            prompts
        )
        self.parsed = [task._parse(prompt) for prompt in self.prompts]
        # (P, S + 1) running values
        self.right = torch.tensor([task._prefixes(*parts) for parts in self.parsed])
        self.slots = [slots_of(task, *row) for row in zip(self.prompts, openings, strict=True)]
        self.kinds = self.slots[0]  # categories and fields are the same for all
        self.word_ids = self._word_ids()

    def tables(self) -> list[ChainTables]:
        m, moves, stays, gains = self.task.modulus, self._moves(), self._stays(), self._gains()
        admitted = ((self.word_ids >= 0) & ~stays).unsqueeze(1).float()  # (P, 1, T, W)
        with torch.no_grad():
            first = self._read(self._written(admitted)) * admitted
        # probability of each admitted word along m chains; chain j is off by j from its first
        # result on
        # like the right one, in other styles
        more = MORE_RIGHT if self.right.shape[1] > LONG or self.layers > 1 else 0
        read = self._read(self._written(first.expand(-1, m + more, -1, -1)))
        right = torch.cat([read[:, :1], read[:, m:]], dim=1).mean(1, keepdim=True)
        probs = self._by_state(torch.cat([right, read[:, 1:m]], dim=1))
        answers = self.right[:, -1:].to(self.device)  # (P, 1)
        last = (torch.arange(m, device=self.device) == answers).to(probs) * (
            1 - self.task.false_negative_rate
        )
        values = [last if self.task.reward_by == "final" else torch.zeros_like(last)]
        for t in reversed(range(len(self.kinds))):  # (P, m) before slot t
            if self.kinds[t].category == "eos":
                values.append(values[-1])
                continue
            after = values[-1].unsqueeze(1).expand(-1, m, -1).gather(2, moves[:, t])  # (P, m, W)
            if t == 0 and self.task.ways > 1:  # each opening leads to the chain of its own way
                by_way = (
                    values[-1]
                    .unflatten(0, (-1, self.task.ways, self.layers))[:, :, 0]
                    .transpose(1, 2)
                )
                by_way = by_way.repeat_interleave(_tables_each(self.task), dim=0)  # (P, m, ways)
                after = torch.nn.functional.pad(by_way, (0, after.shape[2] - self.task.ways))
            leaves = (probs[:, :, t] * (after + gains[:, t, None]) * ~stays[:, t, None]).sum(2)
            # (P, m) probability of a word that says nothing
            again = (probs[:, :, t] * stays[:, t, None]).sum(2)
            value = leaves / (1 - again).clamp(min=MIN_LEAVING)
            # the first such word leads to the second layer, where the slot is still to come
            if self.layers > 1:
                second = value[1::2].repeat_interleave(2, dim=0)
                value = torch.where(self._second()[:, None], value, leaves + again * second)
            values.append(value)
        stacked = torch.stack(values[::-1], dim=1)  # (P, T + 1, m)
        return [
            ChainTables(*parts)
            for parts in zip(self.word_ids, stays, moves, gains, stacked, strict=True)
        ]

    def _word_ids(self) -> Int[Tensor, "P T W"]:
        width = max(
            len(slot.words) + len(slot.before) for slot in self.kinds if slot.category != "eos"
        )
        ids = torch.full((len(self.prompts), len(self.kinds), width), -1)
        known, tokenizer = {}, self.policy.tokenizer
        for p, slots in enumerate(self.slots):
            for t, slot in enumerate(slots):
                if slot.category == "eos":
                    ids[p, t, 0] = tokenizer.eos_token_id
                    continue
                words = (*slot.words, *slot.before)
                for word in set(words) - known.keys():
                    known[word], *more = tokenizer(word, add_special_tokens=False)["input_ids"]
                    if more or known[word] == tokenizer.unk_token_id:
                        raise InvalidValue(
                            "word",
                            word,
                            "one known token of this tokenizer, for exact values; it is"
                            f" {1 + len(more)}",
                        )
                ids[p, t, : len(words)] = torch.tensor([known[word] for word in words])
        return ids.to(self.device)

    def _stays(self) -> Bool[Tensor, "P T W"]:
        """Whether a slot is still to come after each word."""
        words = torch.arange(self.word_ids.shape[2], device=self.device)
        own = [len(slot.words) if slot.before else len(words) for slot in self.kinds]
        return (words >= torch.tensor(own, device=self.device)[:, None]) & (self.word_ids >= 0)

    def _gains(self) -> Float[Tensor, "P T W"]:
        """What each word earns: where steps are rewarded, the right result of one."""
        gains = torch.zeros(self.word_ids.shape)
        results = [t for t, slot in enumerate(self.kinds) if slot.field == "result"]
        if self.task.reward_by == "steps":
            for step, t in enumerate(results, 1):
                earned = torch.full(
                    (len(gains), 1), (1 - self.task.false_negative_rate) / len(results)
                )
                gains[:, t].scatter_(1, self.right[:, step, None], earned)
        return gains.to(self.device)

    def _moves(self) -> Int[Tensor, "P T m W"]:
        """The running value after each word; a wrong operator or operand counts as the value that
        it amounts to.
        """
        m, (P, T, W) = self.task.modulus, self.word_ids.shape
        states, words = (
            torch.arange(m)[:, None].expand(m, W),
            torch.arange(W).clamp(max=m - 1).expand(m, W),
        )
        moves = states.expand(P, T, m, W).clone()
        for t, slot in enumerate(self.kinds):
            if slot.field in ("start", "a", "result", "final"):
                moves[:, t] = words
            elif slot.field in ("op", "b"):
                shifts = torch.zeros(P, 1, W, dtype=torch.long)
                for p, (numbers, operators) in enumerate(self.parsed):
                    operator, number = operators[slot.step], numbers[slot.step + 1]
                    right = self.task._apply(0, operator, number)
                    if slot.field == "op":
                        added = [self.task._apply(0, sign, number) - right for sign in OPERATORS]
                    else:
                        added = [self.task._apply(0, operator, other) - right for other in range(m)]
                    shifts[p, 0, : len(added)] = torch.tensor(added)  # over what the right one adds
                moves[:, t] = (states + shifts) % m
        return moves.to(self.device)

    def _written(self, weights: Float[Tensor, "P n T W"]) -> Int[Tensor, "P n T"]:
        """Token ids of n chains of each prompt, off by 0 ... m - 1 and then by 0, free words in
        proportion to weights.

        They share out each slot's words: quantiles in a random order, the same for every prompt.
        """
        generator = torch.Generator().manual_seed(STYLE_SEED)
        (_, n, T, _), shares = (
            weights.shape,
            weights.cpu().cumsum(3) / weights.cpu().sum(3, keepdim=True),
        )
        # (n, T)
        quantiles = torch.stack([torch.randperm(n, generator=generator) for _ in range(T)], dim=1)
        drawn = (shares[..., :-1] < ((quantiles + 0.5) / n).unsqueeze(2)).sum(3)  # (P, n, T)
        if self.task.ways > 1:
            drawn[:, :, 0] = (torch.arange(len(drawn)) // self.layers % self.task.ways)[:, None]
        off, results = torch.arange(n) * (torch.arange(n) < self.task.modulus), 0
        for t, slot in enumerate(self.kinds):
            if slot.field == "op":
                drawn[:, :, t] = torch.tensor(
                    [OPERATORS.index(o[slot.step]) for _, o in self.parsed]
                )[:, None]
            elif slot.field == "b":
                drawn[:, :, t] = torch.tensor(
                    [numbers[slot.step + 1] for numbers, _ in self.parsed]
                )[:, None]
            elif slot.field:  # a number that is, or becomes, the running value
                results += slot.field == "result"
                drawn[:, :, t] = (
                    self.right[:, results, None] + off * (results > 0)
                ) % self.task.modulus
        ids = self.word_ids.unsqueeze(1).expand(-1, n, -1, -1)
        return ids.gather(3, drawn.to(self.device).unsqueeze(3)).squeeze(3)

    def _read(self, written: Int[Tensor, "P n T"]) -> Float[Tensor, "P n T W"]:
        """Probability of each admitted word in each context of the chains."""
        P, n, T = written.shape
        rows = [
            row for row in tokenize_prompts(self.policy.tokenizer, self.prompts) for _ in range(n)
        ]
        prompts = pad_rows(rows, self.policy.tokenizer.pad_token_id, "left", self.device)
        # (P, n, T or more), and T places among them
        written, alive, places = self._rambling(written)
        logits = context_logits(
            self.policy.model, *prompts, written.flatten(0, 1), alive.flatten(0, 1)
        )
        if self.layers > 1:
            logits = logits.gather(1, places.reshape(P * n, T, 1).expand(-1, -1, logits.shape[2]))
        ids, probs = self.word_ids.clamp(min=0), logits.softmax(-1)
        classes = _classes(self.policy.tokenizer, self.task, probs.shape[-1], self.device)
        if classes is not None:  # a word of another alphabet is read as the plain word
            ids, probs = classes[ids], torch.zeros_like(probs).index_add(2, classes, probs)
        known = (self.word_ids >= 0).unsqueeze(1)
        return probs.view(P, n, T, -1).gather(3, ids.unsqueeze(1).expand(-1, n, -1, -1)) * known

    def _second(self) -> Bool[Tensor, " P"]:
        """Which of the chains are of the second layer."""
        return torch.arange(len(self.prompts), device=self.device) % 2 == self.layers - 1

    def _rambling(
        self, written: Int[Tensor, "P n T"]
    ) -> tuple[Tensor, Tensor, Int[Tensor, "P n T"]]:
        """Completions with words that say nothing, their mask, and where their slots are.

        In the second layer they stand after the first result: 1 ... `ramble` of them, spread over
        the right chains and over the others.
        """
        (_, n, T), m = written.shape, self.task.modulus
        places = torch.arange(T, device=self.device).expand_as(written)
        if self.layers == 1:
            return written, torch.ones_like(written), places
        counts = torch.zeros(n)
        for chains in ([0, *range(m, n)], [*range(1, min(m, n))]):
            counts[chains] = (
                (torch.arange(len(chains)) + 0.5) / max(1, len(chains)) * self.task.ramble
            ).ceil()
        first = next(t for t, slot in enumerate(self.kinds) if slot.before)
        inserted = self._second()[:, None] * counts.long().to(self.device)  # (P, n)
        places = places + inserted.unsqueeze(2) * (places >= first)
        start, kinds, length = (
            len(self.kinds[first].words),
            len(self.kinds[first].before),
            T + self.task.ramble,
        )
        words = torch.randint(kinds, (length,), generator=torch.Generator().manual_seed(STYLE_SEED))
        filled = (
            self.word_ids[:, first, start + words.to(self.device)]
            .unsqueeze(1)
            .repeat(1, n, 1)
            .clone()
        )
        alive = torch.arange(length, device=self.device) <= places[:, :, -1:]
        return filled.scatter(2, places, written), alive.long(), places

    def _by_state(self, probs: Float[Tensor, "P m T W"]) -> Float[Tensor, "P m T W"]:
        """Those probabilities by running value in place of chain.

        Before the first result all chains are in the right state: their mean serves, shifted with
        the running value.
        """
        m, results, columns = self.task.modulus, 0, []
        states = torch.arange(m, device=self.device)
        for t, slot in enumerate(self.kinds):
            # (P, m): the chain in each state
            off = (states - self.right[:, results, None].to(self.device)) % m
            if results:
                columns.append(
                    probs[:, :, t].gather(1, off.unsqueeze(2).expand(-1, -1, probs.shape[3]))
                )
            else:
                column = probs[:, :, t].mean(1, keepdim=True).expand(-1, m, -1)
                shifted = (states - off.unsqueeze(2)) % m  # (P, m, m)
                columns.append(
                    column.gather(2, shifted) if slot.field in ("a", "result") else column
                )
            results += slot.field == "result"
        widened = [
            torch.nn.functional.pad(column, (0, probs.shape[3] - column.shape[2]))
            for column in columns
        ]
        return torch.stack(widened, dim=2)


# -- words, tokens and contexts
# ---------------------------------------------------------------------------------------


def _follow(
    tables: list[ChainTables],
    own: Int[Tensor, " B"],
    rollouts: Rollouts,
    classes: Tensor | None,
    task: Chain,
) -> dict[str, Tensor]:
    """q (B, T, W), word ids (B, T, W), values elsewhere (B, T) and whether inside (B, T), token by
    token.

    own: table of each rollout's prompt, of the first way and layer; the others follow it.
    """
    device, (B, T), W = (
        own.device,
        rollouts.completion_ids.shape,
        max(table.word_ids.shape[1] for table in tables),
    )
    tokens, inside = rollouts.completion_ids.to(device), rollouts.completion_mask.to(device).bool()
    lengths = torch.tensor([len(table.word_ids) for table in tables], device=device)
    word_ids, stays = (
        _stacked([table.word_ids for table in tables], -1),
        _stacked([table.stays for table in tables]),
    )
    moves, values = (
        _stacked([table.moves for table in tables]),
        _stacked([table.values for table in tables]),
    )
    gains, layers = _stacked([table.gains for table in tables]), _layers(task)
    openings = torch.arange(W, device=device).clamp(max=task.ways - 1) * layers
    q, ids = values.new_zeros(B, T, W), torch.full((B, T, W), -1, device=device)
    elsewhere, earned, holds = (
        values.new_zeros(B, T),
        values.new_zeros(B),
        torch.ones_like(own, dtype=torch.bool),
    )
    state, at = torch.zeros_like(own), torch.zeros_like(own)  # (B,) running value, and slot
    for t in range(T):
        inside[:, t] &= holds & (at < lengths[own])
        slot = at.clamp(max=word_ids.shape[1] - 1)
        # (B, W) each
        next_own = own[:, None] + (openings if t == 0 else torch.zeros_like(openings))
        next_own = next_own + stays[own, slot] * (own[:, None] % 2 < layers - 1)
        next_slot, next_state = slot[:, None] + 1 - stays[own, slot].long(), moves[own, slot, state]
        next_earned = earned[:, None] + gains[own, slot]
        q[:, t] = (next_earned + values[next_own, next_slot, next_state]) * inside[:, t, None]
        ids[:, t] = word_ids[own, slot].masked_fill(~inside[:, t, None], -1)
        ends = at == lengths[own] - 1  # the answer stands: what ends the completion changes nothing
        elsewhere[:, t] = (earned + values[own, slot, state] * ends) * inside[:, t]
        hit = ids[:, t] == tokens[:, t, None]
        if classes is not None:
            hit = (classes[ids[:, t].clamp(min=0)] == classes[tokens[:, t, None]]) & (
                ids[:, t] >= 0
            )
        holds, chosen = hit.any(1), hit.long().argmax(1, keepdim=True)
        nexts = (next_own, next_slot, next_state, next_earned)
        own, at, state, earned = (choice.gather(1, chosen).squeeze(1) for choice in nexts)
    return {"q": q, "word_ids": ids, "elsewhere": elsewhere, "inside": inside}


def _stacked(parts: list[Tensor], fill: float = 0) -> Tensor:
    """Tensors of the same number of dimensions as one, padded at the end of each dimension."""
    shape = [max(part.shape[d] for part in parts) for d in range(parts[0].dim())]
    out = parts[0].new_full((len(parts), *shape), fill)
    for i, part in enumerate(parts):
        out[(i, *(slice(n) for n in part.shape))] = part
    return out


def _classes(tokenizer, task: Chain, vocabulary: int, device) -> Int[Tensor, " V"] | None:
    """The plain word that each word stands for, as token ids; None with one alphabet, where all are
    plain.
    """
    if task.alphabets == 1:
        return None
    words, classes = tokenizer.get_vocab(), torch.arange(vocabulary, device=device)
    for word, token in words.items():
        classes[token] = words.get(to_first_alphabet(word), token)
    return classes
