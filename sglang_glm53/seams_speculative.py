"""Owns the part of the seam table that speculative decoding adds, which seams.py joins to the rest."""

from sglang_glm53.upstream import Seam

_FACTORY = "sglang.srt.speculative.draft_utils.DraftBackendFactory"
_KERNELS = "sglang.kernels.ops.speculative"
_VERIFY = "sglang.srt.speculative.eagle_utils"

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
