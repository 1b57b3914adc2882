"""Owns the fixtures that tests of more than one module use."""

import importlib.util
import sys

import pytest

from sglang_glm53 import upstream

HOOK_REGISTRY = "sglang.srt.plugins.hook_registry"


@pytest.fixture
def registry(monkeypatch):
    """SGLang's HookRegistry, loaded from its file without the rest of SGLang, and empty."""
    file = upstream.root() / "srt" / "plugins" / "hook_registry.py"
    spec = importlib.util.spec_from_file_location(HOOK_REGISTRY, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, HOOK_REGISTRY, module)
    return module.HookRegistry


def pytest_addoption(parser):
    """What `make soak` changes of tests/e2e/test_pd_faults.py."""
    parser.addoption("--injections", type=int, default=3, help="how often each fault strikes a pair")
    parser.addoption("--fault-report", help="the file that takes the figures of a pair's faults")
