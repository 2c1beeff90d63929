"""What a run writes while it trains: a line per step, the newest rollouts to look at, all of them at checkpoints."""

from __future__ import annotations

import json
import time
from itertools import islice

import pandas as pd
from tqdm import tqdm
from transformers import TrainerCallback

from workbook.training.files import write_json, write_parquet
from workbook.training.memory import peak_used_mib
from workbook.training.processes import agree, is_main
from workbook.training.resumable import ResumableTrainer
from workbook.training.runs import SAMPLED, Run

SHOWN, LONGEST = 8, 400  # rollouts, and characters of each text, in samples.json


class Recorder(TrainerCallback):
    """Appends a JSON line per step, saves samples at checkpoints, and stops the trainer when asked to."""

    def __init__(self, run: Run, trainer: ResumableTrainer, bar: tqdm | None):
        self.run, self.trainer, self.bar, self.stopped = run, trainer, bar, False
        self._clock = time.time() - time.monotonic()  # so that setting the clock moves no later row's time

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not is_main() or not logs or "train_runtime" in logs:  # the closing summary
            return
        memory = {"peak_memory_mib": peak_used_mib(self.trainer.accelerator.device)}
        row = (
            {"step": state.global_step, "time": self._clock + time.monotonic()}
            | memory
            | {k: v for k, v in logs.items() if isinstance(v, int | float)}
        )
        with open(self.run.folder / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        if "reward" in row:  # this step sampled a generation batch
            self._show_samples(state.global_step)
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)
            self.bar.set_postfix({k: f"{row[k]:.3f}" for k in ("reward",) if k in row})
            if state.global_step >= state.max_steps:
                self.bar.close()

    def on_step_end(self, args, state, control, **kwargs):
        if agree(self.run.stopping):
            window = args.steps_per_generation * args.num_iterations
            # Inside a generation batch a checkpoint would miss its rollouts; an earlier one replays the same steps.
            control.should_save = state.global_step * args.gradient_accumulation_steps % window == 0
            control.should_training_stop = self.stopped = True
        return control

    def on_save(self, args, state, control, **kwargs):
        if is_main():
            write_parquet(self.run.folder / "samples" / f"step-{state.global_step:06d}.parquet", self._samples())

    def _samples(self, most: int | None = None) -> pd.DataFrame:
        """The first rollouts of the latest generation batch, of which TRL keeps a record."""
        logs = self.trainer._logs
        columns = {name: logs[name] for name in ("prompt", "completion", "advantages")} | logs["rewards"]
        samples = pd.DataFrame({name: list(islice(values, most)) for name, values in columns.items()})
        for column in ("prompt", "completion"):  # a conversation becomes its JSON
            samples[column] = [text if isinstance(text, str) else json.dumps(text) for text in samples[column]]
        return samples

    def _show_samples(self, step: int) -> None:
        samples = self._samples(SHOWN)
        reward = samples[list(self.trainer._logs["rewards"])].sum(axis=1)
        samples = samples.assign(step=step, reward=reward, advantage=samples["advantages"])[SAMPLED]
        for column in ("prompt", "completion"):
            samples[column] = [text if len(text) <= LONGEST else text[:LONGEST] + " ..." for text in samples[column]]
        write_json(self.run.folder / "samples.json", samples.to_dict("records"))
