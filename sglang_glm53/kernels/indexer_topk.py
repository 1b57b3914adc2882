"""Owns indexer_topk: the k highest scored positions of each row, ascending, as slots of the KV pool."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import torch

from sglang_glm53.fusion import INDEXER_TOPK, Declined
from sglang_glm53.geometry import MAX_INDEX_TOPK
from sglang_glm53.kernels import backend, jit
from sglang_glm53.kernels.cards import Budget, KernelCard, Shape, Traffic

ROW_ALIGNMENT = 16
_NO_KEY = 0
# How a shape of the benchmark makes its slots.
PAGED, RAGGED = "paged", "ragged"

CARD = KernelCard(
    stem="indexer_topk",
    fusions=(INDEXER_TOPK,),
    summary="the positions of a row's k largest logits, ascending, ties to the lowest, as slots of the pool",
    replaces=(
        "`_topk_transform_v2_paged`, sglang/srt/layers/attention/dsa/dsa_topk_backend.py "
        "DSATopKBackend.topk_transform, in decode and verification",
        "`_topk_transform_v2_ragged`, sglang/srt/layers/attention/dsa/dsa_topk_backend.py "
        "DSATopKBackend.topk_transform, in prefill",
        "`fast_topk_transform_fused`, sglang/srt/layers/attention/dsa/dsa_topk_backend.py "
        "DSATopKBackend.topk_transform, in paged prefill",
    ),
    tensors=(
        ("logits", "[M, W] FP32 or bf16, any row stride of whole 16-byte words"),
        ("lengths", "[M] int32; negative counts as 0"),
        ("page_table", "[requests, pages] int32, or none; the page size is a power of two"),
        ("row_to_request", "[M] int32, or none: each row has its own line"),
        ("row_starts", "[M] int32, or none: where a row's logits begin"),
        ("out_offsets", "[M] int32, or none: added to a position to make its slot, without a page table"),
        ("slots", "[M, k] int32, padded with -1; k from 1 to 2048"),
        ("counts", "[M] int32: the smaller of length and k"),
        ("positions", "[M, k] int32, on request"),
    ),
    traffic=(
        Traffic("logits", False, "W", Fraction(4)),
        Traffic("page_table", False, "k", Fraction(4)),
        Traffic("slots", True, "k", Fraction(4)),
    ),
    # One context length of many.
    sizes={"W": 131072, "k": MAX_INDEX_TOPK},
    launches_removed=(
        "none: SGLang's own path is one launch, or two with long rows",
        "what goes is the order and the choice of ties that vary from run to run: equal logits give every TP "
        "rank the same selection, without a broadcast",
    ),
    numerics=(
        "Exact: the set is that of a stable sort of the logits in FP64, on every rank and every run.",
        "-0 equals 0. NaN counts below minus infinity: it is selected only when fewer than k numbers are "
        "there, the lowest positions first.",
        "A row of at most k logits is selected whole, NaN included.",
        "A length past the row or the page table is cut off there, and nothing beyond is read.",
    ),
    declines={
        "dtype": "the logits are neither float32 nor bfloat16",
        "k": "k is over 2048",
        "columns": "a row of logits is not contiguous",
        "alignment": "a row of logits does not start at a multiple of 16 bytes",
        "device": "the GPU is older than Hopper (compute capability 9.0)",
    },
    fallback="SGLang's own kernel in the model, and the same selection in torch elsewhere, counted and "
    "logged once for each reason",
    peers={
        "SGLang, top-k v2": "`topk_transform_paged`: atomic order, ties as they come past 128",
        "FlashInfer": "0.7.2's `top_k_page_table_transform`",
        "FlashInfer, deterministic": "the same, which then keeps the lowest of equal logits",
    },
    forms={
        "indexer_topk_kernel<float, 256u>(IndexerTopkParams)": Budget(64, 41184),
        "indexer_topk_kernel<Bf16, 256u>(IndexerTopkParams)": Budget(64, 41184),
        "indexer_topk_kernel<float, 1024u>(IndexerTopkParams)": Budget(64, 41568),
        "indexer_topk_kernel<Bf16, 1024u>(IndexerTopkParams)": Budget(64, 41568),
    },
    grid=tuple(
        Shape(rows, {"W": width, "k": MAX_INDEX_TOPK}, form, rows in (1, 32) and width in (4096, 131072))
        # Decode's page table and prefill's offsets; a million positions with few rows.
        for form in (PAGED, RAGGED)
        for width in (4096, 32768, 131072, 2**20)
        for rows in ((1, 8) if width == 2**20 else (1, 8, 32, 128, 512))
    ),
)


class Selection(NamedTuple):
    """slots: [rows, k] int32, padded with -1. counts: [rows] int32. positions: as slots, or None."""

    slots: torch.Tensor
    counts: torch.Tensor
    positions: torch.Tensor | None


def declines(logits: torch.Tensor, k: int) -> Declined | None:
    """Why the kernel does not take this call, one of CARD.declines; None when it does."""
    rows = logits.stride(0) * logits.element_size() if logits.shape[0] > 1 else 0
    held = {
        "dtype": logits.dtype in (torch.float32, torch.bfloat16),
        "k": k <= MAX_INDEX_TOPK,
        "columns": logits.stride(1) == 1 or logits.shape[1] == 1,
        "alignment": (logits.data_ptr() | rows) % ROW_ALIGNMENT == 0,
        "device": backend.is_supported(logits.device),
    }
    return next((Declined(CARD.declines[key]) for key, holds in held.items() if not holds), None)


def indexer_topk(
    logits: torch.Tensor,
    lengths: torch.Tensor,
    k: int,
    *,
    page_table: torch.Tensor | None = None,
    page_size: int = 1,
    row_to_request: torch.Tensor | None = None,
    row_starts: torch.Tensor | None = None,
    out_offsets: torch.Tensor | None = None,
    with_positions: bool = False,
    how: str = "",
) -> Selection:
    """Select the k largest logits of each row, ties to the lowest position, NaN last.

    logits: [rows, width], float32 or bf16. lengths: [rows] int32, negative counts as 0; a row of at most k
    logits is selected whole. A position becomes a slot by page_table [requests, pages] int32, with pages of
    page_size (a power of two) and row_to_request [rows] int32 (a row's own line without it), or else by
    adding out_offsets [rows] int32. row_starts [rows] int32: where a row's logits begin.
    What lies past a row's width or the page table counts as not there. Same logits, same answer.
    how: the implementation, of a caller that has asked declines() itself; chosen here when empty.
    Raises ValueError when a tensor has another shape, dtype or device, and when GLM53_KERNELS chooses what
    cannot run there.
    """
    rows = logits.shape[0] if logits.dim() == 2 else 0
    per_row = {
        "lengths": lengths,
        "row_to_request": row_to_request,
        "row_starts": row_starts,
        "out_offsets": out_offsets,
    }
    _check(logits, k, page_table, page_size, per_row)
    slots = torch.empty(rows, k, dtype=torch.int32, device=logits.device)
    counts = torch.empty(rows, dtype=torch.int32, device=logits.device)
    positions = torch.empty_like(slots) if with_positions else None
    if rows:
        torch.ops.glm53.indexer_topk(
            *(logits, lengths, page_table, row_to_request, row_starts, out_offsets, page_size),
            *(slots, counts, positions, how),
        )
    return Selection(slots, counts, positions)


def _check(
    logits: torch.Tensor,
    k: int,
    page_table: torch.Tensor | None,
    page_size: int,
    per_row: dict[str, torch.Tensor | None],
) -> None:
    if logits.dim() != 2 or not logits.dtype.is_floating_point:
        raise ValueError(f"logits are {logits.dtype} {tuple(logits.shape)}: give floats as [rows, width]")
    if k < 1:
        raise ValueError(f"k is {k}: select at least 1")
    if page_size < 1 or page_size & (page_size - 1):
        raise ValueError(f"page_size is {page_size}: use a power of two")
    for name, tensor in per_row.items():
        if tensor is not None and (tensor.shape != logits.shape[:1] or tensor.dtype != torch.int32):
            raise ValueError(
                f"{name} is {tensor.dtype} {tuple(tensor.shape)}: give int32, one for each of the "
                f"{logits.shape[0]} rows"
            )
    if page_table is None:
        if per_row["row_to_request"] is not None:
            raise ValueError("row_to_request without a page_table: give both or neither")
    elif page_table.dim() != 2 or page_table.dtype != torch.int32:
        raise ValueError(
            f"page_table is {page_table.dtype} {tuple(page_table.shape)}: give int32 as [requests, pages]"
        )
    elif per_row["out_offsets"] is not None:
        raise ValueError("page_table and out_offsets both make the slots: give one")
    elif per_row["row_to_request"] is None and page_table.shape[0] < logits.shape[0]:
        raise ValueError(
            f"page_table has {page_table.shape[0]} lines for {logits.shape[0]} rows: give row_to_request"
        )
    for name, tensor in {**per_row, "page_table": page_table}.items():
        if tensor is not None and tensor.device != logits.device:
            raise ValueError(f"{name} is on {tensor.device}, logits on {logits.device}: move it there")


def _run(
    logits: torch.Tensor,
    lengths: torch.Tensor,
    page_table: torch.Tensor | None,
    row_to_request: torch.Tensor | None,
    row_starts: torch.Tensor | None,
    out_offsets: torch.Tensor | None,
    page_size: int,
    slots: torch.Tensor,
    counts: torch.Tensor,
    positions: torch.Tensor | None,
    how: str = "",
) -> None:
    how = how or backend.choose(CARD.stem, logits.device, declines(logits, slots.shape[1]))
    if how == "torch":
        found, length = _select(logits, lengths, page_table, row_starts, page_size, slots.shape[1])
        counts.copy_(length.clamp(max=slots.shape[1]))
        slots.copy_(_slots(found, page_table, row_to_request, out_offsets, page_size))
        if positions is not None:
            positions.copy_(found)
        return
    module = jit.cuda_module(CARD.stem) if how == "cuda" else jit.emulated_module(CARD.stem)
    module.indexer_topk(
        *(logits, lengths, page_table, row_to_request, row_starts, out_offsets, page_size),
        *(slots, counts, positions),
    )


def _keys(logits: torch.Tensor) -> torch.Tensor:
    """[rows, width] -> int64 of the same order: the zeros are equal, NaN is 1, nothing is below."""
    bits = logits.float().view(torch.int32).long()
    magnitude = bits & 0x7FFFFFFF
    key = torch.where(bits < 0, 2**31 - 1 - magnitude, 2**31 + magnitude)
    key = torch.where(magnitude == 0, 2**31, key)
    return torch.where(magnitude > 0x7F800000, 1, key)


def _select(
    logits: torch.Tensor,
    lengths: torch.Tensor,
    page_table: torch.Tensor | None,
    row_starts: torch.Tensor | None,
    page_size: int,
    k: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions [rows, k] int64, ascending, padded with -1, and the lengths within the row and the table."""
    width = logits.shape[1]
    start = torch.zeros_like(lengths) if row_starts is None else row_starts.clamp(0, width)
    most = width - start
    if page_table is not None:
        most = most.clamp(max=page_table.shape[1] * page_size)
    length = torch.minimum(lengths.clamp(min=0), most)
    position = torch.arange(width, device=logits.device) - start.unsqueeze(1)
    there = (position >= 0) & (position < length.unsqueeze(1))
    keys = torch.where(there, _keys(logits), _NO_KEY)
    best = keys.sort(dim=1, descending=True, stable=True)
    chosen = torch.where(best.values[:, :k] > _NO_KEY, best.indices[:, :k], width).sort(dim=1).values
    found = torch.where(chosen < width, chosen - start.unsqueeze(1), -1)
    return torch.nn.functional.pad(found, (0, k - found.shape[1]), value=-1), length


def _slots(
    positions: torch.Tensor,
    page_table: torch.Tensor | None,
    row_to_request: torch.Tensor | None,
    out_offsets: torch.Tensor | None,
    page_size: int,
) -> torch.Tensor:
    """The positions' slots; -1 stays."""
    if page_table is None:
        slots = positions if out_offsets is None else positions + out_offsets.unsqueeze(1)
    else:
        rows = positions.shape[0]
        lines = page_table[:rows] if row_to_request is None else page_table[row_to_request.long()]
        pages = lines.gather(1, positions.clamp(min=0) // page_size)
        slots = pages * page_size + positions % page_size
    return torch.where(positions < 0, -1, slots)


backend.register(
    "indexer_topk(Tensor logits, Tensor lengths, Tensor? page_table, Tensor? row_to_request, "
    "Tensor? row_starts, Tensor? out_offsets, int page_size, Tensor(a!) slots, Tensor(b!) counts, "
    "Tensor(c!)? positions, str how='') -> ()",
    _run,
)
