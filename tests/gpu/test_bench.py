"""Owns the checks of the benchmark's clock on a GPU: figures that a GPU of this kind can have."""

from sglang_glm53.bench import measure
from sglang_glm53.bench.device import COPY_BYTES, CudaDevice


def test_floors_are_a_gpus(kernels):
    device = CudaDevice()
    assert device.copy_bytes == 2 * COPY_BYTES > 10 * device.l2_bytes
    assert device.l2_bytes > 10e6
    floors = measure.measure_floors(device, 5)
    assert 5e11 < floors.copy_bytes_per_second < 2e13
    assert 1e-7 < floors.empty_seconds < 2e-5


def test_the_gpu_is_described(kernels):
    found = CudaDevice().describe()
    assert found["name"].startswith("NVIDIA")
    assert float(found["capability"]) >= 9.0
    assert "driver_version" in found or "nvidia-smi" in found
