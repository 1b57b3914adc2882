"""Owns the seams of the model classes."""

from sglang_glm53.upstream import Seam, until

_V2 = "sglang.srt.models.deepseek_v2"
_LAYER = f"{_V2}.DeepseekV2DecoderLayer"
_ATTENTION = f"{_V2}.DeepseekV2AttentionMLA"
_DEEPSEEK = "sglang.srt.models.deepseek_common"
_MLA_FORWARD = f"{_DEEPSEEK}.attention_forward_methods.forward_mla.DeepseekMLAForwardMixin"
_NEXTN = "sglang.srt.models.deepseek_nextn"
_GLM = "sglang.srt.models.glm4_moe"
_SHARE = "sglang.srt.layers.attention.index_topk_share.IndexTopKShareState"

SEAMS = (
    *until(
        "never: what this package extends",
        Seam(
            f"{_GLM}.GlmMoeDsaForCausalLM",
            "class(DeepseekV2ForCausalLM)",
            "base of Glm53ForCausalLM, so that what SGLang decides by class or name is inherited",
        ),
        Seam(
            f"{_GLM}.GlmMoeDsaForCausalLMNextN",
            "class(DeepseekV3ForCausalLMNextN)",
            "base of Glm53ForCausalLMNextN",
        ),
        Seam(
            f"{_V2}.DeepseekV2ForCausalLM",
            "class(nn.Module, DeepseekV2WeightLoaderMixin)",
            "base of GlmMoeDsaForCausalLM: owns the layers and the loader",
        ),
        Seam(
            "sglang.srt.layers.attention.dsa.dsa_indexer.Indexer",
            "class(DSANPUIndexerMixin, BaseFusedOp)",
            "base of Glm53Indexer",
        ),
    ),
    *until(
        "SGLang takes the classes of a model's parts as arguments",
        Seam(
            f"{_NEXTN}.DeepseekV3ForCausalLMNextN.__init__",
            "method(self, config, quant_config=..., prefix=...)",
            "overridden: builds the draft model from this package's layer",
        ),
        Seam(f"{_NEXTN}.DeepseekModelNextN", "class(nn.Module)", "the draft model's body"),
        Seam(f"{_NEXTN}.DeepseekV2DecoderLayer", "field", "the global by which that body names its layer"),
        Seam(
            f"{_V2}.DeepseekV2ForCausalLM.__init__",
            "method(self, config, quant_config=..., prefix=...)",
            "overridden: builds the model from this package's classes",
        ),
        Seam(f"{_V2}.DeepseekV2Model", "class(nn.Module)", "base of Glm53Model; a global of its module"),
        Seam(_LAYER, "class(nn.Module)", "base of Glm53DecoderLayer; a global of its module"),
        Seam(
            _ATTENTION,
            "class(nn.Module, DeepseekMHAForwardMixin, DeepseekMHARocmForwardMixin, DeepseekMLAForwardMixin, "
            "DeepseekMLARocmForwardMixin, DeepseekMLAFusedRopeRocmForwardMixin, DeepseekMLACpuForwardMixin)",
            "base of Glm53Attention; a global of its module",
        ),
        Seam(f"{_V2}.DeepseekV2MoE", "class(nn.Module)", "base of Glm53MoE; a global of its module"),
        Seam(f"{_V2}.MoEGate", "class(nn.Module)", "base of Glm53MoEGate; a global of its module"),
        Seam(f"{_V2}.Indexer", "field", "the global by which the attention names its indexer class"),
    ),
    *until(
        "SGLang fuses these norms with FP8 quantisation on NVIDIA",
        Seam(
            f"{_LAYER}.stage_facts",
            "classmethod(cls, config, layer_id, *, is_nextn=..., attn_output=..., output=...)",
            "overridden: declares the reads of a layer's two norms",
        ),
        Seam(
            f"{_LAYER}._build_stages",
            "method(self, *, input_layernorm, post_attention_layernorm, qkv_latent_func, **modules)",
            "asks the layer's own class for those declarations",
        ),
        Seam(
            f"{_ATTENTION}.prepare_qkv_latent",
            "method(self, hidden_states, forward_batch)",
            "calls the fused A projection with the tensor that the norm gave",
        ),
    ),
    *until(
        "SGLang carries the selection through two-batch overlap (sgl-project/sglang#38007)",
        Seam(
            f"{_ATTENTION}.op_prepare", "method(self, state)", "takes the selection under two-batch overlap"
        ),
        Seam(
            f"{_ATTENTION}.op_core", "method(self, state)", "gives the selection on under two-batch overlap"
        ),
    ),
    *until(
        "SGLang raises when a shared layer has no selection",
        Seam(
            f"{_MLA_FORWARD}.forward_absorb_prepare",
            "method(self, positions, hidden_states, forward_batch, zero_allocator, llama_4_scaling=..., "
            "prev_topk_indices=...)",
            "overridden: a shared layer without a selection is an error",
        ),
        Seam(
            f"{_MLA_FORWARD}.should_run_indexer",
            "method(self, prev_topk_indices=...)",
            "tells a shared layer from one that runs its indexer",
        ),
    ),
    *until(
        "SGLang's CPU router returns FP32 logits",
        Seam(
            f"{_V2}.MoEGate.forward",
            "method(self, hidden_states, gemm_output_zero_allocator=..., forward_batch=...)",
            "overridden: FP32 router logits",
        ),
    ),
    *until(
        "never: the two must agree",
        Seam(
            "sglang.srt.configs.model_config.dsa_layer_skips_topk",
            "function(config, layer_id)",
            "upstream's schedule, which geometry.schedule must equal",
        ),
    ),
    *until(
        "never: SGLang's carrier of the selection",
        Seam(_SHARE, "class()", "carries the selection from a full layer to its shared layers"),
        Seam(
            f"{_SHARE}.__init__",
            "method(self, forward_batch, topk_indices)",
            "starts from a carried selection",
        ),
        Seam(f"{_SHARE}.update", "method(self, topk_indices)", "takes a layer's selection"),
        Seam(f"{_SHARE}.topk_indices", "field", "gives the selection to the next layer"),
    ),
)
