"""Owns the checks of every kernel on a GPU: the values of tests/kernels, many rows, repeats, graphs.

For each kernel a class takes over the tests of tests/kernels/test_<stem>.py that run wherever their fixture
says, and those of its class OnGpu.
"""

import importlib
import inspect
from dataclasses import replace

import pytest
import torch

from sglang_glm53.kernels.cards import cards
from tests.kernels.calls import as_bytes, cases_of, op, run, written

# What those tests call the device that they run on.
FIXTURES = {"kernels", "source"}


def borrowed(module):
    """The tests of a module that run here, as a class's members."""
    functions = {name: value for name, value in vars(module).items() if name.startswith("test_")}
    here = {name: f for name, f in functions.items() if FIXTURES & set(inspect.signature(f).parameters)}
    return {name: staticmethod(function) for name, function in here.items()}


for _stem in cards():
    _module = importlib.import_module(f"tests.kernels.test_{_stem}")
    _name = "Test" + _stem.title().replace("_", "")
    globals()[_name] = type(_name, (getattr(_module, "OnGpu", object),), borrowed(_module))


def _all(name):
    return pytest.mark.parametrize(
        ("stem", "case"),
        [(stem, case) for stem in cards() for case in getattr(cases_of(stem), name)],
        ids=str,
    )


def _call(stem, case, device):
    return cases_of(stem).call(replace(case, device=device))


def _bytes(tensors):
    return list(map(as_bytes, tensors))


@_all("LARGE")
def test_large_calls(kernels, stem, case):
    run(stem, _call(stem, case, kernels))


@_all("REPEATED")
def test_twenty_runs_are_identical(kernels, stem, case):
    wanted = _bytes(run(stem, _call(stem, case, kernels)))
    call = _call(stem, case, kernels)
    tensors = [call.arguments[name] for name in written(stem, call)]
    start = [tensor.clone() for tensor in tensors]
    for turn in range(20):
        for tensor, value in zip(tensors, start, strict=True):
            tensor.copy_(value)
        op(stem)(**call.arguments)
        assert all(map(torch.equal, _bytes(tensors), wanted)), turn


@_all("REPEATED")
def test_a_graph_replays_with_changed_inputs(kernels, capture, stem, case):
    """Every tensor that the op reads changes between replays."""
    held = _call(stem, case, kernels)
    _, replay = capture(lambda: op(stem)(**held.arguments))
    for seed in (0, 1, 2, 3, 0):
        call = _call(stem, replace(case, seed=seed), kernels)
        for name, value in call.arguments.items():
            if isinstance(value, torch.Tensor):
                held.arguments[name].copy_(value)
        replay()
        call.check(held.arguments)
        eager = run(stem, call)
        found = [held.arguments[name] for name in written(stem, held)]
        assert all(map(torch.equal, _bytes(found), _bytes(eager))), seed


@_all("REPEATED")
def test_a_call_allocates_nothing(kernels, stem, case):
    call = _call(stem, case, kernels)
    op(stem)(**call.arguments)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    op(stem)(**call.arguments)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
