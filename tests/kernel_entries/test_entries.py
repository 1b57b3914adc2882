"""Owns the checks of what the boundary fusions remove: recorded kernel entries, stock's step against ours."""

from __future__ import annotations

import re

import pytest

from tests import configs
from tests.kernel_entries import harness, report

DEVICES = [pytest.param("9.0", id="H200"), pytest.param("10.0", id="B300", marks=pytest.mark.matrix)]
DEPLOYMENTS = [
    pytest.param(*device.values, deployment, id=f"{device.id}-{deployment}", marks=device.marks)
    for device in DEVICES
    for deployment in report.DEPLOYMENTS[device.values[0]]
]
FUSED = {
    "9.0": "flashinfer norm::fused_add_rmsnorm_fp8_block_quant",
    "10.0": "jit glm53/add_rmsnorm_quant::add_rmsnorm_quant",
}
OWN = FUSED["10.0"]
STOCK_TOPK, OWN_TOPK = (
    "jit dpsk_v4_topk_v2::topk_transform_paged",
    "jit glm53/indexer_topk::indexer_topk",
)
ADD_NORM, NORM = "norm fused_add_rmsnorm_cute", "norm _rmsnorm_impl"


@pytest.fixture
def recorded(request: pytest.FixtureRequest, capability: str) -> dict[str, harness.Entries]:
    """The entries by case, of the cases that were recorded without an error."""
    answers = request.getfixturevalue({"9.0": "hopper", "10.0": "blackwell"}[capability])
    for name in report.cases(capability):
        assert "entries" in answers[name], (answers[name]["error"], answers[name]["stderr"][-4000:])
    return {name: answer["entries"] for name, answer in answers.items() if "entries" in answer}


def _of_layer(recorded: dict[str, harness.Entries], case: str, layer: int) -> harness.Entries:
    return harness.of_layer(recorded[case], layer)


@pytest.mark.parametrize(("capability", "deployment"), DEPLOYMENTS)
def test_stocks_sequence_is_the_golden_one(recorded, capability, deployment):
    golden = report.golden_file(capability, deployment).read_text().splitlines()
    assert report.golden_lines(recorded[f"{deployment} stock"]) == golden


@pytest.mark.parametrize("capability", DEVICES)
@pytest.mark.parametrize("layer", [3, 6])
def test_dp8_layer_changes_by_its_fusions_alone(recorded, capability, layer):
    at = f"model.layers.{layer}"
    removed = [
        f"{report.QUANT} at {at}.self_attn.fused_qkv_a_proj_with_mqa",
        f"{report.QUANT} at {at}.self_attn.q_b_proj",
        f"{report.QUANT} at {at}.mlp.shared_experts.gate_up_proj",
        f"{ADD_NORM} at {at}.input_layernorm",
        f"{ADD_NORM} at {at}.post_attention_layernorm",
        f"{NORM} at {at}.self_attn.q_a_layernorm",
    ]
    added = [f"{FUSED[capability]} at {at}"] * 2 + [f"{OWN} at {at}.self_attn.q_a_layernorm"]
    if layer == 6:
        removed.append(f"{report.QUANT} at {at}.self_attn.indexer.wq_b")
        removed.append(f"{STOCK_TOPK} at {at}.self_attn.indexer")
        added.append(f"{OWN_TOPK} at {at}.self_attn.indexer")
    stock, ours = (_of_layer(recorded, f"dp8_deepep {one}", layer) for one in ("stock", "ours"))
    assert harness.change(stock, ours) == (sorted(removed), sorted(added))


@pytest.mark.parametrize("capability", DEVICES)
def test_dp8_step_has_156_fewer_at_the_boundaries_and_99_by_the_q_a_reuse(recorded, capability):
    stock, ours = recorded["dp8_deepep stock"], recorded["dp8_deepep ours"]
    assert report.step_saved(stock, ours) == {"attention_input": 78, "ffn_input": 75 + 3, "q_a": 57 + 2 * 21}
    assert report.step(stock) - report.step(ours) == 156 + 99


def _norms_with_all_reduce(entries: harness.Entries) -> list[str]:
    """Where FlashInfer's all-reduce adds and normalises too: "<layer> | <call site>"."""
    found = [entry for entry in entries if entry["name"] == "flashinfer allreduce_fusion"]
    # The last layer's sum has no norm after it in the layers.
    return [f"{e['module']} | {e['site']}" for e in found if " flashinfer_allreduce < " not in e["site"]]


@pytest.mark.parametrize("capability", DEVICES)
def test_tp8_keeps_sglangs_all_reduce_norms(recorded, capability):
    stock, ours = recorded["tp8 stock"], recorded["tp8 ours"]
    fused = _norms_with_all_reduce(stock)
    assert fused == _norms_with_all_reduce(ours)
    assert all("flashinfer_allreduce_residual_rmsnorm" in line for line in fused)
    # Of the 8 layers' two norms only the first layer's first has an input that owes no sum.
    assert len(fused) == 2 * 8 - 1
    assert report.step_saved(stock, ours) == {"attention_input": 1, "ffn_input": 0, "q_a": 99}


@pytest.mark.parametrize("capability", DEVICES[1:])
def test_tp8_on_blackwell_quantises_in_the_trtllm_all_reduce(recorded, capability):
    stock, ours = recorded["tp8_trtllm stock"], recorded["tp8_trtllm ours"]
    site = "sglang_glm53/boundary/allreduce.py make < sglang_glm53/boundary/fused_norm.py Site.complete"
    layers = [0] + [layer for layer in range(1, 8) for _ in range(2)]
    assert _norms_with_all_reduce(ours) == [f"model.layers.{layer} | {site}" for layer in layers]
    assert len(_norms_with_all_reduce(stock)) == len(layers)
    assert report.step_saved(stock, ours) == {"attention_input": 78, "ffn_input": 78, "q_a": 99}
    assert report.step(stock) - report.step(ours) == 156 + 99


@pytest.mark.parametrize(("capability", "deployment"), DEPLOYMENTS)
def test_nothing_outside_the_layers_changes(recorded, capability, deployment):
    outside = [
        harness.lines([e for e in recorded[f"{deployment} {one}"] if "layers." not in e["module"]])
        for one in ("stock", "ours")
    ]
    assert outside[0] == outside[1] != []


@pytest.mark.parametrize("capability", DEVICES)
def test_layers_of_a_kind_are_alike(recorded, capability):
    for entries in recorded.values():
        for pair in ((1, 2), (4, 5)):
            first, second = (
                re.sub(r"layers\.\d+", "layers.N", "\n".join(harness.lines(harness.of_layer(entries, n))))
                for n in pair
            )
            assert first == second


@pytest.mark.parametrize("capability", DEVICES)
def test_the_document_says_what_is_recorded(recorded, capability):
    text = report.DOCUMENT.read_text()
    assert report.section(capability, recorded) in text
    assert text.startswith(report.HEADER)


def test_layers_of_the_document_make_up_the_model():
    assert sum(times for _, times in report.LAYERS.values()) == configs.glm53()["num_hidden_layers"]
    full = sum(times for kind, times in report.LAYERS.values() if "full" in kind)
    assert full == len(configs.FULL_LAYERS)


def test_the_sequence_is_stable(hopper):
    assert harness.lines(hopper["again"]["entries"]) == harness.lines(hopper["dp8_deepep stock"]["entries"])


@pytest.mark.parametrize(
    ("name", "lost", "added"),
    [
        (
            "shared expert",
            [f"{FUSED['9.0']} at model.layers.3"],
            [
                f"{report.QUANT} at model.layers.3.mlp.shared_experts.gate_up_proj",
                f"{ADD_NORM} at model.layers.3.post_attention_layernorm",
            ],
        ),
        (
            "attention",
            [f"{FUSED['9.0']} at model.layers.3"],
            [
                f"{report.QUANT} at model.layers.3.self_attn.fused_qkv_a_proj_with_mqa",
                f"{ADD_NORM} at model.layers.3.input_layernorm",
            ],
        ),
        (
            "q_a",
            [f"{OWN} at model.layers.6.self_attn.q_a_layernorm"],
            [
                f"{report.QUANT} at model.layers.6.self_attn.indexer.wq_b",
                f"{report.QUANT} at model.layers.6.self_attn.q_b_proj",
                f"{NORM} at model.layers.6.self_attn.q_a_layernorm",
            ],
        ),
    ],
)
def test_unfusing_one_read_adds_exactly_its_share(hopper, name, lost, added):
    ours = hopper["dp8_deepep ours"]["entries"]
    assert harness.change(ours, hopper[f"unfused {name}"]["entries"]) == (lost, added)


@pytest.mark.parametrize(("kind", "entry"), [("aten", "aten add_"), ("triton", "triton planted_kernel")])
def test_a_planted_kernel_is_seen(hopper, kind, entry):
    change = harness.change(hopper["again"]["entries"], hopper[f"planted {kind}"]["entries"])
    assert change == ([], [f"{entry} at model.layers.3.mlp"])


def test_an_operator_that_nothing_intercepts_fails(hopper):
    answer = hopper["planted operator"]
    assert answer["error"].startswith("UninterceptedError: planted returns returns a value"), answer


@pytest.mark.parametrize(
    ("kind", "function"), [("runtime launch", "cudaLaunchKernel"), ("driver launch", "cuLaunchKernel")]
)
def test_a_launch_past_the_recorder_ends_the_process(hopper, kind, function):
    answer = hopper[f"planted {kind}"]
    assert answer["error"] == "the recording process ended with status -6"
    assert f"unrecorded launch through {function}\n" in answer["stderr"]
