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
from sglang_glm53.upstream import Hook, Seam, until
from sglang_glm53.weights import seams as weights

Group = Literal["guard", "model", "cpu"]

_MODEL_CONFIG = "sglang.srt.configs.model_config.ModelConfig"
_REGISTRY = "sglang.srt.plugins.hook_registry"

# What the guard itself stands on: without these rows nothing can be refused, only stopped.
_GUARD = (
    *until(
        "SGLang stops at a plugin that fails, or offers a check of arguments to plugins",
        Seam(
            "sglang.srt.arg_groups.validation_hook.check_server_args",
            "function(server_args)",
            "guarded: runs in the main process after resolution and before any process or weight is loaded",
        ),
    ),
    *until(
        "SGLang asks a plugin for the class of a `--model-impl` value",
        Seam(
            "sglang.srt.model_loader.utils.get_model_architecture",
            "function(model_config)",
            "guarded: every process asks it for the model's class, which is swapped here",
        ),
    ),
    *until(
        "`check_server_args` is no longer guarded",
        Seam(
            "sglang.srt.arg_groups.model_override_base.model_config_of",
            "function(server_args)",
            "gives the HF config that resolution used",
        ),
        Seam(
            "sglang.srt.arg_groups.model_override_base.resolving_view",
            "function(server_args)",
            "gives the flags as resolved",
        ),
    ),
    *until(
        "never: SGLang's description of a model",
        Seam(f"{_MODEL_CONFIG}.hf_config", "field", "the HF config of the model that a process builds"),
    ),
    *until(
        "`get_model_architecture` is no longer guarded",
        Seam(f"{_MODEL_CONFIG}.is_draft_model", "field", "tells the draft model from the target"),
    ),
    *until(
        "never: the flag that selects this package",
        Seam(f"{_MODEL_CONFIG}.model_impl", "field", "selects this package"),
    ),
    *until(
        "no row has a hook",
        Seam(
            f"{_REGISTRY}.HookRegistry.register",
            "classmethod(cls, target, hook, hook_type=..., *, source=...)",
            "takes the hooks of these rows",
        ),
        Seam(f"{_REGISTRY}.HookRegistry.apply_hooks", "classmethod(cls)", "puts the hooks in place"),
        Seam(f"{_REGISTRY}.HookSource", "class(NamedTuple)", "names this package in SGLang's log"),
        Seam(f"{_REGISTRY}.HookType", "class(Enum)", "its values are the kinds of the hooks"),
    ),
    *until(
        "SGLang carries the selection through two-batch overlap (sgl-project/sglang#38007)",
        Seam(
            "sglang.srt.arg_groups.model_hook._validate_dsa_tbo_index_sharing",
            "function(server_args, hf_config)",
            "two-batch overlap is not refused with this package",
            Hook("around", "sglang_glm53.serving.preflight:allow_overlap"),
        ),
    ),
    *until(
        "SGLang lets a platform refuse flags before it resolves them",
        Seam(
            "sglang.srt.arg_groups.pipeline.run_resolution_pipeline",
            "function(server_args)",
            "where it fails on a flag that the reference platform refuses, the refusal is raised",
            Hook("around", "sglang_glm53.serving.preflight:explain_resolution"),
        ),
    ),
    *until(
        "SGLang says how to serve drafts across pipeline stages",
        Seam(
            "sglang.srt.environ.Envs.SGLANG_ENABLE_PP_SPEC",
            "field",
            "allows drafts across pipeline stages",
        ),
    ),
    *until(
        "the reference platform goes",
        Seam("sglang.srt.environ.Envs.SGLANG_PLATFORM", "field", "tells which platform runs"),
    ),
    *until(
        "SGLang calls `load_plugins()` in its tokenizer workers",
        Seam(
            "sglang.srt.environ.Envs.SGLANG_HTTP_SERVER_APP_PATH",
            "field",
            "set: tokenizer workers import their application from it, and load no plugin themselves",
        ),
    ),
    *until(
        "SGLang's scheduler refuses what would end it",
        Seam(
            "sglang.srt.environ.Envs.SGLANG_RUST_SERVER",
            "field",
            "tells whether requests come past the request check",
        ),
    ),
    *until(
        "SGLang compares its flags with DeepEP's capacity at the start",
        Seam(
            "sglang.srt.environ.Envs.SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK",
            "field",
            "the rows that DeepEP's low-latency buffers hold",
        ),
        Seam(
            "sglang.srt.arg_groups.overrides.max_speculative_num_draft_tokens",
            "function(server_args)",
            "the rows of one request in a verify step",
        ),
        Seam(
            "sglang.srt.arg_groups.overrides.max_prefill_buffer_tokens",
            "function(server_args)",
            "the rows of a prefill step",
        ),
    ),
)

_SERVING = (
    *until(
        "SGLang lets a model class add to `/server_info`",
        Seam(
            "sglang.srt.managers.scheduler.Scheduler.get_internal_state",
            "method(self, recv_req)",
            "adds this package's status to /server_info",
            Hook("after", "sglang_glm53.serving.status:add_status"),
        ),
    ),
    *until(
        "SGLang answers each such request with an error itself",
        Seam(
            "sglang.srt.managers.tokenizer_manager.TokenizerManager._validate_one_request",
            "method(self, obj, input_ids)",
            "refuses requests that would end the scheduler",
            Hook("around", "sglang_glm53.serving.request_check:check_request"),
        ),
        Seam(
            "sglang.srt.managers.communicator.FanOutCommunicator.__call__",
            "method(self, obj)",
            "refuses control requests that would end the scheduler",
            Hook("around", "sglang_glm53.serving.control_check:check_control"),
        ),
    ),
    *until(
        "SGLang calls the model once its scheduler is up",
        Seam(
            "sglang.srt.managers.scheduler.Scheduler.get_init_info",
            "method(self)",
            "logs the status once the scheduler stands",
            Hook("before", "sglang_glm53.serving.status:log_status"),
        ),
    ),
)

# The tables by feature, each named after its folder, in the order in which they are checked.
FEATURES: dict[str, tuple[Seam, ...]] = {
    "guard": _GUARD,
    "serving": _SERVING,
    "model": model.SEAMS,
    "weights": weights.SEAMS,
    "boundary": boundary.SEAMS,
    "topk": topk.SEAMS,
    "overlap": overlap.SEAMS,
    "speculative": speculative.SEAMS,
    "disaggregation": disaggregation.SEAMS,
    "cpu": cpu.SEAMS,
}

# What is checked and hooked together: at the plugin's start, with the model, on the reference platform.
SEAMS: dict[Group, tuple[Seam, ...]] = {
    "guard": _GUARD,
    "model": tuple(
        seam for name, seams in FEATURES.items() if name not in ("guard", "cpu") for seam in seams
    ),
    "cpu": cpu.SEAMS,
}
