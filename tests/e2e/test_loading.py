"""A checkpoint with a fault stops the server at start, and the error names tensor and file."""

from __future__ import annotations

import re
import shutil

import pytest
import torch

from sglang_glm53.testing.server import ServerError
from sglang_glm53.tiny.checkpoint import write
from sglang_glm53.weights.checks import EXTRA_KEY
from tests.e2e.asking import prompt
from tests.e2e.checkpoints import SHARDED, geometry, spoil

NORM = "model.norm.weight"
LAST_EXPERT = "model.layers.7.mlp.experts.3.up_proj.weight"
ON_SHARED = "model.layers.7.self_attn.indexer.wk.weight"
EXTRAS = [f"model.layers.7.extra{i:02}.weight" for i in range(12)]


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """A checkpoint in two files."""
    path = tmp_path_factory.mktemp("sharded")
    write(SHARDED, path)
    return path


@pytest.fixture(scope="module")
def with_extras(sharded, tmp_path_factory):
    path = tmp_path_factory.mktemp("extras")
    spoil(sharded, path, NORM, lambda tensors: tensors | {name: torch.ones(2) for name in EXTRAS})
    return path


def without(name):
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


def with_a_row_less(tensors):
    return tensors | {LAST_EXPERT: tensors[LAST_EXPERT][1:].contiguous()}


def with_an_indexer(tensors):
    return tensors | {ON_SHARED: torch.ones(128, SHARDED.hidden, dtype=torch.bfloat16)}


# fault -> (a tensor whose file is changed, the change, what the error must name)
FAULTS = {
    "missing tensor": (LAST_EXPERT, without(LAST_EXPERT), [LAST_EXPERT, "missing"]),
    "wrong shape": (LAST_EXPERT, with_a_row_less, [LAST_EXPERT, "{file}", "[255, 256]", "[256, 256]"]),
    "indexer on a shared layer": (LAST_EXPERT, with_an_indexer, [ON_SHARED, "{file}", "shared"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_error_names_tensor_and_file(fault, serve, sharded, tmp_path):
    name, change, named = FAULTS[fault]
    file = spoil(sharded, tmp_path, name, change)
    with pytest.raises(ServerError, match="WeightLoadError") as caught:
        serve(tmp_path).__enter__()
    for text in named:
        assert text.format(file=file) in str(caught.value)


def test_a_truncated_file_is_named_with_the_tensor_it_lost(serve, sharded, tmp_path):
    shutil.copytree(sharded, tmp_path, dirs_exist_ok=True)
    last = sorted(tmp_path.glob("*.safetensors"))[-1]
    with last.open("r+b") as file:
        file.truncate(last.stat().st_size - 1000)
    with pytest.raises(ServerError, match=rf"{re.escape(last.name)} is cut short: .*model\.") as caught:
        serve(tmp_path).__enter__()
    assert "WeightLoadError" in str(caught.value)


def test_extra_tensors_are_refused_and_the_first_ten_named(serve, with_extras):
    with pytest.raises(ServerError, match=r"extra tensors .*\(12\)") as caught:
        serve(with_extras).__enter__()
    named = [name for name in EXTRAS if name in str(caught.value)]
    assert len(named) == 10
    assert "and 2 more" in str(caught.value)
    assert EXTRA_KEY in str(caught.value)


def test_extra_tensors_can_be_allowed(serve, with_extras, sharded):
    allowed = ("--model-loader-extra-config", f'{{"{EXTRA_KEY}": true}}')
    with serve(with_extras, *allowed) as server:
        found = server.generate(prompt(90))["output_ids"]
        assert "skipped extra tensors (12)" in server.log_text()
    with serve(sharded) as server:
        assert server.generate(prompt(90))["output_ids"] == found


def test_dummy_weights_need_no_tensors(serve, sharded, tmp_path):
    shutil.copytree(sharded, tmp_path, dirs_exist_ok=True)
    for file in tmp_path.glob("*.safetensors*"):
        file.unlink()
    with serve(tmp_path, "--load-format", "dummy") as server:
        assert len(server.generate(prompt(90))["output_ids"]) == 8
        (state,) = server.server_info()["internal_states"]
    assert state["glm53"]["schedule"]["full_layers"] == list(geometry(SHARDED).full_layers)
