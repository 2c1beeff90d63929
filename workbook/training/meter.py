"""What a trainer's batches push, and the share of it that cancels.

Opposing gradients can meet in two places. Inside a step they are summed before the optimizer sees
them. Across steps the optimizer takes one after the other, and what the first did the next may
undo. Order and composition of mini-batches decide which of the two happens; to first order in the
learning rate, plain SGD ends at the same place by either. `CancellationMeter` measures both.

Every loss of TRL is a function of the log-probabilities logp_it. A token's push is

    push_it = - d loss / d logp_it = w_it A_it / N

It is exact for each loss type, bound, mask and correction, since it is read from the very graph
that is trained. w is the weight of `theory.weights`, and N one number per micro-batch, times the
gradient accumulation:

    dr_grpo                           rollouts * max_completion_length
    dapo, cispo, vespo, bnpo          tokens
    grpo, sapo, luspo                 rollouts; grpo and sapo also divide by each rollout's own
                                      length, which is part of w

No metric here depends on N.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import wraps

import torch
from jaxtyping import Bool, Float, Int, Shaped
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor
from transformers import TrainerCallback

from workbook.policies.models import padding_error
from workbook.rollouts.scoring import tokenize_prompts
from workbook.theory.weights import cancellation_residual

# -- pushes ----------------------------------------------------------------------------------------


def token_pushes(loss: Float[Tensor, ""], logps: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Read -d loss / d logp from the graph of `loss`, which stays as it is.

    The model is not entered: the backward pass ends at the log-probabilities.
    """
    (slopes,) = torch.autograd.grad(
        loss, logps, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return -slopes.to(torch.promote_types(slopes.dtype, torch.float32))


def loss_without_kl(
    compute: Callable, trainer, model, inputs: dict, outputs: tuple
) -> Float[Tensor, ""]:
    """Compute the loss once more from what the model gave, without the KL penalty.

    compute: the class's `_compute_loss`.  outputs: what scoring gave.  It is called on a copy of
    the trainer, which keeps to itself what it logs.
    """
    twin = copy.copy(trainer)
    twin.beta = 0.0
    twin._metrics = {mode: defaultdict(list) for mode in trainer._metrics}
    twin._get_per_token_logps_and_entropies = lambda *args, **kwargs: outputs
    return compute(twin, model, inputs)


def mean_residual(
    pushes: Float[Tensor, "B T"], group_ids: Shaped[Tensor, " B"], chosen: Bool[Tensor, "B T"]
) -> Float[Tensor, ""]:
    """Mean over (group, position) of |sum of pushes| / sum of |pushes|, over the chosen tokens.

    0: the pushes of a place cancel; 1: they have one sign.
    """
    if not chosen.any():
        return pushes.new_zeros(())
    positions = torch.arange(pushes.size(1), device=pushes.device)
    places = group_ids[:, None] * pushes.size(1) + positions  # (B, T), a label per group and place
    pushes = pushes[chosen]
    return cancellation_residual(pushes, torch.ones_like(pushes), places[chosen]).mean()


# -- cancellation inside a step and across steps ---------------------------------------------------


class CancellationMeter(TrainerCallback):
    """Measures every `trainer.args.measure_cancellation`-th generation batch.

    Logs three metrics under `cancellation/`:

    in_step: 1 - |g+ + g-| / (|g+| + |g-|), with g+ and g- the loss's gradients by tokens of
        positive and negative advantage, summed over an optimizer step's micro-batches: 0 = nothing
        cancels, as with one sign only; two equally long gradients at a right angle give 0.29;
        1 = everything.
    sign_cosine: cosine of g+ and g-, where both are there: -1 = opposed, 0 = unrelated.
    across_steps: 1 - |sum of the steps' displacements| / sum of |displacement|, over a generation
        batch's optimizer steps, weights as one vector.

    It costs one more backward pass per measured micro-batch, of g+ alone; g- is the rest of the
    gradient. It holds two copies of the trained weights at most, besides what the backward pass
    under way returns.
    """

    def __init__(self, trainer):
        self.trainer = trainer
        self.window = trainer.args.steps_per_batch  # optimizer steps of a generation batch
        # of the optimizer step under way: g+ so far, and which signs have pushed, (2,)
        self.plus: list[Tensor | None] | None = None
        self.signs: Tensor | None = None
        # clipping multiplies the gradient that the optimizer takes by this
        self.grad_scale = 1.0
        # weights before the generation batch's first step and before this one; path so far
        self.first: list[Tensor] | None = None
        self.last: list[Tensor] | None = None
        self.length = 0.0

    def add(
        self,
        model,
        logps: Float[Tensor, "B T"],
        pushes: Float[Tensor, "B T"],
        advantages: Float[Tensor, "B T"],
    ) -> None:
        """Add one micro-batch.

        logps: with their graph.  pushes: of each token.  advantages: of each token.
        """
        if not self._due():
            return
        positive = pushes.masked_fill(~(advantages > 0), 0.0)
        negative = pushes.masked_fill(~(advantages < 0), 0.0)
        pushing = torch.stack([positive.any(), negative.any()])
        self.signs = pushing if self.signs is None else self.signs | pushing
        if not pushing[0]:
            return

        # float16: gradients that a pass would round to 0 are scaled up
        scaler = self.trainer.accelerator.scaler
        scale = 1.0 if scaler is None else scaler.get_scale()
        with torch.autocast(logps.device.type, enabled=False):
            gradients = torch.autograd.grad(
                logps,
                _trained(model),
                (-scale * positive).to(logps.dtype),
                retain_graph=True,
                allow_unused=True,
            )

        if self.plus is None:
            self.plus = [None] * len(gradients)
        for i, gradient in enumerate(gradients):
            if gradient is None:
                continue
            if scale != 1.0:
                gradient = gradient.float() / scale
            self.plus[i] = gradient if self.plus[i] is None else self.plus[i] + gradient

    def on_step_begin(self, args, state, control, **kwargs):
        self.plus = None
        self.signs = None
        self.grad_scale = 1.0
        if state.global_step % self.window == 0:
            self.first = None
            self.length = 0.0

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        if not self._due():
            return
        self._log_pushes(model)
        self.plus = None
        if self.window == 1:  # of one step nothing cancels in another
            self.trainer._log_cancellation("across_steps", 0.0)
            return
        starts = state.global_step % self.window == 0
        # a run resumed inside a generation batch has no first position
        if starts or self.first is not None:
            self.last = [weight.detach().clone() for weight in _trained(model)]
        if starts:
            self.first = self.last

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if self.last is None:
            return
        self.length += _distance(model, self.last)
        self.last = None
        if state.global_step % self.window == 0:
            share = 0.0
            if self.length:
                share = 1 - _distance(model, self.first) / self.length
            self.trainer._log_cancellation("across_steps", share)
            self.first = None

    def _log_pushes(self, model) -> None:
        """Compare g+ with the rest of the gradient, over all processes."""
        accelerator = self.trainer.accelerator
        pushing = torch.zeros(2) if self.signs is None else self.signs.float()
        pushing = accelerator.reduce(pushing.to(accelerator.device), "sum")
        both = bool((pushing > 0).all())

        # |g|^2, |g+|^2, |g-|^2 and <g+, g->, a piece of the weights at a time
        rows = [torch.zeros(4, device=accelerator.device)]
        for i, weight in enumerate(_trained(model)):
            plus = self.plus[i] if both and self.plus is not None else None
            if plus is None:
                plus = torch.zeros_like(weight)
            if both and accelerator.num_processes > 1:
                plus = accelerator.reduce(plus, "mean")
            if weight.grad is None:
                continue
            for total, up in _pieces(weight.grad, plus):
                total = total / self.grad_scale
                down = total - up
                products = torch.stack([total @ total, up @ up, down @ down, up @ down])
                rows.append(products.to(accelerator.device))
        products = torch.stack(rows).cpu().double().sum(0)

        whole, plus, minus = products[:3].sqrt()
        # a float16 overflow steps nowhere
        if not products.isfinite().all() or plus + minus == 0:
            return
        cancelled = max(0.0, float(1 - whole / (plus + minus))) if both else 0.0
        self.trainer._log_cancellation("in_step", cancelled)
        if plus > 0 and minus > 0:
            self.trainer._log_cancellation("sign_cosine", products[3] / (plus * minus))

    def _due(self) -> bool:
        """Whether the generation batch under way is measured."""
        batch = self.trainer.state.global_step // self.window
        return batch % self.trainer.args.measure_cancellation == 0


def _trained(model) -> list[torch.nn.Parameter]:
    return [weight for weight in model.parameters() if weight.requires_grad]


def _pieces(*tensors: Tensor) -> Iterator[list[Tensor]]:
    """The same rows of tensors of one shape, flat and in float32.

    A piece is small enough for a processor's cache.
    """
    whole = [torch.atleast_1d(tensor.detach()) for tensor in tensors]
    numbers = 2**26 if whole[0].is_cuda else 2**16  # of a piece
    rows = max(1, numbers * len(whole[0]) // max(1, whole[0].numel()))
    for pieces in zip(*(tensor.split(rows) for tensor in whole), strict=True):
        yield [piece.float().flatten() for piece in pieces]  # gradients may be transposed


def _distance(model, position: list[Tensor]) -> float:
    """Euclidean distance of the trained weights from a position, as one vector."""
    squares = []
    for weight, start in zip(_trained(model), position, strict=True):
        for now, before in _pieces(weight, start):
            step = now - before
            squares.append(step @ step)
    return float(torch.stack(squares).cpu().double().sum().sqrt())


# -- readings of a batch ---------------------------------------------------------------------------


def reward_columns(trainer, per_function: Float[Tensor, "B K"]) -> dict[str, Shaped[Tensor, " B"]]:
    """Columns group_id, rewards and rollout of a generation batch.

    per_function: what each of K reward functions gave, NaN where it could not score. A reward is
    the weighted sum over the functions, NaN where none of them could.
    """
    weights = trainer.reward_weights.to(per_function.device)
    rewards = (per_function * weights).nansum(dim=1)
    rewards = rewards.masked_fill(per_function.isnan().all(dim=1), torch.nan)
    rollout = torch.arange(len(rewards), device=rewards.device)
    return {"group_id": rollout // trainer.num_generations, "rewards": rewards, "rollout": rollout}


def is_scalar(value) -> bool:
    """Whether a batch's column is one number for all rollouts."""
    return isinstance(value, Tensor) and value.ndim == 0


def take(value, index: Int[Tensor, " b"]):
    """Rows `index` of a column, a tensor or a list.

    None and a number for all rollouts stay what they are.
    """
    if value is None or is_scalar(value):
        return value
    if isinstance(value, Tensor):
        return value[index.to(value.device)]
    return [value[i] for i in index.tolist()]


def loss_mask(inputs: dict) -> Shaped[Tensor, "B T"]:
    """Completion tokens that the loss takes.

    0 for padding, truncated rollouts and what tools wrote.
    """
    mask = inputs["completion_mask"]
    return mask * inputs["tool_mask"] if "tool_mask" in inputs else mask


def by_token(advantages: Tensor) -> Tensor:
    """Advantages as (B, 1) or (B, T)."""
    return advantages if advantages.dim() == 2 else advantages[:, None]


def by_rollout(batch: dict) -> Float[Tensor, " B"]:
    """One advantage per rollout, the mean over the tokens that the loss takes; 0 where it takes
    none.
    """
    advantages = batch["advantages"]
    if "completion_mask" not in batch:
        return advantages
    mask = loss_mask(batch).bool()
    if advantages.dim() == 2:
        advantages = (advantages * mask).sum(1) / mask.sum(1).clamp(min=1)
    return advantages.masked_fill(~mask.any(dim=1), 0.0)


# -- readings of a model ---------------------------------------------------------------------------


def model_facts(trainer) -> dict:
    """Facts about a trainer's model and launch, as arguments of `checks.problems`."""
    model = trainer.model
    adapters = list(getattr(model, "peft_config", {}).values())
    base_dtypes = {
        weight.dtype
        for name, weight in model.named_parameters()
        if "lora_" not in name and weight.is_floating_point()
    }
    sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
    in_4_bit = getattr(model, "is_loaded_in_4bit", False)
    in_8_bit = getattr(model, "is_loaded_in_8bit", False)
    prompts = (trainer._tokenizer, trainer.train_dataset, trainer.args.chat_template_kwargs)
    return {
        "world_size": trainer.accelerator.num_processes,
        "kind": type(model).__name__,
        "padding_changes": not sharded and padding_changes(model, *prompts),
        "lora_dropout": max((adapter.lora_dropout for adapter in adapters), default=0.0),
        "quantized": bool(in_4_bit or in_8_bit),
        "base_dtype": min(base_dtypes, key=lambda dtype: dtype.itemsize) if adapters else None,
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
        rows = tokenize_prompts(tokenizer, list(dataset["prompt"]), chat_template_kwargs)
        return len({len(row) for row in rows}) > 1
    except Exception:
        return True


def restore_base_after_sync(model: torch.nn.Module, sync: Callable) -> Callable:
    """Wrap `sync`, which merges a PeftModel's adapters and unmerges them, so that the frozen base
    keeps its bits.

    W + BA - BA is W only up to rounding, which adds up over the syncs of a run: below float32 to
    more than the adapter itself. Checkpoints hold the adapter alone. It holds one copy of the
    weights of adapted layers in main memory.
    """
    frozen = [
        weight
        for module in model.modules()
        if isinstance(module, BaseTunerLayer)
        for weight in module.get_base_layer().parameters(recurse=False)
        if not weight.requires_grad
    ]
    originals = [weight.detach().to("cpu", copy=True) for weight in frozen]

    @wraps(sync)
    def sync_and_restore(*args, **kwargs):
        result = sync(*args, **kwargs)
        with torch.no_grad():
            for weight, original in zip(frozen, originals, strict=True):
                weight.copy_(original)
        return result

    return sync_and_restore
