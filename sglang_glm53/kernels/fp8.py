"""Owns FP8 in torch: activations, one scale for 128 channels in the layouts of GEMMs; weights, by blocks."""

from __future__ import annotations

import enum

import torch
import torch.nn.functional as F

from sglang_glm53.geometry import FP8_BLOCK, FP8_MAX

GROUP = 128
AMAX_FLOOR = 1e-10
FP8 = torch.float8_e4m3fn
# The reciprocal of a larger number is denormal, which SGLang's quantiser takes for 0.
_LARGEST_DIVISOR = 2.0**126
_NAN = 0x7F
# A block of zeros has no scale of its own; one finite, positive scale represents it, and loaders reject 0.
ZERO_BLOCK_SCALE = 1.0


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
    """Quantise values [..., C], bf16 or float32, into q, e4m3 of that shape, and scale.

    scale: [..., C/128] float32, or packed as int32 with M rows; its dtype tells its kind.
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
    return F.pad(exponents.to(torch.uint8), (0, padding)).view(torch.int32)


def plain_scales(scale: torch.Tensor) -> torch.Tensor:
    """The float32 scales, [..., G], of any layout; packed ones with the unused groups of the last word."""
    if scale.dtype == torch.float32:
        return scale
    return (scale.contiguous().view(torch.uint8).int() << 23).view(torch.float32)


def dequantise(q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The float32 values, [..., C], of what quantise_into gives."""
    groups = q.float().unflatten(-1, (-1, GROUP))  # type: ignore[no-untyped-call]
    values: torch.Tensor = groups * plain_scales(scale)[..., : groups.shape[-2], None]
    return values.flatten(-2)


def quantise_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise a weight [rows, columns] block by block of 128x128.

    Returns e4m3 values of the same shape and FP32 scales [ceil(rows/128), ceil(columns/128)], each the
    block's largest magnitude over 448. The last blocks may be partial: kv_a_proj_with_mqa has 576 rows.
    """
    rows, columns = weight.shape
    tall, wide = (-(-size // block) for size, block in zip(weight.shape, FP8_BLOCK, strict=True))
    padded = F.pad(weight.float(), (0, wide * FP8_BLOCK[1] - columns, 0, tall * FP8_BLOCK[0] - rows))
    largest = padded.abs().view(tall, FP8_BLOCK[0], wide, FP8_BLOCK[1]).amax(dim=(1, 3))
    scales = torch.where(largest > 0, largest / FP8_MAX, ZERO_BLOCK_SCALE)
    # The division may land a rounding error above 448, where e4m3 has no value.
    values = (weight.float() / _spread(scales, weight.shape)).clamp(-FP8_MAX, FP8_MAX)
    return values.to(FP8), scales


def dequantise_blocks(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The float32 values of weights [..., n, k] with block scales [..., ceil(n / 128), ceil(k / 128)].

    Rounded to bf16 they are those of SGLang 0.5.23's fp8_utils.block_quant_dequant.
    """
    return weight.float() * _spread(scale.float(), weight.shape)


def _spread(scales: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """A scale for each element, [..., rows, columns], from a scale for each block."""
    tall = scales.repeat_interleave(FP8_BLOCK[0], -2)[..., : shape[-2], :]
    return tall.repeat_interleave(FP8_BLOCK[1], -1)[..., : shape[-1]]
