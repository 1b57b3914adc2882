"""Owns the seams of MTP: the draft model's selection and status, and the draft argmax."""

from sglang_glm53.upstream import Seam, until

_LOGITS = "sglang.srt.layers.logits_processor"
_PROCESSOR = f"{_LOGITS}.LogitsProcessor"
_PARALLEL = "sglang.srt.arg_groups.fields.parallel.Parallel"
_SPEC = "sglang.srt.arg_groups.fields.spec.Spec"
_GROUP = "sglang.srt.distributed.parallel_state.GroupCoordinator"
_SHARE = "sglang.srt.layers.attention.index_topk_share.IndexTopKShareState"
_WORKER = "sglang.srt.speculative.eagle_worker_v2"
_COUNTS = "sglang.srt.managers.scheduler_components.metrics_reporter.SchedulerMetricsReporter"

SEAMS = (
    *until(
        "SGLang gathers the best of each vocabulary shard for a greedy draft",
        Seam(_PROCESSOR, "class(nn.Module)", "base of the draft's logits processor"),
        Seam(
            "sglang.srt.models.deepseek_nextn.LogitsProcessor",
            "field",
            "the global by which the draft model names its logits processor",
        ),
        Seam(
            f"{_PROCESSOR}._get_logits",
            "method(self, hidden_states, lm_head, logits_metadata, embedding_bias=..., "
            "use_logits_buffer=...)",
            "overridden: gathers each rank's best token instead of its logits",
        ),
        Seam(
            f"{_PROCESSOR}.do_tensor_parallel_all_gather",
            "field",
            "tells whether logits are gathered, and keeps upstream's code from it",
        ),
        Seam(
            f"{_PROCESSOR}.do_tensor_parallel_all_gather_dp_attn",
            "field",
            "tells whether attention-DP ranks share the vocabulary",
        ),
        Seam(f"{_PROCESSOR}.use_attn_tp_group", "field", "tells which ranks share the vocabulary"),
        Seam(f"{_PROCESSOR}.vocab_size", "field", "tells the padding from the vocabulary"),
        Seam(f"{_LOGITS}.LogitsMetadata.next_token_logits_buffer", "field", "where a graph wants its logits"),
        Seam(f"{_LOGITS}.LogitsMetadata.extend_return_logprob", "field", "tells that logprobs are read"),
        Seam(f"{_PARALLEL}.tp_group", "field", "the ranks that share the vocabulary"),
        Seam(f"{_PARALLEL}.attn_tp_group", "field", "the ranks that share the vocabulary under attention DP"),
        Seam(
            f"{_GROUP}.all_gather_into_tensor",
            "method(self, output, input)",
            "gathers the ranks' best tokens",
        ),
        Seam(f"{_GROUP}.rank_in_group", "field", "the order of the vocabulary's shards"),
        Seam(f"{_GROUP}.world_size", "field", "the number of the vocabulary's shards"),
        Seam(f"{_SPEC}.speculative_eagle_topk", "field", "tells whether the draft is a chain"),
        Seam(
            f"{_SPEC}.speculative_use_rejection_sampling",
            "field",
            "tells whether the draft's distribution is read",
        ),
        Seam(f"{_SPEC}.speculative_token_map", "field", "tells whether the draft's tokens are numbered anew"),
        Seam(
            "sglang.srt.environ.Envs.SGLANG_ENABLE_NAN_LOGITS_CHECK",
            "field",
            "tells whether the draft's logits are examined",
        ),
        Seam(
            "sglang.srt.environ.Envs.SGLANG_ENABLE_ASYNC_ASSERT",
            "field",
            "tells whether the draft's logits are examined",
        ),
    ),
    *until(
        "SGLang checks the seed of its draft steps",
        Seam(
            "sglang.srt.model_executor.forward_batch_info.ForwardBatch._original_batch_size",
            "field",
            "the requests of a draft step that attention DP has padded",
        ),
    ),
    *until(
        "never: the seed that this package checks",
        Seam(f"{_SHARE}.from_mtp_carry", "classmethod(cls, forward_batch)", "hands a draft step its seed"),
    ),
    *until(
        "SGLang tells this in its own `/server_info`",
        Seam(
            "sglang.srt.managers.scheduler.Scheduler.draft_worker",
            "field",
            "holds the MTP layer, for the status",
        ),
        Seam(f"{_WORKER}.EAGLEWorkerV2._draft_worker", "field", "holds the MTP layer, for the status"),
        Seam(f"{_WORKER}.EagleDraftWorker.draft_runner", "field", "holds the MTP layer, for the status"),
        Seam(
            f"{_WORKER}.EagleDraftWorker.speculative_num_steps",
            "field",
            "the drafts of a step, for the status",
        ),
        Seam(
            f"{_WORKER}.EagleDraftWorker.seed_dsa_topk_from_draft_extend",
            "field",
            "tells whether the draft's steps share a selection, for the status",
        ),
        *(
            Seam(f"{_COUNTS}.spec_{name}", "field", "tokens and verifies, for the status")
            for name in (
                "total_num_accept_tokens",
                "num_accept_tokens",
                "total_num_forward_ct",
                "num_forward_ct",
            )
        ),
    ),
)
