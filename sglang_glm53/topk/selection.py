"""Owns the selection: SGLang's top-k of the index scores, served by indexer_topk in GLM-5.3's layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.environ import envs
from sglang.srt.layers.attention.dsa.dsa_topk_backend import TopkTransformMethod

from sglang_glm53.fusion import INDEXER_TOPK, Declined, Fusion
from sglang_glm53.kernels import backend
from sglang_glm53.kernels import indexer_topk as op

record = Fusion(INDEXER_TOPK)
_serving = False


def serve() -> None:
    """From now on the process serves GLM-5.3: its selections are ours. Called when an indexer is built."""
    global _serving
    _serving = True


def _places(
    rows: int,
    method: Any,
    metadata: Any,
    offsets: torch.Tensor | None,
    batch_idx_list: Any,
) -> dict[str, Any] | Declined:
    """How positions become what the attention reads, as arguments of indexer_topk; or why they cannot."""
    if method == TopkTransformMethod.RAGGED:
        if offsets is None or offsets.shape[0] != rows:
            return Declined("the rows and the offsets into the ragged KV differ")
        return {"out_offsets": offsets}
    table = {"page_table": metadata.real_page_table, "page_size": metadata.page_size}
    request = metadata.token_to_batch_idx if batch_idx_list is None else batch_idx_list
    if isinstance(request, list):
        return Declined("prefill context parallelism lists its requests on the host")
    if request is not None and request.shape[0] == rows:
        return {**table, "row_to_request": request}
    if batch_idx_list is None and metadata.real_page_table.shape[0] == rows:
        return table
    return Declined("the rows and the lines of the page table differ")


def _select(
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
) -> torch.Tensor | Declined:
    """The selection by indexer_topk, or why SGLang must select; its arguments are topk_transform's."""
    if not topk_backend.is_sgl_kernel():
        return Declined(f"--dsa-topk-backend {topk_backend.value} is asked for")
    if lengths.shape[0] != logits.shape[0]:
        return Declined("the rows and the lengths differ")
    if why := op.declines(logits, topk):
        return why
    places: dict[str, Any] = {}
    if envs.SGLANG_DSA_FUSE_TOPK.get() and not force_unfused_topk:
        rows = logits.shape[0]
        found = _places(rows, topk_transform_method, attn_metadata, topk_indices_offset, batch_idx_list)
        if isinstance(found, Declined):
            return found
        places = found
    places["row_starts"] = row_starts
    for name, value in places.items():
        if isinstance(value, torch.Tensor):
            places[name] = value.to(torch.int32)
    how = backend.implementation(logits.device)
    slots = op.indexer_topk(logits, lengths.to(torch.int32), topk, **places, how=how).slots
    record.ran[how] += 1
    return slots


def topk_transform(original: Callable[..., Any], topk_backend: Any, *args: Any, **named: Any) -> torch.Tensor:
    """AROUND DSATopKBackend.topk_transform: the same result, by indexer_topk where it takes the call.

    Returns [rows, topk] int32: slots (paged), places in the gathered KV (ragged) or positions (unfused), in
    ascending order of position and padded with -1. Other models' calls pass through.
    Source: SGLang 0.5.23, layers/attention/dsa/dsa_topk_backend.py DSATopKBackend.topk_transform.
    """
    if _serving and is_on():
        found = _select(topk_backend, *args, **named)
        if not isinstance(found, Declined):
            return found
        record.decline(found)
    result: torch.Tensor = original(topk_backend, *args, **named)
    return result


def is_on() -> bool:
    """Whether GLM53_DISABLE leaves the fusion on."""
    return INDEXER_TOPK not in backend.settings().disabled


def fusion() -> Fusion:
    """The selection's record in this process; ran by implementation."""
    return record if is_on() else Fusion.switched_off(INDEXER_TOPK)
