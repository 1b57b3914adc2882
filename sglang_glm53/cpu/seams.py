"""Owns the reference platform's seams."""

from sglang_glm53.upstream import Hook, Seam, until

_PARALLEL = "sglang.srt.distributed.parallel_state"
_LOADER = "sglang.srt.models.deepseek_common.deepseek_weight_loader"
_CAPTURE = "sglang.srt.state_capturer.indexer_topk"
_FACTORY = "sglang.srt.speculative.draft_utils.DraftBackendFactory"
_KERNELS = "sglang.kernels.ops.speculative"
_VERIFY = "sglang.srt.speculative.eagle_utils"
_DSA_UTILS = "sglang.srt.layers.attention.dsa.utils"

# Checked and hooked when SGLANG_PLATFORM=glm53_cpu alone.
SEAMS = (
    *until(
        "SGLang's CPU rotary embedding runs without AMX kernels",
        Seam(
            "sglang.srt.layers.rotary_embedding.factory.get_rope_wrapper",
            "function(head_size, rotary_dim, max_position, base, is_neox_style=..., rope_scaling=..., "
            "dtype=..., partial_rotary_factor=..., device=...)",
            "for the device cpu upstream builds an AMX-only rotary embedding",
            Hook("around", "sglang_glm53.cpu.compat:rope_without_device"),
        ),
    ),
    *until(
        "SGLang shares the cores of a NUMA node between ranks",
        Seam(
            "sglang.srt.utils.numa_utils.init_threads_binding",
            "function(*, numa_index, world_size)",
            "shares the cores when there are more ranks than NUMA nodes, which upstream refuses",
            Hook("around", "sglang_glm53.cpu.compat:threads_for_rank"),
        ),
    ),
    *until(
        "SGLang's platform interface offers a communicator for attention DP",
        Seam(
            "sglang.srt.distributed.device_communicators.pynccl.PyNcclCommunicator",
            "class()",
            "NCCL needs a GPU: the same interface over gloo",
            Hook("replace", "sglang_glm53.cpu.collectives:GlooCommunicator"),
        ),
    ),
    *until(
        "SGLang registers its custom ops for an out-of-tree platform on the device `cpu`",
        Seam(f"{_PARALLEL}._groups", "field", "finds a custom op's group by name"),
        Seam(
            f"{_PARALLEL}.GroupCoordinator._all_reduce_in_place",
            "method(self, input_)",
            "runs the custom op inplace_all_reduce",
        ),
        Seam(
            f"{_PARALLEL}.GroupCoordinator._all_reduce_out_place",
            "method(self, input_, outplace_all_reduce_method)",
            "runs the custom op outplace_all_reduce",
        ),
        Seam(
            f"{_PARALLEL}.GroupCoordinator._all_gather_into_tensor",
            "method(self, output, input)",
            "runs the custom op reg_all_gather_into_tensor",
        ),
        Seam(
            f"{_PARALLEL}.GroupCoordinator._reduce_scatter_tensor",
            "method(self, output, input)",
            "runs the custom op reg_reduce_scatter_tensor",
        ),
        Seam(
            f"{_PARALLEL}.GroupCoordinator._all_to_all_single",
            "method(self, output, input)",
            "runs the custom op reg_all_to_all_single",
        ),
    ),
    *until(
        "SGLang asks the platform instead of a module flag",
        Seam(
            "sglang.srt.model_executor.forward_batch_info._is_cpu",
            "field",
            "set: DP padding copies from unpinned memory",
        ),
        Seam(
            "sglang.srt.mem_cache.pool_host.common.ALLOC_MEMORY_FUNCS",
            "field",
            "set: host pools take memory that is not registered with CUDA",
        ),
        Seam(
            f"{_CAPTURE}.create_indexer_capturer",
            "function(*, model_config, num_tokens, max_running_requests, device)",
            "selections can be asked back, which upstream leaves out on a CPU",
            Hook("replace", "sglang_glm53.cpu.compat:index_capturer"),
        ),
        Seam(
            f"{_CAPTURE}._create_indexer_capturer_raw",
            "function(enable, num_indexer_layers, index_topk, num_tokens, max_running_requests, device)",
            "makes the pool of the selections that can be asked back",
        ),
        Seam(
            f"{_CAPTURE}.maybe_capture_indexer_topk",
            "function(layer_id, topk_indices)",
            "puts a selection into that pool",
        ),
        Seam(
            "sglang.srt.configs.model_config.get_num_indexer_layers",
            "function(config)",
            "the size of that pool",
        ),
        Seam(
            "sglang.srt.disaggregation.mooncake.conn.MooncakeKVSender.supports_host_tensor_indices",
            "field",
            "set: page indices cross without pinned memory",
        ),
        Seam("sglang.srt.layers.dp_attention.memcpy_func", "field", "set: a torch copy instead of Triton's"),
        Seam(
            "sglang.srt.layers.dp_attention.memcpy_cpu",
            "function(dst, src, dim, offset, sz, offset_src)",
            "the torch copy that replaces Triton's",
        ),
    ),
    *until(
        "the reference platform goes",
        Seam(
            f"{_LOADER}._is_xpu",
            "field",
            "set: kv_b_proj is dequantised by blocks, not per tensor for CUDA's bmm",
        ),
        Seam(f"{_LOADER}.block_quant_dequant", "field", "set: dequantises kv_b_proj by blocks, in torch"),
        Seam(
            "sglang.srt.layers.quantization.fp8.Fp8Config",
            "class(QuantizationConfig)",
            "base of the reference platform's FP8 config",
        ),
        Seam(
            "sglang.srt.layers.quantization.fp8.Fp8LinearMethod",
            "class(LinearMethodBase)",
            "creates and loads FP8 weights; its products run in torch",
        ),
        Seam(
            "sglang.srt.layers.quantization.fp8.Fp8MoEMethod",
            "class(FusedMoEMethodBase)",
            "creates and loads FP8 experts; their products run in torch",
        ),
        Seam(
            "sglang.srt.layers.attention.attention_registry.ATTENTION_BACKENDS",
            "field",
            "takes the reference backend under the name dsa",
        ),
        Seam(
            "sglang.srt.layers.attention.base_attn_backend.AttentionBackend",
            "class(ABC)",
            "base of the reference backend",
        ),
        Seam(
            "sglang.srt.layers.attention.base_attn_backend.AttentionBackend.forward",
            "method(self, q, k, v, layer, forward_batch, save_kv_cache=..., **kwargs)",
            "overridden: an idle rank's rows are zeros, not memory as it is",
        ),
        Seam(
            "sglang.kernels.fused_op.BaseFusedOp.register_oot_forward",
            "classmethod(cls, op_cls, fn, platform_key)",
            "takes the reference indexer and experts",
        ),
        Seam(
            "sglang.srt.layers.quantization.unquant.UnquantizedFusedMoEMethod",
            "class(FusedMoEMethodBase, BaseFusedOp)",
            "the expert method that the reference experts serve",
        ),
        Seam(
            "sglang.srt.layers.moe.token_dispatcher.deepep.DeepEPDispatcher",
            "class(BaseDispatcher)",
            "DeepEP needs a GPU: dispatches over gloo",
            Hook("replace", "sglang_glm53.cpu.dispatcher:GlooDispatcher"),
        ),
        Seam(
            "sglang.srt.layers.moe.token_dispatcher.base.BaseDispatcher",
            "class(ABC)",
            "base of the dispatcher over gloo",
        ),
        Seam(
            "sglang.srt.layers.moe.topk.StandardTopKOutput",
            "class(NamedTuple)",
            "the weights and ids that the dispatcher over gloo hands the experts",
        ),
        Seam(
            "sglang.srt.layers.moe.ep_moe.layer._is_npu",
            "field",
            "set: the experts behind a dispatcher run by their quantisation method",
        ),
        Seam(
            "sglang.srt.layers.moe.token_dispatcher.standard.StandardDispatchOutput",
            "class(NamedTuple)",
            "what the reference experts take",
        ),
        Seam(
            "sglang.srt.layers.moe.token_dispatcher.standard.StandardCombineInput",
            "class(NamedTuple)",
            "what the reference experts return",
        ),
        Seam(
            "sglang.srt.mem_cache.memory_pool.DSATokenToKVPool",
            "class(MLATokenToKVPool)",
            "base of the reference pools",
        ),
        Seam(
            "sglang.srt.mem_cache.memory_pool.MLATokenToKVPool._write_mla_kv_buffer",
            "method(self, dst_buffer, loc, cache_k_nope, cache_k_rope)",
            "overridden: writes KV rows with torch",
        ),
        Seam(
            "sglang.srt.mem_cache.memory_pool.DSATokenToKVPool._create_index_key_cache",
            "method(self)",
            "overridden: index pages in bf16 or FP32",
        ),
        Seam(
            "sglang.srt.mem_cache.index_key_cache.IndexKeyCache._buffer_shape",
            "method(self, num_pages)",
            "overridden: the shape of index pages in bf16 or FP32",
        ),
        Seam(
            "sglang.srt.platforms.interface.SRTPlatform",
            "class(DeviceMixin)",
            "base of the reference platform",
        ),
        Seam(
            "sglang.srt.platforms.cpu.CpuDeviceMixin",
            "class(DeviceMixin)",
            "the reference platform's device operations",
        ),
        Seam(
            "sglang.srt.model_executor.cuda_graph_config.with_phase",
            "function(config, phase, **changes)",
            "turns graphs off, which need a GPU",
        ),
        Seam(
            f"{_FACTORY}._create_dsa_decode_backend",
            "method(self)",
            "the draft's steps run on the reference backend",
            Hook("replace", "sglang_glm53.cpu.speculative:decode_backend"),
        ),
        Seam(
            f"{_FACTORY}._create_dsa_prefill_backend",
            "method(self)",
            "draft-extend runs on the reference backend",
            Hook("replace", "sglang_glm53.cpu.speculative:extend_backend"),
        ),
        Seam(
            f"{_FACTORY}.seed_dsa_topk_from_draft_extend",
            "field",
            "tells whether draft-extend's selections may seed another server's draft",
        ),
        Seam(
            f"{_DSA_UTILS}.should_use_dsa_fused_topk",
            "function(seed_dsa_topk_from_draft_extend)",
            "tells what form a seed for another server's draft has",
        ),
        Seam(
            f"{_DSA_UTILS}.should_remap_pd_dsa_seed_to_local_slots",
            "function()",
            "a decode makes slots of a seed's positions, as on a GPU",
            Hook("replace", "sglang_glm53.cpu.speculative:remaps_seed"),
        ),
        Seam(
            "sglang.srt.runtime_context.get_disagg", "function()", "tells which half of a pair the server is"
        ),
        Seam(
            "sglang.srt.arg_groups.fields.disagg.Disagg.disaggregation_mode",
            "field",
            "tells which half of a pair the server is",
        ),
        Seam(
            "sglang.srt.mem_cache.allocation.get_last_loc",
            "function(req_to_token, req_pool_indices_tensor, prefix_lens_tensor)",
            "Triton needs a GPU: the same in torch",
            Hook("replace", "sglang_glm53.cpu.speculative:last_slots"),
        ),
        Seam(
            "sglang.srt.mem_cache.allocation.assign_req_to_token_pool_func",
            "function(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, batch_size)",
            "Triton needs a GPU: the same in torch",
            Hook("replace", "sglang_glm53.cpu.speculative:assign_slots"),
        ),
        Seam(
            f"{_KERNELS}.cache_locs.assign_draft_cache_locs_contiguous_func",
            "function(req_pool_indices, req_to_token, seq_lens, out_cache_loc, topk, num_cols, "
            "positions=..., mrope=...)",
            "Triton needs a GPU: the same in torch",
            Hook("replace", "sglang_glm53.cpu.speculative:draft_locations"),
        ),
        Seam(
            f"{_KERNELS}.gather_spec_extras.gather_spec_extras",
            "function(indices, topk_p_buf, topk_index_buf, output_tokens_buf, hidden_states_buf)",
            "Triton needs a GPU: the same in torch",
            Hook("replace", "sglang_glm53.cpu.speculative:gather_rows"),
        ),
        Seam(
            f"{_KERNELS}.spec_tree.build_tree_kernel_efficient_func",
            "function(parent_list, top_scores_index, seq_lens, tree_mask, positions, retrieve_index, "
            "retrieve_next_token, retrieve_next_sibling, topk, spec_steps, num_verify_tokens, "
            "tree_mask_mode)",
            "Triton needs a GPU: chains in torch",
            Hook("replace", "sglang_glm53.cpu.speculative:build_chain"),
        ),
        Seam(
            f"{_KERNELS}.spec_tree.verify_tree_greedy_func",
            "function(predicts, accept_index, accept_token_num, candidates, retrieve_index, "
            "retrieve_next_token, retrieve_next_sibling, target_predict, topk=...)",
            "Triton needs a GPU: chains in torch",
            Hook("replace", "sglang_glm53.cpu.speculative:verify_greedy"),
        ),
        Seam(
            f"{_KERNELS}.eagle.fill_bonus_tokens_func",
            "function(accept_tokens, accept_lens, bonus_tokens, accept_stride, batch_size)",
            "Triton needs a GPU: the same in torch",
            Hook("replace", "sglang_glm53.cpu.speculative:bonus_tokens"),
        ),
        Seam(
            f"{_VERIFY}.tree_speculative_sampling_target_only",
            "field",
            "set: None without CUDA; sampled requests are verified by it",
        ),
        Seam(f"{_VERIFY}.top_k_renorm_prob", "field", "set: None without CUDA; applies top_k"),
        Seam(f"{_VERIFY}.top_p_renorm_prob", "field", "set: None without CUDA; applies top_p"),
    ),
)
