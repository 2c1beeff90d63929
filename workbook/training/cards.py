"""Model cards: README.md with YAML front matter, as model hubs read it, of an export and of the bundled policy.

    python -m workbook.training.cards           writes data/bundled/README.md anew, from provenance.json

Every number comes from a run's or a policy's own records. Names and messages are text of others, so they are escaped.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

from workbook.places import clone, data_path
from workbook.training.files import SUMS, write_text
from workbook.training.messages import one_line
from workbook.training.run_config import RunConfig, dump_yaml
from workbook.training.runs import Run

SOURCES = {  # names of `load_policy` that a hub has, too
    "smollm2-135m": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "gemma3-270m": "google/gemma-3-270m",
}
LICENSES = dict.fromkeys(["bundled", "smollm2-135m", SOURCES["smollm2-135m"]], "apache-2.0")
LICENSES |= dict.fromkeys(["gemma3-270m", SOURCES["gemma3-270m"]], "gemma")
TAGS = ["text-generation", "grpo", "trl", "reinforcement-learning", "cancellation-workbook"]
LONGEST = 200  # characters of a name in a card


def run_card(run: Run, model: Path, config: Path) -> str:
    """The card of a run's export.

    model: the exported model's folder, with its checksums.  config: the exported config.yaml, in which nothing says
    where on this machine it lay.
    """
    exported, text = RunConfig.load(config), config.read_text(encoding="utf-8")
    base, name, task = exported.policy, exported.name, exported.task
    adapter = (model / "adapter_config.json").exists()
    what = "A LoRA adapter for" if adapter else "All weights, trained from"
    status, manifest = run.status(), run.manifest()
    parts = {
        "": f"{what} {escaped(base)}, with GRPO as the cancellation workbook trains it, on the task {escaped(task)}. "
        f"{escaped(status['message'])}",
        "How it was trained": f"{_made_with(manifest)} Its config:\n\n{fenced(text, 'yaml')}",
        "Held-out reward": _evaluated(run),
        "Intended use and limits": "Made to study how the gradients of tokens cancel in training, not to serve. It was "
        "rewarded for this task's answers alone, and measured on this task's prompts alone: nothing is known of other "
        "prompts, and nothing was done for safety beyond what its base has. "
        + ("" if LICENSES.get(base) else "Its licence is that of its base model, which its user looks up."),
        "How to load it": f"In this folder, with the workbook installed:\n\n{fenced(_loading(base, adapter), 'python')}"
        f"\n\n{_base_note(run, manifest, base)}The same run again: `python -m workbook train config.yaml`.",
        "Files": f"`model/` holds {', '.join(f'`{file}`' for file in _files(model))}; `{SUMS}` has their SHA-256.",
    }
    return _card(_front(base, task, adapter), name, parts)


def bundled_card(folder: Path | None = None) -> str:
    """The card of the bundled policy, from provenance.json and config.json in its folder."""
    folder = folder or data_path("bundled")
    record, shape = (
        json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for name in ("provenance", "config")
    )
    measured, made, task = record["measured"], record["arguments"], record["task"]
    low, high = _wilson(measured["reward"], measured["prompts"])
    parts = {
        "": f"A Llama of {shape['num_hidden_layers']} layers and {record['parameters']:,} parameters that does clock "
        f"arithmetic modulo {task['modulus']} word by word, rightly about {measured['reward']:.0%} of the time: a "
        "policy small enough to be known, from which reinforcement learning starts in the workbook's chapters.",
        "How it was trained": f"From nothing, supervised, on demonstrations of the task `{task['name']}` "
        f"({task['operands']} operands, {task['error_rate']:.0%} of the steps planted wrong): {made['steps']} steps of "
        f"{made['batch_size']} demonstrations, learning rate {made['lr']}, seed {made['seed']}; last loss "
        f"{record['last_loss_nats']:.3f} nats. `{Path(record['made_by']).name}` makes it again, byte for byte on the "
        f"same machine; `provenance.json` has versions and checksums. The data are generated, and no person's.",
        "Held-out reward": f"{measured['reward']:.3f}, 95 % interval {low:.3f} to {high:.3f} (Wilson), over "
        f"{measured['prompts']:,} prompts that share none with its training, one rollout each at temperature "
        f"{measured['temperature']:g}. The right result of a step is its most likely one in "
        f"{measured['top1_right']:.0%} of the steps, with a mean probability of {measured['p_right']:.3f}; "
        f"{measured['well_formed']:.1%} of the rollouts are well formed.",
        "Intended use and limits": "Made for teaching and for measurements that need thousands of runs. It knows "
        f"the {shape['vocab_size']} words of its task and nothing else; what holds of it need not hold of a real "
        "language model, and where the workbook measured both it says so.",
        "How to load it": fenced('from workbook import load_policy\n\npolicy = load_policy("bundled")', "python")
        + "\n\nor `AutoModelForCausalLM.from_pretrained` on this folder.",
    }
    front = {"library_name": "transformers", "pipeline_tag": "text-generation", "license": LICENSES["bundled"]}
    return _card(front | {"tags": ["text-generation", "toy", "cancellation-workbook"]}, "The bundled policy", parts)


def escaped(text: Any) -> str:
    """Foreign text as one line of Markdown that means nothing but itself.

    >>> escaped("<b>*x*</b>")
    '&lt;b&gt;\\\\*x\\\\*&lt;/b&gt;'
    """
    return re.sub(r"([\\`*_\[\]#|~!])", r"\\\1", html.escape(one_line(text, LONGEST), quote=False))


def fenced(text: str, language: str) -> str:
    """Foreign text as a block of code, between more backticks than it has in a row."""
    ticks = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{ticks}{language}\n{text.rstrip()}\n{ticks}"


def _card(front: dict, title: str, parts: dict[str, str]) -> str:
    sections = [f"## {heading}\n\n{text}" if heading else text for heading, text in parts.items()]
    return "\n\n".join([f"---\n{dump_yaml(front)}---", f"# {escaped(title)}", *sections]) + "\n"


def _front(base: str, task: str, adapter: bool) -> dict:
    """What a hub reads; a base or a data set is named where it is one that a hub has."""
    front: dict = {"library_name": "peft" if adapter else "transformers", "pipeline_tag": "text-generation"}
    front |= {"license": LICENSES.get(base, "other")}
    source = SOURCES.get(base, base)
    if re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", source, re.ASCII):
        front |= {"base_model": source, "base_model_relation": "adapter" if adapter else "finetune"}
    dataset = task.removeprefix("hub:")
    if task != dataset and re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", dataset, re.ASCII):
        front["datasets"] = [dataset]
    return front | {"tags": TAGS}


def _made_with(manifest: dict) -> str:
    versions = manifest.get("versions") or {}
    packages = ", ".join(f"{escaped(name)} {escaped(version)}" for name, version in versions.items() if version)
    git = manifest.get("git") or {}
    of = f", from commit {escaped(git['commit'])} of the workbook" if "commit" in git else ""
    of += " with files changed" if git.get("modified") else ""
    return f"On {escaped(manifest.get('device', 'an unknown device'))} with {packages}{of}."


def _evaluated(run: Run) -> str:
    """A table of held-out rewards with their intervals."""
    table = run.evaluation()
    if table.empty:
        return "Not measured: the run had no held-out prompts (`eval_prompts: 0`)."
    rows = [
        f"| {escaped(row.label)} training | {row.mean:.3f} | {row.low:.3f} to {row.high:.3f} |"
        for row in table.itertuples()
    ]
    over = f"Over {run.config.eval_prompts} held-out prompts, {run.config.eval_group_size} rollouts each, sampled as in"
    head = ["| | mean reward | 95 % interval |", "|---|---|---|"]
    return "\n".join([f"{over} training; the interval is a bootstrap over prompts.", "", *head, *rows])


def _loading(base: str, adapter: bool) -> str:
    if not adapter:
        return 'from workbook import load_policy\n\npolicy = load_policy("model")'
    return (
        "from peft import PeftModel\n\nfrom workbook import load_policy\n\n"
        f'policy = load_policy({base!r})\nmodel = PeftModel.from_pretrained(policy.model, "model")'
    )


def _base_note(run: Run, manifest: dict, base: str) -> str:
    """Where a base that no other machine finds comes from."""
    if base == run.config.policy:
        return ""
    sha256 = escaped((manifest.get("policy") or {}).get("sha256"))
    where = f"{escaped(base)} was a folder of the author's own and is not in this export: put it here, too"
    return f"{where} (SHA-256 of its weights: {sha256}).\n\n"


def _files(model: Path) -> list[str]:
    return sorted(json.loads((model / SUMS).read_text(encoding="utf-8")))


def _wilson(share: float, n: int) -> tuple[float, float]:
    """The 95 % interval of a share of n."""
    from scipy.stats import binomtest

    interval = binomtest(round(share * n), n).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


if __name__ == "__main__":
    write_text(clone("Writing the card") / "data" / "bundled" / "README.md", bundled_card())
