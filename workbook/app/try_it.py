"""Two prompts exactly as the model gets them, four completions of each and their rewards, before
anything is trained.

For a reward of one's own it also tells which texts that are no answers the reward pays
(`attack_reward`).
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from workbook.messages import explain_error
from workbook.training.config import RunConfig, dump_settings
from workbook.views.style import escape, visible

PROMPTS, COMPLETIONS = 2, 4
# completions of a prompt that are not folded; texts named that are paid though no answer
OPEN, NAMED = 2, 3
MAX_SHOWN = 2000  # characters of a text that are shown
PRE = (
    "margin: 2px 0; white-space: pre-wrap; overflow-wrap: break-word; unicode-bidi: isolate;"
    " font-size: 12px"
)
CELL = "text-align: left; vertical-align: top; padding: 1px 8px 1px 0"


class Sampling:
    """Samples of PROMPTS prompts of a config, drawn in a process of its own."""

    def __init__(self, config: RunConfig):
        self._folder, self._began = Path(tempfile.mkdtemp(prefix="workbook-try-")), time.monotonic()
        (self._folder / "config.yaml").write_text(dump_settings(asdict(config)), encoding="utf-8")
        command = [sys.executable, "-m", __name__, str(self._folder)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def ended(self) -> bool:
        return self._process.poll() is not None

    def progress(self) -> str:
        return f"Sampling, {time.monotonic() - self._began:.0f} s so far."

    def answer(self) -> tuple[str, str, bool]:
        """What the samples say, the samples as HTML, and whether there are none."""
        try:
            result = json.loads((self._folder / "samples.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            result = {"error": "Its process ended before it had sampled anything."}
        if "error" in result:
            return result["error"], "", True
        return samples_sentence(result), samples_html(result), False

    def close(self) -> None:
        """End it, if it goes on, and remove what it wrote."""
        self._process.kill()
        self._process.wait(10)
        shutil.rmtree(self._folder, ignore_errors=True)


def sample(config: RunConfig) -> dict:
    """Sample a config's first training prompts as training would, before its first step."""
    import torch

    from workbook.policies import load_policy
    from workbook.rollouts import sample_rollouts
    from workbook.tasks import attack_reward, get_task
    from workbook.training.config import sampling_settings, trainer_args

    options = {
        "quantization": config.quantization,
        "lora": config.lora,
        "seed": config.seed,
        "dtype": config.dtype,
    }
    policy, task = (
        load_policy(config.policy, **options),
        get_task(config.task, **config.task_options),
    )
    rows = task.split(config.num_prompts, config.eval_prompts, config.seed)[0]
    rows = rows.select(range(min(PROMPTS, len(rows))))
    args = trainer_args(config, torch.device(policy.provenance["device"]), "unused")
    rollouts = sample_rollouts(
        policy, task, rows, COMPLETIONS, seed=config.seed, **sampling_settings(args)
    )
    unknown, prompts = policy.tokenizer.unk_token_id, []
    for group in range(len(rows)):
        members = (rollouts.group_ids == group).nonzero()[:, 0].tolist()
        ids = rollouts.prompt_ids[members[0]][rollouts.prompt_mask[members[0]].bool()].tolist()
        columns = (
            rollouts.completions,
            rollouts.rewards.tolist(),
            rollouts.completion_mask.sum(1).tolist(),
        )
        sampled = [
            dict(zip(("text", "reward", "tokens"), row, strict=True))
            for row in zip(*columns, strict=True)
        ]
        prompt = {
            "text": policy.tokenizer.decode(ids, skip_special_tokens=False),
            "tokens": len(ids),
        }
        prompt |= {"unknown": 0 if unknown is None else ids.count(unknown)}
        answer = str(rollouts.answers[members[0]])
        prompts.append(prompt | {"answer": answer, "completions": [sampled[i] for i in members]})
    attack = attack_sentence(attack_reward(task, 8)) if config.task.startswith("own:") else ""
    return {"model": config.policy, "prompts": prompts, "attack": attack}


def attack_sentence(table) -> str:
    """Which texts that are no answer a reward pays; table: of `attack_reward`."""
    false = table[table["false"]]
    paid = false[false["paid"] > 0].sort_values("paid", ascending=False, kind="stable")
    named = f", such as “{'”, “'.join(paid['hack'].head(NAMED))}”" if len(paid) else ""
    failed = table.loc[table["error"] != "", "error"]
    fails = (
        f" It fails on {len(failed)} texts, at first so: {failed.iloc[0]}" if len(failed) else ""
    )
    blind = (
        ""
        if table.loc[~table["false"], "paid"].max() > 0
        else " It pays no form of the true answer either."
    )
    return (
        f"The reward pays {len(paid)} of {len(false)} texts that are no"
        f" answer{named}.{blind}{fails}"
    )


def samples_sentence(result: dict) -> str:
    """What the samples say of the training that would follow."""
    groups = [
        [sampled["reward"] for sampled in prompt["completions"]] for prompt in result["prompts"]
    ]
    differ = sum(len(set(rewards)) > 1 for rewards in groups)
    mean = sum(map(sum, groups)) / sum(map(len, groups))
    learns = f"{differ} of {len(groups)} groups hold different rewards, from which it can learn."
    nothing = (
        "no group holds two different rewards, and from such groups nothing is learned: a training"
        " run needs prompts at which it sometimes succeeds, or a reward in finer steps."
    )
    return f"Mean reward {mean:.2f}; {learns if differ else nothing} {result['attack']}".strip()


def samples_html(result: dict) -> str:
    """The samples as HTML in which a model's text is text: no markup, nothing invisible."""
    parts = []
    for number, prompt in enumerate(result["prompts"], 1):
        unknown = f", {prompt['unknown']} of them unknown to it" if prompt["unknown"] else ""
        answer = escape(visible(prompt["answer"], 200, space=" "))
        head = (
            f"<b>Prompt {number} as {escape(result['model'])} gets it</b> ({prompt['tokens']}"
            f" tokens{unknown})"
        )
        parts.append(f"<div>{head}, answer <code>{answer}</code></div>{_text(prompt['text'])}")
        first, more = prompt["completions"][:OPEN], prompt["completions"][OPEN:]
        parts.append(_table(first))
        if more:
            parts.append(
                f"<details><summary>{len(more)} more completions</summary>{_table(more)}</details>"
            )
    return f'<div style="line-height: 1.4">{"".join(parts)}</div>'


def _table(completions: list[dict]) -> str:
    rows = "".join(
        f'<tr><td style="{CELL}">{sampled["reward"]:.3g}</td><td'
        f' style="{CELL}">{sampled["tokens"]}</td><td style="{CELL}; width:'
        f' 100%">{_text(sampled["text"])}</td></tr>'
        for sampled in completions
    )
    names = "".join(
        f'<th style="{CELL}">{name}</th>' for name in ("reward", "tokens", "completion")
    )
    return (
        f'<table style="width: 100%"><thead><tr>{names}</tr></thead><tbody>{rows}</tbody></table>'
    )


def _text(text: str) -> str:
    shown = escape(visible(text, MAX_SHOWN, space=" ").replace("⏎", "⏎\n"))
    return f'<pre dir="ltr" style="{PRE}">{shown}</pre>'


def write_samples(folder: Path) -> None:
    """Write what a config samples, or the sentence that says why it can't."""
    try:
        result = sample(RunConfig.load(folder / "config.yaml"))
    except Exception as error:  # the page that waits for it says so
        result = {"error": explain_error(error, 1000)}
    (folder / "samples.json").write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    write_samples(Path(sys.argv[1]))
