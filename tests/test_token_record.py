"""A run's token tables say what its steps did to each token; writing them trains nothing and stays
in a budget.
"""

import gc
import json
import shutil
import warnings

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from refusals import refused
from small_run import SMALL, bundled_trainer, nudge_adapters
from trl import GRPOTrainer

from workbook.app.run_folder import checkpoint_step, checkpoints
from workbook.app.runs import Run
from workbook.app.worker import execute, train_run
from workbook.policies.load import load_policy
from workbook.rollouts.token_files import read_step, step_files
from workbook.training import CancellationConfig, CancellationTrainer, token_record

QUERY = {"batching": "query_preserved", "per_device_train_batch_size": 8}
SEQUENCE = {"importance_sampling_level": "sequence", "epsilon": 0.002}
PLAIN = {"record_tokens": 1, "max_steps": 3, "epsilon": 0.02, "max_completion_length": 16}


class Watched(CancellationTrainer):
    """Keeps each micro-batch of training with the slopes of its loss, from a backward pass of the
    test's own.

    correction: (rollouts, tokens) -> the column that vLLM's correction would be.  tooled: some
    tokens are a tool's.
    """

    correction, tooled = None, False

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        if self.correction:
            output["importance_sampling_ratio"] = self.correction(*output["completion_ids"].shape)
        if self.tooled:
            output["tool_mask"] = torch.ones_like(output["completion_ids"]).index_fill(
                1, torch.tensor([3, 4]), 0
            )
        return output

    def _compute_loss(self, model, inputs):
        self.use_vllm = self.correction is not None
        try:
            loss = super()._compute_loss(model, inputs)
        finally:
            self.use_vllm = False
        pushing, beta, self.beta = loss, self.beta, 0.0
        if beta:  # the policy's part alone, from a forward pass of its own
            pushing, self.beta = GRPOTrainer._compute_loss(self, model, inputs), beta
        (slopes,) = torch.autograd.grad(pushing, self.outputs[0], retain_graph=True)
        logps, entropies = (values.detach() for values in self.outputs[:2])
        watched = {
            "push": -slopes,
            "logp": logps,
            "entropy": entropies,
            "step": self.state.global_step + 1,
        }
        self.watched.append(dict(inputs) | watched)
        return loss

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        outputs = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if outputs[0].requires_grad:
            self.outputs = outputs
        return outputs


@pytest.fixture(scope="module", autouse=True)
def few_objects():
    """The trainer collects garbage when it ends: of what this module made alone."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def reward(prompts, completions, **columns):
    """Three values, and one prompt of three without a difference."""
    pairs = zip(prompts, completions, strict=True)
    return [
        float(sum(map(ord, text)) % 3 * (sum(map(ord, prompt)) % 3 > 0)) for prompt, text in pairs
    ]


def build(folder, policy=None, prompts=64, kind=Watched, stub=None, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args = CancellationConfig(output_dir=str(folder), **SMALL | settings)
        trainer = bundled_trainer(kind, args, policy, reward, prompts)
    trainer.watched = []
    for name, value in (stub or {}).items():
        setattr(trainer, name, value)
    return trainer


def recorded(folder, **settings):
    trainer = build(folder, **settings)
    trainer.train()
    return trainer, {
        step: read_step(folder / "tokens", step) for step in step_files(folder / "tokens")
    }


def expected_rows(trainer, step: int) -> pd.DataFrame:
    """Rows of a step's micro-batches by loops, from what the test saw of the loss."""
    rows = []
    for part in (part for part in trainer.watched if part["step"] == step):
        mask = part["completion_mask"] * part.get("tool_mask", 1)
        old = part.get("old_per_token_logps", part["logp"])
        columns = {
            "advantage": part["advantages"].view(len(mask), -1).expand(mask.shape),
            "old_logp": old,
        }
        columns |= {
            "importance": (
                part.get("importance_sampling_ratio", torch.ones_like(old)).expand(mask.shape)
            )
        }
        columns |= {name: part[name] for name in ("push", "logp", "entropy")}
        for i in range(len(mask)):
            log_ratio = (part["logp"] - old)[i]
            if trainer.args.importance_sampling_level == "sequence":
                log_ratio = (
                    log_ratio.mul(mask[i])
                    .sum()
                    .div(mask[i].sum().clamp(min=1))
                    .expand_as(log_ratio)
                )
            whole = {"group": int(part["group_id"][i]), "rollout": int(part["rollout"][i])}
            whole |= {"reward": float(part["rewards"][i])}
            for t in part["completion_mask"][i].nonzero()[:, 0].tolist():
                own = {
                    "position": t,
                    "token_id": int(part["completion_ids"][i, t]),
                    "lossless": not mask[i, t],
                }
                own |= {name: float(values[i, t]) for name, values in columns.items()}
                rows.append(whole | own | {"ratio": float(log_ratio[t].exp())})
    return pd.DataFrame(rows).sort_values(["group", "rollout", "position"], ignore_index=True)


def assert_formula(table: pd.DataFrame) -> None:
    """r A / N is the push of a token that nothing stopped, by the normalizer in the file; grpo's
    over T_i, too.
    """
    objective, free = table.attrs["objective"], table["stopped"] == ""
    kind, n = objective["loss_type"], objective["normalizer"]
    changed = (
        objective["group_transform"]
        or objective["top_entropy_quantile"] < 1
        or objective["clipping"] == "symmetric"
    )
    if kind not in ("grpo", "dr_grpo", "dapo", "bnpo", "luspo") or changed:
        return
    n = table["rollout"].astype(str).map(n).astype(float) if isinstance(n, dict) else n
    counted = table["stopped"] != "tool"
    lengths = counted.groupby(table["rollout"]).transform("sum") if kind == "grpo" else 1
    product = table["ratio"] * table["importance"] * table["advantage"] / (n * lengths)
    np.testing.assert_allclose(table["push"][free], product[free], rtol=1e-5)
    assert (objective["learning_rate"], objective["steps"]) == (1e-3, 3)


def some_ratios(rollouts, tokens):
    ratios = torch.linspace(0.6, 1.4, rollouts * tokens).view(tokens, rollouts).T
    return ratios.masked_fill(ratios > 1.35, 0.0)


def policy_with_adapters():
    policy = load_policy("bundled", lora=4)
    nudge_adapters(policy.model)
    return policy


LOSSES = [  # settings, what stands in for an engine or a tool, reasons that must come up
    ({}, {}, {"clip low", "clip high", "no advantage"}),
    ({"loss_type": "grpo"} | SEQUENCE, {}, {"clip low", "clip high"}),
    ({"loss_type": "grpo", "max_completion_length": 39}, {}, {"clip high"}),
    (
        {"loss_type": "dapo", "gradient_accumulation_steps": 2, "trim_padding": True},
        {},
        {"clip low"},
    ),
    ({"loss_type": "bnpo", "delta": 1.03, "gradient_accumulation_steps": 2}, {}, {"clip high"}),
    ({"loss_type": "cispo", "epsilon_high": 2.0}, {}, {"no advantage"}),
    ({"loss_type": "sapo"}, {}, {"no advantage"}),
    ({"loss_type": "vespo"}, {}, {"no advantage"}),
    ({"loss_type": "luspo"} | SEQUENCE, {}, {"clip high"}),
    ({"beta": 0.3, "use_bias_correction_kl": False}, {}, {"clip low"}),
    ({"beta": 0.3}, {}, {"clip low", "clip high"}),  # the penalty times the ratio, by default
    ({"beta": 0.3, "loss_type": "grpo", "delta": 1.03}, {}, {"clip high"}),
    ({"beta": 0.3, "loss_type": "dapo"} | SEQUENCE, {}, {"clip low"}),
    ({"top_entropy_quantile": 0.4}, {}, {"entropy"}),
    ({"off_policy_mask_threshold": 1e-4}, {}, {"off-policy"}),
    ({}, {"correction": some_ratios}, {"off-policy"}),
    ({}, {"tooled": True}, {"tool"}),
    ({"clipping": "symmetric", "num_iterations": 2}, {}, {"clip low", "clip high"}),
    (
        QUERY | {"group_transform": "min_replace", "transform_on": "clipped_weights"} | SEQUENCE,
        {},
        {"group"},
    ),
    (
        QUERY | {"group_transform": "advantage_orthogonal"},
        {"correction": some_ratios},
        {"no advantage"},
    ),
    ({"advantage_estimator": "prefix_credit"}, {}, {"no advantage"}),
]


@pytest.mark.parametrize(("settings", "stub", "reasons"), LOSSES, ids=lambda value: None)
def test_a_table_is_what_the_loss_did(tmp_path, settings, stub, reasons):
    """Row by row, for each loss type, level, bound, mask and correction; a token is stopped where
    it has no push.
    """
    trainer, steps = recorded(tmp_path, stub=stub, **PLAIN | settings)
    assert list(steps) == [1, 2, 3]
    seen = set()
    for step, table in steps.items():
        expected = expected_rows(trainer, step)
        for name in set(expected) - {"lossless"}:
            np.testing.assert_allclose(
                table[name], expected[name], rtol=2e-5, atol=1e-9, err_msg=name
            )
        np.testing.assert_allclose(
            table["weight"] * table["advantage"], table["push"], rtol=1e-5, atol=1e-12
        )
        assert ((table["stopped"] == "") == (table["push"] != 0)).all()
        assert_formula(table)
        assert (table["stopped"] == "tool").tolist() == expected["lossless"].tolist()
        seen |= set(table["stopped"])
    assert reasons <= seen


# --- after the step
def test_the_log_probability_after_a_step_is_the_one_before_the_next(tmp_path):
    """Four steps on one generation batch, each with all of its rollouts: the same numbers, to the
    bit.
    """
    whole = {"per_device_train_batch_size": 16, "steps_per_generation": 1, "num_iterations": 4}
    whole |= {"max_steps": 4, "max_completion_length": 16}
    _, steps = recorded(tmp_path, record_tokens=1, **whole)
    for step in (1, 2, 3):
        assert steps[step]["logp_after"].equals(steps[step + 1]["logp"])
        assert steps[step]["old_logp"].equals(steps[step + 1]["old_logp"])
        assert not steps[step]["logp_after"].equals(steps[step]["logp"])


@pytest.mark.parametrize(
    "settings",
    [
        {"num_iterations": 2},
        {
            "gradient_accumulation_steps": 2,
            "use_adaptive_entropy": True,
            "entropy_target": 0.5,
            "trim_padding": True,
        },
        {
            "policy": policy_with_adapters,
            "measure_cancellation": 1,
            "mask_truncated_completions": True,
        },
        {"beta": 0.1, "loss_type": "grpo", "use_adaptive_entropy": True, "entropy_target": 0.5},
    ],
    ids=lambda settings: "-".join(settings),  # the same in every process
)
def test_recording_never_trains(tmp_path, settings):
    """Equal bits with and without, also where the model itself draws random numbers; the same rows
    are logged.
    """
    own, finals, rows = settings | {"max_steps": 6, "max_completion_length": 16}, [], []
    policy = own.pop("policy", lambda: load_policy("bundled"))
    for every in (0, 2):
        trainer = build(
            tmp_path / str(every), policy(), kind=CancellationTrainer, record_tokens=every, **own
        )
        for module in trainer.model.modules():
            if hasattr(module, "attention_dropout"):
                module.attention_dropout = 0.1
        trainer.train()
        finals.append({name: p.clone() for name, p in trainer.model.state_dict().items()})
        untimed = [
            {k: row[k] for k in row if "time" not in k and "per_sec" not in k}
            for row in trainer.state.log_history
        ]
        rows.append(untimed)
    assert all(torch.equal(p, finals[1][name]) for name, p in finals[0].items())
    assert rows[0] == rows[1]
    assert list(step_files(tmp_path / "2" / "tokens")) == [1, 2, 4, 6]
    assert not (tmp_path / "0" / "tokens").exists()


# --- which rollouts
def test_a_table_takes_the_first_groups_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(token_record, "TABLE_ROLLOUTS", 6)
    settings = {
        "record_tokens": 1,
        "max_steps": 1,
        "per_device_train_batch_size": 16,
        "steps_per_generation": 1,
    }
    trainer, steps = recorded(tmp_path, **settings)
    assert steps[1].groupby("group")["rollout"].nunique().to_dict() == {0: 4}
    expected = expected_rows(trainer, 1).query("group == 0")
    np.testing.assert_allclose(steps[1]["logp"], expected["logp"], rtol=1e-5)
    np.testing.assert_array_equal(steps[1]["token_id"], expected["token_id"])
    text = {row.token_id: row.token for row in steps[1].itertuples()}
    assert text == {token: trainer._tokenizer.decode([token]) for token in text}
    part = trainer.watched[0]
    prompt = trainer._tokenizer.decode(part["prompt_ids"][part["group_id"] == 0][0])
    assert steps[1]["prompt"].unique().tolist() == [prompt]


# --- files
def test_the_files_of_several_processes_are_one_table(tmp_path):
    """A group's rollouts that two processes trained on make one place; of bnpo's normalizers each
    keeps its own.
    """
    _, steps = recorded(tmp_path, **PLAIN | {"loss_type": "bnpo", "max_steps": 1})
    folder, whole = tmp_path / "tokens", steps[1]
    (path,) = step_files(folder)[1]
    table = pq.read_table(path)
    for process, rows in enumerate(([0, 2], [1, 3])):
        own = table.filter(np.isin(table["rollout"].to_numpy() % 4, rows))
        normalizers = {
            str(rollout): float(rollout % 2) for rollout in set(own["rollout"].to_pylist())
        }
        objective = json.loads(table.schema.metadata[b"workbook"]) | {"normalizer": normalizers}
        own = own.replace_schema_metadata({b"workbook": json.dumps(objective).encode()})
        pq.write_table(own, folder / f"step-000002.{process}.parquet")
    joined = read_step(folder, 2)
    assert joined.drop(columns=["token", "prompt", "stopped"]).equals(
        whole.drop(columns=["token", "prompt", "stopped"])
    )
    assert joined["token"].astype(str).equals(whole["token"].astype(str))
    assert set(joined.attrs["objective"]["normalizer"]) == set(whole["rollout"].astype(str))


def test_what_is_not_there_or_damaged_is_a_sentence(tmp_path):
    (tmp_path / "step-000003.0.parquet").write_bytes(b"torn")
    (tmp_path / "step-3.parquet").write_bytes(b"mine")
    with pytest.raises(ValueError, match="damaged"):
        read_step(tmp_path, 3)
    with refused("step", 9):
        read_step(tmp_path, 9)
    with refused("step", 1):
        read_step(tmp_path / "nowhere", 1)


CONFIG = {
    **{"name": "recorded", "num_prompts": 16, "threads": 1},
    "trainer": {
        **{
            "num_generations": 4,
            "per_device_train_batch_size": 8,
            "steps_per_generation": 2,
            "max_steps": 12,
        },
        **{
            "max_completion_length": 12,
            "save_steps": 4,
            "learning_rate": 1e-3,
            "loss_type": "dr_grpo",
        },
        **{"record_tokens": 3},
    },
}


def contents(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "tokens").iterdir())}


def test_a_resumed_run_ends_with_the_same_tables(tmp_path):
    """Killed after its tenth step: what it had written since its checkpoint is written anew, to the
    byte.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = train_run(CONFIG, tmp_path / "whole")
        assert whole.token_steps() == [1, 3, 6, 9, 12]
        killed = Run(shutil.copytree(whole.folder, tmp_path / "killed"))
        shutil.rmtree(killed.folder / "final")
        for checkpoint in checkpoints(killed.folder):
            if checkpoint_step(checkpoint) > 8:
                shutil.rmtree(checkpoint)
        (killed.folder / "tokens" / "step-000009.0.parquet").write_bytes(b"torn")
        (killed.folder / "tokens" / "mine.txt").write_text("mine")
        execute(killed.folder)
    own = contents(killed.folder)
    assert own.pop("mine.txt") == b"mine"
    assert own == contents(whole.folder)
    table = killed.tokens(12)
    assert table.attrs["objective"]["steps"] == 12
    assert set(table["rollout"]) == set(range(16)) & set(table["rollout"])
