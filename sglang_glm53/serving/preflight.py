"""Owns every reason why a configuration cannot run, and the error that lists them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sglang_glm53 import IMPL, PLATFORM_NAME, config, geometry, upstream
from sglang_glm53.fusion import FUSIONS
from sglang_glm53.serving import deepep_capacity, drafts, hooks, platform_flags, processes
from sglang_glm53.serving.seams import Group

logger = logging.getLogger("sglang_glm53")

# Those whose dispatchers SGLang doubles for two micro-batches and DeepseekV2MoE knows
# (batch_overlap/two_batch_overlap.py MaybeTboDeepEPDispatcher, models/deepseek_v2.py).
TWO_PHASE_BACKENDS = ("deepep", "mooncake", "mori", "nixl")


class RefusedError(ValueError):
    """--model-impl glm53 cannot run here. reasons: each with its fix."""

    def __init__(self, reasons: Iterable[str]) -> None:
        self.reasons = tuple(dict.fromkeys(reasons))
        lines = "".join(f"\n  {number}. {reason}" for number, reason in enumerate(self.reasons, 1))
        super().__init__(f"--model-impl glm53 cannot run this:{lines}")


def refuse_if(reasons: Iterable[str]) -> None:
    """Raise RefusedError when there is any reason to."""
    listed = list(reasons)
    if listed:
        raise RefusedError(listed)


def version_reason(found: str | None) -> str | None:
    """Why an SGLang version is refused; None for the pinned one."""
    if found == upstream.VERSION:
        return None
    return (
        f"SGLang {found or '(none installed)'}: this package is written for {upstream.VERSION}: "
        f"pip install sglang=={upstream.VERSION}, or set GLM53_ALLOW_UNTESTED=1 to try as it is"
    )


def settings() -> tuple[config.Config, list[str]]:
    """The environment's settings, and what is wrong with them (the settings are the defaults then)."""
    try:
        return config.read(FUSIONS), []
    except ValueError as error:
        return config.Config(), [str(error)]


def package_reasons(groups: Iterable[Group]) -> list[str]:
    """Why this install cannot run: the environment, SGLang's version, the seams of the given groups.

    With GLM53_ALLOW_UNTESTED=1 another version is logged as a warning instead.
    """
    chosen, reasons = settings()
    untested = version_reason(upstream.version())
    if untested and chosen.allow_untested:
        logger.warning("%s", untested)
    elif untested:
        reasons.append(untested)
    repair = f"pip install --force-reinstall --no-deps sglang=={upstream.VERSION}"
    return reasons + [f"SGLang changed: {problem}: {repair}" for problem in hooks.problems(groups)]


def model_reasons(hf_config: Any, *, is_draft: bool = False) -> list[str]:
    """Why the model of an HF config, an object or a dict, cannot run, each with the field to fix."""
    read = hf_config.get if isinstance(hf_config, Mapping) else lambda *name: getattr(hf_config, *name)
    architecture = (read("architectures", None) or ["none"])[0]
    served = geometry.NEXTN_ARCHITECTURE if is_draft else geometry.ARCHITECTURE
    if architecture != served:
        return [drafts.architecture_reason(architecture) if is_draft else _architecture_reason(architecture)]
    reasons = [
        f"config.json: {field}={read(field, 1)}: this package has no grouped routing, {field} must be 1"
        for field in ("n_group", "topk_group")
        if read(field, 1) != 1
    ]
    try:
        index_topk = geometry.Geometry.from_config(hf_config).index_topk
        if not 1 <= index_topk <= geometry.MAX_INDEX_TOPK:
            reasons.append(
                f"config.json: index_topk={index_topk}: it must be from 1 to {geometry.MAX_INDEX_TOPK}"
            )
    except geometry.ConfigError as error:
        reasons.append(str(error))
    if isinstance(read("num_hidden_layers", None), int):
        reasons += geometry.schedule_problems(hf_config)
    return reasons + _quantization_reasons(read("quantization_config", None))


def _architecture_reason(architecture: str) -> str:
    if architecture.startswith(geometry.FLASH_ARCHITECTURE_PREFIX):
        return (
            f"architecture {architecture} is GLM-5.3-Flash, a hybrid model that shares only the name: "
            "serve it with SGLang's own implementation, without --model-impl"
        )
    return (
        f"architecture {architecture}: this package serves {geometry.ARCHITECTURE} alone; "
        "leave out --model-impl for any other model"
    )


def _quantization_reasons(quantization: Any) -> list[str]:
    """bf16, or FP8 in GLM-5.3's blocks: strict loading knows the tensors of no other scheme."""
    if quantization is None:
        return []
    fields = quantization if isinstance(quantization, Mapping) else quantization.to_dict()
    method, block = fields.get("quant_method"), fields.get("weight_block_size")
    wanted = list(geometry.FP8_BLOCK)
    if method != "fp8":
        return [
            f"config.json: quantization_config.quant_method={method}: this package serves bf16 and FP8 block "
            "checkpoints: leave out --model-impl for SGLang's own implementation"
        ]
    if block in (wanted, geometry.FP8_BLOCK):
        return []
    return [
        f"config.json: quantization_config.weight_block_size={block}: an FP8 checkpoint must be quantised in "
        f"blocks of {wanted}"
    ]


def flag_reasons(flags: Any) -> list[str]:
    """Why resolved server flags cannot go with this package, or with its environment."""
    unfit = config.kernels_reason(settings()[0].kernels, flags.device)
    reasons = [unfit] if unfit else []
    if flags.enable_lora or flags.lora_paths:
        reasons.append(
            "--enable-lora or --lora-paths: no adapter has been proved with this package's layers: leave it "
            "out, or serve SGLang's own implementation without --model-impl"
        )
    if flags.enable_two_batch_overlap and flags.moe_a2a_backend not in TWO_PHASE_BACKENDS:
        reasons.append(
            f"--enable-two-batch-overlap with --moe-a2a-backend {flags.moe_a2a_backend}: the micro-batches "
            f"take turns around a dispatch of two phases: use one of {', '.join(TWO_PHASE_BACKENDS)}"
        )
    if flags.speculative_algorithm == "EAGLE" and (flags.speculative_eagle_topk or 1) > 1:
        reasons.append(
            f"--speculative-eagle-topk {flags.speculative_eagle_topk}: SGLang's sparse attention shows every "
            "row the drafts before it, those of other branches too: use 1"
        )
    if flags.enable_two_batch_overlap and flags.enable_mixed_chunk:
        reasons.append(
            "--enable-two-batch-overlap with --enable-mixed-chunk: the overlap serves no batch that mixes "
            "prefill and decode: leave one of them out"
        )
    return reasons + _pipeline_reasons(flags) + _capture_reasons(flags)


def _pipeline_reasons(flags: Any) -> list[str]:
    """SGLang asserts this without a fix, unless its variable for it is set."""
    if flags.pp_size == 1 or not flags.speculative_algorithm or flags.disaggregation_mode == "prefill":
        return []
    from sglang.srt.environ import envs

    if envs.SGLANG_ENABLE_PP_SPEC.get():
        return []
    return [
        f"--pp-size {flags.pp_size} with --speculative-algorithm: SGLang drafts across pipeline stages on "
        "prefill servers alone: leave one of them out"
    ]


def _capture_reasons(flags: Any) -> list[str]:
    """Where SGLang's capture of selections asserts after loading, or holds what a draft has overwritten."""
    if not flags.enable_return_indexer_topk:
        return []
    name, reasons = "--enable-return-indexer-topk", []
    if flags.tp_size > flags.attn_dp_size * flags.attn_cp_size:
        reasons.append(
            f"{name} with --tp-size {flags.tp_size} and --attn-dp-size {flags.attn_dp_size}: SGLang captures "
            f"selections where each rank has its own requests: set --attn-dp-size {flags.tp_size}"
        )
    if flags.speculative_algorithm:
        reasons.append(
            f"{name} with --speculative-algorithm: the draft's steps overwrite what the target selected: "
            "leave one of them out"
        )
    return reasons


def allow_overlap(original: Callable[..., None], server_args: Any, hf_config: Any) -> None:
    """AROUND SGLang's refusal of two-batch overlap for layers that share a selection: not with this package.

    It runs while the arguments are resolved; check_server_args comes later and judges the rest.
    Source: SGLang 0.5.23, arg_groups/model_hook.py _validate_dsa_tbo_index_sharing.
    """
    if server_args.model_impl != IMPL:
        original(server_args, hf_config)


def explain_resolution(original: Callable[[Any], None], server_args: Any) -> None:
    """AROUND SGLang's resolution: a flag that the reference platform refuses is named before what it led to.

    SGLang's own steps may fail on it first, and blame what nobody asked for.
    """
    try:
        original(server_args)
    except Exception:
        if server_args.model_impl == IMPL and (refused := platform_reasons(server_args)):
            raise RefusedError(refused) from None
        raise


def platform_reasons(requested: Any, hf_config: Any = None) -> list[str]:
    """Why the flags as they were requested cannot go with the platform that runs.

    requested: SGLang's ServerArgs. hf_config: the model's, when it is known.
    """
    from sglang.srt.environ import envs

    if envs.SGLANG_PLATFORM.get() != PLATFORM_NAME:
        return []
    fields = hf_config if isinstance(hf_config, Mapping | None) else vars(hf_config)
    return platform_flags.reasons(
        requested, quantised=fields is None or bool(fields.get("quantization_config"))
    )


def capacity_reasons(server_args: Any, flags: Any, hf_config: Any) -> list[str]:
    """Why DeepEP's buffers could not hold a step of this server; memory that they waste is logged.

    server_args: SGLang's ServerArgs after resolution. flags: the same, as resolved. hf_config: one without
    model_reasons.
    """
    if not deepep_capacity.uses_deepep(flags):
        return []
    from sglang.srt.arg_groups.overrides import max_prefill_buffer_tokens, max_speculative_num_draft_tokens
    from sglang.srt.environ import envs

    draft_tokens = max_speculative_num_draft_tokens(server_args) if flags.speculative_algorithm else None
    steps = deepep_capacity.steps(flags, draft_tokens, max_prefill_buffer_tokens(server_args))
    room = envs.SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK.get()
    sizes = geometry.Geometry.from_config(hf_config)
    spare = deepep_capacity.spare(
        steps, room, sizes.hidden, sizes.num_experts + flags.ep_num_redundant_experts
    )
    if spare:
        logger.warning("%s", spare)
    return deepep_capacity.reasons(steps, room)


def server_reasons(server_args: Any) -> list[str]:
    """Why a server with these arguments cannot run. server_args: SGLang's ServerArgs after resolution.

    Empty when the means to read them have moved, which package_reasons tells.
    """
    if hooks.problems(("guard",)):
        return []
    from sglang.srt.arg_groups.model_override_base import model_config_of, resolving_view
    from sglang.srt.environ import envs

    hf_config, flags = model_config_of(server_args).hf_config, resolving_view(server_args)
    of_model = model_reasons(hf_config)
    of_platform = platform_reasons(server_args, hf_config)
    http_app = envs.SGLANG_HTTP_SERVER_APP_PATH
    of_processes = processes.reasons(
        flags, http_app.get() if http_app.is_set() else None, envs.SGLANG_RUST_SERVER.get()
    )
    found = of_model + flag_reasons(flags) + of_processes + of_platform
    if of_model:
        return found
    return found + drafts.reasons(flags, hf_config) + capacity_reasons(server_args, flags, hf_config)
