"""GRPO in forty lines takes the steps of TRL's trainer, and the chapter shows the file's own."""

import ast
import copy
import importlib.util
from pathlib import Path

import nbformat
import pandas as pd
import pytest
import torch
from trl import GRPOConfig, GRPOTrainer

from workbook.book.chapters import find_chapters
from workbook.chapters.grpo import (
    ADAM_EPSILON,
    LOSS_TYPES,
    LR,
    check_normalizers,
    clipped_loss,
    largest_difference,
    trainer_steps,
    value_curves,
)
from workbook.policies import load_policy
from workbook.tasks import get_task
from workbook.training import CancellationConfig, CancellationTrainer

FILE = Path(__file__).parents[1] / "examples" / "grpo_in_forty_lines.py"
GROUP_SIZE = 8
TASK = get_task("chain")
FORTY = (
    "sample_completions",
    "advantages_of",
    "token_logps",
    "grpo_loss",
    "grpo_step",
    "train_grpo",
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def forty():
    spec = importlib.util.spec_from_file_location("grpo_in_forty_lines", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def replayed(policy, batches, forty, loss, epochs=1, lr=LR):
    """A copy of the policy's model that takes steps on the trainer's rollouts."""
    model = copy.deepcopy(policy.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, eps=ADAM_EPSILON, weight_decay=0.0)
    for batch in batches:
        rewards = torch.tensor(TASK.reward(batch.prompts, batch.texts, batch.answers))
        advantages = forty.advantages_of(rewards, GROUP_SIZE)
        torch.testing.assert_close(advantages[:, 0], batch.advantages, atol=1e-6, rtol=0)
        old = forty.token_logps(model, batch.prompt_ids, batch.completion_ids).detach()
        for _ in range(epochs):
            logps = forty.token_logps(model, batch.prompt_ids, batch.completion_ids)
            optimizer.zero_grad()
            loss(logps, old, batch.mask, advantages).backward()
            optimizer.step()
    return model


@pytest.mark.parametrize(
    ("kind", "config"),
    [(GRPOTrainer, GRPOConfig), (CancellationTrainer, CancellationConfig)],
    ids=["trl", "ours"],
)
def test_the_whole_loop_takes_the_trainers_steps(policy, forty, monkeypatch, kind, config):
    """Given the trainer's prompts and completions, `train_grpo` itself computes rewards,
    advantages and losses, and ends at the trainer's weights.
    """
    batches, theirs = trainer_steps(policy, TASK, 3, 8, GROUP_SIZE, kind, config)
    drawn = iter(batches)

    class SameRows:
        """The task with the prompts of the trainer, in its order."""

        reward = staticmethod(TASK.reward)

        def dataset(self, rows, seed):
            data = TASK.dataset(rows, seed)
            known = {prompt: place for place, prompt in enumerate(data["prompt"])}
            order = [known[one] for batch in batches for one in batch.prompts[::GROUP_SIZE]]
            return data.select(order)

    def given(model, prompts, end):
        batch = next(drawn)
        assert torch.equal(prompts, batch.prompt_ids)
        return batch.completion_ids, batch.mask

    monkeypatch.setattr(forty, "sample_completions", given)
    optimizer = torch.optim.AdamW
    monkeypatch.setattr(
        forty.torch.optim, "AdamW", lambda *a, **k: optimizer(*a, **k, eps=ADAM_EPSILON)
    )
    mine = load_policy("bundled")
    before = copy.deepcopy(mine.model)
    assert len(list(forty.train_grpo(mine, SameRows(), 3, 8, GROUP_SIZE, lr=LR))) == 3
    assert largest_difference(before, theirs.model) > 1e-3
    assert largest_difference(mine.model, theirs.model) < 1e-6


def test_the_gradient_is_the_trainers(policy, forty):
    """One step of plain gradient descent at the rate 1 moves the weights by the gradient."""
    settings = {"optim": "sgd", "learning_rate": 1.0}
    batches, theirs = trainer_steps(policy, TASK, 1, **settings)
    batch = batches[0]
    model = copy.deepcopy(policy.model)
    logps = forty.token_logps(model, batch.prompt_ids, batch.completion_ids)
    forty.grpo_loss(logps, logps.detach(), batch.mask, batch.advantages[:, None]).backward()
    ours = torch.cat([weight.grad.flatten() for weight in model.parameters()])
    moved = zip(policy.model.parameters(), theirs.model.parameters(), strict=True)
    change = torch.cat([(before - after).detach().flatten() for before, after in moved])
    assert change.norm() > 1e-2
    assert (ours - change).norm() < 1e-4 * change.norm()


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_steps_on_used_rollouts_are_the_trainers(policy, forty, loss_type):
    """The exercise's losses as well, with ratios beyond the clip range."""
    settings = {"num_iterations": 3, "learning_rate": 3 * LR, "loss_type": loss_type}
    batches, theirs = trainer_steps(policy, TASK, 3, **settings)
    assert len(batches) == 1
    batch = batches[0]
    with torch.no_grad():
        models = (policy.model, theirs.model)
        old, new = (
            forty.token_logps(model, batch.prompt_ids, batch.completion_ids) for model in models
        )
    assert (((new - old)[batch.mask].exp() - 1).abs() > 0.2).any()

    def exercise(*given):
        return clipped_loss(*given, loss_type)

    mine = replayed(policy, batches, forty, exercise, epochs=3, lr=3 * LR)
    assert largest_difference(mine, theirs.model) < 3e-6
    if loss_type == "grpo":
        same = replayed(policy, batches, forty, forty.grpo_loss, epochs=3, lr=3 * LR)
        assert largest_difference(same, mine) < 3e-6


def test_a_completion_ends_with_its_first_end_token(policy, forty):
    torch.manual_seed(0)
    prompts = TASK.dataset(4, 0)["prompt"][:]
    ids = policy.tokenizer(prompts, return_tensors="pt").input_ids
    end = policy.tokenizer.eos_token_id
    completion, mask = forty.sample_completions(policy.model, ids, end, length=45)
    assert completion.shape == mask.shape == (4, 45)
    for tokens, alive in zip(completion.tolist(), mask.tolist(), strict=True):
        length = tokens.index(end) + 1
        assert alive == [True] * length + [False] * (45 - length)
        assert set(tokens[length:]) <= {end}
    # the cache changes nothing: without it the same tokens are drawn
    torch.manual_seed(0)
    text = ids
    with torch.no_grad():
        for _ in range(45):
            probabilities = policy.model(text).logits[:, -1].softmax(-1)
            text = torch.cat([text, probabilities.multinomial(1)], 1)
    assert torch.equal(text[:, ids.shape[1] :][mask], completion[mask])


def test_there_are_forty_lines_and_the_chapter_shows_them():
    source = FILE.read_text(encoding="utf-8")
    defined = {
        node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)
    }
    chapter = next(iter(find_chapters(["04"])))
    cells = nbformat.read(chapter, 4).cells
    shown = [cell.source for cell in cells if "def train_grpo" in cell.source]
    assert len(shown) == 1
    body = shown[0].removeprefix("import torch\n").strip("\n")
    assert body in source
    assert [n for n in defined if f"def {n}(" in body] == list(FORTY)
    lines = [line for line in shown[0].splitlines() if line.strip()]
    assert len([line for line in lines if not line.lstrip().startswith("#")]) <= 40


def test_the_exercise_names_its_mistakes(capsys):
    def wrong(logps, old_logps, mask, advantages, loss_type):
        return clipped_loss(logps, old_logps, torch.ones_like(mask), advantages, loss_type)

    cases = {
        "Right: ": clipped_loss,
        "Not quite: places after": wrong,
        "Not quite: all three": lambda *given: clipped_loss(*given[:4], "grpo"),
        "Not quite: nothing is clipped": lambda *given: clipped_loss(*given, epsilon=1e9),
        "Not quite: this takes the larger": lambda *given: (
            -clipped_loss(*given[:3], -given[3], given[4])
        ),
        "Not quite: dr_grpo divides": lambda *given: clipped_loss(*given, length=6),
        "Not answered": lambda *given: None,
    }
    for sentence, function in cases.items():
        check_normalizers(function)
        assert capsys.readouterr().out.startswith(sentence)


def test_the_curves_are_the_tables_runs():
    rows = [("slow", 0, 0.4), ("slow", 5, 0.8), ("fast", 0, 0.4), ("fast", 5, 0.0)]
    table = pd.DataFrame(rows, columns=["run", "step", "value"])
    chart = value_curves(table, "Slow learns").to_dict()
    assert chart["title"]["text"] == "Slow learns"
    assert "slow, 5: 0.80" in str(chart)
    assert "fast, 5: 0.00" in str(chart)
    with pytest.raises(ValueError, match="value"):
        value_curves(table.drop(columns="value"), "nothing")
