"""The status of a pair's half counts the metadata slots that its requests hold."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sglang_glm53.disaggregation import status


def scheduler(mode: str, size: int = 4, free: int = 4) -> SimpleNamespace:
    slots = SimpleNamespace(size=size, available_size=lambda: free)
    return SimpleNamespace(
        disaggregation_mode=SimpleNamespace(value=mode), req_to_metadata_buffer_idx_allocator=slots
    )


@pytest.mark.parametrize("mode", ["prefill", "decode"])
# A slot that was given back twice shows as fewer than none.
@pytest.mark.parametrize(("free", "held"), [(4, 0), (1, 3), (5, -1)])
def test_the_slots_of_a_half(mode, free, held):
    found = status.describe(scheduler(mode, free=free))
    assert found == {"mode": mode, "metadata_slots": 4, "metadata_slots_held": held}


def test_a_server_that_is_no_half_has_none():
    assert status.describe(SimpleNamespace(disaggregation_mode=SimpleNamespace(value="null"))) == {}
