"""Owns the sizes of a tiny checkpoint: what may be chosen, and the config.json that states it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sglang_glm53.geometry import (
    ARCHITECTURE,
    FP8_BLOCK,
    INDEX_HEAD_DIM,
    KV_LORA,
    KV_ROPE,
    MAX_INDEX_TOPK,
    Geometry,
    schedule,
)
from sglang_glm53.tiny import tokenizer
from sglang_glm53.weights.stored_tensors import checkpoint_tensors

DENSE_LAYERS = 3
FEWEST_INDEX_HEADS = 8
# Of a checkpoint that repeats its context: elements of the hidden size that hold no code, and how many drafts
# in a row the MTP layer's shared selection serves.
LEVELS = 16
DRAFTS = 3
# The least value of each size, and why where it is not plain.
LEAST = {
    "layers": (DENSE_LAYERS + 1, f"; the first {DENSE_LAYERS} are dense and an MoE layer must follow"),
    "hidden": (1, ""),
    "heads": (1, ""),
    "q_lora": (1, ""),
    "nope": (1, ""),
    "v": (1, ""),
    "dense_intermediate": (1, ""),
    "moe_intermediate": (1, ""),
    "experts": (2, "; the router needs a choice"),
    "experts_per_token": (1, ""),
    "vocab": (tokenizer.SMALLEST_VOCAB, ", for all 256 bytes and GLM's special tokens"),
    "index_topk": (1, ""),
    "index_heads": (1, ""),
    "max_positions": (1, ""),
    "seed": (0, ""),
    "shards": (1, ""),
    "period": (0, ""),
}
# What the published config.json states and no size changes.
CONSTANTS: dict[str, Any] = {
    "architectures": [ARCHITECTURE],
    "model_type": "glm_moe_dsa",
    "dtype": "bfloat16",
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 8_000_000, "rope_type": "default"},
    "rope_interleave": True,
    "indexer_rope_interleave": True,
    "index_share_for_mtp_iteration": True,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "moe_router_dtype": "float32",
    "first_k_dense_replace": DENSE_LAYERS,
    "moe_layer_freq": 1,
    "ep_size": 1,
    "initializer_range": 0.02,
    "pretraining_tp": 1,
    "tie_word_embeddings": False,
    "use_cache": True,
}
RULE: dict[str, Any] = {"index_topk_freq": 4, "index_skip_topk_offset": 3, "index_topk_pattern": None}


class SpecError(ValueError):
    """Sizes that a checkpoint of this architecture cannot have; the message names every flag and its fix."""


@dataclass(frozen=True)
class TinySpec:
    """A tiny checkpoint's sizes, in elements; each field is a flag of `glm53 tiny`.

    period: 0 for random weights; else the model repeats its context, each token being the one so many
    positions back, and its MTP layer foresees that (tiny/recall.py).
    schedule: one letter a layer, F for full and S for shared; None for the published rule (freq 4, offset 3).
    mtp_copies: also store the MTP layer's copies of the embedding and the head, which the published
    checkpoint leaves out. moe_intermediate 256 is the least that tensor parallelism 2 splits into whole FP8
    blocks. The KV latent (512), RoPE (64) and index head (128) are fixed: kernels and cache rows are built
    for them.
    """

    layers: int = 8
    hidden: int = 256
    heads: int = 4
    q_lora: int = 128
    nope: int = 64
    v: int = 64
    dense_intermediate: int = 512
    moe_intermediate: int = 256
    experts: int = 8
    experts_per_token: int = 2
    vocab: int = 1024
    index_topk: int = 64
    index_heads: int = 32
    max_positions: int = 8192
    seed: int = 0
    shards: int = 1
    period: int = 0
    schedule: str | None = None
    mtp: bool = False
    mtp_copies: bool = False
    fp8: bool = False

    def problems(self) -> list[str]:
        """Why this checkpoint cannot be written, each with the flag and the fix; empty when it can."""
        found = [
            f"{flag(name)} {getattr(self, name)}: use at least {least}{why}"
            for name, (least, why) in LEAST.items()
            if getattr(self, name) < least
        ]
        found += _block_problems(self)
        if self.index_topk > MAX_INDEX_TOPK:
            found.append(f"--index-topk {self.index_topk}: use at most {MAX_INDEX_TOPK}, the model's own")
        for name, other in (("experts_per_token", "experts"), ("shards", "layers")):
            value, most = getattr(self, name), getattr(self, other)
            if value > most:
                found.append(f"{flag(name)} {value}: use at most {flag(other)}, which is {most}")
        if self.mtp_copies and not self.mtp:
            found.append("--mtp-copies: add --mtp; without it there is no layer to store the copies in")
        return found + _schedule_problems(self) + _period_problems(self)

    def warnings(self) -> list[str]:
        """What this checkpoint is not fit for."""
        if self.index_heads >= FEWEST_INDEX_HEADS:
            return []
        return [
            f"--index-heads {self.index_heads}: with fewer than {FEWEST_INDEX_HEADS}, ReLU leaves exact ties "
            "in the index scores, and two correct implementations may select different positions"
        ]


def flag(field: str) -> str:
    """The command-line flag of a TinySpec field."""
    return "--" + field.replace("_", "-")


def _block_problems(spec: TinySpec) -> list[str]:
    block = FP8_BLOCK[0]
    blocked = ["hidden", "q_lora"]
    # SGLang refuses merged FP8 weights with a part of a block (layers/quantization/fp8.py
    # Fp8LinearMethod.validate_block_quant_shapes and Fp8MoEMethod.create_fp8_moe_weight_).
    blocked += ["dense_intermediate", "moe_intermediate"] if spec.fp8 else []
    found = []
    for name in blocked:
        value = getattr(spec, name)
        if value >= 1 and value % block:
            nearest = -(-value // block) * block
            found.append(f"{flag(name)} {value}: use a multiple of {block}, such as {nearest}")
    return found


def _schedule_problems(spec: TinySpec) -> list[str]:
    letters = spec.schedule
    if letters is None:
        return []
    found = []
    if set(letters) - {"F", "S"}:
        found.append(f"--schedule {letters}: use the letters F (full) and S (shared) only")
    if len(letters) != spec.layers:
        found.append(
            f"--schedule {letters}: {len(letters)} letters for --layers {spec.layers}; give one a layer"
        )
    if letters.startswith("S"):
        found.append(
            f"--schedule {letters}: begin with F; a shared layer needs a selection from an earlier one"
        )
    return found


def _period_problems(spec: TinySpec) -> list[str]:
    if spec.period < 1:
        return []
    found = []
    nearest = spec.index_topk + DRAFTS + 1
    if spec.period < nearest:
        found.append(
            f"--period {spec.period}: use at least {nearest}, further back than index_topk positions"
        )
    if spec.index_topk % 2:
        found.append(
            f"--index-topk {spec.index_topk}: with --period use an even number, half of it on each side"
        )
    code = (spec.hidden - LEVELS) // 2
    if spec.heads * spec.v < code:
        found.append(
            f"--heads {spec.heads}: with --period use at least {-(-code // max(spec.v, 1))} for --hidden"
        )
    return found


def config(spec: TinySpec, stops: Sequence[int]) -> dict[str, Any]:
    """config.json without quantization_config: the published one's fields with this spec's sizes.

    stops: the ids that end a generation; the first also pads. A schedule of one's own is stated as a pattern,
    without freq and offset, which would contradict it; indexer_types agrees with either.
    """
    rule = RULE if spec.schedule is None else {"index_topk_pattern": spec.schedule}
    sizes = {
        "vocab_size": spec.vocab,
        "hidden_size": spec.hidden,
        "intermediate_size": spec.dense_intermediate,
        "moe_intermediate_size": spec.moe_intermediate,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.heads,
        "n_routed_experts": spec.experts,
        "num_experts_per_tok": spec.experts_per_token,
        "kv_lora_rank": KV_LORA,
        "q_lora_rank": spec.q_lora,
        "qk_nope_head_dim": spec.nope,
        "qk_rope_head_dim": KV_ROPE,
        "qk_head_dim": spec.nope + KV_ROPE,
        "head_dim": spec.nope,
        "v_head_dim": spec.v,
        "max_position_embeddings": spec.max_positions,
        "index_topk": spec.index_topk,
        "index_head_dim": INDEX_HEAD_DIM,
        "index_n_heads": spec.index_heads,
        "num_nextn_predict_layers": int(spec.mtp),
        "mlp_layer_types": ["dense"] * DENSE_LAYERS + ["sparse"] * (spec.layers - DENSE_LAYERS),
        "indexer_types": list(schedule({"num_hidden_layers": spec.layers, **rule})),
        "eos_token_id": list(stops),
        "pad_token_id": stops[0],
    }
    return CONSTANTS | sizes | rule


def quantization_config(geometry: Geometry) -> dict[str, Any]:
    """The FP8 settings in the published checkpoint's words, a wrong one included.

    Its list names self_attn.indexers_proj, which no module is called; the tensor is indexer.weights_proj.
    Nothing hangs on the list for this architecture. SGLang 0.5.23 matches it by dotted parts
    (layers/quantization/utils.py _module_path_match), so that entry matches nothing, but weights_proj is
    built without a quantisation config, merged with wk or not (layers/attention/dsa/dsa_indexer.py Indexer),
    the router is a bare parameter (models/deepseek_v2.py MoEGate) and eh_proj is nn.Linear
    (models/deepseek_nextn.py DeepseekModelNextN).
    """
    kept = ["lm_head", "model.embed_tokens", "model.norm"]
    for name, stored in checkpoint_tensors(geometry, fp8=True).items():
        if name.startswith("model.layers.") and stored.kind in ("bf16", "f32") and not stored.optional:
            module = name.removesuffix(".weight")
            kept.append(module.replace(".indexer.weights_proj", ".indexers_proj"))
    return {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": list(FP8_BLOCK),
        "modules_to_not_convert": kept,
    }
