"""Owns the inputs of indexer_topk's tests, and what its results must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from sglang_glm53.geometry import MAX_INDEX_TOPK
from sglang_glm53.testing.reference import indexer_topk as reference
from tests.kernels.calls import OpCall, poisoned

Values = Callable[[torch.Generator, int], torch.Tensor]


def _mixed(generator: torch.Generator, n: int) -> torch.Tensor:
    """Numbers among NaN, infinities, denormals and zeros of both signs."""
    odd = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e-42, -1e-42, 0.0, -0.0])
    values = torch.randn(n, generator=generator)
    pick = torch.randint(0, 14, (n,), generator=generator)
    return torch.where(pick < 7, odd[pick % 7], values)


def _any_bits(generator: torch.Generator, n: int) -> torch.Tensor:
    bits = torch.randint(-(2**31), 2**31, (n,), generator=generator)
    return bits.to(torch.int32).view(torch.float32)


def _plateau(generator: torch.Generator, n: int) -> torch.Tensor:
    """Zeros of both signs, with a few above and below them."""
    values = torch.randn(n, generator=generator)
    pick = torch.rand(n, generator=generator)
    return torch.where(pick < 0.05, values, torch.where(pick < 0.5, 0.0, -0.0))


VALUES: dict[str, Values] = {
    "normal": lambda generator, n: torch.randn(n, generator=generator),
    "relu": lambda generator, n: torch.randn(n, generator=generator).clamp(min=0),
    "plateau": _plateau,
    "one value": lambda generator, n: torch.full((n,), -1.5),
    "few values": lambda generator, n: torch.randint(-2, 3, (n,), generator=generator).float(),
    "ascending": lambda generator, n: torch.arange(n).float(),
    "descending": lambda generator, n: -torch.arange(n).float(),
    # All in one bin of the first histogram, and most of them in one of the second.
    "close": lambda generator, n: 1 + torch.randint(0, 1000, (n,), generator=generator) * 2.0**-23,
    "mixed": _mixed,
    "mostly NaN": lambda generator, n: torch.where(
        torch.rand(n, generator=generator) < 0.99, torch.nan, -1.0
    ),
    "any bits": _any_bits,
}
MODES = ("positions", "paged", "mapped", "ragged")


@dataclass(frozen=True)
class Case:
    """One call. gap: logits between rows. plan: threads, blocks and cache words of the launch, or zeros.

    lengths: of the rows, or None for random ones, from -2 to the width. device: where the tensors are; their
    values are the same everywhere.
    """

    rows: int
    width: int
    k: int
    values: str = "normal"
    bf16: bool = False
    mode: str = "paged"
    page_size: int = 64
    gap: int = 0
    lengths: tuple[int, ...] | None = None
    plan: tuple[int, int, int] = (0, 0, 0)
    seed: int = 0
    device: str = "cpu"


@dataclass
class Call:
    """The tensors of a case; those that its mode does not have are None."""

    logits: torch.Tensor
    lengths: torch.Tensor
    page_table: torch.Tensor | None = None
    row_to_request: torch.Tensor | None = None
    row_starts: torch.Tensor | None = None
    out_offsets: torch.Tensor | None = None
    case: Case = field(default_factory=lambda: Case(1, 1, 1))

    def on(self, device: str) -> Call:
        """The same tensors there; on another device the rows of logits have their gaps no more."""
        moved = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, torch.Tensor)
        }
        return replace(self, **moved)

    def keywords(self) -> dict[str, object]:
        return {
            "page_table": self.page_table,
            "page_size": self.case.page_size,
            "row_to_request": self.row_to_request,
            "row_starts": self.row_starts,
            "out_offsets": self.out_offsets,
        }


def make(case: Case) -> Call:
    """The case's tensors; logits are a slice of rows, whose gaps hold the largest values of all."""
    generator = torch.Generator().manual_seed(case.seed)
    in_word = 8 if case.bf16 else 4
    stride = -(-case.width // in_word) * in_word + case.gap
    values = VALUES[case.values](generator, case.rows * case.width).view(case.rows, case.width)
    whole = torch.full((case.rows, stride), torch.finfo(torch.float32).max)
    whole[:, : case.width] = values
    logits = (whole.bfloat16() if case.bf16 else whole).to(case.device)[:, : case.width]

    def integers(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator).int().to(case.device)

    lengths = integers(-2, case.width + 1, case.rows)
    if case.lengths is not None:
        lengths = torch.tensor(case.lengths, dtype=torch.int32, device=case.device)
    call = Call(logits, lengths, case=case)
    if case.mode in ("paged", "mapped"):
        requests = max(1, case.rows // 2) if case.mode == "mapped" else case.rows
        pages = -(-case.width // case.page_size)
        order = torch.randperm(requests * pages, generator=generator)
        call.page_table = order.int().view(requests, pages).to(case.device)
        if case.mode == "mapped":
            call.row_to_request = integers(0, requests, case.rows)
    if case.mode == "ragged":
        call.row_starts = integers(0, case.width // 2 + 1, case.rows)
        call.out_offsets = integers(0, 10**6, case.rows)
    return call


def wanted_positions(call: Call, row: int) -> torch.Tensor:
    """The positions that a row must give, int64."""
    start = int(call.row_starts[row]) if call.row_starts is not None else 0
    end = min(start + max(int(call.lengths[row]), 0), call.case.width)
    return reference.positions(call.logits[row, start:end], call.case.k)


def check(call: Call, slots: torch.Tensor, counts: torch.Tensor, positions: torch.Tensor | None) -> None:
    """Every slot, count and position of a call, in their order, on any device."""
    case, call = call.case, call.on("cpu")
    slots, counts = slots.cpu(), counts.cpu()
    positions = None if positions is None else positions.cpu()
    assert slots.shape == (case.rows, case.k)
    for row in range(case.rows):
        wanted = wanted_positions(call, row)
        count, padding = len(wanted), torch.full((case.k - len(wanted),), -1)
        assert int(counts[row]) == count, (case, row)
        if positions is not None:
            assert torch.equal(positions[row].long(), torch.cat([wanted, padding])), (case, row)
        place = wanted
        if call.page_table is not None:
            line = call.page_table[row if call.row_to_request is None else int(call.row_to_request[row])]
            place = line.long()[wanted // case.page_size] * case.page_size + wanted % case.page_size
        elif call.out_offsets is not None:
            place = wanted + int(call.out_offsets[row])
        assert torch.equal(slots[row].long(), torch.cat([place, padding])), (case, row)


def call(case: Case) -> OpCall:
    """The op's arguments, for positions too."""
    own = make(case)

    def integers(*shape: int) -> torch.Tensor:
        return poisoned(torch.empty(shape, dtype=torch.int32, device=case.device))

    arguments = {"logits": own.logits, "lengths": own.lengths} | own.keywords()
    # In the schema's order.
    arguments["page_size"] = arguments.pop("page_size")
    slots, counts, positions = integers(case.rows, case.k), integers(case.rows), integers(case.rows, case.k)
    arguments |= {"slots": slots, "counts": counts, "positions": positions}

    def check_all(found: Mapping[str, Any]) -> None:
        check(own, found["slots"], found["counts"], found["positions"])

    return OpCall(arguments, check_all, case.plan)


K = MAX_INDEX_TOPK
SMALL = [
    Case(3, 300, 64, "mixed", mode="ragged", lengths=(300, 41, 299)),
    Case(1, 700, 7, "plateau", True, "mapped", gap=8, lengths=(697,), plan=(256, 2, 8)),
    Case(1, 500, 96, "plateau", lengths=(500,)),
    Case(1, 5003, 512, "close", mode="paged", lengths=(5003,), plan=(256, 2, 16)),
    Case(1, 2600, 2048, "normal", mode="positions", lengths=(2600,), plan=(256, 4, 64)),
]
# Long rows, which are split over a cluster.
WATCHED = [
    Case(1, 131072, K, lengths=(131072,)),
    Case(2, 70001, K, "close", True, "mapped", lengths=(70001, 60000)),
]
LARGE = [
    Case(8, width, K, kind, bf16, MODES[seed % 4], 64, 8 * (seed % 2), lengths, seed=seed)
    for width in (4096, 32768, 131072)
    for lengths in [(0, 1, K - 1, K, K + 1, -7, width, width // 2 + 3)]
    for bf16 in (False, True)
    for seed, kind in enumerate(VALUES)
]
REPEATED = [
    *(Case(6, 40000, 512, kind, mode=mode, gap=8) for mode in MODES for kind in ("plateau", "mixed")),
    *(
        Case(rows, width, K, "plateau", lengths=(width,) * rows)
        for rows, width in [(1, 131072), (32, 32768), (200, 4096)]
    ),
]

BUGS = {
    "missing barrier": (
        "kernels/indexer_topk.cuh",
        "    std::uint32_t* all = shared.own;\n    __syncthreads();\n",
        "    std::uint32_t* all = shared.own;\n",
        {"thread": "data race"},
    ),
    "missing cluster barrier": (
        "kernels/indexer_topk.cuh",
        "      if (level == 0) cluster_wait();\n",
        "",
        {"plain": "refused: cluster: the thread arrives twice"},
    ),
    "plain increment": (
        "kernels/indexer_topk.cuh",
        "atomicAdd(&shared.own[(key >> shift_of(level)) % kBins], 1u);",
        "++shared.own[(key >> shift_of(level)) % kBins];",
        {"thread": "data race"},
    ),
    "read past the row": (
        "include/glm53/topk.cuh",
        "if (first + Traits::kInWord <= slice.allocated)",
        "if (first <= slice.allocated)",
        {"plain": "refused: global memory: load of 16 bytes"},
    ),
    "ties in any block": (
        "kernels/indexer_topk.cuh",
        "        ties -= taken;\n",
        "",
        {"plain": "values|refused: global memory: store"},
    ),
    "NaN on top": (
        "include/glm53/topk.cuh",
        "  if (magnitude > kInfinity) return kUnit;\n",
        "  if (magnitude > ~kInfinity) return kUnit;\n",
        {"plain": "values"},
    ),
    "zeros apart": (
        "include/glm53/topk.cuh",
        "  if (magnitude == 0) return kSign;\n",
        "",
        {"plain": "values"},
    ),
    "notes without an end": (
        "kernels/indexer_topk.cuh",
        "      complete = noted + total <= kNotes;\n",
        "",
        {"address": "runtime error: index|AddressSanitizer"},
    ),
    "unclean histogram": (
        "kernels/indexer_topk.cuh",
        "      shared.own[bin] = 0;\n",
        "",
        {"plain": "values|refused: global memory: store"},
    ),
}
