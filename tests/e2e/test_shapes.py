"""In float32 a request gives the same tokens however the server runs it; each way is proved to have run."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator

import pytest

from sglang_glm53.geometry import PAGE
from sglang_glm53.testing.compare import Continuation, compare_tokens
from sglang_glm53.testing.server import Server
from tests.e2e.ahead import parameters, run_ahead
from tests.e2e.asking import continuation, generate_all, prompt, tokens

NEW_TOKENS = 8
PROMPTS = [prompt(5 + 17 * i) for i in range(16)]
FLOAT32 = ("--dtype", "float32", "--decode-log-interval", "1")


@pytest.fixture(scope="module")
def server(serve, checkpoint) -> Iterator[Server]:
    """One rank, unchunked."""
    with serve(checkpoint("default"), *FLOAT32) as running:
        yield running


@pytest.fixture(scope="module")
def alone(server) -> list[Continuation]:
    """The reference: every prompt by itself, nothing cached."""
    answers = []
    for one in PROMPTS:
        server.flush_cache()
        answers.append(server.generate(one, NEW_TOKENS, return_logprob=True, top_logprobs_num=2))
    assert all(answer["meta_info"]["cached_tokens"] == 0 for answer in answers)
    return [continuation(answer) for answer in answers]


def cached(answers: list[dict]) -> list[int]:
    return [answer["meta_info"]["cached_tokens"] for answer in answers]


def all_at_once(server: Server) -> list[dict]:
    """Every prompt in one request, so that they meet in one batch."""
    return server.generate(PROMPTS, NEW_TOKENS)


def test_a_batch_of_16_mixed_lengths(server, alone):
    server.flush_cache()
    before = len(server.log_text())
    found = all_at_once(server)
    assert cached(found) == [0] * 16
    assert "Decode batch, #running-req: 16," in server.log_text()[before:]
    compare_tokens(tokens(found), alone)


def test_after_a_prefix_hit(server, alone):
    server.flush_cache()
    generate_all(server, PROMPTS, 1)
    found = generate_all(server, PROMPTS, NEW_TOKENS)
    # The last token is always computed again, whole pages before it are not.
    assert cached(found) == [(len(one) - 1) // PAGE * PAGE for one in PROMPTS]
    assert sum(cached(found)) > 0
    compare_tokens(tokens(found), alone)


def test_streamed(server, alone):
    streamed = []
    for one in PROMPTS:
        events = [event["output_ids"] for event in server.stream(one, NEW_TOKENS)]
        # On a busy machine one event may bring two tokens; each repeats those before it.
        assert 1 < len(events) <= NEW_TOKENS
        assert all(later[: len(event)] == event for event, later in itertools.pairwise(events))
        streamed.append(events[-1])
    compare_tokens(streamed, alone)


def test_after_a_flush(server, alone):
    generate_all(server, PROMPTS, 1)
    server.flush_cache()
    found = [server.generate(one, NEW_TOKENS) for one in PROMPTS]
    assert cached(found) == [0] * 16
    compare_tokens(tokens(found), alone)


def chunked(server: Server, answers: list[dict]) -> None:
    whole_chunks = len(re.findall(r"Prefill batch, #new-seq: 1, #new-token: 64,", server.log_text()))
    assert whole_chunks >= sum(len(one) // 64 for one in PROMPTS[::3])


def two_ranks(server: Server, answers: list[dict]) -> None:
    assert server.server_info()["tp_size"] == 2
    assert {" TP0]", " TP1]"} <= set(re.findall(r" TP\d\]", server.log_text()))


def both_data_ranks(server: Server, answers: list[dict]) -> None:
    assert {answer["meta_info"]["dp_rank"] for answer in answers} == {0, 1}
    for rank in (0, 1):
        assert re.search(rf" DP{rank} TP{rank}[^]]*\] Decode batch", server.log_text())


def both_expert_ranks(server: Server, answers: list[dict]) -> None:
    assert server.server_info()["ep_size"] == 2
    assert {" TP0 EP0]", " TP1 EP1]"} <= set(re.findall(r" TP\d EP\d\]", server.log_text()))


SHAPES = {
    "chunks of 64": (("--chunked-prefill-size", "64"), chunked),
    "mixed chunks": (("--chunked-prefill-size", "64", "--enable-mixed-chunk"), chunked),
    "TP 2": (("--tp-size", "2"), two_ranks),
    "DP 2": (("--tp-size", "2", "--attn-dp-size", "2"), both_data_ranks),
    "EP 2": (("--tp-size", "2", "--ep-size", "2"), both_expert_ranks),
    "DP 2 and EP 2": (("--tp-size", "2", "--attn-dp-size", "2", "--ep-size", "2"), both_data_ranks),
}

# By default the two that join the others; each by itself is for the matrix.
JOINED = ("mixed chunks", "DP 2 and EP 2")
CASES = [pytest.param(shape, marks=() if shape in JOINED else pytest.mark.matrix) for shape in SHAPES]

# A fault of the wiring and the shape that must show it.
FAULTS = {
    "neighbours_rows": (),
    "no_cached_prefix": ("--chunked-prefill-size", "64"),
    "no_all_reduce": ("--tp-size", "2"),
    "gather_own_rows": ("--tp-size", "2", "--attn-dp-size", "2"),
    "foreign_experts": ("--tp-size", "2", "--ep-size", "2"),
}


@pytest.fixture(scope="module")
def other(request, serve, checkpoint) -> Iterator[Callable[..., tuple[list, list]]]:
    """What a server of another shape, or with a fault, answers: every third prompt alone, and all at once."""

    def ask(shape: str, mutation: str) -> tuple[list[list[int]], list[list[int]]]:
        flags, happened = SHAPES[shape] if shape else (FAULTS[mutation], None)
        with serve(checkpoint("default"), *FLOAT32, *flags, mutation=mutation) as running:
            serial = [running.generate(one, NEW_TOKENS) for one in PROMPTS[::3]] if happened else []
            running.flush_cache()
            together = all_at_once(running)
            if happened:
                happened(running, together)
        return tokens(serial), tokens(together)

    wanted = [(own.get("shape", ""), own.get("mutation", "")) for own in parameters(request) if own]
    with run_ahead(ask, wanted) as result:
        yield result


@pytest.mark.parametrize("shape", CASES)
def test_another_shape_gives_the_same_tokens(shape, other, alone):
    serial, together = other(shape, "")
    compare_tokens(serial, alone[::3])
    compare_tokens(together, alone)


@pytest.mark.parametrize("mutation", FAULTS)
def test_a_fault_of_the_shape_changes_the_tokens(mutation, other, alone):
    _, together = other("", mutation)
    with pytest.raises(AssertionError, match="prompts differ"):
        compare_tokens(together, alone)


def test_a_forgotten_prefix_changes_the_tokens(serve, checkpoint, alone):
    with serve(checkpoint("default"), *FLOAT32, mutation="no_cached_prefix") as faulty:
        generate_all(faulty, PROMPTS, 1)
        found = generate_all(faulty, PROMPTS, NEW_TOKENS)
    assert sum(cached(found)) > 0
    with pytest.raises(AssertionError, match="prompts differ"):
        compare_tokens(tokens(found), alone)
