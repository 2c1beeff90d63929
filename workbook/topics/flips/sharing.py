"""Why shared words do not stand still: candidate reasons for what chapter 05 finds of H5, one SGD step a seed.

Thought of after `workbook.topics.flips.study` had found shared words to move no less than specific ones on the bundled
policy; nothing here was predicted. Two candidates:

- identity: a word is not a token's whole identity, since a digit is a result here and an operand there. Table
  `identities` measures shared against specific tokens by word, and by word and place (position in the completion).
- other prompts: the group is not all that moves a word. If prompts share their contexts, a word is moved by the net
  advantage on it in the other prompts of the batch as well. Table `company`: per seed, least squares of a word's mean
  movement in one prompt on the net advantage on it there (own) and in all other prompts (batch).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbook.probes.step import STEP_NATS, matched_lr
from workbook.statistics import Estimate, nested_estimate
from workbook.studies.bench import Bench
from workbook.studies.claim import Tables
from workbook.topics.flips.composition import NEARLY_CERTAIN
from workbook.topics.flips.probe import token_flips

IDENTITIES = {"word": ["token_id"], "word and place": ["token_id", "position"]}


def sharing_study(bench: Bench) -> dict[str, pd.DataFrame]:
    """Tables identities (a row per prompt and identity) and company (a row per seed and class of token)."""
    policy, rollouts = bench.policy, bench.rollouts
    table = token_flips(policy, rollouts, "sgd", matched_lr(policy, rollouts, "sgd", STEP_NATS))
    identities = [_identity(table, keys).assign(identity=name) for name, keys in IDENTITIES.items()]
    return {"identities": pd.concat(identities, ignore_index=True), "company": _cross_prompt(table)}


def _identity(table: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Mean |dlogp| of unsure tokens of positive rollouts that negative ones share, and of those that they do not."""
    least = table["advantage"].groupby([table["group"], *(table[key] for key in keys)]).transform("min")
    chosen = table.assign(kind=np.where(least < 0, "shared", "specific"), size=table["dlogp"].abs())
    chosen = chosen[(chosen["advantage"] > 0) & (chosen["logp"] < np.log(NEARLY_CERTAIN))]
    sizes = chosen.pivot_table(index="group", columns="kind", values="size")
    return sizes.reindex(columns=["shared", "specific"]).reset_index()


def _cross_prompt(table: pd.DataFrame) -> pd.DataFrame:
    """Least-squares effects (nats per unit of advantage) of a word's net advantage in its own and in other prompts."""
    unsure = table[table["logp"] < np.log(NEARLY_CERTAIN)]
    rows = []
    for category, here in unsure.groupby("category"):
        words = here.groupby(["group", "token_id"]).agg(net=("advantage", "sum"), moved=("dlogp", "mean")).reset_index()
        words["batch"] = words.groupby("token_id")["net"].transform("sum") - words["net"]
        words = words[words.groupby("token_id")["group"].transform("size") > 1]
        if len(words) > 10:
            causes = np.column_stack([words["net"], words["batch"], np.ones(len(words))])
            own, batch, _ = np.linalg.lstsq(causes, words["moved"].to_numpy(), rcond=None)[0]
            rows.append({"group": 0, "category": category, "own": own, "batch": batch, "words": len(words)})
    return pd.DataFrame(rows)


def identity_ratio(tables: Tables, identity: str) -> Estimate:
    """Mean |dlogp| of shared tokens, relative to specific ones, with tokens distinguished by `identity`."""
    table = tables["sharing/identities"].query("identity == @identity")
    return nested_estimate(table, ["shared", "specific"], lambda pair: pair[..., 0] / pair[..., 1])


def cross_prompt_effect(tables: Tables, category: str, cause: str) -> Estimate:
    """Nats by which a word of the class moves per unit of net advantage on it in its own prompt, or in the others."""
    return nested_estimate(tables["sharing/company"].query("category == @category"), cause)
