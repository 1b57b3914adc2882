"""FP8 block quantisation: scales, partial blocks, zero blocks, and the value that comes back."""

import pytest
import torch

from sglang_glm53.tiny.quantise import dequantise_blocks, quantise_blocks


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


def test_the_value_that_comes_back_is_close_and_is_one_rounded_product():
    weight = torch.randn(300, 260, generator=torch.Generator().manual_seed(1)).bfloat16()
    values, scales = quantise_blocks(weight)
    back = dequantise_blocks(values, scales)
    for row, column in ((0, 0), (127, 128), (128, 127), (299, 259)):
        product = values[row, column].float() * scales[row // 128, column // 128]
        assert back[row, column] == product.bfloat16()
    # e4m3 has 3 mantissa bits: half a step is 1/16 of a value, or of the smallest normal one.
    allowed = weight.float().abs().clamp(min=float(scales.max()) / 64) / 16 * 1.01
    assert ((back.float() - weight.float()).abs() <= allowed).all()
