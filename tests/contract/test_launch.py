"""Owns the checks of launch/: short, doctor first, ending in exec, and flags that SGLang's parser knows."""

import os
import subprocess
from pathlib import Path

import pytest

from sglang_glm53.serving.deepep_capacity import VARIABLE
from tests.contract import scripts

MAX_LINES = 30
EVERY_SERVER = pytest.mark.parametrize("script", scripts.SERVERS, ids=lambda script: script.name)


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


def test_there_are_scripts():
    assert [script.name for script in scripts.SCRIPTS] == [
        "cpu_demo.sh",
        "dp4_throughput_gb300.sh",
        "dp8_throughput.sh",
        "dp8_throughput_b200.sh",
        "dp8_throughput_b300.sh",
        "ep16_overlap.sh",
        "ep32_overlap.sh",
        "pd_decode.sh",
        "pd_decode_b300.sh",
        "pd_decode_ep16_overlap.sh",
        "pd_prefill.sh",
        "pd_prefill_b300.sh",
        "pd_router.sh",
        "pd_smoke.sh",
        "tp8_long_context.sh",
        "tp8_low_latency.sh",
    ]


@EVERY_SERVER
def test_script_text(script):
    assert _faults(script) == []


@EVERY_SERVER
def test_every_flag_has_a_comment(script):
    lines = [line.strip() for line in script.read_text().partition("args=(\n")[2].splitlines()]
    flags = [number for number, line in enumerate(lines) if line.startswith("--") and number > 0]
    assert len(flags) > 0
    assert [lines[number] for number in flags if not lines[number - 1].startswith("# ")] == []


@EVERY_SERVER
def test_script_runs_doctor_then_sglang(script, tmp_path, sglang_parser):
    words = [*scripts.arguments(script), "--port", "30001"]
    (doctor, server), status = scripts.run(script, tmp_path, words)
    platform = "glm53_cpu" if script.name.startswith("cpu_") else None
    assert doctor.words == ["glm53", "doctor"]
    assert doctor.environment == server.environment
    assert server.environment.get("SGLANG_PLATFORM") == platform
    assert server.words[:3] == ["python", "-m", "sglang.launch_server"]
    flags = server.words[3:]
    assert flags[:4] == ["--model-path", scripts.MODEL, "--model-impl", "glm53"]
    assert flags[-2:] == ["--port", "30001"]
    assert sglang_parser.complaint(flags) == ""
    assert status == 0


@pytest.mark.parametrize("name", ["tp8_low_latency.sh", "dp8_throughput.sh", "ep16_overlap.sh"])
def test_the_model_is_the_published_one_by_default(name, tmp_path):
    script = scripts.FOLDER / name
    (_, server), _ = scripts.run(script, tmp_path, scripts.arguments(script)[:-1])
    assert server.words[3:5] == ["--model-path", "zai-org/GLM-5.3"]


@pytest.mark.parametrize("name", ["dp8_throughput.sh", "ep32_overlap.sh"])
def test_a_capacity_of_ones_own_stays(name, tmp_path):
    script = scripts.FOLDER / name
    calls, _ = scripts.run(script, tmp_path, scripts.arguments(script), **{VARIABLE: "512"})
    assert [call.environment[VARIABLE] for call in calls] == ["512", "512"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cpu_demo.sh", []),
        ("ep16_overlap.sh", []),
        ("ep16_overlap.sh", ["0"]),
        ("ep32_overlap.sh", ["0"]),
        ("pd_decode_ep16_overlap.sh", ["0"]),
        ("pd_router.sh", ["http://127.0.0.1:30000"]),
    ],
)
def test_a_missing_argument_stops_the_script(name, words, tmp_path):
    calls, status = scripts.run(scripts.FOLDER / name, tmp_path, words)
    assert calls == []
    assert status != 0


@EVERY_SERVER
def test_a_failed_doctor_stops_the_script(script, tmp_path):
    calls, status = scripts.run(script, tmp_path, scripts.arguments(script), doctor=1)
    assert [call.words for call in calls] == [["glm53", "doctor"]]
    assert status == 1


def test_the_router_names_both_servers(tmp_path):
    script = scripts.FOLDER / "pd_router.sh"
    assert _faults(script) == ["does not run doctor"]
    words = ["http://127.0.0.1:30000", "http://127.0.0.1:30100", "--port", "9000"]
    [router], status = scripts.run(script, tmp_path, words)
    assert router.words[:4] == ["python", "-m", "sglang_router.launch_router", "--pd-disaggregation"]
    assert router.words[4:9] == [
        "--prefill",
        "http://127.0.0.1:30000",
        "8998",
        "--decode",
        "http://127.0.0.1:30100",
    ]
    assert router.words[-2:] == ["--port", "9000"]
    assert status == 0


@pytest.mark.parametrize("name", ["pd_prefill.sh", "pd_prefill_b300.sh"])
def test_the_routers_port_is_the_prefills(name, tmp_path):
    script = scripts.FOLDER / name
    (_, server), _ = scripts.run(script, tmp_path, scripts.arguments(script))
    assert server.words[server.words.index("--disaggregation-bootstrap-port") + 1] == "8998"


def test_the_smoke_run_is_short_and_runs_doctor():
    assert _faults(scripts.FOLDER / "pd_smoke.sh") == ["does not end in exec"]


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
