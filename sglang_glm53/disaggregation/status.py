"""Owns the status of a prefill/decode pair's half: what its requests hold beside pages."""

from __future__ import annotations

from typing import Any


def describe(scheduler: Any) -> dict[str, Any]:
    """A scheduler's half of a pair, in builtin types; empty on a server that is no half.

    metadata_slots: how many requests' metadata (first token, logprobs, MTP seed) can cross at once.
    metadata_slots_held: how many of them requests hold now; 0 on an idle server.
    """
    mode = str(scheduler.disaggregation_mode.value)
    if mode == "null":
        return {}
    slots = scheduler.req_to_metadata_buffer_idx_allocator
    return {
        "mode": mode,
        "metadata_slots": slots.size,
        "metadata_slots_held": slots.size - slots.available_size(),
    }
