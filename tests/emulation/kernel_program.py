"""Owns the builds of kernel.cpp for a kernel, and the exchange with it: calls in, what it has written out."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sglang.kernels.jit
import torch
import tvm_ffi.libinfo

from sglang_glm53.testing import emulation
from tests.emulation.conftest import SOURCES
from tests.kernels.calls import OpCall, as_bytes, between, extent, op, written

NONE, INTEGER, REAL, TENSOR = range(4)
# DLPack's code of each type.
CODES = {torch.int32: 0, torch.float32: 2, torch.bfloat16: 4, torch.float8_e4m3fn: 10}


@dataclass(frozen=True)
class Result:
    """One call's written tensors by name, and (bytes read, bytes written) by buffer."""

    tensors: dict[str, torch.Tensor]
    traffic: dict[str, tuple[int, int]]


def flags(stem: str) -> tuple[str, ...]:
    """What kernel.cpp is compiled with: the binding, and the headers and library of SGLang's JIT."""
    library = Path(tvm_ffi.libinfo.find_libtvm_ffi())
    includes = [tvm_ffi.libinfo.find_include_path(), str(Path(sglang.kernels.jit.__path__[0], "include"))]
    plan = SOURCES / f"{stem}_plan.h"
    return (
        *(f"-isystem{place}" for place in includes),
        f"-DGLM53_STEM={stem}",
        f"-DGLM53_BINDING=<kernels/{stem}_ffi.h>",
        *(["-include", str(plan)] if plan.is_file() else []),
        *("-Wl,--no-as-needed", str(library), f"-Wl,-rpath,{library.parent}"),
    )


def _encode(value: Any, is_written: bool) -> bytes:
    """One argument, as kernel.cpp reads it."""
    if value is None:
        return struct.pack("<q", NONE)
    if isinstance(value, float):
        return struct.pack("<qd", REAL, value)
    if isinstance(value, int):
        return struct.pack("<2q", INTEGER, value)
    data = as_bytes(extent(value)).numpy().tobytes()
    code, bits = CODES[value.dtype], 8 * value.element_size()
    sizes = (*value.shape, *value.stride())
    head = (TENSOR, code, bits, value.dim(), is_written, len(data), *sizes)
    return struct.pack(f"<{len(head)}q", *head) + data


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the same shape and strides, with what lies between its rows."""
        size = extent(tensor).numel() * tensor.element_size()
        flat = torch.frombuffer(bytearray(self.take(size)), dtype=torch.uint8).view(tensor.dtype)
        return flat.as_strided(tensor.shape, tensor.stride())

    def traffic(self) -> dict[str, tuple[int, int]]:
        [length] = struct.unpack("<q", self.take(8))
        lines = [line.split() for line in self.take(length).decode().splitlines()]
        return {name: (int(read), int(wrote)) for name, read, wrote in lines}


def run(
    stem: str, program: Path, calls: Sequence[OpCall], folder: Path, order: str = "forward", seed: int = 0
) -> list[Result] | emulation.Outcome:
    """What the calls have written, or how the program ended when it did not succeed."""
    names = [argument.name for argument in op(stem)._schema.arguments if str(argument.type) != "str"]
    inputs, outputs = folder / "cases", folder / "results"
    with inputs.open("wb") as file:
        for call in calls:
            file.write(struct.pack("<4q", len(names), *call.plan))
            out = set(written(stem, call))
            for name in names:
                file.write(_encode(call.arguments[name], name in out))
    outcome = emulation.run(program, str(inputs), str(outputs), order=order, seed=seed)
    if outcome.status:
        return outcome
    reader, results = _Reader(outputs.read_bytes()), []
    for call in calls:
        tensors = {name: reader.like(call.arguments[name]) for name in written(stem, call)}
        results.append(Result(tensors, reader.traffic()))
    assert reader.at == len(reader.data)
    return results


def check(call: OpCall, result: Result) -> None:
    """Every value of a result, and that nothing was written between the rows."""
    call.check(call.arguments | result.tensors)
    for name, tensor in result.tensors.items():
        assert torch.equal(between(tensor), between(call.arguments[name])), name
