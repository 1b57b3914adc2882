"""Owns the form of a kernel card, the way to the cards, and their document.

A card stands in the kernel's own module, kernels/<stem>.py, as CARD: the one home of the kernel's facts.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from sglang_glm53 import kernels

# Whose figures the budgets are.
NVCC = "13.0.88"
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
class Budget:
    """Upper bounds, over the architectures, of what NVCC gives a kernel; stack and spills are zero."""

    registers: int
    shared_bytes: int


@dataclass(frozen=True)
class Shape:
    """A place of the benchmark's grid.

    rows: M. sizes: the value of each other symbol. form: what else tells calls apart, in the card's words.
    quick: whether `glm53 bench --quick` measures it too.
    """

    rows: int
    sizes: Mapping[str, int]
    form: str
    quick: bool = False

    def __str__(self) -> str:
        sizes = {"M": self.rows, **self.sizes}
        return " ".join([*(f"{name}={value}" for name, value in sizes.items()), self.form]).rstrip()


@dataclass(frozen=True)
class KernelCard:
    """One kernel's contract. The document and `glm53 kernels` print it, tests hold the kernel to it.

    stem: the name of the .cuh, the op, the reference and the test. fusions: those that call it.
    replaces: the upstream calls, in order, each `name`, file and caller of SGLang 0.5.23. tensors: name and
    what it must be. sizes: GLM-5.3's value for each symbol of the traffic.
    declines: every reason for which the op runs its fallback instead, by a short key.
    peers: what the benchmark measures beside it, by the name there. forms: the kernels that the .cuh
    instantiates, each with its budget. grid: the benchmark's shapes.
    """

    stem: str
    fusions: tuple[str, ...]
    summary: str
    replaces: tuple[str, ...]
    tensors: tuple[tuple[str, str], ...]
    traffic: tuple[Traffic, ...]
    sizes: Mapping[str, int]
    launches_removed: tuple[str, ...]
    numerics: tuple[str, ...]
    declines: Mapping[str, str]
    fallback: str
    peers: Mapping[str, str]
    forms: Mapping[str, Budget]
    grid: tuple[Shape, ...]
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
        stem = self.stem
        return {
            "kernel": f"csrc/kernels/{stem}.cuh",
            "binding": f"csrc/kernels/{stem}_ffi.h",
            "op": f"sglang_glm53/kernels/{stem}.py",
            "reference": f"sglang_glm53/testing/reference/{stem}.py",
            "cases": f"tests/kernels/{stem}_cases.py",
            "tests": f"tests/kernels/test_{stem}.py",
            "benchmark": f"sglang_glm53/bench/{stem}.py",
            "benchmark's tests": f"tests/bench/test_{stem}.py",
        }


@functools.cache
def cards() -> Mapping[str, KernelCard]:
    """Every kernel's card by its stem, in the order of the names. It imports the kernels, and so torch."""
    names = [found.name for found in pkgutil.iter_modules(kernels.__path__)]
    modules = [importlib.import_module(f"{kernels.__name__}.{name}") for name in names]
    found = [module.CARD for module in modules if hasattr(module, "CARD")]
    return MappingProxyType({card.stem: card for card in found})


def _size_text(part: Traffic) -> str:
    coefficient = part.bytes_per_value
    top = part.size if coefficient.numerator == 1 else f"{coefficient.numerator} {part.size}"
    text = top if coefficient.denominator == 1 else f"{top}/{coefficient.denominator}"
    return f"{text} once" if part.once else f"{text} a row"


def _traffic_lines(card: KernelCard) -> Iterable[str]:
    parts = [f"{p.tensor} {'written' if p.written else 'read'} {_size_text(p)}" for p in card.traffic]
    yield f"Bytes, each value once: {', '.join(parts)}."
    yield ""
    yield f"| M ({', '.join(f'{name} = {value}' for name, value in card.sizes.items())}) | bytes |"
    yield "|---|---|"
    for rows in EXAMPLE_ROWS:
        yield f"| {rows} | {card.bytes_moved(rows, card.sizes):,} |"


def _section(title: str, items: Iterable[str]) -> Iterable[str]:
    yield from ("", f"**{title}**", "")
    yield from (f"- {item}" for item in items)


def _form_lines(card: KernelCard) -> Iterable[str]:
    yield from ("", f"| launch form, nvcc {NVCC} at most | registers | shared bytes |", "|---|---|---|")
    for name, budget in card.forms.items():
        yield f"| `{name}` | {budget.registers} | {budget.shared_bytes} |"


def _card_lines(card: KernelCard) -> Iterable[str]:
    yield from (f"## {card.stem}", "", f"{card.summary}.", "")
    yield from _traffic_lines(card)
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
    yield from _section("Peers", (f"{name}: {text}" for name, text in card.peers.items()))
    yield from (
        "",
        f"`glm53 bench --kernel {card.stem}` measures it beside them at {len(card.grid)} shapes, from "
        f"{card.grid[0]} to {card.grid[-1]}.",
    )
    yield from _form_lines(card)
    yield from _section("Files", (f"{what}: `{path}`" for what, path in card.files().items()))
    yield ""


def markdown() -> str:
    """docs/kernels.md."""
    lines = [
        "# Kernels",
        "",
        "One card for each CUDA kernel of this package; `glm53 kernels` prints them too. M is the number of",
        "rows (tokens). This file is written by `glm53 kernels --markdown`.",
        "",
    ]
    for card in cards().values():
        lines += _card_lines(card)
    return "\n".join(lines).rstrip() + "\n"
