"""Owns add_rmsnorm_quant: residual add, RMSNorm and FP8 quantisation of a layer's input, as one torch op."""

from __future__ import annotations

from typing import NamedTuple

import torch

from sglang_glm53.fusion import Declined
from sglang_glm53.kernels import backend, jit
from sglang_glm53.kernels.cards import CARDS
from sglang_glm53.kernels.fp8 import FP8, GROUP, ScaleLayout, empty_scales, quantise_into

CARD = CARDS["add_rmsnorm_quant"]
MAX_HIDDEN = 8192
ROW_ALIGNMENT = 16


class Normed(NamedTuple):
    """y: [M, H] in x's dtype, or None. q: [M, H] e4m3 and scale: in the asked layout, or both None."""

    y: torch.Tensor | None
    q: torch.Tensor | None
    scale: torch.Tensor | None


def _is_aligned(tensor: torch.Tensor) -> bool:
    rows = tensor.stride(0) * tensor.element_size() if tensor.dim() == 2 and tensor.shape[0] > 1 else 0
    return (tensor.data_ptr() | rows) % ROW_ALIGNMENT == 0


def declines(x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor) -> Declined | None:
    """Why the kernel does not take this call, one of CARD.declines; None when it does."""
    tensors = [x, weight] if residual is None else [x, weight, residual]
    hidden = x.shape[-1]
    held = {
        "dtype": all(tensor.dtype == torch.bfloat16 for tensor in tensors),
        "hidden": 0 < hidden <= MAX_HIDDEN and hidden % GROUP == 0,
        "columns": all(tensor.stride(-1) == 1 for tensor in tensors),
        "alignment": all(_is_aligned(tensor) for tensor in tensors),
        "device": backend.is_supported(x.device),
    }
    return next((Declined(CARD.declines[key]) for key, holds in held.items() if not holds), None)


def add_rmsnorm_quant(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    layout: ScaleLayout | None = None,
    *,
    with_y: bool = True,
    how: str = "",
) -> Normed:
    """Add x to residual in place, normalise, and quantise for the next FP8 products.

    x, residual: [M, H]; weight: [H]. layout: how the scales are stored; None leaves q and scale out.
    Without a residual y is the norm of x. What the kernel declines runs in torch, there also in float32.
    how: the implementation, of a caller that has asked declines() itself; chosen here when empty.
    Raises ValueError when the shapes or devices disagree, when neither y nor q is asked for, when q is
    asked for and H is no multiple of 128, and when GLM53_KERNELS chooses what cannot run on x's device.
    """
    _check(x, residual, weight, layout, with_y)
    rows, hidden = x.shape
    y = torch.empty(rows, hidden, dtype=x.dtype, device=x.device) if with_y else None
    q = scale = None
    if layout is not None:
        q = torch.empty(rows, hidden, dtype=FP8, device=x.device)
        scale = empty_scales(rows, hidden, layout, x.device)
    if rows:
        torch.ops.glm53.add_rmsnorm_quant(x, residual, weight, y, q, scale, eps, how)
    return Normed(y, q, scale)


def _check(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    layout: ScaleLayout | None,
    with_y: bool,
) -> None:
    if x.dim() != 2:
        raise ValueError(f"x has shape {tuple(x.shape)}: give it as [rows, hidden]")
    if residual is not None and residual.shape != x.shape:
        raise ValueError(f"residual has shape {tuple(residual.shape)}, x {tuple(x.shape)}: give equal ones")
    if weight.shape != x.shape[1:]:
        raise ValueError(f"weight has shape {tuple(weight.shape)}: give it {x.shape[1]} values")
    for name, tensor in (("residual", residual), ("weight", weight)):
        if tensor is not None and tensor.device != x.device:
            raise ValueError(f"{name} is on {tensor.device}, x on {x.device}: move it there")
    if layout is None and not with_y:
        raise ValueError("neither y nor q is asked for: give a layout or leave with_y on")
    if layout is not None and x.shape[1] % GROUP:
        raise ValueError(f"x has {x.shape[1]} channels: groups of {GROUP} need a multiple of {GROUP}")


def _run(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    y: torch.Tensor | None,
    q: torch.Tensor | None,
    scale: torch.Tensor | None,
    eps: float,
    how: str,
) -> None:
    how = how or backend.choose(CARD.stem, x.device, declines(x, residual, weight))
    if how == "torch":
        _run_torch(x, residual, weight, y, q, scale, eps)
    else:
        module = jit.cuda_module(CARD.stem) if how == "cuda" else jit.emulated_module(CARD.stem)
        module.add_rmsnorm_quant(x, residual, weight, y, q, scale, eps)


def _run_torch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    y: torch.Tensor | None,
    q: torch.Tensor | None,
    scale: torch.Tensor | None,
    eps: float,
) -> None:
    total = x.float()
    if residual is not None:
        total = total + residual.float()
        residual.copy_(total)
    inverse = torch.rsqrt(total.square().mean(-1, keepdim=True) + eps)
    normed = (total * inverse * weight.float()).to(x.dtype)
    if y is not None:
        y.copy_(normed)
    if q is not None and scale is not None:
        quantise_into(normed, q, scale)


backend.register(
    "add_rmsnorm_quant(Tensor x, Tensor(a!)? residual, Tensor weight, Tensor(b!)? y, Tensor(c!)? q, "
    "Tensor(d!)? scale, float eps, str how) -> ()",
    _run,
)
