"""A trial of a model on a few tokens: whether it is causal, leaves its quantized weights alone, and heeds padding."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from workbook.policies.copies import evaluating

TRIAL = 6  # tokens of a model's trial


def padding_error(model: nn.Module, positions: bool = True) -> float:
    """Error of a model's logits under left padding, in tolerances of rounding: more than 1 if padding changes it.

    RWKV and decoders of BART ignore padding, and eager attention in float64 yields NaN behind it. positions: whether
    the model is told them; GPT-2 counts padding otherwise. Found by a trial on a few tokens, once for each model;
    ValueError as in `try_model`.
    """
    known = vars(model).setdefault("_padding_errors", {})  # on the model, so that a copy has it, too
    if positions not in known:
        known[positions] = try_model(model, positions)
    return known[positions]


def try_model(model: nn.Module, positions: bool = True) -> float:
    """Compute a few tokens with and without padding; returns the error of `padding_error`.

    Raises ValueError for a model in which a token's logits depend on later tokens, and for one whose forward pass
    writes into its frozen quantized weights; what the model itself raises for a pass that it cannot do goes through.
    """
    vocabulary = model.config.get_text_config().vocab_size
    ids = (11 + torch.arange(TRIAL, device=model.device)) % vocabulary
    short, padding = TRIAL - 2, ids.new_zeros(2)
    packed = [(p, p._version) for p in model.parameters() if not p.is_floating_point()]
    with torch.no_grad(), evaluating(model):
        alone = _logits(model, ids[None, :short], torch.ones_like(ids[None, :short]), positions)[0]
        mask = torch.ones(2, TRIAL, dtype=torch.long, device=ids.device)
        mask[1, :2] = 0
        both = _logits(model, torch.stack([ids, torch.cat([padding, ids[:short]])]), mask, positions)
    now = {id(p) for p in model.parameters()}
    if any(id(p) not in now or p._version != version for p, version in packed):
        raise ValueError(f"{type(model).__name__} changes its quantized weights in a forward pass.")
    tolerance = 1e-3 if alone.dtype in (torch.float32, torch.float64) else 5e-2
    tolerance *= float(alone.max() - alone.min())
    if (both[0, :short] - alone).abs().max() > tolerance:
        kind = type(model).__name__
        raise ValueError(f"{kind} is no causal language model: its logits for a token depend on later tokens.")
    return float((both[1, 2:] - alone).abs().max()) / tolerance


def _logits(
    model: nn.Module, ids: Int[Tensor, "B L"], mask: Int[Tensor, "B L"], positions: bool
) -> Float[Tensor, "B L V"]:
    given = {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)} if positions else {}
    return model(input_ids=ids, attention_mask=mask, use_cache=False, **given).logits
