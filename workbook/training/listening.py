"""A token record of a trainer that is not ours: TRL's GRPOTrainer, or anybody's subclass of it.

    trainer = GRPOTrainer(...)
    trainer.add_callback(TokenRecord(trainer, every=10))

A TrainerCallback sees neither batches nor losses, so the record stands before four methods of this one trainer. Each is
called once with what it would have been called with, and returns what it returned; what it computed is read on the way,
so that the trained weights stay what they are, bit for bit. The output folder then holds what a run's does: tokens/,
metrics.jsonl and status.json, so that `report`, `TokenHeatmap(load_run(folder))` and `RunMonitor(load_run(folder))`
read it. What changes training (batching, group_transform, credit rules), and measure_cancellation, which splits the
gradient of each micro-batch, need CancellationTrainer.
"""

from __future__ import annotations

import json
import time
import warnings
from functools import partial

from transformers import TrainerCallback

from workbook.training.files import is_main, read_metrics, write_text
from workbook.training.meter import by_token, reward_columns, token_pushes, unpenalized
from workbook.training.runs import Run, set_status


class Listener(TrainerCallback):
    """Hands the micro-batches of a plain GRPOTrainer to its TokenRecord, and keeps the folder's metrics and status.

    Raises ValueError where weights are sharded.
    """

    def __init__(self, trainer, record):
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
            raise ValueError("TokenRecord scores rollouts with whole weights, which FSDP and DeepSpeed shard.")
        self.trainer, self.record, self.run = trainer, record, Run(trainer.args.output_dir)
        self.metrics, self.rewards = self.run.folder / "metrics.jsonl", None
        self.inputs = self.scored = None  # of the micro-batch whose loss is computed
        for name in ("calculate_rewards", "generate_and_score_completions", "compute_loss"):
            setattr(trainer, f"_{name}", partial(getattr(self, name), getattr(trainer, f"_{name}")))
        trainer._get_per_token_logps_and_entropies = partial(self.score, trainer._get_per_token_logps_and_entropies)

    def calculate_rewards(self, method, *args, **kwargs):
        self.rewards = method(*args, **kwargs)
        return self.rewards

    def generate_and_score_completions(self, method, inputs):
        output = method(inputs)
        if self.trainer.model.training:
            start = self.trainer.accelerator.process_index * (count := len(output["advantages"]))
            columns = reward_columns(self.trainer, self.rewards)
            output |= {name: column[start : start + count] for name, column in columns.items()}
        return output

    def score(self, method, model, *args, batch_size=None, **kwargs):
        outputs = method(model, *args, batch_size=batch_size, **kwargs)
        if self.inputs is not None:
            self.scored = (args, kwargs), outputs
        return outputs

    def compute_loss(self, method, model, inputs):
        if not (self.trainer.model.training and self.record.due):
            return method(model, inputs)
        self.inputs = inputs
        try:
            loss = method(model, inputs)
            if self.scored is None:
                warnings.warn("TokenRecord records nothing: this trainer scores tokens in its own way.", stacklevel=2)
            elif loss.requires_grad:
                call, outputs = self.scored
                own = (type(self.trainer)._compute_loss, self.trainer, model, inputs, outputs)
                pushes = token_pushes(unpenalized(*own) if self.trainer.beta else loss, outputs[0])
                self.record.add(inputs, call, outputs, pushes, by_token(inputs["advantages"]).expand_as(pushes))
            return loss
        finally:
            self.inputs = self.scored = None

    # -- the folder, as a run keeps it

    def on_train_begin(self, args, state, control, **kwargs):
        if is_main():  # what it logged before it was resumed
            rows = [row for row in read_metrics(self.metrics) if row["step"] <= state.global_step]
            write_text(self.metrics, "".join(json.dumps(row) + "\n" for row in rows))
        set_status(self.run, "running", "Training.", total=state.max_steps)

    def on_log(self, args, state, control, logs=None, **kwargs):
        numbers = {name: value for name, value in (logs or {}).items() if isinstance(value, int | float)}
        if is_main() and numbers and "train_runtime" not in numbers:
            with open(self.metrics, "a", encoding="utf-8") as file:
                file.write(json.dumps({"step": state.global_step, "time": time.time()} | numbers) + "\n")

    def on_train_end(self, args, state, control, **kwargs):
        set_status(self.run, "finished", f"Trained for {state.global_step} steps.", total=state.max_steps)
