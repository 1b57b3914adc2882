"""Owns the look at a checkpoint's files before they are read: what each holds, and whether it is whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

INDEX = "model.safetensors.index.json"
# The safetensors library refuses longer headers.
MAX_HEADER_BYTES = 100_000_000
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class HeaderError(ValueError):
    """A safetensors header that cannot be read."""


@dataclass(frozen=True)
class Entry:
    """One tensor as a header states it. end: its last byte's offset + 1 in the file."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    end: int


@dataclass
class Checkpoint:
    """The safetensors files of one checkpoint.

    entries: each shard's tensors, by file name. indexed: tensor -> file name, as the index states it.
    missing: index entries whose file does not exist. broken: files that cannot be read to their end. Both
    hold sentences that name file and tensor.
    """

    entries: dict[str, list[Entry]] = field(default_factory=dict)
    indexed: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def files(self) -> dict[str, str]:
        """Tensor -> file name: where it is, else where the index says it is."""
        found = {entry.name: file for file, entries in self.entries.items() for entry in entries}
        return self.indexed | found


def local_folder(model: str, revision: str | None, download_dir: str | None) -> Path | None:
    """The folder of a model given as a path or as a Hugging Face name that is cached here; else None."""
    if Path(model).is_dir():
        return Path(model)
    try:
        return Path(
            snapshot_download(model, revision=revision, cache_dir=download_dir, local_files_only=True)
        )
    except (HFValidationError, LocalEntryNotFoundError):
        return None


def _parse(name: str, stated: Any, data_start: int) -> Entry:
    try:
        begin, end = stated["data_offsets"]
        entry = Entry(name, tuple(map(int, stated["shape"])), DTYPES[stated["dtype"]], data_start + int(end))
    except (KeyError, TypeError, ValueError) as error:
        raise HeaderError(f"the header's entry for {name} is unreadable ({error!r})") from error
    if not 0 <= begin <= end:
        raise HeaderError(f"the header's entry for {name} has data_offsets [{begin}, {end}]")
    return entry


def read_header(path: Path) -> list[Entry]:
    """The tensors of a safetensors file in file order, from its header: 8 bytes of length, then JSON.

    Raises HeaderError when the header is cut short or is not what the format asks for.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise HeaderError(f"the file ends inside its header ({size} bytes)")
        raw = file.read(length)
    try:
        header = json.loads(raw)
    except ValueError as error:
        raise HeaderError(f"the header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise HeaderError("the header is not a JSON object")
    header.pop("__metadata__", None)
    entries = [_parse(name, stated, 8 + length) for name, stated in header.items()]
    return sorted(entries, key=lambda entry: entry.end)


def _read_index(folder: Path, checkpoint: Checkpoint) -> list[str]:
    """The shards that the index lists, missing ones reported; without an index, every safetensors file."""
    path = folder / INDEX
    if not path.is_file():
        return sorted(shard.name for shard in folder.glob("*.safetensors"))
    try:
        weight_map = json.loads(path.read_bytes())["weight_map"]
        checkpoint.indexed = {str(name): str(file) for name, file in weight_map.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        checkpoint.broken.append(f"{INDEX} has no readable weight_map ({error!r})")
        return []
    first: dict[str, str] = {}
    for name, file in checkpoint.indexed.items():
        first.setdefault(file, name)
    absent = [file for file in first if not (folder / file).is_file()]
    checkpoint.missing = [f"{INDEX} puts {first[file]} in {file}, which does not exist" for file in absent]
    return sorted(set(first).difference(absent))


def read(folder: Path) -> Checkpoint:
    """Read the index and every shard's header, no tensor data; problems are collected, not raised."""
    checkpoint = Checkpoint()
    for file in _read_index(folder, checkpoint):
        try:
            entries = read_header(folder / file)
        except HeaderError as error:
            lost = next((name for name, where in checkpoint.indexed.items() if where == file), None)
            checkpoint.broken.append(f"{file}: {error}" + (f"; {lost} is lost" if lost else ""))
            continue
        checkpoint.entries[file] = entries
        checkpoint.broken.extend(_cut(folder / file, file, entries))
    return checkpoint


def _cut(path: Path, file: str, entries: list[Entry]) -> Iterator[str]:
    """A sentence that names the first tensor which the file's end cuts off, if any."""
    size = path.stat().st_size
    cut = next((entry for entry in entries if entry.end > size), None)
    if cut:
        whole = entries[-1].end
        yield f"{file} is cut short: {size} of {whole} bytes; {cut.name} is the first tensor cut off"
