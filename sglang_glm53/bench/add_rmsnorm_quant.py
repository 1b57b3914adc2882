"""Owns add_rmsnorm_quant's part of the benchmark: the buffers, the calls and the comparison."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from sglang_glm53.bench.measure import Prepared, load
from sglang_glm53.kernels.add_rmsnorm_quant import declines
from sglang_glm53.kernels.cards import Shape
from sglang_glm53.kernels.fp8 import FP8, GROUP, ScaleLayout, dequantise, plain_scales
from sglang_glm53.testing.compare import compare

EPS = 1e-5
SEED = 0
# A row's comparison is the same at any number of rows; these many at either end are compared.
COMPARED_ROWS = 128
SGLANG_NORM = ("sgl_kernel", "fused_add_rmsnorm")
SGLANG_QUANT = ("sglang.kernels.ops.quantization.fp8_kernel", "sglang_per_token_group_quant_fp8")
FLASHINFER = ("flashinfer.norm", "fused_add_rmsnorm_fp8_block_quant")


@dataclass(frozen=True)
class Buffers:
    """The tensors of some sets. scale_bases: whose storage the scales are, [groups, rows rounded up to 4]."""

    x: tuple[torch.Tensor, ...]
    residual: tuple[torch.Tensor, ...]
    weight: tuple[torch.Tensor, ...]
    y: tuple[torch.Tensor, ...]
    q: tuple[torch.Tensor, ...]
    scale: tuple[torch.Tensor, ...]
    scale_bases: tuple[torch.Tensor, ...]


def buffers(shape: Shape, device: torch.device, sets: int) -> Buffers:
    """The same values for the same arguments; the scales are zeros."""
    rows, hidden = shape.rows, shape.sizes["H"]
    layout = ScaleLayout(shape.form)
    generator = torch.Generator(device).manual_seed(SEED)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(sets, *size, generator=generator, device=device, dtype=torch.bfloat16)

    def empty(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        return torch.empty(sets, rows, hidden, dtype=dtype, device=device).unbind()

    by_row, packed = (layout is kind for kind in (ScaleLayout.ROW_MAJOR, ScaleLayout.PACKED_UE8M0))
    columns = -(-hidden // GROUP // 4) if packed else hidden // GROUP
    size = (rows, columns) if by_row else (columns, -(-rows // 4) * 4)
    dtype = torch.int32 if packed else torch.float32
    bases = torch.zeros(sets, *size, dtype=dtype, device=device).unbind()
    scales = bases if by_row else tuple(base.t()[:rows] for base in bases)
    x, residual = random(rows, hidden).unbind(), random(rows, hidden).unbind()
    weight = (1 + 0.1 * random(hidden)).unbind()
    return Buffers(x, residual, weight, empty(torch.bfloat16), empty(FP8), scales, bases)


def ours(shape: Shape, device: torch.device, sets: int) -> Prepared:
    """The kernel with every output, from a residual."""
    own = buffers(shape, device, sets)
    if declined := declines(own.x[0], own.residual[0], own.weight[0]):
        raise ValueError(f"the kernel declines: {declined.reason}")
    tensors = zip(own.x, own.residual, own.weight, own.y, own.q, own.scale, strict=True)
    calls = [partial(torch.ops.glm53.add_rmsnorm_quant, *each, EPS) for each in tensors]
    return Prepared(calls, lambda: (own.residual[0], own.y[0], own.q[0], own.scale[0]))


def _sglang(shape: Shape, device: torch.device, sets: int) -> Prepared:
    normalise, quantise = load(SGLANG_NORM), load(SGLANG_QUANT)
    own = buffers(shape, device, sets)
    layout = ScaleLayout(shape.form)
    by_column = layout is not ScaleLayout.ROW_MAJOR
    flags = {"column_major_scales": by_column, "scale_tma_aligned": by_column}
    flags["scale_ue8m0"] = layout is ScaleLayout.PACKED_UE8M0

    def call(i: int) -> None:
        normalise(own.x[i], own.residual[i], own.weight[i], EPS)
        quantise(own.x[i], GROUP, **flags, output_q=own.q[i], output_s=own.scale[i])

    calls = [partial(call, i) for i in range(sets)]
    # The norm writes y over x.
    return Prepared(calls, lambda: (own.residual[0], own.x[0], own.q[0], own.scale[0]))


def _flashinfer(shape: Shape, device: torch.device, sets: int) -> Prepared:
    if ScaleLayout(shape.form) is not ScaleLayout.COLUMN_MAJOR:
        raise ValueError(f"it has no {shape.form} scales, only column-major FP32 ones")
    function = load(FLASHINFER)
    own = buffers(shape, device, sets)
    tensors = zip(own.q, own.scale_bases, own.y, own.x, own.residual, own.weight, strict=True)
    calls = [partial(function, *each, EPS) for each in tensors]
    return Prepared(calls, lambda: (own.residual[0], own.y[0], own.q[0], own.scale[0]))


def check(found: tuple[torch.Tensor, ...], ours: tuple[torch.Tensor, ...]) -> None:
    """Hold residual, y, q and scale of a peer against ours; raises AssertionError.

    residual: bit for bit. y: within two bf16 ulps, since each norm may be off by one. q times scale: within a
    step of e4m3.
    """
    rows = [torch.cat([t[:COMPARED_ROWS], t[COMPARED_ROWS:][-COMPARED_ROWS:]]) for t in (*found, *ours)]
    (residual, y, q, scale), wanted = rows[:4], rows[4:]
    compare(residual, wanted[0], atol=0, rtol=0)
    compare(y, wanted[1], atol=0, rtol=2**-6)
    smallest_step = float(plain_scales(wanted[3]).max()) * 2**-9
    compare(dequantise(q, scale), dequantise(*wanted[2:]), atol=smallest_step, rtol=2**-3 + 2**-6, cos=1e-3)


PEERS = {"SGLang, norm then quantiser": _sglang, "FlashInfer, one kernel": _flashinfer}
