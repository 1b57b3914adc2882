"""The random weights: the same everywhere, each of its own stream, each of its own scale."""

import pytest
import torch

from sglang_glm53.tiny.weights import draw

LAYER = "model.layers.5"


def test_the_values_are_pinned():
    # A changed stream would change every checkpoint that a recorded result was made with.
    values = draw(0, "lm_head.weight", (2, 2)).flatten().tolist()
    assert values == pytest.approx([0.77703804, 0.51429611, -0.39856565, 0.93864667], rel=1e-6)


def test_each_name_and_seed_has_its_own_stream():
    names = [
        f"{LAYER}.mlp.experts.{expert}.{part}_proj.weight" for expert in (0, 1) for part in ("gate", "up")
    ]
    drawn = [tuple(draw(seed, name, (1, 8)).flatten().tolist()) for seed in (0, 1) for name in names]
    assert len(set(drawn)) == 8


@pytest.mark.parametrize(
    ("name", "rms"),
    [
        ("model.embed_tokens.weight", 1.0),
        ("lm_head.weight", 1.4 / 16),
        (f"{LAYER}.self_attn.o_proj.weight", 0.25 / 16),
        (f"{LAYER}.mlp.down_proj.weight", 0.2 / 16),
        (f"{LAYER}.mlp.shared_experts.down_proj.weight", 0.2 / 16),
        (f"{LAYER}.mlp.experts.7.down_proj.weight", 0.075 / 16),
        (f"{LAYER}.mlp.experts.7.gate_proj.weight", 1 / 16),
        (f"{LAYER}.mlp.gate.weight", 1 / 16),
        (f"{LAYER}.self_attn.indexer.wk.weight", 8e-4 / 16),
        (f"{LAYER}.self_attn.indexer.weights_proj.weight", 1 / 16),
    ],
)
def test_a_matrix_is_scaled_by_its_module_and_its_inputs(name, rms):
    values = draw(0, name, (512, 256))
    assert float(values.pow(2).mean().sqrt()) == pytest.approx(rms, rel=0.02)
    assert float(values.mean()) == pytest.approx(0, abs=0.02 * rms)


@pytest.mark.parametrize(
    ("name", "mean", "spread"),
    [
        ("model.norm.weight", 1.0, 0.1),
        (f"{LAYER}.self_attn.q_a_layernorm.weight", 1.0, 0.1),
        (f"{LAYER}.self_attn.indexer.k_norm.weight", 1.0, 0.1),
        (f"{LAYER}.self_attn.indexer.k_norm.bias", 0.0, 0.6),
    ],
)
def test_a_vector_has_its_mean_and_spread(name, mean, spread):
    values = draw(0, name, (20000,))
    assert float(values.mean()) == pytest.approx(mean, abs=0.03 * spread)
    assert float(values.std()) == pytest.approx(spread, rel=0.02)


def test_the_router_bias_has_no_far_value_and_its_spread_is_lost_in_bf16():
    bias = draw(0, f"{LAYER}.mlp.gate.e_score_correction_bias", (4096,))
    assert 7.77 < float(bias.min()) < float(bias.max()) < 8.23
    assert bias.bfloat16().unique().numel() < 20 < bias.unique().numel()


def test_the_drafts_input_is_the_embedding_and_some_noise():
    values = draw(0, "model.layers.8.eh_proj.weight", (256, 512))
    noise = values - torch.cat((torch.eye(256), torch.zeros(256, 256)), 1)
    assert float(noise.pow(2).mean().sqrt()) == pytest.approx(0.3 / 512**0.5, rel=0.02)


def test_a_tensor_without_a_scale_is_an_error():
    with pytest.raises(KeyError, match="new_proj"):
        draw(0, f"{LAYER}.self_attn.new_proj.weight", (2, 2))
