"""Owns the programs of these tests: each built once for a run of the tests, in the checks that ask for it."""

import functools
import tempfile
from pathlib import Path

import pytest

from sglang_glm53.testing import emulation

SOURCES = Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    """program("machine", "thread"): the program of tests/emulation/machine.cpp with those checks."""
    if emulation.compiler() is None:
        pytest.skip("emulated kernels: no host C++ compiler: apt-get install g++")
    folder = tmp_path_factory.mktemp("emulation")

    @functools.cache
    def build(name, checks="plain", *flags):
        place = Path(tempfile.mkdtemp(dir=folder))
        return emulation.build(SOURCES / f"{name}.cpp", place, checks, flags)

    return build
