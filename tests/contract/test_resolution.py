"""Owns the checks of launch/ and of DeepEP's capacity against SGLang's own resolution of the flags."""

import ast
import re

import pytest

from sglang_glm53 import upstream
from sglang_glm53.serving import deepep_capacity
from sglang_glm53.serving.deepep_capacity import VARIABLE
from tests.configs import mtp
from tests.contract import scripts
from tests.contract.resolver import GENERATIONS, MACHINES

SRT = upstream.root() / "srt"
DP8 = ["--tp-size", "8", "--attn-dp-size", "8", "--moe-a2a-backend", "deepep"]
REQUESTS = ["--max-running-requests", "256"]
OVERLAP, MIXED = "--enable-two-batch-overlap", "--enable-mixed-chunk"


def tensor_parallel(**more):
    return {"tp_size": 8, "attn_dp_size": 1, "ep_size": 1, "moe_a2a_backend": "none"} | more


def expert_parallel(ranks, requests, chunk, **more):
    values = {
        "tp_size": ranks,
        "attn_dp_size": ranks,
        "ep_size": ranks,
        "moe_a2a_backend": "deepep",
        "deepep_mode": "auto",
        "moe_dense_tp_size": 1,
        "enable_dp_lm_head": True,
        "max_running_requests": requests,
        "chunked_prefill_size": chunk,
        "enable_two_batch_overlap": False,
        "mem_fraction_static": 0.85,
    }
    return values | more


HOPPER_BF16 = {
    "kv_cache_dtype": "bfloat16",
    "dsa_prefill_backend": "flashmla_sparse",
    "dsa_decode_backend": "fa3",
}
BLACKWELL_FP8 = {
    "kv_cache_dtype": "fp8_e4m3",
    "dsa_prefill_backend": "trtllm",
    "dsa_decode_backend": "trtllm",
}


def two_nodes_or_more(ranks, requests):
    here = {"nnodes": ranks // 8, "node_rank": 1, "dist_init_addr": "head:5000"}
    overlap = {"enable_two_batch_overlap": True, "mem_fraction_static": 0.8}
    return expert_parallel(ranks, requests, 4096, **HOPPER_BF16, **here, **overlap)


def half(mode, **values):
    """Of a prefill/decode pair."""
    return values | {"disaggregation_mode": mode, "disaggregation_transfer_backend": "mooncake"}


# Script, machine, the flags that its comments and launch/README.md state, the rows of its decode step.
SAID = [
    ("tp8_low_latency.sh", "H200", tensor_parallel(**HOPPER_BF16, mem_fraction_static=0.8), None),
    (
        "tp8_long_context.sh",
        "H200",
        tensor_parallel(
            kv_cache_dtype="fp8_e4m3",
            dsa_prefill_backend="flashmla_kv",
            dsa_decode_backend="flashmla_kv",
            context_length=524288,
            max_running_requests=16,
            mem_fraction_static=0.85,
        ),
        None,
    ),
    ("dp8_throughput.sh", "H200", expert_parallel(8, 256, 4096, **HOPPER_BF16), 32),
    ("dp8_throughput_b200.sh", "B200", expert_parallel(8, 512, 8192, **BLACKWELL_FP8), 64),
    ("dp8_throughput_b300.sh", "B300", expert_parallel(8, 1024, 8192, **BLACKWELL_FP8), 128),
    ("dp4_throughput_gb300.sh", "GB300", expert_parallel(4, 512, 8192, **BLACKWELL_FP8), 128),
    ("ep16_overlap.sh", "H200", two_nodes_or_more(16, 1024), 64),
    ("ep32_overlap.sh", "H200", two_nodes_or_more(32, 2048), 64),
    (
        "pd_decode.sh",
        "H200",
        half("decode", **expert_parallel(8, 512, 1024, **HOPPER_BF16, deepep_mode="low_latency")),
        64,
    ),
    (
        "pd_decode_b300.sh",
        "B300",
        half(
            "decode", **tensor_parallel(**BLACKWELL_FP8, tp_size=4, base_gpu_id=4, max_running_requests=128)
        ),
        None,
    ),
    (
        "pd_decode_ep16_overlap.sh",
        "H200",
        half(
            "decode",
            **two_nodes_or_more(16, 2048) | {"deepep_mode": "low_latency", "chunked_prefill_size": 512},
        ),
        128,
    ),
    (
        "pd_prefill.sh",
        "H200",
        half("prefill", **tensor_parallel(**HOPPER_BF16, chunked_prefill_size=16384)),
        None,
    ),
    (
        "pd_prefill_b300.sh",
        "B300",
        half("prefill", **tensor_parallel(**BLACKWELL_FP8, tp_size=4, chunked_prefill_size=16384)),
        None,
    ),
]
COMMON = {
    "model_impl": "glm53",
    "attention_backend": "dsa",
    "reasoning_parser": "glm45",
    "tool_call_parser": "glm47",
    "speculative_algorithm": None,
    "enable_mixed_chunk": False,
}


def _param(name, machine, *rest):
    slow = [pytest.mark.matrix] if GENERATIONS[machine] != "H200" else []
    return pytest.param(name, machine, *rest, id=name, marks=slow)


@pytest.mark.parametrize(("name", "machine", "said", "rows"), [_param(*row) for row in SAID])
def test_a_script_resolves_to_what_it_says(resolver, tmp_path, name, machine, said, rows):
    script = scripts.FOLDER / name
    (_, server), _ = scripts.run(script, tmp_path, scripts.arguments(script))
    flags = server.words[server.words.index("--model-impl") + 2 :]
    answer = resolver(GENERATIONS[machine]).resolve(flags, machine, **server.environment)
    assert "error" not in answer, answer
    assert {key: answer["flags"][key] for key in said | COMMON} == said | COMMON
    assert answer["reasons"] == []
    assert answer["steps"] == ([] if rows is None else [["decode", rows]])
    assert answer["capacity"] == (128 if rows is None else rows)
    assert [line for line in answer["warnings"] if VARIABLE in line] == []
    mode, overlap = said.get("disaggregation_mode"), said.get("enable_two_batch_overlap")
    assert answer["graphs"] == {
        "decode": "disabled" if mode == "prefill" else "full",
        "prefill": "disabled" if mode == "decode" or overlap else "breakable",
    }


@pytest.mark.parametrize(("name", "machine", "said", "rows"), [row for row in SAID if row[3]])
def test_a_script_has_a_rank_for_every_gpu(name, machine, said, rows):
    assert said["tp_size"] == MACHINES[machine][2] * said.get("nnodes", 1)


def test_every_gpu_script_is_resolved():
    assert [row[0] for row in sorted(SAID)] == [s.name for s in scripts.SERVERS if s.name != "cpu_demo.sh"]


@pytest.mark.parametrize(
    ("argv", "rows"),
    [
        pytest.param([], 32, id="no MTP"),
        pytest.param(mtp(1), 64, id="1-1-2"),
        pytest.param(mtp(3), 128, id="3-1-4"),
        pytest.param(mtp(5), 192, id="5-1-6"),
        pytest.param([OVERLAP, *mtp(3)], 128, id="3-1-4 with overlap"),
    ],
)
def test_the_rows_are_those_that_sglang_computes_for_other_dispatchers(resolver, argv, rows):
    """For DeepEP v2's graphs and for FlyDSL, whose capacity SGLang does compare with its flags."""
    answer = resolver("H200").resolve([*DP8, *REQUESTS, *argv])
    requests, tokens = answer["upstream"]["graph"]
    assert requests * tokens == answer["upstream"]["decode"] == rows
    assert answer["steps"] == [["decode", rows]]


def test_the_default_capacity_refuses_192_rows(resolver):
    argv = [*DP8, *REQUESTS, *mtp(5)]
    [reason] = resolver("H200").resolve(argv)["reasons"]
    assert reason == (
        f"{VARIABLE}=128, but a decode step has up to 192 rows on a rank (32 requests of 6 tokens): "
        "set it to 192, or --max-running-requests to at most 168"
    )
    assert resolver("H200").resolve(argv, **{VARIABLE: "192"})["reasons"] == []
    assert resolver("H200").resolve([*argv, "--max-running-requests", "168"])["reasons"] == []


@pytest.mark.parametrize(
    ("argv", "room", "starts"),
    [
        ([*DP8, *REQUESTS], "1025", [f"{VARIABLE}=1025: DeepEP takes at most 1024"]),
        (DP8, "128", ["--max-running-requests bounds no decode step"]),
        (
            [*DP8, *REQUESTS, "--deepep-mode", "low_latency"],
            "128",
            [f"{VARIABLE}=128, but a prefill step has up to 1024 rows on a rank (1024 tokens)"],
        ),
        ([*DP8, *REQUESTS, "--deepep-mode", "low_latency"], "1024", []),
        (
            [*DP8[:4], *REQUESTS, "--moe-a2a-backend", "none", "--speculative-moe-a2a-backend", "deepep"],
            "8",
            [],
        ),
        (["--tp-size", "8", "--moe-a2a-backend", "deepep", *REQUESTS], "32", []),
        (
            ["--tp-size", "8", "--moe-a2a-backend", "deepep", *REQUESTS],
            "28",
            [f"{VARIABLE}=28, but a decode step has up to 32 rows on a rank (256 requests over 8 ranks)"],
        ),
    ],
)
def test_other_refusals(resolver, argv, room, starts):
    answer = resolver("H200").resolve(argv, **{VARIABLE: room})
    assert len(answer["reasons"]) == len(starts)
    for reason, start in zip(answer["reasons"], starts, strict=True):
        assert reason.startswith(start)


def test_a_wasteful_default_is_told(resolver):
    answer = resolver("H200").resolve([*DP8, *REQUESTS])
    assert answer["reasons"] == []
    assert [line for line in answer["warnings"] if VARIABLE in line] == [
        f"{VARIABLE}=128, but no step has more than 32 rows on a rank: 32 would free 1226833920 bytes "
        "(1.1 GiB) on each GPU"
    ]


def test_normal_mode_turns_graphs_off_with_a_warning(resolver):
    """SGLang itself warns and goes on, so this package adds nothing."""
    answer = resolver("H200").resolve(
        [*DP8, "--deepep-mode", "normal", "--cuda-graph-backend-decode", "full"]
    )
    assert answer["graphs"] == {"decode": "disabled", "prefill": "disabled"}
    assert "Cuda graph is disabled because deepep_mode=`normal`" in answer["warnings"]
    assert (answer["steps"], answer["reasons"]) == ([], [])


@pytest.mark.parametrize(
    ("mode", "modes"),
    [
        ("auto", {"prefill": "normal", "decode": "low_latency"}),
        ("normal", {"prefill": "normal", "decode": "normal"}),
        ("low_latency", {"prefill": "low_latency", "decode": "low_latency"}),
    ],
)
def test_which_kernels_a_mode_takes_under_attention_dp(resolver, mode, modes):
    argv = [*DP8, *REQUESTS, "--deepep-mode", mode]
    answer = resolver("H200").resolve(argv, **{VARIABLE: "1024"})
    assert answer["flags"]["deepep_mode"] == mode
    assert answer["modes"] == modes
    assert answer["reasons"] == []


def _source(file, *names):
    node = ast.parse((SRT / file).read_text())
    for name in names:
        node = next(child for child in node.body if getattr(child, "name", None) == name)
    return ast.unparse(node)


def test_one_rank_with_a_prefill_turns_every_rank_to_the_normal_kernels():
    """So auto goes with attention DP: the ranks agree by a maximum before each step."""
    gathered = _source("managers/scheduler_components/dp_attn.py", "MLPSyncBatchInfo", "all_gather")
    assert "self.is_extend_in_batch = bool(tp0_info_cpu[:, 3].max())" in gathered
    dispatched = _source("layers/moe/token_dispatcher/deepep.py", "DeepEPDispatcher", "_get_impl")
    assert "is_extend_in_batch = get_is_extend_in_batch()" in dispatched
    assert "self.deepep_mode.resolve(is_extend_in_batch)" in dispatched


@pytest.mark.parametrize(
    ("argv", "refused"),
    [
        ([MIXED], False),
        ([OVERLAP], False),
        ([MIXED, OVERLAP], True),
        ([MIXED, OVERLAP, *mtp(3)], True),
    ],
)
def test_mixed_chunks_with_overlap(resolver, argv, refused):
    """SGLang accepts both, and leaves mixed chunks on under EAGLE."""
    answer = resolver("H200").resolve([*DP8, *REQUESTS, *argv])
    assert answer["flags"]["enable_mixed_chunk"] is (MIXED in argv)
    assert [reason.partition(":")[0] for reason in answer["reasons"]] == [f"{OVERLAP} with {MIXED}"] * refused


def test_overlap_is_refused_without_this_package(resolver):
    """By SGLang itself: so that the other tests show what the package's hook allows."""
    answer = resolver("H200").resolve([*DP8, *REQUESTS, OVERLAP, "--model-impl", "auto"])
    assert f"{OVERLAP} is not supported with DSA index-topk sharing" in answer["error"]


def test_overlap_turns_prefill_graphs_off(resolver):
    answer = resolver("H200").resolve([*DP8, *REQUESTS, OVERLAP])
    assert answer["graphs"] == {"decode": "full", "prefill": "disabled"}
    [line] = [line for line in answer["warnings"] if "two-batch overlap" in line]
    assert (
        line == "Breakable CUDA graph is incompatible with two-batch overlap; disabling prefill CUDA graph."
    )


def test_deepep_states_the_same_bytes(resolver):
    """By its own compiled code, which needs no GPU for it."""
    sizes = [
        (room, hidden, ranks, experts)
        for room in (4, 128, 192, 1024)
        for hidden in (2048, 6144, 7168)
        for ranks, experts in ((2, 8), (8, 256), (16, 288), (32, 320))
    ]
    ours = [deepep_capacity.low_latency_bytes(room, hidden, experts) for room, hidden, _, experts in sizes]
    assert resolver("H200").deepep_bytes(sizes) == ours


def test_sglang_asserts_the_same_limit():
    text = _source("layers/moe/token_dispatcher/deepep.py", "_DeepEPDispatcherImplBase", "__init__")
    [limit] = re.findall(r"assert self\.num_max_dispatch_tokens_per_rank <= (\d+)", text)
    assert int(limit) == deepep_capacity.LIMIT


def test_both_halves_of_the_overlap_are_captured_alike():
    """The buckets that capacity.py computes: even under overlap, and never over the request pool."""
    text = _source("model_executor/runner/base_cuda_graph_runner.py", "get_batch_sizes_to_capture")
    assert "num_max_requests = ceil_align(num_max_requests, mul_base)" in text
    assert "capture_bs = [bs for bs in capture_bs if bs <= num_max_requests]" in text
    text = _source("utils/common.py", "get_cuda_graph_batch_size_alignment")
    assert "if get_exec().overlap.enable_two_batch_overlap:\n        alignment *= 2" in text
