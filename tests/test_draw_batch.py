"""`draw_batch` and its table, against TRL's own config, sampler, shuffle and trainer."""

from itertools import chain, product
from types import SimpleNamespace

import altair as alt
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from refusals import refused
from small_run import SMALL, bundled_trainer
from torch.utils.data import BatchSampler
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import RepeatSampler

from workbook import RunConfig, draw_batch
from workbook.messages import InvalidValue
from workbook.theory.choices import STRATEGIES
from workbook.training import CancellationConfig, batch_layout
from workbook.views.style import to_spec

QUIET = {"output_dir": "unused", "use_cpu": True, "bf16": False, "report_to": "none"}
LAYOUTS = [
    {"per_device_train_batch_size": 16, "num_generations": 8, "steps_per_generation": 4},
    {"per_device_train_batch_size": 4, "num_generations": 4, "gradient_accumulation_steps": 2}
    | {"steps_per_generation": 4, "num_iterations": 2},
    {"per_device_train_batch_size": 4, "num_generations": 8, "gradient_accumulation_steps": 8},
    {"per_device_train_batch_size": 6, "num_generations": 3, "generation_batch_size": 24},
    # a step of two generation batches, and steps that do not end with a batch
    {"per_device_train_batch_size": 2, "num_generations": 4, "steps_per_generation": 4}
    | {"gradient_accumulation_steps": 8},
    {"per_device_train_batch_size": 2, "num_generations": 4, "steps_per_generation": 4}
    | {"gradient_accumulation_steps": 3},
]


def trl_config(monkeypatch, processes=1, **fields):
    monkeypatch.setattr(GRPOConfig, "world_size", property(lambda self: processes))
    return GRPOConfig(**QUIET, **fields)


def trl_uses(args, process, processes, uses, seed):
    """(prompt, rollout) of a process's micro-batches, by TRL's sampler and `_prepare_inputs`."""
    group = args.num_generations
    sampler = RepeatSampler(
        range(100),
        mini_repeat_count=group,
        batch_size=args.generation_batch_size // group,
        repeat_count=args.num_iterations * args.steps_per_generation,
        shuffle=False,
    )
    of_process = args.per_device_train_batch_size * args.steps_per_generation
    batches = BatchSampler(sampler, of_process, drop_last=True)
    loader = iter(BatchSamplerShard(batches, processes, process))

    def sampled(batch):
        # the sampler repeats a prompt for each of its rollouts, over all processes
        first = process * of_process
        return {"prompt": torch.tensor(batch), "place": torch.arange(first, first + of_process)}

    trainer = SimpleNamespace(args=args, num_iterations=args.num_iterations, _step=0)
    trainer.model = SimpleNamespace(training=True)
    trainer._buffered_inputs = None
    trainer._generate_and_score_completions = sampled
    torch.manual_seed(seed)
    found = []
    for step in range(uses):
        trainer._step = step
        part = GRPOTrainer._prepare_inputs(trainer, next(loader))
        places = part["place"] % group
        found.append([*zip(part["prompt"].tolist(), places.tolist(), strict=True)])
    return found


@pytest.mark.parametrize("fields", LAYOUTS)
@pytest.mark.parametrize("processes", [1, 2])
def test_rollouts_lie_where_trl_puts_them(fields, processes, monkeypatch):
    fields = dict(fields)
    if "generation_batch_size" in fields:
        fields["generation_batch_size"] *= processes
    args = trl_config(monkeypatch, processes, **fields)
    table = batch_layout(fields, processes=processes, seed=5)
    uses = table["micro_batch"].nunique()
    for process, part in table.groupby("process"):
        trl = trl_uses(args, process, processes, uses, seed=5)
        ours = [
            [*zip(rows["prompt"], rows["rollout"], strict=True)]
            for _, rows in part.groupby("micro_batch")
        ]
        if processes == 1:
            assert ours == trl
        # each process has a random state of its own: the same rollouts, in another order
        passes = args.steps_per_generation
        for first in range(0, uses, passes):
            window = slice(first, first + passes)
            assert sorted(chain(*ours[window])) == sorted(chain(*trl[window]))
    assert batch_layout(args, seed=5).equals(table)


@pytest.mark.parametrize("fields", [LAYOUTS[0], LAYOUTS[1], LAYOUTS[4], LAYOUTS[5]])
def test_steps_and_ratios_are_those_of_trl_trainer(fields, tmp_path):
    seen = []

    class Watched(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            batch = super()._generate_and_score_completions(inputs)
            place = torch.arange(len(batch["prompt_ids"]))
            return batch | {"place": place, "batch": torch.tensor(float(self.state.global_step))}

        def _prepare_inputs(self, generation_batch):
            part = super()._prepare_inputs(generation_batch)
            # optimizer steps so far, and since this part was sampled
            step = self.state.global_step
            is_old = step - int(part["batch"])
            has_old_logps = part.get("old_per_token_logps") is not None
            seen.append((step, sorted(part["place"].tolist()), is_old, has_old_logps))
            return part

    table = batch_layout(fields)
    steps = table["optimizer_step"].nunique()
    settings = SMALL | {"max_completion_length": 2, "max_steps": steps} | fields
    if "steps_per_generation" not in fields:
        del settings["steps_per_generation"]
    args = GRPOConfig(output_dir=str(tmp_path), **settings)
    bundled_trainer(Watched, args, prompts=table["prompt"].nunique()).train()

    layout = table.groupby("micro_batch")
    assert [step for step, *_ in seen] == layout["optimizer_step"].first().tolist()
    assert [age for _, _, age, _ in seen] == layout["updates"].first().tolist()
    assert [len(part) for _, part, *_ in seen] == layout.size().tolist()
    # TRL compares with older log-probabilities in batches that outlive a step
    old = table.groupby("generation_batch")["updates"].max()
    for (_, _, age, has_old), batch in zip(seen, layout["generation_batch"].first(), strict=True):
        assert has_old or age == 0
        assert has_old >= (old[batch] > 0)
    # passes over a batch take the same micro-batches
    parts = args.steps_per_generation
    for k in range(parts, parts * args.num_iterations):
        assert seen[k][1] == seen[k - parts][1]


def test_what_trl_refuses_is_refused(monkeypatch):
    """Two hundred settings: TRL's config and the table refuse the same ones."""
    sizes = product((1, 2, 3, 6), (1, 2, 4), (1, 2), (None, 2, 3), (None, 6, 8), (1, 2))
    refusals = 0
    for width, group, accumulated, parts, batch, processes in sizes:
        fields = {
            "per_device_train_batch_size": width,
            "num_generations": group,
            "gradient_accumulation_steps": accumulated,
            "steps_per_generation": parts,
            "generation_batch_size": batch,
        }
        try:
            trl_config(monkeypatch, processes, **fields)
            trl_takes_it = True
        except ValueError:
            trl_takes_it = False
        try:
            batch_layout(fields, processes=processes)
            we_take_it = True
        except InvalidValue:
            we_take_it = False
            refusals += 1
        assert we_take_it == trl_takes_it, (fields, processes)
    assert refusals > 50


def test_refusals_name_field_value_and_what_is_valid():
    with refused("num_generations", 1):
        draw_batch(num_generations=1)
    with refused("num_generations", 3):
        draw_batch(per_device_train_batch_size=4, num_generations=3)
    with refused("per_device_train_batch_size", 0):
        draw_batch(per_device_train_batch_size=0)
    with refused("num_iterations", 1.5):
        draw_batch(num_iterations=1.5)
    with refused("generation_batch_size", 12):
        draw_batch(per_device_train_batch_size=8, num_generations=4, generation_batch_size=12)
    with refused("generation_batch_size", 16):
        draw_batch(generation_batch_size=16, steps_per_generation=2)
    with refused("num_generation", 4):
        draw_batch({"num_generation": 4})
    with refused("num_generation", 4):
        draw_batch(num_generation=4)
    with refused("processes", 0):
        draw_batch(processes=0)


def test_a_layout_of_any_config_is_the_same():
    fields = LAYOUTS[1]
    table = batch_layout(**fields)
    assert batch_layout(fields).equals(table)
    assert batch_layout(CancellationConfig(**QUIET, **fields)).equals(table)
    assert batch_layout(RunConfig(trainer={"max_steps": 1, **fields})).equals(table)
    assert batch_layout(fields | {"learning_rate": 1e-3}).equals(table)
    # a keyword takes the place of the config's
    once = batch_layout(fields, num_iterations=1)
    assert once["iteration"].max() == 0
    wider = batch_layout(CancellationConfig(**QUIET, **fields), generation_batch_size=32)
    assert wider["prompt"].nunique() == 8


@pytest.mark.parametrize("batching", STRATEGIES)
def test_whole_groups_stay_whole(batching):
    fields = LAYOUTS[0] | {"batching": batching}
    table = batch_layout(fields)
    steps_of_a_prompt = table.groupby("prompt")["optimizer_step"].nunique()
    assert (steps_of_a_prompt.max() == 1) == ("query_preserved" in batching)


@pytest.mark.parametrize("fields", [*LAYOUTS, LAYOUTS[0] | {"num_generations": 2}])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_picture_says_its_result(fields, processes):
    fields = dict(fields)
    if "generation_batch_size" in fields:
        fields["generation_batch_size"] *= processes
    table = batch_layout(fields, processes=processes)
    chart = draw_batch(fields, processes=processes)
    assert isinstance(chart, alt.LayerChart)
    title = to_spec(chart)["title"]["text"]
    steps = table["optimizer_step"].nunique()
    size = len(table) // steps
    assert (f"{steps} steps of {size} rollouts" if steps > 1 else f"one step of {size}") in title
    assert ("all ratios are 1" in title) == (table["updates"].max() == 0)


def test_a_large_batch_is_drawn_in_few_shapes():
    chart = draw_batch(
        per_device_train_batch_size=128,
        num_generations=16,
        steps_per_generation=8,
        num_iterations=9,
    )
    spec = to_spec(chart)
    assert sum(map(len, spec["datasets"].values())) < 6_000
    assert "6 more passes not drawn" in spec["title"]["subtitle"]
