"""Owns the checks that correct kernels compute the same under every schedule, switch and sanitizer."""

import pytest

from sglang_glm53.testing import emulation

SCHEDULES = [("forward", 0), ("reversed", 0), ("random", 1), ("random", 2), ("random", 3)]


@pytest.mark.parametrize("checks", ["plain", "thread", pytest.param("address", marks=pytest.mark.matrix)])
def test_machine(program, checks):
    built = program("machine", checks)
    for order, seed in SCHEDULES:
        assert emulation.run(built, order=order, seed=seed) == emulation.Outcome(0, "0 faults\n")


@pytest.mark.matrix
def test_machine_without_the_assembly_switch(program):
    built = program("machine", "plain", "-DGLM53_EMULATION_UCONTEXT")
    for order, seed in SCHEDULES:
        assert emulation.run(built, order=order, seed=seed) == emulation.Outcome(0, "0 faults\n")


def test_a_source_that_does_not_compile_is_reported(tmp_path):
    source = tmp_path / "broken.cpp"
    source.write_text("#include <glm53/device.cuh>\nint main() { return nothing; }\n")
    with pytest.raises(RuntimeError, match="nothing"):
        emulation.build(source, tmp_path)
