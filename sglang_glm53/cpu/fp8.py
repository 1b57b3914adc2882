"""FP8 block checkpoints on the reference platform: SGLang's FP8 parameters, served by torch.

SGLang creates, shards and loads the e4m3 weights and their 128x128 scales; here each product runs on the
values that those stand for, its input quantised per token and 128 channels as on a GPU, with FP32 sums.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from sglang.srt.layers.moe.token_dispatcher.standard import StandardCombineInput, StandardDispatchOutput
from sglang.srt.layers.quantization.fp8 import Fp8Config, Fp8LinearMethod, Fp8MoEMethod

from sglang_glm53.cpu.moe import routed_experts
from sglang_glm53.kernels.fp8 import FP8, GROUP, ScaleLayout, dequantise, dequantise_blocks, quantise_into


def quantise_activation(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Per token and 128 channels: x [..., n * 128] -> values (e4m3, x's shape), scales [..., n] float32."""
    values = torch.empty(x.shape, dtype=FP8)
    scales = torch.empty(*x.shape[:-1], x.shape[-1] // GROUP)
    quantise_into(x, values, scales)
    return values, scales


def as_served(x: torch.Tensor) -> torch.Tensor:
    """What an FP8 product sees of x: quantised and back, float32."""
    return dequantise(*quantise_activation(x))


class _LinearMethod(Fp8LinearMethod):  # type: ignore[misc]
    prequantised_layouts = (ScaleLayout.ROW_MAJOR,)

    def __init__(self, quant_config: Fp8Config) -> None:
        # Upstream's constructor picks a GPU kernel; these are the fields that its other methods read.
        self.quant_config = quant_config
        self.weight_block_size = quant_config.weight_block_size
        self.is_checkpoint_fp8_serialized = quant_config.is_checkpoint_fp8_serialized
        self.block_quant = True
        self.use_mxfp8 = self.convert_mxfp8_to_block = self.block_fp8_as_mxfp8 = False
        self.w8a8_block_fp8_linear = self.w8a8_mxfp8_linear = self.mxfp8_dense_backend = None

    def process_weights_after_loading(self, layer: Any) -> None:
        layer.reference_weight = dequantise_blocks(layer.weight.data, layer.weight_scale_inv.data)

    def apply(self, layer: Any, x: Any, bias: torch.Tensor | None = None) -> torch.Tensor:
        # A pair of values and scales is a bf16 tensor that a norm has quantised (boundary/fused_norm.py).
        prequantised = isinstance(x, tuple)
        served = dequantise(*x) if prequantised else as_served(x)
        dtype = torch.bfloat16 if prequantised else x.dtype
        return F.linear(served, layer.reference_weight, bias).to(dtype)


class _MoEMethod(Fp8MoEMethod):  # type: ignore[misc]
    def create_moe_runner(self, layer: Any, moe_runner_config: Any) -> None:
        self.moe_runner_config, self.runner = moe_runner_config, None

    def get_moe_runner_backend(self, layer: Any) -> None:
        return None

    def process_weights_after_loading(self, layer: Any) -> None:
        layer.reference_w13 = dequantise_blocks(layer.w13_weight.data, layer.w13_weight_scale_inv.data)
        layer.reference_w2 = dequantise_blocks(layer.w2_weight.data, layer.w2_weight_scale_inv.data)

    def apply(self, layer: Any, dispatch_output: StandardDispatchOutput) -> StandardCombineInput:
        weights, ids, _ = dispatch_output.topk_output
        x = dispatch_output.hidden_states
        out = routed_experts(x, weights, ids, layer.reference_w13, layer.reference_w2, as_served)
        return StandardCombineInput(hidden_states=out)


# WEIGHT_LOADER_V2_SUPPORTED (layers/linear.py) and the loaders choose by these names.
_LinearMethod.__name__, _MoEMethod.__name__ = "Fp8LinearMethod", "Fp8MoEMethod"


class ReferenceFp8Config(Fp8Config):  # type: ignore[misc]
    """SGLang's FP8 config with the methods above; also for float32 activations."""

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16, torch.float32]

    def get_quant_method(self, layer: Any, prefix: str) -> Any:
        method = super().get_quant_method(layer, prefix)
        ours = {Fp8LinearMethod: _LinearMethod, Fp8MoEMethod: _MoEMethod}.get(type(method))
        return ours(self) if ours else method


def dequantise_kv_b(
    weight: torch.Tensor, scale: torch.Tensor, block: list[int], dtype: torch.dtype
) -> torch.Tensor:
    """block_quant_dequant for kv_b_proj, which MLA absorbs: in the model's dtype (CUDA's writes bf16)."""
    return dequantise_blocks(weight, scale).to(torch.get_default_dtype())
