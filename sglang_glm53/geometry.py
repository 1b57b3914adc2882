"""Owns GLM-5.3's numbers: dimensions, byte layouts and the indexer schedule, all from the HF config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ARCHITECTURE = "GlmMoeDsaForCausalLM"
NEXTN_ARCHITECTURE = "GlmMoeDsaForCausalLMNextN"
FLASH_ARCHITECTURE_PREFIX = "Glm5Next"

FULL, SHARED = "full", "shared"
MAX_INDEX_TOPK = 2048
# The published checkpoint's, for examples and tables; what is served states its own in config.json.
HIDDEN, Q_LORA = 6144, 2048
FP8_BLOCK = (128, 128)
FP8_MAX = 448.0

# One FP8 KV row: 512 e4m3 latent values, one FP32 scale per 128 of them, 64 bf16 RoPE values.
KV_LORA, KV_ROPE, KV_TILE = 512, 64, 128
KV_SCALE_OFFSET = KV_LORA
KV_ROPE_OFFSET = KV_SCALE_OFFSET + 4 * (KV_LORA // KV_TILE)
KV_ROW_BYTES = KV_ROPE_OFFSET + 2 * KV_ROPE
assert KV_ROW_BYTES == 656

# One index page: PAGE tokens' 128 e4m3 values, then their FP32 scales.
INDEX_HEAD_DIM, PAGE = 128, 64
INDEX_SCALE_OFFSET = PAGE * INDEX_HEAD_DIM
INDEX_PAGE_BYTES = INDEX_SCALE_OFFSET + 4 * PAGE
assert INDEX_PAGE_BYTES == 8448


class ConfigError(ValueError):
    """config.json lacks a field that GLM-5.3 has, or holds one that makes no sense."""


def _reader(config: Any) -> Any:
    if isinstance(config, Mapping):
        return lambda name, default=None: config.get(name, default)
    return lambda name, default=None: getattr(config, name, default)


def _schedule_by_rule(read: Any, layers: int) -> tuple[str, ...] | None:
    """The schedule by index_topk_pattern, else by index_topk_freq and index_skip_topk_offset.

    None when the config states neither. Source: SGLang 0.5.23, configs/model_config.py dsa_layer_skips_topk.
    """
    pattern = read("index_topk_pattern")
    if pattern is not None:
        return tuple(SHARED if i < len(pattern) and pattern[i] == "S" else FULL for i in range(layers))
    freq = read("index_topk_freq")
    if freq is None:
        return None
    offset = read("index_skip_topk_offset")
    if any(not isinstance(value, int) or value < 1 for value in (freq, 1 if offset is None else offset)):
        raise ConfigError(
            f"index_topk_freq={freq!r} and index_skip_topk_offset={offset!r} must be integers, at least 1"
        )
    first = 1 if offset is None else offset - 1
    return tuple(SHARED if max(i - first, 0) % freq else FULL for i in range(layers))


def schedule(config: Any) -> tuple[str, ...]:
    """One of "full" or "shared" for each layer: indexer_types, else the pattern, else freq and offset.

    config: the HF config, an object or a dict. A config without any of them indexes every layer.
    Raises ConfigError when indexer_types is no list, or freq or offset no integer of at least 1.
    """
    read = _reader(config)
    layers = read("num_hidden_layers")
    types = read("indexer_types")
    if types is not None:
        if not isinstance(types, list | tuple):
            raise ConfigError(f"indexer_types={types!r} must be a list with one entry for each layer")
        return tuple(types)
    return _schedule_by_rule(read, layers) or (FULL,) * layers


def schedule_problems(config: Any) -> list[str]:
    """Why this schedule cannot be served, each with the field to fix; empty when it can."""
    read = _reader(config)
    layers = read("num_hidden_layers")
    types = read("indexer_types")
    try:
        ruled = _schedule_by_rule(read, layers)
        chosen = schedule(config)
    except ConfigError as error:
        return [str(error)]
    problems = []
    unknown = sorted({str(t) for t in chosen} - {FULL, SHARED})
    if unknown:
        problems.append(f"indexer_types holds {', '.join(unknown)}: every entry must be 'full' or 'shared'")
    if len(chosen) != layers:
        problems.append(
            f"indexer_types has {len(chosen)} entries for num_hidden_layers={layers}: give one per layer"
        )
    if types is not None and ruled is not None and len(chosen) == layers and chosen != ruled:
        at = next(i for i in range(layers) if chosen[i] != ruled[i])
        problems.append(
            f"indexer_types calls layer {at} {chosen[at]!r}, but index_topk_pattern or index_topk_freq and "
            f"index_skip_topk_offset make it {ruled[at]!r}: remove one of the two or make them agree"
        )
    if chosen and chosen[0] == SHARED:
        problems.append(
            "layer 0 is 'shared', but no full layer before it could give it a selection: make it 'full'"
        )
    return problems


_FIELDS = {
    "num_layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "dense_intermediate": "intermediate_size",
    "moe_intermediate": "moe_intermediate_size",
    "num_heads": "num_attention_heads",
    "q_lora": "q_lora_rank",
    "kv_lora": "kv_lora_rank",
    "nope": "qk_nope_head_dim",
    "rope": "qk_rope_head_dim",
    "v": "v_head_dim",
    "num_experts": "n_routed_experts",
    "experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
    "num_dense_layers": "first_k_dense_replace",
    "vocab": "vocab_size",
    "index_heads": "index_n_heads",
    "index_head_dim": "index_head_dim",
    "index_topk": "index_topk",
}


@dataclass(frozen=True)
class Geometry:
    """GLM-5.3's dimensions as one checkpoint states them (elements, not bytes)."""

    num_layers: int
    hidden: int
    dense_intermediate: int
    moe_intermediate: int
    num_heads: int
    q_lora: int
    kv_lora: int
    nope: int
    rope: int
    v: int
    num_experts: int
    experts_per_token: int
    num_shared_experts: int
    num_dense_layers: int
    vocab: int
    index_heads: int
    index_head_dim: int
    index_topk: int
    num_mtp_layers: int
    layer_types: tuple[str, ...]

    @classmethod
    def from_config(cls, config: Any) -> Geometry:
        """Read an HF config, an object or a dict. Raises ConfigError naming every missing field."""
        read = _reader(config)
        missing = [field for field in _FIELDS.values() if not isinstance(read(field), int)]
        if missing:
            raise ConfigError(f"config.json lacks or misstates {', '.join(missing)}: integers are needed")
        values = {ours: read(theirs) for ours, theirs in _FIELDS.items()}
        return cls(
            **values, num_mtp_layers=read("num_nextn_predict_layers") or 0, layer_types=schedule(config)
        )

    @property
    def full_layers(self) -> tuple[int, ...]:
        """The layers that run the indexer."""
        return tuple(i for i, kind in enumerate(self.layer_types) if kind == FULL)

    @property
    def draft_problem(self) -> str | None:
        """Why SGLang's MTP draft cannot come from this checkpoint; None when it can."""
        # With one layer SGLang takes layer 0 for the MTP layer (models/deepseek_common/
        # deepseek_weight_loader.py DeepseekV2WeightLoaderMixin._initialize_nextn_conf).
        if self.num_mtp_layers == 1 and self.num_layers > 1:
            return None
        counts = f"num_nextn_predict_layers is {self.num_mtp_layers}, num_hidden_layers {self.num_layers}"
        return f"{counts}: SGLang's MTP draft needs exactly 1, and at least 2"
