"""Owns the comparisons every test uses: tensors, greedy tokens and teacher-forced logprobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

# Design: a first difference is a tie, not a fault, where the reference itself hardly prefers its token.
TIE_GAP = 1e-3
TIED_PROMPTS = 0.01
# Two execution shapes of one precision differ by rounding: most positions by less than this.
CLOSE = 0.05


def _coordinate(flat: int, shape: torch.Size) -> str:
    return str(tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), shape)))


def _same_places(a: torch.Tensor, b: torch.Tensor, what: str) -> None:
    wrong = a != b
    if bool(wrong.any()):
        at = int(wrong.flatten().int().argmax())
        raise AssertionError(
            f"{what} in {int(wrong.sum())} of {wrong.numel()} places, the first at "
            f"{_coordinate(at, wrong.shape)}: {'' if a.flatten()[at] else 'not '}in actual, "
            f"{'' if b.flatten()[at] else 'not '}in expected"
        )


def cosine_distance(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """1 - 2 a.b / (a.a + b.b), in FP64: 0 when equal; unlike the plain cosine, it sees a wrong scale."""
    a, b = actual.double().flatten(), expected.double().flatten()
    total = float(a @ a + b @ b)
    return 1.0 - 2.0 * float(a @ b) / total if total else 0.0


def compare(
    actual: torch.Tensor, expected: torch.Tensor, *, atol: float, rtol: float, cos: float | None = None
) -> None:
    """Check actual against expected; raises AssertionError naming the worst coordinate.

    Both: any dtype, the same shape. An element passes when its absolute error is at most atol or its
    relative error at most rtol. cos: the largest allowed `cosine_distance` over the finite elements. NaN
    must stand at the same places (so a poisoned output shows what was never written), and so must
    infinities, with their sign.
    """
    if actual.shape != expected.shape:
        raise AssertionError(f"shape {tuple(actual.shape)} where {tuple(expected.shape)} was expected")
    a, b = actual.detach().cpu().double(), expected.detach().cpu().double()
    _same_places(a.isnan(), b.isnan(), "NaN differs")
    _same_places(a.isposinf(), b.isposinf(), "+inf differs")
    _same_places(a.isneginf(), b.isneginf(), "-inf differs")
    finite = b.isfinite()
    a, b = torch.where(finite, a, 0.0), torch.where(finite, b, 0.0)
    error = (a - b).abs()
    # How many times over its looser bound each element is; 0/0 is an exact hit under a zero bound.
    over = torch.minimum(error / atol, error / (rtol * b.abs())).nan_to_num(nan=0.0, posinf=torch.inf)
    failed = over > 1
    if bool(failed.any()):
        at = int(over.flatten().argmax())
        raise AssertionError(
            f"{int(failed.sum())} of {failed.numel()} elements differ, the worst at "
            f"{_coordinate(at, b.shape)}: actual {float(a.flatten()[at])!r}, expected "
            f"{float(b.flatten()[at])!r}, error {float(error.flatten()[at]):.3g} "
            f"(atol {atol:g}, rtol {rtol:g})"
        )
    if cos is not None and (distance := cosine_distance(a, b)) > cos:
        raise AssertionError(f"cosine distance {distance:.3g} is over {cos:g}")


@dataclass(frozen=True)
class Continuation:
    """A greedy continuation of one prompt.

    tokens: the ids, in order. gaps: for each, how far its logprob (natural log) is above the runner-up's.
    """

    tokens: tuple[int, ...]
    gaps: tuple[float, ...]


def compare_tokens(
    actual: Sequence[Sequence[int]],
    expected: Sequence[Continuation],
    report: Callable[[str], None] = print,
) -> None:
    """Check greedy tokens, one sequence per prompt, against a reference's; raises AssertionError.

    Equal, except that at most 1 % of the prompts may differ, where the reference's gap at the first
    difference is below 1e-3: its two best tokens are a tie to any other order of additions. Each such tie
    goes to `report`.
    """
    if len(actual) != len(expected):
        raise AssertionError(f"{len(actual)} continuations for {len(expected)} prompts")
    ties: list[str] = []
    faults: list[str] = []
    for prompt, (tokens, reference) in enumerate(zip(actual, expected, strict=True)):
        found = tuple(tokens)
        if found == reference.tokens:
            continue
        if len(found) != len(reference.tokens):
            faults.append(f"prompt {prompt}: {len(found)} tokens, expected {len(reference.tokens)}")
            continue
        at = next(i for i, token in enumerate(found) if token != reference.tokens[i])
        line = (
            f"prompt {prompt}, token {at}: {found[at]}, expected {reference.tokens[at]} "
            f"(the reference's top-1/top-2 gap is {reference.gaps[at]:.3g})"
        )
        (ties if reference.gaps[at] < TIE_GAP else faults).append(line)
    for line in ties:
        report(f"tie: {line}")
    allowed = int(TIED_PROMPTS * len(expected))
    if faults or len(ties) > allowed:
        raise AssertionError(
            f"{len(faults)} of {len(expected)} prompts differ and {len(ties)} tie ({allowed} ties allowed): "
            + "; ".join(faults + ties)
        )


@dataclass(frozen=True)
class LogprobFigures:
    """|dlogprob| over the scored positions: the mean, the largest, and the share of positions <= 0.05."""

    mean: float
    largest: float
    close: float
    where: str

    def __str__(self) -> str:
        return (
            f"mean |dlogprob| {self.mean:.4f}, {self.close:.1%} within {CLOSE}, "
            f"largest {self.largest:.4f} at {self.where}"
        )


def logprob_figures(actual: Sequence[Sequence[float]], expected: Sequence[Sequence[float]]) -> LogprobFigures:
    """Compare teacher-forced logprobs: one sequence per prompt, one value per scored position.

    Raises AssertionError when the two do not score the same positions or a value is not finite.
    """
    if [len(row) for row in actual] != [len(row) for row in expected]:
        raise AssertionError(
            f"positions scored per prompt: {[len(row) for row in actual]}, "
            f"expected {[len(row) for row in expected]}"
        )
    where = [(prompt, position) for prompt, row in enumerate(expected) for position in range(len(row))]
    if not where:
        raise AssertionError("no position was scored")
    pairs = zip(actual, expected, strict=True)
    delta = torch.tensor(
        [abs(x - y) for a, b in pairs for x, y in zip(a, b, strict=True)], dtype=torch.float64
    )
    if not bool(delta.isfinite().all()):
        prompt, position = where[int((~delta.isfinite()).int().argmax())]
        raise AssertionError(f"prompt {prompt}, position {position}: a logprob is not finite")
    prompt, position = where[int(delta.argmax())]
    return LogprobFigures(
        mean=float(delta.mean()),
        largest=float(delta.max()),
        close=float((delta <= CLOSE).double().mean()),
        where=f"prompt {prompt}, position {position}",
    )


def check_logprobs(
    figures: LogprobFigures,
    *,
    mean: float | None = None,
    close: float | None = None,
    largest: float = 1.0,
) -> None:
    """Check figures against the bounds of design section 4; raises AssertionError naming each broken one.

    mean: the largest allowed mean |dlogprob|. close: the least allowed share of positions within 0.05.
    largest: the largest allowed |dlogprob| anywhere.
    """
    broken = []
    if mean is not None and figures.mean > mean:
        broken.append(f"the mean is over {mean}")
    if close is not None and figures.close < close:
        broken.append(f"fewer than {close:.0%} of the positions are within {CLOSE}")
    if figures.largest > largest:
        broken.append(f"the largest is over {largest}")
    if broken:
        raise AssertionError(f"{', '.join(broken)}: {figures}")
