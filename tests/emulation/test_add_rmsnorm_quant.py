"""Owns the checks of add_rmsnorm_quant's source under the sanitizers, and that they find planted bugs."""

import re
import shutil

import pytest

from sglang_glm53.kernels import jit
from sglang_glm53.testing import emulation
from tests.emulation import add_rmsnorm_quant_program
from tests.emulation.conftest import SOURCES
from tests.kernels.add_rmsnorm_quant_cases import LAYOUTS, Case

CASES = [
    Case(rows, hidden, layout, residual, with_y=layout is None or residual, gap=gap, seed=rows)
    # One group, one warp and a group, three warps of which the last is half empty, the most warps.
    for rows, hidden, gap in [(5, 128, 64), (3, 640, 0), (2, 1280, 64), (1, 8192, 0)]
    for layout in [*LAYOUTS, None]
    for residual in (True, False)
]
SCHEDULES = [("forward", 0), ("reversed", 0), ("random", 1), ("random", 2)]


def _share(checks):
    """Cases and schedules of a build: ThreadSanitizer takes a second for a few hundred CUDA threads."""
    return (CASES[::2], SCHEDULES[::3]) if checks == "thread" else (CASES, SCHEDULES)


@pytest.mark.parametrize("checks", emulation.CHECKS)
def test_values_under_every_check(program, tmp_path, checks):
    built = program("add_rmsnorm_quant", checks)
    cases, schedules = _share(checks)
    for order, seed in schedules:
        results = add_rmsnorm_quant_program.run(built, cases, tmp_path, order, seed)
        assert isinstance(results, list), results.output
        for case, result in zip(cases, results, strict=True):
            add_rmsnorm_quant_program.check(case, result)


# File, what stands there, what a hasty hand would write, and the checks that must notice: the schedules'
# values, or the emulation's or a sanitizer's words.
BUGS = {
    "missing barrier": (
        "include/glm53/reduce.cuh",
        "partial[warp] = value;\n  __syncthreads();\n",
        "partial[warp] = value;\n",
        {"thread": "data race"},
    ),
    "two warps write one sum": (
        "include/glm53/reduce.cuh",
        "partial[warp] = value",
        "partial[warp / 2] = value",
        {"plain": "values", "thread": "data race"},
    ),
    "read past the row": (
        "kernels/add_rmsnorm_quant.cuh",
        "inside[i] = channel[i] < params.hidden",
        "inside[i] = channel[i] <= params.hidden",
        {"plain": "refused: global memory: load of 16 bytes"},
    ),
    "misaligned vector load": (
        "kernels/add_rmsnorm_quant.cuh",
        "load_global<uint4>(params.x + row * params.x_stride + channel[i])",
        "load_global<uint4>(params.x + row * params.x_stride + channel[i] + 1)",
        {"plain": "refused: global memory: load of 16 bytes, misaligned"},
    ),
    "bad mask": (
        "include/glm53/reduce.cuh",
        "fmaxf(value, __shfl_xor_sync(kAllLanes,",
        "fmaxf(value, __shfl_xor_sync(kAllLanes >> 16,",
        {"plain": "refused: __shfl_xor_sync at .*: the mask 0x0000ffff leaves out the caller"},
    ),
    "load before the wait": (
        "kernels/add_rmsnorm_quant.cuh",
        "load_global<uint4>(params.weight + channel[i])",
        "load_global<uint4>(params.x + channel[i])",
        {"plain": r"refused: global memory: .* of x before pdl_wait\(\)"},
    ),
    "quantised before rounding": (
        "kernels/add_rmsnorm_quant.cuh",
        "      unpack_bf16x8(rounded, values[i]);\n",
        "",
        {"plain": "values"},
    ),
    "normed after rounding": (
        "kernels/add_rmsnorm_quant.cuh",
        "        store_global(params.residual",
        "        unpack_bf16x8(pack_bf16x8(values[i]), values[i]);\n        store_global(params.residual",
        {"plain": "values"},
    ),
    "scale of the wrong group": (
        "kernels/add_rmsnorm_quant.cuh",
        "group % 4 * 8",
        "(3 - group % 4) * 8",
        {"plain": "values"},
    ),
    "sum over one warp": (
        "include/glm53/reduce.cuh",
        "return warp_sum(lane < blockDim.x / kWarpThreads ? partial[lane] : 0.0f)",
        "return value",
        {"plain": "values"},
    ),
}


def _planted(folder, bug):
    """A copy of csrc with that bug."""
    file, right, wrong, _ = BUGS[bug]
    csrc = folder / "csrc"
    shutil.copytree(jit.csrc_dir(), csrc)
    text = (csrc / file).read_text()
    assert text.count(right) == 1, (bug, text.count(right))
    (csrc / file).write_text(text.replace(right, wrong))
    return csrc


def _notices(program, cases, folder, order, seed):
    """What the program or the values say against the kernel, or nothing."""
    results = add_rmsnorm_quant_program.run(program, cases, folder, order, seed)
    if isinstance(results, emulation.Outcome):
        return results.output
    try:
        for case, result in zip(cases, results, strict=True):
            add_rmsnorm_quant_program.check(case, result)
    except AssertionError:
        return "values"
    return ""


@pytest.mark.matrix
@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_is_found(program, tmp_path, bug):
    program("add_rmsnorm_quant")  # skips where nothing can be built
    csrc = _planted(tmp_path, bug)
    for checks, wanted in BUGS[bug][3].items():
        built = emulation.build(SOURCES / "add_rmsnorm_quant.cpp", tmp_path, checks, csrc=csrc)
        cases, schedules = _share(checks)
        noticed = [_notices(built, cases, tmp_path, order, seed) for order, seed in schedules]
        assert all(re.search(wanted, words) for words in noticed), noticed
