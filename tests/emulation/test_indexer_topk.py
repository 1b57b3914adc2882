"""Owns the checks of indexer_topk's source: rows and launches of every kind, schedules, bytes read."""

import itertools

import pytest

from sglang_glm53.testing import emulation
from tests.emulation import kernel_program
from tests.kernels.calls import as_bytes
from tests.kernels.indexer_topk_cases import MODES, VALUES, Case, call

STEM = "indexer_topk"
KS = (1, 7, 64, 96, 512, 2048)
WIDE = 2**20
# Threads, blocks and cache words that the shape alone would not choose: parts of a row in no cache, notes
# that overflow, blocks without a share.
PLANS = [(256, 1, 0), (256, 1, 16), (256, 2, 8), (256, 4, 64), (256, 8, 0), (1024, 2, 64), (1024, 1, 4096)]


@pytest.fixture
def topk(program):
    """The program, plain."""
    return program("kernel", "plain", *kernel_program.flags(STEM))


def _checked(program, cases, folder, order="forward", seed=0):
    """The results of the cases, all of them checked."""
    calls = list(map(call, cases))
    found = kernel_program.run(STEM, program, calls, folder, order, seed)
    assert not isinstance(found, emulation.Outcome), found.output
    for each, result in zip(calls, found, strict=True):
        kernel_program.check(each, result)
    return found


def _lengths(k, width):
    return tuple(min(length, width) for length in (0, -5, 1, max(k - 1, 0), k, k + 1, width // 2, width))


def _round(values, bf16, seed):
    """A case for each k, its rows at every length that is special for it."""
    modes, pages = itertools.cycle(MODES), itertools.cycle([1, 2, 4, 8, 16, 32, 64, 128])
    for number, k in enumerate(KS):
        width = (3 * k + 37 * number + 5) if k < 2048 else 5001
        yield Case(
            rows=8,
            width=width,
            k=k,
            values=values,
            bf16=bf16,
            mode=next(modes),
            page_size=next(pages),
            gap=8 * (number % 2),
            lengths=_lengths(k, width),
            seed=seed + number,
        )


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("values", VALUES)
def test_values(topk, tmp_path, values, bf16):
    _checked(topk, list(_round(values, bf16, seed=1)), tmp_path)


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_launches(topk, tmp_path, plan):
    cases = [
        Case(2, width, k, values, bf16, mode, lengths=(width, width - 3), plan=plan, seed=k)
        for (k, width), bf16, mode in [((7, 500), False, "ragged"), ((512, 9000), True, "mapped")]
        for values in VALUES
    ]
    _checked(topk, cases, tmp_path, "random", 1)


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(20))
def test_ten_thousand_rows(topk, tmp_path, seed):
    """500 rows and more for each of 20 seeds."""
    cases = [
        Case(
            rows=8 if k < 512 else 3,
            width=(97 * seed + 31 * number + 3 * k) % 4000 + k // 2 + 1,
            k=k,
            values=values,
            bf16=(seed + number) % 2 == 0,
            mode=MODES[(seed + number) % 4],
            page_size=2 ** ((seed + number) % 8),
            gap=(seed + number) % 3 * 16,
            seed=seed * 1000 + number,
        )
        for number, (values, k) in enumerate(itertools.product(VALUES, KS + KS[:1]))
    ]
    assert sum(case.rows for case in cases) >= 500
    _checked(topk, cases, tmp_path, "random", seed)


def _schedules(count):
    return [("forward", 0), ("reversed", 0), *(("random", seed) for seed in range(1, count - 1))]


def _same_under(program, cases, folder, schedules):
    results = set()
    for order, seed in schedules:
        found = _checked(program, cases, folder, order, seed)
        tensors = [tensor for result in found for tensor in result.tensors.values()]
        results.add(b"".join(as_bytes(tensor).numpy().tobytes() for tensor in tensors))
    assert len(results) == 1


def test_schedules_give_the_same_answer(topk, tmp_path):
    cases = [Case(2, 3000, 512, values, mode="ragged", plan=(256, 4, 64)) for values in ("plateau", "mixed")]
    _same_under(topk, cases, tmp_path, _schedules(5))


@pytest.mark.matrix
def test_twenty_schedules_give_the_same_answer(topk, tmp_path):
    cases = [
        Case(2, 9000, k, values, bf16, "mapped", plan=plan)
        for values, bf16 in itertools.product(("plateau", "mixed", "any bits"), (False, True))
        for k, plan in [(96, (0, 0, 0)), (2048, (256, 4, 64))]
    ]
    _same_under(topk, cases, tmp_path, _schedules(20))


def _reads(program, folder, width, values, k=2048, bf16=False):
    """How often each logit is read."""
    [result] = _checked(program, [Case(1, width, k, values, bf16, lengths=(width,))], folder)
    return result.traffic["logits"][0] / (width * (2 if bf16 else 4))


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("width", [4096, 32768])
def test_a_row_in_shared_memory_is_read_once(topk, tmp_path, width, bf16):
    for values in ("normal", "plateau", "close"):
        assert _reads(topk, tmp_path, width, values, bf16=bf16) <= 1.01


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
def test_a_million_random_logits_are_read_at_most_twice(topk, tmp_path, bf16):
    assert _reads(topk, tmp_path, WIDE, "normal", bf16=bf16) <= 2


@pytest.mark.matrix
@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("values", ["plateau", "one value", "few values", "relu"])
def test_a_million_logits_on_a_plateau_are_read_at_most_three_times(topk, tmp_path, values, bf16):
    for k in (512, 2048):
        assert _reads(topk, tmp_path, WIDE, values, k, bf16) <= 3
