"""The torch forms of SGLang's speculative helpers, against one request at a time."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.layers.attention.dsa import utils
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from sglang_glm53.cpu import speculative
from sglang_glm53.overlap.carry import Form, form_of

TABLE = torch.arange(4 * 20).view(4, 20).int() + 100
REQUESTS = torch.tensor([2, 0, 3])


def test_the_slots_of_a_verify_and_of_the_draft_steps_follow_the_verified_tokens():
    starts = torch.tensor([5, 0, 16])
    expected = [[145, 146, 147], [100, 101, 102], [176, 177, 178]]
    found = speculative.verify_locations(REQUESTS, TABLE, starts, starts + 3, 3, 3, "cpu")
    assert found.view(3, 3).tolist() == expected and found.dtype == torch.int64
    out, positions = torch.zeros(9, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
    speculative.draft_locations(REQUESTS, TABLE, starts, out, 1, 3, positions)
    assert out.view(3, 3).tolist() == expected and positions.tolist() == [5, 0, 16]


def test_new_slots_are_entered_at_their_positions():
    table = TABLE.clone()
    speculative.assign_slots(
        REQUESTS, table, torch.tensor([5, 0, 16]), torch.tensor([7, 0, 19]), torch.tensor([1, 2, 3, 4, 5]), 3
    )
    assert table[2, 5:7].tolist() == [1, 2] and table[3, 16:19].tolist() == [3, 4, 5]
    assert (table != TABLE).sum() == 5
    assert speculative.last_slots(table, REQUESTS, torch.tensor([7, 0, 19])).tolist() == [2, -1, 5]


def test_rows_are_gathered_from_every_buffer():
    buffers = (torch.arange(5.0), torch.arange(10).view(5, 2), torch.arange(5) + 10, None)
    found = speculative.gather_rows(torch.tensor([3, 0]), *buffers)
    assert [None if one is None else one.tolist() for one in found] == [
        [3.0, 0.0],
        [[6, 7], [0, 1]],
        [13, 10],
        None,
    ]


def test_a_chain_links_each_draft_to_the_next():
    index, following, sibling = torch.full((3, 2, 4), -1)
    positions = torch.empty(8, dtype=torch.int64)
    speculative.build_chain(
        *(None, None, torch.tensor([9, 30]), None, positions, index, following, sibling, 1, 3, 4, None)
    )
    assert positions.view(2, 4).tolist() == [[9, 10, 11, 12], [30, 31, 32, 33]]
    assert index.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert following.tolist() == [[1, 2, 3, -1]] * 2 and (sibling == -1).all()


def outcome(requests, width):
    """The tensors that a verify writes: predicts, accept_index, accept_token_num."""
    return (
        torch.zeros(requests * width, dtype=torch.int32),
        torch.full((requests, width), -7, dtype=torch.int32),
        torch.empty(requests, dtype=torch.int32),
    )


CANDIDATES = torch.tensor([[8, 1, 2], [8, 1, 9], [8, 9, 2]])
TARGET = torch.tensor([[1, 2, 3], [1, 2, 3], [1, 2, 3]])


def test_greedy_verification_stops_at_the_first_wrong_draft():
    predicts, index, number = speculative.verify_greedy(
        *outcome(3, 3), CANDIDATES, *[None] * 3, target_predict=TARGET
    )
    # The third request's second draft is the target's token after a wrong one.
    assert number.tolist() == [2, 1, 0]
    assert index.tolist() == [[0, 1, 2], [3, 4, -1], [6, -1, -1]]
    assert predicts.view(3, 3).tolist() == [[1, 2, 3], [1, 2, 0], [1, 0, 0]]
    bonus = torch.empty(3, dtype=torch.int32)
    # SGLang gives the accepted tokens by row, where -1 takes any.
    speculative.bonus_tokens(predicts[index], number + 1, bonus, 3, 3)
    assert bonus.tolist() == [3, 2, 1]


def sample(probs, coins, final, thresholds=(1.0, 1.0)):
    predicts, index, number = outcome(len(probs), 3)
    speculative.verify_sampled(
        predicts=predicts,
        accept_index=index,
        accept_token_num=number,
        candidates=torch.tensor([[8, 1, 2]] * len(probs)),
        uniform_samples=coins,
        uniform_samples_for_final_sampling=final,
        target_probs=probs,
        threshold_single=thresholds[0],
        threshold_acc=thresholds[1],
        deterministic=True,
    )
    return predicts.view(-1, 3), number


def test_sampled_verification_gives_the_targets_distribution():
    requests = 40_000
    generator = torch.Generator().manual_seed(0)
    row = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.5, 0.0, 0.25, 0.25], [0.7, 0.1, 0.1, 0.1]])
    coins = torch.rand(requests, 3, generator=generator)
    predicts, number = sample(row.expand(requests, 3, 4), coins, torch.rand(requests, generator=generator))
    first = torch.bincount(predicts[:, 0], minlength=4) / requests
    assert (first - row[0]).abs().max() < 0.01
    second = torch.bincount(predicts[number >= 1, 1], minlength=4) / (number >= 1).sum()
    assert (second - row[1]).abs().max() < 0.015
    assert abs((number == 2).float().mean().item() - 0.4 * 0.25) < 0.01


def test_thresholds_accept_more():
    probs = torch.tensor([[0.6, 0.4, 0.0], [0.5, 0.2, 0.3], [1.0, 0.0, 0.0]])[None]
    coins, final = torch.tensor([[0.5, 0.5, 0.5]]), torch.tensor([0.5])
    assert sample(probs, coins, final)[1].tolist() == [0]
    assert sample(probs, coins, final, (0.35, 1.0))[1].tolist() == [1]
    assert sample(probs, coins, final, (1.0, 0.6))[1].tolist() == [2]


@pytest.mark.parametrize(
    ("keep", "limits", "expected"),
    [
        (speculative.keep_top_k, [1, 9], [[0.0, 1.0, 0.0, 0.0], [0.1, 0.4, 0.2, 0.3]]),
        (speculative.keep_top_p, [0.69, 1.0], [[0.0, 4 / 7, 0.0, 3 / 7], [0.1, 0.4, 0.2, 0.3]]),
    ],
    ids=["top_k", "top_p"],
)
def test_truncated_probabilities_add_up_to_one(keep, limits, expected):
    probs = torch.tensor([[0.1, 0.4, 0.2, 0.3]] * 2)
    torch.testing.assert_close(keep(probs, torch.tensor(limits)), torch.tensor(expected))


@pytest.fixture
def half(monkeypatch):
    """Be one half of a pair, or neither ("null"), with the remapping hook in place."""

    def become(mode):
        for module in (speculative, utils):
            monkeypatch.setattr(module, "get_disagg", lambda: SimpleNamespace(disaggregation_mode=mode))
        monkeypatch.setattr(utils, "should_remap_pd_dsa_seed_to_local_slots", speculative.remaps_seed)

    return become


@pytest.mark.parametrize(
    ("mode", "form", "remaps"),
    [
        ("null", Form.RAGGED, False),
        # Slots and places of the prefill's own mean nothing to the decode.
        ("prefill", Form.POSITIONS, False),
        ("decode", Form.RAGGED, True),
    ],
)
def test_a_seed_that_leaves_the_server_holds_positions(mode, form, remaps, half):
    half(mode)
    pool = SimpleNamespace(req_to_token=TABLE)
    runner = SimpleNamespace(req_to_token_pool=pool, token_to_kv_pool=None, kv_cache_dtype=torch.float32)
    factory = SimpleNamespace(
        draft_model_runner=runner, speculative_num_steps=3, seed_dsa_topk_from_draft_extend=True
    )
    _, extend = speculative.extend_backend(factory)
    _, steps = speculative.decode_backend(factory)
    batch = SimpleNamespace(
        forward_mode=ForwardMode.EXTEND,
        req_pool_indices=torch.tensor([2]),
        seq_lens=torch.tensor([3]),
        extend_seq_lens=torch.tensor([3]),
        extend_prefix_lens=torch.tensor([0]),
    )
    extend.init_forward_metadata(batch)
    assert (form_of(extend), speculative.remaps_seed()) == (form, remaps)
    seed = extend.prepare_mtp_seed_indices(torch.tensor([[0, 2, -1]], dtype=torch.int32), ForwardMode.EXTEND)
    assert seed.tolist() == ([[0, 2, -1]] if form is Form.POSITIONS else [[140, 142, -1]])
    assert len(steps.attn_backends) == 2
    assert form_of(steps.attn_backends[0]) is (Form.POSITIONS if mode == "prefill" else Form.SLOTS)


def test_unfused_selections_are_positions_and_stay_so(half, monkeypatch):
    half("decode")
    monkeypatch.setenv("SGLANG_DSA_FUSE_TOPK", "0")
    assert not speculative.remaps_seed()
