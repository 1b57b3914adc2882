"""The launch scripts' flags in real servers on the reference platform, with sizes that two cores hold."""

from __future__ import annotations

import pytest

from sglang_glm53.testing.server import free_port
from tests.contract import scripts
from tests.e2e.asking import prompt

# A later flag wins over the script's. Graphs, memory and DeepEP's modes are the platform's.
SMALL = ("--max-running-requests", "8", "--mem-fraction-static", "0.3", "--context-length", "4096")
TWO_RANKS = ("--tp-size", "2")
TWO_DATA_RANKS = (*TWO_RANKS, "--attn-dp-size", "2", "--chunked-prefill-size", "256")
ONE_NODE = ("--nnodes", "1", "--node-rank", "0", "--dist-init-addr")
# Script, the value of MTP, whether drafts are to be seen, and the flags that make it small.
CASES = {
    "few requests": ("tp8_low_latency.sh", "1", True, TWO_RANKS),
    "few requests, MTP=0": ("tp8_low_latency.sh", "0", False, TWO_RANKS),
    "long requests": ("tp8_long_context.sh", "0", False, TWO_RANKS),
    "many requests": ("dp8_throughput.sh", "1", True, TWO_DATA_RANKS),
    "overlap on 2 nodes": ("ep16_overlap.sh", "0", False, (*TWO_DATA_RANKS, *ONE_NODE)),
    "overlap on 4 nodes": ("ep32_overlap.sh", "0", False, (*TWO_DATA_RANKS, *ONE_NODE)),
}


@pytest.mark.matrix
@pytest.mark.parametrize("case", CASES)
def test_a_script_serves_a_tiny_checkpoint(case, serve, checkpoint, tmp_path):
    name, mtp, drafts, small = CASES[case]
    call = scripts.server(name, tmp_path, MTP=mtp)
    assert call.words[:5] == ["python", "-m", "sglang.launch_server", "--model-path", scripts.MODEL]
    # A recipe without MTP serves a checkpoint that has no draft layer.
    path = checkpoint("mtp" if drafts else "default")
    here = (f"127.0.0.1:{free_port()}",) if small[-1] == "--dist-init-addr" else ()
    with serve(path, *call.words[5:], *small, *here, *SMALL, env=call.environment) as server:
        answer = server.generate(prompt(130), 4)
        state = server.server_info()["internal_states"][0]["glm53"]
    assert len(answer["output_ids"]) == 4
    assert state["overlap"]["state"] == ("on" if "overlap" in name else "off")
    assert ("spec_verify_ct" in answer["meta_info"]) is drafts
    assert (state["mtp"]["state"] == "on") is drafts
