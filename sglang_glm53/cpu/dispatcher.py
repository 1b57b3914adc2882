"""Owns the expert-parallel dispatch over gloo: DeepEP's dispatcher for a machine without one.

A token travels once to each rank that has one of its experts, with its weights and ids, and the partial sums
travel back. The a phases start the transfers and return, the b phases wait for them, so two micro-batches can
be under way at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
import torch.distributed as dist
from sglang.srt.layers.moe.token_dispatcher.base import BaseDispatcher
from sglang.srt.layers.moe.token_dispatcher.standard import StandardCombineInput, StandardDispatchOutput
from sglang.srt.layers.moe.topk import StandardTopKOutput


class Phase(Enum):
    """What was called last."""

    READY = "combine_b"
    DISPATCHING = "dispatch_a"
    DISPATCHED = "dispatch_b"
    COMBINING = "combine_a"


@dataclass(frozen=True)
class Route:
    """Which rows go where. sent: [n] int64, own rows in the order of their ranks; counts: of each rank."""

    rows: int
    sent: torch.Tensor
    counts_out: list[int]
    counts_in: list[int]


class GlooDispatcher(BaseDispatcher):  # type: ignore[misc]
    """DeepEPDispatcher's interface, in either of its modes.

    It hands the experts the rows as they are, with local expert ids, -1 for another rank's; an FP8 expert
    method quantises them itself, to the bits that a dispatch in FP8 would carry.
    Source: SGLang 0.5.23, layers/moe/token_dispatcher/deepep.py DeepEPDispatcher. Raises RuntimeError when
    its phases are called out of order; collective errors raise from torch.distributed.
    """

    expert_mask_gpu = None

    def __init__(
        self,
        group: dist.ProcessGroup,
        router_topk: int,
        *,
        num_experts: int,
        num_local_experts: int,
        deepep_mode: Any = None,
        **_: Any,
    ) -> None:
        super().__init__()
        self.group, self.deepep_mode = group, deepep_mode
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.local_experts, self.router_topk = num_local_experts, router_topk
        if num_local_experts * self.ranks != num_experts:
            raise ValueError(
                f"{num_experts} experts do not divide over {self.ranks} ranks: set --ep-size to a divisor"
            )
        self.phase = Phase.READY
        self._work: list[Any] = []
        # What is sent must live until it is.
        self._sent: list[torch.Tensor] = []

    @property
    def _normal_dispatcher(self) -> GlooDispatcher:
        """What the boundary fusion looks for: the part that serves normal mode."""
        return self

    def _step(self, before: Phase, after: Phase) -> None:
        if self.phase is not before:
            raise RuntimeError(f"{after.value} follows {self.phase.value}, not {before.value}")
        self.phase = after

    def _wait(self) -> None:
        for work in self._work:
            work.wait()
        self._work, self._sent = [], []

    def _exchange(self, tensor: torch.Tensor, counts_in: list[int], counts_out: list[int]) -> torch.Tensor:
        """Start the transfer of rows; the result is there after _wait()."""
        received = tensor.new_empty(sum(counts_in), *tensor.shape[1:])
        self._sent.append(tensor)
        self._work.append(
            dist.all_to_all_single(received, tensor, counts_in, counts_out, group=self.group, async_op=True)
        )
        return received

    def _route(self, topk_ids: torch.Tensor) -> Route:
        """topk_ids: [rows, topk], an id below 0 goes nowhere."""
        target = topk_ids // self.local_experts
        rows = [(target == rank).any(-1).nonzero()[:, 0] for rank in range(self.ranks)]
        counts_out = torch.tensor([row.numel() for row in rows])
        counts_in = torch.empty_like(counts_out)
        dist.all_to_all_single(counts_in, counts_out, group=self.group)
        return Route(topk_ids.shape[0], torch.cat(rows), counts_out.tolist(), counts_in.tolist())

    def dispatch(self, hidden_states: torch.Tensor, topk_output: Any) -> StandardDispatchOutput:
        self.dispatch_a(hidden_states=hidden_states, topk_output=topk_output)
        return self.dispatch_b()

    def dispatch_a(self, hidden_states: torch.Tensor, topk_output: Any) -> None:
        """Start sending rows [rows, hidden] by topk_output's ids and weights, [rows, topk]."""
        self._step(Phase.READY, Phase.DISPATCHING)
        ids = topk_output.topk_ids.long().view(-1, self.router_topk)
        weights = topk_output.topk_weights.float().view(-1, self.router_topk)
        route = self.route = self._route(ids)
        self._received = tuple(
            self._exchange(tensor[route.sent].contiguous(), route.counts_in, route.counts_out)
            for tensor in (hidden_states, weights, ids)
        )

    def dispatch_b(self) -> StandardDispatchOutput:
        """The rows that came, with the local ids of their experts."""
        self._step(Phase.DISPATCHING, Phase.DISPATCHED)
        self._wait()
        hidden_states, weights, ids = self._received
        local = ids - self.rank * self.local_experts
        local = torch.where((local >= 0) & (local < self.local_experts), local, -1)
        return StandardDispatchOutput(
            hidden_states=hidden_states,
            hidden_states_scale=None,
            topk_output=StandardTopKOutput(weights, local, None),
        )

    def combine(self, combine_input: StandardCombineInput) -> torch.Tensor:
        self.combine_a(combine_input=combine_input)
        return self.combine_b()

    def combine_a(self, combine_input: StandardCombineInput) -> None:
        """Start sending the experts' weighted sums back."""
        self._step(Phase.DISPATCHED, Phase.COMBINING)
        sums, route = combine_input.hidden_states.contiguous(), self.route
        self._received = (self._exchange(sums, route.counts_out, route.counts_in),)

    def combine_b(self) -> torch.Tensor:
        """The own rows [rows, hidden]: the ranks' sums added up in FP32, in the order of the ranks."""
        self._step(Phase.COMBINING, Phase.READY)
        self._wait()
        [sums] = self._received
        out = torch.zeros(self.route.rows, sums.shape[1], dtype=torch.float32)
        out.index_add_(0, self.route.sent, sums.float())
        return out.to(sums.dtype)

    def register_deepep_dispatch_hook(self, hook: Any) -> Any:
        raise NotImplementedError("the reference platform's dispatcher runs no single-batch overlap")
