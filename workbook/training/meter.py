"""Readings of a trainer's batches and model, and the share of the pushes on a policy that cancels:
inside one optimizer step, and across those of a generation batch.

Opposing gradients can meet in two places. Inside a step they are summed before the optimizer sees
them. Across steps the optimizer takes one after the other, and what the first did the next may
undo. Order and composition of mini-batches decide which of the two happens; to first order in the
learning rate, plain SGD ends at the same place by either.

Every loss of TRL is a function of the log-probabilities logp_it. A token's push is -d loss / d
logp_it, exact for each loss type, bound, mask and correction, since it is read from the very graph
that is trained. In the words of `theory.weights`, push_it = w_it A_it / N with one number N per
micro-batch: rollouts * max_completion_length for dr_grpo, tokens for dapo, cispo, vespo and bnpo,
rollouts for grpo, sapo and luspo, each times the gradient accumulation. The first two of these last
also divide by each rollout's own length: that is part of w. No metric here depends on N.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import wraps

import torch
from jaxtyping import Bool, Float, Shaped
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor
from transformers import TrainerCallback

from workbook.policies.models import padding_error
from workbook.rollouts.scoring import tokenize_prompts
from workbook.theory.weights import cancellation_residual


def token_pushes(loss: Float[Tensor, ""], logps: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Read -d loss / d logp from the graph of `loss`, which stays as it is; the model is not
    entered.
    """
    (slopes,) = torch.autograd.grad(
        loss, logps, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return -slopes.to(torch.promote_types(slopes.dtype, torch.float32))


def loss_without_kl(
    compute: Callable, trainer, model, inputs: dict, outputs: tuple
) -> Float[Tensor, ""]:
    """The loss once more from what the model gave, `outputs`, without the KL penalty, whatever
    weights that.

    compute: the class's `_compute_loss`, called on a copy of the trainer, which keeps to itself
    what it logs.
    """
    twin = copy.copy(trainer)
    twin.beta, twin._metrics = 0.0, {mode: defaultdict(list) for mode in trainer._metrics}
    twin._get_per_token_logps_and_entropies = lambda *args, **kwargs: outputs
    return compute(twin, model, inputs)


def reward_columns(trainer, per_function: Float[Tensor, "B K"]) -> dict[str, Shaped[Tensor, " B"]]:
    """Columns group_id, rewards and rollout of a generation batch, by what each reward function
    gave its rollouts.

    A reward is the weighted sum over the functions; that of a rollout which none of them could
    score is NaN.
    """
    rewards = (per_function * trainer.reward_weights.to(per_function.device)).nansum(dim=1)
    rollout = torch.arange(len(rewards), device=rewards.device)
    rewards = rewards.masked_fill(per_function.isnan().all(dim=1), torch.nan)
    return {"group_id": rollout // trainer.num_generations, "rewards": rewards, "rollout": rollout}


def mean_residual(
    pushes: Float[Tensor, "B T"], group_ids: Shaped[Tensor, " B"], chosen: Bool[Tensor, "B T"]
) -> Float[Tensor, ""]:
    """Mean over (group, position) of |sum of pushes| / sum of |pushes|, over the chosen tokens: 0
    cancels.
    """
    if not chosen.any():
        return pushes.new_zeros(())
    labels = group_ids[:, None] * pushes.size(1) + torch.arange(
        pushes.size(1), device=pushes.device
    )
    return cancellation_residual(
        pushes[chosen], torch.ones_like(pushes[chosen]), labels[chosen]
    ).mean()


class CancellationMeter(TrainerCallback):
    """Measures every `trainer.args.measure_cancellation`-th generation batch; logs three metrics
    under `cancellation/`.

    in_step: 1 - |g+ + g-| / (|g+| + |g-|), with g+ and g- the loss's gradients by tokens of
    positive and negative
        advantage, summed over an optimizer step's micro-batches: 0 = nothing cancels, as with one
        sign only; two equally long gradients at a right angle give 0.29; 1 = everything.
    sign_cosine: cosine of g+ and g-, where both are there: -1 = opposed, 0 = unrelated.
    across_steps: 1 - |sum of the steps' displacements| / sum of |displacement|, over a generation
    batch's optimizer
        steps, weights as one vector.

    It costs one more backward pass per measured micro-batch, of g+ alone; g- is the rest of the
    gradient. It holds two copies of the trained weights at most, besides what the backward pass
    under way returns.
    """

    def __init__(self, trainer):
        self.trainer, self.plus, self.signs = trainer, None, None
        self.first, self.last, self.length = None, None, 0.0
        # by which clipping has multiplied the gradient that the optimizer takes
        self.grad_scale = 1.0
        self.window = trainer.args.steps_per_batch

    def add(
        self, model, logps: torch.Tensor, pushes: torch.Tensor, advantages: torch.Tensor
    ) -> None:
        """Add one micro-batch: its tokens' log-probabilities, with their graph, what each pushes,
        and its advantage.
        """
        if not self._due():
            return
        signs = [pushes.masked_fill(~(sign * advantages > 0), 0.0) for sign in (1, -1)]
        here = torch.stack([sign.any() for sign in signs])
        self.signs = here if self.signs is None else self.signs | here
        if not here[0]:
            return
        # float16: gradients that a pass would round to 0 are scaled up
        scaler = self.trainer.accelerator.scaler
        scale = 1.0 if scaler is None else scaler.get_scale()
        with torch.autocast(logps.device.type, enabled=False):
            gradients = torch.autograd.grad(
                logps,
                _trained(model),
                (-scale * signs[0]).to(logps.dtype),
                retain_graph=True,
                allow_unused=True,
            )
        if self.plus is None:
            self.plus = [None] * len(gradients)
        for i, gradient in enumerate(gradients):
            if gradient is not None:
                gradient = gradient if scale == 1.0 else gradient.float() / scale
                self.plus[i] = gradient if self.plus[i] is None else self.plus[i] + gradient

    def on_step_begin(self, args, state, control, **kwargs):
        self.plus, self.signs, self.grad_scale = None, None, 1.0
        if state.global_step % self.window == 0:
            self.first, self.length = None, 0.0

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        if not self._due():
            return
        self._log_pushes(model)
        self.plus = None
        starts = state.global_step % self.window == 0
        if self.window == 1:  # of one step nothing cancels in another
            self.trainer._log_cancellation("across_steps", 0.0)
        elif starts or self.first is not None:
            # a run resumed inside a generation batch has no first position
            self.last = [p.detach().clone() for p in _trained(model)]
            self.first = self.last if starts else self.first

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if self.last is None:
            return
        self.length, self.last = self.length + _distance(model, self.last), None
        if state.global_step % self.window == 0:
            share = 1 - _distance(model, self.first) / self.length if self.length else 0.0
            self.trainer._log_cancellation("across_steps", share)
            self.first = None

    def _log_pushes(self, model) -> None:
        """Compare g+ with the rest of the gradient, over all processes."""
        trainer, accelerator = self.trainer, self.trainer.accelerator
        here = torch.zeros(2) if self.signs is None else self.signs.float()
        both = all((accelerator.reduce(here.to(accelerator.device), "sum") > 0).tolist())
        rows = [torch.zeros(4, device=accelerator.device)]  # |g|^2, |g+|^2, |g-|^2, <g+, g->
        for i, weight in enumerate(_trained(model)):
            plus = self.plus[i] if both and self.plus is not None else None
            if both and accelerator.num_processes > 1:
                plus = accelerator.reduce(
                    torch.zeros_like(weight) if plus is None else plus, "mean"
                )
            if weight.grad is not None:
                for total, up in _pieces(
                    weight.grad, torch.zeros_like(weight) if plus is None else plus
                ):
                    total = total / self.grad_scale
                    down = total - up
                    rows.append(
                        torch.stack([total @ total, up @ up, down @ down, up @ down]).to(
                            rows[0].device
                        )
                    )
        products = torch.stack(rows).cpu().double().sum(0)
        whole, plus, minus = products[:3].sqrt()
        if products.isfinite().all() and plus + minus > 0:  # a float16 overflow steps nowhere
            trainer._log_cancellation(
                "in_step", max(0.0, float(1 - whole / (plus + minus))) if both else 0.0
            )
            if plus > 0 and minus > 0:
                trainer._log_cancellation("sign_cosine", products[3] / (plus * minus))

    def _due(self) -> bool:
        return (
            self.trainer.state.global_step // self.window % self.trainer.args.measure_cancellation
            == 0
        )


def _trained(model) -> list[torch.nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def _pieces(*tensors: torch.Tensor) -> Iterator[list[torch.Tensor]]:
    """The same rows of tensors of one shape, flat and in float32: few enough for a processor's
    cache.
    """
    whole = [torch.atleast_1d(tensor.detach()) for tensor in tensors]
    size = 2**26 if whole[0].is_cuda else 2**16
    rows = max(1, size * len(whole[0]) // max(1, whole[0].numel()))
    for pieces in zip(*(tensor.split(rows) for tensor in whole), strict=True):
        yield [piece.float().flatten() for piece in pieces]  # gradients may be transposed


def _distance(model, position: list[torch.Tensor]) -> float:
    """Euclidean distance of the trained weights from a position, as one vector."""
    pairs = zip(_trained(model), position, strict=True)
    steps = (p - q for weight, start in pairs for p, q in _pieces(weight, start))
    return float(torch.stack([step @ step for step in steps]).cpu().double().sum().sqrt())


# -- readings of a batch and of a model
# ------------------------------------------------------------------------------


def is_scalar(value) -> bool:
    """Whether a batch's column is one number for all rollouts."""
    return isinstance(value, torch.Tensor) and value.ndim == 0


def take(value, index: torch.Tensor):
    """Rows `index` of a column, a tensor or a list; None and a number for all rollouts stay what
    they are.
    """
    if value is None or is_scalar(value):
        return value
    return (
        value[index.to(value.device)]
        if isinstance(value, torch.Tensor)
        else [value[i] for i in index.tolist()]
    )


def loss_mask(inputs: dict) -> torch.Tensor:
    """Completion tokens (B, T) that the loss takes: 0 for padding, truncated rollouts and what
    tools wrote.
    """
    mask = inputs["completion_mask"]
    return mask * inputs["tool_mask"] if "tool_mask" in inputs else mask


def by_token(advantages: torch.Tensor) -> torch.Tensor:
    """Advantages as (B, 1) or (B, T)."""
    return advantages if advantages.dim() == 2 else advantages[:, None]


def by_rollout(batch: dict) -> torch.Tensor:
    """One advantage per rollout (B,), 0 where the loss masks all: their mean over the tokens that
    the loss takes.
    """
    advantages = batch["advantages"]
    if "completion_mask" not in batch:
        return advantages
    mask = loss_mask(batch).bool()
    if advantages.dim() == 2:
        advantages = (advantages * mask).sum(1) / mask.sum(1).clamp(min=1)
    return advantages.masked_fill(~mask.any(dim=1), 0.0)


def model_facts(trainer) -> dict:
    """Facts about a trainer's model and launch, as arguments of `checks.problems`."""
    model, adapters = trainer.model, getattr(trainer.model, "peft_config", {}).values()
    base = {
        p.dtype
        for name, p in model.named_parameters()
        if "lora_" not in name and p.is_floating_point()
    }
    sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
    prompts = (trainer._tokenizer, trainer.train_dataset, trainer.args.chat_template_kwargs)
    return {
        "world_size": trainer.accelerator.num_processes,
        "kind": type(model).__name__,
        "padding_changes": not sharded and padding_changes(model, *prompts),
        "lora_dropout": max((c.lora_dropout for c in adapters), default=0.0),
        "quantized": bool(
            getattr(model, "is_loaded_in_4bit", False) or getattr(model, "is_loaded_in_8bit", False)
        ),
        "base_dtype": min(base, key=lambda dtype: dtype.itemsize) if adapters else None,
        "aux_loss": trainer.aux_loss_enabled,
        "sharded": sharded,
    }


def padding_changes(
    model: torch.nn.Module, tokenizer, dataset, chat_template_kwargs: dict | None = None
) -> bool:
    """Whether prompts differ in length, and padding on the left changes this model's logits without
    positions.

    RWKV and decoders of BART ignore padding, and GPT-2 counts it. Prompts are tokenized for such
    models only; what can't be tokenized here counts as unequal.
    """
    try:
        if padding_error(model, positions=False) <= 1:
            return False
    except Exception:  # a model that can't do with token ids and their mask is left to training
        return False
    try:
        prompts = list(dataset["prompt"])
        return (
            len({len(row) for row in tokenize_prompts(tokenizer, prompts, chat_template_kwargs)})
            > 1
        )
    except Exception:
        return True


def restore_base_after_sync(model: torch.nn.Module, sync: Callable) -> Callable:
    """Wrap `sync`, which merges a PeftModel's adapters and unmerges them, so that the frozen base
    keeps its bits.

    W + BA - BA is W only up to rounding, which adds up over the syncs of a run: below float32 to
    more than the adapter itself. Checkpoints hold the adapter alone. Holds one copy of the weights
    of adapted layers in main memory.
    """
    layers = [
        module.get_base_layer() for module in model.modules() if isinstance(module, BaseTunerLayer)
    ]
    frozen = [p for layer in layers for p in layer.parameters(recurse=False) if not p.requires_grad]
    kept = [p.detach().to("cpu", copy=True) for p in frozen]

    @wraps(sync)
    def synced(*args, **kwargs):
        result = sync(*args, **kwargs)
        with torch.no_grad():
            for parameter, value in zip(frozen, kept, strict=True):
                parameter.copy_(value)
        return result

    return synced
