"""What a model says of a token table: log-probabilities, entropies, and which correct tokens negative ones pull down.

The pull is the coupling through the output layer (arXiv 2605.08666): a step of rate lr on token j moves token i by
lr K_ij push_j to first order, with K_ij = <h_i, h_j> <e_i - p_i, e_j - p_j>.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from workbook.policies.restoring import evaluating, no_gradients
from workbook.probes.report import percent, prepare
from workbook.probes.report_tokens import GROUP, ROLLOUT
from workbook.rollouts.foreign import as_prompt
from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import pad_rows, sequence_logps, tokenize_prompts
from workbook.rollouts.states import OutputStates, output_states

MAX_SCORED = 8_192  # tokens, of whole groups: a minute of a 135M model on two cores
MAX_COUPLED = 4_096  # tokens of all groups' kernels together
MAX_GROUP = 512  # tokens of one group's kernel: those with the most push and the least confidence
MAX_LENGTH = 2_048  # tokens of a rollout, whose logits are held at once
MIN_MATCHING = 0.9  # of the tokens' texts: below that it is another tokenizer


@dataclass(frozen=True)
class ModelFindings:
    """name: the model's.  scored: the tokens that were, the file's columns with model_logp and model_entropy.

    pulls: pairs of a negative and a positive token by how much the first moves the second (nats per unit of learning
    rate): columns negative, positive, same_place, pairs, pull.  undone: of what positive tokens' own rollouts do for
    them, the share that negative rollouts take back, by text: token, up, down, undone.  notes: sentences.
    """

    name: str
    scored: pd.DataFrame
    pulls: pd.DataFrame
    undone: pd.DataFrame
    notes: list[str]


def model_findings(table: pd.DataFrame, policy) -> ModelFindings:
    """Score the newest groups of a token table with a policy, and couple the tokens of those with both signs.

    Raises ValueError for a table without token ids or prompts, and for ids that the model does not have.
    """
    rows, _ = prepare(table)
    _check(rows, policy)
    notes, rows = _match(rows, policy), newest_groups(rows, MAX_SCORED)
    rollouts = as_rollouts(rows, policy)
    with no_gradients(), evaluating(policy.model):
        parts = (rollouts.prompt_ids, rollouts.prompt_mask, rollouts.completion_ids, rollouts.completion_mask)
        logps, entropies = sequence_logps(policy.model, *(part.to(policy.model.device) for part in parts))
    alive = rollouts.completion_mask.bool()
    rows = rows.assign(model_logp=logps.cpu()[alive].numpy(), model_entropy=entropies.cpu()[alive].numpy())
    pairs = _pairs(rows, rollouts, policy, notes)
    return ModelFindings(str(policy.provenance["name"]), rows, _pulls(pairs), _undone(pairs), notes)


def newest_groups(rows: pd.DataFrame, most: int) -> pd.DataFrame:
    """The rows of the newest whole groups with at most so many tokens in all, in order of step, group, rollout."""
    sizes = rows.groupby(GROUP).size().sort_index(ascending=False)
    kept = sizes[sizes.cumsum() <= most].index
    if len(kept) == 0:
        raise ValueError(f"The smallest group has {sizes.min():,} tokens, and a model scores at most {most:,} here.")
    chosen = rows[pd.MultiIndex.from_frame(rows[GROUP]).isin(kept)]
    return chosen.sort_values([*ROLLOUT, "position"], ignore_index=True)


def as_rollouts(rows: pd.DataFrame, policy) -> Rollouts:
    """Rows of whole rollouts, in the order of `newest_groups`, as tensors; advantages are pushes, per token."""
    parts = [part for _, part in rows.groupby(ROLLOUT, sort=False)]
    prompts = [str(part["prompt"].iloc[0]) for part in parts]
    ids, mask = pad_rows([part["token_id"].tolist() for part in parts], policy.tokenizer.pad_token_id, "right")
    prompt_ids, prompt_mask = pad_rows(_prompt_ids(prompts, policy), policy.tokenizer.pad_token_id, "left")
    advantages = torch.zeros(ids.shape)
    advantages[mask.bool()] = torch.tensor(rows["push"].to_numpy(), dtype=torch.float32)
    unknown = torch.zeros(ids.shape)
    return Rollouts(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        completion_ids=ids,
        completion_mask=mask,
        group_ids=torch.tensor(rows.groupby(ROLLOUT, sort=False)["group"].first().to_numpy()),
        rewards=torch.full((len(parts),), torch.nan),
        advantages=advantages,
        old_logps=unknown,
        entropies=unknown,
    )


def _prompt_ids(prompts: list[str], policy) -> list[list[int]]:
    """Each prompt's token ids; a text that begins with the begin token gets no second one."""
    begin = policy.tokenizer.bos_token
    known: dict[str, list[int]] = {}
    for prompt in set(prompts):
        if begin and prompt.startswith(begin):
            known[prompt] = list(policy.tokenizer(prompt, add_special_tokens=False)["input_ids"])
        else:
            known[prompt] = list(tokenize_prompts(policy.tokenizer, [as_prompt(prompt)])[0])
    return [known[prompt] for prompt in prompts]


def _check(rows: pd.DataFrame, policy) -> None:
    if "token_id" not in rows:
        raise ValueError("a model needs token ids, and the file has tokens as texts alone.")
    if "prompt" not in rows or (rows["prompt"].astype(str) == "").any():
        raise ValueError("a model needs the prompts, and the file does not have all of them.")
    if not (rows.sort_values([*ROLLOUT, "position"]).groupby(ROLLOUT).cumcount() == rows["position"]).all():
        raise ValueError("a model needs whole rollouts, and the file has some whose positions are not 0, 1, 2, ...")
    size = policy.model.get_input_embeddings().weight.shape[0]
    if rows["token_id"].max() >= size:
        raise ValueError(
            f"the file has the token id {rows['token_id'].max()}, and {policy.provenance['name']} has {size:,} tokens: "
            "give the model that the rollouts are from."
        )


def _match(rows: pd.DataFrame, policy) -> list[str]:
    """A sentence if the model's tokenizer gives the file's ids other texts than the file does."""
    pairs = rows[["token_id", "token"]].drop_duplicates()
    pairs = pairs[~pairs["token"].astype(str).str.fullmatch(r"#\d+")].head(200)
    same = [policy.tokenizer.decode([i]).strip() == str(text).strip() for i, text in pairs.itertuples(index=False)]
    if not same or np.mean(same) >= MIN_MATCHING:
        return []
    return [f"Of the tokens' texts {percent(1 - np.mean(same))} are others in this model: is it the one of this run?"]


def _pairs(rows: pd.DataFrame, rollouts: Rollouts, policy, notes: list[str]) -> pd.DataFrame:
    """Sums of what pushing tokens (by) do to tokens of positive rollouts (on) of their group: sign, by, on, same_place,
    move, n."""
    tables, budget, cut = [], MAX_COUPLED, False
    for _, part in rows.groupby(GROUP, sort=False):
        if not {-1.0, 1.0} <= set(np.sign(part["push"])) or part["position"].max() >= MAX_LENGTH:
            continue
        chosen = coupled_tokens(part, min(MAX_GROUP, budget))
        budget, cut = budget - len(chosen), cut or len(chosen) < len(part)
        if len(chosen):
            tables.append(_group_pairs(chosen, rows, rollouts, policy))
    if cut:
        notes.append(f"Couplings are of at most {MAX_GROUP} tokens a group, those with the most push times 1 - p.")
    if not tables:
        notes.append("No group has pushes of both signs, so no token pulls another down.")
        return pd.DataFrame(columns=["sign", "by", "on", "same_place", "move", "n"])
    return pd.concat(tables).groupby(["sign", "by", "on", "same_place"], observed=True).sum().reset_index()


def coupled_tokens(part: pd.DataFrame, most: int) -> pd.DataFrame:
    """The rows of a group with the largest |push| (1 - p), in their order: a sure token's gradient is nearly 0."""
    size = part["push"].abs() * -np.expm1(part["model_logp"])
    return part.loc[size.nlargest(most).index.sort_values()]


def _states(part: pd.DataFrame, rows: pd.DataFrame, rollouts: Rollouts, policy) -> OutputStates:
    """The output states of the rows in `part`, rollout by rollout."""
    numbers = rows.groupby(ROLLOUT, sort=False).ngroup()
    states = []
    for number, own in part.groupby(numbers[part.index], sort=True):
        state = output_states(policy, rollouts.select([number]))
        states.append(state.select(torch.tensor(own["position"].to_numpy(), device=state.tokens.device).long()))
    hidden, logits, tokens = (torch.cat([getattr(s, n) for s in states]) for n in ("hidden", "logits", "tokens"))
    return OutputStates(hidden, logits, tokens, states[0].cap)


def _group_pairs(part: pd.DataFrame, rows: pd.DataFrame, rollouts: Rollouts, policy) -> pd.DataFrame:
    kernel = _states(part, rows, rollouts, policy).kernel().float().cpu().numpy()  # (n, n)
    push, text = part["push"].to_numpy(), part["token"].astype(str).to_numpy()
    position = part["position"].to_numpy()
    on, by = np.meshgrid(np.flatnonzero(part["sign"] > 0), np.flatnonzero(push != 0), indexing="ij")
    on, by = on.ravel(), by.ravel()
    table = pd.DataFrame(
        {
            "sign": np.sign(push[by]).astype(int),
            "by": text[by],
            "on": text[on],
            "same_place": (position[on] == position[by]) & (text[on] == text[by]),
            "move": kernel[on, by] * push[by],
            "n": 1,
        }
    )
    return table.groupby(["sign", "by", "on", "same_place"]).sum().reset_index()


def _pulls(pairs: pd.DataFrame) -> pd.DataFrame:
    negative = pairs[(pairs["sign"] < 0) & (pairs["move"] < 0)]
    table = negative.rename(columns={"by": "negative", "on": "positive", "n": "pairs", "move": "pull"})
    columns = ["negative", "positive", "same_place", "pairs", "pull"]
    return table[columns].sort_values("pull", ignore_index=True)


def _undone(pairs: pd.DataFrame) -> pd.DataFrame:
    table = pairs.assign(side=np.where(pairs["sign"] > 0, "up", "down")).pivot_table(
        index="on", columns="side", values="move", aggfunc="sum", fill_value=0.0
    )
    table = table.reindex(columns=["up", "down"], fill_value=0.0).rename_axis(index="token", columns=None).reset_index()
    table = table[table["up"] > 0]
    return table.assign(undone=-table["down"] / table["up"]).sort_values("down", ignore_index=True)
