"""Owns the checks that a kernel waits for what is ahead of it: launched back to back, and one by one."""

import pytest
import torch

from sglang_glm53.kernels.add_rmsnorm_quant import add_rmsnorm_quant
from sglang_glm53.kernels.indexer_topk import indexer_topk
from tests.kernels.add_rmsnorm_quant_cases import EPS, Case
from tests.kernels.calls import as_bytes
from tests.kernels.fp8_checks import LAYOUTS
from tests.kernels.indexer_topk_cases import Call, check
from tests.kernels.indexer_topk_cases import Case as TopkCase

ROUNDS = 30


def _chain(x, residual, weight, layout, between):
    """Each norm reads the y and the residual of the one ahead, and writes where an older one has read."""
    for _ in range(12):
        normed = add_rmsnorm_quant(x, residual, weight, EPS, layout)
        between()
        x = normed.y
    return [as_bytes(tensor) for tensor in (*normed, residual)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("rows", [1, 8, 300])
def test_norms_wait_for_norms(kernels, rows, layout):
    for seed in range(ROUNDS):
        case = Case(rows, 2048, layout, seed=seed, device=kernels)
        wanted = _chain(*case.inputs(), layout, torch.cuda.synchronize)
        found = _chain(*case.inputs(), layout, lambda: None)
        assert all(map(torch.equal, found, wanted)), seed


def _norm_and_two_selections(x, residual, weight, scores, lengths, between):
    """A norm's y is the first selection's logits; that one makes the second's lengths and page table."""
    y = add_rmsnorm_quant(x, residual, weight, EPS).y
    between()
    first = indexer_topk(y, lengths, 512)
    between()
    second = indexer_topk(scores, first.counts, 64, page_table=first.slots)
    between()
    return y, *first[:2], *second[:2]


@pytest.mark.parametrize("rows", [1, 8, 300])
def test_selections_wait_for_what_makes_their_inputs(kernels, rows):
    generator = torch.Generator().manual_seed(rows)
    scores = torch.randn(rows, 512, generator=generator).to(kernels)
    for seed in range(ROUNDS):
        lengths = torch.randint(0, 2049, (rows,), generator=generator).int().to(kernels)
        case = Case(rows, 2048, seed=seed, device=kernels)
        wanted = _norm_and_two_selections(*case.inputs(), scores, lengths, torch.cuda.synchronize)
        found = _norm_and_two_selections(*case.inputs(), scores, lengths, lambda: None)
        assert all(map(torch.equal, found, wanted)), seed
    y, slots, counts, last, last_counts = found
    check(Call(y, lengths, case=TopkCase(rows, 2048, 512)), slots, counts, None)
    check(Call(scores, counts, slots, case=TopkCase(rows, 512, 64, page_size=1)), last, last_counts, None)


def test_a_graph_of_them_waits_too(kernels, capture):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(8, 512, generator=generator).to(kernels)
    lengths = torch.randint(0, 2049, (8,), generator=generator).int().to(kernels)
    x, residual, weight = Case(8, 2048, device=kernels).inputs()
    start = residual.clone()
    wanted = _norm_and_two_selections(x, start.clone(), weight, scores, lengths, torch.cuda.synchronize)
    found, replay = capture(
        lambda: _norm_and_two_selections(x, residual, weight, scores, lengths, lambda: None)
    )
    for turn in range(ROUNDS):
        residual.copy_(start)
        replay()
        assert all(map(torch.equal, found, wanted)), turn
