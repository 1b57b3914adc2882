"""Owns the fixtures that tests of more than one module use, and what a run says of the tests it skipped."""

import importlib.util
import sys
from collections import Counter
from pathlib import Path

import pytest

from sglang_glm53 import upstream

HOOK_REGISTRY = "sglang.srt.plugins.hook_registry"
ROOT = Path(__file__).parents[1]
# The files that take longest, the longest first, so that two workers end together.
LONGEST = (
    "tests/e2e/test_pd_mtp.py",
    "tests/e2e/test_mtp.py",
    "tests/e2e/test_oracle.py",
    "tests/e2e/test_pd.py",
    "tests/e2e/test_pd_faults.py",
    "tests/e2e/test_boundary.py",
    "tests/e2e/test_overlap_rounded.py",
    "tests/e2e/test_overlap.py",
    "tests/e2e/test_shapes.py",
    "tests/e2e/test_guard.py",
    "tests/e2e/test_collectives.py",
    "tests/e2e/test_fp8.py",
    "tests/e2e/test_robustness.py",
    "tests/e2e/test_start.py",
    "tests/e2e/test_launch.py",
    "tests/e2e/test_status.py",
    "tests/e2e/test_loading.py",
    "tests/emulation/test_indexer_topk.py",
    "tests/kernel_entries/test_entries.py",
    "tests/emulation/test_faults.py",
    "tests/contract/test_resolution.py",
    "tests/emulation/test_kernels.py",
)


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


def pytest_collection_modifyitems(items):
    """LONGEST first; within a file, and among the others, as collected."""
    place = {ROOT / file: number for number, file in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))
