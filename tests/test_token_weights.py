"""What the metrics call a token's weight is the slope of TRL's own loss; measuring it trains
nothing.
"""

import warnings

import pytest
import torch
from small_run import SMALL, bundled_trainer, nudge_adapters
from trl import GRPOTrainer

from workbook.policies.load import load_policy
from workbook.theory.weights import advantage_orthogonal, min_replace
from workbook.training import CancellationConfig, CancellationTrainer
from workbook.training.meter import mean_residual, restore_base_after_sync, token_pushes

QUERY = {"batching": "query_preserved", "per_device_train_batch_size": 8}
SEQUENCE = {"importance_sampling_level": "sequence"}
LENGTHS = [5, 4, 3, 5, 2, 5, 4, 1]
# Those whose coefficients are constants of the gradient: a slope holds ratios fixed.
DETACHED = ("cispo", "vespo")


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    bundled = load_policy("bundled")

    def make(**settings):
        settings = SMALL | {"measure_cancellation": 0 if settings.get("beta") else 1} | settings
        args = CancellationConfig(output_dir=str(tmp_path_factory.mktemp("trainer")), **settings)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = bundled_trainer(CancellationTrainer, args, bundled)
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = 1
        return trainer

    return make


def made_batch(rollouts=8, width=5) -> dict:
    """Two groups of four, tokens that some share, both signs in each, ratios on both sides of 1;
    float64.
    """
    torch.manual_seed(0)
    mask = (torch.arange(width) < torch.tensor(LENGTHS)[:, None]).long()
    old = -torch.rand(rollouts, width, dtype=torch.float64) * mask
    return {
        "prompt_ids": torch.full((rollouts, 2), 5),
        "prompt_mask": torch.ones(rollouts, 2, dtype=torch.long),
        "completion_ids": torch.randint(5, 7, (rollouts, width)) * mask,
        "completion_mask": mask,
        "old_per_token_logps": old,
        "logps": (old + 0.4 * torch.randn(rollouts, width, dtype=torch.float64)) * mask,
        "entropies": torch.rand(rollouts, width, dtype=torch.float64) * mask,
        "advantages": torch.tensor(
            [1.5, -0.5, -0.5, -0.5, 0.7, -0.9, 0.2, 0.0], dtype=torch.float64
        ),
        "group_id": torch.arange(rollouts) // 4,
        "num_items_in_batch": mask.sum(),
    }


def trl_loss(monkeypatch, trainer, batch, logps):
    """TRL's loss as a function of log-probabilities; no model is run."""
    scored = (logps, batch["entropies"], None)
    monkeypatch.setattr(
        GRPOTrainer, "_get_per_token_logps_and_entropies", lambda self, *args, **kwargs: scored
    )
    inputs = {key: value for key, value in batch.items() if key not in ("logps", "entropies")}
    return trainer.compute_loss(trainer.model, inputs)


def measured_pushes(monkeypatch, trainer, batch) -> torch.Tensor:
    """What the trainer takes each token to push."""
    logps, seen = batch["logps"].clone().requires_grad_(), []

    def watch(*args):
        seen.append(token_pushes(*args))
        return seen[-1]

    monkeypatch.setattr("workbook.training.meter.token_pushes", watch)
    trainer._metrics["train"].clear()
    if trainer._meter:  # what it adds needs a model's graph
        monkeypatch.setattr(trainer._meter, "add", lambda *args: None)
    trl_loss(monkeypatch, trainer, batch, logps)
    return seen[0]


def slopes(monkeypatch, trainer, batch, step=1e-6) -> torch.Tensor:
    """-d loss / d logp of plain TRL by central differences, token by token."""
    monkeypatch.setattr(trainer, "_meter", None)
    slope = torch.zeros_like(batch["logps"])
    with torch.no_grad():
        for place in batch["completion_mask"].nonzero().tolist():
            ends = []
            for sign in (1, -1):
                moved = {key: batch[key].clone() for key in ("logps", "old_per_token_logps")}
                for name in (
                    ("logps", "old_per_token_logps")
                    if trainer.loss_type in DETACHED
                    else ("logps",)
                ):
                    moved[name][tuple(place)] += sign * step
                ends.append(trl_loss(monkeypatch, trainer, batch | moved, moved["logps"]))
            slope[tuple(place)] = -(ends[0] - ends[1]) / (2 * step)
    return slope


def brute_residual(pushes, batch, chosen) -> float:
    """Mean over groups and positions of |sum| / sum of sizes, by loops."""
    residuals = []
    for group in batch["group_id"].unique():
        for place in range(pushes.size(1)):
            rows = (batch["group_id"] == group) & chosen[:, place]
            if rows.any():
                total = float(pushes[rows, place].abs().sum())
                residuals.append(float(pushes[rows, place].sum().abs()) / total if total else 0.0)
    return sum(residuals) / len(residuals)


TOOLS = torch.ones(8, 5, dtype=torch.long).index_fill(1, torch.tensor([1]), 0)
TRUNCATED = torch.tensor([1, 1, 0, 1, 1, 1, 1, 0])[:, None]
PER_TOKEN = torch.linspace(-1, 1, 40, dtype=torch.float64).view(8, 5).roll(3, 0)
RATIOS = torch.linspace(0.5, 1.6, 40, dtype=torch.float64).view(5, 8).T.contiguous()
VLLM = {"use_vllm": True}

SLOPES = [
    *(
        ({"loss_type": loss}, {})
        for loss in ("grpo", "dr_grpo", "dapo", "bnpo", "sapo", "vespo", "luspo")
    ),
    *(
        ({"loss_type": loss} | SEQUENCE, {})
        for loss in ("grpo", "dr_grpo", "dapo", "luspo", "sapo", "cispo")
    ),
    ({"loss_type": "cispo", "epsilon_high": 1.3}, {}),
    ({"delta": 1.25}, {}),
    ({"loss_type": "grpo", "off_policy_mask_threshold": 0.05}, {}),
    ({"top_entropy_quantile": 0.4}, {}),
    ({}, {"tool_mask": TOOLS}),
    ({"loss_type": "dapo"}, {"truncated": TRUNCATED}),
    (VLLM, {"importance_sampling_ratio": RATIOS}),
    (VLLM | SEQUENCE | {"loss_type": "grpo"}, {"importance_sampling_ratio": RATIOS[:, :1]}),
    (VLLM | {"loss_type": "vespo"}, {"importance_sampling_ratio": RATIOS}),
    ({"loss_type": "sapo"}, {"advantages": PER_TOKEN}),
    ({"loss_type": "cispo", "epsilon_high": 5.0} | SEQUENCE, {"advantages": PER_TOKEN}),
]


@pytest.mark.parametrize(("settings", "columns"), SLOPES, ids=lambda value: None)
def test_pushes_are_the_slopes_of_trls_loss(monkeypatch, build, settings, columns):
    """For each loss type, level, bound, mask and correction, and so are the metrics that rest on
    them.
    """
    if settings.get("loss_type") == "cispo":
        settings = {"epsilon_high": 1.2} | settings
    trainer = build(**{key: value for key, value in settings.items() if key != "use_vllm"})
    trainer.use_vllm = settings.get("use_vllm", False)
    batch = made_batch() | {key: value for key, value in columns.items() if key != "truncated"}
    batch["completion_mask"] = batch["completion_mask"] * columns.get("truncated", 1)
    pushes, meter = measured_pushes(monkeypatch, trainer, batch), trainer._metrics["train"].copy()
    expected = slopes(monkeypatch, trainer, batch)
    torch.testing.assert_close(pushes, expected, rtol=1e-5, atol=1e-8)
    advantages = batch["advantages"].view(8, -1).expand(8, 5)
    active = (batch["completion_mask"] * batch.get("tool_mask", 1)).bool()
    pushing = active & (advantages != 0)
    assert meter["cancellation/weight_residual"] == [
        pytest.approx(brute_residual(expected, batch, pushing), abs=1e-5)
    ]
    assert meter["cancellation/clipped"] == [
        pytest.approx(float((expected[pushing].abs() < 1e-9).float().mean()))
    ]


# --- repairs under a correction, and per-token advantages under a sequence ratio
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("transform", [min_replace, advantage_orthogonal])
@pytest.mark.parametrize("width", [1, 5])
def test_a_correction_comes_before_the_transform(monkeypatch, build, level, transform, width):
    """The group cancels in the weights as trained, whatever ratio vLLM's correction gives its
    rollouts or tokens.
    """
    trainer = build(**QUERY, group_transform=transform.__name__, importance_sampling_level=level)
    trainer.use_vllm = True
    batch = made_batch() | {"completion_mask": torch.ones(8, 5, dtype=torch.long)}
    batch["advantages"] = torch.tensor([1.5, -0.5, -0.5, -0.5] * 2, dtype=torch.float64)
    batch["importance_sampling_ratio"] = RATIOS[:, :width]
    pushes = measured_pushes(monkeypatch, trainer, batch)
    log_ratio = batch["logps"] - batch["old_per_token_logps"]
    ratio = log_ratio if level == "token" else log_ratio.mean(1, keepdim=True)
    weights = ratio.exp().clamp(0.8, 1.2).expand(8, 5) * batch["importance_sampling_ratio"]
    own = () if transform is min_replace else (batch["advantages"],)
    expected = transform(weights, *own, batch["group_id"]) * batch["advantages"][:, None]
    torch.testing.assert_close(pushes, expected / (8 * trainer.max_completion_length))
    logged = trainer._metrics["train"]
    assert logged["cancellation/weight_residual"][-1] < 1e-7
    assert (
        mean_residual(
            weights * batch["advantages"][:, None], batch["group_id"], torch.ones(8, 5).bool()
        )
        > 1e-2
    )


@pytest.mark.parametrize("clipping", ["asymmetric", "symmetric"])
@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo"])
def test_a_sequence_ratio_keeps_each_tokens_advantage(monkeypatch, build, clipping, loss_type):
    """GSPO-token: s_i A_it on each token, where TRL's loss gives every token of a rollout their
    mean.
    """
    settings = {"loss_type": loss_type, "clipping": clipping, "epsilon": 0.1} | SEQUENCE
    trainer = build(advantage_estimator="prefix_credit", **settings)
    batch = made_batch() | {"advantages": PER_TOKEN}
    mask = batch["completion_mask"]
    tokens = mask.sum(1, keepdim=True)
    ratio = ((batch["logps"] - batch["old_per_token_logps"]).sum(1, keepdim=True) / tokens).exp()
    if clipping == "symmetric":
        stopped = (ratio - 1).abs() > 0.1
    else:
        stopped = torch.where(PER_TOKEN > 0, ratio > 1.1, ratio < 0.9)
    expected = ratio * ~stopped * mask * PER_TOKEN / 8
    expected /= tokens if loss_type == "grpo" else trainer.max_completion_length
    torch.testing.assert_close(measured_pushes(monkeypatch, trainer, batch), expected)
    assert trainer.importance_sampling_level == "sequence"


def test_syncs_leave_a_half_precision_base_as_it_was():
    """Merging adapters into it and taking them out again, as each weight sync of vLLM's does."""
    moved = []
    for wrap in (lambda model, sync: sync, restore_base_after_sync):
        model = load_policy("bundled", lora=4, dtype="bfloat16").model
        nudge_adapters(model)
        before = {name: p.clone() for name, p in model.named_parameters()}
        sync = wrap(model, lambda model=model: (model.merge_adapter(), model.unmerge_adapter()))
        for _ in range(3):
            sync()
        moved.append(
            {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
        )
    assert moved[0]
    assert not moved[1]


# --- the meter
def test_the_meter_splits_the_gradient_that_training_sums(build):
    """In two micro-batches, with clipping; against a pass over the rollouts of each sign alone."""
    settings = {
        "gradient_accumulation_steps": 2,
        "max_grad_norm": 0.01,
        "max_steps": 1,
        "num_iterations": 1,
    }
    trainer, parts = build(**settings), []
    compute = trainer._compute_loss
    trainer._compute_loss = lambda model, inputs: (
        parts.append(dict(inputs)) or compute(model, inputs)
    )
    start = {name: p.clone() for name, p in trainer.model.state_dict().items()}
    trainer.train()
    assert len(parts) == 2
    pushes = []
    trainer.model.load_state_dict(start)
    trainer._compute_loss, trainer._meter = compute, None
    for sign in (1, -1):
        trainer.model.zero_grad()
        for part in parts:
            kept = part["advantages"] * (sign * part["advantages"] > 0)
            trainer.compute_loss(trainer.model, part | {"advantages": kept}).backward()
        pushes.append(torch.cat([p.grad.flatten() for p in trainer.model.parameters()]))
    up, down = pushes
    row = trainer.state.log_history[0]
    share = 1 - (up + down).norm() / (up.norm() + down.norm())
    assert row["grad_norm"] == pytest.approx(float((up + down).norm()), rel=1e-3)
    assert row["cancellation/in_step"] == pytest.approx(float(share), abs=1e-4)
    assert row["cancellation/sign_cosine"] == pytest.approx(
        float(torch.cosine_similarity(up, down, 0)), abs=1e-4
    )


def test_a_scaled_loss_is_measured_unscaled(build):
    """Under a GradScaler, as float16 trains with, a gradient that the pass would round to 0 still
    counts.
    """
    meter, model, gradients = build()._meter, torch.nn.Linear(3, 2, dtype=torch.float16), []
    trainer = meter.trainer
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=2.0**16)):
        trainer.accelerator.scaler = scaler
        meter.on_step_begin(trainer.args, trainer.state, trainer.control)
        meter.add(model, model(torch.ones(1, 3).half()), torch.full((1, 2), 1e-8), torch.ones(1, 2))
        gradients.append(meter.plus)
    trainer.accelerator.scaler = None
    assert not gradients[0][0].any()
    torch.testing.assert_close(gradients[1][0], torch.full((2, 3), -1e-8), rtol=0.1, atol=0)
