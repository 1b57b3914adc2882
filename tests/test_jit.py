"""Owns the checks of jit.csrc_dir: the wheel's sources, else the checkout's, else an error."""

from pathlib import Path

import pytest

from sglang_glm53.jit import csrc_dir

ROOT = Path(__file__).resolve().parents[1]


def _sources(folder: Path) -> Path:
    header = folder / "include" / "glm53" / "layout.cuh"
    header.parent.mkdir(parents=True)
    header.touch()
    return folder


def test_this_checkout():
    assert csrc_dir() == ROOT / "csrc"


def test_wheel_wins_over_checkout(tmp_path):
    package = tmp_path / "sglang_glm53"
    checkout = _sources(tmp_path / "csrc")
    assert csrc_dir(package) == checkout
    in_wheel = _sources(package / "csrc")
    assert csrc_dir(package) == in_wheel


def test_another_projects_csrc_is_not_ours(tmp_path):
    package = tmp_path / "sglang_glm53"
    (tmp_path / "csrc").mkdir()
    with pytest.raises(FileNotFoundError) as error:
        csrc_dir(package)
    assert str(package / "csrc") in str(error.value)
    assert str(tmp_path / "csrc") in str(error.value)
