"""Owns the checks of the model's part in two-batch overlap: its start, the hand-over, a stage's exit."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.models import deepseek_v2

from sglang_glm53.model import model as module
from sglang_glm53.model.model import Glm53DecoderLayer, Glm53Model
from sglang_glm53.overlap import carry, strategy
from sglang_glm53.overlap.carry import Form

K = 3


class StockModel(torch.nn.Module):
    """What Glm53Model.__init__ finds after SGLang's: a stage's layers, dense ones first."""

    def __init__(self, start, end, dense, layers=12):
        torch.nn.Module.__init__(self)
        self.config = SimpleNamespace(first_k_dense_replace=dense, index_topk=K)
        self.start_layer, self.end_layer = start, end
        self.first_k_dense_replace = dense
        self.pp_group = SimpleNamespace(is_last_rank=end == layers)
        self.layers = [SimpleNamespace(hands_over=False, self_attn=SimpleNamespace()) for _ in range(layers)]


@pytest.fixture
def build(monkeypatch):
    """build(start, end, dense): a stage of twelve layers."""

    def made(start, end, dense=3):
        monkeypatch.setattr(deepseek_v2.DeepseekV2Model, "__init__", StockModel.__init__)
        return Glm53Model(start, end, dense)

    return made


def handing_over(model):
    return [number for number, layer in enumerate(model.layers) if layer.hands_over]


@pytest.mark.parametrize(
    ("stage", "first", "handing"),
    [
        ((0, 12), 3, [2]),
        ((0, 5), 3, [2]),
        # All dense, then one layer past them: nothing to overlap.
        ((0, 3), 3, []),
        ((3, 4), 4, []),
        # A later stage runs its first layer whole, in the middle of an index group or not.
        ((3, 12), 4, [3]),
        ((5, 12), 6, [5]),
    ],
)
def test_where_a_stages_overlap_starts(build, stage, first, handing):
    model = build(*stage)
    assert model.first_k_dense_replace == first
    assert handing_over(model) == handing


def decoder_layer(hands_over):
    layer = Glm53DecoderLayer.__new__(Glm53DecoderLayer)
    torch.nn.Module.__init__(layer)
    layer.hands_over, layer.layer_id = hands_over, 2
    return layer


@pytest.fixture
def splits(monkeypatch):
    """The calls of carry.split."""
    calls = []
    monkeypatch.setattr(carry, "split", lambda *call: calls.append(call))
    monkeypatch.setattr(
        deepseek_v2.DeepseekV2DecoderLayer, "forward", lambda self, *args: ("hidden", "selection")
    )
    metadata = SimpleNamespace(topk_transform_method=2, force_unfused_topk=False)
    backend = SimpleNamespace(get_indexer_metadata=lambda layer_id, batch: metadata)
    monkeypatch.setattr(module, "get_attn_backend", lambda: backend)
    return calls


def batch(can_run_tbo=True, mode=ForwardMode.EXTEND):
    return SimpleNamespace(can_run_tbo=can_run_tbo, forward_mode=mode)


def test_the_last_whole_layer_hands_its_selection_over(splits):
    parent = batch()
    assert decoder_layer(True).forward("positions", "hidden", parent, "zero") == ("hidden", "selection")
    assert splits == [(parent, "selection", Form.RAGGED)]


@pytest.mark.parametrize(("hands_over", "can_run_tbo"), [(False, True), (True, False)])
def test_no_other_layer_and_no_whole_batch_hands_over(splits, hands_over, can_run_tbo):
    decoder_layer(hands_over).forward("positions", "hidden", batch(can_run_tbo), "zero")
    assert splits == []


def test_an_idle_rank_has_no_metadata_to_ask(splits, monkeypatch):
    monkeypatch.setattr(module, "get_attn_backend", lambda: pytest.fail("asked an idle rank's backend"))
    parent = batch(mode=ForwardMode.IDLE)
    decoder_layer(True).forward("positions", "hidden", parent, "zero")
    assert splits == [(parent, "selection", Form.SLOTS)]


@pytest.fixture
def stage(build, monkeypatch):
    """stage(start, end, next_is_shared): a stage whose forward gives proxy tensors, and what was asked."""
    monkeypatch.setattr(strategy, "is_tbo_enabled", lambda: True)
    monkeypatch.setattr(deepseek_v2.DeepseekV2Model, "_dsa_forward_uses_topk", lambda self: True)

    def made(start, end, next_is_shared):
        model = build(start, end)
        last = model.layers[end - 1]
        last.self_attn.next_skip_topk, last._form = next_is_shared, lambda parent: Form.SLOTS

        def forward(self, *args):
            self.upstream_hands_on = self._dsa_forward_uses_topk()
            return SimpleNamespace(tensors={"topk_indices": "upstream's"})

        monkeypatch.setattr(deepseek_v2.DeepseekV2Model, "forward", forward)
        return model

    return made


def split_parent():
    """Five rows, cut after two; each child keeps a selection of its own."""
    children = [SimpleNamespace(tbo_parent_token_range=rows) for rows in ((0, 2), (2, 5))]
    for number, (child, rows) in enumerate(zip(children, (2, 4), strict=True)):
        carry.keep(child, torch.full((rows, K), 10 + number, dtype=torch.int32))
    return SimpleNamespace(
        can_run_tbo=True,
        forward_mode=ForwardMode.DECODE,
        tbo_children=children,
        tbo_split_seq_index=2,
        input_ids=torch.zeros(5),
    )


@pytest.mark.parametrize("start", [0, 3])
def test_a_stage_that_ends_inside_a_group_hands_on_the_merged_selection(stage, start):
    model = stage(start, 8, next_is_shared=True)
    output = model.forward(None, None, split_parent())
    assert output.tensors["topk_indices"].tolist() == [[10] * K] * 2 + [[11] * K] * 3
    assert not model.upstream_hands_on


def test_a_stage_before_a_full_layer_hands_nothing_on(stage):
    output = stage(0, 6, next_is_shared=False).forward(None, None, split_parent())
    assert output.tensors["topk_indices"] == "upstream's"


@pytest.mark.parametrize("case", ["whole batch", "last stage", "nothing overlaps"])
def test_upstream_hands_on_what_it_knows(stage, case):
    model = stage(*{"last stage": (3, 12), "nothing overlaps": (0, 3)}.get(case, (0, 8)), next_is_shared=True)
    parent = split_parent()
    parent.can_run_tbo = case != "whole batch"
    assert model.forward(None, None, parent).tensors["topk_indices"] == "upstream's"
    assert model.upstream_hands_on
