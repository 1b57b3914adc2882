"""Owns GLM-5.3's published config.json, as far as this package reads it, and flags that many tests give."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sglang_glm53.serving import platform_flags

FULL_LAYERS = [0, 1, 2, 6, 10, 14, 18, 22, 26, 30, 34, 38, 42, 46, 50, 54, 58, 62, 66, 70, 74]

FP8 = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": ["lm_head", "model.layers.0.self_attn.indexers_proj"],
}


def glm53(**changes: Any) -> dict[str, Any]:
    """The config with some fields changed; a field changed to ... is left out."""
    config: dict[str, Any] = {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "model_type": "glm_moe_dsa",
        "vocab_size": 154880,
        "hidden_size": 6144,
        "intermediate_size": 12288,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 78,
        "num_nextn_predict_layers": 1,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "q_lora_rank": 2048,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 64,
        "v_head_dim": 256,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 3,
        "n_group": 1,
        "topk_group": 1,
        "index_n_heads": 32,
        "index_head_dim": 128,
        "index_topk": 2048,
        "index_topk_freq": 4,
        "index_skip_topk_offset": 3,
        "indexer_types": ["full" if layer in FULL_LAYERS else "shared" for layer in range(78)],
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 1048576,
        "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"},
    }
    config.update(changes)
    return {name: value for name, value in config.items() if value is not ...}


# The resolved server flags that preflight reads, with nothing asked for.
HARMLESS = {field: served[0] for field, (served, _) in platform_flags.SERVED.items()} | {
    "device": "cpu",
    "use_ray": False,
    "weight_cache_mode": "off",
    "smg_grpc_mode": False,
    "grpc_mode": False,
    "tokenizer_worker_num": 1,
    "enable_two_batch_overlap": False,
    "enable_lora": None,
    "lora_paths": None,
    "enable_mixed_chunk": False,
    "moe_a2a_backend": "none",
    "speculative_algorithm": None,
    "enable_return_indexer_topk": False,
    "disaggregation_mode": "null",
    "pp_size": 1,
    "tp_size": 1,
    "attn_dp_size": 1,
    "attn_cp_size": 1,
}

# Those that ask for MTP without a draft path.
EAGLE = {
    "speculative_algorithm": "EAGLE",
    "speculative_moe_a2a_backend": None,
    "speculative_eagle_topk": 1,
    "speculative_draft_model_path": None,
    "model_path": "target",
}


def environ(**values: Any) -> SimpleNamespace:
    """A stand-in for sglang.srt.environ: the variables that this package reads, with some of them set."""
    defaults = {
        "SGLANG_PLATFORM": "",
        "SGLANG_HTTP_SERVER_APP_PATH": "stock:app",
        "SGLANG_RUST_SERVER": False,
    }

    class Variable:
        def __init__(self, name: str, default: Any) -> None:
            self.name, self.default = name, default

        def get(self) -> Any:
            return values.get(self.name, self.default)

        def is_set(self) -> bool:
            return self.name in values

        def set(self, value: Any) -> None:
            values[self.name] = value

    fields = {name: Variable(name, default) for name, default in (defaults | values).items()}
    return SimpleNamespace(envs=SimpleNamespace(**fields))


def mtp(steps: int) -> list[str]:
    """The flags of a chain of so many drafts a step."""
    chosen = {"algorithm": "NEXTN", "eagle-topk": 1, "num-steps": steps, "num-draft-tokens": steps + 1}
    return [word for name, value in chosen.items() for word in (f"--speculative-{name}", str(value))]
