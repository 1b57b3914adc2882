"""Owns the checks of the benchmark's points: a card's grid, and the calls that a kernel's module offers."""

import importlib

import pytest

from sglang_glm53.bench.measure import OURS
from sglang_glm53.bench.points import points
from sglang_glm53.kernels.cards import cards
from tests.bench.fake_bench import CPU

every_card = pytest.mark.parametrize("card", cards().values(), ids=lambda card: card.stem)


@every_card
def test_the_peers_are_the_cards(card):
    assert list(importlib.import_module(f"sglang_glm53.bench.{card.stem}").PEERS) == list(card.peers)


@every_card
def test_a_point_for_each_shape(card):
    whole, quick = points(card, False, CPU), points(card, True, CPU)
    assert [point.shape for point in whole] == list(map(str, card.grid))
    assert len({point.shape for point in whole}) == len(whole)
    assert set() < {point.shape for point in quick} < {point.shape for point in whole}
    for point, shape in zip(whole, card.grid, strict=True):
        assert point.kernel == card.stem
        assert point.bytes_moved == card.bytes_moved(shape.rows, shape.sizes) > 0
        assert list(point.contenders) == [OURS, *card.peers]
