"""Owns the files of a tiny checkpoint: a random one of the real architecture, with a tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_glm53.geometry import FULL, Geometry
from sglang_glm53.tiny import tokenizer
from sglang_glm53.tiny.sizes import SpecError, TinySpec, config, quantization_config
from sglang_glm53.weights.stored_tensors import SCALE_SUFFIX, TensorSpec, checkpoint_tensors

if TYPE_CHECKING:
    import torch

    Tensors = dict[str, torch.Tensor]

__all__ = ["SpecError", "TinySpec", "Written", "write"]

INDEX_FILE = "model.safetensors.index.json"


@dataclass(frozen=True)
class Written:
    """A checkpoint on disk. bytes: of all files together. parameters: weights; block scales are none.

    schedule: one letter a layer, F for full and S for shared. twin: the folder of the dequantised bf16 copy.
    """

    path: Path
    files: tuple[str, ...]
    bytes: int
    parameters: int
    schedule: str
    twin: Path | None


def write(
    spec: TinySpec,
    out: Path,
    *,
    twin: Path | None = None,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Written:
    """Write a checkpoint; the same spec gives the same bytes.

    twin: where the dequantised bf16 copy of an FP8 checkpoint goes, out's name with "-bf16" by default.
    force: write into folders that hold files. progress: called with the tensors done and their total.
    Raises SpecError, naming every bad flag; FileExistsError when a folder holds files.
    """
    problems = spec.problems()
    if twin is not None and not spec.fp8:
        problems.append("--twin: add --fp8; a bf16 checkpoint is its own twin")
    if twin is not None and twin.resolve() == out.resolve():
        problems.append(f"--twin {twin}: choose another folder than the checkpoint's own")
    if problems:
        raise SpecError("; ".join(problems))
    if spec.fp8 and twin is None:
        whole = out.resolve()
        twin = whole.with_name(whole.name + "-bf16")
    words = tokenizer.build(spec.vocab)
    stops = [words.token_to_id(token) for token in (tokenizer.END, tokenizer.USER, tokenizer.OBSERVATION)]
    settings = config(spec, stops)
    geometry = Geometry.from_config(settings)
    folder = _Folder(out, force)
    copy = None if twin is None else _Folder(twin, force)
    for number, (stored, dequantised) in enumerate(_shards(spec, geometry, progress), 1):
        folder.add(stored, number, spec.shards)
        if copy is not None:
            copy.add(dequantised, number, spec.shards)
    if copy is not None:
        copy.finish(settings, words)
        settings = settings | {"quantization_config": quantization_config(geometry)}
    folder.finish(settings, words)
    return Written(
        path=out,
        files=tuple(sorted(path.name for path in out.iterdir())),
        bytes=sum(path.stat().st_size for path in out.iterdir()),
        parameters=folder.parameters,
        schedule="".join("F" if kind == FULL else "S" for kind in geometry.layer_types),
        twin=twin,
    )


def _shards(
    spec: TinySpec, geometry: Geometry, progress: Callable[[int, int], None] | None
) -> Iterator[tuple[Tensors, Tensors]]:
    """Each file's tensors as they are stored, and the same tensors as the bf16 twin stores them."""
    from sglang_glm53.tiny import recall, weights

    wanted = {
        name: stored
        for name, stored in checkpoint_tensors(geometry, fp8=spec.fp8).items()
        if stored.kind != "scale" and (spec.mtp_copies or not stored.optional)
    }
    names = list(wanted)
    for shard in range(spec.shards):
        first, last = (len(names) * edge // spec.shards for edge in (shard, shard + 1))
        stored: Tensors = {}
        dequantised: Tensors = {}
        for done, name in enumerate(names[first:last], first + 1):
            shape = wanted[name].shape
            values = recall.draw(spec, name, shape) if spec.period else weights.draw(spec.seed, name, shape)
            _store(name, wanted[name], values, stored, dequantised)
            if progress is not None:
                progress(done, len(names))
        yield stored, dequantised


def _store(name: str, spec: TensorSpec, values: torch.Tensor, stored: Tensors, dequantised: Tensors) -> None:
    """Put one tensor into both files, in its storage type. values: FP32."""
    from sglang_glm53.kernels.fp8 import dequantise_blocks, quantise_blocks

    if spec.kind == "fp8":
        # The bf16 values are quantised: this is the bf16 checkpoint of the same seed in FP8.
        stored[name], stored[name + SCALE_SUFFIX] = quantise_blocks(values.bfloat16())
        dequantised[name] = dequantise_blocks(stored[name], stored[name + SCALE_SUFFIX]).bfloat16()
    else:
        stored[name] = dequantised[name] = values if spec.kind == "f32" else values.bfloat16()


class _Folder:
    """One checkpoint being written: its shards first, then the files that describe them."""

    def __init__(self, path: Path, force: bool) -> None:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()) and not force:
            raise FileExistsError(f"{path} is not empty: choose another folder or add --force")
        for stale in path.glob("model*.safetensors"):
            stale.unlink()
        self._path = path
        self._files: dict[str, str] = {}
        self._bytes = 0
        self.parameters = 0

    def add(self, tensors: Tensors, number: int, of: int) -> None:
        from safetensors.torch import save

        # The published checkpoint's naming, for a single file too: every loader takes it with its index.
        file = f"model-{number:05d}-of-{of:05d}.safetensors"
        # safetensors' save_file renames a private file, which stays mode 600 whatever the umask says.
        (self._path / file).write_bytes(save(tensors, metadata={"format": "pt"}))
        self._files |= dict.fromkeys(tensors, file)
        self._bytes += sum(tensor.nbytes for tensor in tensors.values())
        self.parameters += sum(t.numel() for name, t in tensors.items() if not name.endswith(SCALE_SUFFIX))

    def finish(self, settings: dict[str, Any], words: Any) -> None:
        self._json(INDEX_FILE, {"metadata": {"total_size": self._bytes}, "weight_map": self._files})
        self._json("config.json", settings)
        generation = {key: settings[key] for key in ("eos_token_id", "pad_token_id")}
        self._json(
            "generation_config.json", generation | {"do_sample": True, "temperature": 1.0, "top_p": 0.95}
        )
        self._json("tokenizer_config.json", tokenizer.settings(settings["max_position_embeddings"]))
        words.save(str(self._path / "tokenizer.json"))
        (self._path / "chat_template.jinja").write_text(tokenizer.CHAT_TEMPLATE, encoding="utf-8")

    def _json(self, file: str, content: dict[str, Any]) -> None:
        text = json.dumps(content, indent=2, ensure_ascii=False)
        (self._path / file).write_text(text + "\n", encoding="utf-8")
