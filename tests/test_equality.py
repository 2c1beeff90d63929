"""With its switches at their defaults the trainer is TRL's, bit for bit, whatever the model and the
loss type.
"""

import copy
import inspect
import re

import pytest
import torch
from small_run import SMALL, bundled_trainer
from transformers import AutoConfig, AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

from workbook.policies.load import Policy, load_policy
from workbook.training import CancellationConfig, CancellationTrainer

SIZES = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "head_dim": 8,
}
SIZES |= {"num_key_value_heads": 2, "initializer_range": 0.3}
KINDS = ("gemma2", "gpt_neox", "granite", "phi", "qwen3")
LOSSES = {
    "grpo": {},
    "dapo": {},
    "dr_grpo": {},
    "bnpo": {},
    "cispo": {"epsilon_high": 5.0},
    "sapo": {},
    "vespo": {},
}
LOSSES |= {"luspo": {"importance_sampling_level": "sequence"}}
STEPS = {
    "max_steps": 4,
    "steps_per_generation": 2,
    "max_completion_length": 8,
    "learning_rate": 5e-3,
}

pytestmark = pytest.mark.usefixtures("one_thread")


def lengths(completions, **_):
    return [float(len(text)) for text in completions]


@pytest.fixture(scope="module", params=KINDS)
def policy(request):
    tokenizer = load_policy("bundled").tokenizer
    ends = {
        f"{end}_token_id": getattr(tokenizer, f"{end}_token_id") for end in ("bos", "eos", "pad")
    }
    torch.manual_seed(0)
    config = AutoConfig.for_model(request.param, vocab_size=len(tokenizer), **SIZES, **ends)
    return Policy(AutoModelForCausalLM.from_config(config), tokenizer, {})


@pytest.mark.parametrize("loss", LOSSES)
def test_defaults_are_trls_bit_for_bit(policy, loss, tmp_path):
    ends = []
    for kind, config in ((GRPOTrainer, GRPOConfig), (CancellationTrainer, CancellationConfig)):
        args = config(
            output_dir=str(tmp_path), **SMALL | STEPS | LOSSES[loss] | {"loss_type": loss}
        )
        trainer = bundled_trainer(kind, args, copy.deepcopy(policy), lengths)
        trainer.train()
        ends.append(trainer.model.state_dict())
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())
    assert not all(
        torch.equal(value, ends[1][name]) for name, value in policy.model.state_dict().items()
    )


def test_every_loss_type_of_trl_is_tried():
    branches = re.findall(
        r"self\.loss_type (?:==|in) (.+):", inspect.getsource(GRPOTrainer._compute_loss)
    )
    assert set(re.findall(r'"(\w+)"', " ".join(branches))) == {*LOSSES}
