"""Owns the table of every SGLang attribute that this package uses; docs/upstream.md has the same rows."""

from __future__ import annotations

from typing import Literal

from sglang_glm53.seams_boundary import BOUNDARY_SEAMS
from sglang_glm53.seams_cpu import CPU_SEAMS
from sglang_glm53.seams_draft import DRAFT_SEAMS
from sglang_glm53.seams_faults import FAULT_SEAMS
from sglang_glm53.seams_overlap import OVERLAP_SEAMS
from sglang_glm53.seams_pd import PD_SEAMS
from sglang_glm53.seams_selection import SELECTION_SEAMS
from sglang_glm53.seams_speculative import CPU_SPECULATIVE_SEAMS, SPECULATIVE_SEAMS
from sglang_glm53.upstream import Seam

Group = Literal["guard", "model", "cpu"]

_MODEL_CONFIG = "sglang.srt.configs.model_config.ModelConfig"
_REGISTRY = "sglang.srt.plugins.hook_registry"
_V2 = "sglang.srt.models.deepseek_v2"
_LAYER = f"{_V2}.DeepseekV2DecoderLayer"
_ATTENTION = f"{_V2}.DeepseekV2AttentionMLA"
_DEEPSEEK = "sglang.srt.models.deepseek_common"
_MLA_FORWARD = f"{_DEEPSEEK}.attention_forward_methods.forward_mla.DeepseekMLAForwardMixin"
_NEXTN = "sglang.srt.models.deepseek_nextn"
_GLM = "sglang.srt.models.glm4_moe"
_SHARE = "sglang.srt.layers.attention.index_topk_share.IndexTopKShareState"

# What the guard itself stands on: without these rows nothing can be refused, only stopped.
_GUARD = (
    Seam(
        "sglang.srt.arg_groups.validation_hook.check_server_args",
        "function",
        "(server_args)",
        "guarded: runs in the main process after resolution and before any process or weight is loaded",
    ),
    Seam(
        "sglang.srt.model_loader.utils.get_model_architecture",
        "function",
        "(model_config)",
        "guarded: every process asks it for the model's class, which is swapped here",
    ),
    Seam(
        "sglang.srt.arg_groups.model_override_base.model_config_of",
        "function",
        "(server_args)",
        "gives the HF config that resolution used",
    ),
    Seam(
        "sglang.srt.arg_groups.model_override_base.resolving_view",
        "function",
        "(server_args)",
        "gives the flags as resolved",
    ),
    Seam(f"{_MODEL_CONFIG}.hf_config", "field", None, "the HF config of the model that a process builds"),
    Seam(f"{_MODEL_CONFIG}.is_draft_model", "field", None, "tells the draft model from the target"),
    Seam(f"{_MODEL_CONFIG}.model_impl", "field", None, "selects this package"),
    Seam(
        f"{_REGISTRY}.HookRegistry.register",
        "classmethod",
        "(cls, target, hook, hook_type=..., *, source=...)",
        "takes the rows of HOOKS",
    ),
    Seam(f"{_REGISTRY}.HookRegistry.apply_hooks", "classmethod", "(cls)", "puts them in place"),
    Seam(f"{_REGISTRY}.HookSource", "class", "(NamedTuple)", "names this package in SGLang's log"),
    Seam(f"{_REGISTRY}.HookType", "class", "(Enum)", "its values are the kinds of HOOKS"),
    Seam(
        "sglang.srt.arg_groups.model_hook._validate_dsa_tbo_index_sharing",
        "function",
        "(server_args, hf_config)",
        "hooked: two-batch overlap is not refused with this package",
    ),
    Seam("sglang.srt.environ.Envs.SGLANG_PLATFORM", "field", None, "tells which platform runs"),
    Seam(
        "sglang.srt.environ.Envs.SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK",
        "field",
        None,
        "the rows that DeepEP's low-latency buffers hold",
    ),
    Seam(
        "sglang.srt.arg_groups.overrides.max_speculative_num_draft_tokens",
        "function",
        "(server_args)",
        "the rows of one request in a verify step",
    ),
    Seam(
        "sglang.srt.arg_groups.overrides.max_prefill_buffer_tokens",
        "function",
        "(server_args)",
        "the rows of a prefill step",
    ),
)

_MODEL = (
    Seam(
        "sglang.srt.model_loader.loader._validate_default_loader_extra_config",
        "function",
        "(*, extra_config, load_format)",
        "hooked: lets the key glm53_allow_extra through",
    ),
    Seam(
        "sglang.srt.managers.scheduler.Scheduler.get_internal_state",
        "method",
        "(self, recv_req)",
        "hooked: adds this package's status to /server_info",
    ),
    Seam(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._validate_one_request",
        "method",
        "(self, obj, input_ids)",
        "hooked: refuses requests that would end the scheduler",
    ),
    Seam(
        "sglang.srt.managers.scheduler.Scheduler.get_init_info",
        "method",
        "(self)",
        "hooked: logs the status once the scheduler stands",
    ),
    Seam(
        f"{_GLM}.GlmMoeDsaForCausalLM",
        "class",
        "(DeepseekV2ForCausalLM)",
        "base of Glm53ForCausalLM, so that what SGLang decides by class or name is inherited",
    ),
    Seam(
        f"{_GLM}.GlmMoeDsaForCausalLMNextN",
        "class",
        "(DeepseekV3ForCausalLMNextN)",
        "base of Glm53ForCausalLMNextN",
    ),
    Seam(
        f"{_GLM}.GlmMoeDsaForCausalLMNextN.load_weights",
        "method",
        "(self, weights)",
        "overridden: strict loading",
    ),
    Seam(
        f"{_NEXTN}.DeepseekV3ForCausalLMNextN.__init__",
        "method",
        "(self, config, quant_config=..., prefix=...)",
        "overridden: builds the draft model from this package's layer",
    ),
    Seam(f"{_NEXTN}.DeepseekModelNextN", "class", "(nn.Module)", "the draft model's body"),
    Seam(f"{_NEXTN}.DeepseekV2DecoderLayer", "field", None, "the global by which that body names its layer"),
    Seam(
        f"{_V2}.DeepseekV2ForCausalLM",
        "class",
        "(nn.Module, DeepseekV2WeightLoaderMixin)",
        "base of GlmMoeDsaForCausalLM: owns the layers and the loader",
    ),
    Seam(
        f"{_V2}.DeepseekV2ForCausalLM.__init__",
        "method",
        "(self, config, quant_config=..., prefix=...)",
        "overridden: builds the model from this package's classes",
    ),
    Seam(
        f"{_V2}.DeepseekV2ForCausalLM.load_weights",
        "method",
        "(self, weights, is_nextn=...)",
        "overridden: strict loading",
    ),
    Seam(f"{_V2}.DeepseekV2Model", "class", "(nn.Module)", "base of Glm53Model; a global of its module"),
    Seam(_LAYER, "class", "(nn.Module)", "base of Glm53DecoderLayer; a global of its module"),
    Seam(
        f"{_LAYER}.stage_facts",
        "classmethod",
        "(cls, config, layer_id, *, is_nextn=..., attn_output=..., output=...)",
        "overridden: declares the reads of a layer's two norms",
    ),
    Seam(
        f"{_LAYER}._build_stages",
        "method",
        "(self, *, input_layernorm, post_attention_layernorm, qkv_latent_func, **modules)",
        "asks the layer's own class for them",
    ),
    Seam(
        _ATTENTION,
        "class",
        "(nn.Module, DeepseekMHAForwardMixin, DeepseekMHARocmForwardMixin, DeepseekMLAForwardMixin, "
        "DeepseekMLARocmForwardMixin, DeepseekMLAFusedRopeRocmForwardMixin, DeepseekMLACpuForwardMixin)",
        "base of Glm53Attention; a global of its module",
    ),
    Seam(
        f"{_ATTENTION}.prepare_qkv_latent",
        "method",
        "(self, hidden_states, forward_batch)",
        "calls the fused A projection with the tensor that the norm gave",
    ),
    Seam(
        f"{_ATTENTION}.op_prepare", "method", "(self, state)", "takes the selection under two-batch overlap"
    ),
    Seam(
        f"{_ATTENTION}.op_core", "method", "(self, state)", "gives the selection on under two-batch overlap"
    ),
    Seam(
        f"{_MLA_FORWARD}.forward_absorb_prepare",
        "method",
        "(self, positions, hidden_states, forward_batch, zero_allocator, llama_4_scaling=..., "
        "prev_topk_indices=...)",
        "overridden: a shared layer without a selection is an error",
    ),
    Seam(
        f"{_MLA_FORWARD}.should_run_indexer",
        "method",
        "(self, prev_topk_indices=...)",
        "tells a shared layer from one that runs its indexer",
    ),
    Seam(f"{_V2}.DeepseekV2MoE", "class", "(nn.Module)", "base of Glm53MoE; a global of its module"),
    Seam(f"{_V2}.MoEGate", "class", "(nn.Module)", "base of Glm53MoEGate; a global of its module"),
    Seam(
        f"{_V2}.MoEGate.forward",
        "method",
        "(self, hidden_states, gemm_output_zero_allocator=..., forward_batch=...)",
        "overridden: FP32 router logits",
    ),
    Seam(f"{_V2}.Indexer", "field", None, "the global by which the attention names its indexer class"),
    Seam(
        "sglang.srt.layers.attention.dsa.dsa_indexer.Indexer",
        "class",
        "(DSANPUIndexerMixin, BaseFusedOp)",
        "base of Glm53Indexer",
    ),
    Seam(
        f"{_DEEPSEEK}.deepseek_weight_loader.DeepseekV2WeightLoaderMixin.do_load_weights",
        "method",
        "(self, weights, is_nextn=...)",
        "the loader that strict loading wraps",
    ),
    Seam(
        "sglang.srt.layers.moe.fused_moe_triton.layer.FusedMoE._map_global_expert_id_to_local_expert_id",
        "method",
        "(self, expert_id)",
        "tells which experts' tensors a rank must load",
    ),
    Seam(
        "sglang.srt.layers.moe.fused_moe_triton.layer.FusedMoE._num_global_routed",
        "field",
        None,
        "where fused shared experts start",
    ),
    Seam(
        "sglang.srt.layers.moe.fused_moe_triton.layer.FusedMoE.num_local_experts",
        "field",
        None,
        "the expert slots of a rank",
    ),
    Seam(
        "sglang.srt.eplb.expert_location.get_global_expert_location_metadata",
        "function",
        "()",
        "tells where EPLB put each expert",
    ),
    Seam(
        "sglang.srt.eplb.expert_location.ExpertLocationMetadata.logical_to_all_physical",
        "method",
        "(self, layer_id, logical_expert_id, require_global_experts=...)",
        "the slots of one expert under EPLB",
    ),
    Seam(
        "sglang.srt.runtime_context.get_model",
        "function",
        "()",
        "the model's path and load flags, the pools' model dtype",
    ),
    Seam(
        "sglang.srt.runtime_context.get_spec",
        "function",
        "()",
        "the draft model's path and load flags, and how it drafts",
    ),
    Seam(
        "sglang.srt.model_loader.loader.DefaultModelLoader.load_weights_and_postprocess",
        "staticmethod",
        "(model, weights, target_device)",
        "leaves a loaded model in eval mode, which tells an update from the first load",
    ),
    Seam(
        "sglang.srt.configs.model_config.dsa_layer_skips_topk",
        "function",
        "(config, layer_id)",
        "upstream's schedule, which geometry.schedule must equal",
    ),
    Seam(_SHARE, "class", "()", "carries the selection from a full layer to its shared layers"),
    Seam(
        f"{_SHARE}.__init__",
        "method",
        "(self, forward_batch, topk_indices)",
        "starts from a carried selection",
    ),
    Seam(f"{_SHARE}.update", "method", "(self, topk_indices)", "takes a layer's selection"),
    Seam(f"{_SHARE}.topk_indices", "field", None, "gives the selection to the next layer"),
)

SEAMS: dict[Group, tuple[Seam, ...]] = {
    "guard": _GUARD,
    "model": _MODEL
    + BOUNDARY_SEAMS
    + SELECTION_SEAMS
    + OVERLAP_SEAMS
    + DRAFT_SEAMS
    + PD_SEAMS
    + SPECULATIVE_SEAMS
    + FAULT_SEAMS,
    "cpu": CPU_SEAMS + CPU_SPECULATIVE_SEAMS,
}
