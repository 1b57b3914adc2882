"""Owns the part of the seam table that speculative decoding adds, which seams.py joins to the rest."""

from sglang_glm53.upstream import Seam

_FACTORY = "sglang.srt.speculative.draft_utils.DraftBackendFactory"
_KERNELS = "sglang.kernels.ops.speculative"
_VERIFY = "sglang.srt.speculative.eagle_utils"
_DSA_UTILS = "sglang.srt.layers.attention.dsa.utils"
_SHARE = "sglang.srt.layers.attention.index_topk_share.IndexTopKShareState"

_WORKER = "sglang.srt.speculative.eagle_worker_v2"
_COUNTS = "sglang.srt.managers.scheduler_components.metrics_reporter.SchedulerMetricsReporter"

SPECULATIVE_SEAMS = (
    Seam(
        "sglang.srt.model_executor.runner_utils.capture_mode.get_is_capture_mode",
        "function",
        "()",
        "tells whether a draft step may read its seed back",
    ),
    Seam(
        "sglang.srt.model_executor.forward_batch_info.ForwardBatch._original_batch_size",
        "field",
        None,
        "the requests of a draft step that attention DP has padded",
    ),
    Seam(f"{_SHARE}.from_mtp_carry", "classmethod", "(cls, forward_batch)", "hands a draft step its seed"),
    Seam(
        "sglang.srt.managers.scheduler.Scheduler.draft_worker",
        "field",
        None,
        "holds the MTP layer, for the status",
    ),
    Seam(f"{_WORKER}.EAGLEWorkerV2._draft_worker", "field", None, "the same"),
    Seam(f"{_WORKER}.EagleDraftWorker.draft_runner", "field", None, "the same"),
    Seam(
        f"{_WORKER}.EagleDraftWorker.speculative_num_steps",
        "field",
        None,
        "the drafts of a step, for the status",
    ),
    Seam(
        f"{_WORKER}.EagleDraftWorker.seed_dsa_topk_from_draft_extend",
        "field",
        None,
        "tells whether the steps share a selection, for the status",
    ),
    *(
        Seam(f"{_COUNTS}.spec_{name}", "field", None, "tokens and verifies, for the status")
        for name in ("total_num_accept_tokens", "num_accept_tokens", "total_num_forward_ct", "num_forward_ct")
    ),
)

# Checked and hooked when SGLANG_PLATFORM=glm53_cpu alone.
CPU_SPECULATIVE_SEAMS = (
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
