"""Owns the reference platform's seams."""

from sglang_glm53.upstream import Seam

_PARALLEL = "sglang.srt.distributed.parallel_state"
_LOADER = "sglang.srt.models.deepseek_common.deepseek_weight_loader"

_FACTORY = "sglang.srt.speculative.draft_utils.DraftBackendFactory"
_CAPTURE = "sglang.srt.state_capturer.indexer_topk"
_KERNELS = "sglang.kernels.ops.speculative"
_VERIFY = "sglang.srt.speculative.eagle_utils"
_DSA_UTILS = "sglang.srt.layers.attention.dsa.utils"

# Checked and hooked when SGLANG_PLATFORM=glm53_cpu alone.
SEAMS = (
    Seam(
        "sglang.srt.layers.rotary_embedding.factory.get_rope_wrapper",
        "function",
        "(head_size, rotary_dim, max_position, base, is_neox_style=..., rope_scaling=..., dtype=..., "
        "partial_rotary_factor=..., device=...)",
        "hooked: for the device cpu upstream builds an AMX-only rotary embedding",
    ),
    Seam(
        "sglang.srt.utils.numa_utils.init_threads_binding",
        "function",
        "(*, numa_index, world_size)",
        "hooked: shares the cores when there are more ranks than NUMA nodes, which upstream refuses",
    ),
    Seam(
        "sglang.srt.distributed.device_communicators.pynccl.PyNcclCommunicator",
        "class",
        "()",
        "replaced: the same interface over gloo",
    ),
    Seam(f"{_PARALLEL}._groups", "field", None, "finds a custom op's group by name"),
    Seam(
        f"{_PARALLEL}.GroupCoordinator._all_reduce_in_place",
        "method",
        "(self, input_)",
        "runs inplace_all_reduce",
    ),
    Seam(
        f"{_PARALLEL}.GroupCoordinator._all_reduce_out_place",
        "method",
        "(self, input_, outplace_all_reduce_method)",
        "runs outplace_all_reduce",
    ),
    Seam(
        f"{_PARALLEL}.GroupCoordinator._all_gather_into_tensor",
        "method",
        "(self, output, input)",
        "runs reg_all_gather_into_tensor",
    ),
    Seam(
        f"{_PARALLEL}.GroupCoordinator._reduce_scatter_tensor",
        "method",
        "(self, output, input)",
        "runs reg_reduce_scatter_tensor",
    ),
    Seam(
        f"{_PARALLEL}.GroupCoordinator._all_to_all_single",
        "method",
        "(self, output, input)",
        "runs reg_all_to_all_single",
    ),
    Seam(
        "sglang.srt.model_executor.forward_batch_info._is_cpu",
        "field",
        None,
        "set: DP padding copies from unpinned memory",
    ),
    Seam(
        "sglang.srt.mem_cache.pool_host.common.ALLOC_MEMORY_FUNCS",
        "field",
        None,
        "set: host pools take memory that is not registered with CUDA",
    ),
    Seam(
        f"{_CAPTURE}.create_indexer_capturer",
        "function",
        "(*, model_config, num_tokens, max_running_requests, device)",
        "replaced: selections can be asked back, which upstream leaves out on a CPU",
    ),
    Seam(
        f"{_CAPTURE}._create_indexer_capturer_raw",
        "function",
        "(enable, num_indexer_layers, index_topk, num_tokens, max_running_requests, device)",
        "makes their pool",
    ),
    Seam(f"{_CAPTURE}.maybe_capture_indexer_topk", "function", "(layer_id, topk_indices)", "puts them there"),
    Seam("sglang.srt.configs.model_config.get_num_indexer_layers", "function", "(config)", "sizes that pool"),
    Seam(
        "sglang.srt.disaggregation.mooncake.conn.MooncakeKVSender.supports_host_tensor_indices",
        "field",
        None,
        "set: page indices cross without pinned memory",
    ),
    Seam(
        "sglang.srt.layers.dp_attention.memcpy_func", "field", None, "set: a torch copy instead of Triton's"
    ),
    Seam(
        "sglang.srt.layers.dp_attention.memcpy_cpu",
        "function",
        "(dst, src, dim, offset, sz, offset_src)",
        "that copy",
    ),
    Seam(
        f"{_LOADER}._is_xpu",
        "field",
        None,
        "set: kv_b_proj is dequantised by blocks, not per tensor for CUDA's bmm",
    ),
    Seam(f"{_LOADER}.block_quant_dequant", "field", None, "set: that dequantisation in torch"),
    Seam(
        "sglang.srt.layers.quantization.fp8.Fp8Config",
        "class",
        "(QuantizationConfig)",
        "base of the reference platform's FP8 config",
    ),
    Seam(
        "sglang.srt.layers.quantization.fp8.Fp8LinearMethod",
        "class",
        "(LinearMethodBase)",
        "creates and loads FP8 weights; its products run in torch",
    ),
    Seam(
        "sglang.srt.layers.quantization.fp8.Fp8MoEMethod",
        "class",
        "(FusedMoEMethodBase)",
        "creates and loads FP8 experts; their products run in torch",
    ),
    Seam(
        "sglang.srt.layers.attention.attention_registry.ATTENTION_BACKENDS",
        "field",
        None,
        "takes the reference backend under the name dsa",
    ),
    Seam(
        "sglang.srt.layers.attention.base_attn_backend.AttentionBackend",
        "class",
        "(ABC)",
        "base of the reference backend",
    ),
    Seam(
        "sglang.srt.layers.attention.base_attn_backend.AttentionBackend.forward",
        "method",
        "(self, q, k, v, layer, forward_batch, save_kv_cache=..., **kwargs)",
        "overridden: an idle rank's rows are zeros, not memory as it is",
    ),
    Seam(
        "sglang.kernels.fused_op.BaseFusedOp.register_oot_forward",
        "classmethod",
        "(cls, op_cls, fn, platform_key)",
        "takes the reference indexer and experts",
    ),
    Seam(
        "sglang.srt.layers.quantization.unquant.UnquantizedFusedMoEMethod",
        "class",
        "(FusedMoEMethodBase, BaseFusedOp)",
        "the expert method that the reference experts serve",
    ),
    Seam(
        "sglang.srt.layers.moe.token_dispatcher.deepep.DeepEPDispatcher",
        "class",
        "(BaseDispatcher)",
        "replaced: dispatches over gloo",
    ),
    Seam(
        "sglang.srt.layers.moe.token_dispatcher.base.BaseDispatcher",
        "class",
        "(ABC)",
        "base of that dispatcher",
    ),
    Seam(
        "sglang.srt.layers.moe.topk.StandardTopKOutput",
        "class",
        "(NamedTuple)",
        "the weights and ids that it hands the experts",
    ),
    Seam(
        "sglang.srt.layers.moe.ep_moe.layer._is_npu",
        "field",
        None,
        "set: the experts behind a dispatcher run by their quantisation method",
    ),
    Seam(
        "sglang.srt.layers.moe.token_dispatcher.standard.StandardDispatchOutput",
        "class",
        "(NamedTuple)",
        "what the reference experts take",
    ),
    Seam(
        "sglang.srt.layers.moe.token_dispatcher.standard.StandardCombineInput",
        "class",
        "(NamedTuple)",
        "what they return",
    ),
    Seam(
        "sglang.srt.mem_cache.memory_pool.DSATokenToKVPool",
        "class",
        "(MLATokenToKVPool)",
        "base of the reference pools",
    ),
    Seam(
        "sglang.srt.mem_cache.memory_pool.MLATokenToKVPool._write_mla_kv_buffer",
        "method",
        "(self, dst_buffer, loc, cache_k_nope, cache_k_rope)",
        "overridden: writes KV rows with torch",
    ),
    Seam(
        "sglang.srt.mem_cache.memory_pool.DSATokenToKVPool._create_index_key_cache",
        "method",
        "(self)",
        "overridden: index pages in bf16 or FP32",
    ),
    Seam(
        "sglang.srt.mem_cache.index_key_cache.IndexKeyCache._buffer_shape",
        "method",
        "(self, num_pages)",
        "overridden: the shape of those pages",
    ),
    Seam(
        "sglang.srt.platforms.interface.SRTPlatform",
        "class",
        "(DeviceMixin)",
        "base of the reference platform",
    ),
    Seam("sglang.srt.platforms.cpu.CpuDeviceMixin", "class", "(DeviceMixin)", "its device operations"),
    Seam(
        "sglang.srt.model_executor.cuda_graph_config.with_phase",
        "function",
        "(config, phase, **changes)",
        "turns graphs off",
    ),
    Seam(
        f"{_FACTORY}._create_dsa_decode_backend",
        "method",
        "(self)",
        "replaced: the draft's steps run on the reference backend",
    ),
    Seam(
        f"{_FACTORY}._create_dsa_prefill_backend",
        "method",
        "(self)",
        "replaced: draft-extend runs on the reference backend",
    ),
    Seam(
        f"{_FACTORY}.seed_dsa_topk_from_draft_extend",
        "field",
        None,
        "tells whether its selections may seed another server's draft",
    ),
    Seam(
        f"{_DSA_UTILS}.should_use_dsa_fused_topk",
        "function",
        "(seed_dsa_topk_from_draft_extend)",
        "tells what form they have then",
    ),
    Seam(
        f"{_DSA_UTILS}.should_remap_pd_dsa_seed_to_local_slots",
        "function",
        "()",
        "replaced: a decode makes slots of a seed's positions, as on a GPU",
    ),
    Seam("sglang.srt.runtime_context.get_disagg", "function", "()", "tells which half of a pair it is"),
    Seam("sglang.srt.arg_groups.fields.disagg.Disagg.disaggregation_mode", "field", None, "the same"),
    Seam(
        "sglang.srt.mem_cache.allocation.get_last_loc",
        "function",
        "(req_to_token, req_pool_indices_tensor, prefix_lens_tensor)",
        "replaced: the same in torch",
    ),
    Seam(
        "sglang.srt.mem_cache.allocation.assign_req_to_token_pool_func",
        "function",
        "(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, batch_size)",
        "replaced: the same in torch",
    ),
    Seam(
        f"{_KERNELS}.cache_locs.assign_draft_cache_locs_contiguous_func",
        "function",
        "(req_pool_indices, req_to_token, seq_lens, out_cache_loc, topk, num_cols, positions=..., mrope=...)",
        "replaced: the same in torch",
    ),
    Seam(
        f"{_KERNELS}.gather_spec_extras.gather_spec_extras",
        "function",
        "(indices, topk_p_buf, topk_index_buf, output_tokens_buf, hidden_states_buf)",
        "replaced: the same in torch",
    ),
    Seam(
        f"{_KERNELS}.spec_tree.build_tree_kernel_efficient_func",
        "function",
        "(parent_list, top_scores_index, seq_lens, tree_mask, positions, retrieve_index, "
        "retrieve_next_token, retrieve_next_sibling, topk, spec_steps, num_verify_tokens, tree_mask_mode)",
        "replaced: chains in torch",
    ),
    Seam(
        f"{_KERNELS}.spec_tree.verify_tree_greedy_func",
        "function",
        "(predicts, accept_index, accept_token_num, candidates, retrieve_index, retrieve_next_token, "
        "retrieve_next_sibling, target_predict, topk=...)",
        "replaced: chains in torch",
    ),
    Seam(
        f"{_KERNELS}.eagle.fill_bonus_tokens_func",
        "function",
        "(accept_tokens, accept_lens, bonus_tokens, accept_stride, batch_size)",
        "replaced: the same in torch",
    ),
    Seam(
        f"{_VERIFY}.tree_speculative_sampling_target_only",
        "field",
        None,
        "set: None without CUDA; sampled requests are verified by it",
    ),
    Seam(f"{_VERIFY}.top_k_renorm_prob", "field", None, "set: None without CUDA; applies top_k"),
    Seam(f"{_VERIFY}.top_p_renorm_prob", "field", None, "set: None without CUDA; applies top_p"),
)
