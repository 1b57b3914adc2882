"""Owns stand-ins for the overlap's tests: SGLang's own split and turns, over layers that select markers."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.batch_overlap import operations, two_batch_overlap
from sglang.srt.batch_overlap.two_batch_overlap import TboForwardBatchPreparer
from sglang.srt.layers.attention.tbo_backend import TboAttnBackend
from sglang.srt.layers.dp_attention import DpPaddingMode
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context

from sglang_glm53.model.attention import Glm53Attention
from sglang_glm53.overlap import strategy

K = 4
DRAFT_TOKENS = 3


@dataclass
class Verify:
    """The fields of SGLang's EagleVerifyInput that the split reads."""

    draft_token_num: int = DRAFT_TOKENS
    draft_token: Any = None
    custom_mask: Any = None
    positions: Any = None
    retrieve_index: Any = None
    retrieve_next_token: Any = None
    retrieve_next_sibling: Any = None
    retrieve_cum_len: Any = None
    seq_lens_cpu: Any = None
    seq_lens_sum: Any = None


def batch(mode: ForwardMode, seq_lens: list[int], new: list[int] | None = None) -> ForwardBatch:
    """A batch as SGLang makes it. new: each request's rows in prefill."""
    rows = {ForwardMode.EXTEND: sum(new or []), ForwardMode.TARGET_VERIFY: DRAFT_TOKENS * len(seq_lens)}
    count = rows.get(mode, len(seq_lens))
    lengths = torch.tensor(seq_lens, dtype=torch.int64)
    made = ForwardBatch(
        forward_mode=mode,
        batch_size=len(seq_lens),
        input_ids=torch.arange(count),
        req_pool_indices=torch.arange(len(seq_lens)),
        seq_lens=lengths,
        seq_lens_cpu=lengths.clone(),
        seq_lens_sum=sum(seq_lens),
        out_cache_loc=torch.arange(count),
        positions=torch.arange(count),
        dp_padding_mode=DpPaddingMode.SUM_LEN,
    )
    if mode is ForwardMode.TARGET_VERIFY:
        made.spec_info = Verify(seq_lens_cpu=lengths)
    if new is not None:
        cached = [length - fresh for length, fresh in zip(seq_lens, new, strict=True)]
        made.extend_num_tokens = count
        made.extend_seq_lens, made.extend_seq_lens_cpu = torch.tensor(new), list(new)
        made.extend_prefix_lens, made.extend_prefix_lens_cpu = torch.tensor(cached), cached
        made.extend_start_loc = torch.tensor(new).cumsum(0) - torch.tensor(new)
    return made


@contextmanager
def overlapping(monkeypatch, attn_tp_size=1):
    """While open, batches split and take turns as in a server with two-batch overlap."""
    parallel = SimpleNamespace(attn_tp_size=attn_tp_size, moe_dense_tp_size=None)
    monkeypatch.setattr(two_batch_overlap, "get_parallel", lambda: parallel)
    monkeypatch.setattr(two_batch_overlap, "get_device", lambda: SimpleNamespace(device="cpu"))
    monkeypatch.setattr(two_batch_overlap, "get_tbo_token_distribution_threshold", lambda: 0.48)
    monkeypatch.setattr(two_batch_overlap, "attention_backends", lambda: ("dsa", "dsa"))
    monkeypatch.setattr(operations, "set_dp_buffer_len", lambda *sizes: None)
    part = SimpleNamespace(token_to_kv_pool=None, req_to_token_pool=None, kv_index_translator=None)
    backend = TboAttnBackend(part, [part, part])
    with forward_context(ForwardContext(attn_backend=backend)):
        yield


def split_in_two(parent: ForwardBatch, at: int | None = None) -> list[ForwardBatch]:
    """The children that SGLang makes. at: the request to split before, SGLang's own choice without it."""
    if at is None:
        per_request = two_batch_overlap.get_token_num_per_seq(parent.forward_mode, parent.spec_info)
        at = two_batch_overlap.compute_split_seq_index(
            parent.forward_mode, parent.input_ids.shape[0], parent.extend_seq_lens_cpu, per_request
        )
    parent.tbo_split_seq_index = at
    TboForwardBatchPreparer.prepare_raw(parent, torch.tensor([0, 0]))
    return parent.tbo_children


class Attention:
    """Glm53Attention's own operations over markers: a full layer selects its number and its micro-batch's."""

    op_prepare, op_core = Glm53Attention.op_prepare, Glm53Attention.op_core

    def __init__(self, layer: Layer) -> None:
        self.layer = layer

    def forward_prepare(self, *, hidden_states, forward_batch, prev_topk_indices, **_):
        layer, rows = self.layer, hidden_states.shape[0]
        if rows == 0:
            return hidden_states, None
        if layer.full:
            child = layer.log.number_of(forward_batch)
            layer.log.scans.append((layer.number, child))
            return hidden_states, torch.full((rows, K), marker(layer.number, child), dtype=torch.int32)
        if prev_topk_indices is None:
            raise RuntimeError(f"layer {layer.number} is shared, but no selection reached it")
        layer.log.seen.append((layer.number, layer.log.number_of(forward_batch), prev_topk_indices.clone()))
        return hidden_states, prev_topk_indices

    def forward_core(self, prepared):
        hidden_states, selection = prepared
        if hidden_states.shape[0] == 0:
            return hidden_states
        return hidden_states, selection if self.layer.gives else None


class Experts:
    """The MoE's operations, without experts."""

    def op_gate(self, state):
        pass

    op_select_experts = op_dispatch_a = op_dispatch_b = op_experts = op_combine_a = op_combine_b = op_gate

    def op_shared_experts(self, state):
        state.shared = state.pop("hidden_states_mlp_input")

    def op_output(self, state):
        state.hidden_states_mlp_output = state.pop("shared")


class Layer:
    """One decoder layer. full: it selects. gives: the next layer takes its selection."""

    overlaps_with_carry = True

    def __init__(self, number: int, full: bool, gives: bool, log: Log) -> None:
        self.number, self.full, self.gives, self.log = number, full, gives, log
        self.self_attn, self.mlp = Attention(self), Experts()

    def op_comm_prepare_attn(self, state, **inputs):
        state.hidden_states_after_comm_pre_attn = inputs.pop("hidden_states")
        state.update(inputs)

    def op_comm_prepare_mlp(self, state):
        state.hidden_states_mlp_input = state.pop("hidden_states_after_attn")

    def op_comm_postprocess_layer(self, state):
        output = {"hidden_states": state.pop("hidden_states_mlp_output")}
        kept = ("positions", "forward_batch", "zero_allocator", "tbo_subbatch_index")
        output |= {name: getattr(state, name) for name in kept}
        state.clear(expect_keys=kept)
        return output


def marker(layer: int, child: int) -> int:
    """What a full layer selects for a micro-batch."""
    return 100 * layer + child


class Log:
    """What happened. scans: (layer, child) of each scan. seen: (layer, child, selection) at shared layers."""

    def __init__(self, children: list[ForwardBatch]) -> None:
        self.children, self.scans, self.seen = children, [], []

    def number_of(self, child: ForwardBatch) -> int:
        """0 for the first micro-batch, 1 for the second."""
        return next(number for number, own in enumerate(self.children) if own is child)


def run(layers: list[int], full: set[int], parent: ForwardBatch) -> Log:
    """Run these layers in turns over the parent's children. full: the numbers of the full layers."""
    log = Log(parent.tbo_children)
    made = [Layer(number, number in full, number + 1 not in full, log) for number in layers]
    chosen = strategy.init_new_tbo(None, made, parent.forward_mode)
    inputs = [
        {
            "positions": child.positions,
            "hidden_states": torch.zeros(child.tbo_padded_len, 2),
            "forward_batch": child,
            "zero_allocator": None,
            "tbo_subbatch_index": number,
        }
        for number, child in enumerate(parent.tbo_children)
    ]
    operations.execute_overlapped_operations(inputs, [chosen.operations] * 2, [0, chosen.tbo_delta_stages])
    return log
