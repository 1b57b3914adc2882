"""Owns the checks of add_rmsnorm_quant on a GPU: the values of tests/kernels, many rows, repeats, graphs."""

import pytest
import torch

from sglang_glm53.geometry import HIDDEN
from sglang_glm53.kernels.add_rmsnorm_quant import add_rmsnorm_quant
from sglang_glm53.kernels.fp8 import FP8, ScaleLayout, empty_scales
from tests.gpu.borrowed import value_tests
from tests.kernels import test_add_rmsnorm_quant as values
from tests.kernels.add_rmsnorm_quant_cases import EPS, LAYOUTS, Case, check_quantised, check_y

globals().update(value_tests(values))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize(("rows", "hidden"), [(1024, HIDDEN), (4099, HIDDEN), (2050, 2048)])
def test_thousands_of_rows(kernels, rows, hidden, layout):
    values.run(Case(rows, hidden, layout, gap=8, device=kernels))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_twenty_runs_are_identical(kernels, layout):
    case = Case(257, HIDDEN, layout, gap=64, device=kernels)
    wanted, wanted_residual = values.run(case)
    x, start, weight = case.inputs()
    for run in range(20):
        residual = start.clone()
        found = add_rmsnorm_quant(x, residual, weight, EPS, layout)
        assert all(map(values.same_bytes, (*found, residual), (*wanted, wanted_residual))), run


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_graph_replays_with_changed_inputs(kernels, capture, layout):
    cases = [Case(33, HIDDEN, layout, seed=seed, magnitude=2.0**seed, device=kernels) for seed in range(4)]
    x, residual, weight = cases[0].inputs()
    found, replay = capture(lambda: add_rmsnorm_quant(x, residual, weight, EPS, layout))
    for case in [*cases, cases[0]]:
        new_x, new_residual, new_weight = case.inputs()
        _, wanted = values.wanted_norm(new_x, new_residual, new_weight)
        for held, new in ((x, new_x), (residual, new_residual), (weight, new_weight)):
            held.copy_(new)
        replay()
        check_y(found.y, wanted)
        check_quantised(found.y, found.q, found.scale, layout)
        eager = add_rmsnorm_quant(new_x, new_residual, new_weight, EPS, layout)
        assert all(map(values.same_bytes, (*found, residual), (*eager, new_residual))), case.seed


def test_a_call_allocates_nothing(kernels):
    x, residual, weight = Case(64, HIDDEN, device=kernels).inputs()
    y, q = torch.empty_like(x), torch.empty_like(x, dtype=FP8)
    scale = empty_scales(64, HIDDEN, ScaleLayout.PACKED_UE8M0, x.device)
    torch.ops.glm53.add_rmsnorm_quant(x, residual, weight, y, q, scale, EPS)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.ops.glm53.add_rmsnorm_quant(x, residual, weight, y, q, scale, EPS)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_compiled_without_a_graph_break(kernels):
    x, residual, weight = Case(33, HIDDEN, device=kernels).inputs()
    compiled_residual = residual.clone()

    def layer(x, residual):
        normed = add_rmsnorm_quant(x * 2, residual, weight, EPS, ScaleLayout.COLUMN_MAJOR)
        return normed.y * 2, normed.q.view(torch.uint8), normed.scale

    wanted = layer(x, residual)
    found = torch.compile(layer, fullgraph=True)(x, compiled_residual)
    assert all(map(values.same_bytes, (*found, compiled_residual), (*wanted, residual)))
