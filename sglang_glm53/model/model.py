"""GLM-5.3's model classes: SGLang's DeepSeek classes with every layer of ours in place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from sglang.srt.model_executor.forward_context import get_attn_backend
from sglang.srt.models import deepseek_v2
from sglang.srt.models.deepseek_v2 import DeepseekV2DecoderLayer, DeepseekV2Model
from sglang.srt.models.glm4_moe import GlmMoeDsaForCausalLM

from sglang_glm53.boundary import fused_norm
from sglang_glm53.fusion import Fusion
from sglang_glm53.model.attention import Glm53Attention
from sglang_glm53.model.indexer import Glm53Indexer
from sglang_glm53.model.moe import Glm53MoE, Glm53MoEGate
from sglang_glm53.overlap import carry, strategy
from sglang_glm53.weights import loading


class Glm53DecoderLayer(DeepseekV2DecoderLayer):  # type: ignore[misc]
    """One decoder layer of GLM-5.3, with the reads and projections of boundary/fused_norm.py.

    hands_over: under two-batch overlap, the last layer that the whole batch runs.
    """

    overlaps_with_carry = True

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.hands_over = False
        fused_norm.bind(self)

    def forward(
        self, positions: Any, hidden_states: Any, forward_batch: Any, *args: Any, **named: Any
    ) -> Any:
        """Upstream's; the last layer before the overlap gives its selection to the micro-batches."""
        output = super().forward(positions, hidden_states, forward_batch, *args, **named)
        if self.hands_over and forward_batch.can_run_tbo:
            carry.split(forward_batch, output[1], self._form(forward_batch))
        return output

    def _form(self, forward_batch: Any) -> carry.Form:
        # An idle rank selects nothing, and its backend has planned nothing.
        if forward_batch.forward_mode.is_idle():
            return carry.Form.SLOTS
        return carry.form_of(get_attn_backend().get_indexer_metadata(self.layer_id, forward_batch))

    @classmethod
    def stage_facts(cls, config: Any, layer_id: int, **named: Any) -> tuple[Any, Any]:
        """The declarations of the attention's and the FFN's stage."""
        return fused_norm.with_reads(*super().stage_facts(config, layer_id, **named))


# Two-batch overlap picks its strategy by this name (batch_overlap/operations_strategy.py init_new_tbo).
Glm53DecoderLayer.__name__ = "DeepseekV2DecoderLayer"


class Glm53Model(DeepseekV2Model):  # type: ignore[misc]
    """The decoder stack."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        # Read by forward alone, and only under overlap: from this layer on the micro-batches take turns.
        self.first_k_dense_replace = strategy.start_layer(self.start_layer, self.config.first_k_dense_replace)
        if self.start_layer < self.first_k_dense_replace < self.end_layer:
            self.layers[self.first_k_dense_replace - 1].hands_over = True
        self._merges = False

    def _dsa_forward_uses_topk(self) -> bool:
        """Whether upstream's forward hands the selection on; the micro-batches' it cannot know."""
        return not self._merges and super()._dsa_forward_uses_topk()

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        forward_batch: Any,
        input_embeds: torch.Tensor | None = None,
        pp_proxy_tensors: Any = None,
    ) -> Any:
        """Upstream's; a pipeline stage that ends under overlap hands the micro-batches' selections on.

        Source: SGLang 0.5.23, models/deepseek_v2.py DeepseekV2Model.forward.
        """
        strategy.count(forward_batch)
        self._merges = (
            forward_batch.can_run_tbo
            and not self.pp_group.is_last_rank
            and self.first_k_dense_replace < self.end_layer
        )
        output = super().forward(input_ids, positions, forward_batch, input_embeds, pp_proxy_tensors)
        last = self.layers[self.end_layer - 1].self_attn
        if self._merges and last.next_skip_topk and super()._dsa_forward_uses_topk():
            form = self.layers[self.end_layer - 1]._form(forward_batch)
            output.tensors["topk_indices"] = carry.merge(forward_batch, self.config.index_topk, form)
        return output


LAYER_CLASSES: dict[str, type] = {
    "DeepseekV2DecoderLayer": Glm53DecoderLayer,
    "DeepseekV2AttentionMLA": Glm53Attention,
    "DeepseekV2MoE": Glm53MoE,
    "MoEGate": Glm53MoEGate,
    "Indexer": Glm53Indexer,
}


@contextmanager
def built_from(classes: dict[Any, dict[str, type]]) -> Iterator[None]:
    """While open, the given modules build with the given classes.

    classes: module -> {global name: class}. Upstream's constructors (models/deepseek_v2.py
    DeepseekV2AttentionMLA, DeepseekV2DecoderLayer, DeepseekV2Model, DeepseekV2ForCausalLM) name the classes
    of their parts as module globals and offer no other seam; the alternative is a copy of four constructors.
    One thread builds models, and the globals are back before any forward runs.
    """
    saved = {module: {name: getattr(module, name) for name in names} for module, names in classes.items()}
    try:
        for module, names in classes.items():
            for name, cls in names.items():
                setattr(module, name, cls)
        yield
    finally:
        for module, names in saved.items():
            for name, cls in names.items():
                setattr(module, name, cls)


class Glm53ForCausalLM(GlmMoeDsaForCausalLM):  # type: ignore[misc]
    """GLM-5.3 as SGLang serves it with --model-impl glm53.

    config: the HF config (GlmMoeDsaConfig). Source: SGLang 0.5.23, models/glm4_moe.py GlmMoeDsaForCausalLM.
    """

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        with built_from({deepseek_v2: {**LAYER_CLASSES, "DeepseekV2Model": Glm53Model}}):
            super().__init__(config, quant_config, prefix)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]], is_nextn: bool = False) -> None:
        """Load a checkpoint's tensors, strictly (see weights/loading.py)."""
        loading.load_strictly(self, weights, super().load_weights, draft=False)

    def fusions(self) -> list[Fusion]:
        """The records of the fusions in this rank's layers."""
        return fused_norm.fusions(self.model.layers[i] for i in range(self.start_layer, self.end_layer))
