"""Owns the checks of the op indexer_topk: the emulated CUDA kernel and the torch fallback."""

from dataclasses import replace

import pytest
import torch

from sglang_glm53.fusion import Declined
from sglang_glm53.kernels import backend
from sglang_glm53.kernels.indexer_topk import CARD, declines, indexer_topk
from sglang_glm53.testing.reference import indexer_topk as reference
from tests.kernels.conftest import COMPILERS
from tests.kernels.indexer_topk_cases import MODES, VALUES, Case, check, make

STEM = "indexer_topk"


def run(case):
    call = make(case)
    found = indexer_topk(call.logits, call.lengths, case.k, with_positions=True, **call.keywords())
    check(call, *found)
    return call, found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
def test_values(kernels, bf16, mode):
    for number, values in enumerate(VALUES):
        for k in (1, 64, 512):
            width = 700 + 3 * number
            lengths = (width, k, k + 1, -3, width - 1)
            gap = 8 * (number % 2)
            run(Case(5, width, k, values, bf16, mode, 64, gap, lengths, seed=number, device=kernels))
    assert not backend.declined


def test_the_largest_k(kernels):
    run(Case(2, 6000, 2048, "plateau", lengths=(6000, 2049), device=kernels))
    run(Case(2, 100, 2048, "mixed", mode="ragged", lengths=(100, 7), device=kernels))


@pytest.mark.parametrize("page_size", [1, 2, 32, 128])
def test_page_sizes(kernels, page_size):
    run(Case(4, 1000, 96, page_size=page_size, device=kernels))


def test_many_rows_share_a_request(kernels):
    call = make(Case(6, 600, 64, mode="mapped", device=kernels))
    call.row_to_request[:] = torch.tensor([2, 0, 2, 2, 1, 0])
    check(call, *indexer_topk(call.logits, call.lengths, 64, with_positions=True, **call.keywords()))


def test_without_positions(kernels):
    call = make(Case(3, 300, 16, device=kernels))
    found = indexer_topk(call.logits, call.lengths, 16, **call.keywords())
    assert found.positions is None
    check(call, *found)


def test_no_rows(kernels):
    logits, lengths = torch.zeros(0, 64, device=kernels), torch.zeros(0, dtype=torch.int32, device=kernels)
    found = indexer_topk(logits, lengths, 8, with_positions=True)
    assert (found.slots.shape, found.counts.shape, found.positions.shape) == ((0, 8), (0,), (0, 8))


def test_a_length_past_the_row_or_the_table_is_cut_off(kernels):
    call = make(Case(2, 100, 16, mode="positions", lengths=(100, 100), device=kernels))
    call.lengths[:] = 2**30
    check(call, *indexer_topk(call.logits, call.lengths, 16, with_positions=True))
    short = torch.arange(6, dtype=torch.int32, device=kernels).view(2, 3)
    found = indexer_topk(call.logits, call.lengths, 64, page_table=short, page_size=8, with_positions=True)
    assert found.counts.tolist() == [24, 24]
    assert found.slots[1].tolist() == [*range(24, 48), *[-1] * 40]
    assert found.positions[1].tolist() == [*range(24), *[-1] * 40]


def test_a_start_outside_the_row_is_cut_off(kernels):
    call = make(Case(3, 100, 16, mode="positions", lengths=(50, 50, 50), device=kernels))
    starts = torch.tensor([-4, 90, 1000], dtype=torch.int32, device=kernels)
    found = indexer_topk(call.logits, call.lengths, 16, row_starts=starts, with_positions=True)
    assert found.counts.tolist() == [16, 10, 0]
    assert torch.equal(found.positions[0].cpu().long(), reference.positions(call.logits[0, :50].cpu(), 16))


def test_known_selection(kernels):
    """By hand: a tie at the threshold goes to the lowest position; -0 ties with 0; NaN comes last."""
    nan = torch.nan
    logits = torch.tensor(
        [[1.0, 3.0, 2.0, 2.0, 2.0, 5.0, nan, -1.0], [nan, -0.0, 0.0, -1.0, nan, 0.0, nan, nan]],
        device=kernels,
    )
    lengths = torch.tensor([8, 8], dtype=torch.int32, device=kernels)
    assert indexer_topk(logits, lengths, 3).slots.tolist() == [[1, 2, 5], [1, 2, 5]]
    assert indexer_topk(logits, lengths, 4).slots.tolist() == [[1, 2, 3, 5], [1, 2, 3, 5]]
    assert indexer_topk(logits, lengths, 6).slots.tolist() == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]]
    assert indexer_topk(logits, lengths, 9).slots.tolist() == [[*range(8), -1], [*range(8), -1]]


def test_bytes_of_the_card():
    assert CARD.bytes_moved(3, {"W": 1000, "k": 64}) == 3 * (4000 + 2 * 256)


def test_bytes_are_the_cards(emulated):
    module = emulated(STEM)
    rows, width, k = 4, 4096, 512
    run(Case(rows, width, k, lengths=(width,) * rows))
    counted = {}
    for line in module.last_traffic().splitlines():
        name, read, written = line.split()
        counted[name] = (int(read), int(written))
    for part in CARD.traffic:
        moved = part.moved(rows, {"W": width, "k": k})
        assert counted[part.tensor] == ((0, moved) if part.written else (moved, 0)), part.tensor


def test_float16_runs_in_torch(emulated):
    call = make(Case(3, 200, 16, mode="positions"))
    call.logits = call.logits.half()
    check(call, *indexer_topk(call.logits, call.lengths, 16, with_positions=True))
    assert backend.declined == {(STEM, CARD.declines["dtype"]): 1}


@pytest.mark.parametrize(
    ("key", "logits", "k"),
    [
        (None, torch.zeros(2, 64), 2048),
        (None, torch.zeros(2, 68)[:, :65], 1),
        (None, torch.zeros(1, 65)[:, :63], 1),
        (None, torch.zeros(2, 64).bfloat16(), 64),
        ("dtype", torch.zeros(2, 64).half(), 64),
        ("k", torch.zeros(2, 64), 2049),
        ("columns", torch.zeros(64, 2).t(), 64),
        ("alignment", torch.zeros(2, 66)[:, :64], 64),
        ("alignment", torch.zeros(2, 64).bfloat16()[:, 4:], 64),
    ],
)
def test_declines(choose, key, logits, k):
    choose("auto")
    assert declines(logits, k) == (Declined(CARD.declines[key]) if key else None)


def test_declines_an_old_gpu(choose, monkeypatch):
    choose("auto")
    monkeypatch.setattr(backend, "is_supported", lambda device: False)
    assert declines(torch.zeros(2, 64), 8) == Declined(CARD.declines["device"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": torch.zeros(64)}, r"logits are torch.float32 \(64,\): give floats as \[rows, width\]"),
        ({"logits": torch.zeros(2, 64).int()}, "logits are torch.int32"),
        ({"k": 0}, "k is 0: select at least 1"),
        (
            {"lengths": torch.zeros(2)},
            "lengths is torch.float32 .2,.: give int32, one for each of the 2 rows",
        ),
        ({"row_starts": torch.zeros(3).int()}, r"row_starts is torch.int32 \(3,\): give int32"),
        ({"page_size": 48}, "page_size is 48: use a power of two"),
        ({"row_to_request": torch.zeros(2).int()}, "row_to_request without a page_table"),
        ({"page_table": torch.zeros(2, 4)}, "page_table is torch.float32"),
        ({"page_table": torch.zeros(1, 64).int()}, "page_table has 1 lines for 2 rows: give row_to_request"),
        (
            {"page_table": torch.zeros(2, 64).int(), "out_offsets": torch.zeros(2).int()},
            "page_table and out_offsets both make the slots",
        ),
        (
            {"lengths": torch.zeros(2, device="meta").int()},
            "lengths is on meta, logits on cpu: move it there",
        ),
    ],
)
def test_malformed_calls(change, message):
    arguments = {"logits": torch.zeros(2, 64), "lengths": torch.zeros(2).int(), "k": 8} | change
    with pytest.raises(ValueError, match=message):
        indexer_topk(**arguments)


@pytest.mark.parametrize(
    ("place", "tensor", "message"),
    [
        (1, torch.zeros(3).int(), "expected 2 but got 3"),
        (2, torch.zeros(1, 4).int(), "page_table has 1 lines for 2 rows"),
        (3, torch.zeros(2).int(), "row_to_request without a page_table"),
        (6, 12, "page_size is 12: use a power of two"),
        (7, torch.zeros(2, 2049).int(), "k is 2049: use 1 to 2048"),
        (8, torch.zeros(2), "DType mismatch"),
    ],
)
def test_the_binding_refuses(emulated, place, tensor, message):
    arguments = [torch.zeros(2, 64), torch.zeros(2).int(), None, None, None, None, 1]
    arguments += [torch.zeros(2, 8).int(), torch.zeros(2).int(), None]
    arguments[place] = tensor
    with pytest.raises(RuntimeError, match=message):
        emulated(STEM).indexer_topk(*arguments)


def test_compiled_without_a_graph_break(source):
    case = Case(3, 300, 16, "normal", lengths=(300, 20, 3), device=source)
    call = make(case)

    def select(logits):
        found = indexer_topk(logits * 2, call.lengths, 16, **call.keywords())
        return found.slots + 1, found.counts

    wanted = select(call.logits)
    found = torch.compile(select, backend=COMPILERS[source], fullgraph=True)(call.logits)
    assert all(map(torch.equal, found, wanted))
    doubled = make(replace(case))
    doubled.logits = doubled.logits * 2
    check(doubled, found[0] - 1, found[1], None)
    assert not backend.declined


class OnGpu:
    """What takes a GPU's rows and multiprocessors; tests/gpu/test_kernels.py runs it."""

    @pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
    @pytest.mark.parametrize("kind", ["normal", "plateau", "close", "any bits"])
    def test_a_million_positions(self, kernels, kind, bf16):
        width = 2**20
        run(Case(2, width, 2048, kind, bf16, lengths=(width, width - 1), device=kernels))

    @pytest.mark.parametrize("rows", [1, 3, 17, 64, 150, 300])
    def test_any_split_of_the_rows_over_the_gpu(self, kernels, rows):
        run(Case(rows, 65541, 512, "plateau", mode="mapped", gap=8, device=kernels))
