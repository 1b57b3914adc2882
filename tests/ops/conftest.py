"""Owns the choice of implementation in these tests."""

import shutil

import pytest

from sglang_glm53 import jit
from sglang_glm53.ops import backend


@pytest.fixture
def choose(monkeypatch):
    """choose("torch") or another value of GLM53_KERNELS, until the test ends."""

    def set_choice(kernels, disable=""):
        monkeypatch.setenv("GLM53_KERNELS", kernels)
        monkeypatch.setenv("GLM53_DISABLE", disable)
        backend.settings.cache_clear()

    backend.declined.clear()
    yield set_choice
    backend.declined.clear()
    monkeypatch.undo()
    backend.settings.cache_clear()


@pytest.fixture
def emulated(choose):
    """The emulated kernels are chosen; gives their module by stem, in the forward schedule."""
    if shutil.which("c++") is None:
        pytest.skip("no host C++ compiler: the emulated kernels cannot be built")
    choose("emulated")

    used = []

    def module(stem):
        used.append(jit.emulated_module(stem))
        used[-1].set_schedule("forward", 0)
        return used[-1]

    yield module
    for built in used:
        built.set_schedule("forward", 0)
