"""The byte layouts of the FP8 KV row and the index page: writers and readers in torch.

Byte for byte what SGLang 0.5.23's CUDA writers store: kernels/ops/quantization/dsa_quant_k_cache.py for the
KV row, kernels/jit/csrc/deepseek_v32/indexer_k.cuh for the index page. One difference: upstream's scale of
an all-zero KV tile is 0 and its values NaN; here that tile gets scale 1 and zeros.
"""

import torch

from sglang_glm53.geometry import (
    FP8_MAX,
    INDEX_HEAD_DIM,
    INDEX_SCALE_OFFSET,
    KV_LORA,
    KV_ROPE_OFFSET,
    KV_ROW_BYTES,
    KV_SCALE_OFFSET,
    KV_TILE,
    PAGE,
)

FP8 = torch.float8_e4m3fn
INDEX_AMAX_FLOOR = 1e-4


def _quantise(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    # Both CUDA writers multiply by the rounded reciprocal; dividing would differ in the last e4m3 bit.
    return (x * (1.0 / scale)).clamp(-FP8_MAX, FP8_MAX).to(FP8)


def encode_kv(latent: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
    """FP8 KV rows: latent [n, 512] and rope [n, 64], any float dtype -> [n, 656] uint8."""
    tiles = latent.to(torch.bfloat16).float().view(-1, KV_LORA // KV_TILE, KV_TILE)
    amax = tiles.abs().amax(-1, keepdim=True)
    scale = torch.where(amax > 0, amax / FP8_MAX, torch.ones_like(amax))
    rows = torch.empty(latent.shape[0], KV_ROW_BYTES, dtype=torch.uint8)
    rows[:, :KV_SCALE_OFFSET] = _quantise(tiles, scale).view(-1, KV_LORA).view(torch.uint8)
    rows[:, KV_SCALE_OFFSET:KV_ROPE_OFFSET] = scale.view(-1, KV_LORA // KV_TILE).view(torch.uint8)
    rows[:, KV_ROPE_OFFSET:] = rope.to(torch.bfloat16).contiguous().view(torch.uint8)
    return rows


def decode_kv(rows: torch.Tensor) -> torch.Tensor:
    """The FP32 values of FP8 KV rows: [..., 656] uint8 -> [..., 576] float32."""
    values = rows[..., :KV_SCALE_OFFSET].view(FP8).float()
    scales = rows[..., KV_SCALE_OFFSET:KV_ROPE_OFFSET].contiguous().view(torch.float32)
    latent = values.view(*scales.shape, KV_TILE) * scales.unsqueeze(-1)
    rope = rows[..., KV_ROPE_OFFSET:].contiguous().view(torch.bfloat16).float()
    return torch.cat([latent.flatten(-2), rope], dim=-1)


def quantise_index(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Index queries or keys [..., 128] float32 to e4m3: values [..., 128], scales [..., 1] float32."""
    scale = x.abs().amax(-1, keepdim=True).clamp(min=INDEX_AMAX_FLOOR) / FP8_MAX
    return _quantise(x, scale), scale


def store_index_keys(pages: torch.Tensor, slots: torch.Tensor, keys: torch.Tensor) -> None:
    """Write FP8 index keys [n, 128] float32 into pages [num_pages, 8448] uint8 at slots [n] int64."""
    page, offset = slots // PAGE, slots % PAGE
    # Rounded to bf16 first: the CUDA writer's input is bf16, and its scale follows from that.
    values, scales = quantise_index(keys.to(torch.bfloat16).float())
    value_area = pages[:, :INDEX_SCALE_OFFSET].view(-1, PAGE, INDEX_HEAD_DIM)
    scale_area = pages[:, INDEX_SCALE_OFFSET:].view(-1, PAGE, 4)
    value_area[page, offset] = values.view(torch.uint8)
    scale_area[page, offset] = scales.view(torch.uint8)


def load_index_keys(pages: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """The index keys at slots [...] int64 of pages [num_pages, 8448] uint8: [..., 128] float32."""
    page, offset = slots // PAGE, slots % PAGE
    values = pages[:, :INDEX_SCALE_OFFSET].view(-1, PAGE, INDEX_HEAD_DIM)[page, offset]
    scales = pages[:, INDEX_SCALE_OFFSET:].view(-1, PAGE, 4)[page, offset]
    return values.view(FP8).float() * scales.view(torch.float32)
