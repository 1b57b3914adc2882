"""Owns the check that CONTRIBUTING.md's worked example is a whole kernel, in a copy of this repository."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_glm53.testing import emulation

ROOT = Path(__file__).resolve().parents[2]
STEM, DOCUMENT, MOST_FILES = "doubled", "docs/kernels.md", 12
BLOCK = re.compile(r"^`([\w./]+)`:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CARD_CHECKS = "tests/kernels/test_cards.py"
# What every kernel must pass, and the kernel's own tests.
CHECKS = [
    *(CARD_CHECKS, "tests/kernels/test_kernels.py", f"tests/kernels/test_{STEM}.py"),
    *("tests/bench/test_points.py", f"tests/bench/test_{STEM}.py", "tests/contract/test_kernels_compile.py"),
]
FLAGS = ["-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts="]
# The kernel's own, and those of all cards; one architecture of three.
CHOSEN = f"({STEM} and not sm_10) or fresh or every_source"
WRITE = """
import json, pathlib, sys
from sglang_glm53.kernels.cards import cards, markdown
pathlib.Path(sys.argv[1]).write_text(markdown())
print(json.dumps(cards()[sys.argv[2]].files()))
"""
# Each file is moved away for a process of its own, which has torch but nothing of this repository yet.
LEAVE_OUT = """
import json, os, sys
import pytest, torch
for name in json.loads(sys.argv[1]):
    if name:
        os.rename(name, name + ".away")
    child = os.fork()
    if not child:
        os._exit(pytest.main(sys.argv[2:]))
    print("left out", repr(name), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    if name:
        os.rename(name + ".away", name)
"""


def _examples():
    return dict(BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text()))


def _run(folder, *command):
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *command]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The repository's files with the example's, the document written; and the files that its card names."""
    folder = tmp_path_factory.mktemp("copy")
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.splitlines():
        if (ROOT / name).is_file() and "golden" not in name:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    for name, text in _examples().items():
        assert not (folder / name).exists(), name
        (folder / name).write_text(text)
    written = _run(folder, "-c", WRITE, DOCUMENT, STEM)
    assert written.returncode == 0, written.stderr
    return folder, json.loads(written.stdout)


@pytest.fixture
def copy(example):
    """The folder."""
    return example[0]


def test_it_touches_few_files(example):
    files = example[1]
    assert set(files.values()) == set(_examples())
    # With the document and the file of a feature that calls it.
    assert len(files) + 2 <= MOST_FILES


def test_it_passes_what_every_kernel_must(copy):
    if emulation.compiler() is None:
        pytest.skip("emulated kernels: no host C++ compiler: apt-get install g++")
    done = _run(copy, "-m", "pytest", *FLAGS, *CHECKS, "-k", CHOSEN)
    assert done.returncode == 0, done.stdout[-4000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 15, done.stdout[-2000:]


def test_each_of_its_files_is_missed(copy):
    names = ["", *_examples(), DOCUMENT]
    done = _run(copy, "-c", LEAVE_OUT, json.dumps(names), "-q", *FLAGS, CARD_CHECKS, "-k", CHOSEN)
    found = dict(re.findall(r"^left out '(\S*)' (\d+)$", done.stdout, re.MULTILINE))
    assert list(found) == names, done.stdout[-2000:] + done.stderr[-2000:]
    assert [name for name, status in found.items() if status == "0"] == [""]
