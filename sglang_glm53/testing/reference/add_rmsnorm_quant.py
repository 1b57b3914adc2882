"""Owns the reference of add_rmsnorm_quant: the norm in FP32; reference/fp8.py has the quantiser."""

from __future__ import annotations

import torch


def norm(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, residual [M, H], weight [H] -> residual + x and its norm times weight, both [M, H] float32."""
    total = x.float() if residual is None else x.float() + residual.float()
    return total, total / (total.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.float()
