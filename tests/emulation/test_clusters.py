"""Owns the checks of the emulated thread block cluster: what it computes, and what it refuses."""

import re

import pytest

from sglang_glm53.testing import emulation

SCHEDULES = [("forward", 0), ("reversed", 0), ("random", 1), ("random", 2), ("random", 3)]
RACE = "ThreadSanitizer: data race"
FAULTS = {
    "NoWait": "refused: cluster: the thread arrives twice without waiting",
    "NoBarrierBeforeRead": "^wrong",
    "BlockEndsEarly": "refused: cluster: the block of rank [0-3] has ended",
    "ArrivesTwice": "refused: cluster: the thread arrives twice without waiting",
    "WaitsAlone": "refused: cluster: the thread waits without having arrived",
    "ExitsWithoutWaiting": "refused: cluster: the thread exits without waiting",
    "ThreadStaysAway": "refused: cluster: the thread exits while others wait; block .*, thread .7, 0, 0.",
    "RankOutside": "refused: cluster: rank 4 does not exist",
    "NotShared": "refused: cluster: the pointer is not into the block's shared memory",
}


@pytest.mark.parametrize("checks", ["plain", "thread", pytest.param("address", marks=pytest.mark.matrix)])
def test_cluster(program, checks):
    built = program("clusters", checks)
    for order, seed in SCHEDULES:
        assert emulation.run(built, "None", order=order, seed=seed) == emulation.Outcome(0, "right\n")


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_found(program, fault):
    for order, seed in SCHEDULES:
        output = emulation.run(program("clusters"), fault, order=order, seed=seed).output
        assert re.search(FAULTS[fault], output), output


def test_a_race_between_blocks_is_found(program):
    outcome = emulation.run(program("clusters", "thread"), "NoBarrierBeforeRead")
    assert outcome.status
    assert RACE in outcome.output
