"""Every reason for a refusal, what does not make one, and the error that lists them."""

import logging
import sys
from types import SimpleNamespace

import pytest

from sglang_glm53 import upstream
from sglang_glm53.serving import hooks, preflight
from sglang_glm53.serving.preflight import (
    RefusedError,
    flag_reasons,
    model_reasons,
    package_reasons,
)
from tests.configs import EAGLE, FP8, HARMLESS, environ, glm53

NO_LORA = (
    "--enable-lora or --lora-paths: no adapter has been proved with this package's layers: leave it out, or "
    "serve SGLang's own implementation without --model-impl"
)
FULL, SHARED = "full", "shared"
DEEPEP = HARMLESS | {
    "moe_a2a_backend": "deepep",
    "deepep_mode": "auto",
    "disaggregation_mode": "null",
    "tp_size": 8,
    "attn_dp_size": 8,
    "attn_cp_size": 1,
    "page_size": 64,
    "disable_attn_tp_gather": False,
    "cuda_graph_config": None,
    "ep_num_redundant_experts": 0,
    "max_running_requests": 256,
}
CAPACITY = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"


def as_object(config):
    return SimpleNamespace(**config)


@pytest.mark.parametrize("form", [dict, as_object], ids=["dict", "object"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"quantization_config": FP8},
        {"quantization_config": SimpleNamespace(to_dict=lambda: FP8)},
        {"quantization_config": FP8 | {"weight_block_size": (128, 128)}},
        {"n_group": ..., "topk_group": ...},
        {"index_topk": 1},
        {"indexer_types": ...},
        {"index_topk_freq": ..., "index_skip_topk_offset": ...},
        {"num_nextn_predict_layers": 0},
    ],
)
def test_what_can_run(changes, form):
    assert model_reasons(form(glm53(**changes))) == []


def test_the_draft_of_the_same_checkpoint_can_run():
    assert model_reasons(glm53(architectures=["GlmMoeDsaForCausalLMNextN"]), is_draft=True) == []


REFUSALS = [
    (
        {"architectures": ["Glm5NextForConditionalGeneration"]},
        "architecture Glm5NextForConditionalGeneration is GLM-5.3-Flash, a hybrid model that shares only the "
        "name: serve it with SGLang's own implementation, without --model-impl",
    ),
    (
        {"architectures": ["DeepseekV32ForCausalLM"]},
        "architecture DeepseekV32ForCausalLM: this package serves GlmMoeDsaForCausalLM alone; "
        "leave out --model-impl for any other model",
    ),
    (
        {"architectures": ...},
        "architecture none: this package serves GlmMoeDsaForCausalLM alone; "
        "leave out --model-impl for any other model",
    ),
    ({"n_group": 8}, "config.json: n_group=8: this package has no grouped routing, n_group must be 1"),
    (
        {"topk_group": 4},
        "config.json: topk_group=4: this package has no grouped routing, topk_group must be 1",
    ),
    ({"n_group": None}, "config.json: n_group=None: this package has no grouped routing, n_group must be 1"),
    ({"index_topk": 2049}, "config.json: index_topk=2049: it must be from 1 to 2048"),
    ({"index_topk": 0}, "config.json: index_topk=0: it must be from 1 to 2048"),
    ({"index_topk": None}, "config.json lacks or misstates index_topk: integers are needed"),
    (
        {"num_hidden_layers": ..., "v_head_dim": "256"},
        "config.json lacks or misstates num_hidden_layers, v_head_dim: integers are needed",
    ),
    (
        {"indexer_types": [FULL] * 78},
        "indexer_types calls layer 3 'full', but index_topk_pattern or index_topk_freq and "
        "index_skip_topk_offset make it 'shared': remove one of the two or make them agree",
    ),
    (
        {"indexer_types": [SHARED] + [FULL] * 77, "index_topk_freq": ...},
        "layer 0 is 'shared', but no full layer before it could give it a selection: make it 'full'",
    ),
    (
        {"indexer_types": ..., "index_topk_freq": 0},
        "index_topk_freq=0 and index_skip_topk_offset=3 must be integers, at least 1",
    ),
    (
        {"quantization_config": FP8 | {"weight_block_size": [64, 128]}},
        "config.json: quantization_config.weight_block_size=[64, 128]: an FP8 checkpoint must be "
        "quantised in blocks of [128, 128]",
    ),
    (
        {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}},
        "config.json: quantization_config.quant_method=modelopt: this package serves bf16 and FP8 block "
        "checkpoints: leave out --model-impl for SGLang's own implementation",
    ),
    (
        {"quantization_config": {"quant_method": "fp8"}},
        "config.json: quantization_config.weight_block_size=None: an FP8 checkpoint must be quantised in "
        "blocks of [128, 128]",
    ),
]


@pytest.mark.parametrize("form", [dict, as_object], ids=["dict", "object"])
@pytest.mark.parametrize(("changes", "reason"), REFUSALS)
def test_refusal(changes, reason, form):
    assert list(dict.fromkeys(model_reasons(form(glm53(**changes))))) == [reason]


def test_a_target_with_the_drafts_architecture_is_refused():
    [reason] = model_reasons(glm53(architectures=["GlmMoeDsaForCausalLMNextN"]))
    assert reason.startswith(
        "architecture GlmMoeDsaForCausalLMNextN: this package serves GlmMoeDsaForCausalLM"
    )


def test_every_reason_is_given_at_once_and_numbered():
    config = glm53(
        n_group=8,
        topk_group=4,
        index_topk=4096,
        indexer_types=[SHARED] * 78,
        quantization_config=FP8 | {"weight_block_size": [1, 128]},
    )
    reasons = model_reasons(config)
    error = RefusedError(reasons)
    assert [reason.split("=")[0].split(" calls")[0] for reason in error.reasons] == [
        "config.json: n_group",
        "config.json: topk_group",
        "config.json: index_topk",
        "indexer_types",
        "layer 0 is 'shared', but no full layer before it could give it a selection: make it 'full'",
        "config.json: quantization_config.weight_block_size",
    ]
    assert str(error).splitlines()[0] == "--model-impl glm53 cannot run this:"
    assert str(error).splitlines()[1:] == [f"  {i}. {reason}" for i, reason in enumerate(reasons, 1)]


def test_a_reason_that_two_checks_give_is_listed_once():
    assert RefusedError(["a", "b", "a"]).reasons == ("a", "b")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, []),
        ({"enable_lora": True}, [NO_LORA]),
        ({"lora_paths": ["one"]}, [NO_LORA]),
        ({"enable_two_batch_overlap": True, "moe_a2a_backend": "deepep"}, []),
        (
            {"enable_two_batch_overlap": True},
            [
                "--enable-two-batch-overlap with --moe-a2a-backend none: the micro-batches take turns around "
                "a dispatch of two phases: use one of deepep, mooncake, mori, nixl"
            ],
        ),
        ({"enable_mixed_chunk": True}, []),
        (EAGLE, []),
        (
            EAGLE | {"speculative_eagle_topk": 4},
            [
                "--speculative-eagle-topk 4: SGLang's sparse attention shows every row the drafts before it, "
                "those of other branches too: use 1"
            ],
        ),
        (
            {"enable_two_batch_overlap": True, "enable_mixed_chunk": True, "moe_a2a_backend": "deepep"},
            [
                "--enable-two-batch-overlap with --enable-mixed-chunk: the overlap serves no batch that "
                "mixes prefill and decode: leave one of them out"
            ],
        ),
    ],
)
def test_flags(flags, expected):
    assert flag_reasons(SimpleNamespace(**HARMLESS | flags)) == expected


def test_drafts_across_stages_where_sglang_is_told_to(monkeypatch):
    envs = SimpleNamespace(SGLANG_ENABLE_PP_SPEC=SimpleNamespace(get=lambda: True))
    monkeypatch.setitem(sys.modules, "sglang.srt.environ", SimpleNamespace(envs=envs))
    assert flag_reasons(SimpleNamespace(**HARMLESS | EAGLE | {"pp_size": 2})) == []


@pytest.mark.parametrize(
    ("kernels", "device", "reason"),
    [
        ("cuda", "cpu", "GLM53_KERNELS=cuda needs a GPU, not cpu: use auto, torch or emulated"),
        ("emulated", "cuda", "GLM53_KERNELS=emulated runs on the CPU, not on cuda: use auto, torch or cuda"),
        ("emulated", "xpu", "GLM53_KERNELS=emulated runs on the CPU, not on xpu: use auto, torch or cuda"),
        ("cuda", "cuda", None),
        ("emulated", "cpu", None),
        ("torch", "cuda", None),
        ("auto", "cpu", None),
    ],
)
def test_kernels_that_the_device_does_not_run(monkeypatch, kernels, device, reason):
    monkeypatch.setenv("GLM53_KERNELS", kernels)
    flags = SimpleNamespace(**HARMLESS | {"device": device})
    assert flag_reasons(flags) == ([reason] if reason else [])


@pytest.fixture
def no_seam_problem(monkeypatch):
    monkeypatch.setattr(hooks, "problems", lambda groups: [])


def test_the_pinned_version_needs_no_word(no_seam_problem, caplog):
    assert package_reasons(["guard"]) == []
    assert caplog.records == []


def test_another_version_is_refused(no_seam_problem, monkeypatch):
    monkeypatch.setattr(upstream, "version", lambda: "0.5.24")
    assert package_reasons(["guard"]) == [
        "SGLang 0.5.24: this package is written for 0.5.23: pip install sglang==0.5.23, "
        "or set GLM53_ALLOW_UNTESTED=1 to try as it is"
    ]


def test_another_version_that_is_allowed_is_a_warning(no_seam_problem, monkeypatch, caplog):
    monkeypatch.setattr(upstream, "version", lambda: "0.5.24")
    monkeypatch.setenv("GLM53_ALLOW_UNTESTED", "1")
    assert package_reasons(["guard"]) == []
    [record] = caplog.records
    assert (record.name, record.levelno) == ("sglang_glm53", logging.WARNING)
    assert record.getMessage().startswith("SGLang 0.5.24: this package is written for 0.5.23")


def test_allowing_another_version_allows_nothing_else(monkeypatch):
    monkeypatch.setenv("GLM53_ALLOW_UNTESTED", "1")
    monkeypatch.setattr(hooks, "problems", lambda groups: [f"{group}.f: gone" for group in groups])
    assert package_reasons(["guard", "model"]) == [
        f"SGLang changed: {group}.f: gone: pip install --force-reinstall --no-deps sglang=={upstream.VERSION}"
        for group in ("guard", "model")
    ]


def test_a_bad_environment_is_a_reason(no_seam_problem, monkeypatch):
    monkeypatch.setenv("GLM53_KERNELS", "triton")
    assert package_reasons(["guard"]) == ["GLM53_KERNELS='triton': use one of auto, torch, emulated, cuda"]
    assert preflight.settings()[0].kernels == "auto"


@pytest.fixture
def override_base(monkeypatch):
    """SGLang's two accessors, reading a record's own attributes."""
    module = SimpleNamespace(
        model_config_of=lambda args: SimpleNamespace(hf_config=args.config), resolving_view=lambda args: args
    )
    monkeypatch.setitem(sys.modules, "sglang.srt.arg_groups.model_override_base", module)


@pytest.fixture
def deepep_capacity(monkeypatch):
    """SGLang's two sizes of a step as the record has them, and its variable, to which this sets a value."""
    overrides = SimpleNamespace(
        max_speculative_num_draft_tokens=lambda args: args.draft_tokens,
        max_prefill_buffer_tokens=lambda args: args.chunk_tokens,
    )
    monkeypatch.setitem(sys.modules, "sglang.srt.arg_groups.overrides", overrides)

    def capacity_is(value):
        monkeypatch.setitem(sys.modules, "sglang.srt.environ", environ(**{CAPACITY: value}))

    return capacity_is


def _server(config, **flags):
    return SimpleNamespace(config=config, draft_tokens=6, chunk_tokens=1024, **DEEPEP | flags)


def test_a_server_is_judged_by_its_model_and_its_flags(no_seam_problem, override_base):
    args = SimpleNamespace(config=glm53(n_group=2), **HARMLESS | {"use_ray": True})
    assert [reason.partition(":")[0] for reason in preflight.server_reasons(args)] == [
        "config.json",
        "--use-ray",
    ]


@pytest.mark.parametrize(
    ("flags", "config", "counts"),
    [
        (EAGLE, {"num_nextn_predict_layers": 0}, "num_nextn_predict_layers is 0, num_hidden_layers 78"),
        (EAGLE, {"num_nextn_predict_layers": ...}, "num_nextn_predict_layers is 0, num_hidden_layers 78"),
        (
            EAGLE | {"speculative_draft_model_path": "target"},
            {"num_nextn_predict_layers": 2},
            "num_nextn_predict_layers is 2, num_hidden_layers 78",
        ),
        (EAGLE, {}, None),
        (EAGLE | {"speculative_draft_model_path": "another"}, {"num_nextn_predict_layers": 0}, None),
        ({}, {"num_nextn_predict_layers": 0}, None),
    ],
)
def test_a_checkpoint_without_the_draft_that_is_asked_for(
    no_seam_problem, override_base, deepep_capacity, flags, config, counts
):
    deepep_capacity(192)
    wanted = "SGLang's MTP draft needs exactly 1, and at least 2: leave it out"
    expected = [f"--speculative-algorithm: config.json: {counts}: {wanted}"] if counts else []
    own = {"model_path": "target", "speculative_draft_model_path": None} | flags
    assert preflight.server_reasons(_server(glm53(**config), moe_a2a_backend="none", **own)) == expected


def test_nothing_is_read_through_an_accessor_that_moved(override_base, monkeypatch):
    monkeypatch.setattr(hooks, "problems", lambda groups: ["moved"] if tuple(groups) == ("guard",) else [])
    args = SimpleNamespace(config=glm53(n_group=2), **HARMLESS | {"use_ray": True})
    assert preflight.server_reasons(args) == []


@pytest.mark.parametrize("room", [128, 188])
def test_a_step_over_deepeps_capacity_is_refused(no_seam_problem, override_base, deepep_capacity, room):
    deepep_capacity(room)
    [reason] = preflight.server_reasons(_server(glm53(), **EAGLE))
    assert reason.startswith(f"{CAPACITY}={room}, but a decode step has up to 192 rows on a rank")
    assert ": set it to 192, or --max-running-requests to at most " in reason


def test_a_step_within_it_is_not(no_seam_problem, override_base, deepep_capacity, caplog):
    deepep_capacity(192)
    assert preflight.server_reasons(_server(glm53(), **EAGLE)) == []
    assert caplog.records == []


def test_the_largest_step_counts(no_seam_problem, override_base, deepep_capacity):
    deepep_capacity(512)
    [reason] = preflight.server_reasons(_server(glm53(), deepep_mode="low_latency", **EAGLE))
    assert reason.startswith(f"{CAPACITY}=512, but a prefill step has up to 1024 rows on a rank")


@pytest.mark.parametrize(("redundant", "spare"), [(0, 2044723200), (64, 2555904000)])
def test_a_wasteful_capacity_is_a_warning(
    no_seam_problem, override_base, deepep_capacity, caplog, redundant, spare
):
    deepep_capacity(192)
    assert preflight.server_reasons(_server(glm53(), ep_num_redundant_experts=redundant)) == []
    [record] = caplog.records
    assert (record.name, record.levelno) == ("sglang_glm53", logging.WARNING)
    assert record.getMessage().startswith(f"{CAPACITY}=192, but no step has more than 32 rows on a rank: 32 ")
    assert f" free {spare} bytes " in record.getMessage()


def test_the_capacity_of_an_unknown_model_is_not_judged(no_seam_problem, override_base, deepep_capacity):
    deepep_capacity(4096)
    [reason] = preflight.server_reasons(_server(glm53(v_head_dim=None)))
    assert reason == "config.json lacks or misstates v_head_dim: integers are needed"
