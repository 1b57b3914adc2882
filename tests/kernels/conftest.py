"""Owns the emulated kernels that these tests run."""

import shutil

import pytest

from sglang_glm53.kernels import jit


@pytest.fixture
def emulated(choose):
    """The emulated kernels are chosen; gives their module by stem, in the forward schedule."""
    if shutil.which("c++") is None:
        pytest.skip("emulated kernels: no host C++ compiler: apt-get install g++")
    choose("emulated")

    used = []

    def module(stem):
        used.append(jit.emulated_module(stem))
        used[-1].set_schedule("forward", 0)
        return used[-1]

    yield module
    for built in used:
        built.set_schedule("forward", 0)
