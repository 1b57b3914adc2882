"""Owns the interception: every kernel entry is written down with its call site, and none runs.

Install it after `fake_cuda` and before the rest of SGLang is imported: what SGLang copies out of these
modules by `from x import f` is then already the recorder's.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.kernel_entries import outputs

# aten operators that start nothing on the device: views, allocations, questions.
# fmt: off
FREE = frozenset({
    "_reshape_alias", "_unsafe_view", "alias", "as_strided", "chunk", "detach", "device", "empty",
    "empty_like", "empty_strided", "expand", "is_pinned", "is_same_size", "lift_fresh", "narrow",
    "new_empty", "new_empty_strided", "permute", "reshape", "select", "set_", "slice", "split",
    "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unfold", "unsqueeze", "view",
})
# fmt: on
SITES = 2


@dataclass(frozen=True)
class Entry:
    """One kernel entry. name: "<family> <function>". module: the model's module that was being called.

    site: the innermost frames of SGLang and of this package, "file function", outermost last.
    """

    name: str
    module: str
    site: str


class UninterceptedError(RuntimeError):
    """A kernel entry was reached that has no recorder of its own: add one to outputs.py."""


class Recorder:
    """Writes entries down while it is on."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.is_on = False
        self.modules: list[str] = []

    def note(self, family: str, function: str) -> None:
        """Write one entry down."""
        if self.is_on:
            module = self.modules[-1] if self.modules else ""
            self.entries.append(Entry(f"{family} {function}", module, _site()))

    @contextmanager
    def passing(self) -> Iterator[None]:
        """While open, no kernel runs and none is written down."""
        with _Operators(self):
            yield

    @contextmanager
    def recording(self, model: torch.nn.Module) -> Iterator[None]:
        """Inside passing(): entries are written down, under the name of the innermost called module."""
        names: dict[torch.nn.Module, list[str]] = {}
        for name, module in model.named_modules(remove_duplicate=False):
            names.setdefault(module, []).append(name)

        def enter(module: torch.nn.Module, _: Any) -> None:
            outer = self.modules[-1] if self.modules else ""
            inner = [name for name in names.get(module, ()) if name.startswith(outer)]
            self.modules.append(inner[0] if inner else outer)

        def leave(*_: Any) -> None:
            self.modules.pop()

        hooks = (
            torch.nn.modules.module.register_module_forward_pre_hook(enter),
            torch.nn.modules.module.register_module_forward_hook(leave, always_call=True),
        )
        self.entries, self.modules, self.is_on = [], [], True
        try:
            yield
        finally:
            self.is_on = False
            for hook in hooks:
                hook.remove()

    def as_json(self) -> list[dict[str, str]]:
        """The entries in the order of their calls."""
        return [asdict(entry) for entry in self.entries]


def _site() -> str:
    frame, found = sys._getframe(2), []
    while frame is not None and len(found) < SITES:
        file = frame.f_code.co_filename.replace("\\", "/")
        for package in ("/sglang/", "/sglang_glm53/"):
            if package in file and "/tests/" not in file:
                own = "sglang_glm53/" if package == "/sglang_glm53/" else ""
                found.append(f"{own}{file.rpartition(package)[2]} {frame.f_code.co_qualname}")
        frame = frame.f_back
    return " < ".join(found)


class _Operators(TorchDispatchMode):
    """Notes every operator of torch's dispatcher; those of other namespaces than aten do not run."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.split("::")[1]
        if func.namespace in ("aten", "prims", "prim"):
            result = func(*args, **kwargs)
            if name not in FREE and _on_device((args, kwargs, result)):
                self.recorder.note("aten", name)
            return result
        entry = f"{func.namespace} {name}"
        if entry in outputs.BODIES:
            return outputs.BODIES[entry](*args, **kwargs)
        if not outputs.FREE.get(entry, _never)(*args, **kwargs):
            self.recorder.note(func.namespace, name)
        if not func._schema.returns:
            return None
        return output(entry, outputs.OPERATORS)(*args, **kwargs)


def _never(*_: Any, **__: Any) -> bool:
    return False


def _on_device(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.device.type == "cuda"
    if isinstance(value, dict):
        value = tuple(value.values())
    return isinstance(value, tuple | list) and any(_on_device(item) for item in value)


def output(name: str, known: dict[str, Callable[..., Any]]) -> Callable[..., Any]:
    """What makes an entry's result; raises UninterceptedError for an entry that nobody described."""
    if name not in known:
        raise UninterceptedError(
            f"{name} returns a value that tests/kernel_entries/outputs.py does not describe"
        )
    return known[name]


class _Module:
    """A compiled module whose every function is an entry; only those in outputs.JIT return something."""

    def __init__(self, recorder: Recorder, family: str, name: str) -> None:
        self._recorder, self._family, self._name = recorder, family, name

    def __getattr__(self, function: str) -> Any:
        if function.startswith("__"):
            raise AttributeError(function)
        entry = f"{self._name}::{function}"

        def call(*args: Any, **kwargs: Any) -> Any:
            if function in outputs.QUERIES:
                return outputs.QUERIES[function](*args, **kwargs)
            self._recorder.note(self._family, entry)
            return None

        return call


def _replace(recorder: Recorder, module: str, names: list[str], family: str) -> None:
    """Make the module's functions of these names entries; with outputs.FUNCTIONS they also return."""
    owner = importlib.import_module(module)

    def replacement(name: str) -> Callable[..., Any]:
        entry = f"{family} {name}"

        def call(*args: Any, **kwargs: Any) -> Any:
            recorder.note(family, name)
            make = outputs.FUNCTIONS.get(entry)
            return make(*args, **kwargs) if make else None

        return call

    for name in names:
        if not callable(getattr(owner, name)):
            raise UninterceptedError(f"{module}.{name} is no function any more")
        setattr(owner, name, replacement(name))


def _plain_operator(function: Any = None, **_: Any) -> Any:
    """Stands in for SGLang's register_custom_op: the body runs, so that what it starts is seen."""
    return function if function is not None else lambda body: body


def _intercept_triton(recorder: Recorder) -> None:
    from triton.runtime.autotuner import Autotuner, Heuristics
    from triton.runtime.jit import JITFunction

    def run(self: Any, *_: Any, **__: Any) -> None:
        recorder.note("triton", self.fn.__name__)

    def unwrap(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.fn.run(*args, **kwargs)

    JITFunction.run = run
    Autotuner.run = unwrap
    Heuristics.run = unwrap


def _intercept_flashinfer(recorder: Recorder) -> None:
    import flashinfer.comm.mnnvl
    import flashinfer.decode
    import flashinfer.fused_moe
    import flashinfer.mla
    import flashinfer.norm
    from flashinfer.jit.core import JitSpec

    JitSpec.build_and_load = lambda self, *_, **__: _Module(recorder, "flashinfer", self.name)
    # One node of eight; the question would go to the driver.
    flashinfer.comm.mnnvl.is_mnnvl_fabric_supported = lambda *_: False
    norms = [name for name in dir(flashinfer.norm) if name.endswith(("_impl", "_cute"))]
    _replace(recorder, "flashinfer.norm", [n for n in norms if callable(getattr(flashinfer.norm, n))], "norm")
    _replace(recorder, "flashinfer.decode", ["trtllm_batch_decode_with_kv_cache_mla"], "flashinfer")
    # Its module would first download compiled kernels.
    _replace(recorder, "flashinfer.fused_moe", ["trtllm_fp8_block_scale_moe"], "flashinfer")
    flashinfer.mla.trtllm_batch_decode_with_kv_cache_mla = (
        flashinfer.decode.trtllm_batch_decode_with_kv_cache_mla
    )


def _intercept_collectives(recorder: Recorder) -> None:

    sys.modules["deep_ep"] = outputs.deep_ep(recorder.note)
    _replace(recorder, "flashinfer.comm", ["allreduce_fusion"], "flashinfer")
    from sglang.srt.distributed.device_communicators import custom_all_reduce, pynccl
    from sglang.srt.layers import flashinfer_comm_fusion

    pynccl.PyNcclCommunicator = outputs.communicator(recorder.note)
    reduce = outputs.custom_all_reduce(recorder.note)
    custom_all_reduce.dispatch_custom_allreduce = lambda *_, **__: reduce

    def initialize(
        self: Any, world_size: int, rank: int, device_group: Any, cpu_group: Any, **_: Any
    ) -> None:
        self.world_size, self.rank, self.group = world_size, rank, (device_group, cpu_group)
        self.workspace, self.initialized = object(), True

    manager = flashinfer_comm_fusion.FlashInferWorkspaceManager
    manager.initialize = initialize
    manager.is_buffer_size_sufficient = lambda *_, **__: True
    flashinfer_comm_fusion._sync_allreduce_unavailable_across_tp = lambda: None


def install() -> Recorder:
    """Intercept Triton, SGLang's and FlashInfer's JIT, custom ops, DeepGEMM's and DeepEP's functions."""
    recorder = Recorder()
    fake_tensor.init_gpu_context = lambda *_, **__: None
    fake_tensor.FakeTensorMode.avoid_device_init = property(lambda _: True)
    _intercept_triton(recorder)
    import sglang.kernels.jit.utils as utils
    import sglang.kernels.jit.utils.compile as compiler
    import sglang.srt.utils.custom_op as custom_op

    def load_jit(*parts: Any, **_: Any) -> _Module:
        return _Module(recorder, "jit", "/".join(map(str, parts[:2] if parts[0] == "glm53" else parts[:1])))

    compiler.load_jit = utils.load_jit = load_jit
    custom_op.register_custom_op = _plain_operator
    _intercept_flashinfer(recorder)
    _intercept_collectives(recorder)
    return recorder
