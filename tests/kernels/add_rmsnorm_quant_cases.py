"""Owns the inputs of add_rmsnorm_quant's tests, and what its results must be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from sglang_glm53.geometry import HIDDEN
from sglang_glm53.kernels.fp8 import FP8, ScaleLayout, empty_scales
from sglang_glm53.testing.reference import add_rmsnorm_quant as reference
from tests.kernels.calls import OpCall, as_bytes, poisoned
from tests.kernels.fp8_checks import LAYOUTS, check_quantised

EPS = 1e-5


@dataclass(frozen=True)
class Case:
    """One call. gap: elements between the rows of x and of the residual. magnitude: x's size.

    device: where the tensors are; their values are the same everywhere.
    """

    rows: int
    hidden: int
    layout: ScaleLayout | None = ScaleLayout.ROW_MAJOR
    residual: bool = True
    with_y: bool = True
    gap: int = 0
    magnitude: float = 1.0
    seed: int = 0
    device: str = "cpu"

    def inputs(self) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        """x, residual and weight, bf16; the rows differ in size by factors of two."""
        generator = torch.Generator().manual_seed(self.seed)

        def normal(rows: int) -> torch.Tensor:
            size = 2.0 ** (torch.arange(rows) % 7 - 3).unsqueeze(1)
            values = torch.randn(rows, self.hidden, generator=generator) * size * self.magnitude
            padded = torch.full((rows, self.hidden + self.gap), torch.nan)
            padded[:, : self.hidden] = values
            return padded.bfloat16().to(self.device)[:, : self.hidden]

        weight = (1 + 0.3 * torch.randn(self.hidden, generator=generator)).bfloat16().to(self.device)
        return normal(self.rows), normal(self.rows) if self.residual else None, weight


def ulps(values: torch.Tensor) -> torch.Tensor:
    """The distance from each value to the next bf16 away from zero."""
    exponent = torch.frexp(values.float().abs()).exponent - 1
    return torch.ldexp(torch.ones_like(values, dtype=torch.float32), exponent.clamp(min=-126) - 7)


def check_y(y: torch.Tensor, wanted: torch.Tensor) -> None:
    """y, bf16, against the FP32 norm: at most one bf16 ulp away, and NaN in the same places."""
    y, wanted = y.cpu(), wanted.cpu()
    assert torch.equal(y.isnan(), wanted.isnan())
    error = ((y.float() - wanted).abs() / ulps(wanted)).nan_to_num(nan=0.0, posinf=torch.inf)
    worst = int(error.argmax())
    assert not float(error.max()) > 1, (worst, float(y.flatten()[worst]), float(wanted.flatten()[worst]))


def call(case: Case) -> OpCall:
    """The op's arguments; y and q have gaps between their rows, as x has."""
    x, residual, weight = case.inputs()
    before = None if residual is None else residual.cpu().clone()

    def rows(dtype: torch.dtype) -> torch.Tensor:
        whole = torch.empty(case.rows, case.hidden + case.gap, dtype=dtype, device=case.device)
        return poisoned(whole)[:, : case.hidden]

    q = scale = None
    if case.layout is not None:
        q = rows(FP8)
        scale = poisoned(empty_scales(case.rows, case.hidden, case.layout, x.device))
    y = rows(torch.bfloat16) if case.with_y else None

    def check(found: Mapping[str, Any]) -> None:
        total, wanted = reference.norm(x.cpu(), before, weight.cpu(), EPS)
        if before is not None:
            assert torch.equal(as_bytes(found["residual"]), as_bytes(total.bfloat16()))
        if case.with_y:
            check_y(found["y"], wanted)
            if case.layout is not None:
                check_quantised(found["y"], found["q"], found["scale"], case.layout)

    arguments = {"x": x, "residual": residual, "weight": weight, "y": y, "q": q, "scale": scale, "eps": EPS}
    return OpCall(arguments, check)


SMALL = [
    Case(rows, hidden, layout, residual, with_y=layout is None or residual, gap=gap, seed=rows)
    # One group, one warp and a group, three warps of which the last is half empty, the most warps.
    for rows, hidden, gap in [(5, 128, 64), (3, 640, 0), (2, 1280, 64), (1, 8192, 0)]
    for layout in [*LAYOUTS, None]
    for residual in (True, False)
]
WATCHED = [Case(2, HIDDEN, layout, False, gap=8) for layout in LAYOUTS]
LARGE = [
    Case(rows, hidden, layout, gap=8)
    for rows, hidden in [(1024, HIDDEN), (4099, HIDDEN), (2050, 2048)]
    for layout in LAYOUTS
]
REPEATED = [
    Case(rows, HIDDEN, layout, gap=gap, magnitude=magnitude)
    for rows, gap, magnitude in [(33, 0, 8.0), (257, 64, 1.0)]
    for layout in LAYOUTS
]

BUGS = {
    "missing barrier": (
        "include/glm53/reduce.cuh",
        "partial[warp] = value;\n  __syncthreads();\n",
        "partial[warp] = value;\n",
        {"thread": "data race"},
    ),
    "two warps write one sum": (
        "include/glm53/reduce.cuh",
        "partial[warp] = value",
        "partial[warp / 2] = value",
        {"plain": "values", "thread": "data race"},
    ),
    "read past the row": (
        "kernels/add_rmsnorm_quant.cuh",
        "inside[i] = channel[i] < params.hidden",
        "inside[i] = channel[i] <= params.hidden",
        {"plain": "refused: global memory: load of 16 bytes"},
    ),
    "misaligned vector load": (
        "kernels/add_rmsnorm_quant.cuh",
        "load_global<uint4>(params.x + row * params.x_stride + channel[i])",
        "load_global<uint4>(params.x + row * params.x_stride + channel[i] + 1)",
        {"plain": "refused: global memory: load of 16 bytes, misaligned"},
    ),
    "bad mask": (
        "include/glm53/reduce.cuh",
        "fmaxf(value, __shfl_xor_sync(kAllLanes,",
        "fmaxf(value, __shfl_xor_sync(kAllLanes >> 16,",
        {"plain": "refused: __shfl_xor_sync at .*: the mask 0x0000ffff leaves out the caller"},
    ),
    "load before the wait": (
        "kernels/add_rmsnorm_quant.cuh",
        "load_global<uint4>(params.weight + channel[i])",
        "load_global<uint4>(params.x + channel[i])",
        {"plain": r"refused: global memory: .* of x before pdl_wait\(\)"},
    ),
    "quantised before rounding": (
        "kernels/add_rmsnorm_quant.cuh",
        "      unpack_bf16x8(rounded, values[i]);\n",
        "",
        {"plain": "values"},
    ),
    "normed after rounding": (
        "kernels/add_rmsnorm_quant.cuh",
        "        store_global(params.residual",
        "        unpack_bf16x8(pack_bf16x8(values[i]), values[i]);\n        store_global(params.residual",
        {"plain": "values"},
    ),
    "scale of the wrong group": (
        "kernels/add_rmsnorm_quant.cuh",
        "group % 4 * 8",
        "(3 - group % 4) * 8",
        {"plain": "values"},
    ),
    "sum over one warp": (
        "include/glm53/reduce.cuh",
        "return warp_sum(lane < blockDim.x / kWarpThreads ? partial[lane] : 0.0f)",
        "return value",
        {"plain": "values"},
    ),
}
