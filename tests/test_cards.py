"""Model cards: front matter that a hub reads, numbers from the records, and foreign text that stays text."""

import json
import re
from dataclasses import asdict
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml

from workbook.places import data_path
from workbook.training import cards
from workbook.training.run_config import RunConfig, dump_yaml

HOSTILE = "evil\n---\nlicense: mit\n# <script>alert(1)</script> ![x](http://a/b.png) `rm` | **b**"


def front_matter(card: str) -> dict:
    start, text, _ = card.split("---\n", 2)
    assert start == ""
    return yaml.safe_load(text)


def make_run(status="Finished.", evaluation=(), manifest=None, **config):
    return SimpleNamespace(
        config=RunConfig(**config),
        status=lambda: {"message": status},
        manifest=lambda: manifest or {},
        evaluation=lambda: pd.DataFrame(evaluation, columns=["label", "mean", "low", "high"]),
    )


@pytest.fixture
def run_card(tmp_path):
    """The card of a run whose model is these files."""

    def make(run, *names):
        (tmp_path / "config.yaml").write_text(dump_yaml(asdict(run.config)))
        for name in names:
            (tmp_path / name).touch()
        (tmp_path / "checksums.json").write_text(json.dumps({name: {} for name in names}))
        return cards.run_card(run, tmp_path, tmp_path / "config.yaml")

    return make


def test_the_bundled_policys_card_is_made_from_its_provenance():
    card = data_path("bundled", "README.md").read_text(encoding="utf-8")
    assert card == cards.bundled_card(), "python -m workbook.training.cards writes it anew"
    front = front_matter(card)
    assert (front["library_name"], front["license"]) == ("transformers", "apache-2.0")
    assert "base_model" not in front
    record = json.loads(data_path("bundled", "provenance.json").read_text())["measured"]
    share, n, z = record["reward"], record["prompts"], 1.959963984540054
    middle, half = share + z**2 / (2 * n), z * (share * (1 - share) / n + (z / (2 * n)) ** 2) ** 0.5
    low, high = ((middle + sign * half) / (1 + z**2 / n) for sign in (-1, 1))
    assert f"{share:.3f}, 95 % interval {low:.3f} to {high:.3f} (Wilson)" in card


def test_an_adapters_card_names_base_data_and_reward(run_card):
    evaluation = [("before", 0.25, 0.2, 0.3), ("after", 0.5, 0.4375, 0.5625)]
    manifest = {
        "versions": {"torch": "2.13.0", "vllm": None},
        "device": "cpu",
        "git": {"commit": "abc123", "modified": True},
    }
    run = make_run(
        evaluation=evaluation, manifest=manifest, policy="Qwen/Qwen2.5-1.5B", task="hub:openai/gsm8k", lora=8
    )
    card = run_card(run, "adapter_config.json", "adapter_model.safetensors")
    assert front_matter(card) == {
        "library_name": "peft",
        "pipeline_tag": "text-generation",
        "license": "other",
        "base_model": "Qwen/Qwen2.5-1.5B",
        "base_model_relation": "adapter",
        "datasets": ["openai/gsm8k"],
        "tags": cards.TAGS,
    }
    assert "| before training | 0.250 | 0.200 to 0.300 |\n| after training | 0.500 | 0.438 to 0.562 |" in card
    assert "On cpu with torch 2.13.0, from commit abc123 of the workbook with files changed." in card
    assert f"```yaml\n{dump_yaml(asdict(run.config))}```" in card
    assert "policy = load_policy('Qwen/Qwen2.5-1.5B')\nmodel = PeftModel.from_pretrained(policy.model" in card
    assert "Its licence is that of its base model" in card


def test_whole_weights_without_evaluation_say_so(run_card):
    run = make_run(policy="smollm2-135m")
    card = run_card(run, "model.safetensors")
    front = front_matter(card)
    assert (front["library_name"], front["base_model_relation"]) == ("transformers", "finetune")
    assert (front["base_model"], front["license"]) == ("HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0")
    assert "datasets" not in front
    assert "Not measured: the run had no held-out prompts" in card
    assert "`model/` holds `model.safetensors`" in card


def test_foreign_text_stays_text(run_card):
    manifest = {"versions": {"torch": HOSTILE}, "device": HOSTILE, "policy": {"sha256": HOSTILE}}
    run = make_run(status=HOSTILE, manifest=manifest, name="a `b` <i> # *c*", policy=HOSTILE.replace("\n", " ```` "))
    card = run_card(run, "adapter_config.json")
    assert front_matter(card)["license"] == "other"
    assert "base_model" not in front_matter(card)
    assert card.count("\n---\n") == 1
    fences = re.findall(r"^(`{3,})(\w*)$", card, re.MULTILINE)
    assert [language for _, language in fences] == ["yaml", "", "python", ""]
    assert min(len(ticks) for ticks, _ in fences) > 4, "more than the longest row inside"
    prose = re.sub(r"^(`{3,})\w+$.*?^\1$", "", card, flags=re.MULTILINE | re.DOTALL)
    assert "# a \\`b\\` &lt;i&gt; \\# \\*c\\*" in prose
    assert not re.search(r"<\w|(?<!\\)!\[", prose)
    assert prose.count("\n# ") == 1
