"""FP8 products in torch: the input's quantisation per token and group, and kv_b's weights."""

import pytest
import torch

from sglang_glm53.cpu import fp8


def test_activation_scales_are_per_token_and_group():
    x = torch.zeros(2, 256)
    x[0, 3], x[1, 200] = -7.0, 3.5
    values, scales = fp8.quantise_activation(x)
    assert scales.shape == (2, 2) and values.dtype == torch.float8_e4m3fn
    assert scales[0, 0].item() == pytest.approx(7.0 / 448) and scales[1, 1].item() == pytest.approx(3.5 / 448)
    # A group of zeros has the floor's scale, and stays zero.
    assert scales[0, 1].item() == pytest.approx(1e-10 / 448) and values[0, 128:].float().abs().max() == 0
    assert values[0, 3].float().item() == -448.0 and values[1, 200].float().item() == 448.0


def test_as_served_is_within_e4m3_of_its_group():
    x = torch.randn(9, 384, generator=torch.Generator().manual_seed(0)).bfloat16()
    amax = x.float().abs().view(9, 3, 128).amax(-1).repeat_interleave(128, -1)
    error = (fp8.as_served(x) - x.float()).abs()
    assert (error <= x.float().abs() * 2**-4 + amax * 2**-10 / 448).all()
    assert error.max() > 0


def test_kv_b_is_dequantised_into_the_models_dtype():
    weight, scale = torch.ones(128, 128).to(torch.float8_e4m3fn), torch.full((1, 1), 0.1)
    assert fp8.dequantise_kv_b(weight, scale, [128, 128], torch.bfloat16).dtype == torch.get_default_dtype()
