"""/server_info says what really serves, from the loaded classes, on every rank shape."""

from __future__ import annotations

import pytest

from sglang_glm53 import __version__
from sglang_glm53.geometry import INDEX_HEAD_DIM, INDEX_PAGE_BYTES, KV_LORA, KV_ROPE, KV_ROW_BYTES, PAGE
from sglang_glm53.serving import hooks
from tests.e2e.checkpoints import CHECKPOINTS, geometry

BF16_ROW, FP32_ROW = 2 * (KV_LORA + KV_ROPE), 4 * (KV_LORA + KV_ROPE)
# flags -> KV dtype and bytes a row, index dtype and bytes a page
POOLS = {
    ("--dtype", "float32"): ("float32", FP32_ROW, "float32", 4 * PAGE * INDEX_HEAD_DIM),
    ("--dtype", "bfloat16"): ("bfloat16", BF16_ROW, "float8_e4m3fn", INDEX_PAGE_BYTES),
    ("--kv-cache-dtype", "bfloat16"): ("bfloat16", BF16_ROW, "bfloat16", 2 * PAGE * INDEX_HEAD_DIM),
    ("--kv-cache-dtype", "fp8_e4m3"): ("float8_e4m3fn", KV_ROW_BYTES, "float8_e4m3fn", INDEX_PAGE_BYTES),
}


def statuses(server) -> list[dict]:
    return [state["glm53"] for state in server.server_info()["internal_states"]]


@pytest.mark.parametrize("flags", POOLS, ids=" ".join)
def test_the_pools_are_named_with_their_sizes(flags, serve, checkpoint):
    with serve(checkpoint("default"), *flags) as server:
        (status,) = statuses(server)
    pools = status["pools"]
    found = (pools["kv_dtype"], pools["kv_row_bytes"], pools["index_dtype"], pools["index_page_bytes"])
    assert found == POOLS[flags]
    assert pools["page_size"] == PAGE
    assert pools["index_layers"] == len(geometry(CHECKPOINTS["default"]).full_layers)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_the_classes_and_the_schedule_are_those_loaded(name, serve, checkpoint):
    g = geometry(CHECKPOINTS[name])
    with serve(checkpoint(name), "--dtype", "float32") as server:
        (status,) = statuses(server)
        log = server.log_text()
    assert status["version"] == __version__
    assert status["seams"] == hooks.fingerprint()
    assert status["model"] == "sglang_glm53.model.model.Glm53ForCausalLM"
    assert status["platform"] == "sglang_glm53.cpu.platform.Glm53CpuPlatform"
    assert status["attention_backend"] == "sglang_glm53.cpu.attention.ReferenceBackend"
    schedule = status["schedule"]
    assert schedule["full_layers"] == list(g.full_layers)
    assert schedule["shared_layers"] == g.num_layers - len(g.full_layers)
    assert schedule["attention"] == {"sglang_glm53.model.attention.Glm53Attention": g.num_layers}
    sparse = g.num_layers - g.num_dense_layers
    assert schedule["mlp"]["sglang_glm53.model.moe.Glm53MoE"] == sparse
    assert schedule["router_bias_dtype"] == "float32"
    # The start-up table is the same status.
    assert status["table"] in log


@pytest.mark.parametrize(
    ("flags", "ranks"),
    [
        (("--attn-dp-size", "2"), [{"tp": 0, "attn_dp": 0}, {"tp": 1, "attn_dp": 1}]),
        (("--ep-size", "2"), [{"tp": 0, "attn_dp": 0, "moe_ep": 0}]),
    ],
    ids=["DP 2", "EP 2"],
)
def test_each_data_parallel_group_has_its_entry(flags, ranks, serve, checkpoint):
    with serve(checkpoint("default"), "--tp-size", "2", *flags) as server:
        found = sorted((status["rank"] for status in statuses(server)), key=lambda rank: rank["tp"])
    assert [{key: rank[key] for key in want} for rank, want in zip(found, ranks, strict=True)] == ranks
