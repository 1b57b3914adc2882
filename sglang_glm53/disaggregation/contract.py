"""Owns the contract of a prefill/decode pair: what both servers must agree on, and how they differ."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sglang_glm53 import __version__
from sglang_glm53.geometry import INDEX_PAGE_BYTES, KV_ROW_BYTES, Geometry

# How an FP8 byte becomes a number. A peer that rounds its scales otherwise has the same sizes, so nothing
# else would tell (vLLM's powers of two, for one).
KV_SCALES = "KV: FP32 amax/448 of 128 values"
INDEX_SCALES = "index: FP32 amax/448 of a key"
NO_SCALES = "none"
# SGLang's name of the state component that holds index pages; disaggregation/base/conn.py, StateType.DSA.
INDEX_STATE = "dsa"

_SAME_CHECKPOINT = "serve the same checkpoint on both servers"
_SAME_KV = "give both servers the same --kv-cache-dtype and --dtype"
_SAME_MTP = "give both servers the same --speculative-* flags"
_SAME_PACKAGE = "install the same sglang-glm53 on both servers"
# Every field's repair; what a peer states beside them comes from another version of this package.
FIXES = {
    "version": _SAME_PACKAGE,
    "model": _SAME_CHECKPOINT,
    "vocabulary": _SAME_CHECKPOINT,
    "layers": _SAME_CHECKPOINT,
    "index_layers": f"{_SAME_CHECKPOINT}, with flags that keep every full layer's index pages",
    "page_size": "give both servers the same --page-size",
    "kv_dtype": _SAME_KV,
    "scale_rule": _SAME_KV,
    "kv_row_bytes": _SAME_KV,
    "index_page_bytes": _SAME_KV,
    "mtp": _SAME_MTP,
    "seed_width": _SAME_CHECKPOINT,
    "metadata_bytes": f"{_SAME_MTP}, and the same --disaggregation-enable-kv-checksum",
}
# What a config says beside Geometry that changes the numbers in a KV row or an index page.
_NUMERIC_FIELDS = ("rms_norm_eps", "hidden_act", "routed_scaling_factor", "norm_topk_prob", "scoring_func")


@dataclass(frozen=True)
class Contract:
    """What crosses from a prefill server to a decode server, as one rank of either holds it.

    version: of this package. model: a fingerprint of the config. vocabulary: tokens. layers: those of the
    target model. index_layers: those whose index pages cross, the schedule's full layers. page_size: tokens.
    kv_dtype: as SGLang resolves --kv-cache-dtype. scale_rule: how FP8 values are scaled. kv_row_bytes: of one
    token in one layer. index_page_bytes: of one page in one layer. mtp: whether the draft model's rows cross
    too. seed_width: positions of the selection that seeds MTP. metadata_bytes: of each field of a request's
    metadata, in order.
    """

    version: str
    model: str
    vocabulary: int
    layers: int
    index_layers: tuple[int, ...]
    page_size: int
    kv_dtype: str
    scale_rule: str
    kv_row_bytes: int
    index_page_bytes: int
    mtp: bool
    seed_width: int
    metadata_bytes: tuple[int, ...]

    def wire(self) -> dict[str, Any]:
        """The same in what JSON has."""
        fields: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return fields


def fingerprint(config: Any) -> str:
    """Sixteen hex digits of what a config.json says about the model's shape and arithmetic.

    The FP8 and the bf16 checkpoint of one model have the same; so have two checkpoints of one shape.
    config: the HF config, an object or a dict. Raises geometry.ConfigError when it is not GLM-5.3's.
    """
    read: Any = config.get if isinstance(config, Mapping) else lambda name: getattr(config, name, None)
    # The MTP layer has its own field, and a checkpoint without it is the same target model.
    shape = dataclasses.replace(Geometry.from_config(config), num_mtp_layers=0)
    rope = read("rope_parameters")
    theta = rope.get("rope_theta") if isinstance(rope, Mapping) else read("rope_theta")
    said = [dataclasses.asdict(shape), theta, *map(read, _NUMERIC_FIELDS)]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]


def describe(kv_args: Any, config: Any, seed_width: int) -> Contract:
    """The contract of one rank.

    kv_args: SGLang's KVArgs (disaggregation/base/conn.py) as filled for the transfer. config: the HF
    config. seed_width: SGLang's get_dsa_seed_metadata_dim. Raises geometry.ConfigError as `fingerprint` does.
    """
    shape = Geometry.from_config(config)
    row = kv_args.kv_item_lens[0] // kv_args.page_size if kv_args.kv_item_lens else 0
    pages = _index_item_lens(kv_args)
    page = next(filter(None, pages), 0)
    scales = [KV_SCALES] * (row == KV_ROW_BYTES) + [INDEX_SCALES] * (page == INDEX_PAGE_BYTES)
    return Contract(
        version=__version__,
        model=fingerprint(config),
        vocabulary=shape.vocab,
        layers=shape.num_layers,
        index_layers=_index_layers(kv_args, shape, pages),
        page_size=kv_args.page_size,
        kv_dtype=kv_args.kv_cache_dtype_str,
        scale_rule="; ".join(scales) or NO_SCALES,
        kv_row_bytes=row,
        index_page_bytes=page,
        mtp=kv_args.num_draft_entries > 0,
        seed_width=seed_width,
        metadata_bytes=tuple(kv_args.aux_item_lens),
    )


def _index_item_lens(kv_args: Any) -> list[int]:
    """The bytes of an index page in each of this stage's target layers; 0 where the pool holds none."""
    if INDEX_STATE not in kv_args.state_types:
        return []
    lens: list[int] = kv_args.state_item_lens[kv_args.state_types.index(INDEX_STATE)]
    return lens[: len(kv_args.kv_item_lens) - kv_args.num_draft_entries]


def _index_layers(kv_args: Any, shape: Geometry, pages: list[int]) -> tuple[int, ...]:
    """The full layers, less those of this pipeline stage whose pages the pool dropped.

    SGLang lets either peer drop pages and then sends nothing for that layer, which is right for a shared
    layer alone. Shared layers are left out: whether a pool keeps pages for them changes no answer.
    """
    whole = len(pages) == shape.num_layers
    # A decode's stage does not say where it begins.
    first = 0 if whole else getattr(kv_args, "prefill_start_layer", None)
    dropped = set() if first is None else {first + i for i, size in enumerate(pages) if size == 0}
    held = shape.full_layers if pages else ()
    return tuple(layer for layer in held if layer not in dropped)


def differences(own: Contract, peer: object, roles: tuple[str, str] = ("decode", "prefill")) -> list[str]:
    """Why a pair cannot work: each differing field with both values and the fix; empty when it can.

    peer: what the other server states, as read from JSON. roles: what to call own and peer.
    """
    here, there = roles
    if not isinstance(peer, Mapping):
        return [f"the {there} server states {_shown(peer)} for its contract: {_SAME_PACKAGE}"]
    mine = own.wire()
    found = []
    for field, fix in FIXES.items():
        if field not in peer:
            found.append(
                f"{field}: the {there} server does not state it, {here} has {_shown(mine[field])}: {fix}"
            )
        elif _shown(peer[field]) != _shown(mine[field]):
            found.append(
                f"{field}: {there} has {_shown(peer[field])}, {here} has {_shown(mine[field])}: {fix}"
            )
    found += [
        f"{field}: {there} has {_shown(peer[field])}, {here} knows no such field: {_SAME_PACKAGE}"
        for field in sorted(set(map(str, peer)) - set(FIXES))
    ]
    return found


def _shown(value: object) -> str:
    # As JSON, true and 1 differ, and a list equals the tuple that it was.
    return json.dumps(value, default=repr)


def row_difference(own: Any, page_bytes: int) -> str | None:
    """What can be checked of a decode server that states no contract: the bytes of a KV page in one layer.

    own: the prefill's KVArgs. page_bytes: the decode's. SGLang compares the bytes of index pages, but writes
    KV pages at its own stride whatever the decode's is.
    """
    mine = own.kv_item_lens[0]
    if page_bytes == mine:
        return None
    return f"kv_page_bytes: decode has {page_bytes}, prefill has {mine}: {FIXES['page_size']}; {_SAME_KV}"
