"""GLM-5.3's MLA attention with its selection."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.models.deepseek_v2 import DeepseekV2AttentionMLA

from sglang_glm53.overlap import carry


class Glm53Attention(DeepseekV2AttentionMLA):  # type: ignore[misc]
    """SGLang's MLA attention; a shared layer that receives no selection is an error here, not later.

    Under two-batch overlap it takes the micro-batch's selection and gives it on.
    Source: SGLang 0.5.23, models/deepseek_common/attention_forward_methods/forward_mla.py.
    """

    def forward_absorb_prepare(
        self,
        positions: torch.Tensor,
        hidden_states: torch.Tensor,
        forward_batch: Any,
        zero_allocator: Any,
        llama_4_scaling: torch.Tensor | None = None,
        prev_topk_indices: torch.Tensor | None = None,
    ) -> Any:
        """positions [rows] int64, hidden_states [rows, hidden], prev_topk_indices [rows, index_topk] int32.

        Raises RuntimeError when a shared layer gets no selection: upstream would fail inside the kernel, or
        attend to everything where a backend takes None for dense.
        """
        if prev_topk_indices is None and not self.should_run_indexer(None):
            raise RuntimeError(f"layer {self.layer_id} is shared, but no selection reached it")
        return super().forward_absorb_prepare(
            positions, hidden_states, forward_batch, zero_allocator, llama_4_scaling, prev_topk_indices
        )

    def op_prepare(self, state: Any) -> None:
        """Upstream's, with the micro-batch's selection.

        Source: SGLang 0.5.23, models/deepseek_v2.py DeepseekV2AttentionMLA.op_prepare.
        """
        state.attn_intermediate_state = self.forward_prepare(
            positions=state.positions,
            hidden_states=state.pop("hidden_states_after_comm_pre_attn"),
            forward_batch=state.forward_batch,
            zero_allocator=state.zero_allocator,
            prev_topk_indices=carry.kept(state.forward_batch),
        )

    def op_core(self, state: Any) -> None:
        """Upstream's (op_core of the same class), which drops the selection that the next layer takes."""
        result = self.forward_core(state.pop("attn_intermediate_state"))
        hidden_states, selection = result if isinstance(result, tuple) else (result, None)
        state.hidden_states_after_attn = hidden_states
        carry.keep(state.forward_batch, selection)
