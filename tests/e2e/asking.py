"""Owns the prompts that the end-to-end tests send and the ways they read the answers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sglang_glm53.testing.compare import Continuation
from sglang_glm53.testing.server import Server


def prompt(length: int, seed: int = 0, vocab: int = 512) -> list[int]:
    """A random prompt of ordinary tokens, its own for each length and seed."""
    draw = random.Random(f"{length} {seed}")
    return [draw.randrange(32, vocab) for _ in range(length)]


def generate_all(
    server: Server, prompts: Sequence[Sequence[int]], new_tokens: int, parallel: int = 8, **fields: Any
) -> list[dict[str, Any]]:
    """Greedy answers to every prompt, `parallel` requests at a time."""
    with ThreadPoolExecutor(parallel) as pool:
        return list(pool.map(lambda one: server.generate(one, new_tokens, **fields), prompts))


def tokens(answers: Sequence[dict[str, Any]]) -> list[list[int]]:
    """The generated tokens of each answer."""
    return [answer["output_ids"] for answer in answers]


def output_logprobs(answers: Sequence[dict[str, Any]]) -> list[list[float]]:
    """The logprobs (natural log) of each answer's tokens; they must have been asked for."""
    return [[value for value, _, _ in answer["meta_info"]["output_token_logprobs"]] for answer in answers]


def continuation(answer: dict[str, Any]) -> Continuation:
    """An answer as a reference for others; it must have been asked for with top_logprobs_num=2."""
    pairs = answer["meta_info"]["output_top_logprobs"]
    return Continuation(tuple(answer["output_ids"]), tuple(best[0] - second[0] for best, second in pairs))


def score_all(
    server: Server, prompts: Sequence[Sequence[int]], continuations: Sequence[Continuation]
) -> list[list[float]]:
    """Teacher-forced logprobs (natural log) of each continuation's tokens after its prompt."""
    whole = [[*one, *after.tokens] for one, after in zip(prompts, continuations, strict=True)]
    starts = [len(one) - 1 for one in prompts]
    answers = server.generate(whole, 1, return_logprob=True, logprob_start_len=starts)
    scores = []
    for one, sequence, answer in zip(prompts, whole, answers, strict=True):
        scored = answer["meta_info"]["input_token_logprobs"][1:]
        assert [token for _, token, _ in scored] == sequence[len(one) :]
        scores.append([value for value, _, _ in scored])
    return scores
