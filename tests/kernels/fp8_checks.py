"""Owns the checks of FP8 activations that a kernel has quantised: layout, scales and values, bit for bit."""

from __future__ import annotations

import torch

from sglang_glm53.kernels.fp8 import FP8, ScaleLayout, empty_scales
from sglang_glm53.testing.reference import fp8 as reference
from tests.kernels.calls import as_bytes

LAYOUTS = list(ScaleLayout)


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
