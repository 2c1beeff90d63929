"""H1, H2 by mass, H5 and H6 by block coupling, from one prompt per step to all of them.

One small real step per prompt and sign of the advantage, on rollouts of many prompts; what it does is recorded on the
tokens of some of them. By linearity the rows give every batch (`workbook.probes.blocks`). H6 stands beside a control at
equal energy: steps with both signs on so many fewer prompts that their gradient is as long as the positive-only one's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from workbook.probes.block_tables import (
    category_shift,
    coupling_by_mass,
    equal_energy_prompts,
    follows_own_sign,
    net_change,
)
from workbook.probes.blocks import Blocks, block_coupling
from workbook.probes.categories import categorized
from workbook.probes.dose import anchor_labels
from workbook.rollouts.sample import sample_rollouts
from workbook.statistics import nested_estimate
from workbook.studies.gpu.bench import GpuBench
from workbook.tasks import get_task


@dataclass(frozen=True)
class Sizes:
    """How much is sampled and measured: prompts, those whose tokens are recorded, rollouts of each, tokens, seeds,
    rollouts in a pass, and single tokens that push alone."""

    policy: str
    prompts: int
    measured: int
    group_size: int
    max_new_tokens: int
    seeds: int
    batch_size: int
    anchors: int


SUMS = {"chat": False, "max_terms": 2, "max_digits": 2}  # of which there are enough for 512 prompts without repeats
FULL = Sizes("smollm2-135m", 512, 64, 8, 20, 6, 128, 192)
TINY = Sizes("bundled", 6, 3, 4, 48, 1, 32, 4)


def measure(bench: GpuBench) -> dict[str, pd.DataFrame]:
    """Tables blocks, follows (H1), mass (H2), shared (H5), shift (H6), by seed, prompt and size of step; summary."""
    sizes = TINY if bench.dry else FULL
    bench.policy(sizes.policy, dtype="float32")  # or it is skipped
    tables = bench.cases({f"seed-{seed}": partial(_seed, bench, sizes, seed) for seed in range(sizes.seeds)})
    tables["summary"] = summary = _summary(tables)
    errors, most = tables["blocks"]["error"], summary["prompts_per_step"].max()
    whole = summary[(summary["prompts_per_step"] == most) & (summary["claim"] == "H1")]
    bench.results.append(
        f"{len(errors)} seeds; sums of blocks miss a real step by {errors.max():.2%}; share that follows its own sign "
        f"at {most} prompts per step {', '.join(f'{row.mean:.3f}' for row in whole.itertuples())}"
    )
    return tables


def _seed(bench: GpuBench, sizes: Sizes, seed: int) -> dict[str, pd.DataFrame]:
    policy = bench.policy(sizes.policy, dtype="float32")
    task = bench.task(sizes.policy) if bench.dry else get_task("gym:chain_sum", **SUMS)
    rollouts = sample_rollouts(policy, task, sizes.prompts, sizes.group_size, seed, sizes.max_new_tokens)
    rollouts = categorized(rollouts, tagger="rules")
    pushing = rollouts.group_ids[rollouts.advantages != 0].unique().tolist()
    measured = pushing[: sizes.measured]
    coupled = {}
    for name, labels in (("sign", "sign"), ("token", anchor_labels(rollouts, measured, sizes.anchors, seed))):
        settings = {"measured": measured, "folder": bench.folder / f"blocks-{name}-{seed}"}
        coupled[name] = block_coupling(policy, rollouts, blocks=labels, batch_size=sizes.batch_size, **settings)
        print(f"  seed {seed}, by {name}: {coupled[name]}", flush=True)
    tables = _tables(coupled["sign"], rollouts, seed)
    tables["mass"] = pd.concat([coupling_by_mass(blocks).assign(by=name) for name, blocks in coupled.items()])
    return {name: table.assign(seed=seed) for name, table in tables.items()}


def _tables(blocks: Blocks, rollouts, seed: int) -> dict[str, pd.DataFrame]:
    prompts = blocks.blocks["group"].nunique()
    steps = sorted({*(2**k for k in range(12) if 2**k < prompts), prompts})
    follows, shared, shift = [], [], []
    for size in steps:
        at = {"prompts_per_step": size}
        follows.append(follows_own_sign(blocks, size, seed=seed).assign(**at))
        shared += [net_change(blocks, size, seed=seed, by=by).assign(by=by, **at) for by in ("place", "token")]
        shift += [
            category_shift(blocks, size, seed=seed, equal_energy=equal).assign(equal_energy=equal, **at)
            for equal in (False, True)
        ]
    about = {"prompts": len(rollouts.group_ids.unique()), "pushing": prompts, "error": blocks.error}
    about |= {"reward": float(rollouts.rewards.mean()), "tokens": len(blocks.tokens), "blocks": len(blocks.blocks)}
    about |= {"rms_nats": float(np.sqrt(np.nanmean(blocks.blocks["rms"] ** 2)))}
    about |= {"equal_energy_prompts": equal_energy_prompts(blocks, prompts)}
    tables = {"follows": follows, "shared": shared, "shift": shift}
    return {"blocks": pd.DataFrame([about])} | {name: pd.concat(parts) for name, parts in tables.items()}


def _summary(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Columns claim, what, prompts_per_step, mean, low, high, seeds, n, with seeds and prompts resampled."""
    rows = []
    for size, table in tables["follows"].groupby("prompts_per_step"):
        rows.append(("H1", "share of tokens that follow their own sign", size, nested_estimate(table, "follows")))
    for (by, where, kind), table in tables["mass"].groupby(["by", "where", "kind"]):
        block = "token" if by == "token" else "prompt's rollouts of one sign"
        what = f"share of what a {block} moves in {where}: {kind}"
        rows.append(("H2", what, 1, nested_estimate(table.assign(group=0), "mass")))
    for (size, by), table in tables["shared"].groupby(["prompts_per_step", "by"]):
        pairs = table.pivot_table(index=["seed", "group"], columns="kind", values="net").reset_index()
        if {"shared", "specific"} <= set(pairs) and pairs[["shared", "specific"]].notna().all(axis=1).any():
            ratio = nested_estimate(pairs, ["shared", "specific"], lambda pair: pair[..., 0] / pair[..., 1])
            rows.append(("H5", f"net change of shared tokens / of specific ones, same {by}", size, ratio))
    for (size, equal, category), table in tables["shift"].groupby(["prompts_per_step", "equal_energy", "category"]):
        what = f"share of movement of {category} less positive-only" + (", at equal energy" if equal else "")
        rows.append(("H6", what, size, nested_estimate(table, "shift")))
    columns = {"claim": [], "what": [], "prompts_per_step": []}
    columns = {name: [row[k] for row in rows] for k, name in enumerate(columns)}
    estimates = pd.DataFrame([row[3]._asdict() for row in rows]).drop(columns="doubt")
    return pd.concat([pd.DataFrame(columns), estimates], axis=1)
