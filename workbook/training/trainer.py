"""CancellationTrainer: TRL's GRPOTrainer with the smallest overrides that steer token-gradient cancellation.

With every field of [`CancellationConfig`] at its default it *is* GRPOTrainer, bit for bit. Departures, each behind
its field:

1. `batching`: `_prepare_inputs` replaces TRL's shuffle of the generation batch by `theory.batching.minibatch_order`. On
   several processes the order is global: rollouts are exchanged, so that each optimizer mini-batch keeps the promise.
2. `advantage_estimator`: advantages are computed from the rewards by `theory.advantages`; (B, T) for counterfactual.
3. `group_transform` and `clipping="symmetric"`: the loss becomes `-(w A).detach() * log pi`, with `w` from
   `theory.weights`. No copy of TRL's loss: TRL reads the advantages after the log-probabilities, so
   `_get_per_token_logps_and_entropies` writes `w A` in the advantages' place and drops the old log-probabilities, which
   makes TRL's own ratio 1 with gradient grad log pi.
4. `trim_padding`: that same method cuts columns that are padding in the whole micro-batch and pads the result back.
5. `fp32_adapters`: LoRA weights that TRL's constructor cast to bfloat16 are cast back to float32.
6. Extra metrics under `cancellation/`, and extra columns `group_id` and `rewards` in each batch; with
   `measure_cancellation`, how much cancels inside and across optimizer steps (`training.meter`). Settings that would
   make an intervention a silent no-op are refused (`training.checks`).
"""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from trl import GRPOTrainer
from trl.trainer.utils import split_pixel_values_by_grid, split_tensor_dict, unsplit_pixel_values_by_grid

from workbook.policies import recast_adapters
from workbook.theory.advantages import counterfactual_advantages, group_advantages
from workbook.theory.batching import minibatch_order
from workbook.theory.groups import shared_places
from workbook.theory.weights import advantage_orthogonal, cancellation_residual, min_replace, surrogate_weights
from workbook.training.checks import problems
from workbook.training.config import CancellationConfig
from workbook.training.meter import CancellationMeter

# Batch columns that are padded on the left, and what pads the others; needed only to exchange rollouts between
# processes.
LEFT_PADDED = ("prompt_ids", "prompt_mask")


class CancellationTrainer(GRPOTrainer):
    """GRPOTrainer with batching strategies, group-weight transforms, symmetric clipping, estimators and trimming.

    Takes GRPOTrainer's arguments; `args` is a [`CancellationConfig`].

    Raises:
        ValueError: if a setting would break an intervention or make it a silent no-op, one sentence for each.
    """

    _tag_names = ("trl", "grpo", "cancellation")

    def __init__(self, model, reward_funcs=None, args: CancellationConfig | None = None, **kwargs):
        args = CancellationConfig("grpo-cancellation") if args is None else args
        super().__init__(model, reward_funcs, args=args, **kwargs)
        found = problems(
            args,
            world_size=self.accelerator.num_processes,
            lora_dropout=max((c.lora_dropout for c in getattr(self.model, "peft_config", {}).values()), default=0.0),
            quantized=bool(
                getattr(self.model, "is_loaded_in_4bit", False) or getattr(self.model, "is_loaded_in_8bit", False)
            ),
        )
        if errors := [p.sentence for p in found if p.severity == "error"]:
            raise ValueError(" ".join(errors))
        for problem in found:
            warnings.warn(problem.sentence, stacklevel=2)
        if args.fp32_adapters:
            recast_adapters(self.model)
        self._rewards_per_func = None  # of the latest generation batch, all processes
        self._loss_inputs = (
            None  # the batch whose loss is being computed, while its advantages are still to be reweighted
        )
        self._meter = CancellationMeter(self) if args.measure_cancellation else None
        if self._meter:
            self.add_callback(self._meter)

    # -- rollouts: group labels and advantages ----------------------------------------------------------------

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        self._rewards_per_func = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        return self._rewards_per_func

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        if not self.model.training:
            return output
        rewards, group_ids, advantages = self._global_advantages()
        local = len(output["advantages"])
        mine = slice(self.accelerator.process_index * local, (self.accelerator.process_index + 1) * local)
        output["group_id"], output["rewards"] = group_ids[mine], rewards[mine]
        if self.args.advantage_estimator == "counterfactual":
            mask = output["completion_mask"]
            output["advantages"] = counterfactual_advantages(
                output["rewards"].nan_to_num(), output["completion_ids"], mask, output["group_id"]
            ).to(output["advantages"].dtype)
        elif advantages is not None:
            output["advantages"] = advantages[mine].to(output["advantages"].dtype)
            for _ in range(len(advantages)):
                self._logs["advantages"].pop()
            self._logs["advantages"].extend(advantages.tolist())
        return output

    def _global_advantages(self):
        """Summed rewards, group labels, and advantages if TRL's are to be replaced; all (B,) over every process."""
        weights = self.reward_weights.to(self._rewards_per_func.device)
        rewards = (self._rewards_per_func * weights).nansum(dim=1)
        group_ids = torch.arange(len(rewards), device=rewards.device) // self.num_generations
        if self.args.advantage_estimator in ("grpo", "counterfactual"):
            return rewards, group_ids, None
        scored = ~self._rewards_per_func.isnan().all(dim=1)  # a rollout no reward function could score moves nothing
        advantages = torch.zeros_like(rewards)
        advantages[scored] = group_advantages(rewards[scored], group_ids[scored], self.args.advantage_estimator)
        return rewards, group_ids, advantages

    # -- batching: the composition of optimizer mini-batches --------------------------------------------------

    def _prepare_inputs(self, generation_batch):
        training = self.model.training
        fresh = training and (
            self._step % (self.args.steps_per_generation * self.num_iterations) == 0 or self._buffered_inputs is None
        )
        if fresh and self.args.batching != "shuffled":
            batch = split_pixel_values_by_grid(self._generate_and_score_completions(generation_batch))
            parts = split_tensor_dict(self._arrange(batch), self.args.steps_per_generation)
            self._buffered_inputs = [unsplit_pixel_values_by_grid(part) for part in parts]
            inputs = self._buffered_inputs[0]
        elif training and self.args.batching != "shuffled":
            inputs = self._buffered_inputs[self._step % self.args.steps_per_generation]
        else:
            inputs = super()._prepare_inputs(generation_batch)
        if fresh:
            self._log_composition()
        return inputs

    def _arrange(self, batch: dict) -> dict:
        """Reorder the generation batch so that equal contiguous parts are the strategy's optimizer mini-batches."""
        batch = self._exchange(batch)
        # Its own generator: the order depends on the seed and the step alone, also after a resume.
        generator = torch.Generator().manual_seed(self.args.seed * 1_000_003 + self.state.global_step)
        order = minibatch_order(
            self.args.batching,
            batch["group_id"].cpu(),
            _of_rollouts(batch).cpu(),
            self.args.steps_per_generation // self.args.gradient_accumulation_steps,
            generator,
        )
        # Micro-batch k of all processes together is order[k]; this process takes its slice of each.
        shape = (self.args.steps_per_generation, self.accelerator.num_processes, self.args.per_device_train_batch_size)
        mine = order.view(shape)[:, self.accelerator.process_index].reshape(-1)
        return {key: value if _scalar(value) else _take(value, mine) for key, value in batch.items()}

    def _exchange(self, batch: dict) -> dict:
        """Every process's rollouts, padded to one width; the batch itself on a single process."""
        if self.accelerator.num_processes == 1:
            return batch
        gathered = {}
        for key, value in batch.items():
            if value is None or _scalar(value):
                gathered[key] = value
                continue
            if not isinstance(value, torch.Tensor):
                raise ValueError(
                    f"batching={self.args.batching!r} can't exchange the batch column {key!r} between processes, since "
                    f"it is a {type(value).__name__} and not a tensor; use batching='shuffled', or one process."
                )
            if value.ndim > 1:
                pad = self._tokenizer.pad_token_id if key.endswith("_ids") else 0
                value = self.accelerator.pad_across_processes(value, dim=1, pad_index=pad, pad_first=key in LEFT_PADDED)
            gathered[key] = self.accelerator.gather(value.contiguous())
        return gathered

    def _log_composition(self) -> None:
        """How far a group's advantages fail to sum to 0 in an optimizer mini-batch: 0 = cancels, 1 = one sign only."""
        accum, residuals = self.args.gradient_accumulation_steps, []
        for start in range(0, len(self._buffered_inputs), accum):
            window = self._buffered_inputs[start : start + accum]
            advantages = self.accelerator.gather(torch.cat([_of_rollouts(part) for part in window]))
            group_ids = self.accelerator.gather(torch.cat([part["group_id"] for part in window]))
            if (signed := advantages != 0).any():
                advantages, group_ids = advantages[signed], group_ids[signed]
                residuals.append(cancellation_residual(torch.ones_like(advantages), advantages, group_ids).mean())
        if residuals:
            self._log_cancellation("batch_residual", torch.stack(residuals).mean())

    # -- loss: its measurement, and the surrogate's weights ------------------------------------------------

    @property
    def _reweights(self) -> bool:
        return self.args.group_transform is not None or self.args.clipping == "symmetric"

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        if self._meter and self.model.training:
            self._meter.measure_step(model, inputs)
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def _compute_loss(self, model, inputs):
        if not self.model.training:
            return super()._compute_loss(model, inputs)
        if not self._reweights and "pushing" in inputs:
            inputs["advantages"] = inputs["advantages"] * inputs["pushing"]
        self._loss_inputs = dict(inputs)
        try:
            return super()._compute_loss(model, self._loss_inputs)
        finally:
            self._loss_inputs = None

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, **kwargs
    ):
        plain = not self.args.trim_padding or any(
            value is not None for key, value in kwargs.items() if "compute" not in key
        )
        score = super()._get_per_token_logps_and_entropies if plain else self._trimmed
        outputs = score(model, input_ids, attention_mask, logits_to_keep, batch_size=batch_size, **kwargs)
        if self._loss_inputs is not None:
            if self._reweights:
                self._reweight(outputs[0].detach(), self._loss_inputs)
            elif self._meter:
                self._log_residual(outputs[0].detach(), self._loss_inputs)
        return outputs

    def _trimmed(self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, **kwargs):
        """TRL's log-probabilities, entropies and auxiliary loss, without columns nobody in the micro-batch uses."""
        batch_size = batch_size or len(input_ids)
        chunks = []
        for ids, mask in zip(input_ids.split(batch_size), attention_mask.split(batch_size), strict=True):
            used = mask.any(dim=0).nonzero().squeeze(1)
            first_completion = ids.size(1) - logits_to_keep
            left = min(int(used[0]), first_completion - 1)
            right = max(int(used[-1]) + 1, first_completion + 1)
            cut = ids.size(1) - right
            logps, entropies, aux = super()._get_per_token_logps_and_entropies(
                model, ids[:, left:right], mask[:, left:right], logits_to_keep - cut, **kwargs
            )
            chunks.append((F.pad(logps, (0, cut)), None if entropies is None else F.pad(entropies, (0, cut)), aux))
        logps, entropies, aux = zip(*chunks, strict=True)
        return (
            torch.cat(logps),
            None if entropies[0] is None else torch.cat(entropies),
            None if aux[0] is None else torch.stack(aux).mean(),
        )

    @torch.no_grad()
    def _reweight(self, logps: torch.Tensor, inputs: dict) -> None:
        """Put `w * A` in the advantages' place, w by symmetric clipping (D3) or a group transform (D6, D7).

        What a transform sees is `transform_on`: ratios clamped to the clip range, or the clipped surrogate's weights.
        """
        mask = inputs["completion_mask"]
        if "tool_mask" in inputs:
            mask = mask * inputs["tool_mask"]
        advantages, group_ids, active = inputs["advantages"], inputs["group_id"], mask.bool()
        scored = (logps, inputs.pop("old_per_token_logps"), mask, advantages, self.importance_sampling_level)
        clip = (self.epsilon_low, self.epsilon_high)
        weights = surrogate_weights(*scored, clip=clip, clipping="symmetric")  # (B, T)
        self._log_cancellation("clipped", (weights[active] == 0).float().mean())
        if self.args.group_transform:
            if self.args.transform_on == "clipped_weights":
                weights = surrogate_weights(*scored, clip=clip, clipping=self.args.clipping)
            else:
                weights = surrogate_weights(*scored).clamp(1 - clip[0], 1 + clip[1])
            self._log_cancellation("weight_residual_before", _token_residual(weights, advantages, group_ids, active))
            if self.importance_sampling_level == "sequence":  # one weight per rollout, the same at each of its tokens
                weights = self._transform(weights.amax(dim=1), advantages, group_ids, active.any(dim=1))[:, None] * mask
            else:
                weights = self._transform(weights, advantages, group_ids, active)
        self._log_residuals(weights, inputs, active)
        inputs["advantages"] = weights * (advantages if advantages.dim() == 2 else advantages[:, None])
        if "pushing" in inputs:  # the meter's: rollouts of one sign
            pushing = inputs["pushing"]
            inputs["advantages"] *= pushing if pushing.dim() == 2 else pushing[:, None]

    @torch.no_grad()
    def _log_residual(self, logps: torch.Tensor, inputs: dict) -> None:
        """What TRL's own weights leave on a token that a group shares; with ratios of 1 they leave nothing."""
        mask, old = inputs["completion_mask"], inputs.get("old_per_token_logps")
        scored = (logps, logps if old is None else old, mask, inputs["advantages"], self.importance_sampling_level)
        weights = surrogate_weights(*scored, clip=(self.epsilon_low, self.epsilon_high))
        self._log_residuals(weights, inputs, mask.bool())

    def _log_residuals(self, weights: torch.Tensor, inputs: dict, active: torch.Tensor) -> None:
        """The residual of these weights: over all places, and over those at which the whole group has one token."""
        scored = (inputs["advantages"], inputs["group_id"])
        self._log_cancellation("weight_residual", _token_residual(weights, *scored, active))
        shared = shared_places(inputs["completion_ids"], active, inputs["group_id"])
        self._log_cancellation("shared_residual", _token_residual(weights, *scored, shared))

    def _transform(self, weights, advantages, group_ids, mask):
        if self.args.group_transform == "min_replace":
            return min_replace(weights, group_ids, mask)
        return advantage_orthogonal(weights, advantages, group_ids, mask)

    def _log_cancellation(self, name: str, value: torch.Tensor | float) -> None:
        value = torch.as_tensor(value, dtype=torch.float32, device=self.accelerator.device)
        self._metrics["train"][f"cancellation/{name}"].append(self.accelerator.gather(value).mean().item())

    def _clip_grad_norm(self, model):
        norm = super()._clip_grad_norm(model)
        if self.args.max_grad_norm:
            self._log_cancellation("grad_clipped", float(norm > self.args.max_grad_norm))
        return norm


def _scalar(value) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim == 0


def _take(value, index: torch.Tensor):
    if value is None:
        return None
    return value[index.to(value.device)] if isinstance(value, torch.Tensor) else [value[i] for i in index.tolist()]


def _of_rollouts(batch: dict) -> torch.Tensor:
    """One advantage per rollout (B,): what mini-batches are arranged by, also where each token has its own."""
    if batch["advantages"].dim() == 1:
        return batch["advantages"]
    return group_advantages(batch["rewards"].nan_to_num(), batch["group_id"], "dr_grpo")


def _token_residual(weights, advantages, group_ids, active) -> torch.Tensor:
    """Mean over (group, position) of |sum w A| / sum |w A|, over real tokens whose advantage is not 0."""
    advantages = (advantages if advantages.dim() == 2 else advantages[:, None]).expand_as(weights)
    labels = group_ids[:, None] * weights.size(1) + torch.arange(weights.size(1), device=weights.device)
    chosen = active & (advantages != 0)
    if not chosen.any():
        return weights.new_zeros(())
    return cancellation_residual(weights[chosen], advantages[chosen], labels[chosen]).mean()
