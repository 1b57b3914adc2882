"""Owns the calls that compute-sanitizer watches: a few of each kernel, with checks on the CPU."""

from __future__ import annotations

from sglang_glm53.kernels.add_rmsnorm_quant import add_rmsnorm_quant
from sglang_glm53.kernels.indexer_topk import indexer_topk
from sglang_glm53.testing.reference import add_rmsnorm_quant as reference
from tests.kernels import add_rmsnorm_quant_cases, indexer_topk_cases

DEVICE = "cuda"


def norm_calls() -> list[add_rmsnorm_quant_cases.Case]:
    """Each layout, with and without a residual, whole and partial last warps."""
    return [
        add_rmsnorm_quant_cases.Case(rows, hidden, layout, residual, gap=8, device=DEVICE)
        for layout in add_rmsnorm_quant_cases.LAYOUTS
        for rows, hidden, residual in ((3, 1152, True), (2, 6144, False))
    ]


def topk_calls() -> list[indexer_topk_cases.Case]:
    """Each mode on short rows, and long rows that are split over a cluster."""
    lengths = (700, 64, 699)
    cases = [
        indexer_topk_cases.Case(3, 700, 64, "plateau", mode == "paged", mode, 64, 8, lengths, device=DEVICE)
        for mode in indexer_topk_cases.MODES
    ]
    return [
        *cases,
        indexer_topk_cases.Case(1, 131072, 2048, "normal", lengths=(131072,), device=DEVICE),
        indexer_topk_cases.Case(
            2, 70001, 2048, "close", True, "mapped", lengths=(70001, 60000), device=DEVICE
        ),
    ]


def main() -> None:
    """Run and check them all; an error is a traceback and exit status 1."""
    for case in norm_calls():
        x, residual, weight = case.inputs()
        before = None if residual is None else residual.cpu()
        _, wanted = reference.norm(x.cpu(), before, weight.cpu(), add_rmsnorm_quant_cases.EPS)
        normed = add_rmsnorm_quant(x, residual, weight, add_rmsnorm_quant_cases.EPS, case.layout)
        add_rmsnorm_quant_cases.check_y(normed.y, wanted)
    for case in topk_calls():
        call = indexer_topk_cases.make(case)
        found = indexer_topk(call.logits, call.lengths, case.k, with_positions=True, **call.keywords())
        indexer_topk_cases.check(call, *found)
    print(f"checked {len(norm_calls())} norms and {len(topk_calls())} selections")


if __name__ == "__main__":
    main()
