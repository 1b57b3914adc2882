"""Owns the checks of DeepEP's capacity and of the overlap's company against SGLang's own resolution."""

import ast
import re

import pytest

from sglang_glm53 import upstream
from sglang_glm53.serving import deepep_capacity
from sglang_glm53.serving.deepep_capacity import VARIABLE
from tests.configs import mtp

SRT = upstream.root() / "srt"
DP8 = ["--tp-size", "8", "--attn-dp-size", "8", "--moe-a2a-backend", "deepep"]
REQUESTS = ["--max-running-requests", "256"]
OVERLAP, MIXED = "--enable-two-batch-overlap", "--enable-mixed-chunk"


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
