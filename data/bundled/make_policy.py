"""Make the bundled policy: a two-layer Llama that has read chains with planted errors, so it is often right.

    python data/bundled/make_policy.py --out FOLDER

Supervised training on demonstrations of the chain task: right ones first, then such as have a planted share of wrong
steps, continued consistently. What comes out samples right chains at a rate near 0.4 while the right result is nearly
always its most likely token, as in a base LLM before RL. The prompts are those of data seed 7, which shares none with
the seeds 0 to 6.
Embedding and output layer are untied, so that output-layer gradients can be told from input-embedding gradients.
One thread, one seed: the same machine makes the same bytes.
"""

import argparse
import hashlib
import json
import platform
import random
import time
from dataclasses import replace
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from workbook.tasks.chain import Chain

SPECIAL = ("<pad>", "<eos>", "<unk>")
DATA_SEED = 7  # prompts for training; evaluation prompts come from EVAL_SEED, which shares none with it
EVAL_SEED = 6
MAX_NEW_TOKENS = 64


def make_tokenizer(task: Chain) -> PreTrainedTokenizerFast:
    """Return a word-level tokenizer of the task's vocabulary: it splits at spaces and decodes with single spaces."""
    words = {word: i for i, word in enumerate((*SPECIAL, *task.vocabulary))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=256,
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return the untrained policy: 2 layers of width 64, 4 heads, untied."""
    ids = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        initializer_range=0.1,  # near 1/sqrt(64); at the usual 0.02 a width of 64 is too quiet to learn arithmetic soon
        tie_word_embeddings=False,
        dtype="float32",
        **ids,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=1.0, top_k=0, max_new_tokens=MAX_NEW_TOKENS, **ids
    )
    return model


def train(model: LlamaForCausalLM, tokenizer, task: Chain, steps: int, batch_size: int, lr: float, seed: int) -> float:
    """Train on fresh demonstrations, loss on completion tokens alone, one-cycle schedule; return the last loss in nats.

    The first half of the steps shows right chains alone: arithmetic is learned from those in far fewer steps, whatever
    the seed. The second half plants the errors, and the probabilities follow.
    """
    rng = random.Random(seed)
    right = replace(task, error_rate=0.0)
    prompts = task.dataset(20_000, seed=DATA_SEED)["prompt"][:]
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=lr, total_steps=steps, pct_start=0.1)
    prompt_length = 2 * task.operands
    for step in range(steps):
        batch = rng.choices(prompts, k=batch_size)
        teacher = right if step < steps // 2 else task
        texts = [f"{prompt} {teacher.demonstrate(prompt, rng)} {tokenizer.eos_token}" for prompt in batch]
        ids = tokenizer(texts, return_tensors="pt", padding=True).input_ids  # (B, P + T), no padding: one length
        logits = model(input_ids=ids).logits[:, prompt_length - 1 : -1]  # (B, T, V)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, prompt_length:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return loss.item()


@torch.no_grad()
def measure(model: LlamaForCausalLM, tokenizer, task: Chain, prompts: int, seed: int) -> dict[str, float]:
    """Sample one completion per prompt at temperature 1 and return what they say.

    reward: mean; top1_right: share of the steps in which the right result of what is written is the most likely token;
    p_right: mean probability of that result; well_formed: share of completions that are chains, right or wrong.
    """
    torch.manual_seed(seed)
    rows = task.dataset(prompts, seed=EVAL_SEED)
    inputs = tokenizer(rows["prompt"][:], return_tensors="pt", padding=True)
    ids = model.generate(**inputs)  # (B, P + T)
    probs = model(input_ids=ids).logits.softmax(-1)[:, :-1]  # (B, P + T - 1, V): of the token that follows
    start = inputs.input_ids.shape[1]
    texts = tokenizer.batch_decode(ids[:, start:], skip_special_tokens=True)
    steps, well_formed = [], 0
    for row, text in enumerate(texts):
        words = text.split()
        if task.style_key(text) is None or len(words) != 7 * task.operands + 2:
            continue
        well_formed += 1
        for i in range(9, 7 * task.operands - 3, 7):  # the result of a step, `a op b is result`
            a, operator, b = int(words[i - 4]), words[i - 3], int(words[i - 2])
            right = tokenizer.convert_tokens_to_ids(str((a + b if operator == "+" else a - b) % task.modulus))
            step = probs[row, start + i - 1]
            steps.append((step[right].item(), float(step.argmax() == right)))
    p_right, top1 = (sum(column) / max(1, len(steps)) for column in zip(*steps, strict=True)) if steps else (0.0, 0.0)
    rewards = task.reward(rows["prompt"][:], texts, rows["answer"][:])
    reward = sum(rewards) / len(rewards)
    return {"reward": reward, "top1_right": top1, "p_right": p_right, "well_formed": well_formed / len(texts)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the bundled policy.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--operands", type=int, default=5)
    parser.add_argument("--error-rate", type=float, default=0.2)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--eval-prompts", type=int, default=4096)
    args = parser.parse_args()

    started = time.perf_counter()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    task = Chain(operands=args.operands, error_rate=args.error_rate)
    tokenizer = make_tokenizer(task)
    model = make_model(tokenizer)
    loss = train(model, tokenizer, task, args.steps, args.batch_size, args.lr, args.seed)
    model.eval()
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    arguments = {key: value for key, value in vars(args).items() if key != "out"}
    provenance = {
        "made_by": "data/bundled/make_policy.py",
        "arguments": arguments,
        "task": {"name": "chain", "operands": task.operands, "error_rate": task.error_rate, "modulus": task.modulus},
        "parameters": model.num_parameters(),
        "last_loss_nats": loss,
        "measured": {
            "prompts": args.eval_prompts,
            "temperature": 1.0,
            **measure(model, tokenizer, task, args.eval_prompts, args.seed),
        },
        "sha256": {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in [args.out / "model.safetensors", args.out / "tokenizer.json", Path(__file__)]
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
