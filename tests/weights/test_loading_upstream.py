"""Strict loading agrees with the installed SGLang's own loader, expert placement and key check."""

from types import SimpleNamespace

import pytest
from sglang.srt.layers.moe.fused_moe_triton import layer as fused_moe
from sglang.srt.model_loader import loader
from sglang.srt.models.deepseek_common.deepseek_weight_loader import DeepseekV2WeightLoaderMixin
from torch import nn

from sglang_glm53.weights.loading import Source, accept_extra_key, load_strictly
from sglang_glm53.weights.parameter_map import expert_slots
from tests.weights.fake_model import GEOMETRY, Build, FakeExperts, fake_model, stored_tensors

NOWHERE = Source("somewhere/else", load_format="pt")


def write_half(parameter, loaded, half):
    parameter.data.chunk(2)[half].copy_(loaded)


def expert_writer(experts):
    def write(parameter, loaded, name, shard_id, expert_id):
        slot = experts._map_global_expert_id_to_local_expert_id(expert_id)
        if slot >= 0:
            rows = {"w1": 0, "w3": 1}
            whole = parameter.data[slot]
            (whole.chunk(2)[rows[shard_id]] if shard_id in rows else whole).copy_(loaded)

    return write


def upstream_model(build):
    """A fake model with SGLang's own checkpoint loader; this file writes the sharded parameters."""

    class Upstream(DeepseekV2WeightLoaderMixin, nn.Module):
        def load(self, weights):
            self.do_load_weights(weights, build.draft)

        def post_load_weights(self, is_nextn, weight_names):
            assert is_nextn == build.draft

    model = fake_model(build)
    model.__class__ = Upstream
    model.quant_config, model.pp_group = None, SimpleNamespace(is_last_rank=build.stage[1] == 5)
    for name, parameter in model.named_parameters():
        if ".experts." in name:
            parameter.weight_loader = expert_writer(model.get_submodule(name.rpartition(".")[0]))
        elif ".gate_up_proj." in name:
            parameter.weight_loader = write_half
    return model


def with_zeros(model):
    """The parameters that hold a zero: fake ones start as zeros, and no stored tensor has any."""
    return {name for name, value in model.named_parameters() if bool((value.float() == 0).any())}


@pytest.mark.parametrize(
    "build",
    [
        Build(),
        Build(fp8=False),
        Build(merged_index=True),
        Build(fuse_shared=True, ep_rank=1, ep_size=2),
        Build(stage=(3, 5)),
        Build(draft=True),
        Build(draft=True, merged_index=True, ep_rank=1, ep_size=2),
    ],
    ids=str,
)
def test_sglangs_loader_fills_what_the_plan_says(build):
    model = upstream_model(build)
    given = stored_tensors(fp8=build.fp8)
    load_strictly(model, given.items(), model.load, draft=build.draft, source=NOWHERE)
    assert with_zeros(model) == set(model.glm53_plan.dtypes) - set(model.glm53_plan.homes.values())


@pytest.mark.parametrize(
    ("build", "dropped"),
    [
        (Build(), "model.layers.1.self_attn.kv_a_proj_with_mqa.weight"),
        (Build(), "model.layers.1.mlp.experts.2.up_proj.weight_scale_inv"),
        (Build(merged_index=True), "model.layers.1.self_attn.indexer.wk.weight_scale_inv"),
        (Build(draft=True), "model.layers.5.enorm.weight"),
    ],
)
def test_sglangs_loader_alone_serves_what_was_never_loaded(build, dropped):
    """Why strict loading exists; and the zeros of the test above are not blind."""
    model = upstream_model(build)
    given = stored_tensors()
    before = with_zeros(model)
    model.load(given.items())
    complete = before - with_zeros(model)
    model = upstream_model(build)
    del given[dropped]
    model.load(given.items())
    assert len(complete - (before - with_zeros(model))) == 1


class Location:
    """EPLB's map of four experts on six slots, of which 4 and 5 are copies of 0 and 3."""

    num_logical_experts = 4

    def logical_to_all_physical(self, layer_id, expert, require_global_experts=False):
        return {0: [0, 4], 1: [1], 2: [2], 3: [3, 5]}[expert]


@pytest.mark.parametrize("shared", [0, 1])
@pytest.mark.parametrize("redundant", [False, True])
@pytest.mark.parametrize("rank", [0, 1])
def test_experts_live_where_fused_moe_puts_them(monkeypatch, rank, redundant, shared):
    upstream = fused_moe.FusedMoE
    experts = FakeExperts(GEOMETRY, Build(ep_rank=rank, ep_size=2, fuse_shared=bool(shared)))
    location = Location() if redundant else None
    experts._num_global_routed = 6 if redundant else 4
    experts._num_local_routed = experts._num_global_routed // 2
    experts.num_local_experts = experts._num_local_routed + shared
    for name, value in {
        "num_fused_shared_experts": shared,
        "_has_fused_shared": bool(shared),
        "_expert_storage_rank": rank,
        "quant_config": None,
        "quant_method": None,
    }.items():
        setattr(experts, name, value)
    written = []
    experts._weight_loader_impl = lambda *, expert_id, **rest: written.append(expert_id)
    for name in ("_weight_loader_physical", "_map_global_expert_id_to_local_expert_id"):
        setattr(experts, name, getattr(upstream, name).__get__(experts))
    monkeypatch.setattr(fused_moe, "get_global_expert_location_metadata", lambda: location)
    for expert, slots in enumerate(expert_slots(experts, 4, shared, location)):
        written.clear()
        upstream.weight_loader(experts, SimpleNamespace(), None, "w2_weight", "w2", expert)
        assert written == slots, expert


@pytest.mark.parametrize("format_name", ["AUTO", "SAFETENSORS", "FASTSAFETENSORS"])
def test_the_key_passes_and_others_stay_sglangs_to_judge(format_name):
    original, load_format = loader._validate_default_loader_extra_config, loader.LoadFormat[format_name]
    ours = {"glm53_allow_extra": True}
    with pytest.raises(ValueError, match="Unexpected extra config keys"):
        original(extra_config=ours, load_format=load_format)
    accept_extra_key(original, extra_config=ours | {"num_threads": 4}, load_format=load_format)
    with pytest.raises(ValueError, match=r"Unexpected extra config keys .*\{'glm53_allow'\}"):
        accept_extra_key(original, extra_config=ours | {"glm53_allow": 1}, load_format=load_format)
    assert ours == {"glm53_allow_extra": True}


def test_instanttensor_would_take_the_key_for_its_own():
    with pytest.raises(ValueError, match="use --load-format safetensors"):
        accept_extra_key(
            loader._validate_default_loader_extra_config,
            extra_config={"glm53_allow_extra": True},
            load_format=loader.LoadFormat.INSTANTTENSOR,
        )
