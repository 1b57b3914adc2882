"""Owns the checks of indexer_topk's source: rows and launches of every kind, schedules, sanitizers, bytes."""

import itertools
import re
import shutil

import pytest

from sglang_glm53.kernels import jit
from sglang_glm53.testing import emulation
from tests.emulation import indexer_topk_program
from tests.emulation.conftest import SOURCES
from tests.kernels.indexer_topk_cases import MODES, VALUES, Case

KS = (1, 7, 64, 96, 512, 2048)
WIDE = 2**20
# Threads, blocks and cache words that the shape alone would not choose: parts of a row in no cache, notes
# that overflow, blocks without a share.
PLANS = [(256, 1, 0), (256, 1, 16), (256, 2, 8), (256, 4, 64), (256, 8, 0), (1024, 2, 64), (1024, 1, 4096)]


def _checked(program, cases, folder, order="forward", seed=0):
    found = indexer_topk_program.run(program, cases, folder, order, seed)
    assert not isinstance(found, emulation.Outcome), found.output
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
def test_values(program, tmp_path, values, bf16):
    _checked(program("indexer_topk"), list(_round(values, bf16, seed=1)), tmp_path)


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_launches(program, tmp_path, plan):
    cases = [
        Case(2, width, k, values, bf16, mode, lengths=(width, width - 3), plan=plan, seed=k)
        for (k, width), bf16, mode in [((7, 500), False, "ragged"), ((512, 9000), True, "mapped")]
        for values in VALUES
    ]
    _checked(program("indexer_topk"), cases, tmp_path, "random", 1)


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(20))
def test_ten_thousand_rows(program, tmp_path, seed):
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
    _checked(program("indexer_topk"), cases, tmp_path, "random", seed)


def _schedules(count):
    return [("forward", 0), ("reversed", 0), *(("random", seed) for seed in range(1, count - 1))]


def _same_under(program, cases, folder, schedules):
    results = {_checked(program, cases, folder, order, seed)[0] for order, seed in schedules}
    assert len(results) == 1


def test_schedules_give_the_same_answer(program, tmp_path):
    cases = [Case(2, 3000, 512, values, mode="ragged", plan=(256, 4, 64)) for values in ("plateau", "mixed")]
    _same_under(program("indexer_topk"), cases, tmp_path, _schedules(5))


@pytest.mark.matrix
def test_twenty_schedules_give_the_same_answer(program, tmp_path):
    cases = [
        Case(2, 9000, k, values, bf16, "mapped", plan=plan)
        for values, bf16 in itertools.product(("plateau", "mixed", "any bits"), (False, True))
        for k, plan in [(96, (0, 0, 0)), (2048, (256, 4, 64))]
    ]
    _same_under(program("indexer_topk"), cases, tmp_path, _schedules(20))


def _reads(program, folder, width, values, k=2048, bf16=False):
    [reads] = _checked(program, [Case(1, width, k, values, bf16, lengths=(width,))], folder)[1]
    return reads


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("width", [4096, 32768])
def test_a_row_in_shared_memory_is_read_once(program, tmp_path, width, bf16):
    for values in ("normal", "plateau", "close"):
        assert _reads(program("indexer_topk"), tmp_path, width, values, bf16=bf16) <= 1.01


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
def test_a_million_random_logits_are_read_at_most_twice(program, tmp_path, bf16):
    assert _reads(program("indexer_topk"), tmp_path, WIDE, "normal", bf16=bf16) <= 2


@pytest.mark.matrix
@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("values", ["plateau", "one value", "few values", "relu"])
def test_a_million_logits_on_a_plateau_are_read_at_most_three_times(program, tmp_path, values, bf16):
    for k in (512, 2048):
        assert _reads(program("indexer_topk"), tmp_path, WIDE, values, k, bf16) <= 3


SANITIZED = [
    Case(3, 300, 64, "mixed", mode="ragged", lengths=(300, 41, 299)),
    Case(1, 700, 7, "plateau", True, "mapped", gap=8, lengths=(697,), plan=(256, 2, 8)),
    Case(1, 500, 96, "plateau", lengths=(500,)),
    Case(1, 5003, 512, "close", mode="paged", lengths=(5003,), plan=(256, 2, 16)),
    Case(1, 2600, 2048, "normal", mode="positions", lengths=(2600,), plan=(256, 4, 64)),
]


@pytest.mark.parametrize("checks", ["address", "thread"])
def test_values_under_the_sanitizers(program, tmp_path, checks):
    built = program("indexer_topk", checks)
    for order, seed in [("forward", 0), ("random", 1)]:
        _checked(built, SANITIZED, tmp_path, order, seed)


# File, what stands there, what a hasty hand would write, and the checks that must notice.
BUGS = {
    "missing barrier": (
        "kernels/indexer_topk.cuh",
        "    std::uint32_t* all = shared.own;\n    __syncthreads();\n",
        "    std::uint32_t* all = shared.own;\n",
        {"thread": "data race"},
    ),
    "missing cluster barrier": (
        "kernels/indexer_topk.cuh",
        "      if (level == 0) cluster_wait();\n",
        "",
        {"plain": "refused: cluster: the thread arrives twice"},
    ),
    "plain increment": (
        "kernels/indexer_topk.cuh",
        "atomicAdd(&shared.own[(key >> shift_of(level)) % kBins], 1u);",
        "++shared.own[(key >> shift_of(level)) % kBins];",
        {"thread": "data race"},
    ),
    "read past the row": (
        "include/glm53/topk.cuh",
        "if (first + Traits::kInWord <= slice.allocated)",
        "if (first <= slice.allocated)",
        {"plain": "refused: global memory: load of 16 bytes"},
    ),
    "ties in any block": (
        "kernels/indexer_topk.cuh",
        "        ties -= taken;\n",
        "",
        {"plain": "values|refused: global memory: store"},
    ),
    "NaN on top": (
        "include/glm53/topk.cuh",
        "  if (magnitude > kInfinity) return kUnit;\n",
        "  if (magnitude > ~kInfinity) return kUnit;\n",
        {"plain": "values"},
    ),
    "zeros apart": (
        "include/glm53/topk.cuh",
        "  if (magnitude == 0) return kSign;\n",
        "",
        {"plain": "values"},
    ),
    "notes without an end": (
        "kernels/indexer_topk.cuh",
        "      complete = noted + total <= kNotes;\n",
        "",
        {"address": "runtime error: index|AddressSanitizer"},
    ),
    "unclean histogram": (
        "kernels/indexer_topk.cuh",
        "      shared.own[bin] = 0;\n",
        "",
        {"plain": "values|refused: global memory: store"},
    ),
}


def _notices(program, folder, order, seed):
    """What the program or the values say against the kernel, or nothing."""
    try:
        found = indexer_topk_program.run(program, SANITIZED, folder, order, seed)
    except AssertionError:
        return "values"
    return found.output if isinstance(found, emulation.Outcome) else ""


@pytest.mark.matrix
@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_is_found(program, tmp_path, bug):
    program("indexer_topk")  # skips where nothing can be built
    file, right, wrong, checks = BUGS[bug]
    csrc = tmp_path / "csrc"
    shutil.copytree(jit.csrc_dir(), csrc)
    text = (csrc / file).read_text()
    assert text.count(right) == 1, text.count(right)
    (csrc / file).write_text(text.replace(right, wrong))
    for check, wanted in checks.items():
        built = emulation.build(SOURCES / "indexer_topk.cpp", tmp_path, check, csrc=csrc)
        noticed = [_notices(built, tmp_path, order, seed) for order, seed in [("forward", 0), ("random", 1)]]
        assert all(re.search(wanted, words) for words in noticed), noticed
