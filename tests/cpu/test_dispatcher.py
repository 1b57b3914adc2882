"""Owns the checks of the gloo dispatcher: the experts' sums between real processes, and its phases."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.layers.moe.token_dispatcher.deepep import DeepEPDispatcher

from sglang_glm53.cpu import dispatcher as module
from sglang_glm53.cpu.dispatcher import GlooDispatcher
from sglang_glm53.cpu.moe import routed_experts
from tests.cpu import dispatch_runs
from tests.cpu.dispatch_runs import HIDDEN, TOPK, on_ranks, tokens, weights


def expected(rank, rows, experts, seed=0):
    """What a rank's rows give with every expert at hand."""
    hidden, routing = tokens(rank, rows, experts, seed)
    return routed_experts(hidden, routing.topk_weights, routing.topk_ids, *weights(experts))


@pytest.mark.parametrize("rows", [(5, 3), (0, 7), (4, 0), (0, 0)], ids=str)
def test_two_ranks_give_what_one_would(rows, tmp_path):
    found = on_ranks(dispatch_runs.one_batch, 2, tmp_path, rows, 6)
    for rank, count in enumerate(rows):
        torch.testing.assert_close(torch.tensor(found[rank]).view(count, HIDDEN), expected(rank, count, 6))


def test_three_ranks(tmp_path):
    found = on_ranks(dispatch_runs.one_batch, 3, tmp_path, (4, 1, 6), 6)
    for rank, count in enumerate((4, 1, 6)):
        torch.testing.assert_close(torch.tensor(found[rank]), expected(rank, count, 6))


def test_two_micro_batches_under_way_at_once(tmp_path):
    found = on_ranks(dispatch_runs.two_batches, 2, tmp_path, (4, 3), 6)
    for rank, count in enumerate((4, 3)):
        for seed in range(2):
            torch.testing.assert_close(torch.tensor(found[rank][seed]), expected(rank, count, 6, seed))


@pytest.fixture
def alone(monkeypatch):
    """A dispatcher of one rank, whose transfers are copies."""
    monkeypatch.setattr(module.dist, "get_rank", lambda group: 0)
    monkeypatch.setattr(module.dist, "get_world_size", lambda group: 1)

    def copy(received, sent, *sizes, group, async_op=False):
        received.copy_(sent)
        return SimpleNamespace(wait=lambda: None)

    monkeypatch.setattr(module.dist, "all_to_all_single", copy)
    return GlooDispatcher(group=None, router_topk=TOPK, num_experts=4, num_local_experts=4)


def test_ids_are_local_and_minus_one_is_nobodys(alone):
    routing = SimpleNamespace(
        topk_ids=torch.tensor([[3, 0], [-1, -1], [2, -1]]), topk_weights=torch.ones(3, TOPK)
    )
    dispatched = alone.dispatch(hidden_states=torch.eye(3), topk_output=routing)
    assert dispatched.topk_output.topk_ids.tolist() == [[3, 0], [2, -1]]
    assert torch.equal(dispatched.hidden_states, torch.eye(3)[[0, 2]])
    combined = alone.combine(combine_input=SimpleNamespace(hidden_states=torch.eye(3)[[0, 2]] * 2))
    assert torch.equal(combined, torch.diag(torch.tensor([2.0, 0.0, 2.0])))


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        (["dispatch_b"], "dispatch_b follows combine_b, not dispatch_a"),
        (["dispatch_a", "dispatch_a"], "dispatch_a follows dispatch_a, not combine_b"),
        (["dispatch_a", "combine_a"], "combine_a follows dispatch_a, not dispatch_b"),
        (["dispatch_a", "dispatch_b", "combine_b"], "combine_b follows dispatch_b, not combine_a"),
    ],
)
def test_phases_out_of_order(alone, calls, message):
    routing = SimpleNamespace(topk_ids=torch.tensor([[0, 1]]), topk_weights=torch.ones(1, TOPK))
    arguments = {
        "dispatch_a": {"hidden_states": torch.ones(1, 4), "topk_output": routing},
        "combine_a": {"combine_input": SimpleNamespace(hidden_states=torch.ones(1, 4))},
    }
    with pytest.raises(RuntimeError, match=message):
        for call in calls:
            getattr(alone, call)(**arguments.get(call, {}))


def test_experts_that_do_not_divide(alone):
    with pytest.raises(ValueError, match="5 experts do not divide over 1 ranks: set --ep-size to a divisor"):
        GlooDispatcher(group=None, router_topk=2, num_experts=5, num_local_experts=2)


def test_it_has_the_phases_of_deepeps_dispatcher():
    for name in ("dispatch", "dispatch_a", "dispatch_b", "combine", "combine_a", "combine_b"):
        assert hasattr(DeepEPDispatcher, name) and hasattr(GlooDispatcher, name)


def test_single_batch_overlap_is_refused(alone):
    with pytest.raises(NotImplementedError, match="runs no single-batch overlap"):
        alone.register_deepep_dispatch_hook(print)
