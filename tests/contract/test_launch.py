"""Owns the checks of launch/: short, doctor first, ending in exec, and flags that SGLang's parser knows."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "launch").glob("*.sh"))
MAX_LINES = 30


def _faults(script: Path) -> list[str]:
    """What is wrong with a launch script as text."""
    syntax = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
    lines = script.read_text().splitlines()
    faults = [syntax.stderr] if syntax.returncode else []
    if len(lines) > MAX_LINES:
        faults.append(f"{len(lines)} lines")
    if "set -euo pipefail" not in lines:
        faults.append("goes on after a failed command")
    if "glm53 doctor" not in lines:
        faults.append("does not run doctor")
    if not lines[-1].startswith("exec "):
        faults.append("does not end in exec")
    if not os.access(script, os.X_OK):
        faults.append("is not executable")
    return faults


def _run(script: Path, folder: Path, words: list[str], doctor_status: int = 0):
    """Run a script with a stub doctor and a stub python; the commands they saw, and the exit status."""
    log = folder / "log"
    for name, status in (("glm53", doctor_status), ("python", 0)):
        stub = folder / name
        call = f'printf "%s\\n" {name} "$@" "SGLANG_PLATFORM=${{SGLANG_PLATFORM-}}" --- >>{log}'
        stub.write_text(f"#!/bin/sh\n{call}\nexit {status}\n")
        stub.chmod(0o755)
    run = subprocess.run(["bash", str(script), *words], env={"PATH": f"{folder}:/usr/bin:/bin"})
    calls = [call.split() for call in log.read_text().split("---\n") if call]
    return calls, run.returncode


def test_there_are_scripts():
    assert [script.name for script in SCRIPTS] == ["cpu_demo.sh", "tp8_low_latency.sh"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_script_text(script):
    assert _faults(script) == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_script_runs_doctor_then_sglang(script, tmp_path, sglang_parser):
    (doctor, server), status = _run(script, tmp_path, ["some/checkpoint", "--port", "30001"])
    platform = "SGLANG_PLATFORM=" + ("glm53_cpu" if script.name.startswith("cpu_") else "")
    assert doctor == ["glm53", "doctor", platform]
    assert server[:3] == ["python", "-m", "sglang.launch_server"]
    assert server[-1] == platform
    flags = server[3:-1]
    assert flags[:4] == ["--model-path", "some/checkpoint", "--model-impl", "glm53"]
    assert flags[-2:] == ["--port", "30001"]
    assert sglang_parser.complaint(flags) == ""
    assert status == 0


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_failed_doctor_stops_the_script(script, tmp_path):
    calls, status = _run(script, tmp_path, ["some/checkpoint"], doctor_status=1)
    assert [call[:2] for call in calls] == [["glm53", "doctor"]]
    assert status == 1


def test_a_script_without_doctor_or_exec_is_reported(tmp_path):
    script = tmp_path / "bad.sh"
    script.write_text("python -m sglang.launch_server\n" * 31 + "fi\n")
    faults = _faults(script)
    assert "syntax error" in faults[0]
    assert faults[1:] == [
        "32 lines",
        "goes on after a failed command",
        "does not run doctor",
        "does not end in exec",
        "is not executable",
    ]


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--nsa-prefill-backend", "fa3"], "unrecognized arguments"),
        (["--cuda-graph-max-bs", "64"], "ambiguous option"),
        (["--tool-call-parser", "glm53"], "invalid choice"),
        (["--tp-size", "eight"], "invalid int value"),
    ],
)
def test_flags_that_sglang_refuses_are_reported(sglang_parser, flags, complaint):
    assert complaint in sglang_parser.complaint(["--model-path", "some/checkpoint", *flags])
