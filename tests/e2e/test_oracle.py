"""The server against an independent implementation: transformers in FP32, over prompts around every seam."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sglang_glm53.geometry import PAGE
from sglang_glm53.testing.compare import (
    Continuation,
    LogprobFigures,
    check_logprobs,
    compare_tokens,
    logprob_figures,
)
from tests.e2e.ahead import parameters, run_ahead
from tests.e2e.asking import prompt, score_all, tokens
from tests.e2e.checkpoints import CHECKPOINTS

NEW_TOKENS = 16
CHUNK = 128
PRECISIONS = {
    "float32": ("--dtype", "float32"),
    "bf16": ("--dtype", "bfloat16", "--kv-cache-dtype", "bfloat16"),
    "fp8 index keys": ("--dtype", "bfloat16"),
    "fp8 rows and index keys": ("--dtype", "bfloat16", "--kv-cache-dtype", "fp8_e4m3"),
}
ROUNDED = tuple(PRECISIONS)[1:]
DEFAULT = "default"
# Design section 4: the largest mean |dlogprob| against the oracle, up to index_topk and past it.
MEAN_UP_TO_TOPK, MEAN_PAST_TOPK = 0.06, 0.25
MUTATIONS = (
    "dense_attention",
    "wrong_rope_style",
    "wrong_index_group",
    "index_norm_epsilon",
    "no_routing_bias",
)


def lengths(index_topk: int) -> list[int]:
    """Prompt lengths: short, around index_topk, well past it, past one page, past one and two chunks."""
    around = [index_topk - 1, index_topk, index_topk + 1, 2 * index_topk + 9]
    return sorted({7, 20, 33, *around, PAGE + 1, CHUNK + 1, 2 * CHUNK + PAGE + 1})


@dataclass(frozen=True)
class Case:
    """One checkpoint's questions with the oracle's answers."""

    path: Path
    index_topk: int
    prompts: list[list[int]]
    continuations: list[Continuation]
    scores: list[list[float]]


@dataclass(frozen=True)
class Answers:
    """What one server answered: greedy tokens, and the scores of the oracle's continuations."""

    tokens: list[list[int]]
    scores: list[list[float]]


def wanted(request: pytest.FixtureRequest) -> list[tuple[str, str, str]]:
    """(checkpoint, precision, mutation) of every test that runs."""
    return [
        (own.get("name", DEFAULT), own.get("precision", "float32"), own.get("mutation", ""))
        for own in parameters(request)
    ]


@pytest.fixture(scope="module")
def case(request, checkpoint, oracle) -> Iterator[Callable[[str], Case]]:
    def ask(name: str) -> Case:
        spec, path = CHECKPOINTS[name], checkpoint(name)
        prompts = [prompt(length, vocab=spec.vocab) for length in lengths(spec.index_topk)]
        continuations = oracle.greedy(path, prompts, NEW_TOKENS)
        whole = [[*one, *after.tokens] for one, after in zip(prompts, continuations, strict=True)]
        scored = zip(prompts, oracle.score(path, whole), strict=True)
        scores = [all_scores[len(one) - 1 :] for one, all_scores in scored]
        return Case(path, spec.index_topk, prompts, continuations, scores)

    # The oracle is one process.
    with run_ahead(ask, [(name,) for name, _, _ in wanted(request)], workers=1) as result:
        yield result


@pytest.fixture(scope="module")
def answers(request, serve, case) -> Iterator[Callable[..., Answers]]:
    def ask(name: str, precision: str, mutation: str) -> Answers:
        prompts, continuations = case(name).prompts, case(name).continuations
        flags = (*PRECISIONS[precision], "--chunked-prefill-size", str(CHUNK))
        with serve(case(name).path, *flags, mutation=mutation) as server:
            scores = score_all(server, prompts, continuations)
            assert f"#new-token: {CHUNK}," in server.log_text(), "no prompt was split into chunks"
            server.flush_cache()
            # Only float32 promises the oracle's tokens.
            exact = precision == "float32"
            found = tokens(server.generate(prompts, NEW_TOKENS)) if exact else []
        return Answers(found, scores)

    with run_ahead(ask, wanted(request)) as result:
        yield result


def figures(case: Case, answers: Answers, *, past: bool) -> LogprobFigures:
    """Over the scored positions whose row sees more than index_topk tokens, or over the others."""

    def kept(scores: list[list[float]]) -> list[list[float]]:
        return [
            [score for at, score in enumerate(row, len(one)) if (at > case.index_topk) == past]
            for one, row in zip(case.prompts, scores, strict=True)
        ]

    return logprob_figures(kept(answers.scores), kept(case.scores))


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_in_float32_the_tokens_are_the_oracles(name, case, answers):
    found = answers(name, "float32", "")
    compare_tokens(found.tokens, case(name).continuations)
    check_logprobs(figures(case(name), found, past=True), largest=1e-2)


@pytest.mark.parametrize("precision", ROUNDED)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == DEFAULT else pytest.mark.matrix) for name in CHECKPOINTS],
)
def test_rounded_logprobs_stay_near_the_oracles(name, precision, case, answers):
    found = answers(name, precision, "")
    up_to, past = (figures(case(name), found, past=side) for side in (False, True))
    print(f"{name}, {precision}: up to index_topk {up_to}; past it {past}")
    check_logprobs(up_to, mean=MEAN_UP_TO_TOPK)
    check_logprobs(past, mean=MEAN_PAST_TOPK)


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_fault_changes_the_tokens_in_float32(mutation, case, answers):
    faulty = answers(DEFAULT, "float32", mutation)
    with pytest.raises(AssertionError, match="prompts differ"):
        compare_tokens(faulty.tokens, case(DEFAULT).continuations)


def _rounded(mutation: str, precision: str) -> Any:
    # Every fault changes tokens in float32 by default; here two of them stand for all.
    default = precision == "fp8 index keys" and mutation in ("dense_attention", "wrong_index_group")
    return pytest.param(mutation, precision, marks=() if default else pytest.mark.matrix)


@pytest.mark.parametrize(
    ("mutation", "precision"), [_rounded(mutation, one) for mutation in MUTATIONS for one in ROUNDED]
)
def test_a_fault_doubles_the_rounded_distance(mutation, precision, case, answers):
    own = figures(case(DEFAULT), answers(DEFAULT, precision, ""), past=True)
    faulty = figures(case(DEFAULT), answers(DEFAULT, precision, mutation), past=True)
    print(f"{precision}: {own}; with {mutation}: {faulty}")
    assert faulty.mean >= 2 * own.mean
