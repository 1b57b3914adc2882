"""Owns the checks of `glm53 doctor`: each finding, its repair command, the JSON and the exit status."""

import json
import subprocess
import sys

import pytest

from sglang_glm53 import __version__, cli, upstream
from sglang_glm53.cli import doctor
from sglang_glm53.cli.doctor import FAIL, OK, WARN, Check

PINNED = dict.fromkeys(doctor.COMPANIONS, "1.0")


def _statuses(checks):
    return [check.status for check in checks]


@pytest.mark.parametrize(
    ("version", "status"), [((3, 10, 9), FAIL), ((3, 11, 0), OK), ((3, 12, 4), OK), ((2, 12, 0), FAIL)]
)
def test_python(version, status):
    assert doctor.check_python(version).status == status


@pytest.mark.parametrize(
    ("found", "allow", "status", "repair"),
    [
        ("0.5.23", False, OK, ""),
        ("0.5.24", False, FAIL, "pip install sglang==0.5.23"),
        ("0.5.24", True, WARN, "pip install sglang==0.5.23"),
        (None, True, FAIL, "pip install sglang==0.5.23"),
    ],
)
def test_sglang(found, allow, status, repair):
    check = doctor.check_sglang(found, allow)
    assert (check.status, check.repair) == (status, repair)


def test_pins_are_read_from_the_installed_metadata():
    assert doctor.pins("sglang-glm53")["sglang"] == upstream.VERSION
    pinned = doctor.pins("sglang")
    assert set(doctor.COMPANIONS) <= set(pinned)
    assert pinned["transformers"] == "5.19.0"
    assert "av" not in pinned, "a pin for another machine must not count"
    assert doctor.pins("no-such-distribution") == {}


def test_companions_that_fit():
    checks = list(doctor.check_companions(PINNED, PINNED.get))
    assert _statuses(checks) == [OK] * len(doctor.COMPANIONS)


def test_companions_that_do_not_fit():
    installed = PINNED | {"torch": "0.9"}
    del installed["sgl-deep-ep"]
    bad = [check for check in doctor.check_companions(PINNED, installed.get) if check.status != OK]
    assert [(check.status, check.repair) for check in bad] == [
        (FAIL, "pip install torch==1.0"),
        (FAIL, "pip install sgl-deep-ep==1.0"),
    ]
    assert "torch is 0.9" in bad[0].what
    assert "not installed" in bad[1].what


def test_companions_without_sglang():
    assert _statuses(doctor.check_companions({})) == [WARN]


def test_this_installs_entry_points():
    assert _statuses(doctor.check_entry_points(doctor._entry_points())) == [OK, OK]


def test_missing_or_foreign_entry_points():
    found = {"sglang.srt.plugins": {"glm53": "other:register"}}
    checks = list(doctor.check_entry_points(found))
    assert _statuses(checks) == [FAIL, FAIL]
    assert "is other:register" in checks[0].what
    assert "is missing" in checks[1].what


@pytest.mark.parametrize(
    ("environ", "statuses", "repairs"),
    [
        ({}, [OK, OK], ["", ""]),
        ({"SGLANG_PLUGINS": "", "SGLANG_PLATFORM": ""}, [OK, OK], ["", ""]),
        ({"SGLANG_PLUGINS": "other, glm53", "SGLANG_PLATFORM": "glm53_cpu"}, [OK, OK], ["", ""]),
        ({"SGLANG_PLUGINS": "other"}, [FAIL, OK], ["export SGLANG_PLUGINS=other,glm53", ""]),
        ({"SGLANG_PLATFORM": "other"}, [OK, FAIL], ["", "unset SGLANG_PLATFORM"]),
    ],
)
def test_selection(environ, statuses, repairs):
    checks = list(doctor.check_selection(environ))
    assert _statuses(checks) == statuses
    assert [check.repair for check in checks] == repairs


def test_environment():
    good, settings = doctor.check_environment({"GLM53_ALLOW_UNTESTED": "1"})
    assert good.status == OK
    assert settings.allow_untested
    bad, settings = doctor.check_environment({"GLM53_KERNELS": "fast", "GLM53_KERNEL": "torch"})
    assert bad.status == FAIL
    assert bad.repair == "unset GLM53_KERNEL GLM53_KERNELS"
    assert "emulated" in bad.what
    assert settings.kernels == "auto"


def test_seams():
    assert _statuses(doctor.check_seams(list)) == [OK]
    checks = list(doctor.check_seams(lambda: ["a.b is gone", "c.d takes other arguments"]))
    assert [check.what for check in checks] == ["seam: a.b is gone", "seam: c.d takes other arguments"]
    assert _statuses(checks) == [FAIL, FAIL]


def test_sources_that_are_missing():
    def find():
        raise FileNotFoundError("neither here nor there")

    assert doctor.check_sources(find) == Check(FAIL, "neither here nor there", doctor.REINSTALL)


def _fake_smi(tmp_path, monkeypatch, script):
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\n{script}\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("script", "gpus", "complaint"),
    [
        ("echo 'NVIDIA H200, 9.0'; echo 'NVIDIA H200, 9.0'", [("NVIDIA H200", 9.0)] * 2, ""),
        ("echo 'no driver' >&2; exit 9", [], "nvidia-smi says 'no driver'"),
        ("echo 'NVIDIA H200, [N/A]'", [], "nvidia-smi says 'NVIDIA H200, [N/A]'"),
    ],
)
def test_gpu_query(tmp_path, monkeypatch, script, gpus, complaint):
    _fake_smi(tmp_path, monkeypatch, script)
    assert doctor.query_gpus() == (gpus, complaint)


def test_gpu_query_without_nvidia_smi(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.query_gpus() == ([], "")


@pytest.mark.parametrize(
    ("gpus", "complaint", "platform", "status", "text"),
    [
        ([], "", "", WARN, "GPU: none: reference platform"),
        ([], "", "glm53_cpu", OK, "GPU: none: reference platform"),
        ([], "no driver", "", FAIL, "GPU: none usable: no driver"),
        ([], "no driver", "glm53_cpu", OK, "GPU: none usable: no driver"),
        ([("H200", 9.0)] * 8, "", "", OK, "GPU: 8 x H200, compute capability 9.0"),
        ([("H200", 9.0)], "", "glm53_cpu", WARN, "the reference platform is selected"),
        ([("A100", 8.0)], "", "", FAIL, "SGLang's DSA kernels need 9.0"),
    ],
)
def test_gpus(gpus, complaint, platform, status, text):
    [check] = doctor.check_gpus(gpus, complaint, platform)
    assert check.status == status
    assert text in check.what
    assert bool(check.repair) == (status != OK or bool(complaint))


def test_nvcc(tmp_path):
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.touch(mode=0o755)
    assert doctor.find_nvcc({"CUDA_HOME": str(tmp_path), "PATH": ""}) == nvcc
    assert doctor.find_nvcc({"CUDA_PATH": str(tmp_path), "PATH": ""}) == nvcc
    assert doctor.find_nvcc({"PATH": str(nvcc.parent)}) == nvcc
    assert doctor.find_nvcc({"CUDA_HOME": str(tmp_path / "gone"), "PATH": str(nvcc.parent)}) is None
    assert doctor.check_nvcc(nvcc) == Check(OK, f"nvcc: {nvcc}")
    assert doctor.check_nvcc(None).status == WARN


def test_import_errors_give_the_reason(tmp_path, monkeypatch):
    (tmp_path / "loads.py").write_text("")
    (tmp_path / "breaks.py").write_text("raise OSError('no libcuda.so.1')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert doctor.import_errors(["loads", "breaks"]) == {"breaks": "OSError: no libcuda.so.1"}


def test_an_import_that_hangs(tmp_path, monkeypatch):
    (tmp_path / "hangs.py").write_text("import time; time.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(doctor, "IMPORT_SECONDS", 0.5)
    assert doctor.import_errors(["hangs"]) == {"hangs": "importing took over 0.5 s"}


@pytest.mark.parametrize(
    ("present", "errors", "has_gpu", "statuses"),
    [
        ({"deep_gemm", "flash_mla", "deep_ep"}, {}, True, [OK, OK, OK]),
        ({"deep_gemm", "flash_mla", "deep_ep"}, {}, False, [OK, OK, OK]),
        ({"deep_gemm"}, {}, False, [OK, WARN, WARN]),
        ({"deep_gemm"}, {}, True, [OK, FAIL, WARN]),
        ({"deep_gemm", "flash_mla", "deep_ep"}, {"deep_gemm": "x", "deep_ep": "y"}, True, [FAIL, OK, WARN]),
    ],
)
def test_gpu_libraries(present, errors, has_gpu, statuses):
    tried = []

    def failures(modules):
        tried.extend(modules)
        return errors

    checks = list(doctor.check_gpu_libraries(has_gpu, present.__contains__, failures, PINNED))
    assert _statuses(checks) == statuses
    assert bool(tried) == has_gpu
    for check, (_, distribution, _) in zip(checks, doctor.GPU_LIBRARIES, strict=True):
        assert (f"{distribution}==1.0" in check.repair) == (check.status != OK)


def test_lines_and_exit_status(monkeypatch, capsys):
    found = [Check(OK, "all well"), Check(WARN, "so so", "mend it")]
    monkeypatch.setattr(doctor, "checks", lambda environ: iter(found))
    assert cli.main(["doctor"]) == 0
    assert capsys.readouterr().out == "[ok]   all well\n[warn] so so\n       repair: mend it\n"
    found.append(Check(FAIL, "broken", "replace it"))
    assert cli.main(["doctor"]) == 1
    assert "[FAIL] broken\n       repair: replace it\n" in capsys.readouterr().out


def test_json(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "checks", lambda environ: iter([Check(FAIL, "broken", "replace it")]))
    assert cli.main(["doctor", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["version"] == __version__
    assert report["ok"] is False
    assert report["checks"] == [{"status": "FAIL", "what": "broken", "repair": "replace it"}]


def test_this_machine(monkeypatch, capsys):
    for name in ("SGLANG_PLUGINS", "SGLANG_PLATFORM", "GLM53_KERNELS"):
        monkeypatch.delenv(name, raising=False)
    cli.main(["doctor", "--json"])
    checks = json.loads(capsys.readouterr().out)["checks"]
    lines = {check["what"]: check["status"] for check in checks}
    assert lines["sglang 0.5.23"] == "ok"
    assert lines["seams: SGLang's source is what this package attaches to"] == "ok"
    assert all(check["repair"] for check in checks if check["status"] != "ok")


def test_a_left_out_plugin_fails_doctor(monkeypatch, capsys):
    monkeypatch.setenv("SGLANG_PLUGINS", "another")
    assert cli.main(["doctor", "--json"]) == 1
    failed = [check for check in json.loads(capsys.readouterr().out)["checks"] if check["status"] == "FAIL"]
    assert [check["repair"] for check in failed] == ["export SGLANG_PLUGINS=another,glm53"]


def test_doctor_imports_neither_torch_nor_sglang():
    code = (
        "import sys; from sglang_glm53.cli import main; main(['doctor', '--json'])\n"
        "loaded = {'torch', 'sglang', 'transformers'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["checks"]


@pytest.mark.parametrize("words", [["frob"], ["frob", "doctor"], []])
def test_an_unknown_command_names_the_known_ones(words, capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main(words)
    assert exit_.value.code == 2
    complaint = capsys.readouterr().err
    assert "COMMAND" in complaint
    if words:
        assert "'frob'" in complaint
        assert all(f"'{name}'" in complaint for name in cli.COMMANDS)


def test_version(capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out == f"sglang-glm53 {__version__}\n"


def test_help_lists_every_command(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    out = capsys.readouterr().out
    assert all(name in out and summary in out for name, summary in cli.COMMANDS.items())
