"""Owns the check that csrc's layout header and geometry.py state the same numbers."""

import re
import shutil
import subprocess

import pytest

from sglang_glm53 import geometry
from sglang_glm53.kernels.jit import csrc_dir

HEADER = csrc_dir() / "include" / "glm53" / "layout.cuh"
CONSTANT = re.compile(r"^constexpr int (k\w+) = (.+);$", re.MULTILINE)


def _python_name(name: str) -> str:
    return "_".join(re.findall(r"[A-Z][a-z]+", name)).upper()


def _values(source: str) -> dict[str, int]:
    """The header's constants by their name in geometry.py."""
    values: dict[str, int] = {}
    for name, expression in CONSTANT.findall(source):
        values[name] = eval(expression.replace("/", "//"), {"__builtins__": {}}, values)
    return {_python_name(name): value for name, value in values.items()}


def _differences(source: str) -> dict[str, tuple[int, int]]:
    return {
        name: (value, getattr(geometry, name))
        for name, value in _values(source).items()
        if value != getattr(geometry, name)
    }


def test_header_states_geometrys_numbers():
    source = HEADER.read_text()
    values = _values(source)
    assert values["KV_ROW_BYTES"] == 656
    assert values["INDEX_PAGE_BYTES"] == 8448
    assert len(values) == 10
    assert _differences(source) == {}


def test_a_changed_number_is_reported():
    changed = HEADER.read_text().replace("kKvTile = 128", "kKvTile = 64")
    assert _differences(changed) == {
        "KV_TILE": (64, 128),
        "KV_ROPE_OFFSET": (544, 528),
        "KV_ROW_BYTES": (672, 656),
    }


@pytest.mark.skipif(shutil.which("c++") is None, reason="layouts: no host C++ compiler: apt-get install g++")
@pytest.mark.parametrize(("old", "new", "compiles"), [("", "", True), ("kPage = 64", "kPage = 32", False)])
def test_static_asserts_hold_on_a_host_compiler(tmp_path, old, new, compiles):
    source = tmp_path / "layout.cpp"
    source.write_text(HEADER.read_text().replace("#pragma once", "").replace(old, new))
    command = ["c++", "-std=c++17", "-Wall", "-Werror", "-fsyntax-only", str(source)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert (run.returncode == 0) == compiles, run.stderr
    assert ("8448" in run.stderr) != compiles
