"""Owns the reference of FP8 activations: SGLang's quantiser, in its order of operations."""

from __future__ import annotations

import torch


def quantise(y: torch.Tensor, ue8m0: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """y [M, H] bf16 -> q's bytes [M, H] uint8, and scales [M, H/128]: float32, or exponents as int32.

    In the order of operations of SGLang 0.5.23, kernels/jit/csrc/gemm/per_token_group_quant.cuh QuantTrait,
    compiled with --use_fast_math: 448 / amax is 448 times a reciprocal, and that is 0 where it is denormal.
    """
    group = y.float().view(y.shape[0], -1, 128)
    magnitude = torch.where(group.isnan(), 0.0, group.abs()).amax(-1, keepdim=True)
    amax = torch.maximum(magnitude, torch.tensor(1e-10))
    scale = amax * torch.tensor(1.0 / 448.0)
    if ue8m0:
        bits = scale.view(torch.int32)
        exponent = bits // 2**23 + (bits % 2**23 > 0)
        scale, factor = exponent, ((254 - exponent) * 2**23).to(torch.int32).view(torch.float32)
    else:
        factor = torch.where(amax > 2.0**126, 0.0, 448.0 * amax.reciprocal())
    scaled = (group * factor).view(y.shape)
    q = scaled.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).view(torch.uint8)
    return torch.where(scaled.isnan(), 0x7F, q).to(torch.uint8), scale.squeeze(-1)
