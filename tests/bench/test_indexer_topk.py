"""Owns the checks of indexer_topk's benchmark: the installed peers' parameters, and the comparison."""

import pytest
import torch

from sglang_glm53.bench import indexer_topk
from sglang_glm53.bench.indexer_topk import (
    FLASHINFER_PAGED,
    FLASHINFER_RAGGED,
    SGLANG_PAGED,
    SGLANG_PLAN,
    SGLANG_RAGGED,
)
from sglang_glm53.bench.measure import OURS
from sglang_glm53.kernels.cards import Shape
from sglang_glm53.kernels.indexer_topk import CARD
from tests.bench.fake_bench import CPU, measured, stand_in

NAMES = [OURS, *CARD.peers]


def _best(scores, k):
    """In an order that is not ours."""
    return scores.topk(k, dim=1).indices


def _paged(scores, table, k, page_size):
    best = _best(scores, k)
    return (table.long().gather(1, best // page_size) * page_size + best % page_size).int()


def _sglang_paged(scores, seq_lens, page_tables, out_page_indices, page_size, metadata):
    assert metadata == ["plan", *seq_lens.tolist()]
    out_page_indices.copy_(_paged(scores, page_tables, out_page_indices.shape[1], page_size))


def _sglang_ragged(scores, seq_lens, out_offsets, out_indices):
    out_indices.copy_(_best(scores, out_indices.shape[1]) + out_offsets[:, None])


def _flashinfer_paged(input, src_page_table, lengths, k, deterministic, tie_break, page_size, out, **rest):
    assert (tie_break, rest) == (int(deterministic), {"dsa_graph_safe": True})
    return out.copy_(_paged(input, src_page_table, k, page_size))


def _flashinfer_ragged(input, offsets, lengths, k, deterministic, tie_break, **rest):
    assert (tie_break, rest) == (int(deterministic), {"dsa_graph_safe": True})
    return (_best(input, k) + offsets[:, None]).int()


@pytest.fixture
def peers(monkeypatch):
    """The installed peers' parameters over torch; a test may put another function in."""
    found = {
        SGLANG_PLAN: stand_in(".".join(SGLANG_PLAN), lambda seq_lens: ["plan", *seq_lens.tolist()]),
        SGLANG_PAGED: stand_in(".".join(SGLANG_PAGED), _sglang_paged),
        SGLANG_RAGGED: stand_in(".".join(SGLANG_RAGGED), _sglang_ragged),
        FLASHINFER_PAGED: stand_in("flashinfer.topk.top_k_page_table_transform", _flashinfer_paged),
        FLASHINFER_RAGGED: stand_in("flashinfer.topk.top_k_ragged_transform", _flashinfer_ragged),
    }
    monkeypatch.setattr(indexer_topk, "load", found.__getitem__)
    return found


def _shape(rows, width, k, form="paged"):
    return Shape(rows, {"W": width, "k": k}, form)


@pytest.mark.parametrize("form", ["paged", "ragged"])
@pytest.mark.parametrize(("rows", "width", "k"), [(1, 256, 16), (3, 700, 64)])
def test_peers_that_agree_are_timed(peers, rows, width, k, form):
    found, left_out = measured(CARD, _shape(rows, width, k, form))
    assert left_out == []
    assert [row.contender for row in found] == NAMES
    moved = rows * (4 * width + 8 * k)
    assert {(row.shape, row.rotated_bytes // row.sets) for row in found} == {
        (f"M={rows} W={width} k={k} {form}", moved)
    }


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda out: out[1, 3:4].fill_(-1), "a slot is not one of its row's"),
        (lambda out: out[1, 3:4].fill_(2**30), "a slot is not one of its row's"),
        (lambda out: out[1].copy_(out[0]), "a slot is not one of its row's"),
        (lambda out: out[1, 3:4].copy_(out[1, 4:5]), "a position is selected twice"),
    ],
)
@pytest.mark.parametrize("form", ["paged", "ragged"])
def test_a_peer_with_bad_slots_is_refused(peers, form, change, reason):
    def run_paged(scores, out_page_indices, **rest):
        _sglang_paged(scores=scores, out_page_indices=out_page_indices, **rest)
        change(out_page_indices)

    def run_ragged(scores, out_indices, **rest):
        _sglang_ragged(scores=scores, out_indices=out_indices, **rest)
        change(out_indices)

    place, run = (SGLANG_PAGED, run_paged) if form == "paged" else (SGLANG_RAGGED, run_ragged)
    peers[place] = stand_in(".".join(place), run)
    rows, left_out = measured(CARD, _shape(3, 700, 64, form))
    assert [row.contender for row in rows] == [NAMES[0], *NAMES[2:]]
    assert [(absent.contender, absent.wrong) for absent in left_out] == [(NAMES[1], True)]
    assert left_out[0].reason.endswith(reason)


def test_a_peer_that_misses_one_of_the_best_is_refused(peers):
    def run(scores, out_indices, out_offsets, seq_lens):
        most = _best(scores, out_indices.shape[1] + 1)
        out_indices.copy_(most[:, 1:] + out_offsets[:, None])

    peers[SGLANG_RAGGED] = stand_in(".".join(SGLANG_RAGGED), run)
    _, left_out = measured(CARD, _shape(3, 700, 64, "ragged"))
    assert [(absent.contender, absent.wrong) for absent in left_out] == [(NAMES[1], True)]
    assert "elements differ" in left_out[0].reason


def test_another_choice_among_equal_logits_is_no_difference():
    logits = torch.tensor([[1.0, 2.0, 1.0, 0.0]])
    ours, theirs = torch.tensor([[0, 1]]), torch.tensor([[2, 1]])
    indexer_topk.check((theirs, logits), (ours, logits))
    with pytest.raises(AssertionError, match="1 of 2 elements differ"):
        indexer_topk.check((torch.tensor([[3, 1]]), logits), (ours, logits))


def test_a_kernel_that_declines_is_not_timed_as_its_fallback(peers):
    rows, left_out = measured(CARD, _shape(2, 4096, 2049))
    assert rows == []
    assert (left_out[0].contender, left_out[0].wrong) == (OURS, True)
    assert left_out[0].reason == "ValueError: the kernel declines: k is over 2048"


def test_sets_are_apart_and_repeat():
    shape = _shape(3, 320, 16)
    one, other = (indexer_topk.buffers(shape, CPU, 4) for _ in range(2))
    for name, tensors in vars(one).items():
        assert all(map(torch.equal, tensors, getattr(other, name))), name
        assert len({tensor.data_ptr() for tensor in tensors}) == 4
        assert all(tensor.data_ptr() % 16 == one.logits[0].data_ptr() % 16 for tensor in tensors[:1]), name
    pages = torch.cat([table.flatten() for table in one.page_table])
    assert pages.sort().values.tolist() == list(range(4 * 3 * 5))
    assert [offsets.tolist() for offsets in one.out_offsets[:2]] == [[0, 320, 640], [960, 1280, 1600]]
    assert {tensor.tolist()[0] for tensor in one.lengths} == {320}


def test_the_grid():
    assert len(CARD.grid) == 34
    ends = ["M=1 W=4096 k=2048 paged", "M=8 W=1048576 k=2048 ragged"]
    assert [str(CARD.grid[place]) for place in (0, -1)] == ends
