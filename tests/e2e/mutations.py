"""Owns the faults that the end-to-end tests must notice. Each runs in a server's process before it starts."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from typing import Any

import torch

from tests.e2e import transfer_faults


def dense_attention() -> None:
    """Attend to everything instead of the selection."""
    from sglang_glm53.cpu.attention import ReferenceBackend

    def slots_of(self: Any, selection: torch.Tensor) -> torch.Tensor:
        plan = self.rows()
        lengths = plan.lengths[:, None]
        positions = torch.arange(int(lengths.max())).expand(lengths.shape[0], -1)
        slots = self.req_to_token[plan.requests[:, None], positions].long()
        return slots.masked_fill(positions >= lengths, -1)

    ReferenceBackend.slots_of = slots_of


def wrong_rope_style() -> None:
    """Rotate the indexer's queries and keys half against half instead of interleaved."""
    from sglang_glm53.cpu import indexer

    original = indexer._project

    def project(self: Any, *args: Any) -> Any:
        interleaved = self.rotary_emb
        self.rotary_emb = copy.copy(interleaved)
        self.rotary_emb.is_neox_style = not interleaved.is_neox_style
        # SGLang's op keeps the bound method of the module it was copied from.
        self.rotary_emb._forward_method = None
        try:
            return original(self, *args)
        finally:
            self.rotary_emb = interleaved

    indexer._project = project


def wrong_index_group() -> None:
    """Give every shared layer the selection of layer 0 instead of its own group's."""
    from sglang_glm53.cpu import indexer
    from sglang_glm53.model.attention import Glm53Attention

    select, prepare = indexer._select_rows, Glm53Attention.forward_absorb_prepare
    first: list[Any] = [None]

    def select_rows(backend: Any, layer_id: int, *args: Any) -> torch.Tensor:
        selection = select(backend, layer_id, *args)
        if layer_id == 0:
            first[0] = selection
        return selection

    def forward_absorb_prepare(*args: Any, **named: Any) -> Any:
        call = inspect.signature(prepare).bind(*args, **named)
        if call.arguments.get("prev_topk_indices") is not None:
            call.arguments["prev_topk_indices"] = first[0]
        return prepare(*call.args, **call.kwargs)

    indexer._select_rows = select_rows
    Glm53Attention.forward_absorb_prepare = forward_absorb_prepare


def index_norm_epsilon() -> None:
    """Use the RMSNorms' epsilon, 1e-5, in the index keys' LayerNorm, whose own is 1e-6."""
    from sglang_glm53.cpu import indexer

    original = indexer._project

    def project(self: Any, *args: Any) -> Any:
        self.k_norm.variance_epsilon = 1e-5
        return original(self, *args)

    indexer._project = project


def no_routing_bias() -> None:
    """Choose experts by their scores alone."""
    from sglang_glm53.model.model import Glm53ForCausalLM

    original = Glm53ForCausalLM.load_weights

    def load_weights(self: Any, *args: Any, **named: Any) -> Any:
        result = original(self, *args, **named)
        for name, parameter in self.named_parameters():
            if name.endswith("e_score_correction_bias"):
                parameter.data.zero_()
        return result

    Glm53ForCausalLM.load_weights = load_weights


def neighbours_rows() -> None:
    """In a batch, read each row's KV from the request beside it."""
    from sglang_glm53.cpu import attention

    original = attention.plan_rows

    def plan_rows(batch: Any) -> Any:
        plan = original(batch)
        return dataclasses.replace(plan, requests=plan.requests.roll(1))

    attention.plan_rows = plan_rows


def no_cached_prefix() -> None:
    """Let an extend batch's rows see only what the same batch brought, not the cached tokens before it."""
    from sglang_glm53.cpu import attention

    original = attention.plan_rows

    def plan_rows(batch: Any) -> Any:
        plan = original(batch)
        if batch.forward_mode.is_decode_or_idle():
            return plan
        cached = torch.repeat_interleave(batch.extend_prefix_lens.long(), batch.extend_seq_lens.long())
        return dataclasses.replace(plan, lengths=plan.lengths - cached)

    attention.plan_rows = plan_rows


def no_all_reduce() -> None:
    """Keep each tensor-parallel rank's partial sum."""
    from sglang.srt.distributed.parallel_state import GroupCoordinator

    GroupCoordinator.all_reduce = lambda self, tensor, *args, **named: tensor


def gather_own_rows() -> None:
    """Fill the rows of other attention-DP ranks with this rank's."""
    from sglang_glm53.cpu.collectives import GlooCommunicator

    def all_gather(
        self: Any, output: torch.Tensor, tensor: torch.Tensor, sizes: Any = None, **named: Any
    ) -> None:
        output.copy_(tensor[torch.arange(output.shape[0]) % tensor.shape[0]])

    GlooCommunicator.all_gather = all_gather


def foreign_experts() -> None:
    """Serve the tokens routed to another rank's experts with this rank's."""
    from sglang_glm53.cpu import moe

    original = moe.routed_experts

    def routed_experts(x: Any, weights: Any, ids: torch.Tensor, w13: torch.Tensor, w2: Any) -> torch.Tensor:
        return original(x, weights, ids % w13.shape[0], w13, w2)

    moe.routed_experts = routed_experts


def leaked_pages() -> None:
    """Lose one page of every set that is given back."""
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator

    original = PagedTokenToKVPoolAllocator._release_page_ids
    PagedTokenToKVPoolAllocator._release_page_ids = lambda self, pages: original(self, pages[1:])


def fails_at_start() -> None:
    """Raise, as a broken server would."""
    raise RuntimeError("the mutation's reason")


def one_scale_for_all_groups() -> None:
    """Quantise the inputs of FP8 products with the first group's scale throughout."""
    from sglang_glm53.cpu import fp8

    original = fp8.quantise_activation

    def quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, scales = original(x)
        return values, scales[..., :1].expand_as(scales)

    fp8.quantise_activation = quantise


def stale_fp8_form() -> None:
    """Attach to a norm's output the FP8 form of the last output of its shape."""
    from sglang_glm53.boundary import producers

    make = producers.MAKERS["torch"]
    last: dict[torch.Size, Any] = {}

    def make_stale(*args: Any) -> Any:
        y, residual, own = make(*args)
        stale, last[y.shape] = last.get(y.shape, own), own
        return y, residual, stale

    producers.MAKERS["torch"] = make_stale


def unnoticed_stale_fp8_form() -> None:
    """The same, with the check of every take left out."""
    from sglang_glm53.boundary import fused_norm

    fused_norm.describes = lambda quantised, x: True
    stale_fp8_form()


def copied_outputs() -> None:
    """Give on a copy of each norm's output, which carries no FP8 form; no fault, projections must cope."""
    from sglang_glm53.boundary.fused_norm import Site

    normalise = Site.normalise

    def normalise_and_copy(self: Any, *args: Any) -> Any:
        found = normalise(self, *args)
        return found and (found[0].clone(), found[1])

    Site.normalise = normalise_and_copy


def one_wrong_position() -> None:
    """Where a row's selection is full, give its first position twice and leave its last one out."""
    from sglang_glm53.cpu import indexer

    original = indexer.select

    def select(scores: torch.Tensor, lengths: torch.Tensor, k: int, **places: Any) -> torch.Tensor:
        selection = original(scores, lengths, k, **places)
        selection[:, -1] = torch.where(lengths > k, selection[:, 0], selection[:, -1])
        return selection

    indexer.select = select


def dropped_carry() -> None:
    """Let the micro-batches begin without the selection of the layer before them."""
    from sglang_glm53.overlap import carry

    carry.split = lambda parent, selection, form: None


def zeros_for_minus_one() -> None:
    """Let the micro-batches take 0, which is a place, where nothing is selected."""
    _change_split(lambda children, form: [child.clamp(min=0) for child in children])


def no_rebase() -> None:
    """Leave the second micro-batch's places counted from the first one's requests."""
    from sglang_glm53.overlap import carry

    carry._rebased = lambda selection, offset: selection


def swapped_children() -> None:
    """Give each micro-batch the other's slots, cut or filled to its own rows."""
    from sglang_glm53.overlap.carry import Form

    def swap(children: list[torch.Tensor], form: Form) -> list[torch.Tensor]:
        # Places in the other's KV could lie outside their own, which would end the server.
        if form is not Form.SLOTS or not all(map(len, children)):
            return children
        pairs = zip(children, reversed(children), strict=True)
        return [other[torch.arange(own.shape[0]).clamp(max=other.shape[0] - 1)] for own, other in pairs]

    _change_split(swap)


def _change_split(change: Any) -> None:
    from sglang_glm53.overlap import carry

    original = carry.split

    def split(parent: Any, selection: Any, form: Any) -> None:
        original(parent, selection, form)
        if selection is not None:
            changed = change([carry.kept(child) for child in parent.tbo_children], form)
            for child, own in zip(parent.tbo_children, changed, strict=True):
                carry.keep(child, own)

    carry.split = split


def experts_stay() -> None:
    """Let a rebalance tell the router of new places, and leave the experts' weights in the old ones."""
    from sglang.srt.eplb import expert_location_updater

    expert_location_updater._update_expert_weights = lambda *args, **named: {}


def no_index_transfer() -> None:
    """A prefill sends KV rows but no index pages."""
    from sglang.srt.disaggregation.mooncake.conn import MooncakeKVManager

    MooncakeKVManager.maybe_send_extra = lambda self, *args, **named: 0


def each_field_in_turn() -> None:
    """A decode states another value for one field of its contract, the next field at each comparison."""
    from sglang_glm53.disaggregation import exchange

    original = exchange.own_contract
    fields: list[str] = []

    def own_contract(manager: Any) -> Any:
        contract = original(manager)
        if not fields:
            fields.extend(field.name for field in dataclasses.fields(contract))
        elif fields[0] == "":
            return contract
        name = fields.pop(0)
        fields.extend([""] * (not fields))
        value = getattr(contract, name)
        other = (
            not value if isinstance(value, bool) else value[:-1] if isinstance(value, tuple) else value * 2
        )
        return dataclasses.replace(contract, **{name: other})

    exchange.own_contract = own_contract


def faulty_transfers() -> None:
    """Slow a prefill's transfers down, and fail those that a test asks for; none fails by itself."""
    transfer_faults.install()


def leaked_slots() -> None:
    """Never give a metadata slot back."""
    from sglang.srt.disaggregation.utils import ReqToMetadataIdxAllocator

    ReqToMetadataIdxAllocator.free = lambda self, index: None
