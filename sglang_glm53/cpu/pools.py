"""The KV and index-K pools of the reference platform: SGLang's DSA pool with FP8, bf16 or FP32 storage."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.mem_cache.index_key_cache import IndexKeyCache
from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool
from sglang.srt.runtime_context import get_model, get_server_args

from sglang_glm53.cpu import layout
from sglang_glm53.geometry import INDEX_HEAD_DIM, PAGE


class ReferencePool(DSATokenToKVPool):  # type: ignore[misc]
    """SGLang's DSA pool, written and read by torch: bf16 or FP8 (656-byte) KV rows, FP8 index pages."""

    def _write_mla_kv_buffer(
        self,
        dst_buffer: torch.Tensor,
        loc: torch.Tensor,
        cache_k_nope: torch.Tensor,
        cache_k_rope: torch.Tensor,
    ) -> None:
        latent, rope = cache_k_nope.flatten(1), cache_k_rope.flatten(1)
        if self.dsa_kv_cache_store_fp8:
            rows = layout.encode_kv(latent, rope)
        else:
            rows = torch.cat([latent, rope], dim=-1).to(self.dtype)
        dst_buffer[loc.long(), 0] = rows.view(self.store_dtype)

    def load_kv(self, layer_id: int, slots: torch.Tensor) -> torch.Tensor:
        """The FP32 KV rows at slots [...] int64 -> [..., 576]."""
        rows = self.kv_buffer[layer_id - self.start_layer][slots, 0]
        return layout.decode_kv(rows) if self.dsa_kv_cache_store_fp8 else rows.view(self.dtype).float()

    def store_index_keys(self, layer_id: int, slots: torch.Tensor, keys: torch.Tensor) -> None:
        """Write index keys [n, 128] float32 at slots [n] int64."""
        layout.store_index_keys(self.get_index_k_with_scale_buffer(layer_id), slots, keys)

    def load_index_keys(self, layer_id: int, slots: torch.Tensor) -> torch.Tensor:
        """The FP32 index keys at slots [...] int64 -> [..., 128]."""
        return layout.load_index_keys(self.get_index_k_with_scale_buffer(layer_id), slots)

    @property
    def quantises_index(self) -> bool:
        """Whether index queries and keys go through FP8, as they do on a GPU."""
        return bool(self.index_k_with_scale_buffer_dtype == torch.uint8)


class _PlainIndexKeyCache(IndexKeyCache):  # type: ignore[misc]
    """Index pages without scales: 64 x 128 elements of the pool's index dtype."""

    def _buffer_shape(self, num_pages: int) -> tuple[int, int]:
        return num_pages, PAGE * INDEX_HEAD_DIM


class Bf16Pool(ReferencePool):
    """bf16 KV rows and bf16 index keys: what bf16 alone costs, without the FP8 index keys of a GPU."""

    index_k_with_scale_buffer_dtype = torch.bfloat16

    def _create_index_key_cache(self) -> IndexKeyCache:
        return _PlainIndexKeyCache(self, self.index_buf_size)

    def _pages(self, layer_id: int) -> torch.Tensor:
        buffer: torch.Tensor = self.get_index_k_with_scale_buffer(layer_id)
        return buffer.view(-1, INDEX_HEAD_DIM)

    def store_index_keys(self, layer_id: int, slots: torch.Tensor, keys: torch.Tensor) -> None:
        pages = self._pages(layer_id)
        pages[slots] = keys.to(pages.dtype)

    def load_index_keys(self, layer_id: int, slots: torch.Tensor) -> torch.Tensor:
        return self._pages(layer_id)[slots].float()


class Fp32Pool(Bf16Pool):
    """FP32 KV rows and FP32 index keys: exact, for the equality tests."""

    index_k_with_scale_buffer_dtype = torch.float32

    def __init__(self, *args: Any, dtype: torch.dtype, **kwargs: Any) -> None:
        super().__init__(*args, dtype=torch.float32, **kwargs)


def pool_class() -> type[ReferencePool]:
    """The pool for this server's --kv-cache-dtype and --dtype.

    auto: FP32 pools for a float32 model, else bf16 KV with FP8 index keys, as a Hopper GPU has.
    bf16 or bfloat16: both in bf16. fp8_e4m3: 656-byte KV rows with FP8 index keys.
    Raises ValueError for any other --kv-cache-dtype.
    """
    requested = get_server_args().kv_cache_dtype
    if requested == "auto":
        return Fp32Pool if get_model().dtype in ("float32", "float") else ReferencePool
    if requested in ("bf16", "bfloat16"):
        return Bf16Pool
    if requested == "fp8_e4m3":
        return ReferencePool
    raise ValueError(f"--kv-cache-dtype {requested}: the reference platform has auto, bfloat16 and fp8_e4m3")
