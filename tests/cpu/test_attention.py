"""Row plans, and sparse attention against one softmax per row, in every pool."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from sglang_glm53.cpu import layout
from sglang_glm53.cpu.attention import ReferenceBackend, plan_rows

HEADS, SCALING = 3, 0.1


def batch(mode, requests, seq_lens, new=None, cached=None):
    return SimpleNamespace(
        forward_mode=mode,
        req_pool_indices=torch.tensor(requests),
        seq_lens=torch.tensor(seq_lens),
        extend_seq_lens=None if new is None else torch.tensor(new),
        extend_prefix_lens=None if cached is None else torch.tensor(cached),
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


def test_speculative_modes_are_refused():
    with pytest.raises(NotImplementedError, match="TARGET_VERIFY"):
        plan_rows(batch(ForwardMode.TARGET_VERIFY, [0], [4]))


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


@pytest.mark.parametrize("fp8", [False, True])
def test_attention_over_the_selection(fp8):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(64, 576, generator=generator)
    pool = Pool(rows, fp8)
    req_to_token = torch.randperm(64, generator=generator)[:40].view(2, 20).int()
    ours = backend(pool, req_to_token)
    ours.init_forward_metadata(batch(ForwardMode.DECODE, [1, 0], [20, 6]))
    q = torch.randn(3, HEADS, 576, generator=generator)
    selection = torch.tensor([[0, 4, 7, 19], [2, 5, -1, -1], [0, 1, -1, -1]], dtype=torch.int32)
    layer = SimpleNamespace(layer_id=0, tp_q_head_num=HEADS, v_head_dim=512, scaling=SCALING)
    forward = SimpleNamespace(out_cache_loc=torch.tensor([3, 9]))
    k = torch.zeros(3, 1, 512)
    out = ours.forward_decode(
        q[..., :512], k, k, layer, forward, q_rope=q[..., 512:], k_rope=k[..., :64], topk_indices=selection
    )
    out = out.view(3, HEADS, 512)
    for row, (request, chosen) in enumerate(((1, [0, 4, 7, 19]), (0, [2, 5]))):
        kv = pool.load_kv(0, req_to_token[request, chosen].long())
        torch.testing.assert_close(out[row], attend_row(q[row], kv))
    # The third row pads the batch: no output, and its key is not written.
    assert out[2].abs().max() == 0 and pool.written[0][1].shape[0] == 2


def test_no_selection_is_an_error():
    ours = backend(Pool(torch.zeros(4, 576)), torch.zeros(1, 4).int())
    layer = SimpleNamespace(layer_id=5)
    with pytest.raises(RuntimeError, match="layer 5 has no selection"):
        ours.forward_decode(None, None, None, layer, None)
