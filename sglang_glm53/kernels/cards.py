"""Owns the kernel cards: what each CUDA kernel replaces, takes, moves and declines, and their document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from sglang_glm53.fusion import ATTENTION_INPUT, FFN_INPUT, INDEXER_TOPK, Q_A

NOT_MEASURED = "not run on a GPU"
EXAMPLE_ROWS = (1, 8, 64)


@dataclass(frozen=True)
class Traffic:
    """What a kernel reads or writes of one tensor.

    bytes_per_value: for each of the row's `size` values. once: for the whole call, not for each row.
    """

    tensor: str
    written: bool
    size: str
    bytes_per_value: Fraction
    once: bool = False

    def moved(self, rows: int, sizes: Mapping[str, int]) -> int:
        """Bytes, for a call of that many rows; sizes: the value of each symbol such as H."""
        return int((1 if self.once else rows) * sizes[self.size] * self.bytes_per_value)


@dataclass(frozen=True)
class KernelCard:
    """One kernel's contract. The document and `glm53 kernels` print it, tests hold the kernel to it.

    stem: the name of the .cuh, the op, the reference and the test. fusions: those that call it.
    replaces: the upstream calls, in order, each `name`, file:line of SGLang 0.5.23. tensors: name and what it
    must be.
    declines: every reason for which the op runs its fallback instead, by a short key.
    """

    stem: str
    fusions: tuple[str, ...]
    summary: str
    replaces: tuple[str, ...]
    tensors: tuple[tuple[str, str], ...]
    traffic: tuple[Traffic, ...]
    launches_removed: tuple[str, ...]
    numerics: tuple[str, ...]
    declines: Mapping[str, str]
    fallback: str
    peers: tuple[str, ...]
    measured: str = NOT_MEASURED

    def bytes_moved(self, rows: int, sizes: Mapping[str, int]) -> int:
        """Bytes that a call with every output must read and write, each value once."""
        return sum(part.moved(rows, sizes) for part in self.traffic)

    @property
    def off_switch(self) -> str:
        """The variable that turns off every fusion that calls it."""
        return f"GLM53_DISABLE={','.join(self.fusions)}"

    def files(self) -> dict[str, str]:
        """Where its parts are, from the repository's root."""
        return {
            "kernel": f"csrc/kernels/{self.stem}.cuh",
            "op": f"sglang_glm53/kernels/{self.stem}.py",
            "reference": f"sglang_glm53/testing/reference/{self.stem}.py",
            "tests": f"tests/kernels/test_{self.stem}.py",
        }


_ADD_RMSNORM_QUANT = KernelCard(
    stem="add_rmsnorm_quant",
    fusions=(ATTENTION_INPUT, FFN_INPUT, Q_A),
    summary="residual += x; y = rmsnorm(residual) * weight; q, scale = y in FP8, one scale for 128 channels",
    replaces=(
        "`fused_add_rmsnorm`, sglang/srt/layers/layernorm.py RMSNorm.forward_cuda, or without a residual",
        "`rmsnorm`, sglang/srt/layers/layernorm.py RMSNorm.forward_cuda",
        "`sglang_per_token_group_quant_fp8`, sglang/srt/layers/quantization/fp8_utils.py "
        "deepgemm_w8a8_block_fp8_linear_with_fallback, in each linear layer that reads y, and",
        "`sglang_per_token_group_quant_fp8`, sglang/srt/layers/moe/token_dispatcher/deepep.py "
        "_DeepEPDispatcherImplNormal.dispatch_a, in DeepEP's normal dispatch",
    ),
    tensors=(
        ("x", "[M, H] bf16, any row stride of whole 16-byte words"),
        ("residual", "[M, H] bf16, updated in place, or none: then y is the norm of x"),
        ("weight", "[H] bf16"),
        ("y", "[M, H] bf16, on request"),
        ("q", "[M, H] e4m3, on request"),
        (
            "scale",
            "with q. Row-major: [M, H/128] FP32. Column-major: the same, strides (1, M rounded up to 4). "
            "Packed UE8M0: [M, H/512 rounded up] int32, strides (1, M rounded up to 4), four exponents in "
            "each, the lowest group in the lowest byte",
        ),
    ),
    traffic=(
        Traffic("x", False, "H", Fraction(2)),
        Traffic("residual", False, "H", Fraction(2)),
        Traffic("weight", False, "H", Fraction(2), once=True),
        Traffic("residual", True, "H", Fraction(2)),
        Traffic("y", True, "H", Fraction(2)),
        Traffic("q", True, "H", Fraction(1)),
        Traffic("scale", True, "H", Fraction(4, 128)),
    ),
    launches_removed=(
        "DP8 with DeepEP, FP8 checkpoint, decode: one quantisation at each of 78 attention inputs, 75 shared "
        "experts and 3 dense MLPs, 156 a step",
        "TP8 up to 2048 rows, Hopper, and Blackwell as SGLang chooses: the first layer's first alone, since "
        "all-reduce, add and norm are one kernel there already, which stays",
        "TP8 up to 2048 rows, Blackwell with `--flashinfer-allreduce-fusion-backend trtllm`: the same 156, "
        "by FlashInfer's all-reduce with FP8 output in place of that kernel and of this one",
    ),
    numerics=(
        "The norm is taken of the FP32 sum of x and residual, before its rounding to bf16; y is within one "
        "bf16 ulp of that norm in FP32.",
        "q and scale are the bits that SGLang's quantiser gives for this y, in every layout. Its fast "
        "division of 448 by amax is the same instruction on a GPU, and 448 times the reciprocal on a CPU.",
        "A group of zeros: q is 0, scale is 1e-10 / 448 (UE8M0: exponent 85).",
        "NaN in a row of x or residual: the row of y is NaN. Infinity there, or a sum of squares past FP32: "
        "y is NaN where the infinity was and zero elsewhere.",
        "NaN in y: its q is 0x7f, and it does not count in the group's amax.",
        "Infinity in y, from a weight that overflows: the group's scale is infinite, its finite values are 0 "
        "and its infinities NaN. UE8M0: the exponent is 255, which is NaN, and q means nothing.",
        "Above 2^126 a group's amax gives q of 0 in the FP32 layouts: SGLang's fast division ends there.",
    ),
    declines=MappingProxyType(
        {
            "dtype": "x, residual and weight are not all bfloat16",
            "hidden": "the hidden size is not a multiple of 128 from 128 to 8192",
            "columns": "a row of x or residual is not contiguous",
            "alignment": "a row of x, residual or weight does not start at a multiple of 16 bytes",
            "device": "the GPU is older than Hopper (compute capability 9.0)",
        }
    ),
    fallback="the same function in torch, counted and logged once for each reason",
    peers=(
        "SGLang's `fused_add_rmsnorm` and `sglang_per_token_group_quant_fp8`, two kernels",
        "FlashInfer 0.7.2's `fused_add_rmsnorm_fp8_block_quant`: column-major FP32 scales only, and only "
        "with a residual",
    ),
)

_INDEXER_TOPK = KernelCard(
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
    declines=MappingProxyType(
        {
            "dtype": "the logits are neither float32 nor bfloat16",
            "k": "k is over 2048",
            "columns": "a row of logits is not contiguous",
            "alignment": "a row of logits does not start at a multiple of 16 bytes",
            "device": "the GPU is older than Hopper (compute capability 9.0)",
        }
    ),
    fallback="SGLang's own kernel in the model, and the same selection in torch elsewhere, counted and "
    "logged once for each reason",
    peers=(
        "SGLang's `topk_transform_paged` of its top-k v2 kernel: atomic order, ties as they come past 128",
        "FlashInfer 0.7.2's `top_k_page_table_transform`, deterministic on request",
    ),
)

CARDS: Mapping[str, KernelCard] = MappingProxyType(
    {card.stem: card for card in (_ADD_RMSNORM_QUANT, _INDEXER_TOPK)}
)


def _size_text(part: Traffic) -> str:
    coefficient = part.bytes_per_value
    top = part.size if coefficient.numerator == 1 else f"{coefficient.numerator} {part.size}"
    text = top if coefficient.denominator == 1 else f"{top}/{coefficient.denominator}"
    return f"{text} once" if part.once else f"{text} a row"


def _traffic_lines(card: KernelCard, sizes: Mapping[str, int]) -> Iterable[str]:
    parts = [f"{p.tensor} {'written' if p.written else 'read'} {_size_text(p)}" for p in card.traffic]
    yield f"Bytes, each value once: {', '.join(parts)}."
    used = {part.size: sizes[part.size] for part in card.traffic}
    yield ""
    yield f"| M ({', '.join(f'{name} = {value}' for name, value in used.items())}) | bytes |"
    yield "|---|---|"
    for rows in EXAMPLE_ROWS:
        yield f"| {rows} | {card.bytes_moved(rows, sizes):,} |"


def _section(title: str, items: Iterable[str]) -> Iterable[str]:
    yield from ("", f"**{title}**", "")
    yield from (f"- {item}" for item in items)


def _card_lines(card: KernelCard, sizes: Mapping[str, int]) -> Iterable[str]:
    yield from (f"## {card.stem}", "", f"{card.summary}.", "")
    yield from _traffic_lines(card, sizes)
    yield ""
    yield (
        "Floor: those bytes at the measured copy bandwidth of the GPU, or an empty launch where that is "
        f"longer. Measured: {card.measured}."
    )
    yield from _section("Replaces", card.replaces)
    yield from _section("Tensors", (f"`{name}`: {text}" for name, text in card.tensors))
    yield from _section("Launches removed", card.launches_removed)
    yield from _section("Numerics", card.numerics)
    yield from _section("Declines when", card.declines.values())
    yield from ("", f"Then it runs {card.fallback}. Off switch: `{card.off_switch}`.")
    yield from _section("Peers", card.peers)
    yield from _section("Files", (f"{what}: `{path}`" for what, path in card.files().items()))
    yield ""


def markdown(sizes: Mapping[str, int]) -> str:
    """docs/kernels.md. sizes: GLM-5.3's value for each symbol of the cards, such as H."""
    lines = [
        "# Kernels",
        "",
        "One card for each CUDA kernel of this package; `glm53 kernels` prints them too. M is the number of",
        "rows (tokens). This file is written by `glm53 kernels --markdown`.",
        "",
    ]
    for card in CARDS.values():
        lines += _card_lines(card, sizes)
    return "\n".join(lines).rstrip() + "\n"
