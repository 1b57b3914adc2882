"""GLM-5.3's MTP draft model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from sglang.srt.models import deepseek_nextn, deepseek_v2
from sglang.srt.models.glm4_moe import GlmMoeDsaForCausalLMNextN

from sglang_glm53.runtime import loading
from sglang_glm53.runtime.draft_argmax import DraftLogitsProcessor
from sglang_glm53.runtime.model import LAYER_CLASSES, Glm53DecoderLayer, built_from


class Glm53ForCausalLMNextN(GlmMoeDsaForCausalLMNextN):  # type: ignore[misc]
    """The MTP layer with GLM-5.3's layer classes. Source: SGLang 0.5.23, models/glm4_moe.py:1288."""

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        parts: dict[Any, dict[str, type]] = {
            deepseek_v2: LAYER_CLASSES,
            deepseek_nextn: {
                "DeepseekV2DecoderLayer": Glm53DecoderLayer,
                "LogitsProcessor": DraftLogitsProcessor,
            },
        }
        with built_from(parts):
            super().__init__(config, quant_config, prefix)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load the MTP layer's tensors, strictly (see runtime/loading.py)."""
        loading.load_strictly(self, weights, super().load_weights, draft=True)
