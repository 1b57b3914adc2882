"""The system libraries of prefill/decode pairs: found missing, installed by make setup, named by doctor."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sglang_glm53.cli import doctor
from sglang_glm53.disaggregation import packages

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "system_packages"


def test_a_library_that_does_not_load_is_missing(monkeypatch):
    monkeypatch.setattr(packages, "SYSTEM_PACKAGES", {"libc.so.6": "libc6", "libnone.so.1": "libnone1"})
    assert packages.missing_packages() == ["libnone1"]


@pytest.mark.parametrize(
    ("missing", "status", "repair"),
    [([], doctor.OK, ""), (["one", "two"], doctor.WARN, "apt-get install one two")],
)
def test_doctor_warns_with_the_command(missing, status, repair):
    check = doctor.check_pairs(missing)
    assert (check.status, check.repair) == (status, repair)
    assert all(package in check.what for package in missing)


def _stub(file: Path, line: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{line}\n")
    file.chmod(0o755)


@pytest.mark.parametrize(
    ("missing", "user", "apt_works", "installed", "told"),
    [
        ("", 0, True, False, False),
        ("one two", 0, True, True, False),
        ("one two", 1000, True, False, True),
        ("one two", 0, False, False, True),
        # No Debian.
        ("one two", 0, None, False, True),
    ],
)
def test_setup_installs_them_as_root_on_debian_and_else_says_how(
    missing, user, apt_works, installed, told, tmp_path
):
    script = tmp_path / ".ci" / "system_packages"
    _stub(tmp_path / ".venv" / "bin" / "python", f"echo {missing}")
    script.parent.mkdir()
    shutil.copy(SCRIPT, script)
    tools, log = tmp_path / "tools", tmp_path / "log"
    _stub(tools / "id", f"echo {user}")
    if apt_works is not None:
        _stub(tools / "apt-get", f'echo "$@" >>{log}; {str(apt_works).lower()}')
    for name in ("bash", "dirname"):
        (tools / name).symlink_to(shutil.which(name))
    run = subprocess.run([script], env=os.environ | {"PATH": str(tools)}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert ("install -y -qq one two" in (log.read_text() if log.exists() else "")) is installed
    assert ("As root: apt-get install one two" in run.stderr) is told
