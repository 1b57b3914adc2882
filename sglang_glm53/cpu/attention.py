"""Sparse MLA in torch over SGLang's paged KV pool: the reference platform's attention backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.attention.dsa.dsa_topk_backend import TopkTransformMethod
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode

from sglang_glm53.overlap.carry import Form, form_of

# Bounds the gathered KV of one step of the row loop; larger ones fall out of the last-level cache.
GATHER_BYTES = 32 << 20


@dataclass(frozen=True)
class RowPlan:
    """The query rows of a batch, those that pad it left out.

    requests: [rows] int64, each row's index into req_to_token.
    lengths: [rows] int64, the tokens that the row may see, itself included.
    counts: rows of each request in turn (Python ints), in batch order.
    """

    requests: torch.Tensor
    lengths: torch.Tensor
    counts: tuple[int, ...]


# Their rows follow the cached prefix of their requests. A draft-extend reruns the rows of a verify.
EXTENDING = (ForwardMode.EXTEND, ForwardMode.MIXED, ForwardMode.DRAFT_EXTEND_V2)


def plan_rows(batch: ForwardBatch) -> RowPlan:
    """Build the plan of an extend (chunked, mixed and draft-extend included), decode or verify batch.

    A draft step is a decode whose length is that of the verified tokens, so it sees no draft, not even its
    own; SGLang's sparse backend gives it that length too (layers/attention/dsa_backend.py
    DeepseekSparseAttnBackend.init_forward_metadata).
    Raises NotImplementedError for every other mode.
    """
    mode = batch.forward_mode
    requests, lengths = batch.req_pool_indices.long(), batch.seq_lens.long()
    if mode.is_decode_or_idle() or mode.is_target_verify():
        width = batch.spec_info.draft_token_num if mode.is_target_verify() else 1
        real = batch.global_num_token_non_padded_cpu
        if real is not None:
            requests, lengths = requests[: real // width], lengths[: real // width]
        # A verify's length is that of the tokens before it, a decode's counts the new one.
        after = torch.arange(1, width + 1) if mode.is_target_verify() else torch.zeros(1, dtype=torch.int64)
        counts = (width,) * requests.numel()
        return RowPlan(requests.repeat_interleave(width), (lengths[:, None] + after).flatten(), counts)
    if mode not in EXTENDING:
        raise NotImplementedError(f"the reference platform does not run {mode.name} batches")
    new, cached = batch.extend_seq_lens.long(), batch.extend_prefix_lens.long()
    starts = torch.repeat_interleave(new.cumsum(0) - new, new)
    within = torch.arange(starts.numel()) - starts
    lengths = torch.repeat_interleave(cached, new) + within + 1
    return RowPlan(torch.repeat_interleave(requests[: new.numel()], new), lengths, tuple(new.tolist()))


@dataclass(frozen=True)
class GatheredKV:
    """The KV of a prefill's requests, one after another, cached tokens included.

    slots: [tokens] int64. offsets: [rows] int64, where each query row's request begins.
    """

    slots: torch.Tensor
    offsets: torch.Tensor


def gather_kv(batch: ForwardBatch, req_to_token: torch.Tensor) -> GatheredKV:
    """Build it for an extend batch.

    Source: SGLang 0.5.23, layers/attention/dsa_backend.py DeepseekSparseAttnBackend.init_forward_metadata.
    """
    new, lengths = batch.extend_seq_lens.long(), batch.seq_lens[: batch.extend_seq_lens.numel()].long()
    requests = zip(batch.req_pool_indices.tolist(), lengths.tolist(), strict=False)
    slots = [req_to_token[request, :length].long() for request, length in requests]
    return GatheredKV(torch.cat(slots), torch.repeat_interleave(lengths.cumsum(0) - lengths, new))


class ReferenceBackend(AttentionBackend):  # type: ignore[misc]
    """Attention over the selected slots alone. A layer without a selection raises; there is no dense path.

    Its selections have the forms that they have on a GPU with an FP8 cache: slots in decode; in prefill
    places in the batch's own KV, gathered request after request (SGLang's RAGGED); positions with
    SGLANG_DSA_FUSE_TOPK=0, or where it is made with force_unfused_topk. So what depends on the batch there
    depends on it here. It is its own metadata.
    """

    use_mha = False

    def __init__(self, runner: Any, force_unfused_topk: bool = False) -> None:
        super().__init__()
        self.force_unfused_topk = force_unfused_topk
        self.req_to_token_pool = runner.req_to_token_pool
        self.req_to_token: torch.Tensor = runner.req_to_token_pool.req_to_token
        self.token_to_kv_pool = runner.token_to_kv_pool
        self.kv_cache_dtype = self.data_type = runner.kv_cache_dtype
        self.max_context_len = self.req_to_token.shape[1]
        self.plan: RowPlan | None = None
        self.topk_transform_method = TopkTransformMethod.PAGED
        self.gathered: GatheredKV | None = None

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        self.plan = plan_rows(forward_batch)
        self.gathered = None
        self.topk_transform_method = TopkTransformMethod.PAGED
        if forward_batch.forward_mode == ForwardMode.EXTEND:
            self.gathered = gather_kv(forward_batch, self.req_to_token)
            self.topk_transform_method = TopkTransformMethod.RAGGED

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
        topk_indices: [rows, k] int32 in the form of the batch's mode, -1 where nothing is selected.
        Returns [rows, heads * 512] in q's dtype; rows that pad the batch are zero.
        Raises RuntimeError when the layer got no selection.
        """
        if topk_indices is None:
            raise RuntimeError(
                f"layer {layer.layer_id} has no selection; it must run or inherit an indexer's"
            )
        if q_rope is None or k_rope is None:
            raise RuntimeError(f"layer {layer.layer_id}: the reference backend takes q and k in two parts")
        if save_kv_cache and k is not None:
            n = self.rows().requests.numel()
            slots = forward_batch.out_cache_loc[:n]
            self.token_to_kv_pool.set_mla_kv_buffer(layer, slots, k[:n], k_rope[:n])
        query = torch.cat([q.view(-1, layer.tp_q_head_num, layer.v_head_dim), q_rope], dim=-1).float()
        out = self._attend(query, topk_indices, layer)
        return out.to(q.dtype).flatten(1)

    forward_extend = forward_decode = forward_mixed = _forward

    def forward(
        self,
        q: torch.Tensor,
        k: Any,
        v: Any,
        layer: Any,
        forward_batch: ForwardBatch,
        *rest: Any,
        **named: Any,
    ) -> torch.Tensor:
        """Upstream's choice by mode, but zeros for an idle attention-DP rank: upstream gives memory as it is.

        Such a rank still has a row, and the experts which that row is routed to multiply one row more, which
        rounds the others' products otherwise: the bits of an answer would depend on what the memory held.
        """
        if forward_batch.forward_mode.is_idle():
            return q.new_zeros(q.shape[0], layer.tp_q_head_num * layer.v_head_dim)
        out: torch.Tensor = super().forward(q, k, v, layer, forward_batch, *rest, **named)
        return out

    def places(self, rows: torch.Tensor) -> dict[str, Any]:
        """How the positions of these rows become a selection, as arguments of indexer_topk. rows: int64."""
        form = form_of(self)
        if form is Form.RAGGED and self.gathered is not None:
            return {"out_offsets": self.gathered.offsets[rows].to(torch.int32)}
        if form is Form.SLOTS:
            requests = self.rows().requests[rows].to(torch.int32)
            return {"page_table": self.req_to_token, "page_size": 1, "row_to_request": requests}
        return {}

    def slots_of(self, selection: torch.Tensor) -> torch.Tensor:
        """The slots of the real rows' selection, [rows, k] int64; -1 where nothing is selected."""
        form, chosen = form_of(self), selection.long()
        if form is Form.SLOTS:
            return chosen
        if form is Form.RAGGED and self.gathered is not None:
            slots = self.gathered.slots[chosen.clamp(min=0)]
        else:
            slots = self.req_to_token[self.rows().requests[:, None], chosen.clamp(min=0)].long()
        return slots.masked_fill(chosen < 0, -1)

    def prepare_mtp_seed_indices(self, selection: torch.Tensor, mode: ForwardMode) -> torch.Tensor:
        """Rows of this batch's selections, [rows, k] int32, as the next draft step takes them.

        A prefill's places mean nothing outside its batch, so they become slots.
        Source: SGLang 0.5.23, layers/attention/dsa_backend.py
        DeepseekSparseAttnBackend.prepare_mtp_seed_indices.
        """
        if form_of(self) is not Form.RAGGED:
            return selection
        return self.slots_of(selection).to(selection.dtype)

    def _attend(self, query: torch.Tensor, selection: torch.Tensor, layer: Any) -> torch.Tensor:
        plan = self.rows()
        real = plan.requests.numel()
        slots = self.slots_of(selection[:real]) if real else selection[:0].long()
        # A selection is a prefix of its row, so columns past the longest one hold nothing.
        width = int((slots >= 0).sum(-1).max()) if real else 0
        slots = slots[:, :width]
        out = query.new_zeros(query.shape[0], query.shape[1], layer.v_head_dim)
        step = max(1, GATHER_BYTES // (4 * query.shape[-1] * max(width, 1)))
        for start in range(0, real, step):
            chosen = slots[start : start + step]
            kv = self.token_to_kv_pool.load_kv(layer.layer_id, chosen.clamp(min=0))
            scores = torch.bmm(query[start : start + chosen.shape[0]], kv.transpose(1, 2)) * layer.scaling
            scores = scores.masked_fill((chosen < 0)[:, None], float("-inf"))
            weights = scores.softmax(-1)
            out[start : start + chosen.shape[0]] = torch.bmm(weights, kv[..., : layer.v_head_dim])
        return out
