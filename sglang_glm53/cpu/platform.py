"""The reference platform: SGLang's platform interface for GLM-5.3 on a machine without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform

# Without it SGLang sizes the pool by free memory, and a laptop would touch all of it.
DEFAULT_MAX_TOTAL_TOKENS = 32_768


class Glm53CpuPlatform(CpuDeviceMixin, SRTPlatform):  # type: ignore[misc]
    """Runs the whole serving stack in torch and gloo. For tests and demos; not for production serving."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    # PyNccl's callers are served by collectives.GlooCommunicator.
    capabilities = PlatformCapabilities(supports_pynccl=True)
    supported_quantization: ClassVar[list[str]] = ["fp8"]

    def apply_server_args_defaults(self, server_args: Any) -> None:
        from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, with_phase

        # SGLang's own CPU rule ran before this and wrote its default (arg_groups/platform_hook.py
        # handle_cpu_backends).
        if server_args.attention_backend in (None, "intel_amx", "torch_native"):
            server_args.attention_backend = "dsa"
        config = server_args.cuda_graph_config
        for phase in (Phase.DECODE, Phase.PREFILL):
            config = with_phase(config, phase, backend=Backend.DISABLED)
        server_args.cuda_graph_config = config
        # An idle scheduler polls without pause otherwise, and takes a whole core from the ranks that work.
        server_args.sleep_on_idle = True
        if server_args.max_total_tokens is None:
            server_args.max_total_tokens = DEFAULT_MAX_TOTAL_TOKENS

    def get_default_attention_backend(self) -> str:
        return "dsa"

    def get_dispatch_key_name(self) -> str:
        return "glm53_cpu"

    def get_compile_backend(self, mode: str | None = None) -> str:
        return "eager"

    def get_device(self, device_id: int = 0) -> str:
        # Argument resolution splits the name at ":", which a torch.device does not offer.
        return "cpu"

    def get_torch_profiler_activity_str(self) -> str:
        # SGLang may give this activity a profiler of its own; under "CPU", which it asks for anyway, there
        # would be two at once, and the process crashes.
        return self.get_dispatch_key_name()

    def get_torch_profiler_activity(self) -> torch.profiler.ProfilerActivity:
        return torch.profiler.ProfilerActivity.CPU

    def get_kv_pool_cls(self, *, kind: str) -> type | None:
        if kind != "dsa":
            return None
        from sglang_glm53.cpu.pools import pool_class

        return pool_class()

    def get_quantization_config(self, quantization: str) -> type | None:
        if quantization != "fp8":
            return None
        from sglang_glm53.cpu.fp8 import ReferenceFp8Config

        return ReferenceFp8Config

    def supports_speculative_algorithm(self, algorithm: str) -> bool:
        from sglang_glm53.cpu.speculative import ALGORITHMS

        return algorithm in ALGORITHMS

    def get_speculative_cache_locs_fn(self) -> Callable[..., torch.Tensor]:
        from sglang_glm53.cpu.speculative import verify_locations

        return verify_locations

    def init_backend(self) -> None:
        # Nothing may be compiled while serving: upstream's one compiled function here took 30 s, cold.
        torch.compiler.set_stance("force_eager")
        from sglang.srt.plugins import load_plugins

        from sglang_glm53.cpu.ops import register_ops

        # Entry points such as sglang.benchmark.one_batch never load the plugins themselves.
        load_plugins()
        register_ops()
