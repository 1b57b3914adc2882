"""The weights of a checkpoint that repeats its context do what they are for."""

import pytest
import torch

from sglang_glm53.geometry import INDEX_HEAD_DIM, KV_ROPE
from sglang_glm53.tiny import recall
from sglang_glm53.tiny.sizes import DRAFTS, TinySpec

SPEC = TinySpec(mtp=True, layers=4, index_topk=32, period=48)


def rope(vector, position):
    """Interleaved RoPE of [KV_ROPE] at a position."""
    angle = position * recall._frequencies(slice(0, KV_ROPE // 2))
    even, odd = vector[0::2], vector[1::2]
    turned = torch.stack([even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()], -1)
    return turned.flatten()


def scores(query, key, row, positions):
    """What a row's query gives for the keys at the positions."""
    return torch.stack([rope(query, row) @ rope(key, position) for position in range(positions)])


def indexer(layer, part, shape):
    return recall.draw(SPEC, f"model.layers.{layer}.self_attn.indexer.{part}", shape).bfloat16().float()


@pytest.mark.parametrize(("layer", "nearest"), [(0, 1), (SPEC.layers, DRAFTS)], ids=["target", "MTP"])
def test_a_row_selects_a_window_that_begins_where_it_must(layer, nearest):
    queries = indexer(layer, "wq_b.weight", (SPEC.index_heads * INDEX_HEAD_DIM, SPEC.q_lora))
    key = indexer(layer, "k_norm.bias", (INDEX_HEAD_DIM,))
    assert indexer(layer, "k_norm.weight", (INDEX_HEAD_DIM,)).abs().max() == 0
    query = queries[:INDEX_HEAD_DIM, 1]
    row = 300
    found = scores(query[:KV_ROPE], key[:KV_ROPE], row, row + 1) + query[KV_ROPE:] @ key[KV_ROPE:]
    assert found.min() > 0
    first = row - (SPEC.period - nearest) - SPEC.index_topk + 1
    assert found.topk(SPEC.index_topk).indices.sort().values.tolist() == list(
        range(first, first + SPEC.index_topk)
    )


def test_attention_looks_one_less_than_a_period_back():
    shape = (SPEC.heads * (SPEC.nope + KV_ROPE), SPEC.q_lora)
    queries = recall.draw(SPEC, "model.layers.1.self_attn.q_b_proj.weight", shape).bfloat16().float()
    query = queries[SPEC.nope : SPEC.nope + KV_ROPE, 0]
    key = torch.zeros(KV_ROPE)
    key[2 * recall.NEAR.start : 2 * recall.NEAR.stop : 2] = 1.0
    row = 300
    found = scores(query, key, row, row + 1)
    best = row - (SPEC.period - 1)
    assert found.argmax() == best
    others = torch.cat([found[best - SPEC.index_topk : best], found[best + 1 : best + DRAFTS]])
    assert found[best] - others.max() > 0.15 * found[best]
    # The queries hold nothing else.
    assert queries[: SPEC.nope].abs().max() == 0 and queries[:, 1:].abs().max() == 0


def test_a_code_is_read_by_its_own_token():
    embedding = recall.draw(SPEC, "model.embed_tokens.weight", (SPEC.vocab, SPEC.hidden))
    head = recall.draw(SPEC, "lm_head.weight", (SPEC.vocab, SPEC.hidden))
    stream = recall._Stream(SPEC.hidden)
    logits = embedding[:, stream.read] @ head[:, stream.found].T
    assert logits.argmax(1).tolist() == list(range(SPEC.vocab))
    assert embedding[:, stream.found].abs().max() == 0
    # The MTP layer's copies are the main model's tensors.
    copy = recall.draw(SPEC, f"model.layers.{SPEC.layers}.embed_tokens.weight", (SPEC.vocab, SPEC.hidden))
    assert torch.equal(copy, embedding)


def test_the_mtp_layers_queries_need_the_final_norm():
    norms = [
        recall.draw(SPEC, name, (SPEC.hidden,))
        for name in ("model.norm.weight", f"model.layers.{SPEC.layers}.shared_head.norm.weight")
    ]
    projection = recall.draw(
        SPEC, f"model.layers.{SPEC.layers}.eh_proj.weight", (SPEC.hidden, 2 * SPEC.hidden)
    )
    level = torch.zeros(SPEC.hidden)
    queries = recall._Stream(SPEC.hidden).queries
    level[queries] = recall.LEVEL
    for norm in norms:
        after = projection[:, SPEC.hidden :] @ (level * norm)
        assert (after[queries] > 0).all()
        assert (projection[:, SPEC.hidden :] @ level)[queries].max() < 0
