"""Owns the stages: how the two micro-batches take turns, where the overlap starts, and what overlapped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from sglang.srt.batch_overlap.operations import YieldOperation
from sglang.srt.batch_overlap.operations_strategy import OperationsStrategy
from sglang.srt.layers.moe import is_tbo_enabled
from sglang.srt.layers.moe.token_dispatcher import DeepEPConfig
from sglang.srt.model_executor.forward_batch_info import ForwardMode


@dataclass(frozen=True)
class Stages:
    """The operations of one layer in stages; the micro-batches take turns after each.

    delta: by how many stages the second micro-batch runs behind the first.
    """

    delta: int
    stages: tuple[tuple[str, ...], ...]


# While one micro-batch's tokens travel to their experts or back, the other computes. SGLang's own order
# (batch_overlap/operations_strategy.py _compute_moe_deepseek_blog_prefill and ..._decode): the shared expert
# runs under the combine in prefill, where it is long, and under the dispatch in decode.
PREFILL = Stages(
    delta=0,
    stages=(
        (
            "op_comm_prepare_attn",
            "self_attn.op_prepare",
            "self_attn.op_core",
            "op_comm_prepare_mlp",
            "mlp.op_gate",
            "mlp.op_select_experts",
            "mlp.op_dispatch_a",
        ),
        ("mlp.op_dispatch_b", "mlp.op_experts", "mlp.op_combine_a"),
        ("mlp.op_shared_experts", "mlp.op_combine_b", "mlp.op_output", "op_comm_postprocess_layer"),
    ),
)
DECODE = Stages(
    delta=2,
    stages=(
        ("op_comm_prepare_attn", "self_attn.op_prepare"),
        ("self_attn.op_core", "op_comm_prepare_mlp", "mlp.op_gate", "mlp.op_select_experts"),
        ("mlp.op_dispatch_a", "mlp.op_shared_experts"),
        ("mlp.op_dispatch_b", "mlp.op_experts", "mlp.op_combine_a"),
        ("mlp.op_combine_b",),
        ("mlp.op_output", "op_comm_postprocess_layer"),
    ),
)
BY_MODE = {ForwardMode.EXTEND: PREFILL, ForwardMode.DECODE: DECODE, ForwardMode.TARGET_VERIFY: DECODE}

# Forwards by mode, and how many dispatches were under way at once; counted in Python, so a replayed CUDA
# graph adds nothing.
overlapped: Counter[str] = Counter()
alone: Counter[str] = Counter()
_under_way = 0
_most_under_way = 0


def start_layer(first_layer: int, num_dense_layers: int) -> int:
    """The first layer of a pipeline stage that the two micro-batches run in turns.

    The dense layers have nothing to overlap with, and the stage's first layer runs whole: it takes what the
    stage before handed over. first_layer: the stage's.
    """
    return max(num_dense_layers, first_layer + 1)


def init_new_tbo(
    original: Callable[..., OperationsStrategy], layers: Iterable[Any], forward_mode: ForwardMode
) -> OperationsStrategy:
    """AROUND OperationsStrategy.init_new_tbo: the stages of GLM-5.3's layers; other models' are SGLang's.

    Raises NotImplementedError for a mode that has no stages.
    Source: SGLang 0.5.23, batch_overlap/operations_strategy.py OperationsStrategy.init_new_tbo.
    """
    listed = list(layers)
    if not getattr(listed[0], "overlaps_with_carry", False):
        return original(layers, forward_mode)
    if forward_mode not in BY_MODE:
        raise NotImplementedError(f"two-batch overlap does not run {forward_mode.name} batches")
    chosen = BY_MODE[forward_mode]
    return OperationsStrategy(
        operations=[operation for layer in listed for operation in _operations(layer, chosen)],
        deep_gemm_num_sms=_products_sms() if chosen is PREFILL else None,
        tbo_delta_stages=chosen.delta,
    )


def _operations(layer: Any, chosen: Stages) -> list[Any]:
    """The layer's operations with a yield between two stages: neighbouring layers share a stage."""
    operations: list[Any] = []
    for number, stage in enumerate(chosen.stages):
        if number:
            operations.append(YieldOperation())
        operations += [reduce(getattr, name.split("."), layer) for name in stage]
    return operations


def _products_sms() -> int | None:
    """The SMs that DeepGEMM may take in prefill: all but DeepEP's in normal mode. None without a GPU."""
    if not torch.cuda.is_available():
        return None
    total = torch.cuda.get_device_properties("cuda").multi_processor_count
    return int(total - DeepEPConfig.get_instance().num_sms)


def count(forward_batch: Any) -> None:
    """Count a forward of the model by whether it overlaps; nothing where the overlap is off."""
    if is_tbo_enabled():
        (overlapped if forward_batch.can_run_tbo else alone)[forward_batch.forward_mode.name] += 1


def dispatched() -> None:
    """A micro-batch's tokens are on their way to the experts."""
    global _under_way, _most_under_way
    _under_way += 1
    _most_under_way = max(_most_under_way, _under_way)


def arrived() -> None:
    """They are there."""
    global _under_way
    _under_way -= 1


def describe(first_overlapped: int) -> dict[str, Any]:
    """The overlap's state and counters in this process, in builtin types.

    first_overlapped: the model's first layer that overlaps.
    """
    return {
        "state": "on" if is_tbo_enabled() else "off",
        "reason": None if is_tbo_enabled() else "--enable-two-batch-overlap is not given",
        "note": "SGLang captures no breakable prefill graphs with it" if is_tbo_enabled() else None,
        "first_layer": first_overlapped if is_tbo_enabled() else None,
        "overlapped": dict(overlapped),
        "alone": dict(alone),
        "most_dispatches_under_way": _most_under_way,
    }
