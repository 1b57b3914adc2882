"""The checkpoint's tensor list: every name GLM-5.3 stores, with its shape and storage type."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from sglang_glm53.geometry import FP8_BLOCK, FULL, Geometry

SCALE_SUFFIX = "_scale_inv"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One stored tensor. kind: "bf16", "f32", "fp8" (e4m3 with a block scale) or "scale" (that scale, FP32).

    optional: a copy that a checkpoint may leave out (the MTP layer's embedding and head).
    """

    shape: tuple[int, ...]
    kind: str
    optional: bool = False

    @property
    def numel(self) -> int:
        return prod(self.shape)


def _attention(g: Geometry, with_indexer: bool) -> dict[str, TensorSpec]:
    heads = g.num_heads
    tensors = {
        "self_attn.q_a_proj.weight": TensorSpec((g.q_lora, g.hidden), "fp8"),
        "self_attn.q_a_layernorm.weight": TensorSpec((g.q_lora,), "bf16"),
        "self_attn.q_b_proj.weight": TensorSpec((heads * (g.nope + g.rope), g.q_lora), "fp8"),
        "self_attn.kv_a_proj_with_mqa.weight": TensorSpec((g.kv_lora + g.rope, g.hidden), "fp8"),
        "self_attn.kv_a_layernorm.weight": TensorSpec((g.kv_lora,), "bf16"),
        "self_attn.kv_b_proj.weight": TensorSpec((heads * (g.nope + g.v), g.kv_lora), "fp8"),
        "self_attn.o_proj.weight": TensorSpec((g.hidden, heads * g.v), "fp8"),
    }
    if with_indexer:
        tensors |= {
            "self_attn.indexer.wq_b.weight": TensorSpec((g.index_heads * g.index_head_dim, g.q_lora), "fp8"),
            "self_attn.indexer.wk.weight": TensorSpec((g.index_head_dim, g.hidden), "fp8"),
            "self_attn.indexer.weights_proj.weight": TensorSpec((g.index_heads, g.hidden), "bf16"),
            "self_attn.indexer.k_norm.weight": TensorSpec((g.index_head_dim,), "bf16"),
            "self_attn.indexer.k_norm.bias": TensorSpec((g.index_head_dim,), "bf16"),
        }
    return tensors


def _mlp(prefix: str, hidden: int, intermediate: int) -> dict[str, TensorSpec]:
    return {
        f"{prefix}.gate_proj.weight": TensorSpec((intermediate, hidden), "fp8"),
        f"{prefix}.up_proj.weight": TensorSpec((intermediate, hidden), "fp8"),
        f"{prefix}.down_proj.weight": TensorSpec((hidden, intermediate), "fp8"),
    }


def _moe(g: Geometry) -> dict[str, TensorSpec]:
    tensors = {
        "mlp.gate.weight": TensorSpec((g.num_experts, g.hidden), "bf16"),
        "mlp.gate.e_score_correction_bias": TensorSpec((g.num_experts,), "f32"),
    }
    for expert in range(g.num_experts):
        tensors |= _mlp(f"mlp.experts.{expert}", g.hidden, g.moe_intermediate)
    if g.num_shared_experts:
        tensors |= _mlp("mlp.shared_experts", g.hidden, g.moe_intermediate * g.num_shared_experts)
    return tensors


def _layer(g: Geometry, *, indexer: bool, sparse: bool) -> dict[str, TensorSpec]:
    norms = {
        "input_layernorm.weight": TensorSpec((g.hidden,), "bf16"),
        "post_attention_layernorm.weight": TensorSpec((g.hidden,), "bf16"),
    }
    mlp = _moe(g) if sparse else _mlp("mlp", g.hidden, g.dense_intermediate)
    return norms | _attention(g, indexer) | mlp


def _mtp_extras(g: Geometry) -> dict[str, TensorSpec]:
    return {
        "enorm.weight": TensorSpec((g.hidden,), "bf16"),
        "hnorm.weight": TensorSpec((g.hidden,), "bf16"),
        "eh_proj.weight": TensorSpec((g.hidden, 2 * g.hidden), "bf16"),
        "shared_head.norm.weight": TensorSpec((g.hidden,), "bf16"),
        "embed_tokens.weight": TensorSpec((g.vocab, g.hidden), "bf16", optional=True),
        "shared_head.head.weight": TensorSpec((g.vocab, g.hidden), "bf16", optional=True),
    }


def _with_scales(tensors: dict[str, TensorSpec]) -> dict[str, TensorSpec]:
    out = {}
    for name, spec in tensors.items():
        out[name] = spec
        if spec.kind == "fp8":
            blocks = tuple(-(-size // block) for size, block in zip(spec.shape, FP8_BLOCK, strict=True))
            out[name + SCALE_SUFFIX] = TensorSpec(blocks, "scale")
    return out


def _without_fp8(tensors: dict[str, TensorSpec]) -> dict[str, TensorSpec]:
    return {
        name: TensorSpec(spec.shape, "bf16", spec.optional) if spec.kind == "fp8" else spec
        for name, spec in tensors.items()
    }


def checkpoint_tensors(g: Geometry, *, fp8: bool) -> dict[str, TensorSpec]:
    """Every tensor of a GLM-5.3 checkpoint, MTP layers included, by its stored name.

    fp8: block-quantised weights with their scales, else bf16 weights only.
    Source: the tensor list of the published FP8 checkpoint, and SGLang 0.5.23,
    models/deepseek_common/deepseek_weight_loader.py.
    """
    tensors = {
        "model.embed_tokens.weight": TensorSpec((g.vocab, g.hidden), "bf16"),
        "model.norm.weight": TensorSpec((g.hidden,), "bf16"),
        "lm_head.weight": TensorSpec((g.vocab, g.hidden), "bf16"),
    }
    for layer, kind in enumerate(g.layer_types):
        body = _layer(g, indexer=kind == FULL, sparse=layer >= g.num_dense_layers)
        tensors |= {f"model.layers.{layer}.{name}": spec for name, spec in body.items()}
    for layer in range(g.num_layers, g.num_layers + g.num_mtp_layers):
        body = _layer(g, indexer=True, sparse=True) | _mtp_extras(g)
        tensors |= {f"model.layers.{layer}.{name}": spec for name, spec in body.items()}
    return _with_scales(tensors) if fp8 else _without_fp8(tensors)
