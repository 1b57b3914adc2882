"""Owns the checks of the selection: what SGLang's call becomes, and what is left to SGLang."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.environ import envs
from sglang.srt.layers.attention.dsa.dsa_topk_backend import DSATopKBackend, TopkTransformMethod

from sglang_glm53.fusion import INDEXER_TOPK, Fusion, log_once
from sglang_glm53.kernels import backend
from sglang_glm53.kernels import indexer_topk as op
from sglang_glm53.testing.reference import indexer_topk as reference
from sglang_glm53.topk import selection

K, PAGE_SIZE, WIDTH = 8, 4, 64
STOCK = torch.full((1, 1), 7)
LENGTHS = torch.tensor([WIDTH, 5, 0, -1, 40, 9], dtype=torch.int32)
ROWS = len(LENGTHS)
PAGED, RAGGED = TopkTransformMethod.PAGED, TopkTransformMethod.RAGGED


@pytest.fixture(autouse=True)
def serving(monkeypatch):
    monkeypatch.setattr(selection, "_serving", True)
    monkeypatch.setattr(selection, "record", Fusion(INDEXER_TOPK))
    backend.settings.cache_clear()
    yield
    monkeypatch.undo()
    backend.settings.cache_clear()


def logits(seed=0, columns=WIDTH):
    return torch.randn(ROWS, columns, generator=torch.Generator().manual_seed(seed))


def metadata(requests=ROWS, **fields):
    order = torch.randperm(requests * WIDTH // PAGE_SIZE, generator=torch.Generator().manual_seed(1))
    table = order.to(torch.int32).view(requests, -1)
    given = {"real_page_table": table, "page_size": PAGE_SIZE, "token_to_batch_idx": None}
    return SimpleNamespace(**given | fields)


def call(method, attn_metadata, topk_backend=DSATopKBackend.SGL_KERNEL, **named):
    """As SGLang calls it."""
    arguments = {"logits": logits(), "lengths": LENGTHS, "topk": K} | named
    return selection.topk_transform(
        lambda *_, **__: STOCK,
        topk_backend,
        topk_transform_method=method,
        attn_metadata=attn_metadata,
        **arguments,
    )


def positions(scores, starts=None):
    """The selected positions of each row, a list a row."""
    starts = [0] * ROWS if starts is None else starts.tolist()
    rows = zip(scores, starts, LENGTHS.clamp(min=0).tolist(), strict=True)
    return [reference.positions(row[start : start + length], K).tolist() for row, start, length in rows]


def padded(rows):
    return [row + [-1] * (K - len(row)) for row in rows]


def slots(table, rows, lines):
    return padded(
        [
            [int(table[line, at // PAGE_SIZE]) * PAGE_SIZE + at % PAGE_SIZE for at in row]
            for row, line in zip(rows, lines, strict=True)
        ]
    )


def test_decode_reads_a_line_of_the_page_table_for_each_row():
    given = metadata()
    found = call(PAGED, given)
    assert found.dtype == torch.int32
    assert found.tolist() == slots(given.real_page_table, positions(logits()), range(ROWS))
    assert (selection.record.ran, selection.record.declined) == ({"torch": 1}, {})


@pytest.mark.parametrize("chunk", [False, True], ids=["whole", "chunk"])
def test_paged_prefill_reads_the_line_of_its_request(chunk):
    request = torch.tensor([1, 1, 0, 0, 1, 0], dtype=torch.int32)
    starts = torch.tensor([0, 100, 3, 0, 60, 7], dtype=torch.int32)
    given = metadata(2, token_to_batch_idx=torch.zeros(99, dtype=torch.int32) if chunk else request)
    scores = logits(columns=168)
    named = {"batch_idx_list": request} if chunk else {}
    found = call(PAGED, given, logits=scores, row_starts=starts, **named)
    assert found.tolist() == slots(given.real_page_table, positions(scores, starts), request.tolist())


def test_ragged_prefill_adds_the_offsets():
    offsets = torch.tensor([0, 0, 64, 64, 64, 200])
    starts = torch.tensor([0, 0, 64, 64, 64, 10], dtype=torch.int32)
    scores = logits(columns=128)
    found = call(RAGGED, metadata(), logits=scores, topk_indices_offset=offsets, row_starts=starts)
    rows = positions(scores, starts)
    expected = [[at + offset for at in row] for row, offset in zip(rows, offsets.tolist(), strict=True)]
    assert found.tolist() == padded(expected)


@pytest.mark.parametrize("switch", ["flag", "argument"])
def test_unfused_gives_positions(switch):
    with envs.SGLANG_DSA_FUSE_TOPK.override(switch != "flag"):
        found = call(PAGED, metadata(), force_unfused_topk=switch == "argument")
    assert found.tolist() == padded(positions(logits()))


@pytest.mark.parametrize(
    ("reason", "method", "given", "named"),
    [
        ("--dsa-topk-backend torch is asked for", PAGED, {}, {"topk_backend": DSATopKBackend.TORCH}),
        ("the rows and the lengths differ", PAGED, {}, {"lengths": LENGTHS[1:]}),
        ("the logits are neither float32 nor bfloat16", PAGED, {}, {"logits": logits().half()}),
        ("k is over 2048", PAGED, {}, {"topk": 2049}),
        ("the rows and the lines of the page table differ", PAGED, {"requests": 2}, {}),
        (
            "prefill context parallelism lists its requests on the host",
            PAGED,
            {},
            {"batch_idx_list": [0, 1]},
        ),
        ("the rows and the offsets into the ragged KV differ", RAGGED, {}, {}),
    ],
)
def test_what_is_left_to_sglang(reason, method, given, named):
    assert call(method, metadata(**given), **named) is STOCK
    assert (selection.fusion().ran, selection.fusion().declined) == ({}, {reason: 1})


def test_the_off_switch(monkeypatch):
    monkeypatch.setenv("GLM53_DISABLE", "indexer_topk")
    backend.settings.cache_clear()
    assert call(PAGED, metadata()) is STOCK
    assert selection.fusion() == Fusion(INDEXER_TOPK, "off", "GLM53_DISABLE names indexer_topk")


def test_another_models_selection_is_its_own(monkeypatch):
    monkeypatch.setattr(selection, "_serving", False)
    assert call(PAGED, metadata()) is STOCK
    assert selection.fusion() == Fusion(INDEXER_TOPK)


def test_each_reason_is_logged_once(caplog):
    log_once.cache_clear()
    with caplog.at_level("INFO", "sglang_glm53"):
        for _ in range(3):
            call(RAGGED, metadata())
    assert caplog.messages == [
        "fusion indexer_topk leaves a call to SGLang: the rows and the offsets into the ragged KV differ"
    ]


def test_status_counts_what_ran():
    call(PAGED, metadata())
    call(PAGED, metadata())
    assert selection.fusion().describe() == {
        "state": "on",
        "reason": None,
        "note": None,
        "ran": {"torch": 2},
        "declined": {},
    }


def test_whether_the_kernel_takes_a_call_is_asked_once(monkeypatch, choose):
    choose("emulated")
    asked, module = [], SimpleNamespace(indexer_topk=lambda *arguments: None)
    monkeypatch.setattr(op, "declines", lambda *call: asked.append(call))
    monkeypatch.setattr(op.jit, "emulated_module", lambda stem: module)
    call(PAGED, metadata())
    assert len(asked) == 1 and selection.record.ran == {"emulated": 1}
