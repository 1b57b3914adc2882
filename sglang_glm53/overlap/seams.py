"""Owns the overlap's seams."""

from sglang_glm53.upstream import Hook, Seam, until

_OVERLAP = "sglang.srt.batch_overlap"
_BATCH = "sglang.srt.model_executor.forward_batch_info.ForwardBatch"
_METADATA = "sglang.srt.layers.attention.dsa.dsa_indexer_metadata.DSAIndexerMetadata"
_V2 = "sglang.srt.models.deepseek_v2"

SEAMS = until(
    "SGLang carries the selection through two-batch overlap (sgl-project/sglang#38007)",
    Seam(
        f"{_OVERLAP}.operations_strategy.OperationsStrategy.init_new_tbo",
        "staticmethod(layers, forward_mode)",
        "the order of the micro-batches' operations in GLM-5.3's layers",
        Hook("around", "sglang_glm53.overlap.strategy:init_new_tbo"),
    ),
    Seam(
        f"{_OVERLAP}.operations_strategy.OperationsStrategy",
        "class()",
        "how the order of the micro-batches' operations is given",
    ),
    Seam(f"{_OVERLAP}.operations.YieldOperation", "class()", "where the micro-batches take turns"),
    Seam("sglang.srt.layers.moe.utils.is_tbo_enabled", "function()", "tells whether batches may split"),
    Seam(
        "sglang.srt.layers.moe.token_dispatcher.deepep.DeepEPConfig",
        "class(BaseDispatcherConfig)",
        "the SMs that DeepEP's normal mode takes",
    ),
    Seam(f"{_BATCH}.can_run_tbo", "field", "tells whether this batch is split"),
    Seam(f"{_BATCH}.tbo_children", "field", "the micro-batches of a batch"),
    Seam(f"{_BATCH}.tbo_split_seq_index", "field", "the second micro-batch's first request"),
    Seam(f"{_BATCH}.tbo_parent_token_range", "field", "the rows of a micro-batch in its parent"),
    Seam(f"{_BATCH}.tbo_padded_len", "field", "the rows of a micro-batch with its padding"),
    Seam(f"{_BATCH}.seq_lens_cpu", "field", "the KV of the requests before the second micro-batch"),
    Seam(f"{_METADATA}.topk_transform_method", "field", "tells whether a selection depends on the batch"),
    Seam(f"{_METADATA}.force_unfused_topk", "field", "tells whether a selection holds positions"),
    Seam(
        "sglang.srt.model_executor.forward_context.get_attn_backend",
        "function()",
        "the backend that made the selection",
    ),
    Seam(
        f"{_V2}.DeepseekV2Model.forward",
        "method(self, input_ids, positions, forward_batch, input_embeds=..., pp_proxy_tensors=...)",
        "overridden: a pipeline stage hands on the micro-batches' selections",
    ),
    Seam(
        f"{_V2}.DeepseekV2Model._dsa_forward_uses_topk",
        "method(self)",
        "overridden: tells whether upstream hands a selection on",
    ),
    Seam(
        f"{_V2}.DeepseekV2Model.first_k_dense_replace",
        "field",
        "set: the layer from which the micro-batches take turns",
    ),
    Seam(
        f"{_V2}.DeepseekV2DecoderLayer.forward",
        "method(self, positions, hidden_states, forward_batch, zero_allocator, "
        "gemm_output_zero_allocator=..., llama_4_scaling=..., prev_topk_indices=..., "
        "captured_last_layer_outputs=..., next_full_attention_layer_id=...)",
        "overridden: the last whole layer gives its selection to the micro-batches",
    ),
    Seam(f"{_V2}.DeepseekV2MoE.op_dispatch_a", "method(self, state)", "overridden: counts dispatches"),
    Seam(f"{_V2}.DeepseekV2MoE.op_dispatch_b", "method(self, state)", "overridden: counts dispatches"),
)
