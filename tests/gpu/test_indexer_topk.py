"""Owns the checks of indexer_topk on a GPU: the values of tests/kernels, long rows, repeated runs, graphs."""

from dataclasses import replace

import pytest
import torch

from sglang_glm53.geometry import MAX_INDEX_TOPK
from sglang_glm53.kernels.indexer_topk import indexer_topk
from tests.gpu.borrowed import value_tests
from tests.kernels import test_indexer_topk as values
from tests.kernels.indexer_topk_cases import MODES, VALUES, Case, check, make

globals().update(value_tests(values))

K = MAX_INDEX_TOPK
INPUTS = ("logits", "lengths", "page_table", "row_to_request", "row_starts", "out_offsets")


def _select(call):
    return indexer_topk(call.logits, call.lengths, call.case.k, with_positions=True, **call.keywords())


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("width", [4096, 32768, 131072])
def test_served_widths(kernels, width, bf16):
    lengths = (0, 1, K - 1, K, K + 1, -7, width, width // 2 + 3)
    for number, kind in enumerate(VALUES):
        mode, gap = MODES[number % 4], 8 * (number % 2)
        values.run(Case(8, width, K, kind, bf16, mode, 64, gap, lengths, seed=number, device=kernels))


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("kind", ["normal", "plateau", "close", "any bits"])
def test_a_million_positions(kernels, kind, bf16):
    width = 2**20
    values.run(Case(2, width, K, kind, bf16, lengths=(width, width - 1), device=kernels))


@pytest.mark.parametrize("rows", [1, 3, 17, 64, 150, 300])
def test_any_split_of_the_rows_over_the_gpu(kernels, rows):
    values.run(Case(rows, 65541, 512, "plateau", mode="mapped", gap=8, device=kernels))


@pytest.mark.parametrize(("rows", "width"), [(1, 131072), (32, 32768), (200, 4096)])
def test_twenty_runs_are_identical(kernels, rows, width):
    call = make(Case(rows, width, K, "plateau", device=kernels, lengths=(width,) * rows))
    wanted = _select(call)
    check(call, *wanted)
    for run in range(20):
        assert all(map(torch.equal, _select(call), wanted)), run


@pytest.mark.parametrize("mode", MODES)
def test_a_graph_replays_with_changed_inputs(kernels, capture, mode):
    """Lengths, logits, page table and the maps all change between replays."""
    first = Case(6, 40000, 512, mode=mode, gap=8, device=kernels)
    calls = [make(replace(first, values=kind, seed=seed)) for seed, kind in enumerate(VALUES)]
    held = make(first)
    found, replay = capture(lambda: _select(held))
    for call in [*calls, calls[0]]:
        for name in INPUTS:
            if getattr(held, name) is not None:
                getattr(held, name).copy_(getattr(call, name))
        replay()
        check(call, *found)
        assert all(map(torch.equal, found, _select(call))), call.case


def test_a_call_allocates_nothing(kernels):
    call = make(Case(4, 131072, K, mode="mapped", device=kernels))
    slots, counts, positions = _select(call)
    inputs = (call.logits, call.lengths, call.page_table, call.row_to_request, None, None, 64)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.ops.glm53.indexer_topk(*inputs, slots, counts, positions)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_compiled_without_a_graph_break(kernels):
    call = make(Case(5, 3000, 512, device=kernels))

    def select(logits):
        found = indexer_topk(logits * 2, call.lengths, 512, **call.keywords())
        return found.slots + 1, found.counts

    found = torch.compile(select, fullgraph=True)(call.logits)
    # Twice the logits, in the same order.
    check(call, found[0] - 1, found[1], None)
