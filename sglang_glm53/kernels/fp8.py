"""Owns FP8 activations in torch: one scale for 128 channels, in the three layouts that GEMMs read."""

from __future__ import annotations

import enum

import torch

from sglang_glm53.geometry import FP8_MAX

GROUP = 128
AMAX_FLOOR = 1e-10
FP8 = torch.float8_e4m3fn
# The reciprocal of a larger number is denormal, which SGLang's quantiser takes for 0.
_LARGEST_DIVISOR = 2.0**126
_NAN = 0x7F


class ScaleLayout(enum.Enum):
    """How a GEMM wants the scales.

    ROW_MAJOR: [M, G] float32, contiguous. COLUMN_MAJOR: [M, G] float32, strides (1, M rounded up to 4), as
    TMA reads them. PACKED_UE8M0: [M, ceil(G/4)] int32, strides (1, M rounded up to 4), four exponents each.
    Source: SGLang 0.5.23, kernels/ops/quantization/fp8_kernel.py
    create_per_token_group_quant_fp8_output_scale.
    """

    ROW_MAJOR = "row-major"
    COLUMN_MAJOR = "column-major"
    PACKED_UE8M0 = "packed UE8M0"


def empty_scales(rows: int, channels: int, layout: ScaleLayout, device: torch.device) -> torch.Tensor:
    """Scales for [rows, channels], uninitialised."""
    groups = channels // GROUP
    if layout is ScaleLayout.ROW_MAJOR:
        return torch.empty(rows, groups, dtype=torch.float32, device=device)
    packed = layout is ScaleLayout.PACKED_UE8M0
    columns, dtype = ((groups + 3) // 4, torch.int32) if packed else (groups, torch.float32)
    return torch.empty(columns, (rows + 3) // 4 * 4, dtype=dtype, device=device).t()[:rows]


def quantise_into(values: torch.Tensor, q: torch.Tensor, scale: torch.Tensor) -> None:
    """Quantise values [M, C], bf16 or float32, into q [M, C] e4m3 and scale, whose dtype tells its kind.

    Source: SGLang 0.5.23, kernels/jit/csrc/gemm/per_token_group_quant.cuh QuantTrait.
    """
    groups = values.float().unflatten(-1, (-1, GROUP))  # type: ignore[no-untyped-call]
    amax = groups.abs().nan_to_num(nan=0.0, posinf=torch.inf).amax(-1).clamp(min=AMAX_FLOOR)
    raw = amax * (1.0 / FP8_MAX)
    if scale.dtype == torch.int32:
        bits = raw.view(torch.int32)
        exponents = (bits >> 23) + ((bits & 0x7FFFFF) != 0)
        multiplier = ((254 - exponents) << 23).view(torch.float32)
        scale.copy_(_pack(exponents))
    else:
        multiplier = torch.where(amax > _LARGEST_DIVISOR, 0.0, FP8_MAX * amax.reciprocal())
        scale.copy_(raw)
    scaled = (groups * multiplier.unsqueeze(-1)).flatten(-2)
    rounded = scaled.clamp(-FP8_MAX, FP8_MAX).to(FP8).view(torch.uint8)
    q.view(torch.uint8).copy_(torch.where(scaled.isnan(), _NAN, rounded))


def _pack(exponents: torch.Tensor) -> torch.Tensor:
    """[M, G] exponents to [M, ceil(G/4)] int32, the lowest group in the lowest byte, zeros past the last."""
    padding = -exponents.shape[-1] % 4
    return torch.nn.functional.pad(exponents.to(torch.uint8), (0, padding)).view(torch.int32)
