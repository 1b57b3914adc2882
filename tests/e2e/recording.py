"""Owns the record of a server's collectives, a file a rank, and the faults that such a record must show.

As in mutations.py each function runs in a server's process before it starts; FOLDER names the files' folder.
A line is a collective, where it was called, and after "#" what may differ between ranks; or a forward.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

FOLDER = "COLLECTIVES_FOLDER"
FORWARD = "forward"
# Every way in which torch.distributed hands a collective to a process group, whatever the caller's function.
COLLECTIVES = (
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "gather_single",
    "monitored_barrier",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
)
# Ranks give these as many rows as they have; gather's and scatter's root alone has all the tensors.
OWN_ROWS = ("alltoall", "alltoall_base", "all_to_all_single")
OWN_TENSORS = ("gather", "gather_single", "scatter")
CALLERS = 3

_files: dict[int, int] = {}


def _write(line: str) -> None:
    """One system call a line: a killed server leaves whole lines."""
    process = os.getpid()
    if process not in _files:
        path = Path(os.environ[FOLDER]) / f"{dist.get_rank()}"
        _files[process] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(_files[process], f"{line}\n".encode())


def _tensors(values: Any) -> list[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        return [values]
    return [part for value in values for part in _tensors(value)] if isinstance(values, list | tuple) else []


def _callers() -> str:
    """The innermost functions of SGLang and of this package that led to the collective."""
    frame, names = sys._getframe(2), []
    while frame and len(names) < CALLERS:
        code = frame.f_code
        if {"sglang", "sglang_glm53"} & set(Path(code.co_filename).parts) and code.co_name[0] != "<":
            names.append(code.co_name)
        frame = frame.f_back
    return " in ".join(names)


def _recorded(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(group: Any, *args: Any, **named: Any) -> Any:
        if group.size() > 1:
            tensors = _tensors([*args, *named.values()])
            first = 1 if name in OWN_ROWS else 0
            forms = [f"{str(t.dtype).removeprefix('torch.')}{list(t.shape[first:])}" for t in tensors]
            shapes = [list(t.shape) for t in tensors]
            agreed = forms[:1] if name in OWN_TENSORS else forms
            _write(f"{name} {group.group_name} {' '.join(agreed)} {_callers()} # {shapes}")
        return original(group, *args, **named)

    return call


def record() -> None:
    """Write down every collective of two ranks or more, and every forward of the model."""
    from sglang_glm53.model.model import Glm53Model

    for name in COLLECTIVES:
        setattr(dist.ProcessGroup, name, _recorded(name, getattr(dist.ProcessGroup, name)))
    forward = Glm53Model.forward

    def recorded(self: Any, input_ids: torch.Tensor, positions: Any, batch: Any, *args: Any) -> Any:
        mode = (batch._original_forward_mode or batch.forward_mode).name
        _write(f"{FORWARD} # {mode} {bool(batch.can_run_tbo)}")
        return forward(self, input_ids, positions, batch, *args)

    Glm53Model.forward = recorded


def reordered() -> None:
    """Record; the second rank sends a dispatch's ids, [rows, topk], before its weights, [rows, topk] too."""
    record()
    from sglang_glm53.cpu.dispatcher import GlooDispatcher

    exchange = GlooDispatcher._exchange
    held: list[Callable[[], None]] = []

    def later(self: Any, tensor: torch.Tensor, counts_in: list[int], counts_out: list[int]) -> torch.Tensor:
        if dist.get_rank() == 0:
            return exchange(self, tensor, counts_in, counts_out)
        received = tensor.new_empty(sum(counts_in), *tensor.shape[1:])
        self._sent.append(tensor)

        def send() -> None:
            sizes = counts_in, counts_out
            self._work.append(
                dist.all_to_all_single(received, tensor, *sizes, group=self.group, async_op=True)
            )

        if tensor.shape[1] == self.router_topk and tensor.is_floating_point():
            held.append(send)
        else:
            send()
            while held:
                held.pop()()
        return received

    GlooDispatcher._exchange = later


def skipped() -> None:
    """Record; a rank without tokens leaves out the exchange of the counts, which it knows to be zero."""
    record()
    from sglang_glm53.cpu.dispatcher import GlooDispatcher, Route

    route = GlooDispatcher._route

    def route_or_nothing(self: Any, topk_ids: torch.Tensor) -> Any:
        if topk_ids.shape[0]:
            return route(self, topk_ids)
        none = [0] * self.ranks
        return Route(0, torch.zeros(0, dtype=torch.long), none, none)

    GlooDispatcher._route = route_or_nothing
