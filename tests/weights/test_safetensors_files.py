"""Broken checkpoint files are named, with the tensor that they lose, from their headers alone."""

import json
import struct

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from sglang_glm53.weights import safetensors_files

TENSORS = {
    "b": torch.zeros(3, 4, dtype=torch.bfloat16),
    "a": torch.ones(5, dtype=torch.float32),
    "q": torch.zeros(16, dtype=torch.float8_e4m3fn),
}


@pytest.fixture
def shard(tmp_path):
    path = tmp_path / "model-1.safetensors"
    save_file(TENSORS, path, metadata={"format": "pt"})
    return path


def write_header(path, header, body=b""):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + body)


def test_a_header_gives_what_safetensors_gives(shard):
    entries = {entry.name: entry for entry in safetensors_files.read_header(shard)}
    with safe_open(shard, framework="pt") as file:
        assert set(entries) == set(file.keys())
        for name in file.keys():  # noqa: SIM118 - safe_open has no iterator
            tensor = file.get_tensor(name)
            assert (entries[name].shape, entries[name].dtype) == (tuple(tensor.shape), tensor.dtype)
    assert max(entry.end for entry in entries.values()) == shard.stat().st_size


@pytest.mark.parametrize("dtype", safetensors_files.DTYPES.values(), ids=safetensors_files.DTYPES)
def test_every_dtype_is_the_one_that_safetensors_means(tmp_path, dtype):
    save_file({"t": torch.zeros(2, dtype=dtype)}, tmp_path / "t.safetensors")
    assert safetensors_files.read_header(tmp_path / "t.safetensors")[0].dtype == dtype


def test_a_cut_file_names_the_first_lost_tensor(shard):
    entries = safetensors_files.read_header(shard)
    whole = shard.read_bytes()
    for kept, entry in enumerate(entries):
        size = entry.end - 1
        shard.write_bytes(whole[:size])
        with pytest.raises(SafetensorError):
            safe_open(shard, framework="pt")
        assert safetensors_files.read(shard.parent).broken == [
            f"model-1.safetensors is cut short: {size} of {len(whole)} bytes; "
            f"{entries[kept].name} is the first tensor cut off"
        ]
    shard.write_bytes(whole)
    assert safetensors_files.read(shard.parent).broken == []


@pytest.mark.parametrize("size", [0, 7, 8, 40])
def test_a_cut_header_names_file_and_a_tensor_from_the_index(shard, size):
    shard.write_bytes(shard.read_bytes()[:size])
    fault = f"model-1.safetensors: the file ends inside its header ({size} bytes)"
    assert safetensors_files.read(shard.parent).broken == [fault]
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-1.safetensors"}}
    (shard.parent / safetensors_files.INDEX).write_text(json.dumps(index))
    assert safetensors_files.read(shard.parent).broken == [fault + "; a is lost"]


@pytest.mark.parametrize(
    ("header", "fault"),
    [
        (b"{nonsense", "the header is not JSON"),
        (b"\xff\xfe\xfa", "the header is not JSON"),
        ([1, 2], "the header is not a JSON object"),
        ({"x": {"dtype": "F32", "shape": [1]}}, "the header's entry for x is unreadable (KeyError"),
        ({"x": {"dtype": "F7", "shape": [1], "data_offsets": [0, 4]}}, "entry for x is unreadable"),
        ({"x": {"dtype": "F32", "shape": "?", "data_offsets": [0, 4]}}, "entry for x is unreadable"),
        ({"x": {"dtype": "F32", "shape": [1], "data_offsets": [4]}}, "entry for x is unreadable"),
        ({"x": 3}, "entry for x is unreadable"),
        (
            {"x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}},
            "the header's entry for x has data_offsets [4, 0]",
        ),
    ],
)
def test_an_unreadable_header_is_named(tmp_path, header, fault):
    write_header(tmp_path / "bad.safetensors", header)
    (broken,) = safetensors_files.read(tmp_path).broken
    assert broken.startswith("bad.safetensors: ")
    assert fault in broken


def test_an_impossible_header_length_is_not_read(tmp_path):
    (tmp_path / "bad.safetensors").write_bytes(struct.pack("<Q", 1 << 60) + b"{}")
    assert safetensors_files.read(tmp_path).broken == [
        "bad.safetensors: the file ends inside its header (10 bytes)"
    ]


def test_the_index_chooses_the_files_and_names_missing_ones(shard):
    save_file({"x": torch.zeros(1)}, shard.parent / "consolidated.safetensors")
    weight_map = {"b": "model-1.safetensors", "c": "model-2.safetensors", "d": "model-2.safetensors"}
    (shard.parent / safetensors_files.INDEX).write_text(json.dumps({"weight_map": weight_map}))
    found = safetensors_files.read(shard.parent)
    assert list(found.entries) == ["model-1.safetensors"]
    assert found.missing == [
        "model.safetensors.index.json puts c in model-2.safetensors, which does not exist"
    ]
    assert found.files() == {
        "a": "model-1.safetensors",
        "b": "model-1.safetensors",
        "q": "model-1.safetensors",
        "c": "model-2.safetensors",
        "d": "model-2.safetensors",
    }


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": 1}'])
def test_an_unreadable_index_is_named(shard, text):
    (shard.parent / safetensors_files.INDEX).write_text(text)
    (broken,) = safetensors_files.read(shard.parent).broken
    assert broken.startswith("model.safetensors.index.json has no readable weight_map (")


def test_a_folder_or_a_cached_name_is_local(tmp_path):
    assert safetensors_files.local_folder(str(tmp_path), None, None) == tmp_path
    snapshot = tmp_path / "models--org--glm" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    refs = tmp_path / "models--org--glm" / "refs"
    refs.mkdir()
    (refs / "main").write_text("a" * 40)
    (refs / "v2").write_text("b" * 40)
    assert safetensors_files.local_folder("org/glm", None, str(tmp_path)) == snapshot
    assert safetensors_files.local_folder("org/glm", "v2", str(tmp_path)) is None
    assert safetensors_files.local_folder("org/other", None, str(tmp_path)) is None
    assert safetensors_files.local_folder("s3://bucket/glm", None, str(tmp_path)) is None
    assert safetensors_files.local_folder("/no/such/folder", None, str(tmp_path)) is None
