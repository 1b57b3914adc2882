"""Owns the random checkpoints of the end-to-end tests, and the ways to spoil one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from sglang_glm53.geometry import Geometry
from sglang_glm53.tiny.checkpoint import INDEX_FILE, TinySpec
from sglang_glm53.tiny.sizes import config

# Every one has 32 index heads: with few, ReLU leaves exact ties among the index scores.
CHECKPOINTS = {
    "default": TinySpec(),
    "own_schedule": TinySpec(seed=1, layers=7, schedule="FSSFSFS", index_topk=48),
    "many_experts": TinySpec(seed=2, heads=8, experts=16, experts_per_token=4, index_topk=96),
}
# The first one's drafts are right at some positions, the second one's as far as its shared selection reaches.
WITH_MTP = {
    "mtp": TinySpec(mtp=True),
    "recall": TinySpec(mtp=True, layers=4, index_topk=32, period=48),
}
SHARDED = TinySpec(shards=2)


def geometry(spec: TinySpec) -> Geometry:
    """The dimensions that the checkpoint's config states."""
    return Geometry.from_config(config(spec, [0]))


def spoil(
    source: Path, out: Path, name: str, edit: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]
) -> str:
    """Copy a checkpoint with the tensors of the file that holds `name` changed. Returns that file's name.

    edit: {name: tensor} of the file -> what it shall hold. The index follows.
    """
    shutil.copytree(source, out, dirs_exist_ok=True)
    index = json.loads((out / INDEX_FILE).read_text())
    file = index["weight_map"][name]
    changed = edit(load_file(out / file))
    save_file(changed, out / file, metadata={"format": "pt"})
    kept = {key: where for key, where in index["weight_map"].items() if where != file}
    index["weight_map"] = kept | dict.fromkeys(changed, file)
    (out / INDEX_FILE).write_text(json.dumps(index))
    return file
