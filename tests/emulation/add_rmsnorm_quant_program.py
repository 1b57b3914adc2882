"""Owns the exchange with the program add_rmsnorm_quant.cpp: cases in, checked results out."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import torch

from sglang_glm53.kernels.fp8 import ScaleLayout
from sglang_glm53.testing import emulation
from sglang_glm53.testing.reference import add_rmsnorm_quant as reference
from tests.kernels.add_rmsnorm_quant_cases import EPS, Case, as_bytes, check_quantised, check_y

SCALES = {None: 0, ScaleLayout.ROW_MAJOR: 1, ScaleLayout.COLUMN_MAJOR: 1, ScaleLayout.PACKED_UE8M0: 2}
# What the program fills its buffers with: a place that still holds it was not written.
UNTOUCHED = 0xA5
TENSORS = ("x", "residual", "weight", "y", "q", "scale")


@dataclass
class Result:
    """One case's outputs as [rows, stride], and bytes (read, written) by tensor."""

    residual: torch.Tensor | None
    y: torch.Tensor | None
    q: torch.Tensor | None
    scale: torch.Tensor | None
    traffic: dict[str, tuple[int, int]]


def _scale_shape(case: Case) -> tuple[int, int, int, int]:
    """Row stride, group stride, words, groups or packed words of a row."""
    groups = case.hidden // 128
    if case.layout is None:
        return 0, 0, 0, 0
    if case.layout is ScaleLayout.ROW_MAJOR:
        return groups, 1, case.rows * groups, groups
    columns = -(-groups // 4) if case.layout is ScaleLayout.PACKED_UE8M0 else groups
    aligned = -(-case.rows // 4) * 4
    return 1, aligned, columns * aligned, columns


def _whole(tensor: torch.Tensor) -> bytes:
    """The storage of a slice of rows, up to the end of the last one."""
    length = (tensor.shape[0] - 1) * tensor.stride(0) + tensor.shape[1]
    return as_bytes(tensor.as_strided((length,), (1,))).numpy().tobytes()


def encode(case: Case) -> bytes:
    """The case as the program reads it."""
    x, residual, weight = case.inputs()
    stride = case.hidden + case.gap
    row_stride, group_stride, words, _ = _scale_shape(case)
    header = struct.pack(
        "<12qd",
        *(case.rows, case.hidden, SCALES[case.layout], case.residual, case.with_y),
        *(stride, stride, stride, stride, row_stride, group_stride, words, EPS),
    )
    body = _whole(x) + (_whole(residual) if residual is not None else b"")
    return header + body + as_bytes(weight).numpy().tobytes()


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]

    def rows(self, case: Case, dtype: torch.dtype) -> torch.Tensor:
        """[rows, stride]; the last row's gap, which the program does not have, counts as untouched."""
        size = dtype.itemsize
        stride = (case.hidden + case.gap) * size
        data = self.take(((case.rows - 1) * (case.hidden + case.gap) + case.hidden) * size)
        data += bytes([UNTOUCHED]) * (case.rows * stride - len(data))
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(case.rows, stride).view(dtype)


def _decode(case: Case, reader: _Reader) -> Result:
    residual = reader.rows(case, torch.bfloat16) if case.residual else None
    y = reader.rows(case, torch.bfloat16) if case.with_y else None
    q = scale = None
    if case.layout is not None:
        q = reader.rows(case, torch.float8_e4m3fn)
        row_stride, group_stride, words, columns = _scale_shape(case)
        dtype = torch.int32 if case.layout is ScaleLayout.PACKED_UE8M0 else torch.float32
        flat = torch.frombuffer(bytearray(reader.take(4 * words)), dtype=dtype)
        scale = flat.as_strided((case.rows, columns), (row_stride, group_stride))
    moved = struct.unpack("<12q", reader.take(12 * 8))
    return Result(
        residual, y, q, scale, dict(zip(TENSORS, zip(moved[::2], moved[1::2], strict=True), strict=True))
    )


def run(
    program: Path, cases: list[Case], folder: Path, order: str, seed: int
) -> list[Result] | emulation.Outcome:
    """The cases' results, or how the program ended when it did not succeed."""
    inputs, outputs = folder / "cases", folder / "results"
    inputs.write_bytes(b"".join(map(encode, cases)))
    outcome = emulation.run(program, str(inputs), str(outputs), order=order, seed=seed)
    if outcome.status:
        return outcome
    reader = _Reader(outputs.read_bytes())
    results = [_decode(case, reader) for case in cases]
    assert reader.at == len(reader.data)
    return results


def check(case: Case, result: Result) -> None:
    """Every value of a result, and that nothing was written between the rows."""
    x, residual, weight = case.inputs()
    total, wanted = reference.norm(x, residual, weight, EPS)
    inner = slice(case.hidden)
    outputs = [tensor for tensor in (result.y, result.q) if tensor is not None]
    assert all((tensor[:, case.hidden :].view(torch.uint8) == UNTOUCHED).all() for tensor in outputs)
    if result.residual is not None:
        assert torch.equal(result.residual[:, inner], total.bfloat16())
        # The case's own filling there is NaN.
        assert result.residual[:-1, case.hidden :].isnan().all()
    if result.y is not None:
        y = result.y[:, inner].contiguous()
        check_y(y, wanted)
        if case.layout is not None:
            check_quantised(y, result.q[:, inner].contiguous(), result.scale, case.layout)
