"""Every missing, extra, misshapen or misplaced checkpoint tensor is found and named; a sound one passes."""

import re

import pytest
import torch

from sglang_glm53.geometry import Geometry
from sglang_glm53.weights.checks import Intake, WeightLoadError, line
from sglang_glm53.weights.parameter_map import IGNORED_TENSORS, plan
from tests.weights.check_runs import BUILDS, CHECKPOINT, EXTRA, PLANS, run, tensors
from tests.weights.fake_model import BF16, CONFIG, FP8, GEOMETRY, Build, fake_model


def one_of_each_class(names):
    """One name for each kind of tensor: numbers do not matter, but full, shared and MTP layers do."""
    chosen = {}
    for name in names:
        layer = re.match(r"model\.layers\.(\d+)\.", name)
        kind = "mtp" if layer and layer[1] == "5" else ""
        chosen.setdefault((kind, re.sub(r"\d+", "N", name)), name)
    return sorted(chosen.values())


@pytest.mark.parametrize("build", BUILDS)
def test_a_sound_checkpoint_passes_whole(build):
    given = tensors(build)
    passed, problems = run(build, given)
    assert problems == []
    assert passed == list(given)


DROPS = [(build, name) for build in BUILDS for name in one_of_each_class(PLANS[build].homes)]


@pytest.mark.parametrize(("build", "name"), DROPS, ids=lambda value: str(value))
def test_any_dropped_tensor_is_named_with_its_parameter(build, name):
    given = tensors(build)
    del given[name]
    _, problems = run(build, given)
    home = PLANS[build].homes[name]
    assert problems == [f"missing from the checkpoint (1): {name}, which fills parameter {home}"]


def test_dropped_tensors_that_a_model_does_not_need():
    for build in ("stage2", "ep1", "draft"):
        given = {name: CHECKPOINT[name] for name in PLANS[build].homes}
        assert run(build, given)[1] == []
    given = tensors("fp8")
    del given["model.layers.5.embed_tokens.weight"]
    assert run("draft", given)[1] == []


def test_the_first_ten_missing_tensors_are_named_and_the_rest_counted():
    given = {name: tensor for name, tensor in CHECKPOINT.items() if ".o_proj." not in name}
    given = {name: tensor for name, tensor in given.items() if ".input_layernorm." not in name}
    (problem,) = run("fp8", given)[1]
    assert problem.startswith("missing from the checkpoint (15): model.layers.0.")
    assert problem.count("which fills parameter") == 10
    assert problem.endswith("; and 5 more")


def test_missing_tensors_are_placed_by_the_index():
    given = tensors("fp8")
    del given["model.norm.weight"]
    assert run("fp8", given, {"model.norm.weight": "model-7.safetensors"})[1] == [
        "missing from the checkpoint (1): model.norm.weight, which fills parameter model.norm.weight "
        "(the index puts it in model-7.safetensors)"
    ]


EXTRAS = [
    "model.layers.0.self_attn.sinks",
    "model.layers.0.self_attn.o_proj.bias",
    "model.layers.1.mlp.experts.4.up_proj.weight",
    "model.layers.1.mlp.experts.w13_weight",
    "model.layers.1.mlp.experts.gate_up_proj_scale_inv",
    "model.layers.1.mlp.gate_proj.weight",
    "model.layers.1.self_attn.indexers_proj.weight",
    "model.layers.1.self_attn.indexer.weights_proj.weight_scale_inv",
    "model.layers.1.self_attn.attn_mqa.k_scale",
    "model.layers.6.self_attn.o_proj.weight",
    "model.layers.50.self_attn.o_proj.weight",
    "visual.blocks.0.weight",
]


@pytest.mark.parametrize("build", ["fp8", "stage2", "ep1", "draft"])
@pytest.mark.parametrize("name", EXTRAS)
def test_any_extra_tensor_is_named_and_withheld(build, name):
    given = tensors(build) | {name: torch.zeros(2, dtype=BF16)}
    passed, problems = run(build, given)
    assert problems == [f"{EXTRA} (1): {name}"]
    assert name not in passed
    assert len(passed) == len(given) - 1
    assert run(build, given, allow_extra=True) == (passed, [])


def test_the_first_ten_extra_tensors_are_named_and_the_rest_counted():
    given = tensors("fp8") | {f"extra.{i:02}": torch.zeros(1) for i in range(13)}
    (problem,) = run("fp8", given)[1]
    assert problem == f"{EXTRA} (13): " + "; ".join(f"extra.{i:02}" for i in range(10)) + "; and 3 more"


@pytest.mark.parametrize("build", ["fp8", "stage2", "draft"])
def test_an_indexer_tensor_on_a_shared_layer_is_named(build):
    name = "model.layers.3.self_attn.indexer.wk.weight"
    given = tensors(build) | {name: CHECKPOINT[name.replace("3", "1")]}
    passed, problems = run(build, given, allow_extra=True)
    assert problems == [f"indexer tensors on shared layers, which have no indexer (1): {name}"]
    assert name not in passed


IGNORED = [
    ("fp8", "model.layers.0.self_attn.rotary_emb.inv_freq"),
    ("draft", "model.layers.0.self_attn.rotary_emb.inv_freq"),
    ("fp8", "model.layers.5.eh_proj.weight"),
    ("fp8", "model.layers.5.of_another_version.weight"),
    ("draft", "model.layers.5.embed_tokens.weight"),
    ("draft", "model.layers.5.shared_head.head.weight"),
]


@pytest.mark.parametrize(("build", "name"), IGNORED)
def test_ignored_tensors_may_be_there_whatever_they_hold(build, name):
    given = tensors(build) | {name: torch.zeros(2, 3, dtype=torch.int8)}
    assert run(build, given)[1] == []


def test_each_ignored_name_is_tested_and_has_a_reason():
    tested = [rule for rule in IGNORED_TENSORS for build, name in IGNORED if rule_holds(rule, build, name)]
    assert set(tested) == set(IGNORED_TENSORS)
    assert all(rule.reason for rule in IGNORED_TENSORS)


def rule_holds(rule, build, name):
    return rule.draft in (None, BUILDS[build].draft) and re.fullmatch(rule.pattern.format(mtp=5), name)


def test_the_mtp_layer_is_ignored_when_the_config_has_none():
    config = CONFIG | {"num_nextn_predict_layers": 0}
    geometry = Geometry.from_config(config)
    intake = Intake(plan(fake_model(Build(), config), geometry, draft=False), {})
    assert all(intake.take(name, tensor) for name, tensor in CHECKPOINT.items())
    assert intake.problems() == []


@pytest.mark.parametrize("name", one_of_each_class(PLANS["fp8"].homes))
def test_a_wrong_shape_is_named_and_withheld(name):
    right = CHECKPOINT[name]
    for wrong in (right[:-1], right.unsqueeze(0)):
        given = tensors("fp8") | {name: wrong}
        passed, problems = run("fp8", given, {name: "model-3.safetensors"})
        assert problems == [
            f"wrong shape (1): {name} in model-3.safetensors is {list(wrong.shape)}, "
            f"expected {list(right.shape)}"
        ]
        assert name not in passed
        assert len(passed) == len(given) - 1


def test_all_problems_of_a_checkpoint_are_reported_together():
    given = tensors("fp8")
    del given["model.norm.weight"]
    given["model.layers.0.self_attn.o_proj.weight"] = torch.zeros(3, 3, dtype=FP8)
    given["model.layers.2.self_attn.indexer.k_norm.bias"] = torch.zeros(128)
    given["stray"] = torch.zeros(1)
    given["model.layers.1.mlp.gate.e_score_correction_bias"] = torch.zeros(4, dtype=torch.int32)
    given["model.layers.1.self_attn.q_b_proj.weight_scale_inv"][0, 0].zero_()
    try:
        kinds = [problem.split(" (")[0] for problem in run("fp8", given)[1]]
    finally:
        given["model.layers.1.self_attn.q_b_proj.weight_scale_inv"].fill_(1)
    assert kinds == [
        "wrong shape",
        "bad FP8 scale",
        "wrong dtype",
        "indexer tensors on shared layers, which have no indexer",
        "missing from the checkpoint",
        "extra tensors",
    ]


def test_a_tensor_stored_twice_is_named():
    intake = Intake(PLANS["fp8"], {"model.norm.weight": "model-2.safetensors"})
    given = [*CHECKPOINT.items(), ("model.norm.weight", CHECKPOINT["model.norm.weight"])]
    passed = [name for name, tensor in given if intake.take(name, tensor)]
    assert intake.problems() == ["stored twice (1): model.norm.weight in model-2.safetensors"]
    assert len(passed) == len(given) - 1


def test_an_update_may_bring_any_part_but_each_tensor_is_checked():
    norm = {"model.norm.weight": CHECKPOINT["model.norm.weight"]}
    assert run("fp8", norm, complete=False) == (list(norm), [])
    wrong = {"model.norm.weight": torch.zeros(3), "stray": torch.zeros(1)}
    kinds = [problem.split(" (")[0] for problem in run("fp8", wrong, complete=False)[1]]
    assert kinds == ["wrong shape", "extra tensors"]


def test_a_parameter_without_a_tensor_is_a_problem_of_the_first_load():
    model = fake_model(Build())
    model.new = torch.nn.Parameter(torch.zeros(1))
    made = plan(model, GEOMETRY, draft=False)
    assert Intake(made, {}, complete=False).problems() == []
    assert Intake(made, {}).problems()[0] == (
        "parameters without a tensor (1): parameter new is filled by no known tensor"
    )


def test_the_error_lists_every_problem():
    error = WeightLoadError("the weights", [line("stored twice", ["a", "b"]), "second"])
    assert str(error) == "cannot load the weights:\n- stored twice (2): a; b\n- second"
    assert error.problems == ("stored twice (2): a; b", "second")
