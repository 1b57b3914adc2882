"""Owns the proof that the checks find bugs: kernels with one seeded bug, and what says so."""

import re

import pytest

from sglang_glm53.testing import emulation

RACE = "ThreadSanitizer: data race"
# For each bug, the checks that must find it and how. "any order" is the plain build under each schedule.
FAULTS = {
    "NoBarrierBeforeRead": {"any order": "^wrong", "thread": RACE},
    "NoBarrierBeforeReuse": {"random": "^wrong", "thread": RACE},
    "NoSyncWarp": {"any order": "^wrong", "thread": RACE},
    "Race": {"thread": RACE},
    "RaceOfBlocks": {"any order": "^wrong", "thread": RACE},
    "LostUpdate": {"thread": RACE},
    "Uninitialised": {"any order": "^wrong"},
    "DivergentBarrier": {"any order": r"refused: __syncthreads at .*: another thread waits at .*faults.cpp"},
    "ExitBeforeBarrier": {"any order": "refused: __syncthreads.*exit"},
    "Deadlock": {
        "any order": r"refused: deadlock in block .*\n +1 in __shfl_sync .*\n +127 in __syncthreads"
    },
    "MaskLeavesOutCaller": {"any order": "refused: __ballot_sync.*leaves out the caller, lane 0"},
    "MaskNamesExited": {"any order": "refused: __syncwarp.*lane 5.*exit"},
    "MaskNamesAbsent": {"any order": "refused: __shfl_xor_sync.*names lane 24, which does not exist"},
    "MasksDiffer": {"any order": "refused: .*0xfffffffe"},
    "MixedCollectives": {"any order": "refused: .*__any_sync"},
    "LaneOutsideMask": {"any order": "refused: __shfl_xor_sync.*lane 0 reads lane 16, which the mask"},
    "ReadPastRow": {"any order": "refused: global memory: load of 16 bytes, at byte [0-9]+ of in"},
    "ReadPastBuffer": {"any order": "refused: global memory: load of 16 bytes"},
    "RawReadPastBuffer": {"address": "AddressSanitizer: heap-buffer-overflow"},
    "RawWritePastBuffer": {"address": "AddressSanitizer: heap-buffer-overflow"},
    "WriteToInput": {"any order": "refused: global memory: store of 4 bytes, at byte [0-9]+ of in"},
    "ReadBeforeWait": {"any order": r"refused: global memory: load of 16 bytes, of in before pdl_wait\(\)"},
    "Misaligned": {"any order": "refused: global memory: load of 16 bytes, misaligned"},
    "RawMisaligned": {"address": "runtime error: .*misaligned address"},
    "SharedIndex": {"address": "runtime error: index 4 out of bounds"},
    "SharedOverrun": {"address": "AddressSanitizer: heap-buffer-overflow"},
    "Shift": {"address": "runtime error: shift exponent 32 is too large"},
}
RANDOM_SEEDS = range(1, 11)


def _plain(program, fault, order):
    seeds = RANDOM_SEEDS if order == "random" else [0]
    return [emulation.run(program("faults"), fault, order=order, seed=seed).output for seed in seeds]


@pytest.mark.parametrize(
    ("fault", "check"), [(fault, check) for fault, checks in FAULTS.items() for check in checks]
)
def test_fault_is_found(program, fault, check):
    wanted = FAULTS[fault][check]
    if check in emulation.CHECKS:
        outcome = emulation.run(program("faults", check), fault)
        assert outcome.status
        assert re.search(wanted, outcome.output)
    else:
        orders = ["random"] if check == "random" else ["forward", "reversed", "random"]
        for output in (output for order in orders for output in _plain(program, fault, order)):
            assert re.search(wanted, output), output


@pytest.mark.parametrize("checks", emulation.CHECKS)
def test_the_kernel_without_a_bug_passes(program, checks):
    for order, seed in [("forward", 0), ("reversed", 0), ("random", 1), ("random", 2)]:
        outcome = emulation.run(program("faults", checks), "None", order=order, seed=seed)
        assert outcome == emulation.Outcome(0, "right\n")


def test_the_orders_alone_miss_races(program):
    """Why ThreadSanitizer is among the checks."""
    for fault in ("Race", "LostUpdate"):
        outputs = [
            output for order in ("forward", "reversed", "random") for output in _plain(program, fault, order)
        ]
        assert set(outputs) == {"right\n"}
