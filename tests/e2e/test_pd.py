"""A prefill/decode pair gives the tokens of one server; a peer that does not fit is refused by name."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from sglang_glm53.disaggregation.contract import Contract
from sglang_glm53.geometry import KV_LORA, KV_ROPE
from sglang_glm53.testing.compare import Continuation, check_logprobs, compare_tokens, logprob_figures
from sglang_glm53.testing.server import Server
from tests.contract.scripts import FOLDER
from tests.e2e import pairs
from tests.e2e.asking import continuation, generate_all, output_logprobs, prompt, tokens
from tests.e2e.checkpoints import CHECKPOINTS

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.skipif(pairs.missing() is not None, reason=pairs.missing() or "none"),
]

NEW_TOKENS = 8
PROMPTS = [prompt(5 + 17 * i) for i in range(12)]
INDEX_TOPK = CHECKPOINTS["default"].index_topk
SHORT = [one for one in PROMPTS if len(one) + NEW_TOKENS <= INDEX_TOPK]
CLIENTS = 50
FLOAT32 = ("--dtype", "float32")
TP2 = ("--tp-size", "2")
# shape -> the flags of both servers, of the prefill, of the decode
SHAPES = {
    "one rank each": ((), (), ()),
    "chunks of 64": (("--chunked-prefill-size", "64"), (), ()),
    "prefill TP 2": ((), TP2, ()),
}
PRECISIONS = {"bf16": ("--dtype", "bfloat16"), "FP8": ("--kv-cache-dtype", "fp8_e4m3")}


@dataclass(frozen=True)
class Answers:
    """What a pair answered: prompts alone, then all at once and their cached tokens, then by a router."""

    alone: list[list[int]]
    clients: list[list[int]]
    cached: int
    routed: list[list[int]]
    chat: dict[str, Any]


def scored(server: Server | pairs.Pair) -> list[dict[str, Any]]:
    """Every prompt by itself, with the two best logprobs of each token."""
    return [server.generate(one, NEW_TOKENS, return_logprob=True, top_logprobs_num=2) for one in PROMPTS]


@pytest.fixture(scope="module")
def reference(serve, checkpoint) -> list[Continuation]:
    """One server, in float32."""
    with serve(checkpoint("default"), *FLOAT32) as server:
        return [continuation(answer) for answer in scored(server)]


@pytest.fixture(scope="module")
def answers(serve, checkpoint, folder) -> Callable[[str], Answers]:
    """shape -> what such a pair answers; each runs once, and no two at a time."""
    done: dict[str, Answers] = {}

    def ask(shape: str) -> Answers:
        both, prefill, decode = SHAPES[shape]
        with pairs.pair(
            serve, checkpoint("default"), *FLOAT32, *both, prefill=prefill, decode=decode
        ) as pair:
            alone = [pair.generate(one, NEW_TOKENS) for one in PROMPTS[::3]]
            many = [PROMPTS[i % len(PROMPTS)] for i in range(CLIENTS if shape == "one rank each" else 12)]
            clients = generate_all(pair, many, NEW_TOKENS, parallel=len(many))
            cached = sum(answer["meta_info"]["cached_tokens"] for answer in clients)
            routed, chat = [], {}
            if shape == "one rank each":
                with pairs.router(pair, folder / "router.log") as router:
                    routed = generate_all(router, PROMPTS[::3], NEW_TOKENS, parallel=2)
                    message = {"role": "user", "content": "hello"}
                    body = {"model": "default", "messages": [message], "max_tokens": 4}
                    chat = router.post("/v1/chat/completions", json=body).json()
        return Answers(tokens(alone), tokens(clients), cached, tokens(routed), chat)

    return lambda shape: done[shape] if shape in done else done.setdefault(shape, ask(shape))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_tokens_of_one_server(shape, answers, reference):
    found = answers(shape)
    compare_tokens(found.alone, reference[::3])
    compare_tokens(found.clients, [reference[i % len(PROMPTS)] for i in range(len(found.clients))])


def test_fifty_clients_hit_each_others_prefixes(answers):
    found = answers("one rank each")
    assert (len(found.clients), found.cached > 0) == (CLIENTS, True)


def test_sglangs_router_before_a_pair(answers, reference):
    found = answers("one rank each")
    compare_tokens(found.routed, reference[::3])
    assert found.chat["usage"]["completion_tokens"] == 4


def test_a_lost_index_transfer_is_noticed(serve, checkpoint, reference):
    with pairs.pair(serve, checkpoint("default"), *FLOAT32, prefill_mutation="no_index_transfer") as pair:
        found = [pair.generate(one, NEW_TOKENS)["output_ids"] for one in PROMPTS]
    # Up to index_topk tokens every key is selected, whatever the index pages hold.
    compare_tokens(found[: len(SHORT)], reference[: len(SHORT)])
    with pytest.raises(AssertionError, match="prompts differ"):
        compare_tokens(found[len(SHORT) :], reference[len(SHORT) :])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_logprobs_of_one_server(precision, serve, checkpoint):
    flags = PRECISIONS[precision]
    with serve(checkpoint("default"), *flags) as server:
        one = scored(server)
    with pairs.pair(serve, checkpoint("default"), *flags) as pair:
        two = scored(pair)
    # The same greedy tokens first: then the logprobs belong to the same continuations.
    compare_tokens(tokens(two), [continuation(answer) for answer in one])
    check_logprobs(logprob_figures(output_logprobs(two), output_logprobs(one)), close=0.95)


def refused(pair: pairs.Pair) -> str:
    """What the decode says of a request that it refuses."""
    with pytest.raises(requests.HTTPError) as caught:
        pair.generate(PROMPTS[0], NEW_TOKENS)
    return str(caught.value)


def test_pools_that_differ_are_refused_and_both_servers_stay(serve, checkpoint):
    row = KV_LORA + KV_ROPE
    with pairs.pair(serve, checkpoint("default"), *FLOAT32, decode=("--kv-cache-dtype", "bfloat16")) as pair:
        first, second = refused(pair), refused(pair)
        for server in (pair.prefill, pair.decode):
            assert server.get("/health").status_code == 200
            (load,) = server.get("/v1/loads").json()["loads"]
            assert (load["num_running_reqs"], load["num_used_tokens"]) == (0, 0)
    fix = "give both servers the same --kv-cache-dtype and --dtype"
    for said in (first, second):
        assert f"kv_row_bytes: prefill has {4 * row}, decode has {2 * row}: {fix}" in said
        # SGLang calls both dtypes bfloat16, so its own check sees no difference.
        assert said.count("prefill has") == 2 and "index_page_bytes: prefill has" in said


def test_each_field_of_the_contract_is_compared_before_the_first_request(serve, checkpoint, reference):
    names = [field.name for field in dataclasses.fields(Contract)]
    with pairs.pair(serve, checkpoint("default"), *FLOAT32, decode_mutation="each_field_in_turn") as pair:
        said = [refused(pair) for _ in names]
        served = pair.generate(PROMPTS[0], NEW_TOKENS)["output_ids"]
    for name, text in zip(names, said, strict=True):
        assert f"no pair: {name}: prefill has " in text, text
        assert text.count("prefill has") == 1
    compare_tokens([served], reference[:1])


@pytest.mark.parametrize("stock", ["prefill", "decode"])
def test_a_stock_peer_is_taken_with_a_warning(stock, serve, checkpoint, reference):
    with pairs.pair(serve, checkpoint("default"), *FLOAT32, **{stock: ("--model-impl", "auto")}) as pair:
        found = [pair.generate(one, NEW_TOKENS)["output_ids"] for one in PROMPTS[::3]]
        logs = {"prefill": pair.prefill.log_text(), "decode": pair.decode.log_text()}
    ours = "decode" if stock == "prefill" else "prefill"
    assert f"{stock} " in logs[ours] and "states no contract" in logs[ours]
    assert "sglang-glm53" not in logs[stock]
    compare_tokens(found, reference[::3])


def test_the_smoke_script(checkpoint):
    here = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = [FOLDER / "pd_smoke.sh", checkpoint("default")]
    process = subprocess.Popen(
        command,
        env=os.environ | {"PATH": here},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        # The script itself gives up after ten minutes.
        said, _ = process.communicate(timeout=900)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said
    assert '"completion_tokens":8' in said.replace(" ", "")
