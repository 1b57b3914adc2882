"""Owns the table of every SGLang attribute that this package uses: the features' tables, joined."""

from __future__ import annotations

from typing import Literal

from sglang_glm53.boundary import seams as boundary
from sglang_glm53.cpu import seams as cpu
from sglang_glm53.disaggregation import seams as disaggregation
from sglang_glm53.model import seams as model
from sglang_glm53.overlap import seams as overlap
from sglang_glm53.speculative import seams as speculative
from sglang_glm53.topk import seams as topk
from sglang_glm53.upstream import Seam
from sglang_glm53.weights import seams as weights

Group = Literal["guard", "model", "cpu"]

_MODEL_CONFIG = "sglang.srt.configs.model_config.ModelConfig"
_REGISTRY = "sglang.srt.plugins.hook_registry"

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
    Seam(
        "sglang.srt.arg_groups.pipeline.run_resolution_pipeline",
        "function",
        "(server_args)",
        "hooked: where it fails on a flag that the reference platform refuses, the refusal is raised",
    ),
    Seam("sglang.srt.environ.Envs.SGLANG_PLATFORM", "field", None, "tells which platform runs"),
    Seam(
        "sglang.srt.environ.Envs.SGLANG_ENABLE_PP_SPEC",
        "field",
        None,
        "allows drafts across pipeline stages",
    ),
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

_SERVING = (
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
        "sglang.srt.managers.communicator.FanOutCommunicator.__call__",
        "method",
        "(self, obj)",
        "hooked: refuses control requests that would end the scheduler",
    ),
    Seam(
        "sglang.srt.managers.scheduler.Scheduler.get_init_info",
        "method",
        "(self)",
        "hooked: logs the status once the scheduler stands",
    ),
)

SEAMS: dict[Group, tuple[Seam, ...]] = {
    "guard": _GUARD,
    "model": _SERVING
    + model.SEAMS
    + weights.SEAMS
    + boundary.SEAMS
    + topk.SEAMS
    + overlap.SEAMS
    + speculative.SEAMS
    + disaggregation.SEAMS,
    "cpu": cpu.SEAMS,
}
