"""Speculative decoding in a prefill/decode pair: one server's tokens without it, and right first drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from sglang_glm53.testing.compare import Continuation, check_logprobs, compare_tokens, logprob_figures
from sglang_glm53.tiny.sizes import DRAFTS
from tests.configs import mtp
from tests.e2e import faults, pairs
from tests.e2e.ahead import run_ahead
from tests.e2e.asking import continuation, generate_all, output_logprobs, prompt, tokens
from tests.e2e.test_mtp import (
    ACCEPTED,
    DP2,
    FLOAT32,
    OVERLAP,
    PERIOD,
    TP2,
    drafts,
    recall_prompts,
    recalled,
)
from tests.e2e.test_pd import CLIENTS, PRECISIONS, refused

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.skipif(pairs.missing() is not None, reason=pairs.missing() or "none"),
]

NEW_TOKENS = 12
# From below index_topk, which is 64, to past three pages.
PROMPTS = [prompt(5 + 17 * i) for i in range(12)]
ALONE = "one rank each"
# shape -> the flags of both servers, of the prefill, of the decode
SHAPES: dict[str, tuple[tuple[str, ...], ...]] = {
    ALONE: ((), (), ()),
    "chunks of 64": (("--chunked-prefill-size", "64"), (), ()),
    "prefill TP 2": ((), TP2, ()),
    "decode DP 2 and EP 2, overlap": ((), (), (*DP2, *OVERLAP)),
    # Requests wait for pages and outgrow them while they run.
    "decode out of pages": (
        (),
        (),
        ("--max-total-tokens", str(faults.DECODE_POOL), "--num-reserved-decode-tokens", "16"),
    ),
}


@dataclass(frozen=True)
class Answers:
    """What a pair answered: some prompts alone, then many at once; and the halves' mtp statuses after it."""

    alone: list[dict[str, Any]]
    clients: list[dict[str, Any]]
    prefill: list[dict[str, Any]]
    decode: list[dict[str, Any]]


def statuses(server: Any) -> list[dict[str, Any]]:
    """The status entry mtp of each data-parallel group."""
    return [state["glm53"]["mtp"] for state in server.server_info()["internal_states"]]


@pytest.fixture(scope="module")
def reference(serve, checkpoint) -> list[Continuation]:
    """One server without speculative decoding, in float32."""
    with serve(checkpoint("mtp"), *FLOAT32) as server:
        scored = {"return_logprob": True, "top_logprobs_num": 2}
        return [continuation(server.generate(one, NEW_TOKENS, **scored)) for one in PROMPTS]


@pytest.fixture(scope="module")
def answers(serve, checkpoint) -> Iterator[Callable[[str], Answers]]:
    """shape -> what such a pair answers."""

    def ask(shape: str) -> Answers:
        both, prefill, decode = SHAPES[shape]
        flags = (*FLOAT32, *mtp(DRAFTS), *both)
        with pairs.pair(serve, checkpoint("mtp"), *flags, prefill=prefill, decode=decode) as pair:
            alone = [pair.generate(one, NEW_TOKENS) for one in PROMPTS[::3]]
            many = [PROMPTS[i % len(PROMPTS)] for i in range(CLIENTS if shape == ALONE else 16)]
            clients = generate_all(pair, many, NEW_TOKENS, parallel=len(many))
            return Answers(alone, clients, statuses(pair.prefill), statuses(pair.decode))

    # A pair keeps both cores busy.
    with run_ahead(ask, [], workers=1) as result:
        yield result


@pytest.mark.parametrize("shape", SHAPES)
def test_the_tokens_of_one_server_without_it(shape, answers, reference):
    found = answers(shape)
    compare_tokens(tokens(found.alone), reference[::3])
    compare_tokens(tokens(found.clients), [reference[i % len(PROMPTS)] for i in range(len(found.clients))])


@pytest.mark.parametrize("shape", SHAPES)
def test_every_draft_step_takes_a_seed(shape, answers):
    found = answers(shape)
    right, proposed = drafts(found.clients)
    assert 0 < right < proposed
    for entry in found.decode:
        assert (entry["state"], entry["steps"], entry["shared_selection"]) == ("on", DRAFTS, True)
    # The first step of a request takes the seed that the prefill sent.
    check_seeds_were_taken(found.decode)
    # A prefill makes a request's first draft, and runs no draft step.
    for entry in found.prefill:
        assert (entry["state"], set(entry["draft_steps"].values())) == ("on", {0})


def recalling(serve, checkpoint, **own: Any) -> Any:
    """A pair on the checkpoint that repeats its context; own: of pairs.pair, for one half."""
    return pairs.pair(serve, checkpoint("recall"), *FLOAT32, *mtp(DRAFTS), **own)


def check_drafts(pair: pairs.Pair) -> None:
    """Drafts are right in the first verify, which the prefill's seed and draft layer decide, and after it.

    Raises AssertionError for the first of these that does not hold.
    """
    prompts = recall_prompts(8)
    # The prefill's token, the drafts, and the token that the verify adds.
    first = generate_all(pair, prompts, DRAFTS + 2, parallel=4)
    rest = generate_all(pair, prompts, 2 * PERIOD, parallel=4)
    print(f"right and all drafts of the first verify {drafts(first)}, of whole answers {drafts(rest)}")
    assert tokens(first) == [recalled(one, DRAFTS + 2) for one in prompts]
    assert tokens(rest) == [recalled(one, 2 * PERIOD) for one in prompts]
    right, proposed = drafts(first)
    # A wrong draft brings another verify, and its drafts count too.
    assert right / proposed >= ACCEPTED, f"first drafts: {right} of {proposed} right"
    assert proposed == DRAFTS * len(prompts)
    right, proposed = drafts(rest)
    assert right / proposed >= ACCEPTED, f"all drafts: {right} of {proposed} right"


def check_seeds_were_taken(entries: list[dict[str, Any]]) -> None:
    """No draft step selected for itself, by these mtp statuses; raises AssertionError if one did."""
    for entry in entries:
        steps = entry["draft_steps"]
        assert steps["recomputed"] == steps["invalid"] == 0, f"seeds were not taken: {steps}"
        assert steps["reused"] > 0


def test_the_first_drafts_are_right(serve, checkpoint):
    with recalling(serve, checkpoint) as pair:
        check_drafts(pair)
        check_seeds_were_taken(statuses(pair.decode))


@pytest.mark.parametrize("stock", ["prefill", "decode"])
def test_a_stock_peer_gives_and_takes_seeds(stock, serve, checkpoint):
    with recalling(serve, checkpoint, **{stock: ("--model-impl", "auto")}) as pair:
        check_drafts(pair)


@pytest.mark.parametrize(
    ("half", "mutation", "noticed"),
    [
        ("decode", "seed_taken_as_slots", "first drafts"),
        ("prefill", "no_draft_transfer", "first drafts"),
        # Places that the request does not have: the decode drops such a seed.
        ("prefill", "seed_in_its_own_slots", "seeds were not taken"),
    ],
)
def test_a_fault_of_the_handover_is_noticed(half, mutation, noticed, serve, checkpoint):
    own = {f"{half}_mutation": f"mutations_mtp:{mutation}"}
    with recalling(serve, checkpoint, **own) as pair, pytest.raises(AssertionError, match=noticed):
        check_drafts(pair)
        check_seeds_were_taken(statuses(pair.decode))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_logprobs_of_one_server_without_it(precision, serve, checkpoint):
    def ask(server: Any) -> list[dict[str, Any]]:
        scored = {"return_logprob": True, "top_logprobs_num": 2}
        return [server.generate(one, NEW_TOKENS, **scored) for one in PROMPTS[::2]]

    flags = PRECISIONS[precision]
    with serve(checkpoint("mtp"), *flags) as server:
        one = ask(server)
    with pairs.pair(serve, checkpoint("mtp"), *flags, *mtp(DRAFTS)) as pair:
        two = ask(pair)
    compare_tokens(tokens(two), [continuation(answer) for answer in one])
    figures = logprob_figures(output_logprobs(two), output_logprobs(one))
    print(f"{precision}: {figures}")
    check_logprobs(figures, close=0.95)


def test_a_decode_without_it_is_refused_by_name(serve, checkpoint):
    with pairs.pair(serve, checkpoint("mtp"), *FLOAT32, prefill=mtp(DRAFTS)) as pair:
        said = refused(pair)
    fix = "give both servers the same --speculative-* flags"
    assert f"mtp: prefill has true, decode has false: {fix}" in said
