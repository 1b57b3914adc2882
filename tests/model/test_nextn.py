"""The seed of the draft steps, its counters, and the status of speculative decoding."""

from types import SimpleNamespace

import pytest
import torch

from sglang_glm53.fusion import DRAFT_ARGMAX, Fusion
from sglang_glm53.model import nextn


@pytest.fixture(autouse=True)
def steps(monkeypatch):
    monkeypatch.setattr(nextn, "steps", type(nextn.steps)())
    return nextn.steps


def seed(*rows):
    return torch.tensor(rows, dtype=torch.int32)


def test_a_seed_is_taken_over_as_it_is(steps):
    given = seed([7, 9, -1], [3, -1, -1])
    assert nextn.checked_seed(given, 2) is given
    assert steps == {"reused": 1}


def test_a_step_without_a_seed_selects(steps):
    assert nextn.checked_seed(None, 2) is None
    assert steps == {"recomputed": 1}


@pytest.mark.parametrize(("requests", "kept"), [(2, False), (1, True)], ids=["a request", "padding"])
def test_a_row_that_selects_nothing_is_invalid(requests, kept, steps):
    assert (nextn.checked_seed(seed([7, 9, 1], [-1, -1, -1]), requests) is not None) is kept
    assert steps == ({"reused": 1} if kept else {"invalid": 1})


def test_a_gpus_seed_is_not_read(steps):
    """A meta tensor has no values: reading one raises, as it would make the host wait on a GPU."""
    given = torch.empty(2, 3, dtype=torch.int32, device="meta")
    assert nextn.checked_seed(given, 2) is given
    assert steps == {"reused": 1}


def test_the_draft_layer_is_built_with_the_check():
    assert nextn.DRAFT_CLASSES["DeepseekV2AttentionMLA"] is nextn.Glm53DraftAttention
    assert nextn.LAYER_CLASSES["DeepseekV2AttentionMLA"] is not nextn.Glm53DraftAttention


@pytest.mark.parametrize(
    ("worker", "reason"),
    [
        (None, "--speculative-algorithm is not given"),
        (SimpleNamespace(_draft_worker=None), "this process holds no MTP layer"),
        (SimpleNamespace(), "this process holds no MTP layer"),
    ],
    ids=["off", "another pipeline stage", "another algorithm"],
)
def test_a_process_that_drafts_nothing_says_why(worker, reason):
    scheduler = SimpleNamespace(draft_worker=worker)
    assert nextn.describe(scheduler) == {"state": "off", "reason": reason}
    assert nextn.fusion(scheduler) == Fusion(DRAFT_ARGMAX, "off", reason)


@pytest.mark.parametrize(("device", "invalid"), [("cpu", 1), ("meta", None)])
def test_the_status_reads_the_loaded_worker(device, invalid, steps):
    steps.update(reused=4, invalid=1)
    model = object.__new__(nextn.Glm53ForCausalLMNextN)
    torch.nn.Module.__init__(model)
    model.weight = torch.nn.Parameter(torch.empty(0, device=device))
    model.logits_processor = SimpleNamespace(record=Fusion(DRAFT_ARGMAX))
    draft = SimpleNamespace(
        draft_runner=SimpleNamespace(model=model),
        speculative_num_steps=3,
        seed_dsa_topk_from_draft_extend=True,
    )
    counts = SimpleNamespace(
        spec_total_num_accept_tokens=10,
        spec_num_accept_tokens=2,
        spec_total_num_forward_ct=5,
        spec_num_forward_ct=1,
    )
    scheduler = SimpleNamespace(draft_worker=SimpleNamespace(_draft_worker=draft), metrics_reporter=counts)
    assert nextn.describe(scheduler) == {
        "state": "on",
        "reason": None,
        "model": "sglang_glm53.model.nextn.Glm53ForCausalLMNextN",
        "steps": 3,
        "shared_selection": True,
        "draft_steps": {"reused": 4, "recomputed": 0, "invalid": invalid},
        "tokens": 12,
        "verified": 6,
    }
    assert nextn.fusion(scheduler) is model.logits_processor.record
