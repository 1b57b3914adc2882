"""Owns the checks of every kernel's source under the sanitizers, and that they find planted bugs."""

import re
import shutil

import pytest

from sglang_glm53.kernels import jit
from sglang_glm53.kernels.cards import cards
from sglang_glm53.testing import emulation
from tests.emulation import kernel_program
from tests.emulation.conftest import SOURCES
from tests.kernels.calls import cases_of

SCHEDULES = [("forward", 0), ("reversed", 0), ("random", 1), ("random", 2)]
BUGS = [(stem, bug) for stem in cards() for bug in cases_of(stem).BUGS]


def _share(stem, checks):
    """Calls and schedules of a build: ThreadSanitizer takes a second for a few hundred CUDA threads."""
    calls = [cases_of(stem).call(case) for case in cases_of(stem).SMALL]
    if checks != "thread":
        return calls, SCHEDULES
    return calls[:: 2 if len(calls) > 8 else 1], SCHEDULES[::3]


@pytest.mark.parametrize("checks", emulation.CHECKS)
@pytest.mark.parametrize("stem", cards())
def test_values_under_every_check(program, tmp_path, stem, checks):
    built = program("kernel", checks, *kernel_program.flags(stem))
    calls, schedules = _share(stem, checks)
    for order, seed in schedules:
        results = kernel_program.run(stem, built, calls, tmp_path, order, seed)
        assert isinstance(results, list), results.output
        for call, result in zip(calls, results, strict=True):
            kernel_program.check(call, result)


def _notices(stem, built, calls, folder, order, seed):
    """What the program or the values say against the kernel, or nothing."""
    results = kernel_program.run(stem, built, calls, folder, order, seed)
    if isinstance(results, emulation.Outcome):
        return results.output
    try:
        for call, result in zip(calls, results, strict=True):
            kernel_program.check(call, result)
    except AssertionError:
        return "values"
    return ""


@pytest.mark.matrix
@pytest.mark.parametrize(("stem", "bug"), BUGS)
def test_planted_bug_is_found(program, tmp_path, stem, bug):
    if emulation.compiler() is None:
        pytest.skip("emulated kernels: no host C++ compiler: apt-get install g++")
    file, right, wrong, noticed_by = cases_of(stem).BUGS[bug]
    csrc = tmp_path / "csrc"
    shutil.copytree(jit.csrc_dir(), csrc)
    text = (csrc / file).read_text()
    assert text.count(right) == 1, text.count(right)
    (csrc / file).write_text(text.replace(right, wrong))
    for checks, wanted in noticed_by.items():
        flags = kernel_program.flags(stem)
        built = emulation.build(SOURCES / "kernel.cpp", tmp_path, checks, flags, csrc)
        calls, schedules = _share(stem, checks)
        noticed = [_notices(stem, built, calls, tmp_path, order, seed) for order, seed in schedules]
        assert all(re.search(wanted, words) for words in noticed), noticed
