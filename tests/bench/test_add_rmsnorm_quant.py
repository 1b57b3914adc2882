"""Owns the checks of add_rmsnorm_quant's benchmark: the installed peers' parameters, and the comparison."""

import pytest
import torch

from sglang_glm53.bench import add_rmsnorm_quant
from sglang_glm53.bench.add_rmsnorm_quant import FLASHINFER, SGLANG_NORM, SGLANG_QUANT
from sglang_glm53.bench.measure import OURS
from sglang_glm53.kernels.add_rmsnorm_quant import CARD
from sglang_glm53.kernels.cards import Shape
from sglang_glm53.kernels.fp8 import ScaleLayout, quantise_into
from sglang_glm53.testing.reference import add_rmsnorm_quant as reference
from tests.bench.fake_bench import CPU, measured, stand_in

SGLANG_NAME, FLASHINFER_NAME = CARD.peers


def _norm(input, residual, weight, eps):
    total, y = reference.norm(input, residual, weight, eps)
    residual.copy_(total)
    input.copy_(y)


def _quant(x, group_size, output_q, output_s, **flags):
    assert group_size == 128
    assert flags["column_major_scales"] == flags["scale_tma_aligned"] == (not output_s.is_contiguous())
    assert flags["scale_ue8m0"] == (output_s.dtype == torch.int32)
    quantise_into(x, output_q, output_s)


def _fused(out, block_scale, normed_out, input, residual, weight, eps):
    assert block_scale.is_contiguous()
    total, y = reference.norm(input, residual, weight, eps)
    residual.copy_(total)
    normed_out.copy_(y)
    quantise_into(normed_out, out, block_scale.t()[: len(input)])


@pytest.fixture
def peers(monkeypatch):
    """The installed peers' parameters over torch; a test may put another function in."""
    found = {
        SGLANG_NORM: stand_in("sgl_kernel.elementwise.fused_add_rmsnorm", _norm),
        SGLANG_QUANT: stand_in(".".join(SGLANG_QUANT), _quant),
        FLASHINFER: stand_in(".".join(FLASHINFER), _fused),
    }
    monkeypatch.setattr(add_rmsnorm_quant, "load", found.__getitem__)
    return found


def _shape(rows=5, hidden=640, layout=ScaleLayout.COLUMN_MAJOR):
    return Shape(rows, {"H": hidden}, layout.value)


@pytest.mark.parametrize("layout", ScaleLayout, ids=str)
@pytest.mark.parametrize(("rows", "hidden"), [(1, 640), (5, 1152), (300, 640)])
def test_peers_that_agree_are_timed(peers, rows, hidden, layout):
    found, left_out = measured(CARD, _shape(rows, hidden, layout))
    only_here = layout is ScaleLayout.COLUMN_MAJOR
    assert [row.contender for row in found] == [OURS, SGLANG_NAME, *[FLASHINFER_NAME] * only_here]
    assert [absent.contender for absent in left_out] == [FLASHINFER_NAME] * (not only_here)
    assert not any(absent.wrong for absent in left_out)
    if left_out:
        assert left_out[0].reason == (
            f"ValueError: it has no {layout.value} scales, only column-major FP32 ones"
        )


def test_the_bytes_are_the_cards(peers):
    found, _ = measured(CARD, _shape(8, 6144, ScaleLayout.ROW_MAJOR))
    assert {(row.shape, row.rotated_bytes // row.sets) for row in found} == {
        ("M=8 H=6144 row-major", 456_192)
    }


def _spoiled(place):
    """The fused stand-in, with one part of its result changed."""

    def run(out, block_scale, normed_out, input, residual, weight, eps):
        _fused(out, block_scale, normed_out, input, residual, weight, eps)
        if place == "residual":
            residual[4, 639] += 1
        elif place == "y":
            normed_out[2] *= 1.02
        elif place == "q":
            out.view(torch.uint8)[3, 5] ^= 0x80
        elif place == "scale":
            block_scale *= 1.1
        elif place == "nothing written":
            normed_out.fill_(torch.nan)

    return run


@pytest.mark.parametrize("place", ["residual", "y", "q", "scale", "nothing written"])
def test_a_peer_that_disagrees_is_refused(peers, place):
    peers[FLASHINFER] = stand_in(".".join(FLASHINFER), _spoiled(place))
    rows, left_out = measured(CARD, _shape())
    assert [row.contender for row in rows] == [OURS, SGLANG_NAME]
    assert [(absent.contender, absent.wrong) for absent in left_out] == [(FLASHINFER_NAME, True)]


def test_the_last_of_many_rows_is_compared(peers):
    def run(input, residual, weight, eps):
        _norm(input, residual, weight, eps)
        input[-1, 0] *= 2

    peers[SGLANG_NORM] = stand_in("sgl_kernel.elementwise.fused_add_rmsnorm", run)
    _, left_out = measured(CARD, _shape(rows=400))
    assert [(absent.contender, absent.wrong) for absent in left_out] == [(SGLANG_NAME, True)]


def test_a_kernel_that_declines_is_not_timed_as_its_fallback(peers):
    rows, left_out = measured(CARD, _shape(hidden=8320))
    assert rows == []
    assert left_out[0].contender == OURS
    assert left_out[0].wrong
    assert left_out[0].reason.startswith("ValueError: the kernel declines: the hidden size is not")


@pytest.mark.parametrize("layout", ScaleLayout, ids=str)
def test_sets_are_apart_and_repeat(layout):
    one, other = (add_rmsnorm_quant.buffers(_shape(layout=layout), CPU, 3) for _ in range(2))
    for name in ("x", "residual", "weight"):
        tensors = getattr(one, name)
        assert all(map(torch.equal, tensors, getattr(other, name))), name
        assert not torch.equal(tensors[0], tensors[1]), name
    for tensors in vars(one).values():
        assert len({tensor.data_ptr() for tensor in tensors}) == 3


def test_the_grid():
    assert len(CARD.grid) == 48
    assert [str(CARD.grid[place]) for place in (0, -1)] == [
        "M=1 H=6144 row-major",
        "M=16384 H=2048 packed UE8M0",
    ]
