"""Preview: two prompts exactly as the model gets them, four completions of each, and their rewards, before training.

start_preview(config, folder) -> Preview       sampled in a process of its own
preview_html(preview.result())                 what it wrote, as a page shows it

python -m workbook.topics.laboratory.preview FOLDER
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from workbook.lazy import import_to_stay
from workbook.training.files import read_json, write_json, write_text
from workbook.training.messages import explain_error
from workbook.training.processes import identity, is_alive, launch
from workbook.training.run_config import RunConfig, dump_yaml
from workbook.training.runs import Run
from workbook.views.style import escape, visible

PROMPTS, COMPLETIONS = 2, 4
MAX_SHOWN = 2000  # characters of a text that are shown
PRE = "margin: 2px 0; white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate; font-size: 12px"
CELL = "text-align: left; vertical-align: top; padding: 1px 8px 1px 0"


class Preview(Run):
    """A preview that is sampled, or was, in `folder`."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)

    def status(self) -> dict:
        """state (running, finished, failed, interrupted), message, and the process's marks."""
        status = read_json(self.folder / "status.json", dict)
        if status["state"] == "running" and not is_alive(status):
            status |= {"state": "interrupted", "message": "Stopped."}
        return status

    def result(self) -> dict:
        """What was sampled: prompts, each with text, tokens, unknown, answer and completions; see `sample_preview`."""
        return read_json(self.folder / "preview.json", dict)


def start_preview(config: RunConfig, folder: str | Path) -> Preview:
    """Start sampling PROMPTS prompts of a config in a process of its own; the folder is made."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    write_text(folder / "config.yaml", dump_yaml(asdict(config)))
    process = launch(folder, __name__, str(folder))
    write_json(folder / "status.json", process | {"state": "running", "message": "Loading the model."})
    return Preview(folder)


def sample_preview(config: RunConfig, report=lambda message: None) -> dict[str, Any]:
    """Sample the first prompts of a config's training set as training would, before its first step.

    report: called with what is done now.
    """
    import torch

    from workbook.policies import load_policy
    from workbook.rollouts import sample_rollouts
    from workbook.tasks import get_task
    from workbook.tasks.task import prompt_key
    from workbook.training.config import sampling_settings, trainer_args

    options = {"quantization": config.quantization, "lora": config.lora, "seed": config.seed, "dtype": config.dtype}
    policy = load_policy(config.policy, **options)
    task = get_task(config.task, **config.task_options)
    rows = task.split(config.num_prompts, config.eval_prompts, config.seed)[0]
    different = {prompt_key(prompt): place for place, prompt in reversed(list(enumerate(rows["prompt"])))}
    rows = rows.select(sorted(different.values())[:PROMPTS])
    args = trainer_args(config, torch.device(policy.provenance["device"]), "unused")
    report(f"Sampling {COMPLETIONS} completions of {len(rows)} prompts.")
    rollouts = sample_rollouts(policy, task, rows, COMPLETIONS, seed=config.seed, **sampling_settings(args))
    return {"model": config.policy, "prompts": [_prompt(policy, rollouts, k) for k in range(len(rows))]}


def _prompt(policy, rollouts, group: int) -> dict[str, Any]:
    """One prompt with its completions, as texts and numbers."""
    from workbook.rollouts import end_tokens

    members = [i for i, of in enumerate(rollouts.group_ids.tolist()) if of == group]
    ids = rollouts.prompt_ids[members[0]][rollouts.prompt_mask[members[0]].bool()].tolist()
    ends, unknown = end_tokens(policy), policy.tokenizer.unk_token_id
    completions = []
    for i in members:
        tokens = rollouts.completion_ids[i][rollouts.completion_mask[i].bool()].tolist()
        sampled = {"text": rollouts.completions[i], "reward": float(rollouts.rewards[i]), "tokens": len(tokens)}
        completions.append(sampled | {"ended": bool(tokens) and tokens[-1] in ends})
    return {
        "text": policy.tokenizer.decode(ids, skip_special_tokens=False),
        "tokens": len(ids),
        "unknown": 0 if unknown is None else ids.count(unknown),
        "answer": str(rollouts.answers[members[0]]),
        "completions": completions,
    }


def preview_sentence(result: dict[str, Any]) -> str:
    """What the samples say of the training that would follow, in one sentence."""
    groups = [[sampled["reward"] for sampled in prompt["completions"]] for prompt in result["prompts"]]
    differ = sum(len(set(rewards)) > 1 for rewards in groups)
    rewards = [reward for group in groups for reward in group]
    mean = f"Mean reward {sum(rewards) / len(rewards):.2f}"
    cut = sum(not sampled["ended"] for prompt in result["prompts"] for sampled in prompt["completions"])
    cut_off = f" {cut} of {len(rewards)} completions were cut off at the token limit." if cut else ""
    if differ:
        return f"{mean}; {differ} of {len(groups)} groups hold different rewards, from which it can learn.{cut_off}"
    return (
        f"{mean}; no group holds two different rewards, and from such groups nothing is learned: a training run needs "
        f"prompts at which it sometimes succeeds, or a reward in finer steps.{cut_off}"
    )


def preview_html(result: dict[str, Any]) -> str:
    """The samples as HTML in which a model's text is text: no markup, nothing invisible."""
    parts = []
    for number, prompt in enumerate(result["prompts"], 1):
        unknown = f", {prompt['unknown']} of them unknown to it" if prompt["unknown"] else ""
        parts.append(
            f"<div><b>Prompt {number} as {escape(result['model'])} gets it</b> ({prompt['tokens']} tokens{unknown}), "
            f"answer <code>{escape(visible(prompt['answer'], 200, space=' '))}</code></div>{_text(prompt['text'])}"
        )
        rows = "".join(
            f'<tr><td style="{CELL}">{sampled["reward"]:.3g}</td><td style="{CELL}">{_length(sampled)}</td>'
            f'<td style="{CELL}">{_text(sampled["text"])}</td></tr>'
            for sampled in prompt["completions"]
        )
        head = "".join(f'<th style="{CELL}">{name}</th>' for name in ("reward", "tokens", "completion"))
        parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>")
    return f'<div style="line-height: 1.4">{"".join(parts)}</div>'


def _length(sampled: dict[str, Any]) -> str:
    return f"{sampled['tokens']}{'' if sampled['ended'] else ' (cut off)'}"


def _text(text: str) -> str:
    """A text in full, its line ends marked and kept, in type of one width."""
    shown = escape(visible(text, MAX_SHOWN, space=" ").replace("⏎", "⏎\n"))
    return f'<pre dir="ltr" style="{PRE}">{shown}</pre>'


def main(folder: str) -> int:
    """Entry point of a preview's own process."""
    preview, process = Preview(folder), identity(os.getpid())

    def report(message: str, state: str = "running") -> None:
        write_json(preview.folder / "status.json", process | {"state": state, "message": message})

    try:
        import_to_stay("workbook.training.config")
        config = RunConfig.load(preview.folder / "config.yaml")
        write_json(preview.folder / "preview.json", sample_preview(config, report))
        report("Sampled.", "finished")
    except Exception as error:  # the page that waits for it says so
        report(explain_error(error, 1000), "failed")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
