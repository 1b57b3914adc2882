"""Owns the checks of the torch quantiser: known values, and the reference on random and special ones."""

import pytest
import torch

from sglang_glm53.kernels.fp8 import ScaleLayout, empty_scales, quantise_into
from tests.kernels.add_rmsnorm_quant_cases import LAYOUTS, check_quantised


def _quantise(values, layout):
    q = torch.empty(values.shape, dtype=torch.float8_e4m3fn)
    scale = empty_scales(*values.shape, layout, values.device)
    quantise_into(values, q, scale)
    return q, scale


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("shape", [(1, 128), (4, 512), (5, 640), (3, 1536)])
def test_random_values(shape, layout):
    generator = torch.Generator().manual_seed(sum(shape))
    values = torch.randn(shape, generator=generator) * 2.0 ** torch.randint(
        -40, 40, shape, generator=generator
    )
    values = values.bfloat16()
    check_quantised(values, *_quantise(values, layout), layout)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_bf16_as_amax(layout):
    """One group for each bf16: that value, its half, its negative, and zeros."""
    value = (torch.arange(2**16, dtype=torch.int32) << 16).view(torch.float32)
    groups = torch.zeros(2**16, 128)
    groups[:, 0], groups[:, 1], groups[:, 2] = value, value / 2, -value
    values = groups.bfloat16().view(-1, 512)
    check_quantised(values, *_quantise(values, layout), layout)


# amax, and log2 of its UE8M0 scale: amax / 448 rounded up to a power of two.
@pytest.mark.parametrize(
    ("amax", "log2"), [(0.0, -42), (0.5, -9), (1.0, -8), (3.5, -7), (446.0, 0), (448.0, 0), (450.0, 1)]
)
def test_known_exponents(amax, log2):
    values = torch.zeros(1, 128)
    values[0, 7] = -amax
    q, scale = _quantise(values.bfloat16(), ScaleLayout.PACKED_UE8M0)
    assert scale.tolist() == [[127 + log2]]
    assert float(q[0, 7]) * 2.0**log2 == pytest.approx(-amax, rel=1 / 16)


def test_known_float_scale():
    values = torch.full((1, 128), 2.0)
    values[0, 3] = -448.0
    q, scale = _quantise(values.bfloat16(), ScaleLayout.ROW_MAJOR)
    assert scale.tolist() == [[1.0]]
    assert (float(q[0, 0]), float(q[0, 3])) == (2.0, -448.0)


@pytest.mark.parametrize("rows", [1, 4, 5])
@pytest.mark.parametrize("channels", [128, 640, 2048])
def test_scales_are_laid_out_as_sglangs(rows, channels):
    from sglang.kernels.ops.quantization import fp8_kernel

    for layout in LAYOUTS:
        wanted = fp8_kernel.create_per_token_group_quant_fp8_output_scale(
            (rows, channels),
            torch.device("cpu"),
            128,
            column_major_scales=layout is not ScaleLayout.ROW_MAJOR,
            scale_tma_aligned=layout is not ScaleLayout.ROW_MAJOR,
            scale_ue8m0=layout is ScaleLayout.PACKED_UE8M0,
        )
        found = empty_scales(rows, channels, layout, torch.device("cpu"))
        assert (found.shape, found.stride(), found.dtype) == (wanted.shape, wanted.stride(), wanted.dtype)
