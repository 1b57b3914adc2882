"""Owns the faults of speculative decoding that the tests must notice; see tests/e2e/mutations.py."""

from __future__ import annotations

from typing import Any

import torch


def draft_takes_the_targets_selection() -> None:
    """The draft takes what the target's last full layer selected for the same rows."""
    from sglang_glm53.cpu import indexer

    original = indexer._select_rows
    last: list[Any] = [None]

    def select_rows(backend: Any, *args: Any) -> torch.Tensor:
        if backend.token_to_kv_pool.layer_num > 1:
            last[0] = original(backend, *args)
            return last[0]
        return last[0]

    indexer._select_rows = select_rows


def seed_of_the_row_before() -> None:
    """Seed the draft steps with what draft-extend selected one row too early."""
    from sglang_glm53.cpu.attention import ReferenceBackend

    original = ReferenceBackend.prepare_mtp_seed_indices

    def prepare_mtp_seed_indices(self: Any, selection: torch.Tensor, mode: Any) -> torch.Tensor:
        seed = original(self, selection, mode)
        return seed.roll(1, dims=0) if mode.is_draft_extend_v2() else seed

    ReferenceBackend.prepare_mtp_seed_indices = prepare_mtp_seed_indices


def hidden_state_before_the_norm() -> None:
    """Recycle the draft's hidden state without its final norm; the scale is the next norm's to remove."""
    from sglang_glm53.model.nextn import Glm53ForCausalLMNextN

    original = Glm53ForCausalLMNextN.forward

    def forward(self: Any, *args: Any, **named: Any) -> Any:
        output = original(self, *args, **named)
        if output.hidden_states is not None:
            output.hidden_states = output.hidden_states / self.model.shared_head.norm.weight
        return output

    Glm53ForCausalLMNextN.forward = forward


def no_index_keys_in_draft_extend() -> None:
    """Draft-extend leaves the index keys of the verified positions as they are."""
    from sglang.srt.model_executor.forward_context import get_attn_backend

    from sglang_glm53.cpu.attention import ReferenceBackend
    from sglang_glm53.cpu.pools import Bf16Pool

    plan, store = ReferenceBackend.init_forward_metadata, Bf16Pool.store_index_keys

    def init_forward_metadata(self: Any, forward_batch: Any) -> None:
        self.mode = forward_batch.forward_mode
        plan(self, forward_batch)

    def store_index_keys(self: Any, *args: Any) -> None:
        if not get_attn_backend().mode.is_draft_extend_v2():
            store(self, *args)

    ReferenceBackend.init_forward_metadata = init_forward_metadata
    Bf16Pool.store_index_keys = store_index_keys


def accept_every_draft() -> None:
    """Verification takes whatever was drafted."""
    from sglang.srt.speculative import eagle_utils

    original = eagle_utils.verify_tree_greedy_func

    def verify(*args: Any, candidates: torch.Tensor, target_predict: torch.Tensor, **named: Any) -> Any:
        drafted = torch.cat([candidates[:, 1:].to(target_predict.dtype), target_predict[:, -1:]], dim=1)
        return original(*args, candidates=candidates, target_predict=drafted, **named)

    eagle_utils.verify_tree_greedy_func = verify


def verify_rows_see_all_drafts() -> None:
    """Every row of a verify sees the drafts after it too."""
    from sglang_glm53.cpu import attention

    original = attention.plan_rows

    def plan_rows(batch: Any) -> Any:
        plan = original(batch)
        if batch.forward_mode.is_target_verify():
            width = plan.counts[0] if plan.counts else 1
            plan.lengths.copy_(plan.lengths.view(-1, width)[:, -1:].expand(-1, width).flatten())
        return plan

    attention.plan_rows = plan_rows


def seed_taken_as_slots() -> None:
    """A decode takes a seed's positions for slots of its own."""
    from sglang.srt.speculative import eagle_disaggregation

    eagle_disaggregation.should_remap_pd_dsa_seed_to_local_slots = lambda: False


def seed_in_its_own_slots() -> None:
    """A prefill sends a seed of its own slots, as they would be in one server."""
    from sglang_glm53.cpu import speculative

    speculative.should_use_dsa_fused_topk = lambda seeded: True


def no_draft_transfer() -> None:
    """A prefill sends no KV rows of the draft layer."""
    from sglang.srt.disaggregation.mooncake.conn import MooncakeKVManager

    original = MooncakeKVManager._send_kvcache_generic
    by_layer = ("src_data_ptrs", "dst_data_ptrs", "item_lens", "src_layer_ids", "dst_layer_ids")

    def send(self: Any, **named: Any) -> int:
        if named.get("state_type") is None:
            kept = {name: named.get(name) for name in by_layer}
            named |= {
                name: value and value[: -self.kv_args.num_draft_entries] for name, value in kept.items()
            }
        return original(self, **named)

    MooncakeKVManager._send_kvcache_generic = send
