"""Scores and the selection against the shortest loops that say what they should be."""

import pytest
import torch

from sglang_glm53.cpu.attention import RowPlan
from sglang_glm53.cpu.indexer import _rows_by_count, _score, select
from sglang_glm53.kernels import indexer_topk as op


def select_one(scores: list[float], length: int, k: int) -> list[int]:
    best = sorted(range(length), key=lambda i: (-scores[i], i))[:k]
    return sorted(best) + [-1] * (k - len(best))


@pytest.mark.parametrize("k", [1, 7, 64])
def test_select_takes_the_largest_lowest_position_first(k):
    generator = torch.Generator().manual_seed(k)
    # Few distinct values, many exact zeros: the plateau of a ReLU sum.
    scores = torch.randint(-1, 3, (40, 90), generator=generator).clamp(min=0).float()
    lengths = torch.arange(1, 41) * 2
    expected = [select_one(row, n, k) for row, n in zip(scores.tolist(), lengths.tolist(), strict=True)]
    assert select(scores, lengths, k).tolist() == expected


@pytest.mark.parametrize(("disable", "how"), [("", "emulated"), ("indexer_topk", "torch")])
def test_the_switch_leaves_the_kernel_out(choose, monkeypatch, disable, how):
    asked = []
    monkeypatch.setattr(
        op, "indexer_topk", lambda *_, how: asked.append(how) or op.Selection(None, None, None)
    )
    choose("emulated", disable=disable)
    select(torch.zeros(1, 4), torch.tensor([4]), 2)
    assert asked == [how]


@pytest.mark.parametrize("length", [0, 1, 4, 5])
def test_select_up_to_k_is_the_identity(length):
    scores = torch.tensor([[0.5, -2.0, 3.0, 0.0, 9.0]])
    expected = list(range(length)) + [-1] * (8 - length)
    assert select(scores, torch.tensor([length]), 8).tolist() == [expected]


def test_score_is_the_weighted_relu_sum():
    generator = torch.Generator().manual_seed(0)
    query, keys = torch.randn(2, 3, 4, 8, generator=generator), torch.randn(2, 5, 8, generator=generator)
    weights = torch.randn(2, 3, 4, generator=generator)
    expected = torch.zeros(2, 3, 5)
    for b in range(2):
        for n in range(3):
            for p in range(5):
                for h in range(4):
                    expected[b, n, p] += weights[b, n, h] * max(0.0, float(query[b, n, h] @ keys[b, p]))
    torch.testing.assert_close(_score(query, keys, weights), expected)


def test_rows_of_equal_count_run_together():
    plan = RowPlan(torch.zeros(8, dtype=torch.int64), torch.zeros(8, dtype=torch.int64), (1, 3, 0, 1, 3))
    groups = {count: rows.tolist() for count, rows in _rows_by_count(plan).items()}
    assert groups == {1: [[0], [4]], 3: [[1, 2, 3], [5, 6, 7]]}
