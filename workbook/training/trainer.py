"""CancellationTrainer: TRL's GRPOTrainer with the smallest overrides that steer token-gradient
cancellation.

There is no training loop in this file, nor in TRL's. The loop is `_inner_training_loop` of
`transformers.Trainer`, and methods of TRL's GRPOTrainer, which it calls, do what GRPO does. (The
same steps as one page of code: `workbook.training.loop`.) Six of these methods are overridden here,
marked by an arrow; each calls TRL's own and changes what goes in or comes out. During one
generation batch they are called in this order:

        for each micro-batch:                         transformers: _inner_training_loop
          training_step
    ->      _prepare_inputs                           which rollouts make a mini-batch
    ->        _generate_and_score_completions         once a generation batch: our advantages
                _generate                             samples the completions
    ->          _get_per_token_logps_and_entropies    of the policy that sampled, where needed
    ->          _calculate_rewards                    keeps the rewards of each function
            compute_loss
    ->        _compute_loss                           reads what each token weighs in the loss
    ->          _get_per_token_logps_and_entropies    puts w A in the advantages' place
            backward
        after the last micro-batch of a step:
    ->    _clip_grad_norm                             says how often it clips
          optimizer.step

With every field of [`CancellationConfig`] at its default this *is* GRPOTrainer, bit for bit.
Departures, each behind its field:

1. `batching`: `_prepare_inputs` replaces TRL's shuffle of the generation batch by
   `theory.batching.minibatch_order`. On several processes the order is global: rollouts are
   exchanged, so that each optimizer mini-batch keeps the promise.
2. `advantage_estimator`: advantages are computed from the rewards by `theory.advantages`, or by a
   credit rule (`training.credit_calls`), which may give each token its own, (B, T), and may be a
   function of one's own. `baseline_share` subtracts a share of the group's mean reward alone.
3. `group_transform` and `clipping="symmetric"`: the loss becomes `-(w A).detach() * log pi`, with
   `w` from `theory.weights`. No copy of TRL's loss: TRL reads the advantages after the
   log-probabilities, so `_get_per_token_logps_and_entropies` writes `w A` in the advantages' place
   and drops the old log-probabilities, which makes TRL's own ratio 1 with gradient grad log pi.
   vLLM's correction goes into w before the transform, and is 1 in what TRL multiplies afterwards.
   Advantages per token under a sequence ratio go the same way, as TRL would spread them over the
   rollout: s_i A_it on each token, GSPO-token's gradient (arXiv 2507.18071, section 4.3).
4. `trim_padding`: that same method scores rollouts of about one length together, cuts columns that
   are padding in all of a chunk, and pads the result back.
5. `fp32_adapters`: LoRA weights that TRL's constructor cast to bfloat16 are cast back to float32.
   With vLLM, the base that adapters are merged into at each sync is put back
   (`meter.restore_base_after_sync`).
6. Extra metrics under `cancellation/`, and extra columns `group_id`, `rewards` and `rollout` in a
   batch. What a token weighs is read from the graph of the loss that is trained; with
   `measure_cancellation`, so is how much cancels inside and across optimizer steps
   (`training.meter`), and with `record_tokens`, what each token's push was and what the step did to
   it (`training.token_record`). The model is not entered a second time for it, so that measuring
   cannot train. Settings that would make an intervention a silent no-op are refused
   (`training.checks`).
"""

import copy
import warnings

import torch
import torch.nn.functional as F
from peft import PeftModel
from trl import GRPOTrainer
from trl.trainer import grpo_trainer

from workbook.messages import InvalidValue
from workbook.policies.load import recast_adapters
from workbook.theory.advantages import group_advantages, partial_baseline, shared_places
from workbook.theory.batching import LARGE_PRIME, minibatch_order
from workbook.theory.credit import Rule
from workbook.theory.weights import cancellation_residual, ratio_weights, transform_weights
from workbook.training import meter
from workbook.training.checks import problems, reweights
from workbook.training.config import CancellationConfig
from workbook.training.contract import missing_hooks
from workbook.training.credit_calls import CreditCall, TrainerCredit, credit_call
from workbook.training.token_record import StepRecord

# Batch columns that are padded on the left; needed only to exchange rollouts between processes.
LEFT_PADDED = ("prompt_ids", "prompt_mask")


class CancellationTrainer(GRPOTrainer):
    """GRPOTrainer with batching strategies, group-weight transforms, symmetric clipping, estimators
    and trimming.

    Takes GRPOTrainer's arguments; `args` is a [`CancellationConfig`].

    Args:
        advantage_estimator: a credit rule, `rule(batch: CreditBatch) -> Tensor` of shape (B,) or
            (B, T); `args` then leaves the field of that name at its default.

    Raises:
        InvalidValue: if settings would break an intervention or make it a silent no-op, one
            sentence for each; its field is that of the first.
    """

    _tag_names = ("trl", "grpo", "cancellation")

    def __init__(
        self,
        model,
        reward_funcs=None,
        args: CancellationConfig | None = None,
        *,
        advantage_estimator: Rule | None = None,
        **kwargs,
    ):
        args = CancellationConfig("grpo-cancellation") if args is None else args
        args, self.credit_rule = _with_rule(args, advantage_estimator)
        missing = list(missing_hooks(CancellationTrainer))
        if missing:
            raise ValueError(" ".join(missing))
        super().__init__(model, reward_funcs, args=args, **kwargs)
        faults = problems(args, **meter.model_facts(self), rule=self.credit_rule)
        errors = [fault for fault in faults if fault.severity == "error"]
        if errors:
            raise errors[0].refusal(" ".join(error.sentence for error in errors))
        for fault in faults:
            warnings.warn(fault.sentence, stacklevel=2)
        if args.fp32_adapters:
            recast_adapters(self.model)
        if args.use_vllm and isinstance(self.model, PeftModel):
            self.vllm_generation.sync_weights = meter.restore_base_after_sync(
                self.model, self.vllm_generation.sync_weights
            )
        # rewards of the latest generation batch, (rollouts of all processes, reward functions)
        self._rewards_per_func = None
        self._rule_credit = TrainerCredit(self, self.credit_rule) if self.credit_rule else None

        # While a loss is computed: its batch, as TRL is to read it; the call that gave its
        # log-probabilities, with what it gave; its advantages (B,) or (B, T) before reweighting.
        self._loss_inputs = None
        self._scored = None
        self._raw_advantages = None

        self._meter = meter.CancellationMeter(self) if args.measure_cancellation else None
        self._record = StepRecord(self, args.record_tokens) if args.record_tokens else None
        for measure in filter(None, (self._meter, self._record)):
            self.add_callback(measure)

    # -- rollouts: group labels and advantages -------------------------------------------------

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        self._rewards_per_func = super()._calculate_rewards(
            inputs, prompts, completions, completion_ids_list
        )
        if self._rule_credit and self.model.training:
            self._rule_credit.take_rows(inputs)
        return self._rewards_per_func

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        if not self.model.training:
            return output

        # rewards and group labels of all processes; the batch has this process's
        columns = meter.reward_columns(self, self._rewards_per_func)
        local = len(output["advantages"])
        first = self.accelerator.process_index * local
        mine = slice(first, first + local)
        output |= {name: column[mine] for name, column in columns.items()}

        # None where TRL's advantages stay
        advantages = self._global_advantages(columns["rewards"], columns["group_id"])
        if self._rule_credit:
            # nothing has been trained yet, so the old log-probabilities are those of now
            old = output.get("old_per_token_logps")
            known = {} if old is None else {"logps": old}
            output["advantages"] = self._rule_credit.advantages(output, **known)
            advantages = self.accelerator.gather(meter.by_rollout(output).contiguous())
        elif advantages is not None:
            output["advantages"] = advantages[mine].to(output["advantages"].dtype)

        # the table of completions that TRL logs has the advantages that train
        if advantages is not None:
            for _ in range(len(advantages)):
                self._logs["advantages"].pop()
            self._logs["advantages"].extend(advantages.tolist())
        return output

    def _global_advantages(self, rewards, group_ids):
        """Advantages (B,) over every process if TRL's are to be replaced by a plain estimator's,
        else None.
        """
        estimator = self.args.advantage_estimator
        share = self.args.baseline_share
        if (estimator == "grpo" and share == 1) or self._rule_credit:
            return None
        scored = ~rewards.isnan()
        advantages = torch.zeros_like(rewards)
        if share < 1:  # scale_rewards is "none"
            advantages[scored] = partial_baseline(rewards[scored], group_ids[scored], share)
        else:
            advantages[scored] = group_advantages(rewards[scored], group_ids[scored], estimator)
        return advantages

    # -- batching: the composition of optimizer mini-batches -----------------------------------

    def _prepare_inputs(self, generation_batch):
        training = self.model.training
        generate_every = self.args.steps_per_generation * self.num_iterations
        due = self._step % generate_every == 0 or self._buffered_inputs is None
        fresh = training and due
        if training and self.args.batching != "shuffled":
            # as TRL's own method, with our order in place of its shuffle
            if fresh:
                batch = self._generate_and_score_completions(generation_batch)
                batch = grpo_trainer.split_pixel_values_by_grid(batch)
                batch = self._arrange(batch)
                parts = grpo_trainer.split_tensor_dict(batch, self.args.steps_per_generation)
                self._buffered_inputs = [
                    grpo_trainer.unsplit_pixel_values_by_grid(part) for part in parts
                ]
            inputs = self._buffered_inputs[self._step % self.args.steps_per_generation]
        else:
            inputs = super()._prepare_inputs(generation_batch)
        if fresh:
            self._log_composition()
        return inputs

    def _arrange(self, batch: dict) -> dict:
        """Reorder the generation batch so that equal contiguous parts are the strategy's optimizer
        mini-batches.
        """
        batch = self._exchange(batch)
        # Its own generator: the order depends on the seed and the step alone, also after a resume.
        seed = self.args.seed * LARGE_PRIME + self.state.global_step
        optimizer_steps = self.args.steps_per_generation // self.args.gradient_accumulation_steps
        order = minibatch_order(
            self.args.batching,
            batch["group_id"].cpu(),
            meter.by_rollout(batch).cpu(),
            optimizer_steps,
            torch.Generator().manual_seed(seed),
        )
        # Micro-batch k of all processes together is order[k]; this process takes its slice of each.
        shape = (
            self.args.steps_per_generation,
            self.accelerator.num_processes,
            self.args.per_device_train_batch_size,
        )
        mine = order.view(shape)[:, self.accelerator.process_index].reshape(-1)
        return {key: meter.take(value, mine) for key, value in batch.items()}

    def _exchange(self, batch: dict) -> dict:
        """Every process's rollouts, padded to one width; the batch itself on a single process."""
        if self.accelerator.num_processes == 1:
            return batch
        gathered = {}
        for key, value in batch.items():
            if value is None or meter.is_scalar(value):
                gathered[key] = value
                continue
            if not isinstance(value, torch.Tensor):
                column = (
                    f"the batch column {key!r} between processes, since it is a"
                    f" {type(value).__name__}"
                )
                advice = "use batching='shuffled', or one process."
                raise InvalidValue(
                    "batching",
                    self.args.batching,
                    "'shuffled' with several processes",
                    f"batching={self.args.batching!r} can't exchange {column} and not a tensor;"
                    f" {advice}",
                )
            if value.ndim > 1:
                pad = self._tokenizer.pad_token_id if key.endswith("_ids") else 0
                value = self.accelerator.pad_across_processes(
                    value, dim=1, pad_index=pad, pad_first=key in LEFT_PADDED
                )
            gathered[key] = self.accelerator.gather(value.contiguous())
        return gathered

    def _log_composition(self) -> None:
        """Log the residual of a group's advantages in an optimizer mini-batch: 0 = they cancel, 1 =
        one sign only.
        """
        accum = self.args.gradient_accumulation_steps
        residuals = []
        # the micro-batches of one optimizer step at a time, over all processes
        for start in range(0, len(self._buffered_inputs), accum):
            window = self._buffered_inputs[start : start + accum]
            advantages = torch.cat([meter.by_rollout(part) for part in window])
            advantages = self.accelerator.gather(advantages)
            group_ids = self.accelerator.gather(torch.cat([part["group_id"] for part in window]))
            signed = advantages != 0
            if not signed.any():
                continue
            # weights of 1: what composition alone leaves
            equal = torch.ones_like(advantages[signed])
            residual = cancellation_residual(equal, advantages[signed], group_ids[signed])
            residuals.append(residual.mean())
        if residuals:
            self._log_cancellation("batch_residual", torch.stack(residuals).mean())

    # -- loss: the surrogate's weights, and what is read from its graph ------------------------

    def _compute_loss(self, model, inputs):
        reweighted = reweights(self.args, self.credit_rule)
        each_step = self.credit_rule is not None and self.credit_rule.each_step
        recorded = self._record is not None and self._record.due
        if not self.model.training or not (reweighted or each_step or self._meter or recorded):
            return super()._compute_loss(model, inputs)

        level = self.importance_sampling_level
        self._loss_inputs = dict(inputs)  # a copy, in which TRL reads what we write
        self._raw_advantages = inputs["advantages"]
        try:
            loss = super()._compute_loss(model, self._loss_inputs)
            if loss.requires_grad:
                self._measure(loss, model, inputs)
            return loss
        finally:
            self._loss_inputs = None
            self._scored = None
            self._raw_advantages = None
            self.importance_sampling_level = level

    def _measure(self, loss: torch.Tensor, model, inputs: dict) -> None:
        """Log the residual that the loss's own weights leave on a token that a group shares: 0 with
        equal weights.
        """
        recorded = self._record is not None and self._record.due
        logged = self._meter is not None or reweights(self.args, self.credit_rule)
        if not (recorded or logged):
            return
        # -d loss / d logp, from the graph that is trained; the KL's pull is nobody's push
        call, outputs = self._scored
        logps = outputs[0]  # (B, T), with the graph of this loss
        if self.beta:
            loss = meter.loss_without_kl(
                GRPOTrainer._compute_loss, self, model, self._loss_inputs, outputs
            )
        pushes = meter.token_pushes(loss, logps)
        advantages = meter.by_token(self._raw_advantages).expand_as(pushes)
        if recorded:
            self._record.add(inputs, call, outputs, pushes, advantages)
        if not logged:
            return

        # tokens that would push if nothing stopped them, and the share that something stopped
        group_ids = inputs["group_id"]
        active = meter.loss_mask(inputs).bool()  # (B, T)
        pushing = active & (advantages != 0)
        clipped = (pushes[pushing] == 0).float().mean() if pushing.any() else 0.0
        self._log_cancellation("clipped", clipped)

        # what is left of a place's pushes: at each position of a group, and where all of the group
        # have the same token there
        self._log_cancellation("weight_residual", meter.mean_residual(pushes, group_ids, pushing))
        shared = pushing & shared_places(inputs["completion_ids"], active, group_ids)
        self._log_cancellation("shared_residual", meter.mean_residual(pushes, group_ids, shared))
        if self._meter:
            self._meter.add(model, logps, pushes, advantages)

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, **kwargs
    ):
        # images come as keyword arguments, which are not cut
        has_images = any(value is not None for key, value in kwargs.items() if "compute" not in key)
        trim = self.args.trim_padding and not has_images
        score = self._trimmed if trim else super()._get_per_token_logps_and_entropies
        outputs = score(
            model, input_ids, attention_mask, logits_to_keep, batch_size=batch_size, **kwargs
        )
        if self._loss_inputs is not None:
            # TRL reads the advantages after this call: what is put there is what trains
            call = ((input_ids, attention_mask, logits_to_keep), kwargs)
            self._scored = call, outputs
            if self.credit_rule and self.credit_rule.each_step:
                micro_batch = self._step % self.args.gradient_accumulation_steps + 1
                known = {"logps": outputs[0].detach(), "entropies": outputs[1].detach()}
                self._raw_advantages = self._rule_credit.advantages(
                    self._loss_inputs, micro_batch, **known
                )
                self._loss_inputs["advantages"] = self._raw_advantages
            if reweights(self.args, self.credit_rule, self._loss_inputs["advantages"]):
                self._reweight(outputs[0].detach(), self._loss_inputs)
        return outputs

    def _trimmed(self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, **kwargs):
        """TRL's log-probabilities, entropies and auxiliary loss; of each chunk of rollouts, those
        of about one length together, without the columns that none of them uses.
        """
        by_length = attention_mask.sum(1).argsort(stable=True)
        chunks = []
        for rows in by_length.split(batch_size or len(by_length)):
            ids = input_ids[rows]
            mask = attention_mask[rows]
            used = mask.any(dim=0).nonzero().squeeze(1)
            # one column of the prompt and one of the completion stay in any case
            first_completion = ids.size(1) - logits_to_keep
            start = min(int(used[0]), first_completion - 1)
            stop = max(int(used[-1]) + 1, first_completion + 1)
            cut = ids.size(1) - stop
            scored = super()._get_per_token_logps_and_entropies(
                model, ids[:, start:stop], mask[:, start:stop], logits_to_keep - cut, **kwargs
            )
            # (b, T) again; the auxiliary loss is a number
            chunks.append([F.pad(x, (0, cut)) if x is not None and x.dim() else x for x in scored])

        back = by_length.argsort()
        logps, entropies, aux = (
            [x for x in column if x is not None] for column in zip(*chunks, strict=True)
        )
        return (
            torch.cat(logps)[back] if logps else None,
            torch.cat(entropies)[back] if entropies else None,
            torch.stack(aux).mean() if aux else None,
        )

    @torch.no_grad()
    def _reweight(self, logps: torch.Tensor, inputs: dict) -> None:
        """Put `w * A` in the advantages' place, w by clipping (D3), a sequence ratio, or a group
        transform (D6, D7).
        """
        args = self.args
        level = self.importance_sampling_level
        advantages = inputs["advantages"]  # (B,) or (B, T)
        mask = meter.loss_mask(inputs)
        # without old log-probabilities those of now count as old, as in TRL
        old = inputs.get("old_per_token_logps")
        old = logps if old is None else old
        clip = (self.epsilon_low, self.epsilon_high)
        clamp = args.group_transform is not None and args.transform_on == "clamped_ratios"
        # (B, T)
        weights = ratio_weights(logps, old, mask, advantages, level, clip, args.clipping, clamp)
        per_rollout = level == "sequence" and advantages.dim() == 1

        if self.use_vllm and self.vllm_importance_sampling_correction:
            correction = inputs["importance_sampling_ratio"]  # (B, T) or (B, 1)
            weights = weights * correction
            per_rollout = per_rollout and correction.size(1) == 1
            inputs["importance_sampling_ratio"] = torch.ones_like(correction)

        if args.group_transform:
            weights = transform_weights(
                weights, args.group_transform, advantages, inputs["group_id"], mask, per_rollout
            )

        # without old log-probabilities TRL's own ratio is 1
        inputs["advantages"] = weights * meter.by_token(advantages)
        inputs.pop("old_per_token_logps", None)
        if not per_rollout:  # a sequence ratio would spread each token's weight over its rollout
            self.importance_sampling_level = "token"

    def _log_cancellation(self, name: str, value: torch.Tensor | float) -> None:
        value = torch.as_tensor(value, dtype=torch.float32, device=self.accelerator.device)
        self._metrics["train"][f"cancellation/{name}"].append(
            self.accelerator.gather(value).mean().item()
        )

    def _clip_grad_norm(self, model):
        norm = super()._clip_grad_norm(model)
        if self.args.max_grad_norm:
            self._log_cancellation("grad_clipped", float(norm > self.args.max_grad_norm))
            if self._meter:
                self._meter.grad_scale = min(1.0, self.args.max_grad_norm / (float(norm) + 1e-6))
        return norm


def _with_rule(
    args: CancellationConfig, rule: Rule | None
) -> tuple[CancellationConfig, CreditCall | None]:
    """Return the config and its credit rule; for a function, the config stores its name."""
    if rule is None:
        return args, credit_call(args.advantage_estimator)
    if args.advantage_estimator != "grpo":
        twice = f"as an argument and as args.advantage_estimator={args.advantage_estimator!r}"
        raise InvalidValue(
            "advantage_estimator",
            args.advantage_estimator,
            "'grpo' beside a rule that is given as an argument",
            f"advantage_estimator is given twice, {twice}; leave the config's at 'grpo'.",
        )
    call = credit_call(rule)
    args = copy.copy(args)  # the caller's config stays as it is
    args.advantage_estimator = call.name if call else rule  # a plain estimator's name is no rule
    return args, call
