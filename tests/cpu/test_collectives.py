"""The gloo communicator between two real processes: each collective against its definition."""

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from sglang_glm53.cpu.collectives import GlooCommunicator


def run_rank(rank, path, results):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    ours = GlooCommunicator(dist.group.WORLD, "cpu")
    mine = torch.arange(3.0) + 10 * rank
    gathered = torch.empty(3)
    # Unequal rows per rank: one from rank 0, two from rank 1.
    ours.all_gather(gathered, mine[: 1 + rank], sizes=[1, 2])
    scattered = torch.empty(1 + rank)
    ours.reduce_scatter(scattered, mine, sizes=[1, 2])
    exchanged = torch.empty(4)
    ours.all_to_all_single(exchanged, torch.arange(4.0) + 10 * rank)
    summed = ours.outplace_all_reduce(mine)
    ours.broadcast(mine, src=1)
    results[rank] = [t.tolist() for t in (gathered, scattered, exchanged, summed, mine)]
    dist.destroy_process_group()


def test_collectives(tmp_path):
    results = mp.Manager().dict()
    mp.spawn(run_rank, args=(tmp_path / "store", results), nprocs=2)
    for rank, scattered, exchanged in ((0, [10.0], [0, 1, 10, 11]), (1, [12.0, 14.0], [2, 3, 12, 13])):
        gathered, got_scattered, got_exchanged, summed, mine = results[rank]
        assert gathered == [0, 10, 11] and got_scattered == scattered and got_exchanged == exchanged
        assert summed == [10, 12, 14] and mine == [10, 11, 12]
