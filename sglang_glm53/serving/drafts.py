"""Owns the reasons against a draft model: GLM-5.3's own MTP layer is the only one that was proved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sglang_glm53 import geometry

MTP_ALONE = "of drafts, only GLM-5.3's own MTP layer has been proved with this package"


def architecture_reason(architecture: str) -> str:
    """Why a draft of another architecture is refused when its class is looked up."""
    return (
        f"--speculative-draft-model-path: architecture {architecture}: {MTP_ALONE}: leave the flag out for "
        "the checkpoint's own, or serve SGLang's own implementation without --model-impl"
    )


def reasons(flags: Any, hf_config: Any) -> list[str]:
    """Why the draft that resolved flags ask for cannot run, or was never proved. hf_config: the target's."""
    algorithm = flags.speculative_algorithm
    if algorithm is None:
        return []
    # SGLang resolves NEXTN to EAGLE, and the draft's path to the target's where none is given.
    if algorithm != "EAGLE":
        return [
            f"--speculative-algorithm {algorithm}: {MTP_ALONE}: use NEXTN, or serve SGLang's own "
            "implementation without --model-impl"
        ]
    target, path = geometry.Geometry.from_config(hf_config), flags.speculative_draft_model_path
    if path in (None, flags.model_path):
        problem = target.draft_problem
        return [f"--speculative-algorithm: config.json: {problem}: leave it out"] if problem else []
    return [
        f"--speculative-draft-model-path {path}: config.json: {problem}: {MTP_ALONE}: leave the flag out for "
        "the checkpoint's own"
        for problem in _folder_problems(Path(path) / "config.json", target)
    ]


def _folder_problems(file: Path, target: geometry.Geometry) -> list[str]:
    """What a draft folder's config.json says against it; nothing of a hub's model, which loading judges."""
    if not file.is_file():
        return []
    stated = json.loads(file.read_text(encoding="utf-8"))
    architecture = (stated.get("architectures") or ["none"])[0]
    if architecture not in (geometry.ARCHITECTURE, geometry.NEXTN_ARCHITECTURE):
        return [f"architecture {architecture}"]
    try:
        draft = geometry.Geometry.from_config(stated)
    except geometry.ConfigError as error:
        return [str(error)]
    if draft.draft_problem:
        return [draft.draft_problem]
    return [
        f"{field} is {getattr(draft, name)}, the target's {getattr(target, name)}"
        for name, field in (("hidden", "hidden_size"), ("vocab", "vocab_size"))
        if getattr(draft, name) != getattr(target, name)
    ]
