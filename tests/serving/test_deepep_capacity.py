"""The rows of a step by the flags, the refusals and the warning that follow from them."""

from types import SimpleNamespace

import pytest

from sglang_glm53 import geometry
from sglang_glm53.serving import deepep_capacity
from sglang_glm53.serving.deepep_capacity import LIMIT, VARIABLE

EXPERTS = 256


def graph(max_bs, backend="full"):
    return SimpleNamespace(backend=backend, max_bs=max_bs)


def flags(**changes):
    """Resolved flags: 256 requests over eight attention-DP ranks, DeepEP in its default mode, no MTP."""
    values = {
        "tp_size": 8,
        "attn_dp_size": 8,
        "attn_cp_size": 1,
        "moe_a2a_backend": "deepep",
        "speculative_moe_a2a_backend": None,
        "deepep_mode": "auto",
        "max_running_requests": 256,
        "page_size": 64,
        "speculative_algorithm": None,
        "speculative_eagle_topk": None,
        "disaggregation_mode": "null",
        "enable_two_batch_overlap": False,
        "disable_attn_tp_gather": False,
        "cuda_graph_config": SimpleNamespace(decode=graph(256), prefill=graph(1024, "breakable")),
    }
    return SimpleNamespace(**values | changes)


def eagle(topk=1, **changes):
    return flags(speculative_algorithm="EAGLE", speculative_eagle_topk=topk, **changes)


def rows(given, draft_tokens=None, chunk_tokens=1024):
    return [(step.name, step.rows) for step in deepep_capacity.steps(given, draft_tokens, chunk_tokens)]


def reasons(given, room, draft_tokens=None, chunk_tokens=1024):
    return deepep_capacity.reasons(deepep_capacity.steps(given, draft_tokens, chunk_tokens), room)


@pytest.mark.parametrize(
    ("given", "draft_tokens", "expected"),
    [
        pytest.param(flags(), None, 32, id="no MTP"),
        pytest.param(eagle(), 2, 64, id="1-1-2"),
        pytest.param(eagle(), 4, 128, id="3-1-4"),
        pytest.param(eagle(), 6, 192, id="5-1-6"),
        pytest.param(eagle(topk=8), 4, 256, id="a draft step wider than the verify step"),
        pytest.param(flags(max_running_requests=7), None, 1, id="fewer requests than ranks"),
        pytest.param(flags(max_running_requests=263), None, 32, id="requests that do not divide"),
        pytest.param(flags(tp_size=16, attn_dp_size=16), None, 16, id="16 ranks"),
        pytest.param(flags(attn_dp_size=1), None, 32, id="attention TP shares the rows"),
        pytest.param(flags(attn_dp_size=4, max_running_requests=132), None, 17, id="33 over 2 ranks"),
        pytest.param(flags(attn_dp_size=1, attn_cp_size=8), None, 256, id="context parallelism does not"),
        pytest.param(flags(attn_dp_size=1, disable_attn_tp_gather=True), None, 256, id="rows left whole"),
    ],
)
def test_rows_of_a_decode_step(given, draft_tokens, expected):
    assert rows(given, draft_tokens) == [("decode", expected)]


@pytest.mark.parametrize(
    ("requests", "overlap", "graphs", "expected"),
    [
        pytest.param(264, True, graph(256), 34, id="the overlap's buckets are even"),
        pytest.param(264, False, graph(256), 33, id="without it they are not"),
        pytest.param(264, True, graph(256, "disabled"), 33, id="no graphs, no buckets"),
        pytest.param(264, True, graph(32), 33, id="a batch over the largest bucket runs eagerly"),
        pytest.param(256, True, graph(512), 32, id="a bucket over the request pool is not captured"),
    ],
)
def test_rows_of_the_largest_graph(requests, overlap, graphs, expected):
    config = SimpleNamespace(decode=graphs, prefill=graph(1024))
    given = flags(max_running_requests=requests, enable_two_batch_overlap=overlap, cuda_graph_config=config)
    assert rows(given) == [("decode", expected)]


def test_a_server_without_graphs_has_no_buckets():
    assert rows(flags(cuda_graph_config=None, enable_two_batch_overlap=True, max_running_requests=264)) == [
        ("decode", 33)
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"deepep_mode": "normal"}, []),
        ({"deepep_mode": "auto"}, [("decode", 32)]),
        ({"deepep_mode": "low_latency"}, [("decode", 32), ("prefill", 1024)]),
        ({"deepep_mode": "auto", "disaggregation_mode": "prefill"}, []),
        ({"deepep_mode": "low_latency", "disaggregation_mode": "prefill"}, [("prefill", 1024)]),
        ({"deepep_mode": "low_latency", "disaggregation_mode": "decode"}, [("decode", 32)]),
        ({"deepep_mode": "low_latency", "attn_dp_size": 1}, [("decode", 32), ("prefill", 128)]),
        ({"moe_a2a_backend": "none"}, []),
        ({"moe_a2a_backend": "mooncake"}, []),
        ({"moe_a2a_backend": "none", "speculative_moe_a2a_backend": "deepep"}, []),
    ],
)
def test_which_steps_dispatch_with_low_latency(changes, expected):
    assert rows(flags(**changes)) == expected


def test_a_draft_alone_can_dispatch():
    given = eagle(moe_a2a_backend="none", speculative_moe_a2a_backend="deepep")
    assert rows(given, draft_tokens=4) == [("decode", 128)]


def test_a_prefill_graph_larger_than_a_chunk_counts():
    config = SimpleNamespace(decode=graph(256), prefill=graph(2048, "breakable"))
    given = flags(deepep_mode="low_latency", attn_dp_size=1, cuda_graph_config=config)
    assert rows(given)[1:] == [("prefill", 128), ("prefill", 256)]
    assert reasons(given, 128) == [
        f"{VARIABLE}=128, but a prefill step has up to 256 rows on a rank (2048 tokens over 8 ranks): "
        "set it to 256, or --cuda-graph-max-bs-prefill to at most 1024"
    ]


def test_the_capacity_that_a_step_needs_is_enough():
    assert reasons(flags(), 32) == []
    assert reasons(eagle(), 192, draft_tokens=6) == []
    assert reasons(flags(moe_a2a_backend="none"), 1) == []


def test_192_rows_over_the_default_are_refused():
    assert reasons(eagle(), 128, draft_tokens=6) == [
        f"{VARIABLE}=128, but a decode step has up to 192 rows on a rank (32 requests of 6 tokens): "
        "set it to 192, or --max-running-requests to at most 168"
    ]


@pytest.mark.parametrize(
    ("given", "room", "draft_tokens", "chunk_tokens", "expected"),
    [
        pytest.param(
            eagle(max_running_requests=2048),
            128,
            6,
            1024,
            "a decode step has up to 1536 rows on a rank (256 requests of 6 tokens), and DeepEP's "
            "low-latency kernels take at most 1024: set --max-running-requests to at most 1360",
            id="over the kernels' limit",
        ),
        pytest.param(
            flags(max_running_requests=None),
            128,
            None,
            1024,
            "--max-running-requests bounds no decode step, and DeepEP's low-latency kernels have room for "
            f"128 rows on a rank: set --max-running-requests to at most 1024, or raise {VARIABLE} with it",
            id="no bound on the requests",
        ),
        pytest.param(
            flags(deepep_mode="low_latency", disaggregation_mode="prefill"),
            128,
            None,
            1024,
            f"{VARIABLE}=128, but a prefill step has up to 1024 rows on a rank (1024 tokens): "
            "set it to 1024, or --chunked-prefill-size to at most 1024",
            id="a chunk",
        ),
        pytest.param(
            flags(deepep_mode="low_latency", disaggregation_mode="prefill", cuda_graph_config=None),
            200,
            None,
            0,
            "--chunked-prefill-size bounds no prefill step, and DeepEP's low-latency kernels have room for "
            f"200 rows on a rank: set --chunked-prefill-size to at most 1536, or raise {VARIABLE} with it",
            id="no chunks",
        ),
        pytest.param(
            flags(max_running_requests=2600),
            130,
            None,
            1024,
            f"{VARIABLE}=130, but a decode step has up to 325 rows on a rank (325 requests): set it to 328, "
            "or --max-running-requests to at most 1040",
            id="the value to set is a multiple of four",
        ),
    ],
)
def test_refusals(given, room, draft_tokens, chunk_tokens, expected):
    assert reasons(given, room, draft_tokens, chunk_tokens) == [expected]


@pytest.mark.parametrize("mode", ["auto", "normal"])
def test_a_capacity_over_the_kernels_limit_is_refused_in_every_mode(mode):
    expected = f"{VARIABLE}=1025: DeepEP takes at most 1024: set it to 1024 or less"
    assert reasons(flags(deepep_mode=mode), 1025) == [expected]
    assert reasons(flags(deepep_mode=mode), 1024) == []


@pytest.mark.parametrize("draft_tokens", [1, 2, 4, 6])
@pytest.mark.parametrize("changes", [{}, {"attn_dp_size": 2}, {"enable_two_batch_overlap": True}])
@pytest.mark.parametrize("room", [32, 100, 128, 500])
def test_the_flags_highest_value_fits_and_the_next_does_not(room, changes, draft_tokens):
    [step] = deepep_capacity.steps(eagle(**changes), draft_tokens, 0)
    value = step.highest(room)
    assert value > 0
    assert reasons(eagle(max_running_requests=value, **changes), room, draft_tokens) == []
    over = value + step.quantum * step.groups
    assert reasons(eagle(max_running_requests=over, **changes), room, draft_tokens) != []


def test_the_bytes_of_the_default_capacity():
    assert deepep_capacity.low_latency_bytes(128, geometry.HIDDEN, EXPERTS) == 1_635_780_736
    assert deepep_capacity.low_latency_bytes(LIMIT, geometry.HIDDEN, EXPERTS) == 13_086_230_656


@pytest.mark.parametrize(
    ("room", "warns"),
    [
        pytest.param(32, False, id="exact"),
        pytest.param(63, False, id="less than twice"),
        pytest.param(112, False, id="under a gibibyte"),
        pytest.param(128, True, id="the default"),
    ],
)
def test_a_wasteful_capacity_is_told(room, warns):
    found = deepep_capacity.spare(deepep_capacity.steps(flags(), None, 0), room, geometry.HIDDEN, EXPERTS)
    assert (found is not None) is warns


def test_the_warning_names_the_value_and_the_bytes():
    steps = deepep_capacity.steps(flags(), None, 0)
    assert deepep_capacity.spare(steps, 1024, geometry.HIDDEN, EXPERTS) == (
        f"{VARIABLE}=1024, but no step has more than 32 rows on a rank: 32 would free 12677283840 bytes "
        "(11.8 GiB) on each GPU"
    )


@pytest.mark.parametrize("given", [flags(deepep_mode="normal"), flags(max_running_requests=None)])
def test_without_a_known_step_nothing_is_called_waste(given):
    assert (
        deepep_capacity.spare(deepep_capacity.steps(given, None, 0), 1024, geometry.HIDDEN, EXPERTS) is None
    )
