"""Owns fake models for the loading tests: bare modules with SGLang's parameter names."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from sglang_glm53.geometry import Geometry
from sglang_glm53.weights.stored_tensors import checkpoint_tensors

CONFIG: dict[str, Any] = {
    "num_hidden_layers": 5,
    "hidden_size": 256,
    "intermediate_size": 256,
    "moe_intermediate_size": 128,
    "num_attention_heads": 2,
    "q_lora_rank": 128,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "vocab_size": 64,
    "index_n_heads": 4,
    "index_head_dim": 128,
    "index_topk": 16,
    "num_nextn_predict_layers": 1,
    "indexer_types": ["full", "full", "shared", "shared", "full"],
}
GEOMETRY = Geometry.from_config(CONFIG)
FP8, BF16, F32 = torch.float8_e4m3fn, torch.bfloat16, torch.float32


@dataclass(frozen=True)
class Build:
    """How a model is built. stage: its layers of the main model. merged_index: CUDA's wk_weights_proj."""

    fp8: bool = True
    draft: bool = False
    merged_index: bool = False
    fuse_shared: bool = False
    stage: tuple[int, int] = (0, 5)
    ep_rank: int = 0
    ep_size: int = 1


class FakeExperts(nn.Module):
    """What decides in FusedMoE which expert lives where (layers/moe/fused_moe_triton/layer.py)."""

    def __init__(self, g: Geometry, build: Build) -> None:
        super().__init__()
        self.layer_id, self.uses_expert_location = 0, True
        self.num_fused = int(build.fuse_shared)
        self._num_global_routed = g.num_experts
        self._num_local_routed = g.num_experts // build.ep_size
        self.num_local_experts = self._num_local_routed + self.num_fused
        self.ep_rank = build.ep_rank

    def _map_global_expert_id_to_local_expert_id(self, expert: int) -> int:
        start = self.ep_rank * self._num_local_routed
        if start <= expert < start + self._num_local_routed:
            return expert - start
        if self.num_fused and expert >= self._num_global_routed:
            return expert - self._num_global_routed + self._num_local_routed
        return -1


class _Builder:
    def __init__(self, g: Geometry, build: Build, device: str) -> None:
        self.g, self.build, self.device = g, build, device
        self.root = nn.Module()

    def module(self, path: str) -> nn.Module:
        here = self.root
        for part in path.split(".") if path else ():
            if part not in here._modules:
                here.add_module(part, nn.Module())
            here = here._modules[part]
        return here

    def add(self, name: str, *shape: int, dtype: torch.dtype = BF16) -> None:
        path, _, leaf = name.rpartition(".")
        data = torch.zeros(shape, dtype=dtype, device=self.device)
        self.module(path).register_parameter(leaf, nn.Parameter(data, requires_grad=False))

    def linear(self, name: str, rows: int, columns: int) -> None:
        self.add(f"{name}.weight", rows, columns, dtype=FP8 if self.build.fp8 else BF16)
        if self.build.fp8:
            self.add(f"{name}.weight_scale_inv", -(-rows // 128), -(-columns // 128), dtype=F32)

    def attention(self, at: str, indexer: bool) -> None:
        g, build = self.g, self.build
        self.linear(f"{at}.fused_qkv_a_proj_with_mqa", g.q_lora + g.kv_lora + g.rope, g.hidden)
        self.add(f"{at}.q_a_layernorm.weight", g.q_lora)
        self.linear(f"{at}.q_b_proj", g.num_heads * (g.nope + g.rope), g.q_lora)
        self.linear(f"{at}.kv_b_proj", g.num_heads * (g.nope + g.v), g.kv_lora)
        self.linear(f"{at}.o_proj", g.hidden, g.num_heads * g.v)
        self.add(f"{at}.kv_a_layernorm.weight", g.kv_lora)
        for use in ("attn_mqa", "attn_mha") if build.fp8 else ():
            self.add(f"{at}.{use}.k_scale", dtype=F32)
            self.add(f"{at}.{use}.v_scale", dtype=F32)
        if indexer:
            at += ".indexer"
            self.linear(f"{at}.wq_b", g.index_heads * g.index_head_dim, g.q_lora)
            if build.merged_index:
                self.add(f"{at}.wk_weights_proj.weight", g.index_head_dim + g.index_heads, g.hidden)
            else:
                self.linear(f"{at}.wk", g.index_head_dim, g.hidden)
                self.add(f"{at}.weights_proj.weight", g.index_heads, g.hidden)
            self.add(f"{at}.k_norm.weight", g.index_head_dim, dtype=F32)
            self.add(f"{at}.k_norm.bias", g.index_head_dim, dtype=F32)

    def mlp(self, at: str, intermediate: int) -> None:
        self.linear(f"{at}.gate_up_proj", 2 * intermediate, self.g.hidden)
        self.linear(f"{at}.down_proj", self.g.hidden, intermediate)

    def moe(self, at: str) -> None:
        g, build = self.g, self.build
        self.add(f"{at}.gate.weight", g.num_experts, g.hidden)
        self.add(f"{at}.gate.e_score_correction_bias", g.num_experts, dtype=F32)
        experts = FakeExperts(g, build)
        self.module(at).add_module("experts", experts)
        for stack, rows, columns in (
            ("w13", 2 * g.moe_intermediate, g.hidden),
            ("w2", g.hidden, g.moe_intermediate),
        ):
            slots = experts.num_local_experts
            self.add(f"{at}.experts.{stack}_weight", slots, rows, columns, dtype=FP8 if build.fp8 else BF16)
            if build.fp8:
                blocks = (slots, -(-rows // 128), -(-columns // 128))
                self.add(f"{at}.experts.{stack}_weight_scale_inv", *blocks, dtype=F32)
        if not build.fuse_shared:
            self.mlp(f"{at}.shared_experts", g.moe_intermediate)

    def layer(self, at: str, *, indexer: bool, sparse: bool) -> None:
        self.add(f"{at}.input_layernorm.weight", self.g.hidden)
        self.add(f"{at}.post_attention_layernorm.weight", self.g.hidden)
        self.attention(f"{at}.self_attn", indexer)
        if sparse:
            self.moe(f"{at}.mlp")
        else:
            self.mlp(f"{at}.mlp", self.g.dense_intermediate)

    def main(self) -> None:
        g, (start, end) = self.g, self.build.stage
        if start == 0:
            self.add("model.embed_tokens.weight", g.vocab, g.hidden)
        for i in range(start, end):
            full = g.layer_types[i] == "full"
            self.layer(f"model.layers.{i}", indexer=full, sparse=i >= g.num_dense_layers)
        if end == g.num_layers:
            self.add("model.norm.weight", g.hidden)
            self.add("lm_head.weight", g.vocab, g.hidden)
        inner = self.module("model")
        inner.start_layer, inner.end_layer = start, end  # type: ignore[assignment]

    def mtp(self) -> None:
        g = self.g
        self.add("model.embed_tokens.weight", g.vocab, g.hidden)
        self.add("model.enorm.weight", g.hidden)
        self.add("model.hnorm.weight", g.hidden)
        self.add("model.eh_proj.weight", g.hidden, 2 * g.hidden)
        self.layer("model.decoder", indexer=True, sparse=True)
        self.add("model.shared_head.norm.weight", g.hidden)
        self.add("lm_head.weight", g.vocab, g.hidden)


def fake_model(build: Build, config: dict[str, Any] = CONFIG, device: str = "cpu") -> Any:
    """A module tree as SGLang 0.5.23 builds it, in training mode like any model before its first load."""
    builder = _Builder(Geometry.from_config(config), build, device)
    if build.draft:
        builder.mtp()
    else:
        builder.main()
    model: Any = builder.root
    model.config = SimpleNamespace(**config)
    model.num_fused_shared_experts = int(build.fuse_shared)
    return model


def stored_tensors(*, fp8: bool = True, config: dict[str, Any] = CONFIG) -> dict[str, torch.Tensor]:
    """A checkpoint's tensors: weights 0.5, scales 1, so that every value is legal."""
    dtypes = {"bf16": BF16, "f32": F32, "fp8": FP8, "scale": F32}
    specs = checkpoint_tensors(Geometry.from_config(config), fp8=fp8)
    return {
        name: torch.full(spec.shape, 1.0 if spec.kind == "scale" else 0.5).to(dtypes[spec.kind])
        for name, spec in specs.items()
    }
