"""Owns which implementation of an op runs, torch, emulated or cuda, and the count of declined calls."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable

import torch

from sglang_glm53 import config
from sglang_glm53.fusion import FUSIONS, Declined, log_once

MIN_CAPABILITY = (9, 0)

# (stem, reason) to how often a call ran in torch instead, in this process.
declined: Counter[tuple[str, str]] = Counter()


@functools.cache
def settings() -> config.Config:
    """The environment's settings, read once. Raises ValueError as config.read does."""
    return config.read(FUSIONS)


@functools.cache
def _has_capability(index: int) -> bool:
    return torch.cuda.get_device_capability(index) >= MIN_CAPABILITY


def is_supported(device: torch.device) -> bool:
    """Whether our kernels run there: on a CPU (emulated) and on GPUs from Hopper on."""
    return device.type != "cuda" or _has_capability(torch.cuda.current_device())


def implementation(device: torch.device) -> str:
    """The implementation that GLM53_KERNELS chooses for tensors on a device.

    auto: cuda on a GPU, torch elsewhere. Raises ValueError when the choice cannot run there.
    """
    chosen = settings().kernels
    if reason := config.kernels_reason(chosen, str(device)):
        raise ValueError(reason)
    if chosen == "auto":
        return "cuda" if device.type == "cuda" else "torch"
    return chosen


def choose(stem: str, device: torch.device, why: Declined | None) -> str:
    """The implementation that serves a call; torch, counted and logged once, where the kernel declines it.

    why: what the kernel's declines() says of the call. Raises ValueError as implementation() does.
    """
    chosen = implementation(device)
    if chosen == "torch" or why is None:
        return chosen
    declined[stem, why.reason] += 1
    log_once(f"{stem} runs in torch: {why.reason}", logging.WARNING)
    return "torch"


_LIBRARY = torch.library.Library("glm53", "FRAGMENT")  # type: ignore[no-untyped-call]


def register(schema: str, run: Callable[..., None]) -> None:
    """Make torch.ops.glm53.<name> of a function that only writes into its arguments.

    schema: the name and arguments, in torch's schema language, returning nothing. torch.compile then holds
    the op without looking inside, and CUDA graphs capture what it launches.
    """
    name = schema.partition("(")[0]
    _LIBRARY.define(schema)  # type: ignore[no-untyped-call]
    for key in ("CPU", "CUDA"):
        _LIBRARY.impl(name, run, key)  # type: ignore[no-untyped-call]
    # Tracing runs it on tensors without data: there is nothing to write and no result to shape.
    _LIBRARY.impl(name, lambda *arguments: None, "Meta")  # type: ignore[no-untyped-call]
