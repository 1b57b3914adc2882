"""EPLB on two expert ranks: redundant experts load, and a rebalance moves weights but no answer."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

from sglang_glm53.testing.server import Server
from tests.e2e.asking import prompt

PROMPTS = [prompt(length) for length in (20, 65, 130)]
FLOAT32 = ("--dtype", "float32", "--tp-size", "2", "--moe-a2a-backend", "deepep", "--deepep-mode", "normal")
REDUNDANT = ("--ep-num-redundant-experts", "2")
# A rebalance after so many forwards; a request of one token is one forward.
ITERATIONS = 12
EPLB = (
    *("--enable-eplb", "--eplb-rebalance-num-iterations", str(ITERATIONS)),
    *("--expert-distribution-recorder-mode", "stat"),
    *("--expert-distribution-recorder-buffer-size", str(ITERATIONS)),
)
MOVED = re.compile(r"EPLBManager\] rebalance end")


def scores(server: Server) -> torch.Tensor:
    """The logprobs of every prompt's tokens, from an empty cache."""
    server.flush_cache()
    found: list[float] = []
    for one in PROMPTS:
        answer = server.generate(one, 1, return_logprob=True, logprob_start_len=0)
        found += [value for value, _, _ in answer["meta_info"]["input_token_logprobs"][1:]]
    return torch.tensor(found, dtype=torch.float64)


@pytest.fixture(scope="module")
def rebalanced(serve, checkpoint) -> Callable[[str], tuple[torch.Tensor, torch.Tensor, str]]:
    """mutation -> the logprobs before the first rebalance and after it, and the log."""

    def run(mutation: str) -> tuple[torch.Tensor, torch.Tensor, str]:
        with serve(checkpoint("default"), *FLOAT32, *REDUNDANT, *EPLB, mutation=mutation) as server:
            before = scores(server)
            assert not MOVED.search(server.log_text())
            for _ in range(3 * ITERATIONS):
                if MOVED.search(server.log_text()):
                    break
                server.generate(PROMPTS[0], 1)
            return before, scores(server), server.log_text()

    return run


def test_redundant_experts_give_the_same_logprobs(serve, checkpoint):
    found = []
    for flags in ((), REDUNDANT):
        with serve(checkpoint("default"), *FLOAT32, *flags) as server:
            found.append(scores(server))
    torch.testing.assert_close(found[1], found[0], atol=1e-3, rtol=0)


@pytest.mark.matrix
def test_a_rebalance_keeps_the_logprobs(rebalanced):
    before, after, log = rebalanced("")
    assert MOVED.search(log)
    torch.testing.assert_close(after, before, atol=1e-3, rtol=0)


@pytest.mark.matrix
def test_experts_that_stay_where_they_were_are_noticed(rebalanced):
    before, after, log = rebalanced("experts_stay")
    assert MOVED.search(log)
    assert (after - before).abs().max() > 0.01
