"""Owns the checks of the draft's argmax: the full logits' winner, the bytes sent, and who declines."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.environ import envs
from sglang.srt.layers import logits_processor
from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.models import deepseek_nextn
from sglang.srt.speculative.spec_utils import fast_topk

from sglang_glm53.fusion import Fusion, log_once
from sglang_glm53.kernels import backend
from sglang_glm53.model.nextn import Glm53ForCausalLMNextN
from sglang_glm53.speculative import draft_argmax
from sglang_glm53.speculative.draft_argmax import DraftLogitsProcessor, best, winners
from tests.cpu.dispatch_runs import on_ranks
from tests.speculative import draft_runs
from tests.speculative.draft_runs import VOCAB, head, integers, metadata, width

ROWS = 10_000
GREEDY = {
    "speculative_eagle_topk": 1,
    "speculative_use_rejection_sampling": False,
    "speculative_token_map": None,
}
FEATURES = {
    "enable_fp32_lm_head": False,
    "enable_mis": False,
    "aux_hidden_state_capture": None,
    "return_aux_hidden_state_layer_ids": None,
}


def reference(rows, ranks):
    """torch.argmax of the full logits, NaN as minus infinity."""
    full = draft_runs.logits(rows, ranks)[:, :VOCAB]
    return torch.where(full.isnan(), -torch.inf, full).argmax(dim=1)


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_winner_is_the_full_logits_argmax(ranks, tmp_path):
    wanted = reference(ROWS, ranks)
    for ids, sizes in on_ranks(draft_runs.ids_of, ranks, tmp_path, ROWS):
        assert torch.equal(torch.tensor(ids), wanted)
        assert sizes == [[8 * ROWS, 8 * ROWS * ranks]]


def test_no_row_at_all(tmp_path):
    assert on_ranks(draft_runs.ids_of, 2, tmp_path, 0) == [[[], [[0, 0]]]] * 2


@pytest.mark.parametrize("ranks", [2, 4, 8, 32])
def test_a_rank_may_hold_only_padding(ranks):
    """32 ranks of 64 columns: half of them hold nothing of the vocabulary."""
    shards = draft_runs.logits(800, ranks).chunk(ranks, dim=1)
    pairs = torch.stack([best(shard, at * width(ranks), VOCAB) for at, shard in enumerate(shards)])
    assert (width(ranks) * (ranks - 1) >= VOCAB) == (ranks == 32)
    assert torch.equal(winners(pairs), reference(800, ranks))


def last_of_equals(pairs):
    """The fault: of equal ranks the highest wins."""
    return winners(pairs.flip(0))


def padding_included(shard, first, vocab_size):
    """The fault: padding takes part."""
    return best(shard, first, first + shard.shape[1])


@pytest.mark.parametrize(("find", "choose"), [(best, last_of_equals), (padding_included, winners)])
def test_a_fault_gives_other_winners(find, choose):
    shards = draft_runs.logits(800, 4).chunk(4, dim=1)
    pairs = torch.stack([find(shard, at * width(4), VOCAB) for at, shard in enumerate(shards)])
    assert not torch.equal(choose(pairs), reference(800, 4))


@pytest.fixture
def make(monkeypatch):
    """(ranks, group, scale=, cap=, parallel=, spec=) -> a processor of that many ranks, ours or stock's."""
    backend.settings.cache_clear()
    log_once.cache_clear()
    execution = SimpleNamespace(
        features=SimpleNamespace(**FEATURES), deterministic=SimpleNamespace(rl_on_policy_target=None)
    )
    monkeypatch.setattr(logits_processor, "get_exec", lambda: execution)
    monkeypatch.setattr(logits_processor, "_is_cpu", True)
    gatherer = lambda **_: lambda shard: shard.repeat(1, 2)  # noqa: E731
    monkeypatch.setattr(logits_processor.triton_symm_mem_ag, "MultimemAllGatherer", gatherer)

    def build(ranks, group=None, scale=None, cap=None, parallel=None, spec=None, cls=DraftLogitsProcessor):
        sizes = {
            "enable_dp_lm_head": False,
            "enable_tp_lm_head_all_to_all": False,
            "tp_size": ranks,
            "attn_tp_size": ranks,
            "attn_dp_size": 1,
            "tp_group": group or SimpleNamespace(cpu_group=None),
            "attn_tp_group": None,
        } | (parallel or {})
        for module in (logits_processor, draft_argmax):
            monkeypatch.setattr(module, "get_parallel", lambda: SimpleNamespace(**sizes))
        monkeypatch.setattr(draft_argmax, "get_spec", lambda: SimpleNamespace(**GREEDY | (spec or {})))
        return cls(SimpleNamespace(vocab_size=VOCAB, final_logit_softcapping=cap), logit_scale=scale)

    yield build
    monkeypatch.undo()
    backend.settings.cache_clear()


@pytest.mark.parametrize(("scale", "cap"), [(None, None), (-0.5, None), (0.25, 0.5)])
@pytest.mark.parametrize("lm_head", ["tp", "attention tp"])
def test_the_worker_finds_what_stocks_logits_give(lm_head, scale, cap, make, tmp_path):
    """Stock: one rank with the whole head. A cap of 0.5 makes ties of different logits."""

    def build(ranks, group):
        group.cpu_group = None
        over = {"enable_dp_lm_head": True, "tp_group": None, "attn_tp_group": group}
        return make(ranks, group, scale, cap, {} if lm_head == "tp" else over)

    found = on_ranks(draft_runs.processed, 2, tmp_path, 40, build)
    logits = make(1, scale=scale, cap=cap, cls=LogitsProcessor)._get_logits(
        integers((40, 16), 2), head(2), metadata()
    )
    wanted = logits.argmax(dim=1, keepdim=True)
    assert (logits == logits.gather(1, wanted)).sum(dim=1).max() > 1
    for given, sizes in found:
        given = torch.tensor(given)
        assert given.shape == logits.shape and given.dtype == logits.dtype
        assert sizes == [[8 * 40, 8 * 40 * 2]]
        assert torch.equal(given.argmax(dim=1, keepdim=True), wanted)
        probability, index = fast_topk(given.softmax(dim=-1), 1, dim=-1)
        assert torch.equal(index, wanted) and torch.equal(probability, torch.ones(40, 1))


class Alone:
    """A group whose other rank says that 7 is minus infinity."""

    rank_in_group, world_size, cpu_group = 0, 2, None

    def all_gather_into_tensor(self, output, input):
        other = torch.full((len(input), 8), -torch.inf, device=input.device)
        output.copy_(torch.cat([input, best(other, 7, VOCAB)]))


def test_a_graphs_buffer_is_used(make):
    buffer = torch.full((40, VOCAB), 3.0)
    given = make(2, Alone())._get_logits(
        integers((40, 16), 2), head(2, 0), metadata(next_token_logits_buffer=buffer)
    )
    assert given is buffer
    assert (buffer == 0.0).sum(dim=1).tolist() == [1] * 40 and buffer.min() == buffer.max() + draft_argmax.LOW
    spared = torch.full((40, VOCAB), 3.0)
    given = make(2, Alone())._get_logits(
        integers((40, 16), 2), head(2, 0), metadata(next_token_logits_buffer=spared), None, False
    )
    assert torch.equal(given, buffer) and (spared == 3.0).all()


def test_nothing_is_read_by_the_host(make):
    """Tensors without data: a CUDA graph could not hold what reads one."""
    lm_head = head(2, 0)
    lm_head.weight = lm_head.weight.to("meta")
    given = make(2, Alone())._get_logits(torch.empty(40, 16, device="meta"), lm_head, metadata())
    assert (given.device.type, given.shape, given.dtype) == ("meta", (40, VOCAB), torch.float32)


@contextmanager
def variable(name):
    if name:
        with getattr(envs, name).override(True):
            yield
    else:
        yield


DP = {"attn_dp_size": 2, "attn_tp_size": 1}
CASES = {
    "one rank": (1, {}, {}, "off", draft_argmax.NOT_GATHERED),
    "DP lm_head": (2, DP | {"enable_dp_lm_head": True}, {}, "off", draft_argmax.NOT_GATHERED),
    "attention DP": (2, DP, {}, "declined", draft_argmax.ALL_DP_RANKS),
    "topk 4": (
        2,
        {},
        {"speculative_eagle_topk": 4},
        "declined",
        "--speculative-eagle-topk 4 ranks several tokens, not 1",
    ),
    "sampled": (2, {}, {"speculative_use_rejection_sampling": True}, "declined", draft_argmax.SAMPLED),
    "token map": (2, {}, {"speculative_token_map": "map.pt"}, "declined", draft_argmax.TOKEN_MAP),
    "SGLANG_ENABLE_ASYNC_ASSERT": (
        2,
        {},
        {},
        "declined",
        "SGLANG_ENABLE_ASYNC_ASSERT examines the draft's logits",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_declined_before_any_collective(case, make):
    ranks, parallel, spec, state, reason = CASES[case]
    with variable(case if case.startswith("SGLANG") else None):
        processor = make(ranks, parallel=parallel, spec=spec)
    assert processor.record == Fusion("draft_argmax", state, reason)


def test_declined_calls_take_stocks_way_and_are_counted(make, caplog):
    caplog.set_level("INFO", "sglang_glm53")
    processor = make(2, spec={"speculative_eagle_topk": 4})
    shard = integers((3, 16), 2) @ head(2, 0).weight.T
    for _ in range(3):
        given = processor._get_logits(integers((3, 16), 2), head(2, 0), metadata())
        assert torch.equal(given, shard.repeat(1, 2)[:, :VOCAB])
    reason = "--speculative-eagle-topk 4 ranks several tokens, not 1"
    assert (processor.record.ran, processor.record.declined) == ({}, {reason: 3})
    assert [record.message for record in caplog.records] == [
        f"fusion draft_argmax leaves a call to SGLang: {reason}"
    ]


def test_logprobs_are_declined_by_the_call(make):
    processor = make(2, Alone())
    processor._get_logits(integers((3, 16), 2), head(2, 0), metadata(extend_return_logprob=True))
    processor._get_logits(integers((3, 16), 2), head(2, 0), metadata())
    assert (processor.record.state, processor.record.reason) == ("on", None)
    assert (processor.record.ran, processor.record.declined) == ({"torch": 1}, {draft_argmax.LOGPROBS: 1})


def test_off_by_the_environment(make, monkeypatch):
    monkeypatch.setenv("GLM53_DISABLE", "draft_argmax")
    processor = make(2)
    assert processor.record == Fusion.switched_off("draft_argmax")


def test_the_gather_is_stocks_again_after_a_failure(make):
    processor = make(2, Alone())
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        processor._get_logits(torch.ones(3, 5), head(2, 0), metadata())
    assert processor.do_tensor_parallel_all_gather


def test_the_draft_model_is_built_with_it(monkeypatch):
    built = []
    parent = Glm53ForCausalLMNextN.__mro__[1]
    monkeypatch.setattr(parent, "__init__", lambda *_: built.append(deepseek_nextn.LogitsProcessor))
    Glm53ForCausalLMNextN(None)
    assert built == [DraftLogitsProcessor]
    assert deepseek_nextn.LogitsProcessor is LogitsProcessor
