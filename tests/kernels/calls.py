"""Owns a kernel's test calls: an op's arguments, what lies between a tensor's rows, and how to run them.

A kernel's tests/kernels/<stem>_cases.py has call(case) -> OpCall, and lists of cases. SMALL: the emulated
source runs them under every check, and a GPU under compute-sanitizer. WATCHED: what that takes besides.
LARGE: values on a GPU. REPEATED: what a GPU runs many times and captures. BUGS: by name, (file in csrc, what
stands there, what a hasty hand would write, {checks: what must be noticed}), for the SMALL cases to find.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

# What a test fills a kernel's outputs with: a place that still holds it was not written.
UNTOUCHED = 0xA5


@dataclass(frozen=True)
class OpCall:
    """arguments: the op's, by their names and in the schema's order, the outputs poisoned.

    check: holds what the op has made of them against the reference; raises AssertionError.
    plan: the launch that the emulated program takes instead of the planned one, or zeros.
    """

    arguments: dict[str, Any]
    check: Callable[[Mapping[str, Any]], None]
    plan: tuple[int, int, int] = (0, 0, 0)


def cases_of(stem: str) -> ModuleType:
    """The module of a kernel's cases."""
    return importlib.import_module(f"tests.kernels.{stem}_cases")


def op(stem: str) -> Any:
    return getattr(torch.ops.glm53, stem).default


def poisoned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, its storage filled with UNTOUCHED."""
    tensor.untyped_storage().fill_(UNTOUCHED)
    return tensor


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The elements' bytes in order, whatever the strides, on the CPU."""
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor).view(torch.uint8)


def extent(tensor: torch.Tensor) -> torch.Tensor:
    """All elements from the first to the last, those between the rows too, as one dimension."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((last + 1 if tensor.numel() else 0,), (1,))


def between(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes between the rows, those of the elements zero."""
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()]
    whole = extent(tensor.view(integers)).clone()
    whole.as_strided(tensor.shape, tensor.stride()).zero_()
    return whole.view(torch.uint8).cpu()


def written(stem: str, call: OpCall) -> Iterator[str]:
    """The names of the tensors that the op writes."""
    for argument in op(stem)._schema.arguments:
        alias = argument.alias_info
        if alias is not None and alias.is_write and call.arguments[argument.name] is not None:
            yield argument.name


def run(stem: str, call: OpCall) -> list[torch.Tensor]:
    """Run the op and check what it has written, between the rows too; returns the written tensors."""
    tensors = [call.arguments[name] for name in written(stem, call)]
    before = [between(tensor) for tensor in tensors]
    op(stem)(**call.arguments)
    call.check(call.arguments)
    assert all(map(torch.equal, before, map(between, tensors)))
    return tensors
