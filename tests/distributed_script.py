"""Every optimizer step's gradient on fixed rollouts, and whose rollouts those were, under 1 and 2
processes.

python tests/distributed_script.py FOLDER CASES A case's `microbatch` is that of all processes
together. The processes are forked from this one, whose libraries are loaded once.
"""

import gc
import json
import os
import socket
import sys

import torch
from safetensors.torch import save_file
from small_run import SMALL, bundled_trainer
from torch.multiprocessing import start_processes

from workbook.training import CancellationConfig, CancellationTrainer


def fixed_rollouts(prompts, trainer):
    """The same completions for the same prompt in the same place of its group, whichever process
    asks.
    """
    tokenizer = trainer.processing_class
    answers = [
        "start with 5 ; so the answer is 2",
        "start with 5 ; then 5 - 6 is 9 ; so the answer is 3",
    ]
    answers.append("so the answer is 7")
    completion_ids = []
    for i, prompt in enumerate(prompts):
        text = answers[(len(prompt) + i % 4) % 3] if i % 4 else answers[0]
        completion_ids.append(
            [*tokenizer(text, add_special_tokens=False).input_ids, tokenizer.eos_token_id]
        )
    return {
        "prompt_ids": [tokenizer(p, add_special_tokens=False).input_ids for p in prompts],
        "completion_ids": completion_ids,
        "logprobs": [[0.0] * len(ids) for ids in completion_ids],
    }


def reward(completions, **_):
    return [float(len(text) % 5) for text in completions]


class Recorder(CancellationTrainer):
    """Keeps every optimizer step's gradient, averaged over processes, and its rollouts' groups, of
    all processes.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.gradients, self.groups = [], []

    def _prepare_inputs(self, generation_batch):
        inputs = super()._prepare_inputs(generation_batch)
        self.groups.append(self.accelerator.gather(inputs["group_id"].contiguous()))
        return inputs

    def _clip_grad_norm(self, model):
        self.gradients.append(
            torch.cat([p.grad.flatten() for p in self.model.parameters()]).clone()
        )
        return super()._clip_grad_norm(model)


def record(out: str, microbatch: int, settings: dict) -> dict[str, torch.Tensor]:
    """Train on this process's share of the micro-batch, so that every launch sees the same
    mini-batches.
    """
    share = {"per_device_train_batch_size": microbatch // int(os.environ.get("WORLD_SIZE", "1"))}
    # Adam would blow up roundings of gradients
    sgd = {"optim": "sgd", "learning_rate": 1e-2, "max_grad_norm": 1.0}
    args = CancellationConfig(output_dir=f"{out}.trainer", **SMALL | share | sgd | settings)
    trainer = bundled_trainer(Recorder, args, reward=reward, rollout_func=fixed_rollouts)
    trainer.train()
    steps = {f"gradient/{i}": gradient for i, gradient in enumerate(trainer.gradients)}
    return steps | {f"groups/{i}": groups for i, groups in enumerate(trainer.groups)}


def record_all(folder: str, cases: dict) -> None:
    """Every case, in each process of a launch; the main one writes FOLDER/(number of
    processes).safetensors.
    """
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    out = f"{folder}/{ranks}.safetensors"
    recorded = {
        f"{name}/{key}": tensor
        for name, case in cases.items()
        for key, tensor in record(out, **case).items()
    }
    if int(os.environ.get("RANK", "0")) == 0:
        ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
        save_file(recorded | {"processes": torch.tensor(ranks)}, out)


def record_as(rank: int, processes: int, port: int, *arguments) -> None:
    """`record_all` as one of several processes, with the variables that torchrun sets."""
    launch = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": processes,
        "LOCAL_WORLD_SIZE": processes,
    }
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "ACCELERATE_USE_CPU": "true"}
    os.environ |= {name: str(value) for name, value in (launch | place).items()}
    record_all(*arguments)


if __name__ == "__main__":
    torch.set_num_threads(1)
    gc.freeze()  # the libraries, which are not garbage in any process
    arguments = sys.argv[1], json.loads(sys.argv[2])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start_processes(record_as, (2, port, *arguments), nprocs=2, start_method="fork")
    record_all(*arguments)
