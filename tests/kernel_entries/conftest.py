"""Owns the recordings that the tests of this folder share: one process for each device."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kernel_entries import harness, report

UNFUSED = {"shared expert": (3, "ffn_input"), "attention": (3, "attention_input"), "q_a": (6, "q_a")}
PLANTED = ("aten", "triton", "operator", "runtime launch", "driver launch")


def _plain(implementation: str) -> harness.Case:
    return {"deployment": "dp8_deepep", "implementation": implementation}


@pytest.fixture(scope="session")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    if reason := harness.unfit():
        pytest.skip(reason)
    return harness.build_stubs(tmp_path_factory.mktemp("cuda-stubs"))


@pytest.fixture(scope="session")
def hopper(stubs: dict[str, str]) -> dict[str, Any]:
    """The answers on an H200 by name: report.cases(), "again", "unfused <name>", "planted <kind>"."""
    named = report.cases("9.0") | {"again": _plain("stock")}
    named |= {f"unfused {name}": _plain("ours") | {"unfuse": change} for name, change in UNFUSED.items()}
    named |= {f"planted {kind}": _plain("stock") | {"plant": (3, kind)} for kind in PLANTED}
    return dict(zip(named, harness.record("9.0", list(named.values()), stubs), strict=True))


@pytest.fixture(scope="session")
def blackwell(stubs: dict[str, str]) -> dict[str, Any]:
    """The answers on a B300 by the names of report.cases()."""
    named = report.cases("10.0")
    return dict(zip(named, harness.record("10.0", list(named.values()), stubs), strict=True))
