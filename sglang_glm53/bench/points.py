"""Owns the benchmark's points: the grid of a card, with the kernel and its peers at each shape.

How they are called is bench/<stem>.py's: ours, PEERS by the card's names, and check.
"""

from __future__ import annotations

import importlib
from functools import partial

import torch

from sglang_glm53.bench.measure import OURS, Point
from sglang_glm53.kernels.cards import KernelCard, Shape


def point(card: KernelCard, shape: Shape, device: torch.device) -> Point:
    """The kernel and its peers at one shape."""
    calls = importlib.import_module(f"sglang_glm53.bench.{card.stem}")
    contenders = {OURS: calls.ours, **calls.PEERS}
    prepared = {name: partial(prepare, shape, device) for name, prepare in contenders.items()}
    moved = card.bytes_moved(shape.rows, shape.sizes)
    return Point(card.stem, str(shape), moved, prepared, calls.check)


def points(card: KernelCard, quick: bool, device: torch.device) -> list[Point]:
    """The card's whole grid, or its quick part."""
    return [point(card, shape, device) for shape in card.grid if shape.quick or not quick]
