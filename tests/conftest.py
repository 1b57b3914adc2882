"""Owns the fixtures that tests of more than one module use, and what a run says of the tests it skipped."""

import importlib.util
import sys
from collections import Counter

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


@pytest.fixture
def choose(monkeypatch):
    """choose(kernels, disable) sets the two variables until the test ends; declines count from 0."""
    from sglang_glm53.kernels import backend

    def set_choice(kernels="auto", disable=""):
        monkeypatch.setenv("GLM53_KERNELS", kernels)
        monkeypatch.setenv("GLM53_DISABLE", disable)
        backend.settings.cache_clear()

    backend.declined.clear()
    set_choice()
    yield set_choice
    backend.declined.clear()
    monkeypatch.undo()
    backend.settings.cache_clear()


def pytest_addoption(parser):
    """What `make soak` changes of tests/e2e/test_pd_faults.py."""
    parser.addoption("--injections", type=int, default=3, help="how often each fault strikes a pair")
    parser.addoption("--fault-report", help="the file that takes the figures of a pair's faults")


def pytest_terminal_summary(terminalreporter):
    """One line for each feature that was not tested, with its repair: the reason of the skip."""
    reasons = Counter(report.longrepr[2] for report in terminalreporter.stats.get("skipped", []))
    if reasons:
        terminalreporter.section("not tested here")
    for reason, tests in sorted(reasons.items()):
        terminalreporter.write_line(f"{reason.removeprefix('Skipped: ')} ({tests} skipped)")
