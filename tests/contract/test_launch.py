"""Owns the checks of launch/: short, doctor first, the server in their place, flags that SGLang knows."""

import itertools
import os
import subprocess
from pathlib import Path

import pytest

from sglang_glm53.serving.deepep_capacity import VARIABLE
from tests.contract import scripts

MAX_LINES = 30
EVERY_SERVER = pytest.mark.parametrize("script", scripts.SERVERS, ids=lambda script: script.name)
# Each pair of halves that launch/README.md offers.
PAIRS = [
    ("pd_prefill.sh", "pd_decode.sh"),
    ("pd_prefill.sh", "pd_decode_ep16_overlap.sh"),
    ("pd_prefill_b300.sh", "pd_decode_b300.sh"),
]
WITHOUT_MTP = ["cpu_demo.sh", "ep16_overlap.sh", "ep32_overlap.sh", "tp8_long_context.sh"]


def _faults(script: Path) -> list[str]:
    """What is wrong with a launch script as text."""
    syntax = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
    lines = script.read_text().splitlines()
    faults = [syntax.stderr] if syntax.returncode else []
    if len(lines) > MAX_LINES:
        faults.append(f"{len(lines)} lines")
    if "set -euo pipefail" not in lines:
        faults.append("goes on after a failed command")
    if '. "$(dirname "$0")/lib.sh"' not in lines:
        faults.append("does not use lib.sh")
    if lines[-1].split()[0] not in ("start", "serve", "serve_node"):
        faults.append("does not end in the server")
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
    """And so have the steps of MTP and DeepEP's room."""
    lines = [line.strip() for line in script.read_text().splitlines()]
    numbers = [
        n for n, line in enumerate(lines) if line.startswith(("--", "mtp ", "deepep_room ", "export "))
    ]
    assert len(numbers) > 0
    assert [lines[n] for n in numbers if not lines[n - 1].startswith("# ")] == []


@EVERY_SERVER
def test_script_runs_doctor_then_becomes_sglang(script, tmp_path, sglang_parser):
    ran = scripts.run(script, tmp_path, [*scripts.arguments(script), "--port", "30001"])
    (doctor, server) = ran.calls
    platform = "glm53_cpu" if script.name.startswith("cpu_") else None
    assert doctor.words == ["glm53", "doctor"]
    assert doctor.environment == server.environment
    assert server.environment.get("SGLANG_PLATFORM") == platform
    assert server.process == ran.process
    assert server.words[:3] == ["python", "-m", "sglang.launch_server"]
    flags = server.words[3:]
    assert flags[:4] == ["--model-path", scripts.MODEL, "--model-impl", "glm53"]
    assert flags[-2:] == ["--port", "30001"]
    assert sglang_parser.complaint(flags) == ""
    assert ran.status == 0


@pytest.mark.parametrize("name", ["tp8_low_latency.sh", "dp8_throughput.sh", "ep16_overlap.sh"])
def test_the_model_is_the_published_one_by_default(name, tmp_path):
    script = scripts.FOLDER / name
    (_, server) = scripts.run(script, tmp_path, scripts.arguments(script)[:-1]).calls
    assert server.words[3:5] == ["--model-path", "zai-org/GLM-5.3"]


@pytest.mark.parametrize("mtp", ["0", "1"])
@pytest.mark.parametrize("name", ["dp8_throughput.sh", "pd_decode_ep16_overlap.sh"])
def test_a_capacity_of_ones_own_stays(name, mtp, tmp_path):
    script = scripts.FOLDER / name
    ran = scripts.run(script, tmp_path, scripts.arguments(script), **{VARIABLE: "77", "MTP": mtp})
    assert [call.environment[VARIABLE] for call in ran.calls] == ["77", "77"]


@EVERY_SERVER
def test_mtp_0_leaves_out_the_speculative_flags_alone(script, tmp_path):
    """The rest of the command line stays as it is."""
    as_published, spared = (
        scripts.server(script.name, tmp_path, **given).words for given in ({}, {"MTP": "0"})
    )
    left_out = [word for word in as_published if word.startswith("--speculative-")]
    assert (left_out == []) is (script.name in WITHOUT_MTP)
    where = as_published.index(left_out[0]) if left_out else 0
    assert as_published[:where] + as_published[where + 2 * len(left_out) :] == spared


@pytest.mark.parametrize("name", ["dp8_throughput.sh", "ep16_overlap.sh", "cpu_demo.sh"])
@pytest.mark.parametrize("value", ["2", "on", ""])
def test_another_value_of_mtp_is_an_error_that_names_it(name, value, tmp_path):
    script = scripts.FOLDER / name
    ran = scripts.run(script, tmp_path, scripts.arguments(script), MTP=value)
    assert (ran.calls, ran.status) == ([], 1)
    assert ran.said.startswith(f"{name}: MTP={value}: 0 leaves ")


@pytest.mark.parametrize("name", WITHOUT_MTP)
def test_mtp_1_is_an_error_where_a_recipe_has_none(name, tmp_path):
    script = scripts.FOLDER / name
    ran = scripts.run(script, tmp_path, scripts.arguments(script), MTP="1")
    assert (ran.calls, ran.status) == ([], 1)
    assert ran.said.startswith(f"{name}: MTP=1: this recipe has no MTP flags")


def test_mtp_1_is_the_recipe_as_published(tmp_path):
    asked, published = (scripts.server("pd_decode.sh", tmp_path, **given) for given in ({"MTP": "1"}, {}))
    assert (asked.words, asked.environment) == (published.words, published.environment)


@pytest.mark.parametrize("mtp", ["0", "1"])
@pytest.mark.parametrize(("prefill", "decode"), PAIRS)
def test_the_halves_of_a_pair_have_the_same_mtp(prefill, decode, mtp, tmp_path):
    def drafts(name):
        words = scripts.server(name, tmp_path, MTP=mtp).words
        return [pair for pair in itertools.pairwise(words) if pair[0].startswith("--speculative-")]

    assert drafts(prefill) == drafts(decode)
    assert len(drafts(decode)) == (4 if mtp == "1" else 0)


@pytest.mark.parametrize(
    ("name", "words", "names"),
    [
        ("cpu_demo.sh", [], "CHECKPOINT"),
        ("ep16_overlap.sh", [], "NODE_RANK"),
        ("ep16_overlap.sh", ["0"], "HEAD_HOST:PORT"),
        ("ep32_overlap.sh", ["0"], "HEAD_HOST:PORT"),
        ("pd_decode_ep16_overlap.sh", ["0"], "HEAD_HOST:PORT"),
        ("ep16_overlap.sh", ["2", "head:5000"], "NODE_RANK is 2: give 0 to 1"),
        ("ep32_overlap.sh", ["head:5000", "0"], "NODE_RANK is head:5000: give 0 to 3"),
        ("ep16_overlap.sh", ["1", "head"], "HEAD_HOST:PORT is head"),
        ("pd_router.sh", ["http://127.0.0.1:30000"], "DECODE_URL"),
    ],
)
def test_a_missing_or_bad_argument_stops_the_script(name, words, names, tmp_path):
    ran = scripts.run(scripts.FOLDER / name, tmp_path, words)
    assert (ran.calls, ran.status) == ([], 1)
    assert names in ran.said


@EVERY_SERVER
def test_a_failed_doctor_stops_the_script(script, tmp_path):
    ran = scripts.run(script, tmp_path, scripts.arguments(script), doctor=1)
    assert [call.words for call in ran.calls] == [["glm53", "doctor"]]
    assert ran.status == 1


def test_a_script_without_its_library_stops(tmp_path):
    alone = tmp_path / "dp8_throughput.sh"
    alone.write_text((scripts.FOLDER / alone.name).read_text())
    ran = scripts.run(alone, tmp_path, [])
    assert (ran.calls, ran.status) == ([], 1)
    assert "lib.sh" in ran.said


def test_the_router_names_both_servers(tmp_path):
    script = scripts.FOLDER / "pd_router.sh"
    assert _faults(script) == ["does not end in the server"]
    words = ["http://127.0.0.1:30000", "http://127.0.0.1:30100", "--port", "9000"]
    ran = scripts.run(script, tmp_path, words)
    (_, router) = ran.calls
    assert router.words[:4] == ["python", "-m", "sglang_router.launch_router", "--pd-disaggregation"]
    assert router.words[4:9] == [
        "--prefill",
        "http://127.0.0.1:30000",
        "8998",
        "--decode",
        "http://127.0.0.1:30100",
    ]
    assert router.words[-2:] == ["--port", "9000"]
    assert (ran.status, router.process) == (0, ran.process)


@pytest.mark.parametrize("name", ["pd_prefill.sh", "pd_prefill_b300.sh"])
def test_the_routers_port_is_the_prefills(name, tmp_path):
    flags = scripts.server(name, tmp_path).flags
    assert flags[flags.index("--disaggregation-bootstrap-port") + 1] == "8998"


def test_the_smoke_run_is_short_and_ends_by_itself():
    assert _faults(scripts.FOLDER / "pd_smoke.sh") == ["does not end in the server"]


def test_the_smoke_run_goes_on_where_a_pair_can_run(tmp_path):
    """A stub takes every role, so of what follows the first steps alone have an order."""
    calls = scripts.run(scripts.FOLDER / "pd_smoke.sh", tmp_path, []).calls
    first, second, doctor, tiny = calls[:4]
    assert first.words == ["python", "-c", "import mooncake.engine"]
    assert second.words == ["python", "-c", "import sglang_router"]
    assert doctor.words == ["glm53", "doctor"]
    assert doctor.environment == {"SGLANG_PLATFORM": "glm53_cpu", "SGLANG_HOST_IP": "127.0.0.1"}
    assert tiny.words[:2] == ["glm53", "tiny"]


SYSTEM = "apt-get install libibverbs1 librdmacm1"


@pytest.mark.parametrize(
    ("name", "module", "error", "repair"),
    [
        ("pd_smoke.sh", "mooncake.engine", "ImportError: libibverbs.so.1: cannot open shared object", SYSTEM),
        ("pd_smoke.sh", "mooncake.engine", "ImportError: librdmacm.so.1: cannot open shared object", SYSTEM),
        ("pd_smoke.sh", "mooncake.engine", "ModuleNotFoundError: No module named 'x'", "pip install '.[pd]'"),
        ("pd_smoke.sh", "sglang_router", "ModuleNotFoundError: No module named 'x'", "pip install '.[pd]'"),
        (
            "pd_router.sh",
            "sglang_router",
            "ModuleNotFoundError: No module named 'x'",
            "pip install sglang-router==0.3.2",
        ),
    ],
)
def test_a_module_that_does_not_load_stops_the_script_at_once(name, module, error, repair, tmp_path):
    """Before doctor, a checkpoint or a server, with one line."""
    python = (
        f'[ "$2" != "import {module}" ] || '
        f'{{ printf "%s\\n" "Traceback (most recent call last):" "{error}" >&2; exit 1; }}'
    )
    ran = scripts.run(
        scripts.FOLDER / name, tmp_path, ["http://127.0.0.1:1", "http://127.0.0.1:2"], python=python
    )
    assert (ran.calls[-1].words, ran.status) == (["python", "-c", f"import {module}"], 1)
    assert ran.said == f"{name}: {module} does not load: {error}: {repair}\n"


def test_a_script_without_library_or_server_is_reported(tmp_path):
    script = tmp_path / "bad.sh"
    script.write_text("python -m sglang.launch_server\n" * 31 + "fi\n")
    faults = _faults(script)
    assert "syntax error" in faults[0]
    assert faults[1:] == [
        "32 lines",
        "goes on after a failed command",
        "does not use lib.sh",
        "does not end in the server",
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
