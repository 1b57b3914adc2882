"""Owns the implementations that these tests run; tests/gpu has its own."""

import shutil

import pytest

from sglang_glm53.kernels import jit

# On a CPU the inductor would compile C++ for each of these tests.
COMPILERS = {"cpu": "aot_eager", "cuda": "inductor"}


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


@pytest.fixture(params=["emulated", "torch"])
def kernels(request, choose):
    """The device that the chosen implementation runs on."""
    if request.param == "emulated":
        request.getfixturevalue("emulated")
    else:
        choose("torch")
    return "cpu"


@pytest.fixture
def source(emulated):
    """As kernels, but only where the kernel's source runs."""
    return "cpu"
