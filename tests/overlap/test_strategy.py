"""Owns the checks of the stages: SGLang's operations in their order, where they start, what is counted."""

import inspect
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.batch_overlap import operations_strategy
from sglang.srt.batch_overlap.operations import YieldOperation
from sglang.srt.layers.moe import utils as moe_utils
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.models.deepseek_v2 import DeepseekV2MoE

from sglang_glm53.model.model import Glm53DecoderLayer
from sglang_glm53.model.moe import Glm53MoE
from sglang_glm53.overlap import strategy


class Part:
    """A layer, attention or MoE whose every operation is its own name."""

    def __init__(self, prefix=""):
        self.prefix = prefix

    def __getattr__(self, name):
        if not name.startswith("op_"):
            raise AttributeError(name)
        return self.prefix + name


def layer(overlaps=True):
    made = Part()
    made.self_attn, made.mlp = Part("self_attn."), Part("mlp.")
    made.is_layer_sparse, made.overlaps_with_carry = True, overlaps
    return made


def names(operations):
    return ["yield" if isinstance(operation, YieldOperation) else operation for operation in operations]


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of 132 SMs, 20 of them DeepEP's."""
    properties = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: properties)
    config = SimpleNamespace(get_instance=lambda: SimpleNamespace(num_sms=20))
    for module in (strategy, operations_strategy):
        monkeypatch.setattr(module, "DeepEPConfig", config)


@pytest.mark.parametrize("mode", [ForwardMode.EXTEND, ForwardMode.DECODE, ForwardMode.TARGET_VERIFY])
def test_a_layers_stages_are_sglangs_own(mode, gpu):
    ours = strategy.init_new_tbo(None, [layer()], mode)
    stock = operations_strategy._compute_moe_deepseek_layer_operations_strategy_tbo(layer(), mode)
    assert names(ours.operations) == names(stock.operations)
    assert ours.tbo_delta_stages == stock.tbo_delta_stages
    assert ours.deep_gemm_num_sms == stock.deep_gemm_num_sms == (112 if mode is ForwardMode.EXTEND else None)


def test_neighbouring_layers_share_a_stage():
    found = names(strategy.init_new_tbo(None, [layer(), layer()], ForwardMode.DECODE).operations)
    each = names(strategy.init_new_tbo(None, [layer()], ForwardMode.DECODE).operations)
    assert found == each + each
    assert found.count("yield") == 2 * (len(strategy.DECODE.stages) - 1)


def test_without_a_gpu_no_sms_are_kept_back():
    assert strategy.init_new_tbo(None, [layer()], ForwardMode.EXTEND).deep_gemm_num_sms is None


@pytest.mark.parametrize("mode", [ForwardMode.MIXED, ForwardMode.IDLE, ForwardMode.DRAFT_EXTEND_V2])
def test_other_modes_are_an_error(mode):
    with pytest.raises(NotImplementedError, match=f"does not run {mode.name} batches"):
        strategy.init_new_tbo(None, [layer()], mode)


def test_another_models_layers_keep_sglangs_stages():
    listed = [layer(overlaps=False)]
    found = strategy.init_new_tbo(lambda *call: call, listed, ForwardMode.DECODE)
    assert found == (listed, ForwardMode.DECODE)


def test_sglang_dispatches_on_the_name_of_the_layers_class():
    """The order is hooked, but the MoE wrapper and the CUDA graph runner still know the stock name."""
    assert Glm53DecoderLayer.__name__ == "DeepseekV2DecoderLayer"
    assert Glm53DecoderLayer.overlaps_with_carry


def test_single_batch_overlap_is_left_to_sglang():
    """Its stages are inside SGLang's MoE, which is inherited; on Hopper SGLang refuses it when it starts."""
    assert Glm53MoE.forward_deepep is DeepseekV2MoE.forward_deepep
    start = inspect.getsource(moe_utils.initialize_moe_config)
    assert "torch.cuda.get_device_capability()[0] == 9" in start
    assert "SBO (single batch overlap) is not supported on SM90 GPUs" in start


@pytest.mark.parametrize(
    ("first_layer", "dense", "start"), [(0, 3, 3), (0, 0, 1), (1, 3, 3), (3, 3, 4), (40, 3, 41)]
)
def test_where_the_overlap_starts(first_layer, dense, start):
    assert strategy.start_layer(first_layer, dense) == start


@pytest.fixture
def counters(monkeypatch):
    for name in ("overlapped", "alone"):
        monkeypatch.setattr(strategy, name, type(strategy.alone)())
    monkeypatch.setattr(strategy, "_under_way", 0)
    monkeypatch.setattr(strategy, "_most_under_way", 0)
    monkeypatch.setattr(strategy, "is_tbo_enabled", lambda: True)


def batch(mode, can_run_tbo):
    return SimpleNamespace(forward_mode=mode, can_run_tbo=can_run_tbo)


def test_what_is_counted(counters):
    for mode, split in [(ForwardMode.EXTEND, True), (ForwardMode.DECODE, True), (ForwardMode.DECODE, False)]:
        strategy.count(batch(mode, split))
    for change in (strategy.dispatched, strategy.dispatched, strategy.arrived, strategy.dispatched):
        change()
    assert strategy.describe(3) == {
        "state": "on",
        "reason": None,
        "note": "SGLang captures no breakable prefill graphs with it",
        "first_layer": 3,
        "overlapped": {"EXTEND": 1, "DECODE": 1},
        "alone": {"DECODE": 1},
        "most_dispatches_under_way": 2,
    }


def test_without_the_flag_nothing_is_counted(counters, monkeypatch):
    monkeypatch.setattr(strategy, "is_tbo_enabled", lambda: False)
    strategy.count(batch(ForwardMode.DECODE, False))
    found = strategy.describe(3)
    assert (found["state"], found["reason"]) == ("off", "--enable-two-batch-overlap is not given")
    assert (found["first_layer"], found["note"], found["alone"]) == (None, None, {})
