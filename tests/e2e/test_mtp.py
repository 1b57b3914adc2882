"""Speculative decoding with the MTP layer in float32: the same tokens as without it, and right drafts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from sglang_glm53.testing.compare import Continuation, compare_tokens
from sglang_glm53.tiny.sizes import DRAFTS
from tests.configs import mtp
from tests.e2e.ahead import parameters, run_ahead
from tests.e2e.asking import continuation, generate_all, prompt, tokens
from tests.e2e.checkpoints import WITH_MTP

NEW_TOKENS = 12
STEPS = (1, 3, 5)
# Below, around and past index_topk, which is 64.
PROMPTS = [prompt(5 + 4 * i) for i in range(50)]
BATCH = PROMPTS[::3][:16]
FLOAT32 = ("--dtype", "float32")
TP2, DP2 = ("--tp-size", "2"), ("--tp-size", "2", "--attn-dp-size", "2")
DISPATCH = ("--moe-a2a-backend", "deepep", "--deepep-mode", "normal")
OVERLAP = (*DISPATCH, "--enable-two-batch-overlap")
SHAPES: dict[str, tuple[str, ...]] = {
    "TP 1": (),
    "chunks of 64": ("--chunked-prefill-size", "64"),
    # A half of what the batch holds at its end: prefixes are evicted, and requests wait.
    "little memory": ("--max-total-tokens", "1024"),
    "TP 2": TP2,
    "DP 2 and EP 2": (*DP2, *DISPATCH),
    "TP 2 and EP 2, overlap": (*TP2, *OVERLAP),
    "DP 2 and EP 2, overlap": (*DP2, *OVERLAP),
}
ELSEWHERE = [shape for shape in SHAPES if shape != "TP 1"]


def drafts(answers: list[dict[str, Any]]) -> tuple[int, int]:
    """The drafts that were right, and all."""
    meta = [answer["meta_info"] for answer in answers]
    return sum(one["spec_num_correct_drafts"] for one in meta), sum(
        one["spec_num_proposed_drafts"] for one in meta
    )


@dataclass(frozen=True)
class Answers:
    """What a server answered: prompts alone, the batch at once, and 16 clients that find its prefixes.

    statuses: its status for each data-parallel group.
    """

    alone: list[dict[str, Any]]
    together: list[dict[str, Any]]
    clients: list[dict[str, Any]]
    statuses: list[dict[str, Any]]


def without_mtp(serve, path, prompts: list[list[int]]) -> list[Continuation]:
    """What a server without speculative decoding answers to each prompt by itself, nothing cached."""
    found = []
    with serve(path, *FLOAT32) as server:
        for one in prompts:
            server.flush_cache()
            answer = server.generate(one, NEW_TOKENS, return_logprob=True, top_logprobs_num=2)
            found.append(continuation(answer))
    return found


@pytest.fixture(scope="module")
def reference(serve, checkpoint) -> list[Continuation]:
    """The answers to the batch."""
    return without_mtp(serve, checkpoint("mtp"), BATCH)


@pytest.fixture(scope="module")
def fifty(serve, checkpoint) -> Iterator[Callable[[int], list[Any]]]:
    """steps -> the tokens of all prompts, each by itself; 0 -> the answers of a server without."""

    def ask(steps: int) -> list[Any]:
        if not steps:
            return without_mtp(serve, checkpoint("mtp"), PROMPTS)
        with serve(checkpoint("mtp"), *FLOAT32, *mtp(steps)) as server:
            return tokens([server.generate(one, NEW_TOKENS) for one in PROMPTS])

    with run_ahead(ask, [(steps,) for steps in (0, *STEPS)]) as result:
        yield result


@pytest.fixture(scope="module")
def answers(request, serve, checkpoint) -> Iterator[Callable[..., Answers]]:
    """(shape, steps, mutation) -> what such a server answers."""

    def ask(shape: str, steps: int, mutation: str = "") -> Answers:
        mutation = mutation and f"mutations_mtp:{mutation}"
        flags = (*FLOAT32, *mtp(steps), *SHAPES[shape])
        with serve(checkpoint("mtp"), *flags, mutation=mutation) as server:
            if mutation:
                return Answers([], server.generate(BATCH, NEW_TOKENS), [], [])
            alone = [server.generate(one, NEW_TOKENS) for one in BATCH[::4]]
            server.flush_cache()
            together = server.generate(BATCH, NEW_TOKENS)
            clients = generate_all(server, BATCH, NEW_TOKENS, parallel=16)
            statuses = [state["glm53"] for state in server.server_info()["internal_states"]]
        return Answers(alone, together, clients, statuses)

    wanted = [
        (own["shape"], own["steps"], own.get("mutation", ""))
        for own in parameters(request)
        if "shape" in own and "steps" in own
    ]
    with run_ahead(ask, wanted) as result:
        yield lambda shape, steps, mutation="": result(shape, steps, mutation)


def case(shape: str, steps: int) -> Any:
    default = (shape, steps) == ("TP 1", 3)
    return pytest.param(
        shape, steps, marks=() if default else pytest.mark.matrix, id=f"{shape}, {steps} steps"
    )


CASES = [*(case("TP 1", steps) for steps in STEPS), *(case(shape, 3) for shape in ELSEWHERE)]


@pytest.mark.parametrize(("shape", "steps"), CASES)
def test_the_same_tokens(shape, steps, answers, reference):
    found = answers(shape, steps)
    compare_tokens(tokens(found.alone), reference[::4])
    compare_tokens(tokens(found.together), reference)
    compare_tokens(tokens(found.clients), reference)
    cached = sum(answer["meta_info"]["cached_tokens"] for answer in found.clients)
    assert cached > 0 or shape == "little memory"


@pytest.mark.parametrize(("shape", "steps"), CASES)
def test_drafts_were_accepted_and_refused(shape, steps, answers):
    found = answers(shape, steps)
    right, proposed = drafts(found.together)
    # Some verify gave more tokens than one, and the requests of the batch went on at different speeds.
    assert 0 < right < proposed
    assert len({answer["meta_info"]["spec_verify_ct"] for answer in found.together}) > 1
    for status in found.statuses:
        entry = status["mtp"]
        assert (entry["state"], entry["steps"], entry["shared_selection"]) == ("on", steps, True)
        assert entry["model"] == "sglang_glm53.model.nextn.Glm53ForCausalLMNextN"
        # Draft-extend gave every step its selection; one draft needs no step of its own.
        assert (entry["draft_steps"]["reused"] > 0) == (steps > 1)
        assert entry["draft_steps"]["recomputed"] == entry["draft_steps"]["invalid"] == 0
        # One rank has the whole vocabulary, and so has each of attention DP's two.
        shared = SHAPES[shape][:2] == TP2 and "DP 2" not in shape
        argmax = status["fusions"]["draft_argmax"]
        assert (argmax["state"] == "on", bool(argmax["ran"])) == (shared, shared), argmax
        if "overlap" in shape:
            assert status["overlap"]["overlapped"]["TARGET_VERIFY"] > 0


@pytest.mark.matrix
@pytest.mark.parametrize("steps", STEPS)
def test_fifty_prompts_by_themselves(steps, fifty):
    compare_tokens(fifty(steps), fifty(0))


@pytest.mark.matrix
@pytest.mark.parametrize(("shape", "steps"), [("TP 1", 3)])
@pytest.mark.parametrize("mutation", ["accept_every_draft", "verify_rows_see_all_drafts"])
def test_a_fault_of_the_verification_changes_the_tokens(shape, steps, mutation, answers, reference):
    found = answers(shape, steps, mutation)
    with pytest.raises(AssertionError, match="prompts differ"):
        compare_tokens(tokens(found.together), reference)


def test_a_sampled_request_is_served(serve, checkpoint):
    sampling = {"max_new_tokens": 40, "temperature": 0.8, "top_p": 0.9, "top_k": 50, "ignore_eos": True}
    with serve(checkpoint("recall"), *FLOAT32, *mtp(3)) as server:
        answer = server.generate(PROMPTS[30], sampling_params=sampling)
    # The recalled token has nearly all of the probability, sampled or not.
    assert answer["output_ids"] == recalled(PROMPTS[30], 40)
    assert answer["meta_info"]["spec_accept_rate"] >= ACCEPTED


# Drafts of the checkpoint that repeats its context.
PERIOD = WITH_MTP["recall"].period
ACCEPTED, LOST = 0.98, 0.2
# What a fault leaves right: the drafts before the first that it spoils.
FAULTS = [
    "draft_takes_the_targets_selection",
    "seed_of_the_row_before",
    "hidden_state_before_the_norm",
    "no_index_keys_in_draft_extend",
]


def recall_prompts(count: int) -> list[list[int]]:
    """Prompts longer than what a row looks back, of different lengths."""
    draw = random.Random(0)
    return [prompt(2 * PERIOD + draw.randrange(60), seed) for seed in range(count)]


def recalled(one: list[int], new_tokens: int) -> list[int]:
    """What follows a prompt: each token is the one a period before."""
    whole = list(one)
    for _ in range(new_tokens):
        whole.append(whole[-PERIOD])
    return whole[len(one) :]


def recall_rate(server: Any, prompts: list[list[int]], new_tokens: int) -> tuple[float, int]:
    """The share of right drafts, and the number of all; the tokens must be right whatever was drafted."""
    found = server.generate(prompts, new_tokens)
    assert tokens(found) == [recalled(one, new_tokens) for one in prompts]
    right, proposed = drafts(found)
    return right / proposed, proposed


def test_every_draft_is_right(serve, checkpoint):
    with serve(checkpoint("recall"), *FLOAT32, *mtp(DRAFTS)) as server:
        rate, proposed = recall_rate(server, recall_prompts(8), 2 * PERIOD)
    assert rate >= ACCEPTED and proposed >= 500


@pytest.mark.matrix
@pytest.mark.parametrize("steps", range(1, DRAFTS + 1))
def test_two_thousand_drafts_are_right(steps, serve, checkpoint):
    with serve(checkpoint("recall"), *FLOAT32, *mtp(steps), "--max-total-tokens", "16384") as server:
        rate, proposed = recall_rate(server, recall_prompts(18), 256)
    assert rate >= ACCEPTED and proposed >= 2000


@pytest.mark.matrix
@pytest.mark.parametrize("mutation", FAULTS)
def test_a_fault_of_the_draft_makes_drafts_wrong_but_no_token(mutation, serve, checkpoint):
    flags = (*FLOAT32, *mtp(DRAFTS))
    with serve(checkpoint("recall"), *flags, mutation=f"mutations_mtp:{mutation}") as server:
        rate, _ = recall_rate(server, recall_prompts(8), 3 * PERIOD)
    assert rate <= ACCEPTED - LOST
