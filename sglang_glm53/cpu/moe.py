"""The routed experts in torch: one grouped matrix product per projection, no loop over tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from sglang.srt.layers.moe.token_dispatcher.standard import StandardCombineInput, StandardDispatchOutput


def _as_is(x: torch.Tensor) -> torch.Tensor:
    return x


def routed_experts(
    x: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    as_served: Callable[[torch.Tensor], torch.Tensor] = _as_is,
) -> torch.Tensor:
    """The weighted sum of each token's experts.

    x: [tokens, hidden]; topk_weights, topk_ids: [tokens, k], an id outside [0, experts) is not ours and adds
    nothing; w13: [experts, 2 * intermediate, hidden], gate rows first; w2: [experts, hidden, intermediate].
    as_served: what a projection sees of its input, in the weights' dtype.
    Returns [tokens, hidden] in x's dtype; sums are FP32.
    """
    experts = w13.shape[0]
    ids = topk_ids.flatten()
    ours = ((ids >= 0) & (ids < experts)).nonzero()[:, 0]
    order = ours[ids[ours].argsort(stable=True)]
    token = order // topk_ids.shape[1]
    ends = torch.bincount(ids[order], minlength=experts).cumsum(0).to(torch.int32)
    # Rounded to x's dtype where a GPU writes an intermediate to memory.
    gate, up = F.grouped_mm(as_served(x)[token], w13.transpose(1, 2), offs=ends).to(x.dtype).chunk(2, dim=-1)
    y = F.grouped_mm(as_served(F.silu(gate) * up), w2.transpose(1, 2), offs=ends).to(x.dtype)
    out = torch.zeros(x.shape, dtype=torch.float32)
    out.index_add_(0, token, y.float() * topk_weights.flatten()[order].float()[:, None])
    return out.to(x.dtype)


def unquantised_experts(
    self: Any, layer: Any, dispatch_output: StandardDispatchOutput
) -> StandardCombineInput:
    """SGLang's unquantised expert method on the reference platform (layers/quantization/unquant.py)."""
    weights, ids, _ = dispatch_output.topk_output
    out = routed_experts(dispatch_output.hidden_states, weights, ids, layer.w13_weight, layer.w2_weight)
    return StandardCombineInput(hidden_states=out)
