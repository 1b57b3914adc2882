"""Owns the rank processes of the draft argmax's tests, and the logits that they share out."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn

from sglang_glm53.speculative import draft_argmax

VOCAB = 997
INFINITY, NAN = torch.inf, torch.nan


class Group:
    """As much of a GroupCoordinator as is called; sizes holds the bytes sent and received by each call."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank_in_group, self.world_size, self.sizes = rank, ranks, []

    def all_gather_into_tensor(self, output: torch.Tensor, input: torch.Tensor) -> None:
        self.sizes.append([input.nbytes, output.nbytes])
        dist.all_gather_into_tensor(output, input)


def width(ranks: int) -> int:
    """A shard's columns: SGLang pads the vocabulary to a multiple of 64 for each rank."""
    return -(-VOCAB // (64 * ranks)) * 64


def logits(rows: int, ranks: int) -> torch.Tensor:
    """[rows, ranks * width] FP32: random rows, every other kind planted; the padding is above all of them."""
    generator = torch.Generator().manual_seed(rows + ranks)
    found = torch.randn(rows, ranks * width(ranks), generator=generator).bfloat16().float()
    within = torch.randint(width(ranks), (rows, 2), generator=generator)
    anywhere = torch.randint(VOCAB, (rows, 3), generator=generator)
    kinds = [found[kind::8] for kind in range(8)]
    kinds[1].scatter_(1, within[1::8], 9.0)  # a tie inside the first shard
    kinds[2].scatter_(1, anywhere[2::8], 9.0)  # a tie across the shards
    kinds[3].fill_(-INFINITY)
    kinds[4].fill_(NAN)
    kinds[5].scatter_(1, anywhere[5::8], NAN)
    kinds[6].fill_(-1.0).scatter_(1, anywhere[6::8, :2], 0.0).scatter_(1, anywhere[6::8, 2:], -0.0)
    kinds[7].scatter_(1, anywhere[7::8], INFINITY)
    found[:, VOCAB:] = INFINITY
    return found


def ids_of(rank: int, ranks: int, rows: int) -> list[torch.Tensor]:
    """The ids of the rows' winners and the sizes of what was sent."""
    group, columns = Group(rank, ranks), width(ranks)
    shard = logits(rows, ranks)[:, rank * columns : (rank + 1) * columns]
    pairs = draft_argmax.best(shard, rank * columns, VOCAB)
    return [draft_argmax.winners(draft_argmax.gather(group, pairs)), torch.tensor(group.sizes)]


def integers(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Small whole numbers, whose products and sums are exact in any order, and full of ties."""
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)).float()


def head(ranks: int, rank: int | None = None) -> nn.Module:
    """A rank's shard of an lm_head of VOCAB tokens and 16 channels, or the whole of it; padding is large."""
    weight = integers((ranks * width(ranks), 16), 1)
    weight[VOCAB:] = 100.0
    found = nn.Module()
    found.weight = weight[:VOCAB] if rank is None else weight.chunk(ranks)[rank]
    return found


def metadata(**changes) -> SimpleNamespace:
    return SimpleNamespace(**{"next_token_logits_buffer": None, "extend_return_logprob": False} | changes)


def processed(rank: int, ranks: int, rows: int, make) -> list[torch.Tensor]:
    """What the draft's processor hands the worker. make: (ranks, group) -> the processor."""
    group = Group(rank, ranks)
    processor = make(ranks, group)
    given = processor._get_logits(integers((rows, 16), 2), head(ranks, rank), metadata())
    assert processor.record.ran == {"torch": 1} and processor.do_tensor_parallel_all_gather
    return [given, torch.tensor(group.sizes)]
