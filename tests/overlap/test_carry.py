"""Owns the checks of the carry: the rows that each micro-batch gets, and what a pipeline stage hands on."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.environ import envs
from sglang.srt.layers.attention.dsa.dsa_topk_backend import TopkTransformMethod

from sglang_glm53.overlap import carry
from sglang_glm53.overlap.carry import Form

K = 3


def batch(rows, cut, *, padded=(0, 0), seq_lens=(), first=0):
    """A parent of `rows` rows, split after `cut` rows and before request `first`."""
    ranges = ((0, cut), (cut, rows))
    children = [
        SimpleNamespace(tbo_parent_token_range=(start, end), tbo_padded_len=end - start + extra)
        for (start, end), extra in zip(ranges, padded, strict=True)
    ]
    return SimpleNamespace(
        tbo_children=children,
        tbo_split_seq_index=first,
        seq_lens_cpu=torch.tensor(seq_lens, dtype=torch.int64),
        input_ids=torch.zeros(rows, dtype=torch.int64),
    )


def selections(parent):
    return [None if (kept := carry.kept(child)) is None else kept.tolist() for child in parent.tbo_children]


@pytest.mark.parametrize("form", [Form.SLOTS, Form.POSITIONS])
def test_slots_and_positions_are_cut_by_rows(form):
    parent, whole = batch(5, 2, seq_lens=(7, 9), first=1), torch.arange(15, dtype=torch.int32).view(5, K)
    carry.split(parent, whole, form)
    assert selections(parent) == [whole[:2].tolist(), whole[2:].tolist()]


def test_ragged_places_of_the_second_micro_batch_count_from_its_own_first_request():
    """Requests of 6, 4 and 8 tokens, cached ones included; the second micro-batch begins with the third."""
    parent = batch(4, 2, seq_lens=(6, 4, 8), first=2)
    whole = torch.tensor([[0, 5, -1], [6, 9, -1], [10, 12, 17], [10, -1, -1]], dtype=torch.int32)
    carry.split(parent, whole, Form.RAGGED)
    assert selections(parent) == [[[0, 5, -1], [6, 9, -1]], [[0, 2, 7], [0, -1, -1]]]


def test_a_request_that_is_cut_in_two_stays_whole_in_the_second_micro_batchs_kv():
    """One request of 8 tokens after one of 3: rows 3 and 4 are its last, and its KV begins at 0 again."""
    parent = batch(5, 3, seq_lens=(3, 8), first=1)
    whole = torch.tensor([[0, -1], [3, -1], [3, 4], [3, 9], [8, 10]], dtype=torch.int32)
    carry.split(parent, whole, Form.RAGGED)
    assert selections(parent) == [whole[:3].tolist(), [[0, 6], [5, 7]]]


@pytest.mark.parametrize("form", list(Form))
def test_rows_that_pad_select_nothing(form):
    parent, whole = batch(3, 1, padded=(1, 2), seq_lens=(4, 4), first=1), torch.full((3, K), 4).int()
    carry.split(parent, whole, form)
    nothing = [-1] * K
    second = [[4 - 4 * (form is Form.RAGGED)] * K] * 2
    assert selections(parent) == [[[4] * K, nothing], [*second, nothing, nothing]]


def test_a_micro_batch_without_tokens():
    parent, whole = batch(2, 0, seq_lens=(5, 6), first=0), torch.tensor([[1, 2, 3], [4, 5, 6]]).int()
    carry.split(parent, whole, Form.RAGGED)
    assert selections(parent) == [[], whole.tolist()]
    assert carry.kept(parent.tbo_children[0]).shape == (0, K)


def test_a_selection_that_stops_before_the_padding_of_its_batch():
    """An idle rank's padded rows, or a backend that selects for the real rows alone."""
    parent, whole = batch(6, 3, seq_lens=(4,) * 6, first=3), torch.full((4, K), 2).int()
    carry.split(parent, whole, Form.SLOTS)
    assert selections(parent) == [[[2] * K] * 3, [[2] * K, [-1] * K, [-1] * K]]


def test_without_a_selection_the_children_have_none():
    """Up to the threshold of dense prefill no layer selects; an older forward's selection must not stay."""
    parent = batch(4, 2)
    for child in parent.tbo_children:
        carry.keep(child, torch.zeros(2, K))
    carry.split(parent, None, Form.RAGGED)
    assert selections(parent) == [None, None]


def test_a_batch_that_was_never_given_one():
    assert carry.kept(SimpleNamespace()) is None


@pytest.mark.parametrize("form", list(Form))
def test_merging_undoes_the_split(form):
    parent = batch(5, 2, padded=(1, 3), seq_lens=(6, 8), first=1)
    whole = torch.tensor([[0, 5, -1], [1, 2, 3], [6, 13, -1], [7, 8, 9], [-1, -1, -1]], dtype=torch.int32)
    carry.split(parent, whole, form)
    assert carry.merge(parent, K, form).tolist() == whole.tolist()


def test_merging_leaves_the_rows_of_a_child_without_a_selection_empty():
    parent = batch(3, 1, seq_lens=(4, 4), first=1)
    carry.keep(parent.tbo_children[0], None)
    carry.keep(parent.tbo_children[1], torch.full((2, K), 9).int())
    assert carry.merge(parent, K, Form.SLOTS).tolist() == [[-1] * K, [9] * K, [9] * K]


@pytest.mark.parametrize(
    ("method", "unfused", "fuse", "form"),
    [
        (TopkTransformMethod.PAGED, False, True, Form.SLOTS),
        (TopkTransformMethod.RAGGED, False, True, Form.RAGGED),
        (TopkTransformMethod.RAGGED, True, True, Form.POSITIONS),
        (TopkTransformMethod.PAGED, False, False, Form.POSITIONS),
    ],
)
def test_the_form_follows_sglangs_choice(method, unfused, fuse, form):
    metadata = SimpleNamespace(topk_transform_method=method, force_unfused_topk=unfused)
    with envs.SGLANG_DSA_FUSE_TOPK.override(fuse):
        assert carry.form_of(metadata) is form
