"""What TRL's own GRPOTrainer, unchanged, can be made to say of its tokens."""

import pandas as pd
import pytest
import torch
from datasets import Dataset
from refusals import refused
from small_run import byte_tokenizer
from transformers import AutoConfig, AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

import workbook
from workbook.__main__ import main
from workbook.app import RunMonitor, TokenRecord, load_run
from workbook.app.runs import Run
from workbook.rollouts import read_rollouts
from workbook.training import CancellationConfig, CancellationTrainer
from workbook.views import TokenHeatmap

PLAIN = {
    "num_generations": 8,
    "per_device_train_batch_size": 8,
    "max_completion_length": 14,
    "max_steps": 8,
}
PLAIN |= {
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "seed": 1,
}
PLAIN |= {
    "log_completions": True,
    "disable_tqdm": True,
    "save_strategy": "no",
    "gradient_checkpointing": False,
}


def odd_bytes(completion_ids, **_):
    return [float(sum(token % 2 for token in ids) / len(ids)) for ids in completion_ids]


def long(completion_ids, **_):
    return [float(len(ids)) for ids in completion_ids]


def plain_trainer(folder, rewards, kind=GRPOTrainer, config=GRPOConfig, **settings):
    """A trainer of TRL's on a random model that ends a completion now and then; prompts of unequal
    length.
    """
    tokenizer = byte_tokenizer()
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "vocab_size": len(tokenizer),
    }
    ends = {f"{end}_token_id": tokenizer.eos_token_id for end in ("bos", "eos", "pad")}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("llama", num_attention_heads=2, **sizes, **ends)
    )
    with torch.no_grad():  # of a vocabulary of 257 the end is drawn about once in ten
        model.lm_head.weight[tokenizer.eos_token_id] *= 40
    model.save_pretrained(folder / "start")  # from where TRL loads a reference
    model.config._name_or_path = str(folder / "start")
    prompts = Dataset.from_dict({"prompt": ["say:", "say it again:", "go on:", "and then:"]})
    args = config(output_dir=str(folder), **PLAIN | settings)
    return kind(model, rewards, args=args, train_dataset=prompts, processing_class=tokenizer)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of 64 logged rollouts with two weighted rewards and `log_ids`: its folder, its tokens
    as TRL counts.
    """
    folder, rewards = tmp_path_factory.mktemp("plain"), [odd_bytes, long, workbook.log_ids]
    trainer = plain_trainer(folder, rewards, reward_weights=[1.0, 0.2, 0.0], steps_per_generation=2)
    trainer.train()
    trainer.save_state()
    return folder, round(
        16 * sum(row.get("completions/mean_length", 0) for row in trainer.state.log_history)
    )


def test_log_ids_counts_the_tokens_that_were_trained(run, capsys):
    folder, tokens = run
    assert main(["report", str(folder)]) == 0
    said = capsys.readouterr().out
    assert f"64 rollouts, {tokens:,} tokens" in said
    # some ended early, so the end of sequence is among them
    assert tokens < 64 * PLAIN["max_completion_length"]
    assert "of |push| cancels inside its group" in said
    assert "4 steps repeat the rollouts of the step before" in said
    assert "log_ids" not in said
    assert (
        "The reward is 1 odd_bytes + 0.2 long; the weights are read from the logged means." in said
    )


def test_without_ids_words_are_words_and_nothing_cancels(run, tmp_path, capsys):
    pd.read_parquet(run[0] / "completions").drop(columns="completion_ids").to_parquet(
        tmp_path / "completions_1.parquet"
    )
    assert main(["report", str(tmp_path), "--weights", "odd_bytes=1", "long=0.2"]) == 0
    said = capsys.readouterr().out
    there = (
        " words\n",
        "words with positive advantage",
        "add workbook.log_ids",
        "the weights are given",
    )
    absent = (f"{run[1]:,} tokens", "tokens with", "cancels inside", "net push")
    assert ([text in said for text in there], [text in said for text in absent]) == (
        [True] * 4,
        [False] * 4,
    )
    anew = read_rollouts(tmp_path, byte_tokenizer())
    assert (anew.attrs["source"]["tokens"], len(anew) == run[1]) == ("cut anew", False)


def test_weights_of_several_rewards_are_asked_for(run, tmp_path, capsys):
    table = pd.read_parquet(run[0] / "completions").query("step % 2 == 1")
    table.to_parquet(tmp_path / "completions_1.parquet")
    assert main(["report", str(tmp_path)]) == 0
    assert "give --weights odd_bytes=1 long=1" in " ".join(capsys.readouterr().out.split())
    table.drop(columns="advantage").to_parquet(tmp_path / "completions_1.parquet")
    assert main(["report", str(tmp_path)]) == 2
    assert (
        "has no advantage, and several rewards (odd_bytes, long) and not their weights"
        in capsys.readouterr().err
    )
    read = (
        read_rollouts(tmp_path, weights={"long": 0.2})
        .groupby(["step", "rollout"])["reward"]
        .first()
    )
    assert sorted(read) == pytest.approx(sorted(0.2 * table["long"]))
    with refused("weights", {"short": 1}):
        read_rollouts(tmp_path, weights={"short": 1})


RECORDED = {"beta": 0.1, "gradient_accumulation_steps": 2, "max_steps": 4, "loss_type": "grpo"}


def trained(folder, kind=GRPOTrainer, config=GRPOConfig, every=0, **settings):
    trainer = plain_trainer(
        folder, [odd_bytes, long], kind, config, reward_weights=[1.0, 0.2], **RECORDED | settings
    )
    if every:
        trainer.add_callback(TokenRecord(trainer, every))
    trainer.train()
    rows = [
        {k: row[k] for k in row if "time" not in k and "per_sec" not in k}
        for row in trainer.state.log_history
    ]
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}, rows


def test_a_callback_records_what_the_subclass_does_and_trains_nothing(tmp_path):
    (plain, rows), (recorded, again) = (
        trained(tmp_path / "plain"),
        trained(tmp_path / "callback", every=2),
    )
    trained(tmp_path / "subclass", CancellationTrainer, CancellationConfig, record_tokens=2)
    assert all(torch.equal(value, recorded[name]) for name, value in plain.items())
    assert rows == again
    ours, theirs = (Run(tmp_path / name) for name in ("subclass", "callback"))
    assert ours.token_steps() == theirs.token_steps() == [1, 2, 4]
    for step in ours.token_steps():
        pd.testing.assert_frame_equal(theirs.tokens(step), ours.tokens(step))
        assert theirs.tokens(step).attrs == ours.tokens(step).attrs


def test_what_reads_a_run_reads_a_plain_trainers_folder(tmp_path, capsys):
    trained(tmp_path, every=1)
    run = load_run(tmp_path)
    assert run.status()["state"] == "finished"
    assert run.metrics()["step"].tolist() == TokenHeatmap(run).steps == [1, 2, 3, 4]
    RunMonitor(run).show_step(3)
    assert main(["report", str(tmp_path)]) == 0
    assert "went against their own push" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"config\.yaml can't be read"):
        run.resume()


def test_a_record_that_cannot_be_is_a_sentence(tmp_path):
    trainer, sharded = plain_trainer(tmp_path, [long]), plain_trainer(tmp_path, [long])
    ours, sharded.is_deepspeed_enabled = (
        plain_trainer(tmp_path, [long], CancellationTrainer, CancellationConfig),
        True,
    )
    cases = (
        (trainer, 0, "every=0 must be"),
        (ours, 10, "set record_tokens=10 in"),
        (sharded, 10, "DeepSpeed shard"),
    )
    for kind, every, says in cases:
        with pytest.raises(ValueError, match=says):
            TokenRecord(kind, every)
