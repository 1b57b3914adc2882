"""Owns the checks of every kernel's op, whose calls the kernel's cases give: values, schedules, tracing."""

import pytest
import torch

from sglang_glm53.kernels import backend
from sglang_glm53.kernels.cards import cards
from tests.kernels.calls import as_bytes, cases_of, op, run

every_stem = pytest.mark.parametrize("stem", cards())


@every_stem
def test_values(kernels, stem):
    for case in cases_of(stem).SMALL:
        run(stem, cases_of(stem).call(case))
    assert not backend.declined


@every_stem
def test_schedules_give_the_same_bytes(emulated, stem):
    module = emulated(stem)
    for case in cases_of(stem).SMALL:
        wanted = list(map(as_bytes, run(stem, cases_of(stem).call(case))))
        for order, seed in [("reversed", 0), *(("random", seed) for seed in range(1, 6))]:
            module.set_schedule(order, seed)
            found = map(as_bytes, run(stem, cases_of(stem).call(case)))
            assert all(map(torch.equal, found, wanted)), (case, order, seed)
        module.set_schedule("forward", 0)


@every_stem
def test_schema_and_fake_tensors(emulated, stem):
    for case in cases_of(stem).SMALL:
        arguments = cases_of(stem).call(case).arguments
        floats = {value.dtype for value in arguments.values() if isinstance(value, torch.Tensor)}
        # The schema check cannot compare e4m3.
        tests = ("test_faketensor", *(["test_schema"] if torch.float8_e4m3fn not in floats else []))
        torch.library.opcheck(op(stem), (), arguments, test_utils=tests)
