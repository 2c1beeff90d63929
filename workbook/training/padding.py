"""Whether padding would change what a trainer computes: TRL pads prompts on the left, and names no positions."""

from __future__ import annotations

import torch

from workbook.rollouts.scoring import padding_error, tokenize_prompts


def padding_changes(model: torch.nn.Module, tokenizer, dataset, chat_template_kwargs: dict | None = None) -> bool:
    """Whether prompts differ in length, and padding changes the logits of this model when it is not told positions.

    RWKV and decoders of BART ignore padding, and GPT-2 counts it. The prompts are looked at for such models only; what
    can't be tokenized here counts as unequal.  A model that can't do with token ids and their mask is left to training.
    """
    try:
        if padding_error(model, positions=False) <= 1:
            return False
    except Exception:
        return False
    try:
        prompts = list(dataset["prompt"])
        return len({len(row) for row in tokenize_prompts(tokenizer, prompts, chat_template_kwargs)}) > 1
    except Exception:
        return True
