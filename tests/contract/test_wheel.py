"""Owns the checks of the built wheel, installed alone into an empty venv: no torch, no SGLang."""

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sglang_glm53 import __version__

ROOT = Path(__file__).resolve().parents[2]
SUMMARY = """
import json, sys
from importlib.metadata import entry_points, requires
import sglang_glm53
from sglang_glm53.kernels.jit import csrc_dir
loaded = sorted({"torch", "sglang"} & set(sys.modules))
groups = ("sglang.srt.plugins", "sglang.srt.platforms", "console_scripts")
points = {}
for group in groups:
    points[group] = {p.name: p.value for p in entry_points(group=group) if p.name.startswith("glm53")}
print(json.dumps({
    "package": sglang_glm53.__file__,
    "version": sglang_glm53.__version__,
    "loaded": loaded,
    "csrc": str(csrc_dir()),
    "points": points,
    "requires": requires("sglang-glm53"),
}))
"""


def _missing(wheel: Path) -> set[str]:
    """What a wheel must hold and this one does not."""
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {str(path.relative_to(ROOT)) for path in (ROOT / "sglang_glm53").rglob("*.py")}
    sources = {f"sglang_glm53/{p.relative_to(ROOT)}" for p in (ROOT / "csrc").rglob("*") if p.is_file()}
    licence = f"sglang_glm53-{__version__}.dist-info/licenses/LICENSE"
    return (package | sources | {licence}) - names


def _command(venv: Path, *words: str):
    return subprocess.run([venv / "bin" / "glm53", *words], cwd=venv, capture_output=True, text=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(ROOT)], check=True)
    [built] = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def venv(tmp_path_factory, wheel):
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)
    return folder


def test_wheel_is_pure_python_and_whole(wheel):
    assert wheel.name == f"sglang_glm53-{__version__}-py3-none-any.whl"
    assert _missing(wheel) == set()


def test_a_wheel_without_the_sources_is_reported(wheel, tmp_path):
    poor = tmp_path / "poor.whl"
    with zipfile.ZipFile(wheel) as full, zipfile.ZipFile(poor, "w") as copy:
        for name in full.namelist():
            if "csrc" not in name:
                copy.writestr(name, full.read(name))
    assert "sglang_glm53/csrc/include/glm53/device.cuh" in _missing(poor)


def test_installed_wheel(venv):
    run = subprocess.run([venv / "bin" / "python", "-c", SUMMARY], cwd=venv, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    package = Path(found["package"]).parent
    assert package.is_relative_to(venv)
    assert found["version"] == __version__
    assert found["loaded"] == []
    assert found["csrc"] == str(package / "csrc")
    assert found["points"] == {
        "sglang.srt.plugins": {"glm53": "sglang_glm53.plugin:register"},
        "sglang.srt.platforms": {"glm53_cpu": "sglang_glm53.cpu:activate"},
        "console_scripts": {"glm53": "sglang_glm53.cli:main"},
    }
    assert "sglang==0.5.23" in found["requires"]


def test_doctor_without_sglang(venv):
    run = subprocess.run(
        [venv / "bin" / "glm53", "doctor", "--json"], cwd=venv, capture_output=True, text=True
    )
    assert run.returncode == 1, run.stderr
    checks = {check["what"]: check for check in json.loads(run.stdout)["checks"]}
    missing = checks["sglang is not installed; 0.5.23 is needed"]
    assert (missing["status"], missing["repair"]) == ("FAIL", "pip install sglang==0.5.23")
    assert checks["entry point sglang.srt.plugins: glm53"]["status"] == "ok"
    assert checks["seams: not checked, for sglang is missing"]["status"] == "warn"


def test_version_without_sglang(venv):
    run = _command(venv, "--version")
    assert run.stdout == f"sglang-glm53 {__version__}\n", run.stderr


def test_a_command_that_needs_a_library_says_so(venv):
    run = _command(venv, "tiny", "out")
    assert run.returncode == 1
    assert re.fullmatch(r"glm53 tiny: \w+ is not installed: pip install sglang==0\.5\.23\n", run.stderr)
