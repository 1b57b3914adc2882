"""Every comparison fails on what it is there to find, and says where."""

import math

import pytest
import torch

from sglang_glm53.testing.compare import (
    Continuation,
    LogprobFigures,
    check_logprobs,
    compare,
    compare_tokens,
    cosine_distance,
    logprob_figures,
)

NAN, INF = math.nan, math.inf


def ladder() -> torch.Tensor:
    return torch.arange(1.0, 13.0).reshape(3, 4)


@pytest.mark.parametrize(
    ("atol", "rtol", "passes"),
    [(0.5, 0.0, True), (0.49, 0.0, False), (0.0, 0.0625, True), (0.0, 0.0624, False), (0.49, 0.0625, True)],
)
def test_an_element_passes_by_either_bound(atol, rtol, passes):
    actual = ladder()
    actual[1, 3] += 0.5
    if passes:
        compare(actual, ladder(), atol=atol, rtol=rtol)
    else:
        with pytest.raises(
            AssertionError, match=r"1 of 12 elements differ, the worst at \(1, 3\): actual 8.5"
        ):
            compare(actual, ladder(), atol=atol, rtol=rtol)


def test_the_worst_coordinate_is_worst_by_its_bound():
    actual = ladder()
    actual[0, 0] += 0.2
    actual[2, 3] += 0.3
    with pytest.raises(AssertionError, match=r"2 of 12 .* \(0, 0\)"):
        compare(actual, ladder(), atol=0.0, rtol=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.float8_e4m3fn])
def test_equal_tensors_pass_with_zero_bounds(dtype):
    values = torch.tensor([-1.0, 0.0, 2.0]).to(dtype)
    compare(values, values.clone(), atol=0.0, rtol=0.0, cos=0.0)


@pytest.mark.parametrize(
    ("actual", "expected", "message"),
    [
        ([1.0, NAN], [1.0, 2.0], r"NaN differs in 1 of 2 places, the first at \(1,\)"),
        ([1.0, 2.0], [NAN, 2.0], r"NaN differs in 1 of 2 places, the first at \(0,\)"),
        ([INF, 2.0], [1.0, 2.0], r"\+inf differs"),
        ([INF, 2.0], [-INF, 2.0], r"\+inf differs"),
        ([1.0, 2.0], [1.0, -INF], r"-inf differs"),
        ([1.0, 1e-30], [1.0, 0.0], r"the worst at \(1,\)"),
    ],
)
def test_special_values_must_match(actual, expected, message):
    with pytest.raises(AssertionError, match=message):
        compare(torch.tensor(actual), torch.tensor(expected), atol=0.0, rtol=1.0)


def test_matching_special_values_pass():
    values = torch.tensor([NAN, INF, -INF, 0.0, 3.0])
    compare(values, values.clone(), atol=0.0, rtol=0.0, cos=0.0)


def test_shapes_must_match():
    with pytest.raises(AssertionError, match=r"shape \(4, 3\) where \(3, 4\)"):
        compare(ladder().T, ladder(), atol=1e9, rtol=1e9)


def test_cosine_distance_sees_a_wrong_scale():
    assert cosine_distance(ladder(), ladder()) == pytest.approx(0.0, abs=1e-15)
    assert cosine_distance(2 * ladder(), ladder()) == pytest.approx(0.2)
    assert cosine_distance(torch.zeros(3), torch.zeros(3)) == 0.0
    with pytest.raises(AssertionError, match=r"cosine distance 0\.2 is over 0\.1"):
        compare(2 * ladder(), ladder(), atol=1e9, rtol=0.0, cos=0.1)


def reference(prompts: int, gap: float) -> list[Continuation]:
    return [Continuation((5, 6, 7), (1.0, gap, 1.0)) for _ in range(prompts)]


def differing(prompts: int, faults: int, at: int = 1) -> list[list[int]]:
    wrong = [9 if i == at else token for i, token in enumerate((5, 6, 7))]
    return [wrong] * faults + [[5, 6, 7]] * (prompts - faults)


def test_a_tie_is_allowed_on_one_percent_and_printed():
    lines: list[str] = []
    compare_tokens(differing(200, 2), reference(200, 9e-4), report=lines.append)
    assert lines == [
        f"tie: prompt {i}, token 1: 9, expected 6 (the reference's top-1/top-2 gap is 0.0009)" for i in (0, 1)
    ]


@pytest.mark.parametrize(
    ("prompts", "faults", "gap", "at"),
    [(200, 3, 9e-4, 1), (99, 1, 9e-4, 1), (200, 1, 1e-3, 1), (200, 1, 9e-4, 0)],
    ids=["too many ties", "one tie of 99", "no tie by the gap", "first difference is no tie"],
)
def test_other_token_differences_fail(prompts, faults, gap, at):
    with pytest.raises(AssertionError, match=f"prompt 0, token {at}: 9"):
        compare_tokens(differing(prompts, faults, at), reference(prompts, gap), report=lambda line: None)


@pytest.mark.parametrize("actual", [[[5, 6]], [[5, 6, 7], [5, 6, 7]]], ids=["short", "one prompt too many"])
def test_missing_tokens_fail(actual):
    with pytest.raises(AssertionError, match=r"2 tokens, expected 3|2 continuations for 1 prompts"):
        compare_tokens(actual, reference(1, 1.0))


def test_logprob_figures_are_over_all_positions():
    figures = logprob_figures([[-1.0, -2.0], [-3.0, -4.0]], [[-1.0, -2.04], [-3.6, -4.35]])
    assert figures.mean == pytest.approx(0.2475)
    assert figures.largest == pytest.approx(0.6)
    assert figures.close == 0.5
    assert figures.where == "prompt 1, position 0"


@pytest.mark.parametrize(
    ("actual", "expected", "message"),
    [
        ([[-1.0]], [[-1.0, -2.0]], r"positions scored per prompt: \[1\], expected \[2\]"),
        ([[]], [[]], "no position was scored"),
        ([[-1.0, NAN]], [[-1.0, -2.0]], "prompt 0, position 1: a logprob is not finite"),
        ([[-INF]], [[-1.0]], "prompt 0, position 0"),
    ],
)
def test_unusable_logprobs_fail(actual, expected, message):
    with pytest.raises(AssertionError, match=message):
        logprob_figures(actual, expected)


@pytest.mark.parametrize(
    ("bounds", "broken"),
    [
        ({"mean": 0.1, "close": 0.9}, None),
        ({"mean": 0.09}, "the mean is over 0.09"),
        ({"close": 0.95}, "fewer than 95%"),
        ({"largest": 0.7}, "the largest is over 0.7"),
        ({"mean": 0.01, "close": 1.0}, "the mean is over 0.01, fewer than 100%"),
    ],
)
def test_each_logprob_bound_is_named(bounds, broken):
    figures = LogprobFigures(mean=0.1, largest=0.8, close=0.9, where="prompt 0, position 3")
    if broken is None:
        check_logprobs(figures, **bounds)
    else:
        with pytest.raises(AssertionError, match=broken):
            check_logprobs(figures, **bounds)


def test_no_position_may_be_over_one_by_default():
    with pytest.raises(AssertionError, match=r"the largest is over 1\.0.* at prompt 2, position 1"):
        check_logprobs(LogprobFigures(mean=0.0, largest=1.01, close=1.0, where="prompt 2, position 1"))
