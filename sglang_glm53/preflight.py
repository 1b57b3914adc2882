"""Owns every reason why a configuration cannot run, and the error that lists them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from sglang_glm53 import config, geometry, hooks, upstream
from sglang_glm53.cards import STEMS
from sglang_glm53.seams import Group

logger = logging.getLogger("sglang_glm53")


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
        return config.read(stems=STEMS), []
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
        return [_architecture_reason(architecture)]
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
    """Why resolved server flags cannot go with this package.

    Both start a process that builds the model without loading any plugin, so the stock model would serve.
    Source: SGLang 0.5.23, ray/scheduler_actor.py and weight_cache/daemon.py.
    """
    reasons = []
    if flags.use_ray:
        reasons.append("--use-ray: SGLang's Ray actors load no plugin: leave it out")
    if flags.weight_cache_mode != "off":
        reasons.append(
            f"--weight-cache-mode {flags.weight_cache_mode}: its daemon loads no plugin: leave it out"
        )
    return reasons


def server_reasons(server_args: Any) -> list[str]:
    """Why a server with these arguments cannot run. server_args: SGLang's ServerArgs after resolution.

    Empty when the means to read them have moved, which package_reasons tells.
    """
    if hooks.problems(("guard",)):
        return []
    from sglang.srt.arg_groups.model_override_base import model_config_of, resolving_view

    return model_reasons(model_config_of(server_args).hf_config) + flag_reasons(resolving_view(server_args))
