"""Exact values of the chain task as a Markov chain over (slot, running value), closely.

A chain's expected reward is a sum over all completions that a policy could write, far too many to
walk through. But the reward depends on one number alone, the running value, modulo m. So a prompt's
values follow from m x m matrices of the policy's own probabilities, one for each slot:

    V(t, r) = sum_w p(w | t, r) (g(t, w) + V(t + 1, r'(r, w)))

with r' the running value that word w leaves, and g what a right result earns where each step is
rewarded. The probabilities come from one pass over m completions of each prompt: the right chain,
and m - 1 others, whose first result is off by 1 ... m - 1 and which go on faithfully.

- A word that the grammar does not admit ends the chain: no more is earned. One of another alphabet
  counts as the plain word. A wrong operator or operand counts as the running value that would give
  the same result.
- Words that say nothing and may stand any number of times leave slot and value as they are: the sum
  is over all others, divided by 1 - p of those.
- Of several *ways* each has a Markov chain of its own, whose links are the way's alone, and the
  opening chooses among them.
- Where words that say nothing may stand, there is a second *layer*: a Markov chain that holds after
  the first such word, read with some of them written after the first result.

Left out: that a step's probabilities depend on style words, on errors before it, and on a wrong
first number. The right chain, which most of the value passes through, is read in several styles if
it is long or rambles. `values.value_error` measures the rest.

Letters: P prompts (times their chains), n completions of each, m modulus, S steps, T slots or
tokens, W admitted words, B rollouts, V vocabulary.
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

_PROMPTS_AT_ONCE = 64  # whose chains share a pass
_STYLE_SEED = 0  # of the order of style words over the chains
_LONG_STEPS = 7  # from which on a chain is long
_MORE_RIGHT = 10  # more right chains that are read of a long one, or of one that rambles
_MIN_LEAVING = 1e-6  # probability that words that say nothing end


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
    first_tables = _tables(policy, task, prompts)[:: _tables_each(task)]
    return torch.stack([table.values[0, 0] for table in first_tables])


def chain_values(
    policy, task: Chain, rollouts: Rollouts, vocabulary: int
) -> dict[str, Tensor | None]:
    """The fields of a `workbook.probes.values.TokenValues` of rollouts, but for before and after.

    Those two follow from the others and the policy's probabilities in any task.
    """
    device = policy.model.device
    prompts = list(dict.fromkeys(rollouts.prompts))
    tables = _tables(policy, task, prompts)
    # the first table of each rollout's prompt, (B,)
    first = [prompts.index(prompt) * _tables_each(task) for prompt in rollouts.prompts]
    own = torch.tensor(first, device=device)
    classes = _classes(policy.tokenizer, task, vocabulary, device)
    return {
        **_follow(tables, own, rollouts, classes, task),
        "prompt": torch.stack([table.values[0, 0] for table in tables])[own],
        "classes": classes,
    }


# -- the Markov chain


def prompt_slots(task: Chain, prompt: str, opening: str = "") -> list[Slot]:
    """The slots of a prompt's well-formed completions, in its alphabet.

    Residues and operators stand in order.  opening: of several ways, the one that chooses the
    completions' way.
    """
    steps = len(task.parse_prompt(prompt)[1])
    alphabet = marked_alphabet(prompt) if task.alphabets > 1 else 0

    def written(words) -> tuple[str, ...]:
        return tuple(in_alphabet(word, alphabet) for word in words)

    *slots, end = task.slots(steps, opening)
    slots = [
        slot._replace(words=written(slot.words), before=written(slot.before)) for slot in slots
    ]
    # all alphabets have one end of sequence
    return [*slots, end]


def _layers(task: Chain) -> int:
    """Markov chains of each way: one, or two, before and after the first word that says nothing."""
    return 2 if task.ramble else 1


def _tables_each(task: Chain) -> int:
    """Markov chains of each prompt: way by way, layer by layer."""
    return task.ways * _layers(task)


def _tables(policy, task: Chain, prompts: Sequence[str]) -> list[ChainTables]:
    """The Markov chains of each prompt; prompts with equally many steps share a pass."""
    prompts = list(prompts)  # they may be a column of a dataset
    each = _tables_each(task)
    by_steps: dict[int, list[int]] = {}
    for i, prompt in enumerate(prompts):
        by_steps.setdefault(len(task.parse_prompt(prompt)[1]), []).append(i)
    tables: dict[int, ChainTables] = {}
    for rows in by_steps.values():
        for start in range(0, len(rows), _PROMPTS_AT_ONCE):
            part = rows[start : start + _PROMPTS_AT_ONCE]
            chains = _Chains(policy, task, [prompts[i] for i in part])
            places = [i * each + k for i in part for k in range(each)]
            tables.update(zip(places, chains.tables(), strict=True))
    return [tables[place] for place in range(len(tables))]


class _Chains:
    """Prompts with equally many steps: their slots, and the Markov chains' tables.

    A prompt stands there once for each of its Markov chains: of a way, with the way's opening, and
    of a layer. `tables` reads the policy and solves for the values; the methods after it make what
    it needs, in order.
    """

    def __init__(self, policy, task: Chain, prompts: list[str]):
        self.policy = policy
        self.task = task
        self.device = policy.model.device
        self.layers = _layers(task)
        self.prompts = [prompt for prompt in prompts for _ in range(_tables_each(task))]
        openings_of_prompt = [
            opening for opening in OPENINGS[: task.ways] for _ in range(self.layers)
        ]
        openings = openings_of_prompt * len(prompts)
        self.parsed = [task.parse_prompt(prompt) for prompt in self.prompts]
        # (P, S + 1) running values of the right chain
        self.right = torch.tensor([task.running_values(*parts) for parts in self.parsed])
        self.slots = [
            prompt_slots(task, prompt, opening)
            for prompt, opening in zip(self.prompts, openings, strict=True)
        ]
        self.kinds = self.slots[0]  # categories and fields are the same for all
        self.word_ids = self._word_ids()

    def tables(self) -> list[ChainTables]:
        """The Markov chain of each prompt, way and layer."""
        stays = self._stays()
        moves = self._moves()
        gains = self._gains()
        probs = self._probabilities(stays)  # (P, m, T, W)

        # backwards from the last slot: (P, m) expected reward before each
        values = [self._value_at_end(probs.dtype)]
        for t in reversed(range(len(self.kinds))):
            if self.kinds[t].category == "eos":
                values.append(values[-1])
                continue
            after = self._value_after(values[-1], moves[:, t], first=t == 0)  # (P, m, W)
            earned = probs[:, :, t] * (after + gains[:, t, None])
            leaving = (earned * ~stays[:, t, None]).sum(2)
            # (P, m) probability of a word that says nothing
            staying = (probs[:, :, t] * stays[:, t, None]).sum(2)
            # any number of them: a geometric series
            value = leaving / (1 - staying).clamp(min=_MIN_LEAVING)
            if self.layers > 1:
                # the first such word leads to the second layer, where the slot is still to come
                second = value[1::2].repeat_interleave(2, dim=0)
                in_second = self._in_second_layer()[:, None]
                value = torch.where(in_second, value, leaving + staying * second)
            values.append(value)
        stacked = torch.stack(values[::-1], dim=1)  # (P, T + 1, m)
        columns = zip(self.word_ids, stays, moves, gains, stacked, strict=True)
        return [ChainTables(*parts) for parts in columns]

    def _value_at_end(self, dtype: torch.dtype) -> Float[Tensor, "P m"]:
        """What a completion still earns behind its last word, by the running value."""
        answers = self.right[:, -1:].to(self.device)  # (P, 1)
        is_right = (torch.arange(self.task.modulus, device=self.device) == answers).to(dtype)
        if self.task.reward_by == "final":
            return is_right * (1 - self.task.false_negative_rate)
        return torch.zeros_like(is_right)

    def _value_after(
        self, following: Float[Tensor, "P m"], moves: Int[Tensor, "P m W"], first: bool
    ) -> Float[Tensor, "P m W"]:
        """Value after each word of a slot, from the values before the slot that follows."""
        m = self.task.modulus
        after = following.unsqueeze(1).expand(-1, m, -1).gather(2, moves)
        if not (first and self.task.ways > 1):
            return after
        # each opening leads to the first layer's chain of its own way
        by_way = following.unflatten(0, (-1, self.task.ways, self.layers))[:, :, 0]
        by_way = by_way.transpose(1, 2).repeat_interleave(_tables_each(self.task), dim=0)
        # (P, m, ways) to (P, m, W)
        return torch.nn.functional.pad(by_way, (0, after.shape[2] - self.task.ways))

    # what words a slot admits, and what they do

    def _word_ids(self) -> Int[Tensor, "P T W"]:
        """Token ids of the words that each slot admits, its own first, -1 where it has fewer."""
        tokenizer = self.policy.tokenizer
        inner = [slot for slot in self.kinds if slot.category != "eos"]
        width = max(len(slot.words) + len(slot.before) for slot in inner)
        ids = torch.full((len(self.prompts), len(self.kinds), width), -1)
        known: dict[str, int] = {}
        for p, slots in enumerate(self.slots):
            for t, slot in enumerate(slots):
                if slot.category == "eos":
                    ids[p, t, 0] = tokenizer.eos_token_id
                    continue
                words = (*slot.words, *slot.before)
                for word in set(words) - known.keys():
                    known[word] = token_of_word(tokenizer, word)
                ids[p, t, : len(words)] = torch.tensor([known[word] for word in words])
        return ids.to(self.device)

    def _stays(self) -> Bool[Tensor, "P T W"]:
        """Whether a slot is still to come after each word."""
        words = torch.arange(self.word_ids.shape[2], device=self.device)
        # a slot's words that say nothing stand behind its own
        own = [len(slot.words) if slot.before else len(words) for slot in self.kinds]
        says_nothing = words >= torch.tensor(own, device=self.device)[:, None]
        return says_nothing & (self.word_ids >= 0)

    def _gains(self) -> Float[Tensor, "P T W"]:
        """What each word earns: where steps are rewarded, the right result of one."""
        gains = torch.zeros(self.word_ids.shape)
        if self.task.reward_by == "steps":
            results = [t for t, slot in enumerate(self.kinds) if slot.field == "result"]
            earned = (1 - self.task.false_negative_rate) / len(results)
            for step, t in enumerate(results, 1):
                # a residue's place among the words is the residue
                right = self.right[:, step, None]
                gains[:, t].scatter_(1, right, torch.full((len(gains), 1), earned))
        return gains.to(self.device)

    def _moves(self) -> Int[Tensor, "P T m W"]:
        """The running value after each word.

        A wrong operator or operand counts as the value that it amounts to.
        """
        m = self.task.modulus
        P, T, W = self.word_ids.shape
        states = torch.arange(m)[:, None].expand(m, W)
        residues = torch.arange(W).clamp(max=m - 1).expand(m, W)
        moves = states.expand(P, T, m, W).clone()
        for t, slot in enumerate(self.kinds):
            if slot.field in ("start", "a", "result", "final"):
                moves[:, t] = residues
            elif slot.field in ("op", "b"):
                shifts = torch.zeros(P, 1, W, dtype=torch.long)
                for p in range(P):
                    added = self._added_instead(p, slot)
                    shifts[p, 0, : len(added)] = torch.tensor(added)
                moves[:, t] = (states + shifts) % m
        return moves.to(self.device)

    def _added_instead(self, p: int, slot: Slot) -> list[int]:
        """What each operator, or operand, of a prompt's step adds beyond the right one."""
        numbers, operators = self.parsed[p]
        operator = operators[slot.step]
        number = numbers[slot.step + 1]
        apply = self.task.step_result
        right = apply(0, operator, number)
        if slot.field == "op":
            return [apply(0, other, number) - right for other in OPERATORS]
        return [apply(0, operator, other) - right for other in range(self.task.modulus)]

    # probabilities, from completions that pass through every state

    def _probabilities(self, stays: Bool[Tensor, "P T W"]) -> Float[Tensor, "P m T W"]:
        """The policy's probability of each admitted word, by slot and running value.

        Two readings: the first, with free words in even shares, says in which shares the policy
        itself would write them; the second reads chains that have them in these shares.
        """
        m = self.task.modulus
        admitted = ((self.word_ids >= 0) & ~stays).unsqueeze(1).float()  # (P, 1, T, W)
        with torch.no_grad():
            shares = self._read(self._written(admitted)) * admitted
        # chain j is off by j from its first result on; behind m of them come more right ones, in
        # other styles
        steps = self.right.shape[1] - 1
        several_styles = steps >= _LONG_STEPS or self.layers > 1
        count = m + (_MORE_RIGHT if several_styles else 0)
        read = self._read(self._written(shares.expand(-1, count, -1, -1)))  # (P, n, T, W)
        right = torch.cat([read[:, :1], read[:, m:]], dim=1).mean(1, keepdim=True)
        return self._by_state(torch.cat([right, read[:, 1:m]], dim=1))

    def _written(self, weights: Float[Tensor, "P n T W"]) -> Int[Tensor, "P n T"]:
        """Token ids of n chains of each prompt, off by 0 ... m - 1 and then by 0.

        Free words are in proportion to weights. The chains share out each slot's words: quantiles
        in a random order, the same for every prompt.
        """
        generator = torch.Generator().manual_seed(_STYLE_SEED)
        _, n, T, _ = weights.shape
        weights = weights.cpu()
        cumulative = weights.cumsum(3) / weights.sum(3, keepdim=True)
        orders = [torch.randperm(n, generator=generator) for _ in range(T)]
        quantiles = (torch.stack(orders, dim=1) + 0.5) / n  # (n, T)
        # places among the slot's words, (P, n, T)
        words = (cumulative[..., :-1] < quantiles.unsqueeze(2)).sum(3)
        if self.task.ways > 1:
            way = torch.arange(len(words)) // self.layers % self.task.ways
            words[:, :, 0] = way[:, None]

        # numbers and operators are no free words: a residue's place is the residue
        chains = torch.arange(n)
        off = chains * (chains < self.task.modulus)
        results = 0
        for t, slot in enumerate(self.kinds):
            if slot.field == "op":
                own = [OPERATORS.index(operators[slot.step]) for _, operators in self.parsed]
                words[:, :, t] = torch.tensor(own)[:, None]
            elif slot.field == "b":
                own = [numbers[slot.step + 1] for numbers, _ in self.parsed]
                words[:, :, t] = torch.tensor(own)[:, None]
            elif slot.field:  # a number that is, or becomes, the running value
                results += slot.field == "result"
                running = self.right[:, results, None] + off * (results > 0)
                words[:, :, t] = running % self.task.modulus
        ids = self.word_ids.unsqueeze(1).expand(-1, n, -1, -1)
        return ids.gather(3, words.to(self.device).unsqueeze(3)).squeeze(3)

    def _read(self, written: Int[Tensor, "P n T"]) -> Float[Tensor, "P n T W"]:
        """Probability of each admitted word in each context of the chains."""
        P, n, T = written.shape
        model = self.policy.model
        tokenizer = self.policy.tokenizer
        rows = [row for row in tokenize_prompts(tokenizer, self.prompts) for _ in range(n)]
        prompts = pad_rows(rows, tokenizer.pad_token_id, "left", self.device)
        # (P, n, T or more), and where its T slots are
        completions, alive, places = self._with_ramble(written)
        logits = context_logits(model, *prompts, completions.flatten(0, 1), alive.flatten(0, 1))
        if self.layers > 1:
            places = places.reshape(P * n, T, 1).expand(-1, -1, logits.shape[2])
            logits = logits.gather(1, places)

        probs = logits.softmax(-1)  # (P n, T, V)
        ids = self.word_ids.clamp(min=0)
        classes = _classes(tokenizer, self.task, probs.shape[-1], self.device)
        # a word of another alphabet counts as the plain word
        if classes is not None:
            ids = classes[ids]
            probs = torch.zeros_like(probs).index_add(2, classes, probs)
        ids = ids.unsqueeze(1).expand(-1, n, -1, -1)
        admitted = (self.word_ids >= 0).unsqueeze(1)
        return probs.view(P, n, T, -1).gather(3, ids) * admitted

    def _in_second_layer(self) -> Bool[Tensor, " P"]:
        """Which of the chains are of the second layer."""
        return torch.arange(len(self.prompts), device=self.device) % 2 == self.layers - 1

    def _with_ramble(
        self, written: Int[Tensor, "P n T"]
    ) -> tuple[Tensor, Tensor, Int[Tensor, "P n T"]]:
        """Completions with words that say nothing, their mask, and where their slots are.

        In the second layer such words stand after the first result: 1 ... `ramble` of them, spread
        over the right chains and over the others.
        """
        _, n, T = written.shape
        m = self.task.modulus
        places = torch.arange(T, device=self.device).expand_as(written)
        if self.layers == 1:
            return written, torch.ones_like(written), places

        # how many stand in each chain, (n,)
        counts = torch.zeros(n)
        right_chains = [0, *range(m, n)]
        wrong_chains = [*range(1, min(m, n))]
        for chains in (right_chains, wrong_chains):
            quantiles = (torch.arange(len(chains)) + 0.5) / max(1, len(chains))
            counts[chains] = (quantiles * self.task.ramble).ceil()

        # the slots from the first that they may stand before move behind them
        first = next(t for t, slot in enumerate(self.kinds) if slot.before)
        inserted = self._in_second_layer()[:, None] * counts.long().to(self.device)  # (P, n)
        places = places + inserted.unsqueeze(2) * (places >= first)

        # words that say nothing everywhere, and the chain written over them
        length = T + self.task.ramble
        generator = torch.Generator().manual_seed(_STYLE_SEED)
        drawn = torch.randint(len(self.kinds[first].before), (length,), generator=generator)
        columns = len(self.kinds[first].words) + drawn.to(self.device)
        filled = self.word_ids[:, first, columns].unsqueeze(1).repeat(1, n, 1)
        alive = torch.arange(length, device=self.device) <= places[:, :, -1:]
        return filled.scatter(2, places, written), alive.long(), places

    def _by_state(self, probs: Float[Tensor, "P m T W"]) -> Float[Tensor, "P m T W"]:
        """Those probabilities by running value in place of chain.

        Before the first result all chains are in the right state: their mean serves, shifted with
        the running value.
        """
        m = self.task.modulus
        W = probs.shape[3]
        states = torch.arange(m, device=self.device)
        results = 0
        columns = []
        for t, slot in enumerate(self.kinds):
            of_chains = probs[:, :, t]  # (P, m, W)
            # (P, m): the chain that is in each state
            chain = (states - self.right[:, results, None].to(self.device)) % m
            if results:
                by_state = of_chains.gather(1, chain.unsqueeze(2).expand(-1, -1, W))
            else:
                by_state = of_chains.mean(1, keepdim=True).expand(-1, m, -1)
                if slot.field in ("a", "result"):
                    # residues alone, (P, m, m): a state's number is as likely as the right one's
                    by_state = by_state.gather(2, (states - chain.unsqueeze(2)) % m)
                    by_state = torch.nn.functional.pad(by_state, (0, W - m))
            columns.append(by_state)
            results += slot.field == "result"
        return torch.stack(columns, dim=2)


# -- values along rollouts


def _follow(
    tables: list[ChainTables],
    own: Int[Tensor, " B"],
    rollouts: Rollouts,
    classes: Tensor | None,
    task: Chain,
) -> dict[str, Tensor]:
    """q (B, T, W), word_ids (B, T, W), elsewhere (B, T) and inside (B, T), token by token.

    own: table of each rollout's prompt, of the first way and layer; the others follow it.
    """
    device = own.device
    layers = _layers(task)
    lengths = torch.tensor([len(table.word_ids) for table in tables], device=device)
    # one tensor for all tables, (tables, slots, ...)
    word_ids = _stacked([table.word_ids for table in tables], -1)
    stays = _stacked([table.stays for table in tables])
    moves = _stacked([table.moves for table in tables])
    gains = _stacked([table.gains for table in tables])
    values = _stacked([table.values for table in tables])

    tokens = rollouts.completion_ids.to(device)
    B, T = tokens.shape
    W = word_ids.shape[2]
    # how many tables on each opening's way is
    ways = torch.arange(W, device=device).clamp(max=task.ways - 1) * layers
    q = values.new_zeros(B, T, W)
    ids = torch.full((B, T, W), -1, device=device)
    elsewhere = values.new_zeros(B, T)
    inside = rollouts.completion_mask.to(device).bool()

    # where each rollout is, (B,): slot, running value, what it has earned, whether on the grammar
    at = torch.zeros_like(own)
    state = torch.zeros_like(own)
    earned = values.new_zeros(B)
    holds = torch.ones_like(own, dtype=torch.bool)
    for t in range(T):
        inside[:, t] &= holds & (at < lengths[own])
        slot = at.clamp(max=word_ids.shape[1] - 1)

        # where each admitted word would lead, (B, W)
        slot_stays = stays[own, slot]
        next_own = own[:, None] + (ways if t == 0 else torch.zeros_like(ways))
        # a word that says nothing leads from the first layer to the second
        next_own = next_own + slot_stays * (own[:, None] % 2 < layers - 1)
        next_slot = slot[:, None] + 1 - slot_stays.long()
        next_state = moves[own, slot, state]
        next_earned = earned[:, None] + gains[own, slot]
        q[:, t] = (next_earned + values[next_own, next_slot, next_state]) * inside[:, t, None]
        ids[:, t] = word_ids[own, slot].masked_fill(~inside[:, t, None], -1)
        # at the end the answer stands: what ends the completion changes nothing
        is_end = at == lengths[own] - 1
        elsewhere[:, t] = (earned + values[own, slot, state] * is_end) * inside[:, t]

        # the word that was sampled
        hit = ids[:, t] == tokens[:, t, None]
        if classes is not None:
            same_word = classes[ids[:, t].clamp(min=0)] == classes[tokens[:, t, None]]
            hit = same_word & (ids[:, t] >= 0)
        holds = hit.any(1)
        chosen = hit.long().argmax(1, keepdim=True)
        own, at, state, earned = (
            following.gather(1, chosen).squeeze(1)
            for following in (next_own, next_slot, next_state, next_earned)
        )
    return {"q": q, "word_ids": ids, "elsewhere": elsewhere, "inside": inside}


def _stacked(parts: list[Tensor], fill: float = 0) -> Tensor:
    """Tensors of the same number of dimensions as one, padded at the end of each dimension."""
    shape = [max(part.shape[d] for part in parts) for d in range(parts[0].dim())]
    out = parts[0].new_full((len(parts), *shape), fill)
    for i, part in enumerate(parts):
        inner = tuple(slice(length) for length in part.shape)
        out[(i, *inner)] = part
    return out


# -- words and tokens


def token_of_word(tokenizer, word: str) -> int:
    """The token id of a word; ValueError where it is not one known token."""
    ids = tokenizer(word, add_special_tokens=False)["input_ids"]
    if len(ids) != 1 or ids[0] == tokenizer.unk_token_id:
        raise InvalidValue(
            "word", word, f"one known token of this tokenizer, for exact values; it is {len(ids)}"
        )
    return ids[0]


def _classes(tokenizer, task: Chain, vocabulary: int, device) -> Int[Tensor, " V"] | None:
    """The plain word that each word stands for, as token ids.

    None with one alphabet, where all are plain.
    """
    if task.alphabets == 1:
        return None
    words = tokenizer.get_vocab()
    classes = torch.arange(vocabulary, device=device)
    for word, token in words.items():
        classes[token] = words.get(to_first_alphabet(word), token)
    return classes
