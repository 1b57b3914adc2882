"""Every method and path of SGLang's platform interface that an out-of-tree platform must answer for."""

import ast
import importlib.util
from pathlib import Path

import pytest
import torch
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import DeviceMixin
from sglang.srt.platforms.interface import SRTPlatform

from sglang_glm53.cpu.platform import Glm53CpuPlatform
from sglang_glm53.cpu.speculative import ALGORITHMS

SRT = Path(importlib.util.find_spec("sglang").origin).parent / "srt"
INTERFACE = (DeviceMixin, SRTPlatform)
CPU = torch.device("cpu")
# Method -> the arguments that the reference platform answers, or why SGLang cannot ask it.
UNIMPLEMENTED = {
    "get_device_total_memory": (),
    "get_current_memory_usage": (),
    "get_device": (),
    "set_device": (CPU,),
    "get_device_name": (),
    "get_device_uuid": (),
    "get_device_capability": (),
    "get_available_memory": (),
    "get_torch_profiler_activity_str": (),
    "get_torch_profiler_activity": (),
    "get_default_attention_backend": (),
    "get_default_speculative_draft_attention_backend": "DFLASH alone asks it, which ALGORITHMS leaves out",
}
# What SGLang refuses to build for a platform that is not its own -> why no server of ours comes there.
WITHOUT_SEAM = {
    "logical-page KV sharding (--enable-kv-cache-sharding)": "refused: enable_kv_cache_sharding",
    "the unified memory pool (--enable-unified-memory)": "refused: enable_unified_memory",
    "the block-scaled (fp4 / mxfp8) KV pool": "refused: kv_cache_dtype",
    "the DeepSeek-V4 KV pool": "another model",
    "the MiniMax sparse-index KV pool": "another model",
    "the HiSparse DSA KV pool": "refused: enable_hisparse",
    "the CP layer-split DSA KV pool": "refused: enable_dsa_cache_layer_split",
    "CUDA graph runner": "no graph is captured: capabilities.graph_capture is False",
    "piecewise compilation backend": "no graph is captured: capabilities.piecewise_graph is False",
}


def _raising(owner):
    """The methods of a class whose source raises NotImplementedError."""
    tree = ast.parse(Path(importlib.util.find_spec(owner.__module__).origin).read_text())
    [body] = [node.body for node in tree.body if getattr(node, "name", None) == owner.__name__]
    return {
        method.name
        for method in body
        if isinstance(method, ast.FunctionDef)
        and any(
            isinstance(node, ast.Raise) and "NotImplementedError" in ast.unparse(node)
            for node in ast.walk(method)
        )
    }


def test_each_unimplemented_method_has_its_verdict():
    assert set(UNIMPLEMENTED) == set().union(*map(_raising, INTERFACE))


@pytest.mark.parametrize("name", UNIMPLEMENTED)
def test_the_platform_answers_what_it_can_be_asked(name):
    verdict = UNIMPLEMENTED[name]
    if isinstance(verdict, str):
        assert "DFLASH" not in ALGORITHMS
    else:
        getattr(Glm53CpuPlatform(), name)(*verdict)


def test_the_profiler_has_one_activity():
    """SGLang maps its name to the activity, besides CPU and GPU, and starts a profiler for each."""
    platform = Glm53CpuPlatform()
    assert platform.get_torch_profiler_activity() == torch.profiler.ProfilerActivity.CPU
    assert platform.get_torch_profiler_activity_str() not in ("CPU", "GPU")


def _subsystems():
    """The subsystem of every call that refuses a platform which is not SGLang's own."""
    found = set()
    for path in SRT.rglob("*.py"):
        text = path.read_text()
        if "require_out_of_tree_impl(" not in text and "reject_out_of_tree_path(" not in text:
            continue
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        found |= {
            ast.literal_eval(keyword.value)
            for call in calls
            if getattr(call.func, "id", "") in ("require_out_of_tree_impl", "reject_out_of_tree_path")
            for keyword in call.keywords
            if keyword.arg == "subsystem"
        }
    return found


def test_each_path_without_a_seam_has_its_verdict():
    assert set(WITHOUT_SEAM) == _subsystems()
    capabilities = Glm53CpuPlatform.capabilities
    assert not capabilities.graph_capture and not capabilities.piecewise_graph


@pytest.mark.parametrize("owner", [CpuDeviceMixin, Glm53CpuPlatform])
def test_a_method_left_out_would_be_found(owner, monkeypatch):
    """The verdicts are of methods that raise: without its own answer the platform has SGLang's."""
    name = "get_device_uuid" if owner is CpuDeviceMixin else "get_torch_profiler_activity"
    monkeypatch.delattr(owner, name)
    with pytest.raises(NotImplementedError):
        getattr(Glm53CpuPlatform(), name)()
