"""What sizes a tiny checkpoint may have, and the config.json that states them."""

import json

import pytest

from sglang_glm53.geometry import Geometry, schedule_problems
from sglang_glm53.tiny.sizes import TinySpec, config, quantization_config

STOPS = (7, 8, 9)


@pytest.mark.parametrize(
    ("name", "least"),
    [
        *(("layers", 4), ("experts", 2), ("vocab", 292), ("seed", 0), ("period", 0)),
        *((name, 1) for name in ("heads", "nope", "v", "hidden", "q_lora", "index_topk", "index_heads")),
        *((name, 1) for name in ("dense_intermediate", "moe_intermediate", "experts_per_token")),
        *((name, 1) for name in ("max_positions", "shards")),
    ],
)
def test_a_size_below_the_least_names_its_flag(name, least):
    problems = TinySpec(**{name: least - 1}).problems()
    assert problems[0].startswith(f"--{name.replace('_', '-')} {least - 1}: use at least {least}")
    assert not [p for p in TinySpec(**{name: least}).problems() if "use at least" in p]


@pytest.mark.parametrize(
    ("changes", "flag_and_fix"),
    [
        ({"hidden": 200}, "--hidden 200: use a multiple of 128, such as 256"),
        ({"q_lora": 64}, "--q-lora 64: use a multiple of 128, such as 128"),
        ({"fp8": True, "moe_intermediate": 192}, "--moe-intermediate 192: use a multiple of 128"),
        ({"fp8": True, "dense_intermediate": 500}, "--dense-intermediate 500: use a multiple of 128"),
        ({"index_topk": 2049}, "--index-topk 2049: use at most 2048"),
        ({"experts_per_token": 9}, "--experts-per-token 9: use at most --experts, which is 8"),
        ({"shards": 9}, "--shards 9: use at most --layers, which is 8"),
        ({"mtp_copies": True}, "--mtp-copies: add --mtp"),
        ({"period": 67}, "--period 67: use at least 68, further back than index_topk positions"),
        ({"period": 80, "index_topk": 63}, "--index-topk 63: with --period use an even number"),
        ({"period": 80, "heads": 1}, "--heads 1: with --period use at least 2 for --hidden"),
        ({"schedule": "FFFSSSFX"}, "--schedule FFFSSSFX: use the letters F (full) and S (shared) only"),
        ({"schedule": "FFS"}, "--schedule FFS: 3 letters for --layers 8"),
        ({"schedule": "SFFSSSFS"}, "--schedule SFFSSSFS: begin with F"),
    ],
)
def test_a_bad_size_names_its_flag_and_the_fix(changes, flag_and_fix):
    (problem,) = TinySpec(**changes).problems()
    assert problem.startswith(flag_and_fix)


def test_all_problems_are_found_at_once():
    spec = TinySpec(layers=2, hidden=100, index_topk=0, schedule="SX")
    starts = [problem.split(":")[0] for problem in spec.problems()]
    assert starts == ["--layers 2", "--index-topk 0", "--hidden 100", "--schedule SX", "--schedule SX"]


def test_the_defaults_and_partial_bf16_sizes_are_allowed():
    assert TinySpec().problems() == TinySpec(moe_intermediate=100, dense_intermediate=100).problems() == []


@pytest.mark.parametrize(("heads", "warned"), [(7, True), (8, False)])
def test_few_index_heads_are_warned_about(heads, warned):
    warnings = TinySpec(index_heads=heads).warnings()
    assert [w.startswith("--index-heads 7: with fewer than 8") for w in warnings] == [True] * warned


def test_the_config_states_the_sizes():
    spec = TinySpec(
        layers=9, hidden=384, heads=6, q_lora=256, nope=96, v=32, dense_intermediate=640,
        moe_intermediate=384, experts=5, experts_per_token=3, vocab=700, index_topk=48, index_heads=16,
        mtp=True,
    )  # fmt: skip
    geometry = Geometry.from_config(config(spec, STOPS))
    assert geometry == Geometry(
        num_layers=9, hidden=384, dense_intermediate=640, moe_intermediate=384, num_heads=6, q_lora=256,
        kv_lora=512, nope=96, rope=64, v=32, num_experts=5, experts_per_token=3, num_shared_experts=1,
        num_dense_layers=3, vocab=700, index_heads=16, index_head_dim=128, index_topk=48, num_mtp_layers=1,
        layer_types=("full",) * 3 + ("shared",) * 3 + ("full",) + ("shared",) * 2,
    )  # fmt: skip


def test_the_published_rule_is_the_default():
    settings = config(TinySpec(layers=12), STOPS)
    assert (settings["index_topk_freq"], settings["index_skip_topk_offset"]) == (4, 3)
    assert settings["index_topk_pattern"] is None
    assert "".join(kind[0] for kind in settings["indexer_types"]) == "fffsssfsssfs"
    assert schedule_problems(settings) == []


def test_a_schedule_of_ones_own_contradicts_nothing():
    settings = config(TinySpec(schedule="FSSFFSFS"), STOPS)
    assert settings["index_topk_pattern"] == "FSSFFSFS"
    assert "".join(kind[0] for kind in settings["indexer_types"]) == "fssffsfs"
    assert not {"index_topk_freq", "index_skip_topk_offset"} & settings.keys()
    assert schedule_problems(settings) == []


def test_the_config_has_the_fields_that_default_to_something_else():
    settings = json.loads(json.dumps(config(TinySpec(), STOPS)))
    assert settings["rope_parameters"] == {"rope_theta": 8_000_000, "rope_type": "default"}
    expected = {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "rms_norm_eps": 1e-5,
        "rope_interleave": True,
        "indexer_rope_interleave": True,
        "index_share_for_mtp_iteration": True,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "moe_router_dtype": "float32",
        "tie_word_embeddings": False,
        "num_nextn_predict_layers": 0,
        "eos_token_id": [7, 8, 9],
        "pad_token_id": 7,
    }
    assert {name: settings[name] for name in expected} == expected


def test_the_modules_kept_in_bf16_are_the_published_list():
    geometry = Geometry.from_config(config(TinySpec(layers=4, mtp=True), STOPS))
    kept = quantization_config(geometry)["modules_to_not_convert"]
    norms = [
        "input_layernorm",
        "post_attention_layernorm",
        "self_attn.q_a_layernorm",
        "self_attn.kv_a_layernorm",
    ]
    index = ["self_attn.indexers_proj", "self_attn.indexer.k_norm", "self_attn.indexer.k_norm.bias"]
    gate = ["mlp.gate", "mlp.gate.e_score_correction_bias"]
    mtp = ["enorm", "hnorm", "eh_proj", "shared_head.norm"]
    # Layer 3 is shared and the first with experts; layer 4 is the MTP layer.
    by_layer = [norms + index] * 3 + [norms + gate] + [norms + index + gate + mtp]
    expected = [f"model.layers.{layer}.{name}" for layer, names in enumerate(by_layer) for name in names]
    assert sorted(kept) == sorted(["lm_head", "model.embed_tokens", "model.norm", *expected])
