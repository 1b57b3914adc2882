"""Owns the boundary fusion's seams."""

from sglang_glm53.upstream import Seam, until

_LAYER = "sglang.srt.models.deepseek_v2.DeepseekV2DecoderLayer"
_ATTENTION = "sglang.srt.models.deepseek_v2.DeepseekV2AttentionMLA"
_MOE = "sglang.srt.models.deepseek_v2.DeepseekV2MoE"
_NORMS = "sglang.srt.layers.layer_boundary.residual.add_norm"
_BOUNDARY = "sglang.srt.layers.layer_boundary"
_COMM = "sglang.srt.layers.flashinfer_comm_fusion"
_NORM = "sglang.srt.layers.layernorm.RMSNorm"
_FP8 = "sglang.srt.layers.quantization.fp8.Fp8LinearMethod"
_PRODUCTS = "sglang.srt.layers.quantization.fp8_utils"
_DEEPEP = "sglang.srt.layers.moe.token_dispatcher.deepep"
_MOE_UTILS = "sglang.srt.layers.moe.utils"
_DEEPGEMM = "sglang.srt.layers.deep_gemm_wrapper.configurer"
_GRAPH = "sglang.srt.model_executor.cuda_graph_config"
_CONTEXT = "sglang.srt.runtime_context"
_LINEAR = "sglang.srt.layers.linear"
_PRODUCT = (
    "(input, weight, block_size, weight_scale, input_scale=..., bias=..., act_scale_ue8m0=..., "
    "weight_bf16=...)"
)

_ASKED = "set: asked before SGLang's all-reduce kernel completes a sum"

SEAMS = (
    *until(
        "SGLang fuses these norms with FP8 quantisation on NVIDIA",
        Seam(
            f"{_LAYER}.__init__",
            "method(self, config, layer_id, quant_config=..., moe_quant_config_override=..., is_nextn=..., "
            "prefix=..., alt_stream=..., skip_rope=..., build_stages=...)",
            "overridden: also binds a layer's norms to the projections that take their output",
        ),
        Seam(f"{_LAYER}.input_layernorm", "field", "the norm of the attention's input"),
        Seam(f"{_LAYER}.post_attention_layernorm", "field", "the norm of the FFN's input"),
        Seam(f"{_LAYER}.self_attn", "field", "the attention of a layer"),
        Seam(f"{_LAYER}.mlp", "field", "the MLP or MoE of a layer"),
        Seam(f"{_LAYER}.is_layer_sparse", "field", "tells a MoE layer from a dense one"),
        Seam(f"{_ATTENTION}.fused_qkv_a_proj_with_mqa", "field", "takes the attention's input in FP8"),
        Seam(f"{_ATTENTION}.q_a_layernorm", "field", "set: the norm of q_a, with FP8 output"),
        Seam(f"{_ATTENTION}.q_b_proj", "field", "takes the norm of q_a in FP8"),
        Seam(f"{_ATTENTION}.indexer", "field", "holds wq_b on the layers that have an indexer"),
        Seam(
            "sglang.srt.layers.attention.dsa.dsa_indexer.Indexer.wq_b",
            "field",
            "takes the same FP8 values as q_b_proj",
        ),
        Seam(
            "sglang.srt.models.deepseek_v2.DeepseekV2MLP.gate_up_proj",
            "field",
            "takes the FFN's input in FP8",
        ),
        Seam(
            f"{_MOE}.shared_experts",
            "field",
            "the MLP beside the routed experts; None when it is fused into them",
        ),
        Seam(
            "sglang.srt.layers.layer_boundary.factories.StageDeclaration.read",
            "field",
            "set: this package's read",
        ),
        Seam(
            f"{_NORMS}.NormQuantReadout", "class()", "base of the attention's read: its facts stay SGLang's"
        ),
        Seam(
            f"{_NORMS}.NormQuantReadout.read",
            "method(self, residual, norm, quant_format=..., post_residual_addition=...)",
            "overridden: the norm quantises too",
        ),
        Seam(
            f"{_NORMS}.NormQuantReadout.update_and_read",
            "method(self, update, hidden_states, residual, norm, quant_format=..., "
            "post_residual_addition=...)",
            "overridden: the norm quantises too",
        ),
        Seam(f"{_NORMS}.NormReadout", "class()", "base of the FFN's read: its facts stay SGLang's"),
        Seam(
            f"{_NORMS}.NormReadout.read",
            "method(self, residual, norm, quant_format=..., post_residual_addition=...)",
            "overridden: the norm quantises too",
        ),
        Seam(
            f"{_NORMS}.NormReadout.update_and_read",
            "method(self, update, hidden_states, residual, norm, quant_format=..., "
            "post_residual_addition=...)",
            "overridden: the norm quantises too",
        ),
        Seam(f"{_NORMS}.PlainAdd.is_plain_add", "field", "tells the updates that a norm can add itself"),
        Seam(
            f"{_NORMS}.flashinfer_ar_fusion_applies",
            "function(batch_size)",
            "tells whether SGLang's all-reduce kernel keeps a norm",
        ),
        Seam(
            f"{_NORMS}.FUSE_ALLREDUCE_MAX_BATCH_SIZE",
            "field",
            "up to how many rows SGLang's all-reduce kernel keeps a norm",
        ),
        Seam(
            f"{_COMM}.uses_cutedsl_ar_fusion", "function()", "tells whether the CuteDSL fusion keeps a norm"
        ),
        Seam(
            f"{_COMM}.resolve_flashinfer_allreduce_fusion_backend",
            "function()",
            "tells whether SGLang's all-reduce kernel is the one with FP8 output",
        ),
        Seam(
            f"{_COMM}.ensure_workspace_initialized",
            "function(max_token_num=..., hidden_dim=..., use_fp32_lamport=..., dtype=..., token_num=..., "
            "use_oneshot=..., use_attn_tp_group=...)",
            "makes the workspace of the all-reduce with FP8 output",
        ),
        Seam(
            f"{_COMM}._get_workspace_manager",
            "function(use_attn_tp_group)",
            "finds the workspace of the all-reduce with FP8 output",
        ),
        Seam(
            f"{_COMM}.FlashInferWorkspaceManager.workspace",
            "field",
            "the workspace of the all-reduce with FP8 output",
        ),
        Seam(f"{_NORMS}.NormQuantReadout.completing_fusions", "field", _ASKED),
        Seam(f"{_NORMS}.NormReadout.completing_fusions", "field", _ASKED),
        Seam(
            f"{_BOUNDARY}.contracts.ReadoutFusion",
            "class(msgspec.Struct)",
            "declares the all-reduce with FP8 output to SGLang's boundary",
        ),
        Seam(
            f"{_BOUNDARY}.contracts.ReadoutFusion.completes",
            "field",
            "the sum that the all-reduce with FP8 output completes",
        ),
        Seam(
            f"{_BOUNDARY}.contracts.ReadoutFusion.run",
            "field",
            "what SGLang calls for the all-reduce with FP8 output",
        ),
        Seam(
            f"{_BOUNDARY}.contracts.ReadoutFusion.reads", "field", "says that the all-reduce normalises too"
        ),
        Seam(
            f"{_BOUNDARY}.contracts.ReadoutFusion.carried",
            "field",
            "says that a sum may be left to the all-reduce",
        ),
        Seam(
            f"{_BOUNDARY}.prepare._run_read_fusions",
            "function(read_fusions, hidden_states, residual, forward_batch, norm, *, read, "
            "read_fusion_indices=..., update=..., **call)",
            "asks for the all-reduce with FP8 output before SGLang's own, and takes None for a decline",
        ),
        Seam(
            f"{_BOUNDARY}.output.UnreducedOutput.partial", "field", "this rank's summand of a sum left over"
        ),
        Seam(f"{_BOUNDARY}.layout.SumGroup.ATTN_TP", "field", "the sum that an attention owes"),
        Seam(f"{_BOUNDARY}.layout.SumGroup.MOE_OUTPUT", "field", "the sum that an FFN may leave"),
        Seam(f"{_NORM}", "class(BaseFusedOp)", "base of the norm of q_a"),
        Seam(
            f"{_NORM}.__init__",
            "method(self, hidden_size, eps=..., var_hidden_size=..., cast_x_before_out_mul=..., "
            "fp32_residual=..., has_weight=..., weight_dtype=..., override_orig_dtype=..., "
            "x_pad_to_multiple=..., force_native=...)",
            "builds the norm of q_a",
        ),
        Seam(f"{_NORM}.hidden_size", "field", "the size of a norm"),
        Seam(f"{_NORM}.variance_epsilon", "field", "the eps of a norm"),
        Seam(
            "sglang.kernels.fused_op.BaseFusedOp.forward",
            "method(self, *args, backend=..., **kwargs)",
            "runs SGLang's own norm",
        ),
        Seam(
            "sglang.srt.batch_invariant_ops.batch_invariant_ops.is_batch_invariant_mode_enabled",
            "function()",
            "tells when another norm kernel may not run",
        ),
        Seam(
            f"{_LINEAR}.ReplicatedLinear.forward",
            "method(self, x)",
            "gives its input to the linear method as it is, a pair too",
        ),
        Seam(
            f"{_LINEAR}.ColumnParallelLinear.forward",
            "method(self, input_)",
            "gives its input to the linear method as it is, a pair too",
        ),
        Seam(f"{_FP8}.apply", "method(self, layer, x, bias=...)", "takes values and scales as a pair"),
        Seam(f"{_FP8}.w8a8_block_fp8_linear", "field", "tells the FP8 backend"),
        Seam(f"{_FP8}.weight_block_size", "field", "tells the weights' blocks"),
        Seam(f"{_FP8}.use_marlin", "field", "tells weights that are not served as FP8 blocks"),
        Seam(f"{_FP8}.use_mxfp8", "field", "tells weights that are not served as FP8 blocks"),
        Seam(f"{_FP8}.block_fp8_as_mxfp8", "field", "tells weights that are not served as FP8 blocks"),
        Seam(
            f"{_PRODUCTS}.deepgemm_w8a8_block_fp8_linear_with_fallback",
            f"function{_PRODUCT}",
            "a backend that takes FP8 input",
        ),
        Seam(
            f"{_PRODUCTS}.triton_w8a8_block_fp8_linear",
            f"function{_PRODUCT}",
            "a backend that takes FP8 input",
        ),
        Seam(f"{_DEEPGEMM}.DEEPGEMM_SCALE_UE8M0", "field", "tells the layout of the scales"),
        Seam(
            f"{_MOE_UTILS}.is_moe_input_scattered_across_dp_ranks",
            "function()",
            "tells whether rows are gathered between a norm and the MoE",
        ),
        Seam(
            "sglang.srt.layers.layer_boundary.layout.is_dense_ffn_fully_dp",
            "function()",
            "tells whether rows are gathered between a norm and a dense MLP",
        ),
        Seam(
            f"{_GRAPH}.check_cuda_graph_backend",
            "function(phase, backend)",
            "tells whether torch.compile traces prefill",
        ),
        Seam(f"{_CONTEXT}.get_forward", "function()", "tells whether projections gather their own rows"),
    ),
    *until(
        "DeepEP's normal dispatch takes a pre-quantised input",
        Seam(f"{_MOE}.experts", "field", "the routed experts, which hold the dispatcher"),
        Seam(
            "sglang.srt.layers.moe.fused_moe_triton.layer.FusedMoE.dispatcher",
            "field",
            "the dispatcher of the routed experts",
        ),
        Seam(f"{_DEEPGEMM}.ENABLE_JIT_DEEPGEMM", "field", "tells whether DeepEP's normal dispatch quantises"),
        Seam(
            f"{_DEEPEP}._DeepEPDispatcherImplNormal.dispatch_a",
            "method(self, hidden_states, topk_output)",
            "set on each dispatcher: takes the FP8 form that its input carries",
        ),
        Seam(
            f"{_DEEPEP}._DeepEPDispatcherImplNormal.async_finish",
            "field",
            "tells whether DeepEP's normal dispatch records an event",
        ),
        Seam(
            f"{_DEEPEP}._DeepEPDispatcherImplBase.use_fp8",
            "field",
            "tells whether DeepEP's normal dispatch quantises",
        ),
        Seam(f"{_DEEPEP}.Buffer", "field", "records the event of DeepEP's normal dispatch"),
        Seam(f"{_DEEPEP}.DeepEPDispatcher._normal_dispatcher", "field", "finds DeepEP's normal dispatcher"),
        Seam(
            f"{_DEEPEP}.DeepEPDispatcher.deepep_mode", "field", "tells whether there is a normal dispatcher"
        ),
        Seam(
            "sglang.srt.batch_overlap.two_batch_overlap.MaybeTboDeepEPDispatcher._inners",
            "field",
            "the dispatchers, one for each micro-batch",
        ),
        Seam(f"{_MOE_UTILS}.get_moe_a2a_backend", "function()", "tells whether DeepEP dispatches"),
        Seam(f"{_MOE_UTILS}.get_deepep_mode", "function()", "tells which of DeepEP's modes dispatches"),
        Seam(
            "sglang.srt.layers.dp_attention.get_is_extend_in_batch",
            "function()",
            "tells which mode serves this batch",
        ),
    ),
    *until(
        "never: SGLang's resolved flags",
        Seam(f"{_CONTEXT}.get_parallel", "function()", "this rank's parallel sizes and ranks"),
    ),
    *until(
        "never: SGLang's platform",
        Seam(f"{_CONTEXT}.get_platform", "function()", "tells the GPU's generation"),
    ),
)
