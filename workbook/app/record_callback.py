"""A token record of a trainer that is not ours: TRL's GRPOTrainer, or anybody's subclass of it.

    trainer.add_callback(TokenRecord(trainer, every=10))

A TrainerCallback sees neither batches nor losses, so the record stands before four methods of this
one trainer: each is called once, with what it would have been called with, and what it computed is
read on the way. The output folder then holds what a run's does, and Stop works. What changes
training, and measure_cancellation, need CancellationTrainer.
"""

import json
import warnings
from functools import partial

from workbook.app.resumable import Recorder
from workbook.app.runs import Run, set_status
from workbook.files import is_main, read_metrics, write_text
from workbook.messages import InvalidValue
from workbook.training.meter import by_token, loss_without_kl, reward_columns, token_pushes
from workbook.training.token_record import StepRecord


class TokenRecord(StepRecord):
    """A callback that hands each recorded micro-batch of a plain GRPOTrainer to a record, and keeps
    a run's folder.

    every: optimizer steps between two token tables.  Raises ValueError for an `every` below 1, a
    CancellationTrainer, which records by itself, and for sharded weights.
    """

    def __init__(self, trainer, every: int = 10):
        if type(every) is not int or every < 1:
            raise InvalidValue("every", every, "a number of optimizer steps, at least 1")
        if hasattr(trainer.args, "record_tokens"):
            raise ValueError(
                f"A CancellationTrainer records by itself: set record_tokens={every} in its config."
            )
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
            raise ValueError(
                "TokenRecord scores rollouts with whole weights, which FSDP and DeepSpeed shard."
            )
        super().__init__(trainer, every)
        self.run = Run(trainer.args.output_dir)
        # of the batch, and of the micro-batch whose loss is computed
        self.rewards = self.inputs = self.scored = None
        trainer.add_callback(Recorder(self.run, trainer, None))
        for name in (
            "calculate_rewards",
            "generate_and_score_completions",
            "score",
            "compute_loss",
        ):
            own = "_get_per_token_logps_and_entropies" if name == "score" else f"_{name}"
            setattr(trainer, own, partial(getattr(self, name), getattr(trainer, own)))

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
        if not (self.trainer.model.training and self.due):
            return method(model, inputs)
        self.inputs = inputs
        try:
            loss = method(model, inputs)
            if self.scored is None:
                warnings.warn(
                    "TokenRecord records nothing: this trainer scores tokens in its own way.",
                    stacklevel=2,
                )
            elif loss.requires_grad:
                call, outputs = self.scored
                own = (type(self.trainer)._compute_loss, self.trainer, model, inputs, outputs)
                pushes = token_pushes(
                    loss_without_kl(*own) if self.trainer.beta else loss, outputs[0]
                )
                self.add(
                    inputs, call, outputs, pushes, by_token(inputs["advantages"]).expand_as(pushes)
                )
            return loss
        finally:
            self.inputs = self.scored = None

    def on_train_begin(self, args, state, control, **kwargs):
        super().on_train_begin(args, state, control, **kwargs)
        if is_main():  # what was logged before training was resumed
            rows = [
                row
                for row in read_metrics(self.run.folder / "metrics.jsonl")
                if row["step"] <= state.global_step
            ]
            write_text(
                self.run.folder / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows)
            )
            (self.run.folder / "stop").unlink(missing_ok=True)
        set_status(self.run, "running", "Training.", total=state.max_steps)

    def on_train_end(self, args, state, control, **kwargs):
        super().on_train_end(args, state, control, **kwargs)
        set_status(
            self.run, "finished", f"Trained for {state.global_step} steps.", total=state.max_steps
        )
