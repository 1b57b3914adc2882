"""Owns what every test here has: the marker, a GPU or a skip, and the CUDA kernels as the implementation."""

from pathlib import Path

import pytest
import torch

from sglang_glm53.kernels import backend


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.gpu)


# Asked when the first of these tests runs: a process that only collects them starts no CUDA.
@pytest.fixture(scope="session", autouse=True)
def gpu():
    """The GPU, "cuda"; without one that the kernels run on, every test here is skipped."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU, and torch finds none")
    if torch.cuda.get_device_capability() < backend.MIN_CAPABILITY:
        pytest.skip(f"needs compute capability 9.0, {torch.cuda.get_device_name()} has less")
    return "cuda"


@pytest.fixture
def kernels(gpu, choose):
    """The device that the chosen implementation runs on, as in tests/kernels; a fallback fails the test."""
    choose("cuda")
    yield gpu
    torch.cuda.synchronize()
    assert not backend.declined


@pytest.fixture
def capture(kernels):
    """capture(function) records it as a CUDA graph: the results, and what replays into them."""

    def record(function):
        # Compiles and loads the kernels, which a graph cannot hold.
        function()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = function()
        return found, graph.replay

    return record


@pytest.fixture
def source(kernels):
    """The kernel's source runs everywhere here."""
    return kernels
