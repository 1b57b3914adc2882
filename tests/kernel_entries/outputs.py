"""Owns what the intercepted entries return: shapes and dtypes that the caller reads, never values."""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from sglang_glm53.kernels.cards import cards

# The logits of one decode step over a page table of this many tokens.
CONTEXT = 8192


def _sparse_decode(q: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    rows, queries, heads, _ = q.shape
    out = q.new_empty(rows, queries, heads, 512)
    return out, q.new_empty(rows, heads, queries, dtype=torch.float32), None, None


def _index_logits(q: Any, *_: Any, **__: Any) -> torch.Tensor:
    query = q[0] if isinstance(q, tuple | list) else q
    return query.new_empty(query.shape[0] * query.shape[1], CONTEXT, dtype=torch.float32)


def _packed_scales(scales: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    *outer, rows, columns = scales.shape
    packed = scales.new_empty(*outer, (columns + 3) // 4, (rows + 3) // 4 * 4, dtype=torch.int32)
    return packed.transpose(-1, -2)[..., :rows, :]


def _is_column_major(scales: torch.Tensor) -> bool:
    rows = _tma_aligned(scales.shape[-2], scales.element_size())
    outer = scales.dim() == 2 or scales.stride(0) == rows * scales.shape[-1]
    return bool(outer and scales.stride(-2) == 1 and scales.stride(-1) == rows)


def _column_major(scales: torch.Tensor) -> torch.Tensor:
    if _is_column_major(scales):
        return scales
    *outer, rows, columns = scales.shape
    aligned = scales.new_empty(*outer, columns, _tma_aligned(rows, scales.element_size()))
    return aligned.transpose(-1, -2)[..., :rows, :]


def _tma_aligned(rows: int, element_bytes: int) -> int:
    per_line = 16 // element_bytes
    return -(-rows // per_line) * per_line


def _trtllm_decode(query: torch.Tensor, *_: Any, out: Any = None, kv_lora_rank: int = 512, **__: Any) -> Any:
    return query.new_empty(*query.shape[:-1], kv_lora_rank, dtype=torch.bfloat16) if out is None else out


def _index_schedule(lengths: torch.Tensor, page: int, sms: int, *_: Any, **__: Any) -> torch.Tensor:
    return lengths.new_empty(sms + 1, 2)


def _trtllm_experts(*_: Any, hidden_states: torch.Tensor, output: Any = None, **__: Any) -> torch.Tensor:
    return hidden_states.new_empty(hidden_states.shape, dtype=torch.bfloat16) if output is None else output


def _attention_schedule(lengths: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    return lengths.new_empty(sms, 8), lengths.new_empty(lengths.shape[0] + 1)


# Operators of torch's dispatcher that return something.
OPERATORS: dict[str, Callable[..., Any]] = {
    "flash_mla_legacy get_mla_decoding_metadata": _attention_schedule,
    "flash_mla_legacy sparse_decode_fwd": _sparse_decode,
    "deep_gemm fp8_paged_mqa_logits": _index_logits,
    "deep_gemm fp8_fp4_paged_mqa_logits": _index_logits,
    "deep_gemm get_paged_mqa_logits_metadata": _index_schedule,
    "deep_gemm get_mn_major_tma_aligned_tensor": _column_major,
    "deep_gemm get_mn_major_tma_aligned_packed_ue8m0_tensor": _packed_scales,
    "deep_gemm get_tma_aligned_size": _tma_aligned,
}
# Operators that answer on the host, or return their argument when it is already in order.
FREE: dict[str, Callable[..., bool]] = {
    "deep_gemm get_tma_aligned_size": lambda *_, **__: True,
    "deep_gemm get_mn_major_tma_aligned_tensor": _is_column_major,
}
# This package's operators run as on a GPU, so that what they start is seen, a fallback too.
BODIES: dict[str, Callable[..., Any]] = {
    f"glm53 {stem}": importlib.import_module(f"sglang_glm53.kernels.{stem}")._run for stem in cards()
}
# Python functions that were replaced and return something.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "flashinfer trtllm_batch_decode_with_kv_cache_mla": _trtllm_decode,
    "flashinfer trtllm_fp8_block_scale_moe": _trtllm_experts,
}
# Functions of compiled modules that answer a question and start nothing.
QUERIES: dict[str, Callable[..., Any]] = {"get_max_active_clusters": lambda *_, **__: 16}


class _DeepEPConfig:
    """Stands in for DeepEP's buffer sizes."""

    def __init__(self, *_: Any) -> None:
        pass

    def get_nvl_buffer_size_hint(self, *_: Any) -> int:
        return 1 << 20

    get_rdma_buffer_size_hint = get_nvl_buffer_size_hint


def _deep_ep_buffer(note: Callable[[str, str], None]) -> type:
    class Buffer:
        """Stands in for DeepEP's buffer: the token rows of every rank, in FP8 with one scale per 128."""

        def __init__(self, group: Any, *_: Any, low_latency_mode: bool = False, **__: Any) -> None:
            self.group_size, self.low_latency_mode = group.size(), low_latency_mode

        @staticmethod
        def get_low_latency_rdma_size_hint(*_: Any) -> int:
            return 1 << 30

        @staticmethod
        def get_dispatch_config(*_: Any) -> Any:
            return _DeepEPConfig()

        get_combine_config = get_dispatch_config

        def low_latency_dispatch(
            self,
            x: Any,
            topk_idx: Any,
            most: int,
            experts: int,
            *,
            use_fp8: bool,
            use_ue8m0: bool = False,
            **_: Any,
        ) -> tuple[Any, ...]:
            note("deep_ep", "low_latency_dispatch")
            local, rows, hidden = experts // self.group_size, self.group_size * most, x.shape[1]
            received = x.new_empty(local, rows, hidden, dtype=torch.float8_e4m3fn if use_fp8 else x.dtype)
            count = x.new_empty(local, dtype=torch.int32)
            if use_fp8:
                columns, dtype = (hidden // 512, torch.int32) if use_ue8m0 else (hidden // 128, torch.float32)
                scales = x.new_empty(local, columns, rows, dtype=dtype).transpose(1, 2)
                received = (received, scales)
            return received, count, object(), None, lambda: None

        def low_latency_combine(self, *, x: Any, topk_idx: Any, **_: Any) -> tuple[Any, ...]:
            note("deep_ep", "low_latency_combine")
            return x.new_empty(topk_idx.shape[0], x.shape[-1], dtype=torch.bfloat16), None, lambda: None

    return Buffer


def deep_ep(note: Callable[[str, str], None]) -> types.ModuleType:
    """A DeepEP whose low-latency dispatch and combine are entries."""
    module = types.ModuleType("deep_ep")
    module.Buffer, module.Config = _deep_ep_buffer(note), _DeepEPConfig
    return module


def communicator(note: Callable[[str, str], None]) -> type:
    """PyNCCL's communicator: its collectives are entries and move nothing."""

    class Communicator:
        """Stands in for PyNcclCommunicator; what it lacks is an AttributeError."""

        disabled, available = False, True

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        @contextmanager
        def change_state(self, *_: Any, **__: Any) -> Iterator[None]:
            yield

        def all_reduce(self, *_: Any, **__: Any) -> None:
            note("nccl", "all_reduce")

        def all_gather(self, *_: Any, **__: Any) -> None:
            note("nccl", "all_gather")

        def reduce_scatter(self, *_: Any, **__: Any) -> None:
            note("nccl", "reduce_scatter")

    return Communicator


def custom_all_reduce(note: Callable[[str, str], None]) -> type:
    """SGLang's own all-reduce for small tensors over NVLink, as an entry."""

    class CustomAllReduce:
        """Stands in for the communicator that dispatch_custom_allreduce picks on a node with NVLink."""

        disabled = False

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def should_custom_ar(self, _: torch.Tensor) -> bool:
            return True

        def custom_all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
            note("custom_all_reduce", "custom_all_reduce")
            return torch.empty_like(tensor)

    return CustomAllReduce
