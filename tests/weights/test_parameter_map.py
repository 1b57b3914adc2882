"""Each parameter is filled by exactly the checkpoint tensors that SGLang's loader puts there."""

import pytest
import torch
from torch import nn

from sglang_glm53.weights.parameter_map import expert_slots, plan
from sglang_glm53.weights.stored_tensors import checkpoint_tensors
from tests.weights.fake_model import GEOMETRY, Build, FakeExperts, fake_model

KNOWN = checkpoint_tensors(GEOMETRY, fp8=True)


def make(build, location=None, model=None):
    return plan(model or fake_model(build), GEOMETRY, draft=build.draft, location=location)


def belongs(name, build):
    """Whether a rank of this build needs a stored tensor; written against the names, not the plan."""
    if name.endswith("_scale_inv") and not build.fp8:
        return False
    parts = name.split(".")
    if parts[1] != "layers":
        on_first = name == "model.embed_tokens.weight"
        return not build.draft and build.stage[0 if on_first else 1] == (0 if on_first else 5)
    if build.draft:
        here = int(parts[2]) == 5 and not name.endswith((".embed_tokens.weight", ".shared_head.head.weight"))
    else:
        here = build.stage[0] <= int(parts[2]) < build.stage[1]
    if "experts" in parts:
        each = 4 // build.ep_size
        here = here and int(parts[5]) // each == build.ep_rank
    return here


@pytest.mark.parametrize(
    "build",
    [
        Build(),
        Build(fp8=False),
        Build(merged_index=True),
        Build(fuse_shared=True),
        Build(stage=(0, 3)),
        Build(stage=(3, 5)),
        Build(ep_rank=0, ep_size=2),
        Build(ep_rank=1, ep_size=2, fuse_shared=True),
        Build(draft=True),
        Build(draft=True, fp8=False),
        Build(draft=True, merged_index=True, ep_rank=1, ep_size=2),
    ],
    ids=str,
)
def test_a_rank_needs_its_own_tensors_and_no_others(build):
    made = make(build)
    assert made.unfilled == ()
    assert set(made.homes) == {name for name in KNOWN if belongs(name, build)}
    assert set(made.homes.values()) <= set(made.dtypes)
    without = {name for name in made.dtypes if name not in set(made.homes.values())}
    kv_scales = {name for name in without if name.endswith(("k_scale", "v_scale"))}
    shared_with_main = {"model.embed_tokens.weight", "lm_head.weight"} if build.draft else set()
    assert without == kv_scales | shared_with_main


AT = "model.layers.1.self_attn"


@pytest.mark.parametrize(
    ("build", "parameter", "stored"),
    [
        (Build(), f"{AT}.fused_qkv_a_proj_with_mqa.weight", ["q_a_proj.weight", "kv_a_proj_with_mqa.weight"]),
        (
            Build(),
            f"{AT}.fused_qkv_a_proj_with_mqa.weight_scale_inv",
            ["q_a_proj.weight_scale_inv", "kv_a_proj_with_mqa.weight_scale_inv"],
        ),
        (Build(), f"{AT}.indexer.wk.weight", ["indexer.wk.weight"]),
        (
            Build(merged_index=True),
            f"{AT}.indexer.wk_weights_proj.weight",
            ["indexer.wk.weight", "indexer.wk.weight_scale_inv", "indexer.weights_proj.weight"],
        ),
    ],
)
def test_stacked_attention_parameters(build, parameter, stored):
    homes = make(build).homes
    found = [name for name, home in homes.items() if home == parameter]
    assert sorted(found) == sorted(f"{AT}.{name}" for name in stored)


def test_stacked_mlp_and_expert_parameters():
    homes = make(Build(ep_rank=1, ep_size=2, fuse_shared=True)).homes

    def sources(parameter):
        return sorted(name for name, home in homes.items() if home == parameter)

    assert sources("model.layers.0.mlp.gate_up_proj.weight") == [
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.0.mlp.up_proj.weight",
    ]
    at = "model.layers.1.mlp"
    assert sources(f"{at}.experts.w2_weight_scale_inv") == [
        f"{at}.experts.2.down_proj.weight_scale_inv",
        f"{at}.experts.3.down_proj.weight_scale_inv",
        f"{at}.shared_experts.down_proj.weight_scale_inv",
    ]
    assert sources(f"{at}.experts.w13_weight") == [
        f"{at}.experts.2.gate_proj.weight",
        f"{at}.experts.2.up_proj.weight",
        f"{at}.experts.3.gate_proj.weight",
        f"{at}.experts.3.up_proj.weight",
        f"{at}.shared_experts.gate_proj.weight",
        f"{at}.shared_experts.up_proj.weight",
    ]


@pytest.mark.parametrize(
    ("parameter", "stored"),
    [
        ("model.decoder.self_attn.o_proj.weight", "model.layers.5.self_attn.o_proj.weight"),
        ("model.eh_proj.weight", "model.layers.5.eh_proj.weight"),
        ("model.enorm.weight", "model.layers.5.enorm.weight"),
        ("model.hnorm.weight", "model.layers.5.hnorm.weight"),
        ("model.shared_head.norm.weight", "model.layers.5.shared_head.norm.weight"),
    ],
)
def test_the_draft_takes_the_mtp_layer(parameter, stored):
    assert make(Build(draft=True)).homes[stored] == parameter


@pytest.mark.parametrize(
    ("build", "path"),
    [
        (Build(), "model.layers.2.self_attn.indexer.wk"),
        (Build(), "model.layers.0.self_attn.q_b_proj.lora"),
        (Build(), "model.layers.1.mlp.experts.w13_weight_scale"),
        (Build(draft=True), "model.decoder.self_attn.sinks"),
        (Build(draft=True), "model.norm"),
        (Build(draft=True), "model.decoder.embed_tokens"),
        (Build(), "model.layers.5.enorm"),
    ],
)
def test_a_parameter_that_nothing_fills_is_named(build, path):
    model = fake_model(build)
    inner = model
    for part in path.split("."):
        if part not in inner._modules:
            inner.add_module(part, nn.Module())
        inner = inner._modules[part]
    inner.register_parameter("weight", nn.Parameter(torch.zeros(1), requires_grad=False))
    assert make(build, model=model).unfilled == (f"parameter {path}.weight is filled by no known tensor",)


class Location:
    """EPLB's map with one redundant expert: six physical experts, of which 4 and 5 are copies of 0 and 3."""

    def logical_to_all_physical(self, layer_id, expert):
        assert layer_id == 7
        return {0: [0, 4], 1: [1], 2: [2], 3: [3, 5]}[expert]


def redundant_experts(rank, shared=0):
    experts = FakeExperts(GEOMETRY, Build(ep_rank=rank, ep_size=2, fuse_shared=bool(shared)))
    experts.layer_id, experts._num_global_routed, experts._num_local_routed = 7, 6, 3
    experts.num_local_experts = 3 + shared
    return experts


def test_redundant_experts_fill_every_slot_of_their_rank():
    assert expert_slots(redundant_experts(0), 4, 0, Location()) == [[0], [1], [2], []]
    assert expert_slots(redundant_experts(1), 4, 0, Location()) == [[1], [], [], [0, 2]]
    assert expert_slots(redundant_experts(1, shared=1), 4, 1, Location()) == [[1], [], [], [0, 2], [3]]


def test_slots_without_an_expert_are_named():
    model = fake_model(Build(stage=(1, 2), fp8=False))
    model.model.layers._modules["1"].mlp._modules["experts"].num_local_experts = 6
    assert make(Build(stage=(1, 2)), model=model).unfilled == (
        "model.layers.1.mlp.experts has slots on this rank that no expert fills: 4, 5",
    )


@pytest.mark.parametrize(
    ("build", "name", "elsewhere"),
    [
        (Build(), "lm_head.weight", False),
        (Build(), "model.layers.0.mlp.up_proj.weight_scale_inv", False),
        (Build(), "model.layers.5.eh_proj.weight", True),
        (Build(stage=(3, 5)), "model.embed_tokens.weight", True),
        (Build(stage=(3, 5)), "model.layers.2.input_layernorm.weight", True),
        (Build(stage=(3, 5)), "model.layers.3.input_layernorm.weight", False),
        (Build(ep_rank=1, ep_size=2), "model.layers.1.mlp.experts.1.up_proj.weight", True),
        (Build(ep_rank=1, ep_size=2), "model.layers.1.mlp.experts.2.up_proj.weight", False),
        (Build(draft=True), "model.layers.4.eh_proj.weight", True),
        (Build(draft=True), "model.norm.weight", True),
        (Build(draft=True), "model.layers.5.mlp.gate.weight", False),
    ],
)
def test_elsewhere_is_another_stage_rank_or_model(build, name, elsewhere):
    assert make(build).elsewhere(name) == elsewhere


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("model.layers.2.self_attn.indexer.k_norm.bias", True),
        ("model.layers.1.self_attn.indexer.k_norm.bias", False),
        ("model.layers.5.self_attn.indexer.k_norm.bias", False),
        ("model.layers.2.self_attn.o_proj.weight", False),
    ],
)
def test_indexer_tensors_on_shared_layers(name, shared):
    assert make(Build()).on_shared_layer(name) == shared


def test_packed_expert_tensors_hold_every_expert():
    made = make(Build())
    names, spec = made.unpack("model.layers.1.mlp.experts.gate_up_proj")
    assert names[:2] == (
        "model.layers.1.mlp.experts.0.gate_proj.weight",
        "model.layers.1.mlp.experts.0.up_proj.weight",
    )
    assert (len(names), spec.shape, spec.kind) == (8, (4, 256, 256), "fp8")
    names, spec = made.unpack("model.layers.1.mlp.experts.down_proj_scale")
    assert names[-1] == "model.layers.1.mlp.experts.3.down_proj.weight_scale_inv"
    assert (len(names), spec.shape, spec.kind) == (4, (4, 2, 1), "scale")
    assert made.unpack("model.layers.0.mlp.experts.down_proj") is None
    assert made.unpack("model.layers.1.mlp.experts.down_proj.weight") is None


def test_the_slots_of_an_experts_tensor():
    made = make(Build(ep_rank=1, ep_size=2, fuse_shared=True))
    assert made.slots_of("model.layers.1.mlp.experts.2.up_proj.weight") == [0]
    assert made.slots_of("model.layers.1.mlp.experts.1.up_proj.weight") == []
    assert made.slots_of("model.layers.1.mlp.shared_experts.up_proj.weight") == [2]
    assert made.slots_of("model.layers.0.mlp.up_proj.weight") == []
    assert make(Build()).slots_of("model.layers.1.mlp.shared_experts.up_proj.weight") == []


def test_the_plan_reads_a_models_stage_from_the_model():
    assert make(Build(stage=(1, 3))).layers == range(1, 3)
    assert make(Build(draft=True)).layers == range(5, 6)
    assert make(Build()).whole
    assert not make(Build(stage=(1, 3))).whole
