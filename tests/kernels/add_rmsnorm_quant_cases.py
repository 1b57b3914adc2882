"""Owns the inputs of add_rmsnorm_quant's tests, and what its results must be."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sglang_glm53.kernels.fp8 import FP8, ScaleLayout, empty_scales
from sglang_glm53.testing.reference import add_rmsnorm_quant as reference

EPS = 1e-5
LAYOUTS = list(ScaleLayout)


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


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The elements' bytes in order, whatever the strides, on the CPU."""
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor).view(torch.uint8)


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


def plain_scales(scale: torch.Tensor, layout: ScaleLayout, groups: int) -> torch.Tensor:
    """The scales as [M, groups], float32 or exponents as int32, on the CPU, after a check of their layout."""
    rows = scale.shape[0]
    packed = layout is ScaleLayout.PACKED_UE8M0
    columns = -(-groups // 4) if packed else groups
    assert scale.shape == (rows, columns)
    assert scale.dtype == (torch.int32 if packed else torch.float32)
    aligned = -(-rows // 4) * 4
    assert scale.stride() == ((columns, 1) if layout is ScaleLayout.ROW_MAJOR else (1, aligned))
    if not packed:
        return scale.cpu()
    exponents = as_bytes(scale).int()
    assert not exponents[:, groups:].any()
    return exponents[:, :groups]


def _quantised_by_sglang(y: torch.Tensor, layout: ScaleLayout) -> tuple[torch.Tensor, torch.Tensor]:
    """What SGLang's own CUDA kernel makes of y, as reference.quantise gives it."""
    from sglang.kernels.ops.quantization.per_token_group_quant import per_token_group_quant

    q = torch.empty_like(y, dtype=FP8)
    scale = empty_scales(*y.shape, layout, y.device).zero_()
    per_token_group_quant(y, q, scale, 128, scale_ue8m0=layout is ScaleLayout.PACKED_UE8M0)
    return as_bytes(q), plain_scales(scale, layout, y.shape[1] // 128)


def check_quantised(y: torch.Tensor, q: torch.Tensor, scale: torch.Tensor, layout: ScaleLayout) -> None:
    """q and scale are, bit for bit, what the quantiser gives for y: on a GPU SGLang's, else the reference.

    The reference's scales hold on a GPU too; its q does not, since the division is another instruction there.
    """
    found = plain_scales(scale, layout, y.shape[1] // 128)
    wanted_q, wanted = reference.quantise(y.cpu(), layout is ScaleLayout.PACKED_UE8M0)
    assert torch.equal(found.view(torch.int32), wanted.view(torch.int32))
    if y.device.type == "cuda":
        wanted_q, wanted = _quantised_by_sglang(y, layout)
        assert torch.equal(found.view(torch.int32), wanted.view(torch.int32))
    assert torch.equal(as_bytes(q), wanted_q)
