"""Sparse MLA in torch over SGLang's paged KV pool: the reference platform's attention backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode

# Bounds the gathered KV of one step of the row loop; larger ones fall out of the last-level cache.
GATHER_BYTES = 32 << 20


@dataclass(frozen=True)
class RowPlan:
    """The query rows of a batch.

    requests: [rows] int64, each row's index into req_to_token.
    lengths: [rows] int64, the tokens that the row may see, itself included.
    counts: rows of each request in turn (Python ints), in batch order.
    """

    requests: torch.Tensor
    lengths: torch.Tensor
    counts: tuple[int, ...]


def plan_rows(batch: ForwardBatch) -> RowPlan:
    """Build the plan of an extend (chunked and mixed included) or decode batch.

    Raises NotImplementedError for every other mode, the speculative ones among them.
    """
    mode = batch.forward_mode
    requests, lengths = batch.req_pool_indices.long(), batch.seq_lens.long()
    if mode.is_decode_or_idle():
        return RowPlan(requests, lengths, (1,) * requests.numel())
    if mode not in (ForwardMode.EXTEND, ForwardMode.MIXED):
        raise NotImplementedError(f"the reference platform does not run {mode.name} batches")
    new, cached = batch.extend_seq_lens.long(), batch.extend_prefix_lens.long()
    starts = torch.repeat_interleave(new.cumsum(0) - new, new)
    within = torch.arange(starts.numel()) - starts
    lengths = torch.repeat_interleave(cached, new) + within + 1
    return RowPlan(torch.repeat_interleave(requests[: new.numel()], new), lengths, tuple(new.tolist()))


class ReferenceBackend(AttentionBackend):  # type: ignore[misc]
    """Attention over the selected slots only. A layer without a selection raises; there is no dense path."""

    use_mha = False

    def __init__(self, runner: Any) -> None:
        super().__init__()
        self.req_to_token: torch.Tensor = runner.req_to_token_pool.req_to_token
        self.token_to_kv_pool = runner.token_to_kv_pool
        self.kv_cache_dtype = self.data_type = runner.kv_cache_dtype
        self.plan: RowPlan | None = None

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        self.plan = plan_rows(forward_batch)

    def get_indexer_metadata(self, layer_id: int, forward_batch: ForwardBatch) -> ReferenceBackend:
        return self

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1

    def get_cpu_graph_seq_len_fill_value(self) -> int:
        return 1

    def rows(self) -> RowPlan:
        """The current batch's plan; raises RuntimeError before init_forward_metadata."""
        if self.plan is None:
            raise RuntimeError("attention ran before init_forward_metadata planned the batch")
        return self.plan

    def _forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: Any,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        q_rope: torch.Tensor | None = None,
        k_rope: torch.Tensor | None = None,
        topk_indices: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """MLA in absorbed form.

        q: [rows, heads, 512] with q_rope [rows, heads, 64]; k: [rows, 1, 512] with k_rope [rows, 1, 64].
        topk_indices: [rows, k] int32 positions, -1 where nothing is selected.
        Returns [rows, heads * 512] in q's dtype; rows that pad the batch are zero.
        Raises RuntimeError when the layer got no selection.
        """
        if topk_indices is None:
            raise RuntimeError(
                f"layer {layer.layer_id} has no selection; it must run or inherit an indexer's"
            )
        if q_rope is None or k_rope is None:
            raise RuntimeError(f"layer {layer.layer_id}: the reference backend takes q and k in two parts")
        slots = forward_batch.out_cache_loc
        if save_kv_cache and k is not None:
            n = slots.numel()
            self.token_to_kv_pool.set_mla_kv_buffer(layer, slots, k[:n], k_rope[:n])
        query = torch.cat([q.view(-1, layer.tp_q_head_num, layer.v_head_dim), q_rope], dim=-1).float()
        out = self._attend(query, topk_indices, layer)
        return out.to(q.dtype).flatten(1)

    forward_extend = forward_decode = forward_mixed = _forward

    def _attend(self, query: torch.Tensor, selection: torch.Tensor, layer: Any) -> torch.Tensor:
        plan = self.rows()
        real = plan.requests.numel()
        selection = selection[:real].long()
        # A selection is a prefix of its row, so columns past the longest one hold nothing.
        width = int((selection >= 0).sum(-1).max()) if real else 0
        selection = selection[:, :width]
        out = query.new_zeros(query.shape[0], query.shape[1], layer.v_head_dim)
        step = max(1, GATHER_BYTES // (4 * query.shape[-1] * max(width, 1)))
        for start in range(0, real, step):
            chosen = selection[start : start + step]
            requests = plan.requests[start : start + step, None]
            slots = self.req_to_token[requests, chosen.clamp(min=0)].long()
            kv = self.token_to_kv_pool.load_kv(layer.layer_id, slots)
            scores = torch.bmm(query[start : start + chosen.shape[0]], kv.transpose(1, 2)) * layer.scaling
            scores = scores.masked_fill((chosen < 0)[:, None], float("-inf"))
            weights = scores.softmax(-1)
            out[start : start + chosen.shape[0]] = torch.bmm(weights, kv[..., : layer.v_head_dim])
        return out
