"""Owns one decode step on a faked GPU: real ServerArgs, rank 0 of 8, the model's first layers."""

from __future__ import annotations

import ctypes
import json
import pkgutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.distributed import bootstrap
from sglang.srt.layers.attention import dsa_backend
from sglang.srt.layers.moe import initialize_moe_config
from sglang.srt.layers.quantization.fp8 import Fp8Config, Fp8KVCacheMethod
from sglang.srt.layers.quantization.fp8_utils import initialize_fp8_gemm_config
from sglang.srt.mem_cache.kv_cache_configurator import calculate_mla_kv_cache_dim
from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
from sglang.srt.model_executor.runner_utils.capture_mode import model_capture_mode
from sglang.srt.model_loader.utils import set_default_torch_dtype
from sglang.srt.models.glm4_moe import GlmMoeDsaForCausalLM
from sglang.srt.plugins.hook_registry import HookRegistry, HookSource, HookType
from sglang.srt.runtime_context import SpawnRanks, publish
from sglang.srt.server_args import prepare_server_args
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from sglang_glm53.fusion import Declined
from sglang_glm53.model.model import Glm53ForCausalLM
from sglang_glm53.serving import hooks
from sglang_glm53.tiny import sizes
from tests import configs

ROWS = 4
CONTEXT = 8192
PAGES = 16
# Three dense full layers, three shared ones, a full one, and one that ends the stack.
LAYERS = 8
FLAGS = ["--tp-size", "8", "--kv-cache-dtype", "fp8_e4m3", "--load-format", "dummy", "--skip-tokenizer-init"]
DEPLOYMENTS = {
    "dp8_deepep": [
        *("--dp-size", "8", "--enable-dp-attention", "--moe-a2a-backend", "deepep"),
        *("--deepep-mode", "low_latency", "--moe-dense-tp-size", "1"),
    ],
    "tp8": [],
    "tp8_trtllm": ["--flashinfer-allreduce-fusion-backend", "trtllm"],
}


def _server_args(deployment: str, folder: Path) -> Any:
    config = sizes.CONSTANTS | configs.glm53(
        num_hidden_layers=LAYERS,
        indexer_types=["full" if layer in configs.FULL_LAYERS else "shared" for layer in range(LAYERS)],
        quantization_config=configs.FP8,
    )
    (folder / "config.json").write_text(json.dumps(config))
    args = prepare_server_args(["--model-path", str(folder), *FLAGS, *DEPLOYMENTS[deployment]])
    args.resolve_once()
    return args


def _join_groups(args: Any) -> None:
    """Make this process rank 0 of 8; torch's fake process group has no peers and moves nothing."""
    real_group = torch.distributed.new_group

    def init(*_: Any, world_size: int, rank: int, **__: Any) -> None:
        real_init("fake", store=FakeStore(), world_size=world_size, rank=rank)

    def new_group(ranks: Any = None, *_: Any, **__: Any) -> Any:
        return real_group(ranks, backend="fake")

    real_init = torch.distributed.init_process_group
    torch.distributed.init_process_group, torch.distributed.new_group = init, new_group
    publish(args, role="scheduler", ranks=SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0))
    initialize_moe_config()
    initialize_fp8_gemm_config()
    bootstrap._set_all_reduce_flags()
    bootstrap._init_parallel_groups(
        backend="nccl", dist_init_method="tcp://127.0.0.1:1", server_args=args, gpu_id=0
    )


def _model(implementation: type, config: ModelConfig) -> Any:
    quantisation = Fp8Config.from_config(configs.FP8)
    with set_default_torch_dtype(torch.bfloat16), torch.device("cuda"):
        return implementation(config.hf_config, quant_config=quantisation)


def _finish_loading(model: Any) -> None:
    """What follows the weights: each method's own processing, and the absorbed halves of kv_b by shape."""
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if method is not None and not isinstance(method, Fp8KVCacheMethod):
            method.process_weights_after_loading(module)
    for layer in model.model.layers:
        attention = layer.self_attn
        heads = attention.num_local_heads
        attention.w_kc = torch.empty(
            heads, attention.kv_lora_rank, attention.qk_nope_head_dim, dtype=torch.bfloat16
        ).transpose(1, 2)
        attention.w_vc = torch.empty(
            heads, attention.kv_lora_rank, attention.v_head_dim, dtype=torch.bfloat16
        )


def _backend(config: ModelConfig, args: Any) -> Any:
    hf = config.hf_config
    pool = DSATokenToKVPool(
        size=PAGES * 64,
        page_size=64,
        kv_lora_rank=hf.kv_lora_rank,
        dtype=torch.float8_e4m3fn,
        qk_rope_head_dim=hf.qk_rope_head_dim,
        layer_num=LAYERS,
        device="cuda",
        index_head_dim=hf.index_head_dim,
        enable_memory_saver=False,
        kv_cache_dim=calculate_mla_kv_cache_dim(model_config=config, kv_cache_dtype=torch.float8_e4m3fn),
    )
    runner = SimpleNamespace(
        device="cuda",
        page_size=64,
        model_config=config,
        token_to_kv_pool=pool,
        req_to_token_pool=SimpleNamespace(
            req_to_token=torch.zeros(ROWS, CONTEXT, dtype=torch.int32, device="cuda"), size=ROWS
        ),
        hisparse_coordinator=None,
        is_draft_worker=False,
        max_running_requests=ROWS,
        kv_cache_dtype=torch.float8_e4m3fn,
        server_args=args,
    )
    return dsa_backend.DeepseekSparseAttnBackend(runner)


def _batch() -> ForwardBatch:
    rows = torch.zeros(ROWS, dtype=torch.int64, device="cuda")
    return ForwardBatch(
        forward_mode=ForwardMode.DECODE,
        batch_size=ROWS,
        input_ids=rows,
        req_pool_indices=rows,
        seq_lens=rows,
        seq_lens_cpu=np.full(
            ROWS, CONTEXT
        ),  # a fake tensor has no values, and the backend asks for the longest
        seq_lens_sum=ROWS * CONTEXT,
        out_cache_loc=rows,
        positions=rows,
    )


def _planted_triton() -> None:
    @triton.jit
    def planted_kernel() -> None:
        pass

    planted_kernel[(1,)]()


def _planted_operator() -> None:
    library = torch.library.Library("planted", "DEF")
    library.define("returns(Tensor x) -> Tensor")
    torch.ops.planted.returns(torch.empty(1, device="cuda"))


# What a test may plant in front of a layer's MoE.
PLANTS: dict[str, Callable[[], object]] = {
    "aten": lambda: torch.empty(1, device="cuda").add_(1),
    "triton": _planted_triton,
    "operator": _planted_operator,
    "runtime launch": lambda: ctypes.CDLL(None).cudaLaunchKernel(),
    "driver launch": lambda: ctypes.CDLL("libcuda.so.1").cuLaunchKernel(),
}


def _change(model: Any, case: dict[str, Any]) -> None:
    """Apply what a case changes: "unfuse" [layer, fusion] and "plant" [layer, a key of PLANTS]."""
    if "unfuse" in case:
        number, fusion = case["unfuse"]
        [site] = [s for s in model.model.layers[number].boundary_sites if s.record.name == fusion]
        site.layouts = Declined("left out by the test")
    if "plant" in case:
        number, kind = case["plant"]

        def plant(*_: Any) -> None:
            PLANTS[kind]()

        model.model.layers[number].mlp.register_forward_pre_hook(plant)


def _select_as_served() -> None:
    """Put the hook of the selection in place; the others of its group belong to processes that serve."""
    [(target, hook)] = [
        row for row in hooks.hooked("model") if row[1].handler.startswith("sglang_glm53.topk.selection:")
    ]
    source = HookSource("glm53", "sglang-glm53")
    HookRegistry.register(target, pkgutil.resolve_name(hook.handler), HookType(hook.kind), source=source)
    HookRegistry.apply_hooks()


def record(recorder: Any, case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """{"entries": [...]}: the entries of one decode step of model.model, embedding and last norm included.

    case: "deployment" of DEPLOYMENTS, "implementation" stock or ours, and what _change applies. folder: where
    the model's config.json goes. Changes the process: run it in one of its own.
    """
    if case["implementation"] == "ours":
        _select_as_served()
    args = _server_args(case["deployment"], folder)
    config = ModelConfig.from_server_args(args)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        _join_groups(args)
        bootstrap.init_layer_runtime(model_config=config)
        implementation = {"stock": GlmMoeDsaForCausalLM, "ours": Glm53ForCausalLM}[case["implementation"]]
        model = _model(implementation, config)
        with torch.device("cuda"), recorder.passing():
            _finish_loading(model)
            backend = _backend(config, args)
            batch = _batch()
            backend.init_forward_metadata(batch)
            _change(model, case)
            context = ForwardContext(attn_backend=backend)
            with (
                model_capture_mode(),
                forward_context(context, forward_batch=batch),
                recorder.recording(model),
            ):
                model.model(batch.input_ids, batch.positions, batch)
    return {"entries": recorder.as_json()}
