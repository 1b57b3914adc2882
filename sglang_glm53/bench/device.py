"""Owns the GPU side of the benchmark: CUDA graphs, events, copies, and what the GPU says of itself."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence

import torch

from sglang_glm53.bench.measure import Call
from sglang_glm53.kernels import backend

COPY_BYTES = 2**30
# Keeps the GPU busy while the CPU submits a graph, so that no wait for the CPU is measured: some 250 us.
HEAD_START_CYCLES = 500_000
QUERY_SECONDS = 30
QUERIED = ("driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit")


def _spin(cycles: int) -> None:
    """Launch a kernel of one thread that waits so many clock cycles."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


class CudaDevice:
    """The current GPU, as sglang_glm53.bench.measure.Device describes.

    Raises ValueError, naming what is needed, when there is no GPU that the kernels run on.
    """

    def __init__(self) -> None:
        capability = ".".join(map(str, backend.MIN_CAPABILITY))
        needed = f"it needs an NVIDIA GPU of compute capability {capability} or newer (Hopper)"
        if not torch.cuda.is_available():
            raise ValueError(f"{needed}, and torch finds no GPU here")
        device = torch.device("cuda", torch.cuda.current_device())
        if not backend.is_supported(device):
            raise ValueError(f"{needed}, and this one is a {torch.cuda.get_device_name(device)}")
        if (chosen := backend.implementation(device)) != "cuda":
            raise ValueError(f"GLM53_KERNELS={chosen} runs no CUDA kernel: use auto or cuda")
        self.device = device
        self._properties = torch.cuda.get_device_properties(device)
        self.l2_bytes = self._properties.L2_cache_size
        halves = torch.zeros(2, COPY_BYTES, dtype=torch.uint8, device=device)
        self.copy: Sequence[Call] = [lambda: halves[0].copy_(halves[1])]
        self.copy_bytes = 2 * COPY_BYTES
        self.empty: Call = lambda: _spin(0)

    def record(self, calls: Sequence[Call]) -> Callable[[], float]:
        """The calls as a CUDA graph, timed by events around its replay."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

        def replay() -> float:
            _spin(HEAD_START_CYCLES)
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) / 1e3

        return replay

    def describe(self) -> dict[str, str]:
        """Name, capability, CUDA and torch, and what nvidia-smi says of the driver and the clocks now."""
        found = {
            "name": self._properties.name,
            "capability": f"{self._properties.major}.{self._properties.minor}",
            "multiprocessors": str(self._properties.multi_processor_count),
            "cuda": str(torch.version.cuda),
            "torch": torch.__version__,
        }
        return found | query(f"GPU-{self._properties.uuid}")


def query(uuid: str) -> dict[str, str]:
    """What nvidia-smi says of one GPU, by the names of QUERIED; under "nvidia-smi" why it says nothing."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {"nvidia-smi": "not installed"}
    command = [program, f"--id={uuid}", f"--query-gpu={','.join(QUERIED)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"nvidia-smi": f"failed: {error}"}
    values = [value.strip() for value in done.stdout.strip().split(",")]
    if done.returncode or len(values) != len(QUERIED):
        return {"nvidia-smi": f"failed: {(done.stdout + done.stderr).strip()}"}
    return dict(zip(QUERIED, values, strict=True))
