"""Owns the reference of indexer_topk: a stable sort of one row in FP64."""

from __future__ import annotations

import torch


def positions(logits: torch.Tensor, k: int) -> torch.Tensor:
    """logits [n], any float dtype -> the positions of the k largest, ascending, int64; all of them if n <= k.

    Ties go to the lowest position, -0 equals 0, and NaN counts below minus infinity.
    """
    values = logits.double()
    order = values.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).argsort(
        descending=True, stable=True
    )
    order = order[values[order].isnan().byte().argsort(stable=True)]
    return order[:k].sort().values
