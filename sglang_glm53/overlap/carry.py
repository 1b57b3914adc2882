"""Owns the carry: each micro-batch's own selection, from layer to layer and across the split and the merge.

Two-batch overlap splits a forward into two children that run the layers in turns. A shared layer of a child
needs the selection that the same child's last full layer made, or, where the split falls inside an index
group, its rows of the parent's. It is kept on the child's own ForwardBatch, so no turn can mix them up.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch
from sglang.srt.environ import envs
from sglang.srt.layers.attention.dsa.dsa_topk_backend import TopkTransformMethod

_SELECTION = "_glm53_selection"


class Form(Enum):
    """What the numbers of a selection are; -1 is none of them in each.

    POSITIONS: of the row's request. SLOTS: of the KV pool. RAGGED: places in the batch's own KV, gathered
    request after request, so they depend on which requests are in the batch.
    """

    POSITIONS = "positions"
    SLOTS = "slots"
    RAGGED = "ragged"


def form_of(metadata: Any) -> Form:
    """The form of the selections that an indexer makes with this metadata, SGLang's DSAIndexerMetadata.

    Source: SGLang 0.5.23, layers/attention/dsa/dsa_topk_backend.py DSATopKBackend.topk_transform.
    """
    if not envs.SGLANG_DSA_FUSE_TOPK.get() or metadata.force_unfused_topk:
        return Form.POSITIONS
    return Form.RAGGED if metadata.topk_transform_method == TopkTransformMethod.RAGGED else Form.SLOTS


def keep(forward_batch: Any, selection: torch.Tensor | None) -> None:
    """Remember what the batch's next layer takes: [rows, index_topk] int32, or None."""
    setattr(forward_batch, _SELECTION, selection)


def kept(forward_batch: Any) -> torch.Tensor | None:
    """What keep() was last given for this batch; None before."""
    selection: torch.Tensor | None = getattr(forward_batch, _SELECTION, None)
    return selection


def split(parent: Any, selection: torch.Tensor | None, form: Form) -> None:
    """Keep each child's rows of the parent's selection, [rows, index_topk] int32 or None, on the child.

    Rows that pad a child select nothing: -1, since 0 is a slot. parent: a ForwardBatch with tbo_children.
    """
    for number, child in enumerate(parent.tbo_children):
        if selection is None:
            keep(child, None)
            continue
        start, end = child.tbo_parent_token_range
        rows = selection[start:end]
        if form is Form.RAGGED and number > 0:
            rows = _rebased(rows, _tokens_before(parent))
        keep(child, _padded(rows, child.tbo_padded_len))


def merge(parent: Any, width: int, form: Form) -> torch.Tensor:
    """The children's selections as the parent's, [rows, width] int32: what a pipeline stage hands on.

    A child without one (it has no tokens) leaves its rows at -1. parent: as for split().
    """
    rows = parent.input_ids.shape[0]
    merged = torch.full((rows, width), -1, dtype=torch.int32, device=parent.input_ids.device)
    for number, child in enumerate(parent.tbo_children):
        selection = kept(child)
        if selection is None:
            continue
        start, end = child.tbo_parent_token_range
        if form is Form.RAGGED and number > 0:
            selection = _rebased(selection, -_tokens_before(parent))
        merged[start:end] = selection[: end - start]
    return merged


def _tokens_before(parent: Any) -> int:
    """The KV of the parent's requests before the second child's first, cached tokens included."""
    return int(parent.seq_lens_cpu[: parent.tbo_split_seq_index].sum())


def _rebased(selection: torch.Tensor, offset: int) -> torch.Tensor:
    return torch.where(selection < 0, selection, selection - offset)


def _padded(selection: torch.Tensor, rows: int) -> torch.Tensor:
    missing = rows - selection.shape[0]
    return selection if missing <= 0 else torch.nn.functional.pad(selection, (0, 0, 0, missing), value=-1)
