"""The order of collectives: the same on both ranks, whatever each of them has to do, overlap included."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
import requests

from sglang_glm53.testing.server import Server, ServerError
from tests.e2e.asking import prompt
from tests.e2e.conftest import BASE_FLAGS
from tests.e2e.recording import FOLDER, FORWARD

pytestmark = pytest.mark.matrix

FLAGS = (
    *("--dtype", "float32", "--tp-size", "2", "--attn-dp-size", "2"),
    *("--moe-a2a-backend", "deepep", "--deepep-mode", "normal", "--enable-two-batch-overlap"),
    *("--chunked-prefill-size", "128"),
)
FORWARDS = 200
# A rank writes a collective down before it waits for the other, and starts a few without waiting.
AHEAD = 16


def lines(folder: Path, rank: int) -> list[str]:
    return (folder / f"{rank}").read_text().splitlines()


def parts(folder: Path, half: int) -> list[list[str]]:
    """Of each rank's lines what both must have (half 0) or what is its own (half 1)."""
    return [[line.split(" # ")[half] for line in lines(folder, rank)] for rank in range(2)]


def first_difference(ranks: list[list[str]]) -> int | None:
    """Where two ranks' sequences part; None when one is the beginning of the other."""
    return next((at for at, pair in enumerate(zip(*ranks, strict=False)) if pair[0] != pair[1]), None)


@pytest.fixture
def recording(zygote, folder, checkpoint, tmp_path) -> Iterator[Callable[[str], Server]]:
    """function of recording.py -> a server that runs it first; its records go to tmp_path."""

    def start(function: str) -> Server:
        args = ["--model-path", str(checkpoint("default")), *BASE_FLAGS, *FLAGS]
        log = folder / f"collectives_{function}.log"
        return zygote.start(args, log, {FOLDER: str(tmp_path)}, f"tests.e2e.recording:{function}")

    return start


def random_load(server: Server, enough: Callable[[], bool]) -> None:
    """Batches of 1 to 5 requests for both ranks or for one of them, each with its own length."""
    draw = random.Random(5)
    for batch in count():
        ranks = draw.choice([(0,), (1,), (0, 1)])
        asked = [
            (prompt(draw.randrange(1, 150), seed=batch), draw.randrange(1, 9), draw.choice(ranks))
            for _ in range(draw.randrange(1, 6))
        ]
        with ThreadPoolExecutor(len(asked)) as pool:
            for _ in pool.map(lambda one: server.generate(one[0], one[1], routed_dp_rank=one[2]), asked):
                pass
        if enough():
            return


def test_both_ranks_make_the_same_calls(recording, tmp_path):
    with recording("record") as server:
        random_load(server, lambda: sum(line.startswith(FORWARD) for line in lines(tmp_path, 0)) >= FORWARDS)
    ranks = parts(tmp_path, 0)
    at = first_difference(ranks)
    assert at is None, [rank[at - 3 : at + 3] for rank in ranks]
    assert abs(len(ranks[0]) - len(ranks[1])) <= AHEAD
    forwards = [
        [own.split() for what, own in zip(*pair, strict=True) if what == FORWARD]
        for pair in zip(ranks, parts(tmp_path, 1), strict=True)
    ]
    together = list(zip(*forwards, strict=False))
    assert len(together) >= FORWARDS
    modes = [tuple(mode for mode, _ in pair) for pair in together]
    print(len(ranks[0]), {pair: modes.count(pair) for pair in sorted(set(modes))})
    for busy in ("EXTEND", "DECODE"):
        assert modes.count((busy, "IDLE")) and modes.count(("IDLE", busy)) and modes.count((busy, busy))
    overlapped = [tuple(split for _, split in pair) for pair in together]
    assert set(overlapped) == {("True", "True"), ("False", "False")}


@pytest.mark.parametrize(("fault", "where"), [("reordered", "_exchange"), ("skipped", "_route")])
def test_a_fault_is_noticed(fault, where, recording, tmp_path):
    """What the ranks then do to each other, an error or waiting for ever, is no matter."""
    body = {"input_ids": prompt(20), "routed_dp_rank": 0, "sampling_params": {"max_new_tokens": 4}}
    with recording(fault) as server, suppress(ServerError, requests.RequestException):
        server.post("/generate", json=body, timeout=20)
    at = first_difference(parts(tmp_path, 0))
    assert at is not None
    assert f"{where} in dispatch_a" in parts(tmp_path, 0)[0][at]
