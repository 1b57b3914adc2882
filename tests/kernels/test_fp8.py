"""Owns the checks of FP8 in torch: the quantiser against known values and the reference; weight blocks."""

import pytest
import torch

from sglang_glm53.kernels.fp8 import (
    ScaleLayout,
    dequantise,
    dequantise_blocks,
    empty_scales,
    quantise_blocks,
    quantise_into,
)
from tests.kernels.fp8_checks import LAYOUTS, check_quantised


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


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_what_comes_back_is_within_a_step_of_its_group(layout):
    values = torch.randn(5, 640, generator=torch.Generator().manual_seed(2)).bfloat16().float()
    back = dequantise(*_quantise(values, layout))
    amax = values.abs().view(5, 5, 128).amax(-1).repeat_interleave(128, -1)
    assert ((back - values).abs() <= values.abs() * 2**-4 + amax * 2**-9 / 448).all()
    assert not torch.equal(back, values)


def test_each_block_has_its_own_scale_and_the_last_ones_may_be_partial():
    weight = torch.zeros(576, 200)
    weight[0, 0], weight[127, 127] = -448.0, 1.0
    weight[128, 5] = 44.8
    weight[575, 199] = 4.48
    values, scales = quantise_blocks(weight)
    assert scales.shape == (5, 2)
    assert scales.dtype == torch.float32
    expected = torch.ones(5, 2)
    expected[1, 0], expected[4, 1] = 0.1, 0.01
    torch.testing.assert_close(scales, expected, rtol=1e-6, atol=0)
    assert values.float()[[0, 128, 575], [0, 5, 199]].tolist() == [-448.0, 448.0, 448.0]


def test_a_block_of_zeros_has_scale_one():
    values, scales = quantise_blocks(torch.zeros(130, 3))
    assert scales.tolist() == [[1.0], [1.0]]
    assert not values.float().any()


@pytest.mark.parametrize("largest", [3e-6, 0.37, 1e4])
def test_the_largest_value_of_a_block_is_never_beyond_448(largest):
    weight = torch.linspace(-largest, largest, 64 * 128).view(64, 128)
    values, _ = quantise_blocks(weight)
    assert values.float().abs().max() == 448.0


def test_the_value_that_comes_back_is_close_and_is_one_product():
    weight = torch.randn(300, 260, generator=torch.Generator().manual_seed(1)).bfloat16()
    values, scales = quantise_blocks(weight)
    back = dequantise_blocks(values, scales)
    for row, column in ((0, 0), (127, 128), (128, 127), (299, 259)):
        product = values[row, column].float() * scales[row // 128, column // 128]
        assert back[row, column] == product
    # e4m3 has 3 mantissa bits: half a step is 1/16 of a value, or of the smallest normal one.
    allowed = weight.float().abs().clamp(min=float(scales.max()) / 64) / 16 * 1.01
    assert ((back - weight.float()).abs() <= allowed).all()


@pytest.mark.parametrize("shape", [(128, 128), (576, 256), (65, 130)])
def test_dequantise_blocks(shape):
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(shape, generator=generator).to(torch.float8_e4m3fn)
    scale = torch.rand(-(-shape[0] // 128), -(-shape[1] // 128), generator=generator)
    out = dequantise_blocks(weight, scale)
    for row, column in ((0, 0), (shape[0] - 1, shape[1] - 1), (shape[0] // 2, shape[1] // 2)):
        assert out[row, column] == weight[row, column].float() * scale[row // 128, column // 128]


def test_each_expert_has_its_own_scales():
    weight = torch.ones(3, 128, 256).to(torch.float8_e4m3fn)
    scale = torch.arange(6.0).view(3, 1, 2)
    assert dequantise_blocks(weight, scale)[:, 0, ::128].tolist() == scale[:, 0].tolist()
