"""Owns the checks of jit: where the sources are, and what a build is asked for; ops' tests run the builds."""

from pathlib import Path

import pytest

from sglang_glm53.kernels.jit import build, csrc_dir, include_dirs

ROOT = Path(__file__).resolve().parents[2]


def _sources(folder: Path) -> Path:
    header = folder / "include" / "glm53" / "device.cuh"
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


def test_builds_search_our_folders():
    assert include_dirs() == [str(ROOT / "csrc" / "include"), str(ROOT / "csrc")]


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "90a", ""])
def test_an_unknown_architecture_is_refused(architecture):
    with pytest.raises(
        ValueError, match=f"architecture '{architecture}': use one of sm_90a, sm_100a, sm_103a"
    ):
        build("k", architecture)
