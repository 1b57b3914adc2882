"""The lightning indexer in torch: index keys into the pool, scores, and the selection of positions."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.model_executor.forward_context import get_attn_backend
from sglang.srt.state_capturer.indexer_topk import maybe_capture_indexer_topk

from sglang_glm53.cpu.attention import ReferenceBackend, RowPlan
from sglang_glm53.cpu.layout import quantise_index
from sglang_glm53.kernels import indexer_topk as op
from sglang_glm53.kernels.backend import choose
from sglang_glm53.topk.selection import is_on, record

# Bounds the per-head scores of one step, [requests, rows, heads, positions] float32.
SCORE_BYTES = 32 << 20


def select(scores: torch.Tensor, lengths: torch.Tensor, k: int, **places: Any) -> torch.Tensor:
    """The selection of the k largest scores of each row, ties to the lowest position, in ascending order.

    scores: [rows, width] float32. lengths: [rows] int64, positions the row may see, at most width.
    places: how positions become what the attention reads, as indexer_topk takes it; none: they stay.
    Returns [rows, k] int32, padded with -1.
    """
    # The kernel takes rows that start at multiples of 16 bytes.
    aligned = F.pad(scores, (0, -scores.shape[1] % 4))
    # There is no SGLang kernel to leave it to: switched off, it is torch's.
    how = choose(op.CARD.stem, aligned.device, op.declines(aligned, k)) if is_on() else "torch"
    record.ran[how] += 1
    return op.indexer_topk(aligned, lengths.to(torch.int32), k, **places, how=how).slots


def _project(
    indexer: Any, x: torch.Tensor, q_lora: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Index queries [rows, heads, 128], keys [rows, 128] and head weights [rows, heads], all float32."""
    rope = indexer.rope_head_dim
    query = indexer.wq_b(q_lora)[0].view(-1, indexer.n_heads, indexer.head_dim)
    norm = indexer.k_norm
    key = F.layer_norm(
        indexer.wk(x)[0].float(),
        (indexer.head_dim,),
        norm.weight.float(),
        norm.bias.float(),
        norm.variance_epsilon,
    )
    query_rope, key_rope = indexer.rotary_emb(
        positions, query[..., :rope].float().contiguous(), key[:, None, :rope].contiguous()
    )
    query = torch.cat([query_rope, query[..., rope:].float()], dim=-1)
    key = torch.cat([key_rope[:, 0], key[:, rope:]], dim=-1)
    # weights_proj is bf16 in every checkpoint; on CUDA it is one bf16 GEMM with wk.
    weights = F.linear(x.float(), indexer.weights_proj.weight.float()).to(x.dtype).float()
    return query, key, weights * (indexer.n_heads**-0.5 * indexer.softmax_scale)


def _score(query: torch.Tensor, keys: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """sum_h w_h * relu(q_h . k): query [b, n, h, d], keys [b, l, d], weights [b, n, h] -> [b, n, l]."""
    b, n, h, d = query.shape
    dots = torch.bmm(query.reshape(b, n * h, d), keys.transpose(1, 2)).relu_().view(b * n, h, -1)
    return torch.bmm(weights.reshape(b * n, 1, h), dots).view(b, n, -1)


def _rows_by_count(plan: RowPlan) -> dict[int, torch.Tensor]:
    """Row indices [requests, count] of the requests with count rows: equal ones run as one batch."""
    groups: dict[int, list[int]] = {}
    start = 0
    for count in plan.counts:
        if count:
            groups.setdefault(count, []).append(start)
        start += count
    return {n: torch.tensor(first)[:, None] + torch.arange(n) for n, first in groups.items()}


def _select_rows(
    backend: ReferenceBackend, layer_id: int, query: torch.Tensor, weights: torch.Tensor, k: int
) -> torch.Tensor:
    """The selection of every real row: query [rows, heads, 128], weights [rows, heads] -> [rows, k] int32."""
    plan, pool = backend.rows(), backend.token_to_kv_pool
    selection = torch.full((query.shape[0], k), -1, dtype=torch.int32)
    for count, rows in _rows_by_count(plan).items():
        width = int(plan.lengths[rows].max())
        slots = backend.req_to_token[plan.requests[rows[:, 0]], :width].long()
        keys = pool.load_index_keys(layer_id, slots)
        step = max(1, SCORE_BYTES // (4 * rows.shape[0] * query.shape[1] * width))
        for start in range(0, count, step):
            part = rows[:, start : start + step]
            flat = part.flatten()
            scores = _score(query[part], keys, weights[part]).flatten(0, 1)
            selection[flat] = select(scores, plan.lengths[flat], k, **backend.places(flat))
    return selection


def indexer_forward(
    self: Any,
    x: torch.Tensor,
    q_lora: torch.Tensor,
    positions: torch.Tensor,
    forward_batch: ForwardBatch,
    layer_id: int,
    return_indices: bool = True,
    use_cuda_graph: bool = False,
) -> torch.Tensor | None:
    """Store the new index keys and return the selection.

    x: [rows, hidden]; q_lora: [rows, q_lora_rank]; positions: [rows] int64.
    Returns [rows, index_topk] int32, in the form of the backend's selections, in ascending order of position
    and padded with -1; rows that pad the batch are all -1.
    Source: SGLang 0.5.23, layers/attention/dsa/dsa_indexer.py Indexer.forward_cuda.
    """
    backend = get_attn_backend()
    rows = x.shape[0]
    if rows == 0 or forward_batch.forward_mode.is_idle():
        return torch.full((rows, self.index_topk), -1, dtype=torch.int32) if return_indices else None
    query, key, weights = _project(self, x, q_lora, positions)
    # Rows that pad the batch write no key.
    slots = forward_batch.out_cache_loc[: backend.rows().requests.numel()].long()
    backend.token_to_kv_pool.store_index_keys(layer_id, slots, key[: slots.numel()])
    if not return_indices:
        return None
    if backend.token_to_kv_pool.quantises_index:
        values, scales = quantise_index(query)
        query, weights = values.float(), weights * scales.squeeze(-1)
    selection = _select_rows(backend, layer_id, query, weights, self.index_topk)
    return maybe_capture_indexer_topk(layer_id, selection)  # type: ignore[no-any-return]
