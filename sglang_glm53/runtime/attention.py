"""GLM-5.3's MLA attention with its selection."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.models.deepseek_v2 import DeepseekV2AttentionMLA


class Glm53Attention(DeepseekV2AttentionMLA):  # type: ignore[misc]
    """SGLang's MLA attention; a shared layer that receives no selection is an error here, not later.

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
