"""Owns the checks of twelve layers in turns: each shared layer sees its own micro-batch's own producer."""

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from sglang_glm53.geometry import Geometry
from sglang_glm53.overlap import carry
from sglang_glm53.overlap.carry import Form
from tests.configs import glm53
from tests.overlap import stand_ins
from tests.overlap.stand_ins import DRAFT_TOKENS, K, batch, marker, overlapping, run, split_in_two

# The overlap starts at the first MoE layer, in the middle of the index group of layer 2.
FIRST, LAYERS = 3, list(range(3, 15))
FULL = set(Geometry.from_config(glm53()).full_layers)
BEFORE = 2
BATCHES = {
    "decode": lambda: batch(ForwardMode.DECODE, [9, 70, 200, 3, 5]),
    "verify": lambda: batch(ForwardMode.TARGET_VERIFY, [9, 70, 200, 3]),
    "prefill": lambda: batch(ForwardMode.EXTEND, [6, 9, 8, 7], [6, 5, 8, 7]),
    "prefill cut in a request": lambda: batch(ForwardMode.EXTEND, [2, 30, 3], [2, 28, 3]),
}


def producers(log):
    """(layer, child) -> the marker that each shared layer saw in its real rows, which must be one."""
    found = {}
    for layer, child, selection in log.seen:
        start, end = log.children[child].tbo_parent_token_range
        values = set(selection[: end - start].flatten().tolist())
        assert len(values) == 1 and (layer, child) not in found
        found[layer, child] = values.pop()
    return found


def hand_over(parent, form=Form.SLOTS):
    """Give the children rows of a selection in which every row of child 0 holds 7 and of child 1 8."""
    rows, cut = parent.input_ids.shape[0], parent.tbo_children[0].tbo_parent_token_range[1]
    whole = torch.full((rows, K), 7, dtype=torch.int32)
    whole[cut:] = 8
    carry.split(parent, whole, form)


def expected(children):
    """Layer 3 to 5 take what was handed over, later ones the marker of the full layer before them."""
    wanted = {}
    for child in range(2):
        if children[child].input_ids.shape[0] == 0:
            continue
        for layer in set(LAYERS) - FULL:
            producer = max(full for full in FULL if full < layer)
            wanted[layer, child] = 7 + child if producer == BEFORE else marker(producer, child)
    return wanted


@pytest.mark.parametrize("name", BATCHES)
def test_each_shared_layer_sees_its_own_producers_selection(name, monkeypatch):
    with overlapping(monkeypatch):
        parent = BATCHES[name]()
        children = split_in_two(parent)
        assert all(child.input_ids.shape[0] for child in children)
        hand_over(parent)
        log = run(LAYERS, FULL, parent)
    assert producers(log) == expected(children)
    # Each full layer scans once for each micro-batch, and no shared layer ever.
    assert sorted(log.scans) == sorted((layer, child) for layer in set(LAYERS) & FULL for child in range(2))


def test_the_micro_batches_really_take_turns(monkeypatch):
    with overlapping(monkeypatch):
        parent = BATCHES["decode"]()
        split_in_two(parent)
        hand_over(parent)
        log = run(LAYERS, FULL, parent)
    # A shared carrier would pass when one micro-batch ran all its layers before the other began.
    assert [child for _, child in log.scans] == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize("empty", [0, 1])
def test_a_micro_batch_without_tokens(empty, monkeypatch):
    with overlapping(monkeypatch):
        parent = batch(ForwardMode.DECODE, [9, 70, 200])
        children = split_in_two(parent, at=0 if empty == 0 else 3)
        assert children[empty].input_ids.shape[0] == 0
        hand_over(parent)
        log = run(LAYERS, FULL, parent)
    assert producers(log) == expected(children)
    assert {child for _, child in log.scans} == {1 - empty}


def test_rows_that_pad_a_micro_batch_select_nothing(monkeypatch):
    """Two attention-TP ranks: three rows are padded to four."""
    with overlapping(monkeypatch, attn_tp_size=2):
        parent = batch(ForwardMode.DECODE, [9, 70, 200, 3, 8, 8])
        children = split_in_two(parent)
        assert [child.tbo_padded_len for child in children] == [4, 4]
        hand_over(parent)
        log = run([3], FULL, parent)
    assert [selection[3].tolist() for _, _, selection in log.seen] == [[-1] * K] * 2


def test_rows_of_one_request_stay_together_in_verification(monkeypatch):
    with overlapping(monkeypatch):
        parent = batch(ForwardMode.TARGET_VERIFY, [9, 70, 200])
        children = split_in_two(parent)
        whole = torch.arange(3 * DRAFT_TOKENS, dtype=torch.int32)[:, None].expand(-1, K).contiguous()
        carry.split(parent, whole, Form.SLOTS)
    assert carry.kept(children[0])[:, 0].tolist() == [0, 1, 2]
    assert carry.kept(children[1])[:, 0].tolist() == [3, 4, 5, 6, 7, 8]


def test_ragged_places_of_a_real_prefill(monkeypatch):
    """The second child of SGLang's own split finds the places that its own KV gives: request by request."""
    with overlapping(monkeypatch):
        parent = BATCHES["prefill"]()
        starts = parent.seq_lens.cumsum(0) - parent.seq_lens
        rows = torch.repeat_interleave(starts, parent.extend_seq_lens)
        children = split_in_two(parent)
        carry.split(parent, rows[:, None].expand(-1, K).int().contiguous(), Form.RAGGED)
    for child in children:
        own = torch.repeat_interleave(child.seq_lens.cumsum(0) - child.seq_lens, child.extend_seq_lens)
        assert carry.kept(child)[:, 0].tolist() == own.tolist()
    assert carry.kept(children[1])[0, 0] == 0


def test_ragged_places_where_a_request_is_cut_in_two(monkeypatch):
    with overlapping(monkeypatch):
        parent = BATCHES["prefill cut in a request"]()
        starts = parent.seq_lens.cumsum(0) - parent.seq_lens
        rows = torch.repeat_interleave(starts, parent.extend_seq_lens)
        children = split_in_two(parent)
        assert [child.batch_size for child in children] == [2, 2]
        carry.split(parent, rows[:, None].expand(-1, K).int().contiguous(), Form.RAGGED)
    for child in children:
        own = torch.repeat_interleave(child.seq_lens.cumsum(0) - child.seq_lens, child.extend_seq_lens)
        assert carry.kept(child)[:, 0].tolist() == own.tolist()


def test_a_dropped_carry_is_an_error(monkeypatch):
    with overlapping(monkeypatch):
        parent = BATCHES["decode"]()
        split_in_two(parent)
        carry.split(parent, None, Form.SLOTS)
        with pytest.raises(RuntimeError, match="layer 3 is shared, but no selection reached it"):
            run(LAYERS, FULL, parent)


def test_a_carry_that_both_micro_batches_share_would_be_seen(monkeypatch):
    """The mutation: one place for both; layer 4 of the first child then sees the second's selection."""
    place = {}
    monkeypatch.setattr(
        carry, "keep", lambda _, selection: None if selection is None else place.update(one=selection)
    )
    monkeypatch.setattr(carry, "kept", lambda _: place.get("one"))
    with overlapping(monkeypatch):
        parent = batch(ForwardMode.DECODE, [9, 70, 200, 3])
        children = split_in_two(parent)
        hand_over(parent)
        log = run(LAYERS, FULL, parent)
    wrong = {at for at, value in producers(log).items() if value != expected(children)[at]}
    assert {layer for layer, _ in wrong} >= {7, 8, 11, 12}


def test_the_stand_in_layers_have_the_operations_of_the_stages():
    made = stand_ins.Layer(3, False, True, stand_ins.Log([]))
    for stages in (stand_ins.strategy.PREFILL, stand_ins.strategy.DECODE):
        for name in [name for stage in stages.stages for name in stage]:
            owner = made if "." not in name else getattr(made, name.split(".")[0])
            assert callable(getattr(owner, name.split(".")[-1]))
