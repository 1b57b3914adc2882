"""GLM-5.3's MoE layer and its router."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from sglang.srt.models.deepseek_v2 import DeepseekV2MoE, MoEGate

from sglang_glm53.overlap import strategy


class Glm53MoEGate(MoEGate):  # type: ignore[misc]
    """The router: logits in FP32 on every device."""

    def forward(
        self, hidden_states: torch.Tensor, gemm_output_zero_allocator: Any = None, forward_batch: Any = None
    ) -> torch.Tensor:
        """hidden_states: [tokens, hidden] -> logits [tokens, experts] float32.

        CUDA's GEMM takes bf16 and returns FP32; torch's CPU one would round the logits to bf16, and the
        bias separates experts by less than that.
        """
        if hidden_states.is_cuda:
            logits: torch.Tensor = super().forward(hidden_states, gemm_output_zero_allocator, forward_batch)
            return logits
        return F.linear(hidden_states.float(), self.weight.float())


class Glm53MoE(DeepseekV2MoE):  # type: ignore[misc]
    """SGLang's DeepSeek MoE layer; under two-batch overlap it counts the dispatches under way."""

    def op_dispatch_a(self, state: Any) -> None:
        super().op_dispatch_a(state)
        strategy.dispatched()

    def op_dispatch_b(self, state: Any) -> None:
        super().op_dispatch_b(state)
        strategy.arrived()
