"""Owns the rank processes of the dispatcher's tests."""

from __future__ import annotations

import multiprocessing
from types import SimpleNamespace

import torch
import torch.distributed as dist

from sglang_glm53.cpu.dispatcher import GlooDispatcher
from sglang_glm53.cpu.moe import routed_experts

HIDDEN, INTERMEDIATE, TOPK = 16, 8, 2


def weights(experts):
    generator = torch.Generator().manual_seed(3)
    w13 = torch.randn(experts, 2 * INTERMEDIATE, HIDDEN, generator=generator)
    return w13, torch.randn(experts, HIDDEN, INTERMEDIATE, generator=generator)


def tokens(rank, rows, experts, seed=0):
    """A rank's rows, weights and ids; an id in seven goes nowhere."""
    generator = torch.Generator().manual_seed(100 * seed + rank)
    ids = torch.stack(
        [torch.randperm(experts, generator=generator)[:TOPK] for _ in range(rows)] or [torch.zeros(TOPK)]
    )
    ids = ids[:rows].long()
    ids[torch.rand(ids.shape, generator=generator) < 1 / 7] = -1
    scores = torch.rand(rows, TOPK, generator=generator)
    return torch.randn(rows, HIDDEN, generator=generator), SimpleNamespace(topk_weights=scores, topk_ids=ids)


def dispatcher(experts, local):
    return GlooDispatcher(
        group=dist.group.WORLD,
        router_topk=TOPK,
        num_experts=experts,
        num_local_experts=local,
        hidden_size=HIDDEN,
        deepep_mode="normal",
    )


def experts_of(rank, ranks, experts, dispatched):
    """A rank's share of the experts, applied to what came."""
    local = experts // ranks
    w13, w2 = (part[rank * local : (rank + 1) * local] for part in weights(experts))
    output = dispatched.topk_output
    sums = routed_experts(dispatched.hidden_states, output.topk_weights, output.topk_ids, w13, w2)
    return SimpleNamespace(hidden_states=sums)


def one_batch(rank, ranks, rows, experts):
    ours = dispatcher(experts, experts // ranks)
    hidden, routing = tokens(rank, rows[rank], experts)
    dispatched = ours.dispatch(hidden_states=hidden, topk_output=routing)
    return ours.combine(combine_input=experts_of(rank, ranks, experts, dispatched))


def two_batches(rank, ranks, rows, experts):
    """Two micro-batches by two dispatchers, each phase of the second between two of the first."""
    pair = [dispatcher(experts, experts // ranks) for _ in range(2)]
    given = [tokens(rank, rows[rank], experts, seed) for seed in range(2)]
    for ours, (hidden, routing) in zip(pair, given, strict=True):
        ours.dispatch_a(hidden_states=hidden, topk_output=routing)
    for ours in pair:
        ours.combine_a(combine_input=experts_of(rank, ranks, experts, ours.dispatch_b()))
    return [ours.combine_b() for ours in pair]


def _rank(run, rank, ranks, store, results, arguments):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    found = run(rank, ranks, *arguments)
    results.put((rank, [part.tolist() for part in found] if isinstance(found, list) else found.tolist()))
    dist.barrier()
    dist.destroy_process_group()


def on_ranks(run, ranks, folder, *arguments):
    """run(rank, ranks, *arguments) in a process for each rank; their results as lists, by rank.

    Forked: a spawned process would first import SGLang for some ten seconds.
    """
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    store = folder / "store"
    processes = [
        context.Process(target=_rank, args=(run, rank, ranks, store, results, arguments))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    found = dict(results.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    return [found[rank] for rank in range(ranks)]
