"""Two-batch overlap in float32: the same tokens as without it, on every shape, and proved to have run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from sglang_glm53.testing.compare import Continuation, compare_tokens
from sglang_glm53.testing.server import ServerError
from tests.e2e.ahead import parameters, run_ahead
from tests.e2e.asking import continuation, generate_all, prompt, tokens

NEW_TOKENS = 8
PROMPTS = [prompt(5 + 17 * i) for i in range(16)]
FLOAT32 = ("--dtype", "float32")
TP2, DP2 = ("--tp-size", "2"), ("--tp-size", "2", "--attn-dp-size", "2")
DISPATCH = ("--moe-a2a-backend", "deepep", "--deepep-mode", "normal")
OVERLAP = (*DISPATCH, "--enable-two-batch-overlap")
# Of the whole server: two data ranks halve it.
CHUNKS = ("--chunked-prefill-size", "128")
SHAPES = {
    "TP 2 and EP 2": (*TP2, *DISPATCH),
    "TP 2 and EP 2, overlap": (*TP2, *OVERLAP),
    "TP 2 and EP 2, overlap, chunks": (*TP2, *OVERLAP, *CHUNKS),
    "DP 2 and EP 2": (*DP2, *DISPATCH),
    "DP 2 and EP 2, overlap": (*DP2, *OVERLAP),
    "DP 2 and EP 2, overlap, chunks": (*DP2, *OVERLAP, *CHUNKS),
}
# By default each way to overlap runs once; what differs by chunks, or has no overlap, is for the matrix.
CASES = [
    pytest.param(shape, marks=() if shape.endswith("overlap") else pytest.mark.matrix) for shape in SHAPES
]
OVERLAPPING = [case for shape, case in zip(SHAPES, CASES, strict=True) if "overlap" in shape]
ALONE = [case for shape, case in zip(SHAPES, CASES, strict=True) if "overlap" not in shape]
ONE, TWO = "TP 2 and EP 2, overlap", "DP 2 and EP 2, overlap"
# What a fault does: the layer refuses, the server reads past its batch, or other tokens come out.
FAULTS = {
    "dropped_carry": "layer 3 is shared, but no selection reached it",
    "zeros_for_minus_one": None,
    "no_rebase": "out of bounds",
    "swapped_children": None,
}


@dataclass(frozen=True)
class Answers:
    """What a server answered: every third prompt alone, all in one batch, and 16 clients at once.

    overlap: of its status, for each data-parallel group; before: the same after the prompts alone.
    """

    alone: list[list[int]]
    together: list[list[int]]
    clients: list[list[int]]
    cached: int
    overlap: list[dict[str, Any]]


@pytest.fixture(scope="module")
def reference(serve, checkpoint) -> list[Continuation]:
    """One rank, no overlap: every prompt by itself, nothing cached."""
    with serve(checkpoint("default"), *FLOAT32) as server:
        answers = []
        for one in PROMPTS:
            server.flush_cache()
            answers.append(server.generate(one, NEW_TOKENS, return_logprob=True, top_logprobs_num=2))
    return [continuation(answer) for answer in answers]


@pytest.fixture(scope="module")
def answers(request, serve, checkpoint) -> Iterator[Callable[..., Answers]]:
    """(shape, mutation) -> what such a server answers."""

    def ask(shape: str, mutation: str) -> Answers:
        with serve(checkpoint("default"), *FLOAT32, *SHAPES[shape], mutation=mutation) as server:
            if mutation:
                return Answers([], tokens(server.generate(PROMPTS, NEW_TOKENS)), [], 0, [])
            alone = [server.generate(one, NEW_TOKENS) for one in PROMPTS[::3]]
            server.flush_cache()
            together = server.generate(PROMPTS, NEW_TOKENS)
            clients = generate_all(server, PROMPTS, NEW_TOKENS, parallel=16)
            cached = sum(answer["meta_info"]["cached_tokens"] for answer in clients)
            states = [state["glm53"]["overlap"] for state in server.server_info()["internal_states"]]
        return Answers(tokens(alone), tokens(together), tokens(clients), cached, states)

    wanted = [(own["shape"], own.get("mutation", "")) for own in parameters(request) if "shape" in own]
    with run_ahead(ask, wanted) as result:
        yield lambda shape, mutation="": result(shape, mutation)


@pytest.mark.parametrize("shape", CASES)
def test_the_same_tokens(shape, answers, reference):
    found = answers(shape)
    compare_tokens(found.alone, reference[::3])
    compare_tokens(found.together, reference)
    # They find the prefixes of the batch before them in the cache.
    compare_tokens(found.clients, reference)
    assert found.cached > 0


@pytest.mark.parametrize("shape", OVERLAPPING)
def test_the_overlap_ran(shape, answers):
    for overlap in answers(shape).overlap:
        assert (overlap["state"], overlap["first_layer"]) == ("on", 3)
        assert overlap["most_dispatches_under_way"] == 2
        ran, alone = Counter(overlap["overlapped"]), Counter(overlap["alone"])
        assert ran["EXTEND"] and ran["DECODE"]
        # Ranks of which one prefills while the other decodes cannot overlap; with one scheduler all can.
        if shape.startswith("TP"):
            eligible = sum((ran + alone)[mode] for mode in ("EXTEND", "DECODE"))
            assert ran["EXTEND"] + ran["DECODE"] >= 0.9 * eligible


@pytest.mark.parametrize("shape", ALONE)
def test_without_the_flag_nothing_overlaps(shape, answers):
    for overlap in answers(shape).overlap:
        assert (overlap["state"], overlap["overlapped"], overlap["alone"]) == ("off", {}, {})
        assert overlap["most_dispatches_under_way"] == 0


@pytest.mark.parametrize("shape", [ONE])
@pytest.mark.parametrize("mutation", FAULTS)
def test_a_fault_of_the_carry_is_noticed(shape, mutation, answers, reference):
    if FAULTS[mutation]:
        with pytest.raises(ServerError, match=FAULTS[mutation]):
            answers(shape, mutation)
        return
    with pytest.raises(AssertionError, match="prompts differ"):
        compare_tokens(answers(shape, mutation).together, reference)


SERVED_ALONE = 24


@pytest.mark.parametrize("shape", [TWO])
def test_one_rank_idle_for_long_and_prefills_among_decodes(shape, serve, checkpoint, reference):
    """Every request to one rank for a while, then to both; new prompts arrive while others decode."""
    with serve(checkpoint("default"), *FLOAT32, *SHAPES[shape]) as server:
        lone = [server.generate(one, NEW_TOKENS, routed_dp_rank=0) for one in PROMPTS[::2]]
        states = [state["glm53"] for state in server.server_info()["internal_states"]]
        ran = {state["rank"]["attn_dp"]: state["overlap"]["overlapped"] for state in states}
        assert ran[1].keys() == {"IDLE"}
        assert ran[1]["IDLE"] >= SERVED_ALONE
        assert ran[0]["DECODE"] >= SERVED_ALONE
        server.flush_cache()
        with ThreadPoolExecutor(len(PROMPTS)) as pool:
            asked = []
            for number, one in enumerate(PROMPTS):
                asked.append(pool.submit(server.generate, one, NEW_TOKENS, routed_dp_rank=number % 3 // 2))
                time.sleep(0.05)
            uneven = [answer.result() for answer in asked]
    compare_tokens(tokens(lone), reference[::2])
    compare_tokens(tokens(uneven), reference)
