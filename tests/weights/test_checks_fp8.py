"""Wrong dtypes, bad scales and packed experts are found and named."""

import pytest
import torch

from sglang_glm53.weights.checks import dtype_fault, scale_fault
from sglang_glm53.weights.stored_tensors import TensorSpec
from tests.weights.check_runs import BUILDS, CHECKPOINT, EXTRA, PLANS, run, tensors
from tests.weights.fake_model import BF16, F32, FP8


@pytest.mark.parametrize(
    ("build", "name", "dtype", "fault"),
    [
        (
            "fp8",
            "model.layers.0.self_attn.q_a_proj.weight",
            BF16,
            "is bfloat16, but parameter model.layers.0.self_attn.fused_qkv_a_proj_with_mqa.weight is "
            "float8_e4m3fn",
        ),
        (
            "fp8",
            "model.layers.0.self_attn.o_proj.weight",
            torch.float8_e5m2,
            "is float8_e5m2, but parameter model.layers.0.self_attn.o_proj.weight is float8_e4m3fn "
            "(does quantization_config in config.json match the checkpoint?)",
        ),
        (
            "bf16",
            "model.layers.1.mlp.experts.0.up_proj.weight",
            FP8,
            "is float8_e4m3fn, but parameter model.layers.1.mlp.experts.w13_weight is bfloat16 "
            "(does quantization_config in config.json match the checkpoint?)",
        ),
        (
            "merged",
            "model.layers.1.self_attn.indexer.weights_proj.weight",
            FP8,
            "is float8_e4m3fn, but parameter model.layers.1.self_attn.indexer.wk_weights_proj.weight is "
            "bfloat16 (does quantization_config in config.json match the checkpoint?)",
        ),
        (
            "fp8",
            "model.layers.1.mlp.gate.e_score_correction_bias",
            torch.int32,
            "is int32, and a weight cannot be",
        ),
        (
            "fp8",
            "model.layers.1.mlp.gate.e_score_correction_bias",
            FP8,
            "is float8_e4m3fn, but parameter model.layers.1.mlp.gate.e_score_correction_bias is float32 "
            "(does quantization_config in config.json match the checkpoint?)",
        ),
        (
            "fp8",
            "model.layers.0.self_attn.o_proj.weight_scale_inv",
            torch.uint8,
            "is uint8, and a scale cannot be",
        ),
        (
            "fp8",
            "model.layers.0.self_attn.o_proj.weight_scale_inv",
            FP8,
            "is float8_e4m3fn, and a scale cannot be",
        ),
    ],
)
def test_a_wrong_dtype_is_named_and_withheld(build, name, dtype, fault):
    given = tensors(build)
    given[name] = given[name].float().to(dtype)
    passed, problems = run(build, given)
    assert problems[0] == f"wrong dtype (1): {name} {fault}"
    assert len(problems) == 1
    assert name not in passed


@pytest.mark.parametrize("held", [BF16, F32])
@pytest.mark.parametrize("dtype", [BF16, F32, torch.float16])
def test_floats_convert_into_floats(dtype, held):
    assert dtype_fault(TensorSpec((1,), "bf16"), dtype, "p", held) is None


def test_parameters_repacked_after_loading_take_any_weight():
    assert dtype_fault(TensorSpec((1, 1), "fp8"), FP8, "p", torch.int32) is None
    assert dtype_fault(TensorSpec((1, 1), "fp8"), torch.int8, "p", torch.int32) is not None


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.1.mlp.experts.3.up_proj.weight"])
def test_a_scale_of_a_weight_that_is_not_fp8_is_named(name):
    scale = name + "_scale_inv"
    if scale in CHECKPOINT:
        given, fault = tensors("bf16") | {scale: CHECKPOINT[scale]}, "wrong dtype (1)"
        home = PLANS["bf16"].homes[name]
        expected = f"{fault}: {scale} is a scale, but parameter {home} is bfloat16, not FP8"
    else:
        given, expected = tensors("bf16") | {scale: torch.ones(1)}, f"{EXTRA} (1): {scale}"
    passed, problems = run("bf16", given)
    assert problems == [expected]
    assert scale not in passed


WK = "model.layers.1.self_attn.indexer.wk.weight"
MERGED = "model.layers.1.self_attn.indexer.wk_weights_proj.weight"


@pytest.mark.parametrize(
    ("weight", "scale", "expected"),
    [
        (FP8, True, []),
        (BF16, False, []),
        (FP8, False, [f"missing from the checkpoint (1): {WK}_scale_inv, which fills parameter {MERGED}"]),
        (BF16, True, [f"wrong dtype (1): {WK}_scale_inv is a scale, but {WK} is bfloat16"]),
        (None, False, [f"missing from the checkpoint (1): {WK}, which fills parameter {MERGED}"]),
        (None, True, [f"missing from the checkpoint (1): {WK}, which fills parameter {MERGED}"]),
    ],
)
def test_the_merged_index_projection_takes_wk_in_bf16_or_in_fp8_with_its_scale(weight, scale, expected):
    given = tensors("merged")
    if weight is None:
        del given[WK]
    else:
        given[WK] = given[WK].to(weight)
    if not scale:
        del given[WK + "_scale_inv"]
    assert run("merged", given)[1] == expected


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("value", "fault"),
    [(NAN, "NaN"), (0.0, "zero"), (-0.0, "zero"), (-1.0, "a negative value"), (INF, "an infinite value")],
)
@pytest.mark.parametrize(
    ("build", "name"),
    [
        ("fp8", "model.layers.0.self_attn.o_proj.weight_scale_inv"),
        ("ep1", "model.layers.1.mlp.experts.3.down_proj.weight_scale_inv"),
        ("merged", WK + "_scale_inv"),
        ("draft", "model.layers.5.mlp.shared_experts.up_proj.weight_scale_inv"),
    ],
)
def test_a_bad_scale_is_named_and_withheld(build, name, value, fault):
    scale = CHECKPOINT[name].clone()
    scale[-1, -1] = value
    passed, problems = run(build, tensors(build) | {name: scale}, {name: "model-2.safetensors"})
    assert problems == [
        f"bad FP8 scale (1): {name} in model-2.safetensors holds {fault}; "
        "scales must be finite and above zero"
    ]
    assert name not in passed


def test_a_scale_is_checked_by_the_rank_that_uses_it():
    name = "model.layers.1.mlp.experts.0.down_proj.weight_scale_inv"
    given = tensors("ep1") | {name: torch.zeros_like(CHECKPOINT[name])}
    assert run("ep1", given)[1] == []
    assert run("fp8", given)[1] != []
    # In an update experts may have moved to this rank.
    assert run("ep1", {name: given[name]}, complete=False)[1] != []


@pytest.mark.parametrize("dtype", [F32, BF16, torch.float8_e8m0fnu])
def test_sound_scales_of_any_float(dtype):
    assert scale_fault(torch.tensor([[2.0**-20, 1.0], [448.0, 2.0**20]]).to(dtype)) is None


def packed(build, layer):
    """The checkpoint with one layer's experts packed, as transformers saves them."""
    given, at = tensors(build), f"model.layers.{layer}.mlp.experts"
    for suffix in ("", "_scale_inv") if BUILDS[build].fp8 else ("",):
        parts = {
            part: [given.pop(f"{at}.{e}.{part}.weight{suffix}") for e in range(4)]
            for part in ("gate_proj", "up_proj", "down_proj")
        }
        pairs = zip(parts["gate_proj"], parts["up_proj"], strict=True)
        end = suffix.removesuffix("_inv")
        given[f"{at}.gate_up_proj{end}"] = torch.stack([torch.cat(pair) for pair in pairs])
        given[f"{at}.down_proj{end}"] = torch.stack(parts["down_proj"])
    return given, at


@pytest.mark.parametrize("build", ["fp8", "bf16", "ep1", "draft"])
def test_packed_experts_stand_for_each_of_them(build):
    given, _ = packed(build, 5 if BUILDS[build].draft else 1)
    passed, problems = run(build, given)
    assert problems == []
    assert passed == list(given)


def test_faults_of_packed_experts_are_named():
    given, at = packed("fp8", 1)
    one = f"{at}.2.down_proj.weight"
    assert run("fp8", given | {one: CHECKPOINT[one]})[1] == [f"stored twice (1): {one}"]
    wrong = {f"{at}.down_proj": given[f"{at}.down_proj"][:3]}
    assert run("fp8", given | wrong)[1] == [
        f"wrong shape (1): {at}.down_proj is [3, 256, 128], expected [4, 256, 128]"
    ]
    scale = given[f"{at}.gate_up_proj_scale"].clone()
    scale[1, 0, 0] = 0
    (problem,) = run("fp8", given | {f"{at}.gate_up_proj_scale": scale})[1]
    assert problem.startswith(f"bad FP8 scale (1): {at}.gate_up_proj_scale holds zero")
    del given[f"{at}.down_proj"]
    (problem,) = run("fp8", given)[1]
    assert problem.startswith(f"missing from the checkpoint (4): {at}.0.down_proj.weight, which fills")
