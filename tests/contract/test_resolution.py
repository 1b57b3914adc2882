"""Owns the checks of launch/, its scripts and its table, against SGLang's own resolution of the flags."""

import re

import pytest

from sglang_glm53.serving.deepep_capacity import VARIABLE
from tests.contract import scripts
from tests.contract.resolver import GENERATIONS, MACHINES

README = scripts.FOLDER / "README.md"


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


# Script, machine, the flags that its comments state, MTP's steps, a GPU's requests where DeepEP takes them.
SAID = [
    ("tp8_low_latency.sh", "H200", tensor_parallel(**HOPPER_BF16, mem_fraction_static=0.8), 5, None),
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
        0,
        None,
    ),
    ("dp8_throughput.sh", "H200", expert_parallel(8, 256, 4096, **HOPPER_BF16), 1, 32),
    ("dp8_throughput_b200.sh", "B200", expert_parallel(8, 512, 8192, **BLACKWELL_FP8), 1, 64),
    ("dp8_throughput_b300.sh", "B300", expert_parallel(8, 1024, 8192, **BLACKWELL_FP8), 1, 128),
    ("dp4_throughput_gb300.sh", "GB300", expert_parallel(4, 512, 8192, **BLACKWELL_FP8), 1, 128),
    ("ep16_overlap.sh", "H200", two_nodes_or_more(16, 1024), 0, 64),
    ("ep32_overlap.sh", "H200", two_nodes_or_more(32, 2048), 0, 64),
    (
        "pd_decode.sh",
        "H200",
        half("decode", **expert_parallel(8, 512, 1024, **HOPPER_BF16, deepep_mode="low_latency")),
        3,
        64,
    ),
    (
        "pd_decode_b300.sh",
        "B300",
        half(
            "decode", **tensor_parallel(**BLACKWELL_FP8, tp_size=4, base_gpu_id=4, max_running_requests=128)
        ),
        3,
        None,
    ),
    (
        "pd_decode_ep16_overlap.sh",
        "H200",
        half(
            "decode",
            **two_nodes_or_more(16, 2048) | {"deepep_mode": "low_latency", "chunked_prefill_size": 512},
        ),
        3,
        128,
    ),
    (
        "pd_prefill.sh",
        "H200",
        half(
            "prefill", **tensor_parallel(**HOPPER_BF16, chunked_prefill_size=16384, max_running_requests=512)
        ),
        3,
        None,
    ),
    (
        "pd_prefill_b300.sh",
        "B300",
        half(
            "prefill",
            **tensor_parallel(
                **BLACKWELL_FP8, tp_size=4, chunked_prefill_size=16384, max_running_requests=128
            ),
        ),
        3,
        None,
    ),
]
COMMON = {
    "model_impl": "glm53",
    "attention_backend": "dsa",
    "reasoning_parser": "glm45",
    "tool_call_parser": "glm47",
    "enable_mixed_chunk": False,
}


def _param(name, machine, *rest):
    slow = [pytest.mark.matrix] if GENERATIONS[machine] != "H200" else []
    return pytest.param(name, machine, *rest, id=name, marks=slow)


@pytest.fixture(scope="module")
def resolved(resolver, tmp_path_factory):
    """(script's name, machine, MTP) -> SGLang's answer and the environment that the script gives it."""
    done = {}

    def of(name, machine, mtp="1"):
        if (name, mtp) not in done:
            # A recipe without MTP refuses MTP=1.
            given = {"MTP": mtp} if mtp == "0" else {}
            server = scripts.server(name, tmp_path_factory.mktemp("stubs"), **given)
            answer = resolver(GENERATIONS[machine]).resolve(server.flags, machine, **server.environment)
            done[name, mtp] = answer, server.environment
        return done[name, mtp]

    return of


def drafts(steps):
    """The resolved flags of a chain of so many drafts; those without MTP for 0."""
    sizes = (steps, 1, steps + 1) if steps else (None, None, None)
    names = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
    return {"speculative_algorithm": "EAGLE" if steps else None} | dict(zip(names, sizes, strict=True))


@pytest.mark.parametrize("mtp", ["1", "0"])
@pytest.mark.parametrize(("name", "machine", "said", "steps", "requests"), [_param(*row) for row in SAID])
def test_a_script_resolves_to_what_it_says(resolved, name, machine, said, steps, requests, mtp):
    steps = int(mtp) and steps
    answer, environment = resolved(name, machine, mtp)
    assert "error" not in answer, answer
    expected = said | COMMON | drafts(steps)
    assert {key: answer["flags"][key] for key in expected} == expected
    assert answer["reasons"] == []
    rows = requests and requests * (steps + 1)
    assert answer["steps"] == ([["decode", rows]] if rows else [])
    assert environment == ({VARIABLE: str(rows)} if rows else {})
    assert answer["capacity"] == (rows or 128)
    assert [line for line in answer["warnings"] if VARIABLE in line] == []
    mode, overlap = said.get("disaggregation_mode"), said.get("enable_two_batch_overlap")
    assert answer["graphs"] == {
        "decode": "disabled" if mode == "prefill" else "full",
        "prefill": "disabled" if mode == "decode" or overlap else "breakable",
    }


@pytest.mark.parametrize(
    ("name", "machine", "said", "steps", "requests"), [row for row in SAID if row[4] is not None]
)
def test_a_script_has_a_rank_for_every_gpu(name, machine, said, steps, requests):
    assert said["tp_size"] == MACHINES[machine][2] * said.get("nnodes", 1)


def test_every_gpu_script_is_resolved():
    assert [row[0] for row in sorted(SAID)] == [s.name for s in scripts.SERVERS if s.name != "cpu_demo.sh"]


def table():
    """Script's name -> its row of launch/README.md, as column -> cell."""
    lines = [line for line in README.read_text().splitlines() if line.startswith("|")]
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    found = {}
    for cells in rows:
        name = re.search(r"launch/(\w+\.sh)", cells[0])[1]
        found[name] = dict(zip(header, cells, strict=True))
    return found


def claims(name, machine, answer):
    """What the row of a GPU script must say, by the flags that SGLang resolved: column -> its pattern."""
    flags, count = answer["flags"], MACHINES[machine][2]
    gpus, first = flags["tp_size"] // flags["nnodes"], flags["base_gpu_id"]
    where = (
        f"{gpus} {machine}" if gpus == count else f"GPUs {first} to {first + gpus - 1} of {count} {machine}"
    )
    fp8 = ", FP8 cache" if flags["kv_cache_dtype"] == "fp8_e4m3" else ""
    overlap = ", two-batch overlap" if flags["enable_two_batch_overlap"] else ""
    width, ranks = flags["tp_size"], flags["attn_dp_size"]
    deepep = flags["moe_a2a_backend"] == "deepep"
    steps = flags["speculative_num_steps"]
    arguments = " RANK HEAD" if flags["nnodes"] > 1 else ""
    return {
        "Script": re.escape(f"`launch/{name}{arguments} [MODEL]`"),
        "Machine": (f"{flags['nnodes']} nodes of " if flags["nnodes"] > 1 else "") + where,
        "For": _purpose(flags),
        "Requests": str(flags["max_running_requests"]),
        "Attention": (f"DP {ranks}" if ranks == width else f"TP {width // ranks}") + fp8 + overlap,
        "Experts": f"EP {flags['ep_size']}, DeepEP" if deepep else f"TP {width // flags['ep_size']}",
        "MTP": "none" if steps is None else f"{steps} steps?",
        "Run so far": "not on a GPU yet",
    }


def _purpose(flags):
    role = {"prefill": "prompts, for a decode", "decode": "the answers, for a prefill"}
    other = "elsewhere" if flags["host"] == "0.0.0.0" else "on the same host"
    if flags["disaggregation_mode"] in role:
        return f"{role[flags['disaggregation_mode']]} server {other}"
    if flags["context_length"]:
        return f"few requests, up to {flags['context_length']} tokens"
    return r"many concurrent requests\D*" if flags["max_running_requests"] > 48 else "few concurrent requests"


def wrong(row, claimed):
    """The columns of a row that say something else."""
    assert list(row) == list(claimed)
    return [column for column, cell in row.items() if not re.fullmatch(claimed[column], cell)]


@pytest.mark.parametrize(("name", "machine"), [_param(*row[:2]) for row in SAID])
def test_a_row_says_what_the_script_resolves_to(resolved, name, machine):
    answer, _ = resolved(name, machine)
    assert wrong(table()[name], claims(name, machine, answer)) == []
    # The flags of two machines of a generation may be the same; the script's first comment names its own.
    assert f"{MACHINES[machine][2]} {machine}" in (scripts.FOLDER / name).read_text().splitlines()[1]


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("Script", "`launch/dp8_throughput.sh RANK HEAD [MODEL]`"),
        ("Machine", "8 B200"),
        ("Machine", "2 nodes of 8 H200"),
        ("Machine", "GPUs 0 to 3 of 8 H200"),
        ("For", "few concurrent requests"),
        ("For", "many concurrent requests, up to 524288 tokens"),
        ("For", "prompts, for a decode server elsewhere"),
        ("Requests", "512"),
        ("Attention", "TP 8"),
        ("Attention", "DP 8, FP8 cache"),
        ("Attention", "DP 8, two-batch overlap"),
        ("Experts", "TP 8"),
        ("Experts", "EP 16, DeepEP"),
        ("MTP", "none"),
        ("MTP", "3 steps"),
        ("Run so far", "on 8 H200"),
    ],
)
def test_each_claim_of_a_row_can_fail(resolved, column, cell):
    name, machine = "dp8_throughput.sh", "H200"
    claimed = claims(name, machine, resolved(name, machine)[0])
    assert wrong(table()[name] | {column: cell}, claimed) == [column]


def test_the_demo_has_one_process_and_nothing_of_its_own(tmp_path):
    assert scripts.server("cpu_demo.sh", tmp_path).flags == []
    row = table()["cpu_demo.sh"]
    assert [row[column] for column in ("Machine", "Requests", "Attention", "Experts", "MTP")] == [
        "any, no GPU",
        "SGLang's choice",
        "one process",
        "one process",
        "none",
    ]
