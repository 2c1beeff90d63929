"""A token record of a trainer that is not ours: TRL's GRPOTrainer, or anybody's subclass of it.

    trainer.add_callback(TokenRecord(trainer, every=10))

A TrainerCallback sees neither batches nor losses, so the record stands before four methods of this
one trainer: each is called once, with what it would have been called with, and what it computed is
read on the way. The output folder then holds what a run's does, and Stop works. What changes
training, and measure_cancellation, need CancellationTrainer.
"""

import warnings
from functools import partial

from workbook.app.resumable import Recorder
from workbook.app.run_folder import cut_metrics
from workbook.app.runs import Run, set_status
from workbook.files import is_main
from workbook.messages import InvalidValue
from workbook.training.meter import by_token, loss_without_kl, reward_columns, token_pushes
from workbook.training.token_record import StepRecord


class TokenRecord(StepRecord):
    """A callback that hands each recorded micro-batch of a plain GRPOTrainer to a record, and keeps
    a run's folder.

    every: optimizer steps between two token tables.

    Raises ValueError for an `every` below 1, a CancellationTrainer, which records by itself, and
    for sharded weights.
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
        self.rewards = None  # of the generation batch
        # of the micro-batch whose loss is computed
        self.inputs = None
        self.scored = None
        trainer.add_callback(Recorder(self.run, trainer, None))
        # our method stands before the trainer's, which it is given as its first argument
        for hook, method in {
            "_calculate_rewards": self.calculate_rewards,
            "_generate_and_score_completions": self.generate_and_score_completions,
            "_get_per_token_logps_and_entropies": self.score,
            "_compute_loss": self.compute_loss,
        }.items():
            setattr(trainer, hook, partial(method, getattr(trainer, hook)))

    def calculate_rewards(self, method, *args, **kwargs):
        self.rewards = method(*args, **kwargs)
        return self.rewards

    def generate_and_score_completions(self, method, inputs):
        output = method(inputs)
        if self.trainer.model.training:
            # rewards are those of all processes; the batch has this process's
            local = len(output["advantages"])
            first = self.trainer.accelerator.process_index * local
            columns = reward_columns(self.trainer, self.rewards)
            output |= {name: column[first : first + local] for name, column in columns.items()}
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
                self._record(loss, model, inputs)
            return loss
        finally:
            self.inputs = None
            self.scored = None

    def _record(self, loss, model, inputs: dict) -> None:
        """Read what each token pushes from the loss's graph."""
        call, outputs = self.scored
        if self.trainer.beta:
            compute = type(self.trainer)._compute_loss
            loss = loss_without_kl(compute, self.trainer, model, inputs, outputs)
        pushes = token_pushes(loss, outputs[0])  # (B, T)
        advantages = by_token(inputs["advantages"]).expand_as(pushes)
        self.add(inputs, call, outputs, pushes, advantages)

    def on_train_begin(self, args, state, control, **kwargs):
        super().on_train_begin(args, state, control, **kwargs)
        if is_main():
            # what was logged after the checkpoint from which training goes on
            cut_metrics(self.run.folder / "metrics.jsonl", state.global_step)
            (self.run.folder / "stop").unlink(missing_ok=True)
        set_status(self.run, "running", "Training.", total=state.max_steps)

    def on_train_end(self, args, state, control, **kwargs):
        super().on_train_end(args, state, control, **kwargs)
        message = f"Trained for {state.global_step} steps."
        set_status(self.run, "finished", message, total=state.max_steps)
