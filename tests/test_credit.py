"""Credit rules of one's own: what a rule is given, how each way to fail is answered, and that rules
change no more.
"""

import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import refused
from small_run import SMALL, bundled_trainer
from transformers import set_seed
from transformers.trainer_callback import PrinterCallback

from workbook.__main__ import main
from workbook.app.resumable import ResumableTrainer
from workbook.policies.load import load_policy
from workbook.rollouts import credit_batch, sample_rollouts
from workbook.tasks import Chain
from workbook.theory.credit import CreditBatch
from workbook.theory.credit_rules import CREDIT_RULES, RULES
from workbook.training import CancellationConfig, CancellationTrainer, RunConfig
from workbook.training.checks import check_run
from workbook.training.credit_calls import TrainerCredit, credit_call

IDS = torch.tensor([[5, 1, 0], [5, 2, 2], [6, 1, 1], [6, 1, 2]])
MASK = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 1, 1], [1, 1, 1]])


def small_batch(**known) -> CreditBatch:
    return CreditBatch(
        torch.tensor([1.0, 0.0, 0.5, 0.5]), torch.tensor([7, 7, 3, 3]), IDS, MASK, **known
    )


@pytest.fixture(scope="module")
def rollouts(policy):
    return sample_rollouts(policy, Chain(), 3, 4, seed=1, max_new_tokens=48)


def small_trainer(folder, rule=None, lora=None, kind=CancellationTrainer, **settings):
    args = CancellationConfig(output_dir=str(folder), **SMALL | {"max_steps": 3} | settings)
    return bundled_trainer(kind, args, load_policy("bundled", lora=lora), advantage_estimator=rule)


def generation_batch(trainer) -> dict:
    trainer.model.train()
    return trainer._generate_and_score_completions(next(iter(trainer.get_train_dataloader())))


def trained(trainer) -> list[torch.Tensor]:
    trainer.train()
    return [weight.detach().clone() for weight in trainer.model.parameters()]


# --- what a rule is given
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_states_logps_and_entropies_are_of_one_distribution(policy, rollouts, temperature):
    batch = credit_batch(policy, rollouts, temperature=temperature)
    logp = torch.log_softmax(batch.states.logits, -1)
    torch.testing.assert_close(
        logp.gather(1, batch.states.tokens[:, None])[:, 0], batch.logps[batch.mask]
    )
    torch.testing.assert_close(-(logp.exp() * logp).sum(1), batch.entropies[batch.mask])
    torch.testing.assert_close(batch.old_logps, rollouts.old_logps)
    head, few = policy.model.get_output_embeddings().weight, [0, 9]
    states = batch.states.select(torch.tensor(few))
    weight = head.detach().clone().requires_grad_()
    scores = torch.log_softmax(states.hidden * temperature @ weight.T / temperature, -1)
    slopes = [
        torch.autograd.grad(scores[i, states.tokens[i]], weight, retain_graph=True)[0]
        for i in range(2)
    ]
    torch.testing.assert_close(states.kernel()[0, 1], (slopes[0] * slopes[1]).sum())


def test_sampling_in_a_rule_leaves_everything_as_it_was(policy, rollouts):
    batches = [credit_batch(policy, rollouts, Chain(), seed=3, step=5) for _ in range(2)]
    halves = [row[:14].tolist() for row in rollouts.completion_ids]
    states, policy.model.training = torch.get_rng_state(), True
    try:
        first, second = (batch.continue_from(range(12), halves) for batch in batches)
        assert policy.model.training
    finally:
        policy.model.training = False
    assert torch.equal(torch.get_rng_state(), states)
    assert torch.equal(first, second)
    assert batches[0].sampled_tokens == batches[1].sampled_tokens > 12 * 10
    assert set(first.tolist()) == {0.0, 1.0}
    whole = [
        row[keep].tolist()
        for row, keep in zip(rollouts.completion_ids, batches[0].mask, strict=True)
    ]
    # nothing is left to sample
    assert torch.equal(batches[0].continue_from(range(12), whole), rollouts.rewards)
    for prefix in ([5] * 60, [5, -1]):
        with refused("prefixes", [prefix]):
            batches[0].continue_from([0], [prefix])


# --- what a rule may be, and give
def rule_file(folder: Path, text: str, name: str = "credit.py") -> str:
    (folder / name).write_text(text)
    return f"own:{folder / name}:rule"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def other(batch): ...", "a function of credit.py, which has other"),
        (
            "import nowhere",
            (
                "the credit file credit.py can't be imported: ModuleNotFoundError: No module named"
                " 'nowhere'"
            ),
        ),
        ("def rule(batch:", "can't be imported: SyntaxError"),
        ("def rule(): ...", "can't be called with the batch alone"),
        ("def rule(batch):\n    yield", "must be a plain function that returns a tensor."),
    ],
)
def test_a_file_that_is_no_rule_is_refused_before_a_run(tmp_path, text, sentence):
    name = rule_file(tmp_path, text)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        credit_call(name)
    config = RunConfig.load({"trainer": {"max_steps": 1, "advantage_estimator": name}})
    with pytest.raises(ValueError, match=re.escape(sentence)) as refusal:
        check_run(config)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("returns", "sentence"),
    [
        ("None", "returned None; does it lack a return?"),
        (
            "batch.rewards[:3]",
            "returned the shape (3,); it must be (4,), one per rollout, or (4, 3), one per token.",
        ),
        ("batch.mask", "returned a Tensor; return floats"),
        ("batch.rewards / 0", "gave inf to rollout 0; every advantage must be a finite number."),
        ("batch.completion_ids.float().sub(1.5).log()", "gave nan to rollout 0, position 1;"),
        ("batch.states", "batch.states is not known here"),
        ("{}['a']", "raised KeyError: 'a' (line 2 of credit.py)."),
    ],
)
def test_what_a_rule_may_not_do_is_a_sentence(tmp_path, returns, sentence):
    name = rule_file(tmp_path, f"def rule(batch):\n    return {returns}\n")
    with pytest.raises(ValueError, match=re.escape(sentence)) as refusal:
        credit_call(name)(small_batch())
    assert str(refusal.value).startswith(f"The credit rule {name} ")
    assert "\n" not in str(refusal.value)


def test_a_rules_file_is_read_anew_with_what_lies_beside_it(tmp_path):
    (tmp_path / "help_credit.py").write_text("SCALE = 2.0\n")
    name = rule_file(
        tmp_path, "from help_credit import SCALE\nrule = lambda batch: SCALE * batch.rewards"
    )
    call = credit_call(name)
    assert call(small_batch()).tolist() == [2, 0, 1, 1]
    edited = credit_call(rule_file(tmp_path, "rule = lambda batch: 4 * batch.rewards"))
    assert edited(small_batch()).tolist() == [4, 0, 2, 2]
    assert list(call.files) == ["credit rule credit.py"]
    assert edited.files != call.files


# --- in training
def test_a_rule_that_draws_and_samples_changes_nothing_but_the_advantages(tmp_path):
    def noisy(batch):
        torch.rand(3), random.random(), np.random.rand()
        batch.continue_from([0, 1], [[], batch.completion_ids[1, :5].tolist()])
        batch.rewards.add_(1.0)  # of its own copies
        batch.completion_ids.zero_()
        torch.rand(1, generator=batch.generator)
        return batch.group_advantages("dr_grpo")

    plain = trained(small_trainer(tmp_path / "plain", advantage_estimator="dr_grpo"))
    trainer = small_trainer(tmp_path / "rule", noisy)
    assert all(map(torch.equal, plain, trained(trainer)))
    assert trainer.args.advantage_estimator == "own:noisy"
    logged = [row for row in trainer.state.log_history if "cancellation/credit_tokens" in row]
    assert len(logged) == 1  # one generation batch
    assert 2 < logged[0]["cancellation/credit_tokens"] <= 2 * 48
    assert logged[0]["cancellation/credit_seconds"] > 0


def test_a_name_and_its_function_train_alike(tmp_path):
    named = trained(small_trainer(tmp_path / "a", advantage_estimator="prefix_credit"))
    given = trained(small_trainer(tmp_path / "b", CREDIT_RULES["prefix_credit"].function))
    assert all(map(torch.equal, named, given))
    gspo = {
        "loss_type": "grpo",
        "importance_sampling_level": "sequence",
        "max_completion_length": 12,
    }
    named = trained(small_trainer(tmp_path / "c", advantage_estimator="dr_grpo", **gspo))
    given = trained(
        small_trainer(tmp_path / "d", lambda batch: batch.group_advantages("dr_grpo"), **gspo)
    )
    # one advantage per rollout is left to TRL's own ratio
    assert all(map(torch.equal, named, given))
    with refused("advantage_estimator", "rloo"):
        small_trainer(tmp_path, len, advantage_estimator="rloo")


def test_a_rule_of_each_step_sees_the_log_probabilities_of_that_moment(tmp_path):
    seen = []

    def rule(batch):
        seen.append(
            (batch.step, batch.logps - batch.old_logps, len(batch), batch.generator.initial_seed())
        )
        return batch.group_advantages()[:, None] * batch.logps.exp()

    rule.each_step = True
    with pytest.raises(
        ValueError, match="'own:rule', evaluated in each micro-batch, needs whole groups"
    ):
        small_trainer(tmp_path, rule)
    trainer = small_trainer(tmp_path, rule, batching="query_preserved")
    taken = []
    trainer._measure = lambda loss, model, inputs: taken.append(
        (trainer._raw_advantages, inputs["advantages"])
    )
    trainer.train()
    steps, moved, sizes, seeds = zip(*seen, strict=True)
    assert (steps, sizes) == ((0, 0, 1, 2), (16, 4, 4, 4))
    assert len(set(seeds)) == 4
    assert [bool((change.abs() > 1e-4).any()) for change in moved] == [False, False, True, True]
    assert all(now.shape == (4, before.size(1)) for now, before in taken)
    # the advantages of the generation batch are not those of this step
    assert not torch.equal(*taken[-1])


# --- runs
DRAWS = """
import random
import torch

def rule(batch):
    flips = torch.rand(len(batch), generator=batch.generator) + torch.rand(1) + random.random()
    scores = batch.continue_from(range(2), [[], []])
    return flips * batch.group_advantages("grpo") + scores.sum()
"""


def test_a_resumed_run_draws_what_one_left_alone_draws(tmp_path):
    name = rule_file(tmp_path, DRAWS)
    settings = {
        "max_steps": 4,
        "save_strategy": "steps",
        "save_steps": 2,
        "steps_per_generation": 2,
    }

    def end(checkpoint=None) -> list[torch.Tensor]:
        set_seed(3)
        trainer = small_trainer(
            tmp_path / "run", kind=ResumableTrainer, advantage_estimator=name, **settings
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train(resume_from_checkpoint=checkpoint)
        return [weight.detach() for weight in trainer.model.parameters()]

    assert all(map(torch.equal, end(), end(str(tmp_path / "run" / "checkpoint-2"))))


def test_a_rule_is_tried_on_made_up_rollouts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rule = (
        "lambda batch: batch.group_advantages()[:, None] * batch.entropies *"
        " batch.states.kernel().sum()"
    )
    (tmp_path / "credit.py").write_text(f"f = {rule}\ng = lambda batch: batch.rewards[:3]\n")
    assert main(["estimators", "--try", "own:credit.py:f"]) == 0
    _, first, _, third, _ = capsys.readouterr().out.splitlines()
    assert first.startswith("2 + 2 =  reward 1:  so +")
    assert third == "3 + 4 =  reward 1:  that +0.000  makes +0.000  7 +0.000"
    assert main(["estimators", "--try", "own:credit.py:g"]) == 2
    assert "returned the shape (3,); it must be (4,), one per rollout" in capsys.readouterr().err


def test_a_trial_loads_no_model_library(tmp_path):
    (tmp_path / "credit.py").write_text("f = lambda batch: batch.rewards\n")
    loaded = "print({'transformers', 'trl', 'datasets', 'pandas'} & {*sys.modules})"
    code = (
        "import sys; from workbook.__main__ import main; main(['estimators', '--try',"
        f" 'own:credit.py:f']); {loaded}"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True, cwd=tmp_path).endswith(
        "\nset()\n"
    )


def test_the_estimators_are_listed_one_to_a_line(capsys):
    assert main(["estimators"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n{name}: per " in text for name in RULES)
    assert "dr_grpo: r_i - m_g" in text
    assert "advantage_estimator: own:credit.py:my_rule" in text


@pytest.mark.parametrize("lora", [None, 4])
def test_every_named_rule_can_be_trained_with(tmp_path, lora):
    """At another temperature, on all weights and on an adapter, with a rollout that nobody could
    score.
    """
    trainer = small_trainer(
        tmp_path, lora=lora, temperature=0.8, advantage_estimator="prefix_credit"
    )
    batch = generation_batch(trainer)
    batch["rewards"][5] = torch.nan
    for name in RULES:
        rule = TrainerCredit(trainer, credit_call(name))
        rule.take_rows(trainer._rule_credit.rows)
        credit = rule.advantages(batch)
        assert credit.shape == (
            (16, batch["completion_ids"].size(1)) if rule.rule.per_token else (16,)
        ), name
        assert credit.isfinite().all(), name
        assert not credit[5].any(), name
        assert credit.any(), name
    assert trainer.model.training
