"""How a trainer cuts a generation batch: prompts, rollouts, micro-batches, optimizer steps.

Seven settings of a GRPO trainer decide which rollouts meet in one optimizer step, and how old they
are by then. Each process samples `per_device_train_batch_size * steps_per_generation` rollouts at
once: its share of the *generation batch*, which holds whole groups of `num_generations`. The
rollouts are shuffled across prompts, cut into `steps_per_generation` micro-batches, and gone
through `num_iterations` times in the same order. After every `gradient_accumulation_steps`
micro-batches the optimizer takes a step. From the second step on the same rollouts, the policy is
no longer the one that sampled them: ratios differ from 1.

    batch_layout(per_device_train_batch_size=16, num_generations=8, steps_per_generation=4)
"""

import math
from collections.abc import Mapping

import pandas as pd
import torch

from workbook.messages import InvalidValue
from workbook.theory.batching import minibatch_order
from workbook.theory.choices import WHOLE_GROUP

# fields of TRL's GRPOConfig, and their defaults in TRL 1.16
SETTINGS = {
    "per_device_train_batch_size": 8,
    "num_generations": 8,
    "gradient_accumulation_steps": 1,
    "steps_per_generation": None,
    "num_iterations": 1,
    "generation_batch_size": None,
}


def batch_layout(config=None, *, processes: int | None = None, seed: int = 0, **settings):
    """Where each rollout of a generation batch is trained on, as TRL 1.16 has it: a table.

    config: a GRPOConfig, a CancellationConfig, a RunConfig, or a mapping of a trainer's fields.
    settings: fields of SETTINGS, and `batching`, in place of the config's.  processes: of one run,
    by default the config's, else 1.  seed: of the shuffle; TRL's own goes on from what was sampled,
    so that the counts are the run's and the places are an example.

    A row per rollout and use of it: generation_batch; prompt, within the table; rollout, within the
    prompt; process; iteration over the batch; micro_batch, counted over the table (each process has
    one of that number); optimizer_step; updates, the optimizer steps between its sampling and this
    use, which is why ratios differ from 1 where it is above 0. All count from 0.

    The table holds one generation batch, or as many as it takes until a step ends with a batch. An
    epoch that ends inside of it cuts the last step short, which is not shown. A batching that
    depends on rewards is laid out as shuffled.

    Raises InvalidValue for settings that TRL refuses: a size below 1, groups of one, both
    steps_per_generation and generation_batch_size, a generation batch that is no multiple of a
    micro-batch over all processes, or of a group; and for fields that no trainer has.

    >>> sizes = {"per_device_train_batch_size": 4, "num_generations": 4}
    >>> table = batch_layout(sizes, steps_per_generation=2)
    >>> table.groupby("optimizer_step")["updates"].agg(["size", "first"]).to_numpy().tolist()
    [[4, 0], [4, 1]]
    """
    sizes, batching, processes = _settings(config, processes, settings)
    parts = sizes["steps_per_generation"]
    width = sizes["per_device_train_batch_size"]
    group_size = sizes["num_generations"]
    accumulated = sizes["gradient_accumulation_steps"]
    uses = parts * sizes["num_iterations"]  # micro-batches until rollouts are sampled anew
    rollouts = width * parts * processes
    generator = torch.Generator().manual_seed(seed)

    rows = []
    for batch in range(math.lcm(uses, accumulated) // uses):
        order = _order(batching, rollouts, group_size, parts, accumulated, processes, generator)
        first_step = batch * uses // accumulated
        for use in range(uses):
            micro_batch = batch * uses + use
            step = micro_batch // accumulated
            for process in range(processes):
                # place in the generation batch, whose groups lie side by side
                places = order[process].view(parts, width)[use % parts]
                for place in places.tolist():
                    rows.append(
                        (
                            batch,
                            batch * (rollouts // group_size) + place // group_size,
                            place % group_size,
                            process,
                            use // parts,
                            micro_batch,
                            step,
                            step - first_step,
                        )
                    )
    names = "generation_batch prompt rollout process iteration micro_batch optimizer_step updates"
    return pd.DataFrame(rows, columns=names.split())


def _settings(config, processes: int | None, changed: Mapping):
    """The six sizes with TRL's defaults, the batching, and the number of processes."""
    known = {*SETTINGS, "batching"}
    unknown = [name for name in changed if name not in known]
    if unknown:
        raise InvalidValue(unknown[0], changed[unknown[0]], f"left out; {', '.join(known)} count")
    given = {} if config is None else config
    given = getattr(given, "trainer", given)  # of a RunConfig
    if isinstance(given, Mapping):
        _require_fields(given)
        given = dict(given)
    else:
        # a config that was made has filled in both of what it was given one of
        if processes is None:
            processes = given.world_size
        given = {name: getattr(given, name, None) for name in known - {"generation_batch_size"}}
    if "generation_batch_size" in changed and "steps_per_generation" not in changed:
        given.pop("steps_per_generation", None)
    given |= changed

    sizes = {name: given.get(name, default) for name, default in SETTINGS.items()}
    processes = 1 if processes is None else processes
    for name, value in {**sizes, "processes": processes}.items():
        optional = name in ("steps_per_generation", "generation_batch_size")
        if value is None and optional:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidValue(name, value, "a whole number, at least 1")
    if sizes["num_generations"] < 2:
        raise InvalidValue("num_generations", sizes["num_generations"], "at least 2, to compare")

    width = sizes["per_device_train_batch_size"] * processes
    batch = sizes.pop("generation_batch_size")
    if batch and sizes["steps_per_generation"]:
        raise InvalidValue(
            "generation_batch_size",
            batch,
            f"left out beside steps_per_generation={sizes['steps_per_generation']}",
        )
    if batch:
        if batch % width:
            valid = f"a multiple of {width}, a micro-batch over all processes"
            raise InvalidValue("generation_batch_size", batch, valid)
        sizes["steps_per_generation"] = batch // width
    if not sizes["steps_per_generation"]:
        sizes["steps_per_generation"] = sizes["gradient_accumulation_steps"]
    rollouts = width * sizes["steps_per_generation"]
    if rollouts % sizes["num_generations"]:
        raise InvalidValue(
            "num_generations",
            sizes["num_generations"],
            f"a divisor of the {rollouts} rollouts of a generation batch",
        )
    return sizes, given.get("batching") or "shuffled", processes


def _require_fields(given: Mapping) -> None:
    """Raise InvalidValue for the first name that no trainer's field has."""
    # TRL takes seconds to import, and the known names need none of it
    unknown = [name for name in given if name not in SETTINGS and name != "batching"]
    if not unknown:
        return
    from workbook.training.config import nearest, trainer_fields

    for name in unknown:
        if name not in trainer_fields():
            sentence = f"{name!r} is no field of a trainer; {nearest(name, SETTINGS)}"
            raise InvalidValue(str(name), given[name], "a field of a trainer", sentence)


def _order(batching, rollouts, group_size, parts, accumulated, processes, generator):
    """Places in the generation batch, a row per process in the order of their use: (P, B/P)."""
    if batching in WHOLE_GROUP and parts > accumulated:
        # the order is global: each micro-batch of all processes is shared out among them
        groups = torch.arange(rollouts) // group_size
        steps = parts // accumulated
        order = minibatch_order("query_preserved", groups, torch.zeros(rollouts), steps, generator)
        return order.view(parts, processes, -1).transpose(0, 1).flatten(1)
    # each process shuffles the contiguous part that it sampled
    of_process = rollouts // processes
    return torch.stack(
        [
            start + torch.randperm(of_process, generator=generator)
            for start in range(0, rollouts, of_process)
        ]
    )
