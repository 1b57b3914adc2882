"""Registers the reference implementations in SGLang's own registries."""

from __future__ import annotations


def register_ops() -> None:
    """Register this platform's attention backend, indexer, routed experts and collectives."""
    from sglang.kernels.fused_op import BaseFusedOp
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
    from sglang.srt.layers.attention.dsa.dsa_indexer import Indexer
    from sglang.srt.layers.quantization.unquant import UnquantizedFusedMoEMethod
    from sglang.srt.platforms import current_platform

    from sglang_glm53.cpu.attention import ReferenceBackend
    from sglang_glm53.cpu.collectives import register_cpu_kernels
    from sglang_glm53.cpu.compat import set_module_flags
    from sglang_glm53.cpu.indexer import indexer_forward
    from sglang_glm53.cpu.moe import unquantised_experts
    from sglang_glm53.cpu.speculative import set_sampling
    from sglang_glm53.model.indexer import Glm53Indexer

    ATTENTION_BACKENDS["dsa"] = ReferenceBackend
    key = current_platform.get_dispatch_key_name()
    for indexer in (Indexer, Glm53Indexer):
        BaseFusedOp.register_oot_forward(indexer, indexer_forward, key)
    BaseFusedOp.register_oot_forward(UnquantizedFusedMoEMethod, unquantised_experts, key)
    register_cpu_kernels()
    set_module_flags()
    set_sampling()
