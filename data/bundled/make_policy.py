"""Make the bundled policy: a two-layer Llama that has read chains with planted errors, so it is
often right.

    python data/bundled/make_policy.py --out FOLDER

Supervised training on demonstrations of the chain task: right ones first, then such as have a
planted share of wrong steps, continued consistently. What comes out samples right chains at a rate
near 0.4 while the right result is nearly always its most likely token, as in a base LLM before RL.
The prompts are those of data seed 7, which shares none with the seeds 0 to 6. The training is that
of `workbook.studies.making`: one thread, one seed, so the same machine makes the same bytes.
"""

import argparse
import hashlib
import json
import platform
import time
from pathlib import Path

import torch
import transformers

from workbook.policies.small import make_model, make_tokenizer
from workbook.studies.making import BATCH_SIZE, LEARNING_RATE, measure_start, train_supervised
from workbook.tasks.chain import Chain


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the bundled policy.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--operands", type=int, default=5)
    parser.add_argument("--error-rate", type=float, default=0.2)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE)
    parser.add_argument("--lr", type=float, default=LEARNING_RATE)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--eval-prompts", type=int, default=4096)
    args = parser.parse_args()

    started = time.perf_counter()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    task = Chain(operands=args.operands, error_rate=args.error_rate)
    tokenizer = make_tokenizer(task)
    model = make_model(tokenizer)
    loss = train_supervised(model, tokenizer, task, args.steps, args.batch_size, args.lr, args.seed)
    model.eval()
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    arguments = {key: value for key, value in vars(args).items() if key != "out"}
    provenance = {
        "made_by": "data/bundled/make_policy.py",
        "arguments": arguments,
        "task": {
            "name": "chain",
            "operands": task.operands,
            "error_rate": task.error_rate,
            "modulus": task.modulus,
        },
        "parameters": model.num_parameters(),
        "last_loss_nats": loss,
        "measured": {
            "prompts": args.eval_prompts,
            "temperature": 1.0,
            **measure_start(model, tokenizer, task, args.eval_prompts, args.seed),
        },
        "sha256": {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in [
                args.out / "model.safetensors",
                args.out / "tokenizer.json",
                Path(__file__),
            ]
        },
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "seconds": round(time.perf_counter() - started, 1),
    }
    (args.out / "provenance.json").write_text(json.dumps(provenance, indent=1) + "\n")
    print(json.dumps({**provenance["measured"], "seconds": provenance["seconds"]}))


if __name__ == "__main__":
    main()
