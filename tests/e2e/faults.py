"""Owns the injection of faults into a running pair: the clients in flight, the blow, what must hold after."""

from __future__ import annotations

import http.client
import json
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from sglang_glm53.testing.compare import Continuation, compare_tokens
from sglang_glm53.testing.server import HOST, Server, ServerError
from tests.e2e import transfer_faults
from tests.e2e.asking import prompt
from tests.e2e.pairs import Half, Pair

NEW_TOKENS = 8
# Short and long of index_topk, one page to three.
PROMPTS = [prompt(20 + 23 * i) for i in range(6)]
CLIENTS = 8
# The decode's pool in tokens: twelve pages.
DECODE_POOL = 768
# Two pages each, and a third while they run: half as much again as the pool, so that requests wait for pages
# and, where enough of them run at once, are retracted.
LONG = [prompt(121 + i) for i in range(6)]
LONG_TOKENS = 24
# A blow falls up to so many seconds after an answer; a client that leaves stays three times as long.
WINDOW = 0.3
# SGLang's own variables, in seconds, far under their defaults.
TIMEOUTS = {
    "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "8",
    "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "8",
    "SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL": "2",
    "SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE": "1",
    "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT": "4",
    "SGLANG_FAILED_SESSION_PROBE_INTERVAL_S": "1",
}
# No client waits longer for its answer or its error; no server longer to be whole again.
LIMIT = 60.0
IDLE = {"num_running_reqs": 0, "num_waiting_reqs": 0, "num_used_tokens": 0, "metadata_slots_held": 0}


# Tokens, or the text of an error; None for a client that left.
Answer = list[int] | str | None


@dataclass
class Found:
    """What the injections of one fault brought. seconds: of each, from the blow until the pair was whole."""

    injections: int = 0
    answers: int = 0
    errors: int = 0
    left: int = 0
    seconds: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Scene:
    """A pair under test. expected, long: the right answers to PROMPTS and LONG; folder: the servers' own."""

    pair: Pair
    expected: list[Continuation]
    long: list[Continuation]
    folder: Path


def ask(pair: Pair, one: Sequence[int], new_tokens: int = NEW_TOKENS) -> Answer:
    """The decode's tokens, or its error. Nobody aborts the prefill's half, which must end by itself."""
    ids = pair.fields()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(_half, pair.prefill, one, new_tokens, ids)
        answer = _half(pair.decode, one, new_tokens, ids)
        first.result()
    return answer


def _half(server: Server, one: Sequence[int], new_tokens: int, ids: dict[str, Any]) -> Answer:
    sampling = {"max_new_tokens": new_tokens, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": list(one), "sampling_params": sampling, **ids}
    try:
        response = server.post("/generate", json=body, timeout=LIMIT)
    except requests.Timeout:
        raise AssertionError(f"neither an answer nor an error within {LIMIT:g} s") from None
    except (requests.RequestException, ServerError) as error:
        return f"{type(error).__name__}: {error}"
    if not response.ok:
        return response.text
    answer = response.json()
    reason = answer["meta_info"]["finish_reason"]
    return json.dumps(reason) if reason["type"] == "abort" else list(answer["output_ids"])


def held(server: Server) -> dict[str, int]:
    """What a half's requests hold: see IDLE."""
    (load,) = server.get("/v1/loads").json()["loads"]
    (state,) = server.server_info()["internal_states"]
    return {key: (load | state["glm53"]["pair"])[key] for key in IDLE}


def check_returned(server: Server, limit: float = LIMIT) -> None:
    """Within limit seconds nothing runs and nothing is held: no metadata slot, and no page, by request or
    cache."""
    deadline = time.monotonic() + limit
    while (found := held(server)) != IDLE and time.monotonic() < deadline:
        time.sleep(0.2)
    if found == IDLE:
        server.flush_cache()
        found = held(server)
    if found != IDLE:
        raise AssertionError(f"an idle server holds {found}")


def check_serves(scene: Scene) -> None:
    """Within LIMIT a fresh request is answered, and rightly; until then errors may come, and nothing else."""
    deadline = time.monotonic() + LIMIT
    answer = ask(scene.pair, PROMPTS[-1])
    while not isinstance(answer, list) and time.monotonic() < deadline:
        time.sleep(0.2)
        answer = ask(scene.pair, PROMPTS[-1])
    assert isinstance(answer, list), answer
    compare_tokens([answer], scene.expected[-1:])


def survives(scene: Scene, half: Half) -> None:
    """A half has been alive throughout, and holds nothing."""
    check_returned(getattr(scene.pair, half))


# (scene, the number of the injection, its randomness) -> what clients of its own got, beside the right answer
Blow = Callable[[Scene, int, random.Random], list[tuple[Answer, Continuation]]]


def kill(half: Half) -> Blow:
    """Kill a half. Every other time it is back at once, else after its peer has given everything back."""
    other: Half = "decode" if half == "prefill" else "prefill"

    def strike(scene: Scene, number: int, draw: random.Random) -> list[tuple[Answer, Continuation]]:
        getattr(scene.pair, half).kill()
        if number % 2:
            survives(scene, other)
        scene.pair.restart(half)
        return []

    return strike


def drop_transfer(scene: Scene, number: int, draw: random.Random) -> list[tuple[Answer, Continuation]]:
    """A transfer fails, or its success never reaches the decode."""
    name = transfer_faults.UNTOLD if number % 2 else transfer_faults.FAIL
    (scene.folder / name).touch()
    return []


def exhaust_pages(scene: Scene, number: int, draw: random.Random) -> list[tuple[Answer, Continuation]]:
    """Requests for more pages than the decode has, which grow while they run, and one that never fits."""
    with ThreadPoolExecutor(CLIENTS) as pool:
        many = [pool.submit(ask, scene.pair, one, LONG_TOKENS) for one in LONG]
        never = ask(scene.pair, prompt(DECODE_POOL + 64))
    assert isinstance(never, str) and "exceeds the maximum allowed length" in never, never
    return [*zip([one.result() for one in many], scene.long, strict=True), (never, scene.long[0])]


def abort_clients(scene: Scene, number: int, draw: random.Random) -> list[tuple[Answer, Continuation]]:
    """Clients come and go: half of them close their connections, half abort by name."""
    with ThreadPoolExecutor(CLIENTS) as pool:
        moments = [draw.uniform(0, 3 * WINDOW) for _ in range(CLIENTS)]
        list(pool.map(lambda i: _leave(scene.pair, i, moments[i]), range(CLIENTS)))
    return [(None, scene.expected[0])] * CLIENTS


def _leave(pair: Pair, number: int, after: float) -> None:
    ids = pair.fields()
    sampling = {"max_new_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": PROMPTS[number % len(PROMPTS)], "sampling_params": sampling, **ids}
    # SGLang notices at once that a connection is closed if it streams.
    body["stream"] = not number % 2
    connections = []
    for server in (pair.prefill, pair.decode):
        connection = http.client.HTTPConnection(HOST, int(server.url.rpartition(":")[2]), timeout=LIMIT)
        connection.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
        connections.append(connection)
    time.sleep(after)
    if number % 2:
        for server in (pair.prefill, pair.decode):
            server.post("/abort_request", json={"rid": ids["rid"]})
        for connection in connections:
            with suppress(http.client.HTTPException):
                connection.getresponse().read()
    for connection in connections:
        connection.close()


FAULTS: dict[str, Blow] = {
    "prefill killed": kill("prefill"),
    "decode killed": kill("decode"),
    "transfer dropped": drop_transfer,
    "decode out of pages": exhaust_pages,
    "clients abort": abort_clients,
}


def inject(scene: Scene, name: str, number: int, found: Found) -> None:
    """Strike once while requests are in flight, check every answer, and that the pair serves again."""
    draw = random.Random(f"{name} {number}")
    asked = [draw.randrange(len(PROMPTS)) for _ in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = [pool.submit(ask, scene.pair, PROMPTS[i]) for i in asked]
        # A time would fall before the first answer on a busy machine and after the last on a quiet one.
        before = draw.randrange(CLIENTS // 2)
        while sum(answer.done() for answer in answers) < before:
            time.sleep(0.01)
        time.sleep(draw.uniform(0, WINDOW))
        struck = time.monotonic()
        results = FAULTS[name](scene, number, draw)
        results += [(one.result(), scene.expected[i]) for i, one in zip(asked, answers, strict=True)]
    right = [(one, reference) for one, reference in results if isinstance(one, list)]
    compare_tokens([one for one, _ in right], [reference for _, reference in right])
    check_serves(scene)
    survives(scene, "prefill")
    survives(scene, "decode")
    found.injections += 1
    found.answers += len(right)
    found.errors += sum(isinstance(one, str) for one, _ in results)
    found.left += sum(one is None for one, _ in results)
    found.seconds.append(time.monotonic() - struck)
