"""A server under load, aborts and malformed requests stays healthy, and gives every page back."""

from __future__ import annotations

import base64
import gzip
import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from sglang_glm53.testing.server import Server, ServerError
from tests.e2e.asking import generate_all, prompt
from tests.e2e.checkpoints import CHECKPOINTS, geometry

GENERATE, CHAT, COMPLETIONS = "/generate", "/v1/chat/completions", "/v1/completions"
HEALTHY = prompt(90)
CLIENTS = 16
CONTEXT = 512
POOL = 2048
# What a scheduler or the tokenizer's own loop does more with them, and dies of in stock SGLang.
FEATURES = (
    *("--enable-return-routed-experts", "--enable-return-indexer-topk"),
    *("--enable-custom-logit-processor", "--enable-metrics"),
)
MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def server(serve, checkpoint) -> Iterator[Server]:
    sizes = ("--context-length", str(CONTEXT), "--max-total-tokens", str(POOL))
    with serve(checkpoint("default"), "--dtype", "float32", *sizes, *FEATURES) as running:
        yield running


@pytest.fixture(scope="module")
def healthy(server) -> list[int]:
    """What the server answers to HEALTHY before anything else happened."""
    return server.generate(HEALTHY)["output_ids"]


def load(server: Server) -> dict[str, Any]:
    """The one scheduler's load: requests running and waiting, and the tokens that requests hold."""
    (only,) = server.get("/v1/loads").json()["loads"]
    return {key: only[key] for key in ("num_running_reqs", "num_waiting_reqs", "num_used_tokens")}


IDLE = {"num_running_reqs": 0, "num_waiting_reqs": 0, "num_used_tokens": 0}


def check_returned(server: Server) -> None:
    """Nothing runs, and no page is held: neither by a request nor by the emptied cache."""
    deadline = time.monotonic() + 30
    while load(server) != IDLE and time.monotonic() < deadline:
        time.sleep(0.1)
    server.flush_cache()
    assert load(server) == IDLE


def check_healthy(server: Server, expected: list[int]) -> None:
    assert server.get("/health_generate").status_code == 200
    assert server.generate(HEALTHY)["output_ids"] == expected


def sp(**fields: Any) -> dict[str, Any]:
    return {"input_ids": HEALTHY, "sampling_params": {"max_new_tokens": 2, **fields}}


def ask(**fields: Any) -> dict[str, Any]:
    return {**sp(), **fields}


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "default", "messages": MESSAGES, "max_tokens": 2, **fields}


# name -> (route, JSON body or raw bytes, what the error must name)
MALFORMED: dict[str, tuple[str, Any, str]] = {
    "prompt too long": (GENERATE, ask(input_ids=[40] * (CONTEXT + 1)), "longer than the model's context"),
    "too many new tokens": (GENERATE, sp(max_new_tokens=10**6), "exceeds the model's maximum context length"),
    "new tokens past an integer": (GENERATE, sp(max_new_tokens=10**30), "expected i64"),
    "negative max_new_tokens": (GENERATE, sp(max_new_tokens=-1), "max_new_tokens must be at least 0"),
    "max_new_tokens as text": (GENERATE, sp(max_new_tokens="many"), "expected i64"),
    "unknown sampling field": (GENERATE, sp(nonsense=1), "unknown field `nonsense`"),
    "negative temperature": (GENERATE, sp(temperature=-1), "temperature"),
    "top_p over 1": (GENERATE, sp(top_p=2), "top_p"),
    "broken regex": (GENERATE, sp(regex="("), "regex"),
    "no prompt": (GENERATE, {"sampling_params": {}}, "text, input_ids or input_embeds"),
    "no token": (GENERATE, ask(input_ids=[]), "input_ids"),
    "empty text": (GENERATE, {"text": ""}, "no token"),
    "token past the vocabulary": (GENERATE, ask(input_ids=[40, 10**6]), "input_ids holds 1000000"),
    "negative token": (GENERATE, ask(input_ids=[40, -3]), "input_ids holds -3"),
    "token as text": (GENERATE, ask(input_ids=["a"]), "input_ids"),
    "token past 64 bits": (GENERATE, ask(input_ids=[2**63]), "input_ids"),
    "huge logprob count": (
        GENERATE,
        ask(return_logprob=True, top_logprobs_num=10**9),
        "top_logprobs_num (logprobs, top_logprobs) is 1000000000",
    ),
    "logprobs of a token past the vocabulary": (
        GENERATE,
        ask(return_logprob=True, token_ids_logprob=[10**6]),
        "token_ids_logprob",
    ),
    "logprobs from past the prompt": (
        GENERATE,
        ask(return_logprob=True, logprob_start_len=10**6),
        "logprob_start_len",
    ),
    "logprobs from before it": (
        GENERATE,
        ask(return_logprob=True, logprob_start_len=-7),
        "logprob_start_len",
    ),
    "a list for a logprob count": (
        GENERATE,
        ask(return_logprob=True, top_logprobs_num=[2]),
        "top_logprobs_num",
    ),
    "broken stop_regex": (GENERATE, sp(stop_regex="("), "stop_regex"),
    "no embeddings to place": (
        GENERATE,
        ask(positional_embed_overrides={"a": 1}),
        "positional_embed_overrides",
    ),
    "no logit processor": (GENERATE, ask(custom_logit_processor="junk"), "custom_logit_processor"),
    "a label that no metric has": (GENERATE, ask(custom_labels={"team": "a"}), "custom_labels holds team"),
    "profile of a GPU's memory": ("/start_profile", {"activities": ["CPU", "MEM"]}, "activities holds MEM"),
    "profile to nowhere": ("/start_profile", {"output_dir": "/proc/none"}, "output_dir /proc/none"),
    **{
        f"{verb} of a recorder that is not there": (
            f"/{verb}_expert_distribution_record",
            {},
            "--expert-distribution-recorder-mode",
        )
        for verb in ("start", "stop", "dump")
    },
    "a list for a body": (GENERATE, [1, 2], "validation error"),
    "broken UTF-8": (GENERATE, b'{"text": "\xff\xfe"}', "JSON decode error"),
    "half a surrogate pair": (GENERATE, rb'{"text": "\ud800"}', "JSON decode error"),
    "cut JSON": (GENERATE, b'{"text": ', "JSON decode error"),
    "deep JSON": (GENERATE, b"[" * 100_000, "JSON decode error"),
    "empty body": (GENERATE, b"", "Field required"),
    "chat without messages": (CHAT, {"model": "default"}, "messages"),
    "chat with no message": (CHAT, chat(messages=[]), "Messages cannot be empty"),
    "chat with an unknown role": (CHAT, chat(messages=[{"role": "wizard", "content": "x"}]), "role"),
    "chat with huge logprobs": (CHAT, chat(logprobs=True, top_logprobs=10**6), "top_logprobs"),
    "chat with negative max_tokens": (CHAT, chat(max_tokens=-4), "max_new_tokens must be at least 0"),
    "chat with a text for temperature": (CHAT, chat(temperature="hot"), "temperature"),
    "completion without a prompt": (COMPLETIONS, {"model": "default"}, "prompt"),
    "completion with huge logprobs": (
        COMPLETIONS,
        {"model": "default", "prompt": "hello", "max_tokens": 1, "logprobs": 10**6},
        "logprobs",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_request_gets_a_proper_error(name, server, healthy):
    path, body, named = MALFORMED[name]
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = server.post(path, data=raw, headers={"Content-Type": "application/json"})
    assert response.status_code == 400, response.text
    assert named in json.dumps(response.json(), ensure_ascii=False)
    assert server.generate(HEALTHY)["output_ids"] == healthy


# What SGLang's own routes take without a word: no error to check, but no harm either.
TOLERATED = {
    "unknown field": (GENERATE, ask(nonsense=1)),
    "text and tokens": (GENERATE, ask(text="hello")),
    "no answer asked for": (GENERATE, sp(n=0)),
    "unknown model": (CHAT, chat(model="no-such-model")),
}


@pytest.mark.parametrize("name", TOLERATED)
def test_a_tolerated_request_does_no_harm(name, server, healthy):
    path, body = TOLERATED[name]
    assert server.post(path, json=body).status_code == 200
    assert server.generate(HEALTHY)["output_ids"] == healthy


def test_a_profile_is_written(server, healthy, tmp_path):
    """Twice started: SGLang begins anew."""
    for _ in range(2):
        server.post(
            "/start_profile", json={"output_dir": str(tmp_path), "profile_id": "one"}
        ).raise_for_status()
    server.generate(HEALTHY)
    server.post("/stop_profile").raise_for_status()
    (trace,) = tmp_path.iterdir()
    assert trace.name == "one-TP-0.trace.json.gz"
    assert b"aten::linear" in gzip.decompress(trace.read_bytes())
    check_healthy(server, healthy)


def _captured(answer: dict[str, Any], name: str, *shape: int) -> np.ndarray:
    values = np.frombuffer(base64.b64decode(answer["meta_info"][name]), np.int32)
    return values.reshape(*shape)


def test_a_request_gets_its_experts_and_selections_back(server):
    """Of every token but the last one, and of every layer: a shared layer has its full layer's selection."""
    g = geometry(CHECKPOINTS["default"])
    one = prompt(g.index_topk + 20, seed=9)
    answer = server.generate(one, 4, return_routed_experts=True, return_indexer_topk=True)
    rows = len(one) + 4 - 1
    experts = _captured(answer, "routed_experts", rows, g.num_layers, -1)[:, g.num_dense_layers :]
    assert experts.min() == 0 and experts.max() == g.num_experts - 1
    ordered = np.sort(experts, axis=-1)
    assert (ordered[..., 1:] != ordered[..., :-1]).all()
    selections = _captured(answer, "indexer_topk", rows, g.num_layers, g.index_topk)
    for position, of_layers in enumerate(selections):
        for layer, selected in enumerate(of_layers):
            # Slots of the pool, as on a GPU; positions with SGLANG_DSA_FUSE_TOPK=0.
            chosen = set(selected[selected >= 0].tolist())
            assert len(chosen) == min(position + 1, g.index_topk)
            if 0 < position < g.index_topk:
                assert chosen > set(selections[position - 1, layer].tolist()) - {-1}
            if layer not in g.full_layers:
                assert (selected == of_layers[layer - 1]).all()


def client(server: Server, seed: int) -> list[str]:
    """Six requests of random length, some streamed and dropped half-way, some aborted by id."""
    draw = random.Random(seed)
    outcomes = []
    for turn in range(6):
        one = prompt(draw.randrange(1, 200), seed=draw.randrange(4))
        new_tokens, way = draw.randrange(1, 12), ("whole", "dropped", "aborted")[turn % 3]
        if way == "whole":
            assert len(server.generate(one, new_tokens)["output_ids"]) == new_tokens
        else:
            rid = f"client{seed}-{turn}"
            events = server.stream(one, 200, rid=rid)
            for _ in range(draw.randrange(1, 4)):
                next(events)
            if way == "dropped":
                events.close()
            else:
                server.post("/abort_request", json={"rid": rid}).raise_for_status()
                last = list(events)[-1]
                assert last["meta_info"]["finish_reason"]["type"] == "abort"
        outcomes.append(way)
    return outcomes


def test_16_clients_with_aborts_in_mid_stream(server, healthy):
    with ThreadPoolExecutor(CLIENTS) as pool:
        outcomes = list(pool.map(lambda seed: client(server, seed), range(CLIENTS)))
    assert outcomes == [["whole", "dropped", "aborted"] * 2] * CLIENTS
    check_returned(server)
    check_healthy(server, healthy)


def test_a_leaked_page_is_noticed(serve, checkpoint):
    noticed = pytest.raises((AssertionError, ServerError), match=r"num_used_tokens|memory leak detected")
    with serve(checkpoint("default"), "--dtype", "float32", mutation="leaked_pages") as leaking, noticed:
        leaking.generate(HEALTHY)
        check_returned(leaking)


def test_more_requests_than_pages_wait_their_turn(server, healthy):
    """Three times what the pool holds, at once."""
    prompts = [prompt(CONTEXT - 64, seed) for seed in range(3 * POOL // CONTEXT)]
    answers = generate_all(server, prompts, 16, parallel=len(prompts))
    assert [len(answer["output_ids"]) for answer in answers] == [16] * len(prompts)
    check_returned(server)
    check_healthy(server, healthy)
