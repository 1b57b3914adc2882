"""What SGLang takes from CUDA without asking the platform, answered for the reference platform."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

# Argument resolution asks CUDA for a capability before any platform is consulted
# (arg_groups/overrides.py:509); Hopper's answer selects the layouts that the pools here have.
STAND_IN_CAPABILITY = (9, 0)


class PastEvent:
    """torch.cuda.Event where work is done before the call that starts it returns: it lies in the past."""

    def record(self, stream: object = None) -> None:
        """Mark the work so far; all of it is done."""

    def synchronize(self) -> None:
        """Wait for that work."""


def stand_in_for_cuda() -> None:
    """Answer for torch.cuda where SGLang asks it. Raises RuntimeError when there is a GPU to ask."""
    if torch.cuda.is_available():
        raise RuntimeError(
            "SGLANG_PLATFORM=glm53_cpu needs a process that sees no GPU: set CUDA_VISIBLE_DEVICES= (empty)"
        )
    torch.cuda.get_device_capability = lambda device=None: STAND_IN_CAPABILITY
    torch.cuda.synchronize = lambda device=None: None
    # A prefill server records one before it sends a cached prefix (disaggregation/prefill.py:1496).
    torch.cuda.Event = PastEvent  # type: ignore[assignment, misc]


def rope_without_device(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """AROUND get_rope_wrapper: the device "cpu" would choose an embedding that needs AMX; leave it out."""
    kwargs.pop("device", None)
    return original(*args[:8], **kwargs, device=None)


def threads_for_rank(original: Callable[..., Any], *, numa_index: int, world_size: int) -> Any:
    """AROUND init_threads_binding: share the cores when there are more ranks than NUMA nodes.

    Upstream asserts then, unless SGLANG_CPU_OMP_THREADS_BIND is set (utils/numa_utils.py:460).
    """
    from sglang.srt.utils import numa_utils

    if world_size <= len(numa_utils.get_cpu_ids_by_node()):
        return original(numa_index=numa_index, world_size=world_size)
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // world_size)
    torch.set_num_threads(share)
    first = numa_index * share % len(cores)
    return ",".join(str(core) for core in cores[first : first + share])


def unregistered_memory(
    dims: tuple[int, ...], *, dtype: torch.dtype, device: str, **pinning: Any
) -> torch.Tensor:
    """Host memory, [*dims] of dtype, that is not registered with CUDA: there is no device to copy from it."""
    return torch.empty(dims, dtype=dtype, device=device)


def index_capturer(*, model_config: Any, num_tokens: int, max_running_requests: int, device: str) -> Any:
    """Replaces create_indexer_capturer, which knows that no indexer of SGLang's own feeds one on a CPU."""
    from sglang.srt.configs.model_config import get_num_indexer_layers
    from sglang.srt.runtime_context import get_exec
    from sglang.srt.state_capturer import indexer_topk

    return indexer_topk._create_indexer_capturer_raw(
        enable=get_exec().features.enable_return_indexer_topk,
        num_indexer_layers=get_num_indexer_layers(model_config.hf_text_config),
        index_topk=model_config.hf_text_config.index_topk,
        num_tokens=num_tokens,
        max_running_requests=max_running_requests,
        device=device,
    )


def set_module_flags() -> None:
    """Set the globals by which upstream picks torch over pinned memory, Triton and CUDA's bmm."""
    import sglang.srt.disaggregation.mooncake.conn as mooncake
    import sglang.srt.layers.dp_attention as dp_attention
    import sglang.srt.layers.moe.ep_moe.layer as ep_moe
    import sglang.srt.mem_cache.pool_host.common as host_pools
    import sglang.srt.model_executor.forward_batch_info as forward_batch_info
    import sglang.srt.models.deepseek_common.deepseek_weight_loader as weight_loader

    from sglang_glm53.cpu.fp8 import dequantise_kv_b

    forward_batch_info._is_cpu = True
    # A prefill hands page indices over without the pinned copy and the event that a GPU's stream needs.
    mooncake.MooncakeKVSender.supports_host_tensor_indices = False
    # What a request asks back of its experts or selections lies in a host pool.
    host_pools.ALLOC_MEMORY_FUNCS["cpu"] = unregistered_memory
    dp_attention.memcpy_func = dp_attention.memcpy_cpu
    # Behind a dispatcher the experts run by their quantisation method, not by DeepGEMM.
    ep_moe._is_npu = True
    # The branch that dequantises kv_b_proj by blocks; the other one makes it per-tensor FP8 for CUDA's bmm.
    weight_loader._is_xpu = True
    weight_loader.block_quant_dequant = dequantise_kv_b
