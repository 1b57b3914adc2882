"""The norm that completes a sum, without a GPU: FlashInfer's own Python over a kernel in torch."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch
from flashinfer.comm import allreduce as flashinfer_allreduce
from flashinfer.comm import trtllm_ar
from sglang.srt.layers import flashinfer_comm_fusion
from sglang.srt.layers.layer_boundary import prepare
from sglang.srt.layers.layer_boundary.factories import declare_attn, declare_ffn
from sglang.srt.layers.layer_boundary.layout import SumGroup
from sglang.srt.layers.layer_boundary.output import DeferredFinalize, UnreducedOutput
from sglang.srt.layers.layer_boundary.residual import add_norm
from sglang.srt.layers.layernorm import RMSNorm

from sglang_glm53.boundary import allreduce, fused_norm
from sglang_glm53.boundary.fused_norm import AttentionRead, FfnRead, Site
from sglang_glm53.boundary.producers import quantise
from sglang_glm53.fusion import log_once
from sglang_glm53.kernels.fp8 import GROUP, ScaleLayout

ROW, COLUMN, PACKED = ScaleLayout.ROW_MAJOR, ScaleLayout.COLUMN_MAJOR, ScaleLayout.PACKED_UE8M0
# Five groups: the second word of a row's scales has three exponents to spare.
HIDDEN = 5 * GROUP
WORLD, EPS = 8, 1e-5
READS = {"attention": AttentionRead(), "ffn": FfnRead()}


def rows(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(seed)).bfloat16()


def scale_of(amax: torch.Tensor) -> torch.Tensor:
    """The kernel's scales, float32 powers of two (trtllm_allreduce_fusion.cuh FusedOp)."""
    bits = (amax.float() / 448.0).clamp(min=1e-10).view(torch.int32)
    return torch.where((bits & 0x7FFFFF) != 0, (bits + 0x800000) & 0x7F800000, bits).view(torch.float32)


class Kernel:
    """FlashInfer's compiled kernel in torch, addressed as the .cuh does; every rank has the same summand."""

    def __init__(self) -> None:
        self.calls: list[dict] = []

    def trtllm_allreduce_fusion(self, **given) -> None:
        self.calls.append(given)
        shape = given["token_num"], given["hidden_dim"]
        total = (given["allreduce_in"].float() * given["world_size"]).bfloat16()
        added = (total.float() + given["residual_in"].float()).bfloat16()
        given["residual_out"].copy_(added)
        values = added.view(shape).float()
        inverse = (values.square().mean(-1, keepdim=True) + given["rms_eps"]).rsqrt()
        y = (values * inverse * given["rms_gamma"].float()).bfloat16()
        given["norm_out"].copy_(y.flatten())
        groups = y.float().unflatten(-1, (-1, given["block_quant_group_size"]))
        scales = scale_of(groups.abs().amax(-1))
        q = (groups / scales.unsqueeze(-1)).clamp(-448, 448).flatten()
        given["quant_out"].copy_(q.to(given["quant_out"].dtype))
        self._write(given["scale_out"], scales.view(torch.int32) >> 23)

    def _write(self, out: torch.Tensor, exponents: torch.Tensor) -> None:
        count, groups = exponents.shape
        memory = torch.empty(0, dtype=torch.uint8).set_(out.untyped_storage())
        aligned = -(-count // 4) * 4
        for token in range(count):
            for group in range(-(-groups // 4) * 4):
                at = (group // 4 * aligned + token) * 4 + group % 4
                memory[at] = exponents[token, group] if group < groups else 0


def workspace() -> flashinfer_allreduce.TRTLLMAllReduceFusionWorkspace:
    """FlashInfer's own type, for 2048 rows and without memory."""
    made = object.__new__(flashinfer_allreduce.TRTLLMAllReduceFusionWorkspace)
    made.world_size, made.rank, made._destroyed = WORLD, 0, True
    made.mem_handles, made.workspace_tensor = [], torch.zeros(1, dtype=torch.int64)
    made.metadata = {
        "tp_size": WORLD,
        "max_token_num": 2048,
        "hidden_dim": HIDDEN,
        "use_fp32_lamport": False,
    }
    return made


class Projection(torch.nn.Module):
    """Keeps what it is given, and takes the FP8 input of one layout."""

    def __init__(self, layout: ScaleLayout) -> None:
        super().__init__()
        self.quant_method = SimpleNamespace(prequantised_layouts=(layout,))
        self.given: list = []

    def forward(self, x):
        self.given.append(x)


class Served:
    """A norm with its site on a faked TP8 server, and SGLang's steps into its stage."""

    def __init__(self, monkeypatch, layout: ScaleLayout = PACKED) -> None:
        self.kernel, self.asked, self.stock = Kernel(), [], []
        self.norm = RMSNorm(HIDDEN, eps=EPS).bfloat16()
        self.norm.weight.data = torch.linspace(0.5, 1.5, HIDDEN).bfloat16()
        self.projection = Projection(layout)
        self.site = Site(fused_norm.FFN_INPUT, self.norm, {"gate_up": self.projection})
        self.group, self.workspaces = object(), {True: workspace(), False: workspace()}
        monkeypatch.setattr(trtllm_ar, "get_trtllm_comm_module", lambda: self.kernel)
        monkeypatch.setattr(prepare, "_sum_group", {SumGroup.MOE_OUTPUT: self.group}.get)
        monkeypatch.setattr(add_norm, "flashinfer_ar_fusion_applies", lambda count: 0 < count <= 2048)
        for name, answer in {
            "resolve_flashinfer_allreduce_fusion_backend": lambda: "trtllm",
            "ensure_workspace_initialized": self._ensure,
            "_get_workspace_manager": lambda of: SimpleNamespace(workspace=self.workspaces[of]),
        }.items():
            monkeypatch.setattr(flashinfer_comm_fusion, name, answer)

    def _ensure(self, **asked) -> bool:
        self.asked.append(asked)
        return True

    def _stock(self, owed, residual, *_):
        """SGLang's kernel, the next that is asked."""
        self.stock.append((owed, residual))
        return "SGLang's", residual

    def enter(self, stage: str, x: torch.Tensor, residual: torch.Tensor):
        """The stage's input by SGLang's steps: the FFN's always owes its sum, the attention's does here."""
        read = READS[stage]
        named = {"read": read, "update": add_norm.PLAIN_ADD}
        if stage == "ffn":
            return prepare._reduce_update_read(
                *(x, residual, None, self.norm),
                gathers_residual=False,
                fusions=(self._stock,),
                read_fusions=read.completing_fusions,
                **named,
            )
        return prepare._run_entry(
            *(UnreducedOutput(x, self.group), residual, None, self.norm),
            step=None,
            is_plain_add=True,
            carried_fusions=(self._stock,),
            carried_read_fusions=read.completing_fusions,
            **named,
        )


@pytest.fixture(autouse=True)
def forgotten():
    """What a test made of FlashInfer is forgotten after it."""
    yield
    allreduce._flashinfer.cache_clear()


@pytest.fixture
def served(choose, monkeypatch) -> Served:
    return Served(monkeypatch)


@pytest.mark.parametrize("count", [1, 3, 4, 9])
@pytest.mark.parametrize("stage", READS)
def test_one_kernel_completes_the_sum_and_gives_both_forms(stage, count, served):
    x, residual = rows(count), rows(count, 1)
    before = x.clone(), residual.clone()
    y, left = served.enter(stage, x, residual)
    assert torch.equal(left, (x.float() * WORLD).bfloat16() + residual)
    expected = RMSNorm.forward_native(served.norm, left)
    torch.testing.assert_close(y, expected, rtol=2**-7, atol=0)
    assert torch.equal(x, before[0]) and torch.equal(residual, before[1])
    served.projection(y)
    [(q, scales)] = served.projection.given
    wanted = quantise(y, PACKED)
    assert torch.equal(q.view(torch.uint8), wanted.q.view(torch.uint8))
    assert torch.equal(scales, wanted.scales) and scales.stride() == (1, -(-count // 4) * 4)
    assert (served.site.record.ran, served.site.taken) == ({"flashinfer_allreduce": 1}, {"gate_up": 1})
    assert (served.site.record.declined, served.stock) == ({}, [])


@pytest.mark.parametrize(("stage", "attention_tp"), [("attention", False), ("ffn", True)])
def test_the_kernel_is_called_as_sglang_calls_its_own(stage, attention_tp, served):
    served.enter(stage, rows(3), rows(3))
    [call] = served.kernel.calls
    named = {name: call[name] for name in ("world_size", "pattern_code", "fp32_acc", "launch_with_pdl")}
    assert named == {"world_size": 8, "pattern_code": 9, "fp32_acc": True, "launch_with_pdl": True}
    assert (call["use_oneshot"], call["trigger_completion_at_end"], call["rms_eps"]) == (True, False, EPS)
    assert call["workspace_ptrs"] is served.workspaces[attention_tp].workspace_tensor
    shape = {"max_token_num": 2048, "hidden_dim": HIDDEN, "dtype": torch.bfloat16, "token_num": 3}
    assert served.asked == [shape | {"use_attn_tp_group": attention_tp}]


def of_hopper(served, monkeypatch, choose):
    served.projection.quant_method.prequantised_layouts = (COLUMN, ROW)


def other_kernels(served, monkeypatch, choose):
    choose(kernels="torch")


def mnnvl(served, monkeypatch, choose):
    name = "resolve_flashinfer_allreduce_fusion_backend"
    monkeypatch.setattr(flashinfer_comm_fusion, name, lambda: "mnnvl")


def older_flashinfer(served, monkeypatch, choose):
    allreduce._flashinfer.cache_clear()
    monkeypatch.delattr(trtllm_ar.AllReduceFusionPattern, allreduce.PATTERN)


def no_workspace(served, monkeypatch, choose):
    monkeypatch.setattr(flashinfer_comm_fusion, "ensure_workspace_initialized", lambda **_: False)


def no_projection(served, monkeypatch, choose):
    served.site.linears = {}


def sequence_parallel(served, monkeypatch, choose):
    monkeypatch.setattr(fused_norm, "get_forward", lambda: SimpleNamespace(sp_active=True))


def nothing(served, monkeypatch, choose):
    pass


MNNVL = (
    "FlashInfer's mnnvl all-reduce has no FP8 output by groups, its trtllm one has: "
    "--flashinfer-allreduce-fusion-backend trtllm"
)


@pytest.mark.parametrize(
    ("spoil", "x", "reason"),
    [
        (of_hopper, rows(3), allreduce.SCALES),
        (other_kernels, rows(3), "GLM53_KERNELS=torch asks for other kernels"),
        (mnnvl, rows(3), MNNVL),
        (older_flashinfer, rows(3), allreduce.NO_PATTERN),
        (no_workspace, rows(3), allreduce.NO_WORKSPACE),
        (no_projection, rows(3), fused_norm.NO_PROJECTION),
        (sequence_parallel, rows(3), "a sequence-parallel projection gathers its own rows"),
        (nothing, rows(3).float(), "the activations are float32, not bfloat16"),
        (nothing, rows(6)[::2], allreduce.NOT_CONTIGUOUS),
    ],
)
@pytest.mark.parametrize("stage", READS)
def test_a_decline_leaves_everything_to_sglangs_kernel(
    stage, spoil, x, reason, served, choose, monkeypatch, caplog
):
    log_once.cache_clear()
    spoil(served, monkeypatch, choose)
    residual = rows(3, 1)
    kept = x.clone(), residual.clone()
    with caplog.at_level(logging.INFO, "sglang_glm53"):
        y, left = served.enter(stage, x, residual)
    assert (y, left) == ("SGLang's", residual)
    [(owed, given)] = served.stock
    assert (owed.partial if stage == "attention" else owed) is x and given is residual
    assert torch.equal(x, kept[0]) and torch.equal(residual, kept[1])
    assert (served.kernel.calls, served.asked) == ([], [])
    assert (served.site.record.ran, served.site.record.declined) == ({}, {reason: 1})
    assert [record.getMessage() for record in caplog.records] == [
        f"fusion ffn_input leaves a call to SGLang: {reason}"
    ]


@pytest.mark.parametrize("stage", READS)
def test_what_sglangs_kernel_does_not_take_is_not_asked_of_the_site(stage, served, monkeypatch):
    [fusion] = READS[stage].completing_fusions
    assert fusion.run(rows(2049), rows(2049), None, served.norm) is None
    assert fusion.run(rows(0), rows(0), None, served.norm) is None
    assert fusion.run(DeferredFinalize(), rows(3), None, served.norm) is None
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert fusion.run(rows(3), rows(3), None, served.norm) is None
    assert (served.site.record.ran, served.site.record.declined, served.asked) == ({}, {}, [])


def test_a_read_declares_which_sum_it_completes():
    [attention], [ffn] = (READS[stage].completing_fusions for stage in ("attention", "ffn"))
    assert (attention.completes, attention.carried) == (SumGroup.MOE_OUTPUT, True)
    assert (ffn.completes, ffn.carried) == (SumGroup.ATTN_TP, False)
    for one in (attention, ffn):
        assert (one.reads, one.scatters, one.accepts_update) == (True, False, None)


def test_the_off_switch_leaves_sglangs_reads(choose):
    choose(disable="attention_input,ffn_input")
    attention, ffn = fused_norm.with_reads(declare_attn(), declare_ffn(sparse=True, exit_rows="rows"))
    assert attention.read.completing_fusions == ffn.read.completing_fusions == ()


@pytest.mark.parametrize(
    ("spoil", "layouts", "note"),
    [
        (
            nothing,
            (PACKED,),
            "FlashInfer's all-reduce + add + norm + FP8 kernel serves the norms of up to 2048 rows",
        ),
        (
            mnnvl,
            (PACKED,),
            f"SGLang's all-reduce + add + norm kernel keeps the norms of up to 2048 rows: {MNNVL}",
        ),
        (
            nothing,
            (COLUMN, ROW),
            f"SGLang's all-reduce + add + norm kernel keeps the norms of up to 2048 rows: {allreduce.SCALES}",
        ),
        (nothing, None, "SGLang's all-reduce + add + norm kernel keeps the norms of up to 2048 rows"),
    ],
)
def test_the_note_says_who_completes_the_sums(spoil, layouts, note, served, monkeypatch, choose):
    spoil(served, monkeypatch, choose)
    assert allreduce.note(layouts, "auto") == note


def test_the_scales_are_sglangs_down_to_the_kernels_floor():
    amax = torch.arange(1, 0x7F80, dtype=torch.int16).view(torch.bfloat16)
    group = amax.unsqueeze(-1) * torch.eye(1, GROUP, dtype=torch.bfloat16)
    exponents = quantise(group, PACKED).scales[:, 0]
    ours = (exponents << 23).view(torch.float32)
    normal = amax >= 4.48e-8
    assert torch.equal(scale_of(amax)[normal], ours[normal]) and normal.sum() > 19000
    assert (scale_of(amax)[~normal] == 2.0**-33).all() and (ours[~normal] <= 2.0**-33).all()
