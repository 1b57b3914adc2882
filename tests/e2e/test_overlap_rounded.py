"""Two-batch overlap in bf16 and FP8: one fixed continuation, scored by every shape, teacher-forced."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from sglang_glm53.testing.compare import check_logprobs, logprob_figures
from sglang_glm53.tiny.checkpoint import TinySpec, write
from tests.e2e.ahead import parameters, run_ahead
from tests.e2e.asking import continuation, prompt, score_all
from tests.e2e.test_overlap import DISPATCH, DP2, OVERLAP, TP2

pytestmark = pytest.mark.matrix

NEW_TOKENS = 16
# The first five stay within index_topk, 64 tokens.
PROMPTS = [prompt(length) for length in (8, 20, 32, 40, 48, 64, 65, 130, 260)]
SHORT = 5
ONE = "one rank"
SHAPES = {
    ONE: (),
    "TP 2 and EP 2": (*TP2, *DISPATCH),
    "TP 2 and EP 2, overlap": (*TP2, *OVERLAP),
    "DP 2 and EP 2": (*DP2, *DISPATCH),
    "DP 2 and EP 2, overlap": (*DP2, *OVERLAP),
}
OVERLAPPING = [shape for shape in SHAPES if "overlap" in shape]
PRECISIONS = {"bf16": TinySpec(), "fp8": TinySpec(fp8=True)}
FAULT = "zeros_for_minus_one"


@pytest.fixture(scope="module")
def scores(request, serve, tmp_path_factory) -> Iterator[Callable[..., list[list[float]]]]:
    """(precision, shape, mutation) -> the logprobs of the continuations that one rank gives."""
    folders = {}
    for precision, spec in PRECISIONS.items():
        folders[precision] = tmp_path_factory.mktemp(precision) / "checkpoint"
        write(spec, folders[precision])

    def one_rank(precision: str):
        with serve(folders[precision], "--dtype", "bfloat16") as server:
            answers = [
                server.generate(one, NEW_TOKENS, return_logprob=True, top_logprobs_num=2) for one in PROMPTS
            ]
            continuations = [continuation(answer) for answer in answers]
            return continuations, score_all(server, PROMPTS, continuations)

    def ask(precision: str, shape: str, mutation: str):
        if shape == ONE:
            return one_rank(precision)
        continuations, _ = result(precision, ONE, "")
        with serve(folders[precision], "--dtype", "bfloat16", *SHAPES[shape], mutation=mutation) as server:
            return continuations, score_all(server, PROMPTS, continuations)

    wanted = [(own["precision"], ONE, "") for own in parameters(request) if "precision" in own]
    with run_ahead(ask, wanted) as result:
        yield lambda precision, shape, mutation="": result(precision, shape, mutation)[1]


@pytest.mark.parametrize("shape", OVERLAPPING)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_overlap_moves_no_logprob_past_rounding(precision, shape, scores):
    figures = logprob_figures(scores(precision, shape), scores(precision, shape.removesuffix(", overlap")))
    print(f"{precision}, {shape}: {figures}")
    check_logprobs(figures, close=0.95)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != ONE])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_shape_stays_near_one_rank(precision, shape, scores):
    """In bf16 nearly every position up to index_topk. Past it a rounding can move the selection, and in FP8
    any rounding moves a quantised value, on layers this small: there by the mean."""
    found, alone = scores(precision, shape), scores(precision, ONE)
    short, whole = logprob_figures(found[:SHORT], alone[:SHORT]), logprob_figures(found, alone)
    print(f"{precision}, {shape}: up to index_topk {short}; all {whole}")
    if precision == "bf16":
        check_logprobs(short, close=0.95)
    check_logprobs(whole, mean=0.06)


@pytest.mark.parametrize("shape", OVERLAPPING[:1])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_fault_of_the_carry_is_noticed(precision, shape, scores):
    faulty = logprob_figures(scores(precision, shape, FAULT), scores(precision, shape))
    print(f"{precision}, {FAULT}: {faulty}")
    assert faulty.close < 0.95
