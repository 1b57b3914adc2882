"""Owns the selection: SGLang's top-k of the index scores, served by indexer_topk in GLM-5.3's layers."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.environ import envs
from sglang.srt.layers.attention.dsa.dsa_topk_backend import TopkTransformMethod

from sglang_glm53.kernels import backend
from sglang_glm53.kernels import indexer_topk as op

logger = logging.getLogger("sglang_glm53")

OTHER_MODEL = "another model"

# Why calls were left to SGLang; counted in Python, so a replayed CUDA graph adds nothing.
fallbacks: Counter[str] = Counter()
_serving = False


def serve() -> None:
    """From now on the process serves GLM-5.3: its selections are ours. Called when an indexer is built."""
    global _serving
    _serving = True


@functools.cache
def _log_decline(reason: str) -> None:
    logger.info("the selection is left to SGLang: %s", reason)


def _places(
    rows: int,
    method: Any,
    metadata: Any,
    offsets: torch.Tensor | None,
    batch_idx_list: Any,
) -> dict[str, Any] | str:
    """How positions become what the attention reads, as arguments of indexer_topk; or why they cannot."""
    if method == TopkTransformMethod.RAGGED:
        if offsets is None or offsets.shape[0] != rows:
            return "the rows and the offsets into the ragged KV differ"
        return {"out_offsets": offsets}
    table = {"page_table": metadata.real_page_table, "page_size": metadata.page_size}
    request = metadata.token_to_batch_idx if batch_idx_list is None else batch_idx_list
    if isinstance(request, list):
        return "prefill context parallelism lists its requests on the host"
    if request is not None and request.shape[0] == rows:
        return {**table, "row_to_request": request}
    if batch_idx_list is None and metadata.real_page_table.shape[0] == rows:
        return table
    return "the rows and the lines of the page table differ"


def _choose(
    topk_backend: Any,
    logits: torch.Tensor,
    lengths: torch.Tensor,
    topk: int,
    topk_transform_method: Any,
    attn_metadata: Any,
    cu_seqlens_q_topk: torch.Tensor | None = None,
    topk_indices_offset: torch.Tensor | None = None,
    row_starts: torch.Tensor | None = None,
    batch_idx_list: Any = None,
    force_unfused_topk: bool = False,
) -> torch.Tensor | str:
    """The selection by indexer_topk, or why SGLang must select; its arguments are topk_transform's."""
    if not topk_backend.is_sgl_kernel():
        return f"--dsa-topk-backend {topk_backend.value} is asked for"
    if lengths.shape[0] != logits.shape[0]:
        return "the rows and the lengths differ"
    if reason := op.declines(logits, topk):
        return reason
    places: dict[str, Any] = {}
    if envs.SGLANG_DSA_FUSE_TOPK.get() and not force_unfused_topk:
        rows = logits.shape[0]
        found = _places(rows, topk_transform_method, attn_metadata, topk_indices_offset, batch_idx_list)
        if isinstance(found, str):
            return found
        places = found
    places["row_starts"] = row_starts
    for name, value in places.items():
        if isinstance(value, torch.Tensor):
            places[name] = value.to(torch.int32)
    return op.indexer_topk(logits, lengths.to(torch.int32), topk, **places).slots


def topk_transform(original: Callable[..., Any], topk_backend: Any, *args: Any, **named: Any) -> torch.Tensor:
    """AROUND DSATopKBackend.topk_transform: the same result, by indexer_topk where it takes the call.

    Returns [rows, topk] int32: slots (paged), places in the gathered KV (ragged) or positions (unfused), in
    ascending order of position and padded with -1. Other models' calls pass through.
    Source: SGLang 0.5.23, layers/attention/dsa/dsa_topk_backend.py DSATopKBackend.topk_transform.
    """
    found: torch.Tensor | str = OTHER_MODEL
    if _serving:
        found = _choose(topk_backend, *args, **named)
    if not isinstance(found, str):
        return found
    if _serving:
        fallbacks[found] += 1
        _log_decline(found)
    result: torch.Tensor = original(topk_backend, *args, **named)
    return result


def describe() -> dict[str, Any]:
    """The selection's state and its counters in this process, in builtin types.

    ran: calls of indexer_topk by implementation. fallbacks: calls that it did not take, by reason.
    """
    stem = op.CARD.stem
    declined = {reason: count for (own, reason), count in backend.declined.items() if own == stem}
    off = stem in backend.settings().disabled
    return {
        "stem": stem,
        "state": "off" if off else "on",
        "reason": op.CARD.declines["disabled"] if off else None,
        "ran": {how: count for (own, how), count in backend.ran.items() if own == stem},
        "fallbacks": dict(fallbacks + Counter(declined)),
    }
