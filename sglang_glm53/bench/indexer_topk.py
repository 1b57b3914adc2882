"""Owns indexer_topk's part of the benchmark: the buffers, the calls and the comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from sglang_glm53.bench.measure import Prepared, load
from sglang_glm53.geometry import PAGE
from sglang_glm53.kernels.cards import Shape
from sglang_glm53.kernels.indexer_topk import PAGED, declines
from sglang_glm53.testing.compare import compare

SEED = 0
SGLANG_PLAN = ("sglang.kernels.ops.attention.dsv4.topk", "plan_topk_v2")
SGLANG_PAGED = ("sglang.kernels.ops.attention.dsv4.topk", "topk_transform_paged_v2")
SGLANG_RAGGED = ("sglang.kernels.ops.attention.dsv4.topk", "topk_transform_ragged_v2")
FLASHINFER_PAGED = ("flashinfer", "top_k_page_table_transform")
FLASHINFER_RAGGED = ("flashinfer", "top_k_ragged_transform")
# flashinfer.TopKTieBreak: NONE and SMALL.
ANY_TIE, LOWEST_TIE = 0, 1


@dataclass(frozen=True)
class Buffers:
    """The tensors of some sets, as the op names them."""

    logits: tuple[torch.Tensor, ...]
    lengths: tuple[torch.Tensor, ...]
    page_table: tuple[torch.Tensor, ...]
    out_offsets: tuple[torch.Tensor, ...]
    slots: tuple[torch.Tensor, ...]
    counts: tuple[torch.Tensor, ...]


def buffers(shape: Shape, device: torch.device, sets: int) -> Buffers:
    """The same values for the same arguments: normal logits, full rows, every page in one row only."""
    rows, width, k = shape.rows, shape.sizes["W"], shape.sizes["k"]
    generator = torch.Generator(device).manual_seed(SEED)

    def per_row(values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """[sets, rows] as int32, each set at a multiple of 16 bytes."""
        padded = torch.nn.functional.pad(values.int(), (0, -rows % 4))
        return tuple(line[:rows] for line in padded.unbind())

    logits = torch.randn(sets, rows, width, generator=generator, device=device).unbind()
    pages = -(-width // PAGE)
    order = torch.randperm(sets * rows * pages, generator=generator, device=device)
    tables = order.int().view(sets, rows, pages).unbind()
    full = torch.full((sets, rows), width, device=device)
    offsets = (full.flatten().cumsum(0) - width).view(sets, rows) % 2**30
    slots = torch.full((sets, rows, k), -1, dtype=torch.int32, device=device).unbind()
    return Buffers(logits, per_row(full), tables, per_row(offsets), slots, per_row(full))


def positions(shape: Shape, own: Buffers, slots: torch.Tensor) -> torch.Tensor:
    """The position of each slot of the first set in its row, int64; -1 where the row has no such slot."""
    slots = slots.long()
    if shape.form != PAGED:
        found = slots - own.out_offsets[0][:, None]
        return torch.where((found >= 0) & (found < shape.sizes["W"]), found, -1)
    table = own.page_table[0].long()
    rows, pages = table.shape
    place = torch.full((int(table.max()) + 1,), -1, device=table.device)
    place[table.flatten()] = torch.arange(rows * pages, device=table.device)
    page = slots // PAGE
    held = place[page.clamp(0, len(place) - 1)]
    row = torch.arange(rows, device=table.device)[:, None]
    there = (slots >= 0) & (page < len(place)) & (held >= 0) & (held // pages == row)
    return torch.where(there, held % pages * PAGE + slots % PAGE, -1)


def _prepared(shape: Shape, own: Buffers, call: Callable[[int], torch.Tensor]) -> Prepared:
    """call(i) selects from set i and returns the slots; a second call gives the same ones."""
    calls = [partial(call, i) for i in range(len(own.logits))]
    return Prepared(calls, lambda: (positions(shape, own, call(0)), own.logits[0]))


def ours(shape: Shape, device: torch.device, sets: int) -> Prepared:
    """The kernel on full rows of FP32 logits."""
    own = buffers(shape, device, sets)
    if declined := declines(own.logits[0], shape.sizes["k"]):
        raise ValueError(f"the kernel declines: {declined.reason}")

    def call(i: int) -> torch.Tensor:
        table, offsets = (own.page_table[i], None) if shape.form == PAGED else (None, own.out_offsets[i])
        torch.ops.glm53.indexer_topk(
            *(own.logits[i], own.lengths[i], table, None, None, offsets, PAGE),
            *(own.slots[i], own.counts[i], None),
        )
        return own.slots[i]

    return _prepared(shape, own, call)


def _sglang(shape: Shape, device: torch.device, sets: int) -> Prepared:
    function = load(SGLANG_PAGED if shape.form == PAGED else SGLANG_RAGGED)
    own = buffers(shape, device, sets)
    # Made once in a forward pass and read by every layer, so its time is not the kernel's.
    plan = load(SGLANG_PLAN)(own.lengths[0]) if shape.form == PAGED else None

    def call(i: int) -> torch.Tensor:
        logits, lengths, out = own.logits[i], own.lengths[i], own.slots[i]
        if shape.form == PAGED:
            function(logits, lengths, own.page_table[i], out, PAGE, plan)
        else:
            function(logits, lengths, out_offsets=own.out_offsets[i], out_indices=out)
        return out

    return _prepared(shape, own, call)


def _flashinfer(deterministic: bool, shape: Shape, device: torch.device, sets: int) -> Prepared:
    function = load(FLASHINFER_PAGED if shape.form == PAGED else FLASHINFER_RAGGED)
    own = buffers(shape, device, sets)
    # SGLang's flags; its page table has one position a page, which is more to read.
    flags: dict[str, Any] = {"deterministic": deterministic, "dsa_graph_safe": True}
    flags["tie_break"] = LOWEST_TIE if deterministic else ANY_TIE

    def call(i: int) -> torch.Tensor:
        table = own.page_table[i] if shape.form == PAGED else own.out_offsets[i]
        pages: dict[str, Any] = {"page_size": PAGE, "out": own.slots[i]} if shape.form == PAGED else {}
        slots: torch.Tensor = function(
            own.logits[i], table, own.lengths[i], shape.sizes["k"], **flags, **pages
        )
        return slots

    return _prepared(shape, own, call)


def check(found: tuple[torch.Tensor, torch.Tensor], ours: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Hold a peer's positions, in any order, against ours; raises AssertionError.

    Both: positions [rows, k] and logits [rows, width]. Each position is in its row and there once, and the
    selected logits are equal: which of several equal ones is selected is the peer's choice.
    """
    chosen = found[0].sort(dim=1).values
    if bool((chosen < 0).any()):
        raise AssertionError("a slot is not one of its row's")
    if bool((chosen[:, 1:] == chosen[:, :-1]).any()):
        raise AssertionError("a position is selected twice")

    def selected(positions: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        return logits.gather(1, positions).sort(dim=1).values

    compare(selected(*found), selected(*ours), atol=0, rtol=0)


PEERS = {
    "SGLang, top-k v2": _sglang,
    "FlashInfer": partial(_flashinfer, False),
    "FlashInfer, deterministic": partial(_flashinfer, True),
}
