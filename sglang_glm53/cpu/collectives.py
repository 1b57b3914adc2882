"""Collectives over gloo: the stand-in for PyNccl, and CPU kernels for SGLang's collective custom ops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist


class GlooCommunicator:
    """PyNcclCommunicator's interface over gloo.

    Source: SGLang 0.5.23, distributed/device_communicators/pynccl.py. Tensors are on the CPU; sizes, where a
    method takes them, are rows per rank. Collective errors raise from torch.distributed.
    """

    def __init__(self, group: dist.ProcessGroup, device: Any, **_: Any) -> None:
        self.group, self.device = group, device
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        self.available = self.world_size > 1
        self.disabled = not self.available

    @contextmanager
    def change_state(self, enable: bool | None = None) -> Iterator[None]:
        yield

    def group_start(self) -> None:
        """gloo runs each collective at once, so there is nothing to group."""

    def group_end(self) -> None:
        """See group_start."""

    def all_reduce(self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> None:
        dist.all_reduce(tensor, op=op, group=self.group)

    def outplace_all_reduce(
        self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, **_: Any
    ) -> torch.Tensor:
        out = tensor.clone()
        self.all_reduce(out, op)
        return out

    def all_gather(
        self, output: torch.Tensor, tensor: torch.Tensor, sizes: list[int] | None = None, **_: Any
    ) -> None:
        sizes = sizes or [output.shape[0] // self.world_size] * self.world_size
        padded = tensor.new_zeros((max(sizes), *tensor.shape[1:]))
        padded[: tensor.shape[0]] = tensor
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded, group=self.group)
        torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)], out=output)

    def reduce_scatter(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        op: Any = dist.ReduceOp.SUM,
        sizes: list[int] | None = None,
        **_: Any,
    ) -> None:
        sizes = sizes or [tensor.shape[0] // self.world_size] * self.world_size
        start = sum(sizes[: self.rank])
        output.copy_(self.outplace_all_reduce(tensor, op)[start : start + sizes[self.rank]])

    def all_to_all_single(self, output: torch.Tensor, tensor: torch.Tensor) -> None:
        dist.all_to_all_single(output, tensor.contiguous(), group=self.group)

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        dist.broadcast(tensor, src=dist.get_global_rank(self.group, src), group=self.group)

    def send(self, tensor: torch.Tensor, dst: int) -> None:
        dist.send(tensor, dist.get_global_rank(self.group, dst), group=self.group)

    def recv(self, tensor: torch.Tensor, src: int) -> None:
        dist.recv(tensor, dist.get_global_rank(self.group, src), group=self.group)


_library: Any = None  # keeps the registration alive


def register_cpu_kernels() -> None:
    """Give SGLang's collective custom ops a CPU kernel.

    On an out-of-tree platform upstream binds them to PrivateUse1 only (utils/common.py
    direct_register_custom_op).
    """
    global _library
    if _library is not None:
        return
    from sglang.srt.distributed import parallel_state

    def group(name: str) -> Any:
        return parallel_state._groups[name]()

    def inplace_all_reduce(tensor: torch.Tensor, group_name: str) -> None:
        group(group_name)._all_reduce_in_place(tensor)

    def outplace_all_reduce(
        tensor: torch.Tensor, group_name: str, outplace_all_reduce_method: str
    ) -> torch.Tensor:
        out: torch.Tensor = group(group_name)._all_reduce_out_place(tensor, outplace_all_reduce_method)
        return out

    def all_gather_into_tensor(output: torch.Tensor, input: torch.Tensor, group_name: str) -> None:
        group(group_name)._all_gather_into_tensor(output, input)

    def reduce_scatter_tensor(output: torch.Tensor, input: torch.Tensor, group_name: str) -> None:
        group(group_name)._reduce_scatter_tensor(output, input)

    def all_to_all_single(output: torch.Tensor, input: torch.Tensor, group_name: str) -> None:
        group(group_name)._all_to_all_single(output, input)

    kernels = {
        "inplace_all_reduce": inplace_all_reduce,
        "outplace_all_reduce": outplace_all_reduce,
        "reg_all_gather_into_tensor": all_gather_into_tensor,
        "reg_reduce_scatter_tensor": reduce_scatter_tensor,
        "reg_all_to_all_single": all_to_all_single,
    }
    library: Any = torch.library.Library
    _library = library("sglang", "IMPL")
    for name, kernel in kernels.items():
        _library.impl(name, kernel, "CPU")
