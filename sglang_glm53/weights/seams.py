"""Owns the seams of strict loading."""

from sglang_glm53.upstream import Hook, Seam, until

_V2 = "sglang.srt.models.deepseek_v2"
_DEEPSEEK = "sglang.srt.models.deepseek_common"
_GLM = "sglang.srt.models.glm4_moe"

SEAMS = (
    *until(
        "SGLang passes unknown keys to the model class",
        Seam(
            "sglang.srt.model_loader.loader._validate_default_loader_extra_config",
            "function(*, extra_config, load_format)",
            "lets the key glm53_allow_extra through",
            Hook("around", "sglang_glm53.weights.loading:accept_extra_key"),
        ),
    ),
    *until(
        "SGLang's loader reports every missing and every extra tensor",
        Seam(
            f"{_GLM}.GlmMoeDsaForCausalLMNextN.load_weights",
            "method(self, weights)",
            "overridden: strict loading",
        ),
        Seam(
            f"{_V2}.DeepseekV2ForCausalLM.load_weights",
            "method(self, weights, is_nextn=...)",
            "overridden: strict loading",
        ),
        Seam(
            f"{_DEEPSEEK}.deepseek_weight_loader.DeepseekV2WeightLoaderMixin.do_load_weights",
            "method(self, weights, is_nextn=...)",
            "the loader that strict loading wraps",
        ),
        Seam(
            "sglang.srt.layers.moe.fused_moe_triton.layer.FusedMoE._map_global_expert_id_to_local_expert_id",
            "method(self, expert_id)",
            "tells which experts' tensors a rank must load",
        ),
        Seam(
            "sglang.srt.layers.moe.fused_moe_triton.layer.FusedMoE._num_global_routed",
            "field",
            "where fused shared experts start",
        ),
        Seam(
            "sglang.srt.layers.moe.fused_moe_triton.layer.FusedMoE.num_local_experts",
            "field",
            "the expert slots of a rank",
        ),
        Seam(
            "sglang.srt.eplb.expert_location.get_global_expert_location_metadata",
            "function()",
            "tells where EPLB put each expert",
        ),
        Seam(
            "sglang.srt.eplb.expert_location.ExpertLocationMetadata.logical_to_all_physical",
            "method(self, layer_id, logical_expert_id, require_global_experts=...)",
            "the slots of one expert under EPLB",
        ),
    ),
    *until(
        "never: SGLang's resolved flags",
        Seam(
            "sglang.srt.runtime_context.get_model",
            "function()",
            "the model's path and load flags, the pools' model dtype",
        ),
        Seam(
            "sglang.srt.runtime_context.get_spec",
            "function()",
            "the draft model's path and load flags, and how it drafts",
        ),
    ),
    *until(
        "SGLang tells the model whether a load is the first",
        Seam(
            "sglang.srt.model_loader.loader.DefaultModelLoader.load_weights_and_postprocess",
            "staticmethod(model, weights, target_device)",
            "leaves a loaded model in eval mode, which tells an update from the first load",
        ),
    ),
)
