"""Owns the map from a model's parameters to the checkpoint tensors that fill them on one rank."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from sglang_glm53.geometry import SHARED, Geometry
from sglang_glm53.weights.stored_tensors import SCALE_SUFFIX, TensorSpec, checkpoint_tensors

# SGLang's stacked modules and the stored ones whose rows they hold, in order.
# Source: SGLang 0.5.23, models/deepseek_common/deepseek_weight_loader.py
# DeepseekV2WeightLoaderMixin.do_load_weights.
STACKED = {
    "fused_qkv_a_proj_with_mqa": ("q_a_proj", "kv_a_proj_with_mqa"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
EXPERT_STACKED = {"w13": ("gate_proj", "up_proj"), "w2": ("down_proj",)}
# On CUDA the indexer's wk and weights_proj share one bf16 module; an FP8 wk is dequantised into it.
MERGED_INDEX = ".indexer.wk_weights_proj.weight"
MERGED_INDEX_SOURCES = (
    ".indexer.wk.weight",
    ".indexer.wk.weight" + SCALE_SUFFIX,
    ".indexer.weights_proj.weight",
)

_EXPERTS = re.compile(r"(.+\.mlp)\.experts\.(w13|w2)_weight(_scale_inv)?")
_STORED_EXPERT = re.compile(r"(.+\.mlp)\.experts\.(\d+)\..+")
_PACKED_EXPERTS = re.compile(r"(model\.layers\.\d+\.mlp)\.experts\.(gate_up_proj|down_proj)(_scale)?")
_INDEXER = re.compile(r"model\.layers\.(\d+)\.self_attn\.indexer\..+")
_LAYER = re.compile(r"model\.layers\.(\d+)\..+")
_MTP_MODULES = ("enorm.", "hnorm.", "eh_proj.", "shared_head.norm.")


@dataclass(frozen=True)
class Rule:
    """Names that strict loading leaves alone.

    pattern: a full-match regular expression in which {mtp} is the MTP layer's index.
    draft: True or False when it holds for the MTP draft or the main model only, None for both.
    """

    pattern: str
    draft: bool | None
    reason: str


IGNORED_TENSORS = (
    Rule(r".+\.rotary_emb\.inv_freq", None, "the rotary table is computed from rope_theta"),
    Rule(r"model\.layers\.{mtp}\..+", False, "the MTP layer is loaded by the draft model, or not at all"),
    Rule(
        r"model\.layers\.{mtp}\.(embed_tokens|shared_head\.head)\.weight",
        True,
        "copies: the draft model uses the main model's embedding and head",
    ),
)
PARAMETERS_WITHOUT_TENSOR = (
    Rule(
        r".+\.attn_(mqa|mha|mqa_for_dcp_decode)\.[kv]_scale",
        None,
        "KV-cache scales: GLM-5.3 stores none, and SGLang then uses 1.0 (layers/quantization/kv_cache.py "
        "BaseKVCacheMethod)",
    ),
    Rule(
        r"(model\.embed_tokens|lm_head)\.weight",
        True,
        "the draft worker puts the main model's in their place (speculative/eagle_worker_v2.py "
        "EagleDraftWorker.init_lm_head)",
    ),
)


@functools.cache
def pattern(rules: tuple[Rule, ...], draft: bool, mtp_layer: int) -> re.Pattern[str]:
    """What matches the names for which one of the rules holds."""
    held = [rule.pattern.replace("{mtp}", str(mtp_layer)) for rule in rules if rule.draft in (None, draft)]
    return re.compile("|".join(f"(?:{one})" for one in held))


@dataclass(frozen=True)
class Plan:
    """What one model takes from the checkpoint on one rank.

    layers: the stored layers whose tensors belong here. known: every tensor that a checkpoint may hold.
    dtypes: parameter -> dtype; not the parameter, which SGLang may replace after loading.
    homes: stored name -> the parameter that it fills here; scales of dequantised weights included.
    unfilled: what the model has and no tensor fills, one sentence each.
    slots: stored expert prefix -> the local slots of each expert, by expert number; empty: another rank's.
    """

    geometry: Geometry
    draft: bool
    layers: range
    known: dict[str, TensorSpec]
    dtypes: dict[str, torch.dtype]
    homes: dict[str, str]
    unfilled: tuple[str, ...]
    slots: dict[str, list[list[int]]]

    @property
    def whole(self) -> bool:
        """Whether this rank holds every layer of the main model."""
        return not self.draft and self.layers == range(self.geometry.num_layers)

    def ignored(self, name: str) -> bool:
        """Whether a stored tensor is one of IGNORED_TENSORS for this model."""
        return pattern(IGNORED_TENSORS, self.draft, self.geometry.num_layers).fullmatch(name) is not None

    def elsewhere(self, name: str) -> bool:
        """Whether a known tensor without a home here belongs to another stage, rank or model."""
        layer = _LAYER.fullmatch(name)
        if layer is None:
            return not self.whole
        if int(layer[1]) not in self.layers:
            return True
        expert = _STORED_EXPERT.fullmatch(name)
        slots = self.slots.get(expert[1]) if expert else None
        return expert is not None and slots is not None and not slots[int(expert[2])]

    def slots_of(self, name: str) -> list[int]:
        """The local slots that an expert's tensor fills, a fused shared expert's included; else none."""
        block, _, owner = name.partition(".mlp.")
        slots = self.slots.get(block + ".mlp", [])
        if owner.startswith("experts."):
            return slots[int(owner.split(".")[1])] if slots else []
        return slots[self.geometry.num_experts] if len(slots) > self.geometry.num_experts else []

    def on_shared_layer(self, name: str) -> bool:
        """Whether a stored tensor is an indexer's on a layer that has none."""
        match = _INDEXER.fullmatch(name)
        if match is None or int(match[1]) >= self.geometry.num_layers:
            return False
        return self.geometry.layer_types[int(match[1])] == SHARED

    def unpack(self, name: str) -> tuple[tuple[str, ...], TensorSpec] | None:
        """The per-expert tensors that a packed expert tensor holds, and its own shape; else None.

        gate_up_proj: [experts, 2 * moe_intermediate, hidden]; down_proj: [experts, hidden, moe_intermediate];
        their block scales end in _scale. Source: SGLang 0.5.23,
        models/deepseek_common/deepseek_weight_loader.py _load_fused_expert_tensor.
        """
        match = _PACKED_EXPERTS.fullmatch(name)
        if match is None:
            return None
        projections = ("gate_proj", "up_proj") if match[2] == "gate_up_proj" else ("down_proj",)
        suffix = SCALE_SUFFIX if match[3] else ""
        experts = range(self.geometry.num_experts)
        names = tuple(f"{match[1]}.experts.{e}.{p}.weight{suffix}" for e in experts for p in projections)
        if names[0] not in self.known:
            return None
        one = self.known[names[0]]
        rows, columns = one.shape
        return names, TensorSpec((len(experts), rows * len(projections), columns), one.kind)


def expert_slots(experts: Any, routed: int, shared: int, location: Any) -> list[list[int]]:
    """The local slots that each expert fills on this rank; none for another rank's expert.

    experts: SGLang's FusedMoE. routed, shared: routed experts, and shared ones fused behind them.
    location: SGLang's expert location metadata under EPLB, where one expert may have several slots, or None.
    Source: SGLang 0.5.23, layers/moe/fused_moe_triton/layer.py
    FusedMoE._map_global_expert_id_to_local_expert_id and FusedMoE.weight_loader.
    """
    slots = []
    for expert in range(routed + shared):
        if expert >= routed:
            physical = [experts._num_global_routed + expert - routed]
        elif location is None or not experts.uses_expert_location:
            physical = [expert]
        else:
            physical = location.logical_to_all_physical(experts.layer_id, expert)
        local = [experts._map_global_expert_id_to_local_expert_id(p) for p in physical]
        slots.append([s for s in local if 0 <= s < experts.num_local_experts])
    return slots


def _stored_name(parameter: str, mtp_layer: int | None) -> str:
    """A parameter's name under the checkpoint's layer numbering. mtp_layer: the draft's layer, else None."""
    if mtp_layer is None:
        return parameter
    inner = parameter.removeprefix("model.")
    if inner.startswith("decoder."):
        return f"model.layers.{mtp_layer}.{inner.removeprefix('decoder.')}"
    if inner.startswith(_MTP_MODULES):
        return f"model.layers.{mtp_layer}.{inner}"
    return parameter


def _dense_sources(stored: str) -> tuple[str, ...]:
    """The stored tensors behind a parameter that is not an expert's."""
    if stored.endswith(MERGED_INDEX):
        return tuple(stored.removesuffix(MERGED_INDEX) + source for source in MERGED_INDEX_SOURCES)
    path, _, leaf = stored.rpartition(".")
    parent, _, module = path.rpartition(".")
    return tuple(f"{parent}.{part}.{leaf}" for part in STACKED[module]) if module in STACKED else (stored,)


def _expert_sources(match: re.Match[str], slots: list[list[int]], routed: int) -> Iterator[str]:
    """The stored tensors behind one expert parameter: those of the experts with a local slot."""
    block, stack, suffix = match.groups(default="")
    for expert, local in enumerate(slots):
        owner = f"experts.{expert}" if expert < routed else "shared_experts"
        if local:
            yield from (f"{block}.{owner}.{part}.weight{suffix}" for part in EXPERT_STACKED[stack])


class _Planner:
    """Builds one Plan."""

    def __init__(self, model: Any, geometry: Geometry, draft: bool, location: Any) -> None:
        self.model, self.geometry, self.draft, self.location = model, geometry, draft, location
        self.mtp_layer = geometry.num_layers if draft else None
        self.known = checkpoint_tensors(geometry, fp8=True)
        self.dtypes: dict[str, torch.dtype] = {name: p.dtype for name, p in model.named_parameters()}
        self.homes: dict[str, str] = {}
        self.slots: dict[str, list[list[int]]] = {}
        self.unfilled: list[str] = []

    def plan(self) -> Plan:
        for parameter in self.dtypes:
            self._place(parameter)
        mtp = self.geometry.num_layers
        inner = self.model.model
        layers = range(mtp, mtp + 1) if self.draft else range(inner.start_layer, inner.end_layer)
        return Plan(
            geometry=self.geometry,
            draft=self.draft,
            layers=layers,
            known=self.known,
            dtypes=self.dtypes,
            homes=self.homes,
            unfilled=tuple(self.unfilled),
            slots=self.slots,
        )

    def _place(self, parameter: str) -> None:
        without = pattern(PARAMETERS_WITHOUT_TENSOR, self.draft, self.geometry.num_layers)
        if without.fullmatch(parameter):
            return
        stored = _stored_name(parameter, self.mtp_layer)
        match = _EXPERTS.fullmatch(stored)
        if match:
            slots = self._slots(parameter, match[1])
            sources = tuple(_expert_sources(match, slots, self.geometry.num_experts))
        else:
            sources = _dense_sources(stored)
        if not sources or not all(map(self._loads, sources)):
            self.unfilled.append(f"parameter {parameter} is filled by no known tensor")
            return
        self.homes.update(dict.fromkeys(sources, parameter))

    def _loads(self, stored: str) -> bool:
        """Whether SGLang's loader puts this tensor into this model on any rank."""
        mtp = self.geometry.num_layers
        ignored = pattern(IGNORED_TENSORS, self.draft, mtp).fullmatch(stored)
        inside = not self.draft or stored.startswith(f"model.layers.{mtp}.")
        return stored in self.known and inside and not ignored

    def _slots(self, parameter: str, block: str) -> list[list[int]]:
        """The local slots of each expert of one MoE layer (block: its stored name), all of them filled."""
        if block not in self.slots:
            experts = self.model.get_submodule(parameter.rpartition(".")[0])
            shared = self.model.num_fused_shared_experts
            slots = expert_slots(experts, self.geometry.num_experts, shared, self.location)
            empty = set(range(experts.num_local_experts)).difference(s for local in slots for s in local)
            if empty:
                listed = ", ".join(map(str, sorted(empty)))
                self.unfilled.append(f"{block}.experts has slots on this rank that no expert fills: {listed}")
            self.slots[block] = slots
        return self.slots[block]


def plan(model: Any, geometry: Geometry, *, draft: bool, location: Any = None) -> Plan:
    """What a model takes from the checkpoint on this rank, derived from its own named_parameters().

    model: SGLang's causal LM (draft: the MTP model), of which model.start_layer and end_layer (main only),
    num_fused_shared_experts and the expert modules are read. location: see expert_slots.
    """
    return _Planner(model, geometry, draft, location).plan()
