"""Owns the exchange with the program indexer_topk.cpp: cases in, checked results out."""

from __future__ import annotations

import struct
from pathlib import Path

import torch

from sglang_glm53.testing import emulation
from tests.kernels.add_rmsnorm_quant_cases import as_bytes
from tests.kernels.indexer_topk_cases import Call, Case, check, make


def _encode(call: Call) -> bytes:
    case, logits = call.case, call.logits
    stride = logits.stride(0)
    last = (case.rows - 1) * stride + case.width
    table = call.page_table
    header = struct.pack(
        "<14q",
        *(case.rows, case.width, case.k, case.bf16, stride),
        *(call.row_starts is not None, call.out_offsets is not None),
        *(table.shape if table is not None else (0, 0)),
        *(case.page_size.bit_length() - 1, call.row_to_request is not None, *case.plan),
    )
    extra = (call.lengths, call.row_starts, call.out_offsets, table, call.row_to_request)
    body = [logits.as_strided((last,), (1,)), *(tensor for tensor in extra if tensor is not None)]
    return header + b"".join(as_bytes(tensor).numpy().tobytes() for tensor in body)


def _read(call: Call, data: bytes, at: int) -> tuple[int, float]:
    """Check one result; where the next begins, and how often each valid logit was read."""
    rows, k = call.case.rows, call.case.k
    sizes = (rows * k, rows * k, rows)
    words = torch.frombuffer(bytearray(data[at : at + 4 * sum(sizes)]), dtype=torch.int32)
    slots, positions, counts = words.split(sizes)
    check(call, slots.view(rows, k), counts, positions.view(rows, k))
    at += 4 * sum(sizes)
    [read] = struct.unpack_from("<Q", data, at)
    valid = int(call.lengths.clamp(min=0).sum()) * call.logits.element_size()
    return at + 8, read / max(valid, 1)


def run(
    program: Path, cases: list[Case], folder: Path, order: str = "forward", seed: int = 0
) -> tuple[bytes, list[float]] | emulation.Outcome:
    """Run and check the cases: the raw results and each case's reads per logit, or how the program failed."""
    calls = [make(case) for case in cases]
    inputs, outputs = folder / "cases", folder / "results"
    inputs.write_bytes(b"".join(map(_encode, calls)))
    outcome = emulation.run(program, str(inputs), str(outputs), order=order, seed=seed)
    if outcome.status:
        return outcome
    data, at, reads = outputs.read_bytes(), 0, []
    for call in calls:
        at, ratio = _read(call, data, at)
        reads.append(ratio)
    assert at == len(data)
    return data, reads
