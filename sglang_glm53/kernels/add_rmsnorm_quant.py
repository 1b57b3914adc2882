"""Owns add_rmsnorm_quant: residual add, RMSNorm and FP8 quantisation of a layer's input, as one torch op."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import torch

from sglang_glm53.fusion import ATTENTION_INPUT, FFN_INPUT, Q_A, Declined
from sglang_glm53.geometry import HIDDEN, Q_LORA
from sglang_glm53.kernels import backend, jit
from sglang_glm53.kernels.cards import Budget, KernelCard, Shape, Traffic
from sglang_glm53.kernels.fp8 import FP8, GROUP, ScaleLayout, empty_scales, quantise_into

MAX_HIDDEN = 8192
ROW_ALIGNMENT = 16

CARD = KernelCard(
    stem="add_rmsnorm_quant",
    fusions=(ATTENTION_INPUT, FFN_INPUT, Q_A),
    summary="residual += x; y = rmsnorm(residual) * weight; q, scale = y in FP8, one scale for 128 channels",
    replaces=(
        "`fused_add_rmsnorm`, sglang/srt/layers/layernorm.py RMSNorm.forward_cuda, or without a residual",
        "`rmsnorm`, sglang/srt/layers/layernorm.py RMSNorm.forward_cuda",
        "`sglang_per_token_group_quant_fp8`, sglang/srt/layers/quantization/fp8_utils.py "
        "deepgemm_w8a8_block_fp8_linear_with_fallback, in each linear layer that reads y, and",
        "`sglang_per_token_group_quant_fp8`, sglang/srt/layers/moe/token_dispatcher/deepep.py "
        "_DeepEPDispatcherImplNormal.dispatch_a, in DeepEP's normal dispatch",
    ),
    tensors=(
        ("x", "[M, H] bf16, any row stride of whole 16-byte words"),
        ("residual", "[M, H] bf16, updated in place, or none: then y is the norm of x"),
        ("weight", "[H] bf16"),
        ("y", "[M, H] bf16, on request"),
        ("q", "[M, H] e4m3, on request"),
        (
            "scale",
            "with q. Row-major: [M, H/128] FP32. Column-major: the same, strides (1, M rounded up to 4). "
            "Packed UE8M0: [M, H/512 rounded up] int32, strides (1, M rounded up to 4), four exponents in "
            "each, the lowest group in the lowest byte",
        ),
    ),
    traffic=(
        Traffic("x", False, "H", Fraction(2)),
        Traffic("residual", False, "H", Fraction(2)),
        Traffic("weight", False, "H", Fraction(2), once=True),
        Traffic("residual", True, "H", Fraction(2)),
        Traffic("y", True, "H", Fraction(2)),
        Traffic("q", True, "H", Fraction(1)),
        Traffic("scale", True, "H", Fraction(4, 128)),
    ),
    sizes={"H": HIDDEN},
    launches_removed=(
        "DP8 with DeepEP, FP8 checkpoint, decode: one quantisation at each of 78 attention inputs, 75 shared "
        "experts and 3 dense MLPs, 156 a step",
        "TP8 up to 2048 rows, Hopper, and Blackwell as SGLang chooses: the first layer's first alone, since "
        "all-reduce, add and norm are one kernel there already, which stays",
        "TP8 up to 2048 rows, Blackwell with `--flashinfer-allreduce-fusion-backend trtllm`: the same 156, "
        "by FlashInfer's all-reduce with FP8 output in place of that kernel and of this one",
    ),
    numerics=(
        "The norm is taken of the FP32 sum of x and residual, before its rounding to bf16; y is within one "
        "bf16 ulp of that norm in FP32.",
        "q and scale are the bits that SGLang's quantiser gives for this y, in every layout. Its fast "
        "division of 448 by amax is the same instruction on a GPU, and 448 times the reciprocal on a CPU.",
        "A group of zeros: q is 0, scale is 1e-10 / 448 (UE8M0: exponent 85).",
        "NaN in a row of x or residual: the row of y is NaN. Infinity there, or a sum of squares past FP32: "
        "y is NaN where the infinity was and zero elsewhere.",
        "NaN in y: its q is 0x7f, and it does not count in the group's amax.",
        "Infinity in y, from a weight that overflows: the group's scale is infinite, its finite values are 0 "
        "and its infinities NaN. UE8M0: the exponent is 255, which is NaN, and q means nothing.",
        "Above 2^126 a group's amax gives q of 0 in the FP32 layouts: SGLang's fast division ends there.",
    ),
    declines={
        "dtype": "x, residual and weight are not all bfloat16",
        "hidden": "the hidden size is not a multiple of 128 from 128 to 8192",
        "columns": "a row of x or residual is not contiguous",
        "alignment": "a row of x, residual or weight does not start at a multiple of 16 bytes",
        "device": "the GPU is older than Hopper (compute capability 9.0)",
    },
    fallback="the same function in torch, counted and logged once for each reason",
    peers={
        "SGLang, norm then quantiser": "`fused_add_rmsnorm` and `sglang_per_token_group_quant_fp8`",
        "FlashInfer, one kernel": "0.7.2's `fused_add_rmsnorm_fp8_block_quant`: column-major FP32 scales "
        "only, and only with a residual",
    },
    forms={
        "add_rmsnorm_quant_kernel<(Scales)0>(AddRmsNormQuantParams)": Budget(40, 64),
        "add_rmsnorm_quant_kernel<(Scales)1>(AddRmsNormQuantParams)": Budget(44, 64),
        "add_rmsnorm_quant_kernel<(Scales)2>(AddRmsNormQuantParams)": Budget(44, 64),
    },
    grid=tuple(
        Shape(rows, {"H": hidden}, layout.value, quick=hidden == HIDDEN and rows in (1, 64, 1024))
        # The layer's width and q_a's.
        for hidden in (HIDDEN, Q_LORA)
        for layout in ScaleLayout
        for rows in (1, 8, 32, 64, 256, 1024, 4096, 16384)
    ),
)


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
    how: str = "",
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
    "Tensor(d!)? scale, float eps, str how='') -> ()",
    _run,
)
