"""The launch scripts' flags in real servers on the reference platform, with sizes that two cores hold."""

from __future__ import annotations

import pytest

from sglang_glm53.testing.server import free_port
from tests.contract import scripts
from tests.e2e.asking import prompt

# A later flag wins over the script's. Graphs, memory and DeepEP's modes are the platform's.
SMALL = ("--max-running-requests", "8", "--mem-fraction-static", "0.3", "--context-length", "4096")
TWO_DATA_RANKS = ("--tp-size", "2", "--attn-dp-size", "2", "--chunked-prefill-size", "256")
ONE_NODE = ("--nnodes", "1", "--node-rank", "0", "--dist-init-addr")
CASES = {
    "tp8_low_latency.sh": ("--tp-size", "2"),
    "tp8_long_context.sh": ("--tp-size", "2"),
    "dp8_throughput.sh": TWO_DATA_RANKS,
    "ep16_overlap.sh": (*TWO_DATA_RANKS, *ONE_NODE),
    "ep32_overlap.sh": (*TWO_DATA_RANKS, *ONE_NODE),
}


@pytest.mark.matrix
@pytest.mark.parametrize("name", CASES)
def test_a_script_serves_a_tiny_checkpoint(name, serve, checkpoint, tmp_path):
    script = scripts.FOLDER / name
    calls, status = scripts.run(script, tmp_path, scripts.arguments(script))
    assert status == 0
    words = calls[-1].words
    assert words[:5] == ["python", "-m", "sglang.launch_server", "--model-path", scripts.MODEL]
    path = checkpoint("default")
    here = (f"127.0.0.1:{free_port()}",) if CASES[name][-1] == "--dist-init-addr" else ()
    with serve(path, *words[5:], *CASES[name], *here, *SMALL, env=calls[-1].environment) as server:
        answer = server.generate(prompt(130), 4)
        state = server.server_info()["internal_states"][0]["glm53"]
    assert len(answer["output_ids"]) == 4
    assert state["overlap"]["state"] == ("on" if "overlap" in name else "off")
