"""Owns speculative decoding on the reference platform: the draft's backends, and SGLang's helpers in torch.

SGLang's own helpers are Triton and CUDA kernels. In torch each is a few lines, and a server starts as it did;
under Triton's interpreter they would need TRITON_INTERPRET=1 in the environment before torch is imported, and
2 ms a launch. They run chains alone, one draft a step: preflight refuses trees, whose branches SGLang's
sparse attention does not tell apart either.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.environ import envs
from sglang.srt.layers.attention.dsa.utils import should_use_dsa_fused_topk
from sglang.srt.runtime_context import get_disagg

from sglang_glm53.cpu.attention import ReferenceBackend

ALGORITHMS = ("EAGLE", "NEXTN")


class DraftSteps:
    """The backends of the draft's steps: one for all, since every step sees the verified tokens and no more.

    Source: SGLang 0.5.23, layers/attention/dsa_backend.py DeepseekSparseAttnMultiStepBackend, whose steps
    have one plan too.
    """

    needs_cpu_seq_lens = False

    def __init__(self, factory: Any) -> None:
        self.attn_backends = [_backend(factory)] * (factory.speculative_num_steps - 1)

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Plan the steps; the batch is not padded yet."""
        for backend in self.attn_backends[:1]:
            backend.init_forward_metadata(forward_batch)


def _backend(factory: Any) -> ReferenceBackend:
    """A backend of the draft; where its selections seed another server's draft, they are positions."""
    fused = should_use_dsa_fused_topk(factory.seed_dsa_topk_from_draft_extend)
    return ReferenceBackend(factory.draft_model_runner, force_unfused_topk=not fused)


def remaps_seed() -> bool:
    """should_remap_pd_dsa_seed_to_local_slots: whether a decode server makes its own slots of a seed.

    As on a GPU; upstream's asks for one first, and what comes of it there is to be tried here.
    """
    fused: bool = envs.SGLANG_DSA_FUSE_TOPK.get()
    return fused and get_disagg().disaggregation_mode == "decode"


def decode_backend(factory: Any) -> tuple[str, DraftSteps]:
    """DraftBackendFactory._create_dsa_decode_backend: (name, the backends of the draft's steps)."""
    return "dsa", DraftSteps(factory)


def extend_backend(factory: Any) -> tuple[str, ReferenceBackend]:
    """DraftBackendFactory._create_dsa_prefill_backend: (name, the backend of prefill and draft-extend)."""
    return "dsa", _backend(factory)


def _window(table: torch.Tensor, requests: torch.Tensor, starts: torch.Tensor, width: int) -> torch.Tensor:
    """The slots [requests, width] of width positions from each start on. table: req_to_token."""
    columns = starts.long()[:, None] + torch.arange(width)
    return table[requests.long()[:, None], columns].long()


def verify_locations(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    batch_size: int,
    draft_token_num: int,
    device: Any,
) -> torch.Tensor:
    """The platform's get_speculative_cache_locs_fn: slots of a verify's rows, [requests * width] int64."""
    return _window(req_to_token, req_pool_indices, start_offset, draft_token_num).flatten()


def draft_locations(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    topk: int,
    num_cols: int,
    positions: torch.Tensor | None = None,
    mrope: torch.Tensor | None = None,
) -> None:
    """Write the slots of the draft's steps.

    Source: kernels/ops/speculative/cache_locs.py assign_draft_cache_locs_contiguous_func.
    """
    out_cache_loc.copy_(_window(req_to_token, req_pool_indices, seq_lens, topk * num_cols).flatten())
    if positions is not None:
        positions.copy_(seq_lens)


def assign_slots(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    batch_size: int,
) -> None:
    """Enter new slots, request by request, at positions [start, end).

    Source: mem_cache/allocation.py assign_req_to_token_pool_func.
    """
    counts = (end_offset - start_offset).long()
    firsts = counts.cumsum(0) - counts
    within = torch.arange(out_cache_loc.numel()) - torch.repeat_interleave(firsts, counts)
    columns = torch.repeat_interleave(start_offset.long(), counts) + within
    rows = torch.repeat_interleave(req_pool_indices.long(), counts)
    req_to_token[rows, columns] = out_cache_loc.to(req_to_token.dtype)


def last_slots(
    req_to_token: torch.Tensor, req_pool_indices_tensor: torch.Tensor, prefix_lens_tensor: torch.Tensor
) -> torch.Tensor:
    """The slot of each request's last position, -1 before its first.

    Source: mem_cache/allocation.py get_last_loc.
    """
    last = prefix_lens_tensor.long() - 1
    return req_to_token[req_pool_indices_tensor.long(), last].long().masked_fill(last < 0, -1)


def gather_rows(indices: torch.Tensor, *buffers: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    """The same rows of each buffer.

    Source: kernels/ops/speculative/gather_spec_extras.py gather_spec_extras.
    """
    return tuple(None if buffer is None else buffer[indices.long()] for buffer in buffers)


def build_chain(
    parent_list: torch.Tensor,
    top_scores_index: torch.Tensor,
    seq_lens: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    topk: int,
    spec_steps: int,
    num_verify_tokens: int,
    tree_mask_mode: Any,
) -> None:
    """Link each request's draft tokens one after another; the reference backend reads no mask.

    The three retrieve tensors: [requests, num_verify_tokens] int64, filled with -1.
    Source: kernels/ops/speculative/spec_tree.py build_tree_kernel_efficient_func.
    """
    width = torch.arange(num_verify_tokens)
    positions.copy_((seq_lens[:, None] + width).flatten())
    retrieve_index.copy_(torch.arange(retrieve_index.numel()).view_as(retrieve_index))
    retrieve_next_token[:, :-1] = width[1:]


def _accept(
    accepted: torch.Tensor,
    tokens: torch.Tensor,
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
) -> None:
    """Write what a verify decided: accepted drafts [requests], the token after each row [requests, width]."""
    width = tokens.shape[1]
    rows = torch.arange(tokens.numel()).view(-1, width)
    kept = torch.arange(width) <= accepted[:, None]
    predicts[rows[kept]] = tokens[kept].to(predicts.dtype)
    accept_index.copy_(rows.masked_fill(~kept, -1))
    accept_token_num.copy_(accepted)


def verify_greedy(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
    topk: int = -1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Accept each request's drafts up to the first that is not the target's token.

    candidates, target_predict: [requests, width]; the first candidate is the last verified token. predicts
    [requests * width], accept_index [requests, width] (rows, -1 after the last) and accept_token_num
    [requests] are written. Source: kernels/ops/speculative/spec_tree.py verify_tree_greedy_func.
    """
    right = candidates[:, 1:] == target_predict[:, :-1]
    _accept(right.long().cumprod(1).sum(1), target_predict, predicts, accept_index, accept_token_num)
    return predicts, accept_index, accept_token_num


def verify_sampled(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    uniform_samples: torch.Tensor,
    uniform_samples_for_final_sampling: torch.Tensor,
    target_probs: torch.Tensor,
    threshold_single: float,
    threshold_acc: float,
    **_: Any,
) -> None:
    """Accept a draft with its probability; at the first that is not, draw from the others.

    target_probs: [requests, width, vocabulary]; uniform_samples: [requests, width] in [0, 1), one a draft.
    Source: tree_speculative_sampling_target_only of SGLang's kernel package, for a chain.
    """
    drafts = candidates[:, 1:].long()
    probability = target_probs[:, :-1].gather(2, drafts[..., None])[..., 0]
    taken = uniform_samples[:, : drafts.shape[1]] <= probability / threshold_acc
    taken |= probability >= threshold_single
    accepted = taken.long().cumprod(1).sum(1)
    request = torch.arange(accepted.numel())
    rest = target_probs[request, accepted].clone()
    refused = accepted < drafts.shape[1]
    rest[request[refused], drafts[request[refused], accepted[refused]]] = 0
    sums = rest.cumsum(1)
    drawn = (sums > (uniform_samples_for_final_sampling * sums[:, -1])[:, None]).int().argmax(1)
    tokens = torch.cat([drafts, drafts.new_zeros(drafts.shape[0], 1)], dim=1)
    tokens[request, accepted] = drawn
    _accept(accepted, tokens, predicts, accept_index, accept_token_num)


def keep_top_k(probs: torch.Tensor, top_ks: torch.Tensor) -> torch.Tensor:
    """probs [rows, vocabulary] with all but the top_ks [rows] largest at 0, scaled to a sum of 1 again."""
    last = probs.sort(dim=-1, descending=True).values.gather(
        1, top_ks.long().clamp(1, probs.shape[1])[:, None] - 1
    )
    kept = probs.masked_fill(probs < last, 0)
    return kept / kept.sum(-1, keepdim=True)


def keep_top_p(probs: torch.Tensor, top_ps: torch.Tensor) -> torch.Tensor:
    """probs [rows, vocabulary] with all but the largest that add up to top_ps [rows] at 0, rescaled."""
    ordered, order = probs.sort(dim=-1, descending=True)
    outside = ordered.cumsum(-1) - ordered > top_ps[:, None]
    kept = probs.masked_fill(torch.zeros_like(outside).scatter(1, order, outside), 0)
    return kept / kept.sum(-1, keepdim=True)


def bonus_tokens(
    accept_tokens: torch.Tensor,
    accept_lens: torch.Tensor,
    bonus_tokens: torch.Tensor,
    accept_stride: int,
    batch_size: int,
) -> None:
    """Write each request's last accepted token.

    Source: kernels/ops/speculative/eagle.py fill_bonus_tokens_func.
    """
    last = torch.arange(batch_size) * accept_stride + accept_lens.long() - 1
    bonus_tokens.copy_(accept_tokens.flatten()[last])


def set_sampling() -> None:
    """Give SGLang's verify the sampling that it has on CUDA alone: elsewhere these names are None."""
    from sglang.srt.speculative import eagle_utils

    eagle_utils.tree_speculative_sampling_target_only = verify_sampled
    eagle_utils.top_k_renorm_prob = keep_top_k
    eagle_utils.top_p_renorm_prob = keep_top_p
