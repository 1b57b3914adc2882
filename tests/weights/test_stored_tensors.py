"""The tensor list of the published checkpoint by its counts and sizes, and how it follows the config."""

import re

import pytest

from sglang_glm53.geometry import Geometry
from sglang_glm53.weights.stored_tensors import TensorSpec, checkpoint_tensors
from tests.configs import FULL_LAYERS, glm53

# A layer: 7 of attention and 2 norms; 5 of an indexer; 3 of a dense MLP or, of an MoE, 2 of the router and
# 3 for each of 257 experts; the MTP layer has all of these and 6 of its own.
MAIN = 3 + 78 * 9 + 21 * 5 + 3 * 3 + 75 * (2 + 257 * 3)
MTP = 9 + 5 + (2 + 257 * 3) + 6
SCALES = (78 * 5 + 21 * 2 + 3 * 3 + 75 * 257 * 3) + (5 + 2 + 257 * 3)


@pytest.fixture(scope="module")
def fp8():
    return checkpoint_tensors(Geometry.from_config(glm53()), fp8=True)


@pytest.fixture(scope="module")
def bf16():
    return checkpoint_tensors(Geometry.from_config(glm53()), fp8=False)


def _billions(tensors, pick):
    return sum(spec.numel for name, spec in tensors.items() if pick(name)) / 1e9


def test_counts(fp8, bf16):
    assert (MAIN, MTP, SCALES) == (58794, 793, 59044)
    assert len(bf16) == MAIN + MTP
    assert len(fp8) == MAIN + MTP + SCALES
    assert sum(name.startswith("model.layers.78.") for name in bf16) == MTP


def test_sizes_are_the_published_ones(bf16):
    def of_mtp(name):
        return name.startswith("model.layers.78.")

    copies = _billions(bf16, lambda name: bf16[name].optional)
    assert _billions(bf16, lambda name: not of_mtp(name)) == pytest.approx(743.4, abs=0.05)
    assert _billions(bf16, of_mtp) - copies == pytest.approx(9.95, abs=0.05)


def test_every_fp8_weight_has_its_scale_and_nothing_else_has(fp8):
    weights = {name for name, spec in fp8.items() if spec.kind == "fp8"}
    scales = {name for name, spec in fp8.items() if spec.kind == "scale"}
    assert scales == {f"{name}_scale_inv" for name in weights}
    assert len(scales) == SCALES


@pytest.mark.parametrize(
    ("name", "weight", "scale"),
    [
        ("model.layers.0.self_attn.kv_a_proj_with_mqa.weight", (576, 6144), (5, 48)),
        ("model.layers.0.self_attn.q_b_proj.weight", (16384, 2048), (128, 16)),
        ("model.layers.77.self_attn.kv_b_proj.weight", (28672, 512), (224, 4)),
        ("model.layers.74.self_attn.indexer.wk.weight", (128, 6144), (1, 48)),
        ("model.layers.2.mlp.down_proj.weight", (6144, 12288), (48, 96)),
        ("model.layers.78.mlp.experts.255.up_proj.weight", (2048, 6144), (16, 48)),
    ],
)
def test_scales_cover_partial_blocks(fp8, name, weight, scale):
    assert fp8[name] == TensorSpec(weight, "fp8")
    assert fp8[f"{name}_scale_inv"] == TensorSpec(scale, "scale")


def test_partial_blocks_in_both_directions():
    config = glm53(num_hidden_layers=1, indexer_types=["full"], hidden_size=130, intermediate_size=200)
    tensors = checkpoint_tensors(Geometry.from_config(config), fp8=True)
    assert tensors["model.layers.0.mlp.gate_proj.weight_scale_inv"].shape == (2, 2)


@pytest.mark.parametrize("precision", ["fp8", "bf16"])
def test_only_full_layers_and_the_mtp_layer_have_an_indexer(request, precision):
    tensors = request.getfixturevalue(precision)
    layers = {
        int(re.search(r"layers\.(\d+)\.self_attn\.indexer", name)[1]) for name in tensors if "indexer" in name
    }
    assert sorted(layers) == [*FULL_LAYERS, 78]


def test_storage_kinds(fp8, bf16):
    assert fp8["model.layers.3.mlp.gate.e_score_correction_bias"] == TensorSpec((256,), "f32")
    assert fp8["model.layers.3.mlp.gate.weight"] == TensorSpec((256, 6144), "bf16")
    assert fp8["model.layers.0.self_attn.indexer.weights_proj.weight"] == TensorSpec((32, 6144), "bf16")
    assert fp8["model.layers.78.eh_proj.weight"] == TensorSpec((6144, 12288), "bf16")
    assert {spec.kind for spec in bf16.values()} == {"bf16", "f32"}
    assert "model.layers.2.mlp.gate.weight" not in fp8


def test_the_mtp_layers_copies_are_optional_and_nothing_else_is(fp8):
    assert [name for name, spec in fp8.items() if spec.optional] == [
        "model.layers.78.embed_tokens.weight",
        "model.layers.78.shared_head.head.weight",
    ]


def test_without_mtp_and_shared_experts():
    g = Geometry.from_config(glm53(num_nextn_predict_layers=0, n_shared_experts=0))
    tensors = checkpoint_tensors(g, fp8=False)
    assert len(tensors) == MAIN - 75 * 3
    assert not [name for name in tensors if "shared_experts" in name or "layers.78" in name]
