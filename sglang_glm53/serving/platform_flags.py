"""Owns which of SGLang's flags the reference platform refuses: those that reach for a device, and why."""

from __future__ import annotations

from typing import Any

_KERNELS = "it chooses GPU kernels, and the reference platform has its own"
_COPIES = "it copies between device and host with CUDA, and the reference platform has no device"
_OWN_POOLS = "it needs another KV pool than the reference platform's"
_ATTENTION = ((None, "dsa"), _KERNELS)

# Field -> the values that are served, SGLang's default first, and why no other one is.
# tests/contract/platform_flags.toml holds the verdict for each of SGLang's flags.
SERVED: dict[str, tuple[tuple[Any, ...], str]] = {
    "device": ((None, "cpu"), "the reference platform has no other"),
    "attention_backend": _ATTENTION,
    "prefill_attention_backend": _ATTENTION,
    "decode_attention_backend": _ATTENTION,
    "speculative_draft_attention_backend": _ATTENTION,
    "kv_cache_dtype": (
        ("auto", "bf16", "bfloat16", "fp8_e4m3"),
        "the reference platform's pools hold bf16 or FP8 (fp8_e4m3), or FP32 with --dtype float32",
    ),
    "quantization": (
        (None, "fp8", "unquant"),
        "the reference platform serves bf16 and FP8 block checkpoints as they are",
    ),
    "speculative_algorithm": (
        (None, "EAGLE", "NEXTN"),
        "the reference platform drafts with GLM-5.3's MTP layer alone",
    ),
    "speculative_use_rejection_sampling": ((False,), "it samples in a Triton kernel"),
    "moe_a2a_backend": (
        ("none", "deepep"),
        "the reference platform dispatches over gloo, in DeepEP's place alone",
    ),
    "speculative_moe_a2a_backend": (
        (None, "none", "deepep"),
        "the reference platform dispatches over gloo, in DeepEP's place alone",
    ),
    # The other two change nothing: the reference experts run instead.
    "moe_runner_backend": (("auto", "triton", "deep_gemm"), _KERNELS),
    "speculative_moe_runner_backend": ((None, "auto", "triton", "deep_gemm"), _KERNELS),
    "dcp_size": ((1,), "it merges partial attention with Triton kernels"),
    "enable_deterministic_inference": (
        (False,),
        "SGLang has it for GPU attention backends; the reference platform sums in one order as it is",
    ),
    "rl_on_policy_target": (
        (None,),
        "it turns on --enable-deterministic-inference, which needs a GPU's kernels",
    ),
    "enable_memory_saver": ((False,), "it frees CUDA's memory, and the reference platform holds none"),
    "enable_weights_cpu_backup": ((False,), "it needs --enable-memory-saver, which frees CUDA's memory"),
    "enable_draft_weights_cpu_backup": (
        (False,),
        "it needs --enable-memory-saver, which frees CUDA's memory",
    ),
    "enable_hierarchical_cache": ((False,), _COPIES),
    "enable_lmcache": ((False,), _COPIES),
    "enable_flexkv": ((False,), _COPIES),
    "offload_group_size": ((-1, 0), f"{_COPIES}; --cpu-offload-gb works"),
    "kv_canary": (("none",), _OWN_POOLS),
    "enable_unified_memory": ((False,), _OWN_POOLS),
    "enable_page_major_kv_layout": ((False,), _OWN_POOLS),
    "enable_hisparse": ((False,), _OWN_POOLS),
    "enable_unified_cache_external_linker": ((False,), _COPIES),
    "enable_single_batch_overlap": ((False,), "it splits a GPU's multiprocessors between two kernels"),
    "enable_pdmux": ((False,), "it splits a GPU's multiprocessors between prefill and decode"),
    "enable_paged_experts": ((False,), _COPIES),
    "elastic_ep_backend": ((None, "none"), "its transfers need a GPU, and the reference platform uses gloo"),
    "startup_weight_load_mode": (("serial",), "it loads weights on a CUDA stream"),
}


def reasons(requested: Any, *, quantised: bool = True) -> list[str]:
    """Why the reference platform cannot serve these flags, each with its fix.

    requested: SGLang's ServerArgs, whose own fields keep what was asked for; resolution writes elsewhere.
    quantised: whether the checkpoint's config.json has a quantization_config, if that is known.
    """
    found = [
        f"{_option(field, value)}: {why}: {_fix(served)}"
        for field, (served, why) in SERVED.items()
        if (value := getattr(requested, field)) not in served
    ]
    if requested.quantization == "fp8" and not quantised:
        found.append(
            "--quantization fp8: config.json has no quantization_config, and the reference platform "
            "quantises no weights: leave it out, or serve an FP8 checkpoint"
        )
    return found


def _option(field: str, value: Any) -> str:
    name = f"--{field.replace('_', '-')}"
    return name if value is True else f"{name} {value}"


def _fix(served: tuple[Any, ...]) -> str:
    given = [str(value) for value in served if isinstance(value, str) and value != "none"]
    return f"use {' or '.join(given)}, or leave it out" if given else "leave it out"
