"""Owns the checks of the benchmark's GPU side that need no GPU: what it refuses, what nvidia-smi says."""

import subprocess

import pytest
import torch

from sglang_glm53.bench import device as bench_device
from sglang_glm53.kernels import backend


@pytest.fixture
def gpu(monkeypatch):
    """A GPU as far as the checks ahead of its first use ask: gpu(supported, chosen)."""

    def make(supported, chosen):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100")
        monkeypatch.setattr(backend, "is_supported", lambda device: supported)
        monkeypatch.setattr(backend, "implementation", lambda device: chosen)

    return make


def test_an_old_gpu_is_refused(gpu):
    gpu(supported=False, chosen="cuda")
    with pytest.raises(ValueError, match=r"compute capability 9\.0 .* and this one is a NVIDIA A100"):
        bench_device.CudaDevice()


def test_the_fallback_is_not_measured(gpu):
    gpu(supported=True, chosen="torch")
    with pytest.raises(ValueError, match="GLM53_KERNELS=torch runs no CUDA kernel: use auto or cuda"):
        bench_device.CudaDevice()


@pytest.fixture
def nvidia_smi(monkeypatch):
    """nvidia-smi gives this output and status, or raises."""

    def make(output, status=0):
        def run(command, **options):
            assert command[1] == "--id=GPU-1"
            if isinstance(output, Exception):
                raise output
            return subprocess.CompletedProcess(command, status, output, "")

        monkeypatch.setattr(bench_device.shutil, "which", lambda name: f"/bin/{name}")
        monkeypatch.setattr(bench_device.subprocess, "run", run)

    return make


def test_driver_and_clocks(nvidia_smi):
    nvidia_smi("580.82, 1980 MHz, 1980 MHz, 3201 MHz, 700.00 W\n")
    assert bench_device.query("GPU-1") == {
        "driver_version": "580.82",
        "clocks.sm": "1980 MHz",
        "clocks.max.sm": "1980 MHz",
        "clocks.mem": "3201 MHz",
        "power.limit": "700.00 W",
    }


@pytest.mark.parametrize(
    ("output", "status", "answer"),
    [
        ("No devices were found\n", 6, "failed: No devices were found"),
        ("580.82\n", 0, "failed: 580.82"),
        (OSError("not executable"), 0, "failed: not executable"),
    ],
)
def test_a_failed_query_is_said(nvidia_smi, output, status, answer):
    nvidia_smi(output, status)
    assert bench_device.query("GPU-1") == {"nvidia-smi": answer}


def test_a_missing_nvidia_smi_is_said(monkeypatch):
    monkeypatch.setattr(bench_device.shutil, "which", lambda name: None)
    assert bench_device.query("GPU-1") == {"nvidia-smi": "not installed"}
