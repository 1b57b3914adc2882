"""Owns FP8 block quantisation of weights: e4m3 values and one FP32 scale for each 128x128 block."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from sglang_glm53.geometry import FP8_BLOCK, FP8_MAX

# A block of zeros has no scale of its own; one finite, positive scale represents it, and loaders reject 0.
ZERO_BLOCK_SCALE = 1.0


def _spread(scales: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """A scale for each element, [rows, columns], from a scale for each block."""
    wide = scales.repeat_interleave(FP8_BLOCK[0], 0).repeat_interleave(FP8_BLOCK[1], 1)
    return wide[: shape[0], : shape[1]]


def quantise_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise a weight [rows, columns] block by block.

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
    return values.to(torch.float8_e4m3fn), scales


def dequantise_blocks(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The bf16 weight that e4m3 values and their block scales stand for: one FP32 product, rounded once.

    Source: SGLang 0.5.23, layers/quantization/fp8_utils.py, block_quant_dequant.
    """
    return (values.float() * _spread(scales, values.shape)).bfloat16()
