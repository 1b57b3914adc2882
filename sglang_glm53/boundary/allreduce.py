"""Owns the norm that completes a sum over TP ranks too: FlashInfer's all-reduce with FP8 output.

Where a norm's input owes a sum, SGLang runs all-reduce, add and norm as one FlashInfer kernel, bf16 out.
FlashInfer's trtllm all-reduce has a pattern that does the same in the same order, and quantises the bf16
output by groups of 128 as well. Its scales are packed UE8M0 with strides (1, rows rounded up to 4), which
DeepGEMM takes on Blackwell and not on Hopper. Values and scales are SGLang's quantiser's, with two
exceptions: a group whose largest value is below 4.48e-8 has the scale 2^-33, and NaN is -448 in q, while y
and the residual keep it.

Source: FlashInfer 0.7.2, comm/trtllm_ar.py AllReduceFusionPattern, comm/allreduce.py allreduce_fusion (the
scales; trtllm alone has it) and data/include/flashinfer/comm/trtllm_allreduce_fusion.cuh FusedOp::operator()
(the values), allreduce_fusion_op (2, 4, 8 or 16 ranks, as for SGLang's kernel); SGLang 0.5.23,
layers/flashinfer_comm_fusion.py flashinfer_allreduce_residual_rmsnorm.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sglang.srt.layers import flashinfer_comm_fusion
from sglang.srt.layers.layer_boundary.contracts import ReadoutFusion
from sglang.srt.layers.layer_boundary.layout import SumGroup
from sglang.srt.layers.layer_boundary.output import UnreducedOutput
from sglang.srt.layers.layer_boundary.residual import add_norm

from sglang_glm53.boundary.producers import Made, Quantised, unfit
from sglang_glm53.fusion import Declined
from sglang_glm53.kernels.fp8 import FP8, GROUP, ScaleLayout, empty_scales

MAKER = "flashinfer_allreduce"
PATTERN = "kARResidualRMSNormOutPerTokenGroupFP8PackedQuant"
BACKEND = "trtllm"
SCALES = "FlashInfer's all-reduce makes packed UE8M0 scales, which the projections do not take"
NO_PATTERN = "the installed FlashInfer has no all-reduce with FP8 output by groups"
NOT_CONTIGUOUS = "the rows are not contiguous"
NO_WORKSPACE = "SGLang has no FlashInfer workspace for the sum"

# (x, residual, attention_tp) -> (y, residual), or None where SGLang's kernels must run.
Complete = Callable[[torch.Tensor, torch.Tensor, bool], tuple[torch.Tensor, torch.Tensor] | None]


def fusion(completes: SumGroup, completer: Callable[[Any], Complete]) -> ReadoutFusion:
    """What a read declares to be asked before SGLang's kernel completes that sum.

    completes: ATTN_TP, which an attention always owes, or MOE_OUTPUT, which an FFN may leave. completer:
    gives for a norm what is called with this rank's summand where SGLang's kernel would serve; when that
    returns None, SGLang goes on as if it had not been asked.
    Source: SGLang 0.5.23, layers/layer_boundary: contracts.py ReadoutFusion, prepare.py _run_read_fusions and
    fusions/allreduce.py fused_attn_input.
    """

    def run(owed: Any, residual: torch.Tensor, forward_batch: Any, norm: Any) -> Any:
        # A traced graph knows no tensor objects, and a counter in it would be a constant.
        if torch.compiler.is_compiling():
            return None
        x = owed.partial if isinstance(owed, UnreducedOutput) else owed
        # A MoE's deferred finalisation is no tensor; what SGLang's kernel does not take comes to the read.
        if not isinstance(x, torch.Tensor) or not add_norm.flashinfer_ar_fusion_applies(x.shape[0]):
            return None
        return completer(norm)(x, residual, completes is SumGroup.ATTN_TP)

    return ReadoutFusion(completes=completes, run=run, reads=True, carried=completes is SumGroup.MOE_OUTPUT)


@functools.cache
def _flashinfer() -> Any | None:
    """FlashInfer's collectives, where they have the pattern."""
    try:
        from flashinfer import comm
    except ImportError:
        return None
    return comm if hasattr(comm.AllReduceFusionPattern, PATTERN) else None


def never(layouts: Sequence[ScaleLayout], kernels: str) -> Declined | None:
    """Why this server's norms stay with SGLang's kernel; None where FlashInfer's may serve them.

    layouts: those that the projections take. kernels: GLM53_KERNELS. Ask it where SGLang's kernel is on.
    """
    if ScaleLayout.PACKED_UE8M0 not in layouts:
        return Declined(SCALES)
    if kernels != "auto":
        return Declined(f"GLM53_KERNELS={kernels} asks for other kernels")
    backend = flashinfer_comm_fusion.resolve_flashinfer_allreduce_fusion_backend()
    if backend != BACKEND:
        return Declined(
            f"FlashInfer's {backend} all-reduce has no FP8 output by groups, its {BACKEND} one has: "
            f"--flashinfer-allreduce-fusion-backend {BACKEND}"
        )
    return None if _flashinfer() else Declined(NO_PATTERN)


def note(layouts: Sequence[ScaleLayout] | None, kernels: str) -> str:
    """Who completes the sums of norms' inputs, for the status.

    layouts: those that the projections take, None where they take none. kernels: GLM53_KERNELS.
    """
    up_to = f"the norms of up to {add_norm.FUSE_ALLREDUCE_MAX_BATCH_SIZE} rows"
    why = never(layouts, kernels) if layouts else None
    if layouts and why is None:
        return f"FlashInfer's all-reduce + add + norm + FP8 kernel serves {up_to}"
    stays = f"SGLang's all-reduce + add + norm kernel keeps {up_to}"
    return f"{stays}: {why.reason}" if why else stays


def declines(
    layouts: Sequence[ScaleLayout],
    kernels: str,
    norm: Any,
    x: torch.Tensor,
    residual: torch.Tensor,
    attention_tp: bool,
) -> Declined | None:
    """Why SGLang's kernel serves this call; None where make() may run. The same on every rank of the group.

    Asks for SGLang's workspace last, as SGLang's own call does: the first time ever that is a collective, of
    the host alone, and every rank comes to it.
    """
    if why := never(layouts, kernels) or unfit(x):
        return why
    if not (x.is_contiguous() and residual.is_contiguous() and norm.weight.is_contiguous()):
        return Declined(NOT_CONTIGUOUS)
    ready = flashinfer_comm_fusion.ensure_workspace_initialized(
        max_token_num=add_norm.FUSE_ALLREDUCE_MAX_BATCH_SIZE,
        hidden_dim=x.shape[-1],
        dtype=x.dtype,
        token_num=x.shape[0],
        use_attn_tp_group=attention_tp,
    )
    return None if ready else Declined(NO_WORKSPACE)


def make(norm: Any, x: torch.Tensor, residual: torch.Tensor, attention_tp: bool) -> Made:
    """The sum of x over the ranks, added to residual, normalised and quantised; new tensors all.

    x, residual: [rows, channels] bf16, left as they are. Ask declines() first.
    """
    flashinfer = _flashinfer()
    assert flashinfer is not None
    y, added = torch.empty_like(x), torch.empty_like(residual)
    q = torch.empty(x.shape, dtype=FP8, device=x.device)
    scales = empty_scales(x.shape[0], x.shape[1], ScaleLayout.PACKED_UE8M0, x.device)
    flashinfer.allreduce_fusion(
        input=x,
        workspace=flashinfer_comm_fusion._get_workspace_manager(attention_tp).workspace,
        pattern=getattr(flashinfer.AllReduceFusionPattern, PATTERN),
        # All three as SGLang sets them. The early signal is safe: DeepGEMM waits for the grid before it.
        launch_with_pdl=True,
        trigger_completion_at_end=False,
        fp32_acc=True,
        residual_in=residual,
        residual_out=added,
        norm_out=y,
        quant_out=q,
        scale_out=scales,
        rms_gamma=norm.weight.data,
        rms_eps=norm.variance_epsilon,
        block_quant_group_size=GROUP,
    )
    return y, added, Quantised(q, scales, ScaleLayout.PACKED_UE8M0)
