"""The FP8 row and page layouts, byte for byte, against SGLang's own writers and hand-made values."""

import os
import subprocess
import sys

import ml_dtypes
import pytest
import torch

from sglang_glm53.cpu import layout
from sglang_glm53.geometry import INDEX_PAGE_BYTES, KV_ROW_BYTES, PAGE

# Runs upstream's Triton writer in Triton's interpreter, which must be chosen before torch is imported.
UPSTREAM_WRITER = """
import torch
from sglang.kernels.ops.quantization.dsa_quant_k_cache import quantize_k_cache_separate
latent, rope = torch.load({source!r})
parts = quantize_k_cache_separate(latent, rope)
torch.save(torch.cat([part.view(torch.uint8).flatten(1) for part in parts], dim=-1), {target!r})
"""


def kv_inputs(rows: int = 17) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    scale = torch.logspace(-6, 3, rows)[:, None]
    latent = (torch.randn(rows, 512, generator=generator) * scale).bfloat16()
    return latent, torch.randn(rows, 64, generator=generator).bfloat16()


def test_kv_scales_and_rope_equal_upstreams_writer(tmp_path):
    """The values are the next test's: the interpreter's own cast drops the carry of 124.2 -> 128."""
    latent, rope = kv_inputs()
    source, target = str(tmp_path / "in.pt"), str(tmp_path / "out.pt")
    torch.save((latent, rope), source)
    code = UPSTREAM_WRITER.format(source=source, target=target)
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "TRITON_INTERPRET": "1"}, check=True)
    assert torch.equal(layout.encode_kv(latent, rope)[:, 512:], torch.load(target)[:, 512:])


def test_kv_values_equal_upstreams_formula_in_another_cast():
    latent, rope = kv_inputs()
    tiles = latent.float().view(-1, 4, 128).numpy()
    inverse = 1.0 / (abs(tiles).max(-1, keepdims=True) / 448.0)
    values = (tiles * inverse).clip(-448.0, 448.0).astype(ml_dtypes.float8_e4m3fn).view("uint8")
    assert torch.equal(layout.encode_kv(latent, rope)[:, :512], torch.from_numpy(values).view(-1, 512))


def test_kv_row_offsets():
    latent, rope = kv_inputs(1)
    row = layout.encode_kv(latent, rope)[0]
    assert row.numel() == KV_ROW_BYTES
    scales = row[512:528].view(torch.float32)
    assert torch.equal(scales, latent[0].float().view(4, 128).abs().amax(-1) / 448)
    assert torch.equal(row[528:].view(torch.bfloat16), rope[0])
    assert row[:512].view(torch.float8_e4m3fn).float().abs().view(4, 128).amax(-1).tolist() == [448.0] * 4


def test_kv_round_trip_is_within_e4m3():
    latent, rope = kv_inputs()
    decoded = layout.decode_kv(layout.encode_kv(latent, rope))
    # e4m3 keeps 3 mantissa bits: half a step is 2^-4 of the value, plus the subnormal step of the tile.
    bound = latent.float().abs() * 2**-4 + latent.float().view(-1, 4, 128).abs().amax(-1).repeat_interleave(
        128, -1
    ) * (2**-10 / 448)
    assert ((decoded[:, :512] - latent.float()).abs() <= bound).all()
    assert torch.equal(decoded[:, 512:], rope.float())


def test_an_all_zero_tile_is_finite():
    latent, rope = torch.zeros(1, 512), torch.ones(1, 64)
    row = layout.encode_kv(latent, rope)
    assert row[0, 512:528].view(torch.float32).tolist() == [1.0] * 4
    assert torch.equal(layout.decode_kv(row), torch.cat([latent, rope], dim=-1))


def test_index_page_holds_values_then_scales():
    pages = torch.zeros(3, INDEX_PAGE_BYTES, dtype=torch.uint8)
    keys = torch.linspace(-3, 3, 128).repeat(2, 1) * torch.tensor([[1.0], [2.0]])
    slots = torch.tensor([PAGE + 5, 2 * PAGE + 63])
    layout.store_index_keys(pages, slots, keys)
    amax = keys.bfloat16().float().abs().amax(-1)
    for row, (page, offset) in enumerate(((1, 5), (2, 63))):
        at = 64 * 128 + offset * 4
        assert pages[page, at : at + 4].view(torch.float32).item() == pytest.approx(
            amax[row].item() / 448, rel=1e-7
        )
        first = pages[page, offset * 128].view(torch.float8_e4m3fn).item()
        assert first == -448.0
    loaded = layout.load_index_keys(pages, slots)
    assert torch.equal(loaded[:, 127], amax) and torch.equal(loaded[:, 0], -amax)
    for page, offset in ((1, 5), (2, 63)):
        pages[page, offset * 128 : (offset + 1) * 128] = 0
        pages[page, 8192 + offset * 4 : 8192 + (offset + 1) * 4] = 0
    assert pages.count_nonzero() == 0


def test_index_scale_has_a_floor():
    values, scale = layout.quantise_index(torch.zeros(1, 128))
    assert scale.item() == pytest.approx(1e-4 / 448) and values.float().abs().max() == 0


def test_index_keys_are_rounded_to_bf16_first():
    pages = torch.zeros(1, INDEX_PAGE_BYTES, dtype=torch.uint8)
    key = torch.full((1, 128), 1.0 + 2**-10)
    layout.store_index_keys(pages, torch.tensor([0]), key)
    assert pages[0, 8192:8196].view(torch.float32).item() == pytest.approx(1.0 / 448, rel=1e-7)
