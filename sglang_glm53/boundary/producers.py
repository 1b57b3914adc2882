"""Owns the FP8 form of a norm's output: the projections that take it, the kernels that make it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.batch_invariant_ops import is_batch_invariant_mode_enabled
from sglang.srt.layers import deep_gemm_wrapper
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.quantization.fp8 import Fp8LinearMethod
from sglang.srt.layers.quantization.fp8_utils import (
    deepgemm_w8a8_block_fp8_linear_with_fallback,
    triton_w8a8_block_fp8_linear,
)
from sglang.srt.runtime_context import get_platform

from sglang_glm53.fusion import Declined
from sglang_glm53.geometry import FP8_BLOCK
from sglang_glm53.kernels import add_rmsnorm_quant, backend
from sglang_glm53.kernels.fp8 import FP8, GROUP, ScaleLayout, empty_scales, quantise_into

# What FlashInfer 0.7.2's kernel takes (norm/__init__.py, fused_add_rmsnorm_fp8_block_quant).
FLASHINFER_MULTIPLE, FLASHINFER_MAX_HIDDEN = 256, 8192


@dataclass(frozen=True)
class Quantised:
    """A tensor in FP8. q: [rows, channels] e4m3; scales: one for 128 channels, stored as layout says."""

    q: torch.Tensor
    scales: torch.Tensor
    layout: ScaleLayout


Made = tuple[torch.Tensor, torch.Tensor, Quantised]
# (norm, x, residual, layout) -> the norm's output, the residual, the output in FP8.
Maker = Callable[[Any, torch.Tensor, torch.Tensor | None, ScaleLayout], Made]


def quantise(x: torch.Tensor, layout: ScaleLayout) -> Quantised:
    """x [rows, channels], channels a multiple of 128, in FP8 by SGLang's rule."""
    q = torch.empty(x.shape, dtype=FP8, device=x.device)
    scales = empty_scales(x.shape[0], x.shape[1], layout, x.device)
    quantise_into(x, q, scales)
    return Quantised(q, scales, layout)


def describes(quantised: Quantised, x: torch.Tensor) -> bool:
    """Whether quantising x now gives the same bytes."""
    now = quantise(x, quantised.layout)
    return torch.equal(now.q.view(torch.uint8), quantised.q.view(torch.uint8)) and torch.equal(
        now.scales.view(torch.int32), quantised.scales.view(torch.int32)
    )


def dispatch_layout() -> ScaleLayout:
    """The layout in which DeepEP's normal dispatch quantises.

    Source: SGLang 0.5.23, layers/moe/token_dispatcher/deepep.py _DeepEPDispatcherImplNormal.dispatch_a.
    """
    packed = deep_gemm_wrapper.DEEPGEMM_SCALE_UE8M0
    return ScaleLayout.PACKED_UE8M0 if packed else ScaleLayout.ROW_MAJOR


def input_layouts(linear: Any) -> tuple[ScaleLayout, ...] | Declined:
    """The scale layouts of an FP8 input that a linear layer takes, best first; else why it takes none.

    A method of this package's own says so itself, as prequantised_layouts.
    Source: SGLang 0.5.23, layers/quantization/fp8.py Fp8LinearMethod.apply, and fp8_utils.py
    deepgemm_w8a8_block_fp8_linear_with_fallback, triton_w8a8_block_fp8_linear and FlashInfer's beside them.
    """
    method = getattr(linear, "quant_method", None)
    declared: tuple[ScaleLayout, ...] | None = getattr(method, "prequantised_layouts", None)
    if declared:
        return declared
    if not isinstance(method, Fp8LinearMethod):
        return Declined(f"{type(method).__name__} takes no FP8 input")
    if method.use_marlin or method.use_mxfp8 or method.block_fp8_as_mxfp8:
        return Declined("the weights are not served as FP8 blocks")
    if tuple(method.weight_block_size or ()) != FP8_BLOCK:
        return Declined(f"weight blocks of {method.weight_block_size}")
    product = method.w8a8_block_fp8_linear
    if product is triton_w8a8_block_fp8_linear:
        return (ScaleLayout.ROW_MAJOR,)
    if product is deepgemm_w8a8_block_fp8_linear_with_fallback:
        return _deepgemm_layouts(*linear.weight.shape)
    name = getattr(product, "func", product).__name__
    return Declined(f"the FP8 backend {name} as configured takes no FP8 input")


def _deepgemm_layouts(outputs: int, inputs: int) -> tuple[ScaleLayout, ...] | Declined:
    if outputs % 64 or inputs % GROUP:
        return Declined(f"DeepGEMM leaves weights of {outputs} x {inputs} to Triton")
    if deep_gemm_wrapper.DEEPGEMM_SCALE_UE8M0:
        return (ScaleLayout.PACKED_UE8M0,)
    # DeepGEMM brings row-major scales into TMA's order itself, with one launch more.
    return (ScaleLayout.COLUMN_MAJOR, ScaleLayout.ROW_MAJOR)


def make_in_torch(norm: Any, x: torch.Tensor, residual: torch.Tensor | None, layout: ScaleLayout) -> Made:
    """SGLang's own norm, then the quantiser in torch."""
    if residual is None:
        y, residual = RMSNorm.forward(norm, x), x
    else:
        y, residual = RMSNorm.forward(norm, x, residual)
    return y, residual, quantise(y, layout)


def make_by_flashinfer(
    norm: Any, x: torch.Tensor, residual: torch.Tensor | None, layout: ScaleLayout
) -> Made:
    """FlashInfer's kernel; the residual is updated in place, x is left as it is."""
    rows, hidden = x.shape
    y, q = torch.empty_like(x), torch.empty(x.shape, dtype=FP8, device=x.device)
    # The kernel takes the whole buffer, the rows that pad it included; SGLang's scales are a view of it.
    buffer = torch.empty(hidden // GROUP, -(-rows // 4) * 4, dtype=torch.float32, device=x.device)
    kernel = _flashinfer_kernel()
    assert kernel is not None and residual is not None
    kernel(q, buffer, y, x, residual, norm.weight.data, norm.variance_epsilon)
    return y, residual, Quantised(q, buffer.t()[:rows], layout)


def make_by_own_kernel(
    norm: Any, x: torch.Tensor, residual: torch.Tensor | None, layout: ScaleLayout
) -> Made:
    """This package's kernel, which has not declined; the residual is updated in place, x is left as it is."""
    made = add_rmsnorm_quant.add_rmsnorm_quant(
        x, residual, norm.weight.data, norm.variance_epsilon, layout, how=backend.implementation(x.device)
    )
    assert made.y is not None and made.q is not None and made.scale is not None
    return made.y, x if residual is None else residual, Quantised(made.q, made.scale, layout)


MAKERS: dict[str, Maker] = {
    "torch": make_in_torch,
    "flashinfer": make_by_flashinfer,
    add_rmsnorm_quant.CARD.stem: make_by_own_kernel,
}


@functools.cache
def _flashinfer_kernel() -> Callable[..., None] | None:
    try:
        from flashinfer.norm import fused_add_rmsnorm_fp8_block_quant
    except ImportError:
        return None
    kernel: Callable[..., None] = fused_add_rmsnorm_fp8_block_quant
    return kernel


def _flashinfer_takes(x: torch.Tensor, residual: torch.Tensor | None, layout: ScaleLayout) -> bool:
    return (
        layout is ScaleLayout.COLUMN_MAJOR
        and residual is not None
        and get_platform().is_sm90
        and x.is_contiguous()
        and residual.is_contiguous()
        and x.shape[1] % FLASHINFER_MULTIPLE == 0
        and x.shape[1] <= FLASHINFER_MAX_HIDDEN
        and _flashinfer_kernel() is not None
    )


def unfit(rows: torch.Tensor) -> Declined | None:
    """Why activations, or a norm's weights, of this dtype and width are not quantised; None when they are."""
    if rows.dtype != torch.bfloat16:
        return Declined(f"the activations are {str(rows.dtype).removeprefix('torch.')}, not bfloat16")
    if rows.shape[-1] % GROUP:
        return Declined(f"{rows.shape[-1]} channels are no multiple of {GROUP}")
    return None


def choose_maker(
    kernels: str, norm: Any, x: torch.Tensor, residual: torch.Tensor | None, layouts: Sequence[ScaleLayout]
) -> tuple[str, ScaleLayout] | Declined:
    """Which of MAKERS serves this norm, and the layout it makes; else why none does.

    kernels: GLM53_KERNELS. layouts: those that the projections take, best first.
    """
    if why := unfit(x):
        return why
    layout = layouts[0]
    if kernels == "torch" or (kernels == "auto" and not x.is_cuda):
        return "torch", layout
    if is_batch_invariant_mode_enabled():
        return Declined("batch-invariant inference asks for SGLang's own norm")
    if kernels == "auto" and _flashinfer_takes(x, residual, layout):
        return "flashinfer", layout
    why = add_rmsnorm_quant.declines(x, residual, norm.weight)
    return why or (add_rmsnorm_quant.CARD.stem, layout)
