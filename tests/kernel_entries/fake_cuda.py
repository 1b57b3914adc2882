"""Owns a CUDA device that is not there: what torch.cuda answers for one H200 or B300."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

GIB = 1 << 30
DEVICES = {
    (9, 0): SimpleNamespace(name="NVIDIA H200", multi_processor_count=132, total_memory=141 * GIB),
    (10, 0): SimpleNamespace(name="NVIDIA B300", multi_processor_count=148, total_memory=268 * GIB),
}


class Idle:
    """A stream, an event or a guard of a device: every method of it does nothing."""

    device_index = cuda_stream = stream_id = priority = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = torch.device("cuda", 0)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None

    def __enter__(self) -> Idle:
        return self

    def __exit__(self, *_: object) -> bool:
        return False

    def query(self) -> bool:
        """Whether all work is done."""
        return True


def _always(value: Any) -> Any:
    return lambda *_, **__: value


def install(capability: tuple[int, int], device: SimpleNamespace | None = None, count: int = 8) -> None:
    """Make torch.cuda describe a machine with count devices of that capability.

    device: one of another kind than DEVICES has. Call it before SGLang is imported, which keeps some answers.
    """
    device = device or DEVICES[capability]
    properties = SimpleNamespace(
        **vars(device),
        major=capability[0],
        minor=capability[1],
        warp_size=32,
        max_threads_per_multi_processor=2048,
        shared_memory_per_block_optin=232448,
        shared_memory_per_multiprocessor=233472,
        L2_cache_size=50 << 20,
        regs_per_multiprocessor=65536,
        gcnArchName="",
        is_integrated=0,
        uuid="0",
    )
    answers: dict[str, Any] = {
        "is_available": True,
        "is_initialized": True,
        "is_bf16_supported": True,
        "is_current_stream_capturing": True,
        "can_device_access_peer": True,
        "device_count": count,
        "current_device": 0,
        "get_device_capability": capability,
        "get_device_name": device.name,
        "get_device_properties": properties,
        "mem_get_info": (device.total_memory - GIB, device.total_memory),
        "current_stream": Idle(),
        "default_stream": Idle(),
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
        **dict.fromkeys(("memory_allocated", "max_memory_allocated", "memory_reserved"), 0),
        **dict.fromkeys(("init", "_lazy_init", "synchronize", "empty_cache", "set_device", "set_stream")),
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, _always(answer))
    for name in ("stream", "Stream", "Event", "ExternalStream", "StreamContext", "device"):
        setattr(torch.cuda, name, Idle)
    torch.Tensor.record_stream = _always(None)
