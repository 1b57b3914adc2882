"""Owns the way from the value tests of tests/kernels to this folder: the same functions, run on the GPU."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType

# What those tests call the device that they run on.
FIXTURES = {"kernels", "source"}


def value_tests(module: ModuleType) -> dict[str, Callable[..., None]]:
    """The tests of a module that run wherever their fixture says, by name."""
    return {
        name: function
        for name, function in vars(module).items()
        if name.startswith("test_") and FIXTURES & set(inspect.signature(function).parameters)
    }
