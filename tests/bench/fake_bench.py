"""Owns a device for the benchmark's tests: a clock that calls move, and contenders that take a set time."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path

import torch

from sglang_glm53 import upstream
from sglang_glm53.bench import measure, points
from sglang_glm53.bench.measure import Floors, LeftOut, Point, Prepared, Row
from sglang_glm53.kernels.cards import KernelCard, Shape

COPY_RATE = 2e12
EMPTY = 2e-6
CPU = torch.device("cpu")


class FakeDevice:
    """bench.Device with an L2 cache of 1000 bytes. Calls that are not its own take EMPTY.

    recordings: the names of the calls of each. replayed: the first name of each replay, in order.
    """

    l2_bytes = 1000
    copy_bytes = 4_000_000
    device = None

    def __init__(self):
        self.now = 0.0
        self.replayed = []
        self.recordings = []
        self.copy = [self.spends(self.copy_bytes / COPY_RATE)]
        self.empty = self.spends(EMPTY)

    def spends(self, seconds: float, name: str = "") -> Callable[[], None]:
        """A call that takes that long."""

        def call():
            self.now += seconds

        call.name = name
        return call

    def record(self, calls):
        self.recordings.append([getattr(call, "name", "") for call in calls])

        def replay():
            start = self.now
            for call in calls:
                call()
                self.now += 0 if hasattr(call, "name") else EMPTY
            self.replayed.append(getattr(calls[0], "name", ""))
            return self.now - start

        return replay

    def describe(self):
        return {"name": "fake", "driver_version": "1.2"}


def contender(device, seconds, result=7, name=""):
    """Prepares calls of those seconds, with a result; a result that is an exception is raised."""

    def prepare(sets):
        def give():
            if isinstance(result, Exception):
                raise result
            return result

        return Prepared([device.spends(seconds, name=f"{name}{i}") for i in range(sets)], give)

    return prepare


def equal(found, ours):
    if found != ours:
        raise AssertionError(f"{found} is not {ours}")


def point(contenders, bytes_moved=400):
    """A point whose contenders must give what the first gives."""
    return Point("k", "M=1", bytes_moved, contenders, equal)


def measured(card: KernelCard, shape: Shape) -> tuple[list[Row], list[LeftOut]]:
    """What the benchmark gives for one shape of a card, the kernel and its peers run on the CPU."""
    return measure.measure(points.point(card, shape, CPU), FakeDevice(), Floors(1e9, EMPTY), repeats=1)


def stand_in(declared, run):
    """A function with the parameters of the installed one that runs in torch instead.

    declared: where the source declares it, dotted. run is given the arguments by the names of the parameters.
    """
    package = importlib.util.find_spec(declared.partition(".")[0]).submodule_search_locations[0]
    found = upstream.declaration(declared, Path(package))
    assert found is not None and found.startswith("function("), declared
    signature = inspect.signature(eval(f"lambda {found.removeprefix('function(')[:-1]}: None"))

    def function(*arguments, **keywords):
        return run(**signature.bind(*arguments, **keywords).arguments)

    return function
