"""Row plans, and sparse attention against one softmax per row, in every pool."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.environ import envs
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from sglang_glm53.cpu import layout
from sglang_glm53.cpu.attention import ReferenceBackend, plan_rows
from sglang_glm53.overlap.carry import Form, form_of

HEADS, SCALING = 3, 0.1


def batch(mode, requests, seq_lens, new=None, cached=None, real=None, drafts=None):
    return SimpleNamespace(
        forward_mode=mode,
        req_pool_indices=torch.tensor(requests),
        seq_lens=torch.tensor(seq_lens),
        extend_seq_lens=None if new is None else torch.tensor(new),
        extend_prefix_lens=None if cached is None else torch.tensor(cached),
        global_num_token_non_padded_cpu=real,
        spec_info=SimpleNamespace(draft_token_num=drafts),
    )


def test_decode_rows_see_their_whole_request():
    plan = plan_rows(batch(ForwardMode.DECODE, [4, 2], [7, 9]))
    assert plan.requests.tolist() == [4, 2] and plan.lengths.tolist() == [7, 9] and plan.counts == (1, 1)


@pytest.mark.parametrize("mode", [ForwardMode.EXTEND, ForwardMode.MIXED])
def test_extend_rows_see_the_cached_prefix_and_themselves(mode):
    plan = plan_rows(batch(mode, [1, 0, 3], [5, 2, 4], new=[2, 2, 1], cached=[3, 0, 3]))
    assert plan.requests.tolist() == [1, 1, 0, 0, 3]
    assert plan.lengths.tolist() == [4, 5, 1, 2, 4]
    assert plan.counts == (2, 2, 1)


def test_verify_rows_see_the_drafts_before_them():
    verify = batch(ForwardMode.TARGET_VERIFY, [3, 1, 0], [7, 4, 1], real=6, drafts=3)
    plan = plan_rows(verify)
    # The third request pads the batch.
    assert plan.requests.tolist() == [3, 3, 3, 1, 1, 1]
    assert plan.lengths.tolist() == [8, 9, 10, 5, 6, 7]
    assert plan.counts == (3, 3)


def test_draft_extend_rows_are_those_of_the_verify():
    plan = plan_rows(batch(ForwardMode.DRAFT_EXTEND_V2, [3, 1], [10, 7], new=[3, 3], cached=[7, 4]))
    assert plan.requests.tolist() == [3, 3, 3, 1, 1, 1]
    assert plan.lengths.tolist() == [8, 9, 10, 5, 6, 7]


def test_another_mode_is_refused():
    with pytest.raises(NotImplementedError, match="SPLIT_PREFILL"):
        plan_rows(batch(ForwardMode.SPLIT_PREFILL, [0], [4]))


class Pool:
    """KV rows of one layer, FP32 or FP8, and what was written to it."""

    def __init__(self, rows, fp8=False):
        self.rows = layout.encode_kv(rows[:, :512], rows[:, 512:]) if fp8 else rows
        self.fp8, self.written = fp8, []

    def load_kv(self, layer_id, slots):
        return layout.decode_kv(self.rows[slots]) if self.fp8 else self.rows[slots]

    def set_mla_kv_buffer(self, layer, loc, nope, rope):
        self.written.append((loc, nope, rope))


def backend(pool, req_to_token):
    runner = SimpleNamespace(
        req_to_token_pool=SimpleNamespace(req_to_token=req_to_token),
        token_to_kv_pool=pool,
        kv_cache_dtype=torch.float32,
    )
    return ReferenceBackend(runner)


def attend_row(query, kv):
    """One row's attention over kv [n, 576]: query [heads, 576] -> [heads, 512]."""
    return (query @ kv.T * SCALING).softmax(-1) @ kv[:, :512]


LAYER = SimpleNamespace(layer_id=0, tp_q_head_num=HEADS, v_head_dim=512, scaling=SCALING)


@pytest.fixture
def rows():
    """KV rows [64, 576] and a table of two requests of up to 20 tokens."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randperm(64, generator=generator)[:40].view(2, 20).int()
    return torch.randn(64, 576, generator=generator), table


def forward(ours, selection, written):
    """The output [rows, heads, 512], and the queries."""
    q = torch.randn(len(selection), HEADS, 576, generator=torch.Generator().manual_seed(1))
    k = torch.zeros(len(selection), 1, 512)
    parts = {"q_rope": q[..., 512:], "k_rope": k[..., :64], "topk_indices": torch.tensor(selection).int()}
    locations = SimpleNamespace(out_cache_loc=torch.tensor(written))
    return ours.forward_decode(q[..., :512], k, k, LAYER, locations, **parts).view(-1, HEADS, 512), q


@pytest.mark.parametrize("fused", [True, False], ids=["slots", "positions"])
@pytest.mark.parametrize("fp8", [False, True])
def test_decode_attends_to_the_selection(fp8, fused, rows):
    kv, table = rows
    pool = Pool(kv, fp8)
    ours = backend(pool, table)
    ours.init_forward_metadata(batch(ForwardMode.DECODE, [1, 0, 0], [20, 6, 1], real=2))
    chosen = [(1, [0, 4, 7, 19]), (0, [2, 5])]
    with envs.SGLANG_DSA_FUSE_TOPK.override(fused):
        listed = [table[request, at].tolist() if fused else at for request, at in chosen]
        out, q = forward(ours, [row + [-1] * (4 - len(row)) for row in (*listed, [0])], [3, 9, 0])
    for row, (request, at) in enumerate(chosen):
        expected = attend_row(q[row], pool.load_kv(0, table[request, at].long()))
        torch.testing.assert_close(out[row], expected)
    # The third row pads the batch: no output, and its key is not written.
    assert out[2].abs().max() == 0
    assert pool.written[0][0].tolist() == [3, 9] and pool.written[0][1].shape[0] == 2


def test_prefill_attends_to_places_in_the_batchs_own_kv(rows):
    kv, table = rows
    ours = backend(Pool(kv), table)
    ours.init_forward_metadata(batch(ForwardMode.EXTEND, [1, 0], [5, 4], new=[2, 3], cached=[3, 1]))
    # The second request's KV follows the first one's five.
    assert ours.places(torch.tensor([0, 1, 2, 4]))["out_offsets"].tolist() == [0, 0, 5, 5]
    chosen = [(1, [0, 3]), (1, [4, 1]), (0, [1, -1]), (0, [0, 2]), (0, [3, 2])]
    listed = [[at + (5 if request == 0 and at >= 0 else 0) for at in places] for request, places in chosen]
    out, q = forward(ours, listed, [1, 2, 3, 4, 5])
    for row, (request, places) in enumerate(chosen):
        at = [place for place in places if place >= 0]
        torch.testing.assert_close(out[row], attend_row(q[row], kv[table[request, at].long()]))


@pytest.mark.parametrize(
    ("mode", "form"),
    [
        (ForwardMode.DECODE, Form.SLOTS),
        (ForwardMode.EXTEND, Form.RAGGED),
        (ForwardMode.MIXED, Form.SLOTS),
        (ForwardMode.TARGET_VERIFY, Form.SLOTS),
        (ForwardMode.DRAFT_EXTEND_V2, Form.SLOTS),
    ],
)
def test_the_form_of_a_selection(mode, form, rows):
    ours = backend(Pool(rows[0]), rows[1])
    ours.init_forward_metadata(batch(mode, [1], [5], new=[2], cached=[3], drafts=2))
    assert form_of(ours.get_indexer_metadata(0, None)) is form
    with envs.SGLANG_DSA_FUSE_TOPK.override(False):
        assert form_of(ours) is Form.POSITIONS and ours.places(torch.tensor([0])) == {}


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "positions"])
@pytest.mark.parametrize("mode", [ForwardMode.EXTEND, ForwardMode.DRAFT_EXTEND_V2])
def test_a_seed_holds_what_a_decode_takes(mode, fused, rows):
    kv, table = rows
    ours = backend(Pool(kv), table)
    ours.init_forward_metadata(batch(mode, [1, 0], [5, 4], new=[2, 3], cached=[3, 1]))
    slots = [[*table[1, [0, 4]].tolist(), -1], [*table[0, [1, 2, 3]].tolist()]]
    # A prefill's second request begins after the first one's five tokens.
    places = {ForwardMode.EXTEND: [[0, 4, -1], [6, 7, 8]], ForwardMode.DRAFT_EXTEND_V2: slots}[mode]
    selection = places if fused else [[0, 4, -1], [1, 2, 3]]
    with envs.SGLANG_DSA_FUSE_TOPK.override(fused):
        seed = ours.prepare_mtp_seed_indices(torch.tensor(selection).int(), mode)
    assert seed.tolist() == (slots if fused else selection) and seed.dtype == torch.int32


def test_no_selection_is_an_error():
    ours = backend(Pool(torch.zeros(4, 576)), torch.zeros(1, 4).int())
    layer = SimpleNamespace(layer_id=5)
    with pytest.raises(RuntimeError, match="layer 5 has no selection"):
        ours.forward_decode(None, None, None, layer, None)


def test_an_idle_ranks_row_is_zero():
    ours = backend(Pool(torch.zeros(4, 576)), torch.zeros(1, 4).int())
    batch = SimpleNamespace(forward_mode=ForwardMode.IDLE)
    torch.use_deterministic_algorithms(True)
    try:
        # Memory that nobody wrote is NaN then.
        assert torch.empty(1).isnan().all()
        out = ours.forward(torch.ones(1, HEADS, 512), None, None, LAYER, batch, topk_indices=None)
    finally:
        torch.use_deterministic_algorithms(False)
    assert out.shape == (1, HEADS * 512) and (out == 0).all()
