"""What record_tokens costs a run: CPU seconds of a recorded step beyond a plain one, as a share of a step at N = 10.

The parts that recording adds (the derivative by log-probabilities, the second scoring, the table) are timed where they
run, in the steps of a config's own run, sampling included. What else the machine does so meets both sides alike.
"""

import time

import pytest
import torch

from workbook.training import RunConfig, build_trainer, token_record, trainer

EVERY = 10
CASES = {  # config: settings of its run
    "data/configs/chain.yaml": {"max_steps": 2 * EVERY + 1},
    "data/configs/smollm2_chain_sum.yaml": {"max_steps": 3, "max_completion_length": 32},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.split("/")[-1])
def test_recording_against_a_step(tmp_path, capsys, monkeypatch, path):
    config = RunConfig.load(path).override(CASES[path] | {"record_tokens": EVERY, "save_strategy": "no"})
    spent, inside = [], False

    def timed(function):
        def call(*args, **kwargs):
            nonlocal inside
            if inside:
                return function(*args, **kwargs)
            inside, start = True, time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                spent.append(time.process_time() - start)
                inside = False

        return call

    monkeypatch.setattr(trainer, "token_pushes", timed(trainer.token_pushes))
    for name in ("add", "on_step_end"):
        monkeypatch.setattr(token_record.TokenRecord, name, timed(getattr(token_record.TokenRecord, name)))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        run, *_ = build_trainer(config, tmp_path)
        start = time.process_time()
        run.train()
        total = time.process_time() - start
    finally:
        torch.set_num_threads(threads)
    steps, tables = run.state.global_step, sorted((tmp_path / "tokens").glob("*.parquet"))
    step, extra = (total - sum(spent)) / steps, sum(spent) / len(tables)
    size = sum(path.stat().st_size for path in tables) / len(tables) / 2**10
    with capsys.disabled():
        print(
            f"\n{config.name}: a step {step:.3f} s, a recorded one {extra:.3f} s more, "
            f"{100 * extra / EVERY / step:.1f} % at N = {EVERY}; {size:.0f} KiB a table"
        )
