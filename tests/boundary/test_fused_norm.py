"""The boundary fusion without a server: what a norm attaches, who takes it, and when SGLang's norm runs."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.layers.layer_boundary.factories import declare_attn, declare_ffn
from sglang.srt.layers.layer_boundary.facts import ReadFacts
from sglang.srt.layers.layer_boundary.residual.add_norm import (
    NORM_QUANT_READOUT,
    NORM_READOUT,
    PLAIN_ADD,
    REPLACE_AT_EXIT,
)
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.moe.utils import DeepEPMode
from sglang.srt.model_executor.cuda_graph_config import Backend, Phase

from sglang_glm53.boundary import allreduce, fused_norm
from sglang_glm53.boundary.fused_norm import AttentionRead, FfnRead, QuantisingNorm, Site
from sglang_glm53.boundary.producers import quantise
from sglang_glm53.fusion import Fusion, log_once
from sglang_glm53.kernels.fp8 import ScaleLayout

ROW, COLUMN, PACKED = ScaleLayout.ROW_MAJOR, ScaleLayout.COLUMN_MAJOR, ScaleLayout.PACKED_UE8M0
HIDDEN = 256
ALL_REDUCE = f"SGLang's all-reduce + add + norm kernel keeps the norms of up to 2048 rows: {allreduce.SCALES}"
CUTEDSL = "SGLang's CuteDSL all-reduce fusion keeps the norms of the batches that it takes"
TRACED = "torch.compile traces prefill, with SGLang's norms"


class Projection(torch.nn.Module):
    """Keeps what it is given. layouts: of the FP8 input that it takes; none: it has no FP8 weights."""

    def __init__(self, *layouts: ScaleLayout) -> None:
        super().__init__()
        self.quant_method = SimpleNamespace(prequantised_layouts=layouts)
        self.given: list = []

    def forward(self, x):
        self.given.append(x)


def rows(count: int = 5, width: int = HIDDEN, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(count)).to(dtype)


def rms_norm(cls: type = RMSNorm, width: int = HIDDEN, dtype: torch.dtype = torch.bfloat16) -> RMSNorm:
    norm = cls(width, eps=1e-5)
    norm.weight.data = torch.linspace(0.5, 1.5, width)
    return norm.to(dtype)


@pytest.fixture
def site(choose) -> Site:
    """A norm of 256 channels with one projection, "gate_up"."""
    return Site(fused_norm.FFN_INPUT, rms_norm(), {"gate_up": Projection(ROW)})


READS = [(AttentionRead(), NORM_QUANT_READOUT), (FfnRead(), NORM_READOUT)]


@pytest.mark.parametrize(("read", "stock"), READS)
def test_a_read_declares_what_sglangs_does(read, stock):
    assert ReadFacts.of(read) == ReadFacts.of(stock)
    assert (read.bind, read.gathering_reads) == (None, ())


@pytest.mark.parametrize(("read", "stock"), READS)
@pytest.mark.parametrize("with_residual", [True, False])
def test_a_read_gives_sglangs_values_and_attaches_their_fp8_form(read, stock, with_residual, site):
    x, residual, norm = rows(), rows(6)[:5], site.norm
    if with_residual:
        expected, left = stock.update_and_read(PLAIN_ADD, x.clone(), residual.clone(), norm)
        y, found = read.update_and_read(PLAIN_ADD, x, residual, norm)
    else:
        expected, left = stock.read(x.clone(), norm)
        y, found = read.read(x, norm)
    assert torch.equal(y, expected) and torch.equal(found, left)
    projection = site.linears["gate_up"]
    projection(y)
    [(q, scales)] = projection.given
    wanted = quantise(expected, ROW)
    assert torch.equal(q.float(), wanted.q.float()) and torch.equal(scales, wanted.scales)
    assert (site.record.ran, site.taken) == ({"torch": 1}, {"gate_up": 1})


def test_a_read_can_be_saved(site, tmp_path):
    """With what it carries, but without the projections: SGLang's tensor dump saves every module's output."""
    site.linears["gate_up"].register_forward_hook(lambda *call: None)
    y, _ = FfnRead().read(rows(), site.norm)
    assert vars(y)
    torch.save(y, tmp_path / "y")


def test_the_norm_of_a_stream_that_is_written_already_is_read_through_the_site(site):
    x, residual = rows(), rows()
    y, left = FfnRead().update_and_read(REPLACE_AT_EXIT, x, residual, site.norm)
    assert torch.equal(y, site.norm(x)) and left is x
    assert site.record.ran == {"torch": 1}


def test_the_fp8_form_is_the_tensor_objects_own(site, parallel):
    y, _ = site.normalise(rows(), rows())
    for other in (y[:], y[1:], y.clone(), torch.cat([y, y]), y.view(-1, HIDDEN)):
        site.linears["gate_up"](other)
        assert site.linears["gate_up"].given.pop() is other
    assert site.taken == {}
    [fusion] = [entry for entry in fused_norm.fusions([layer_of(site)]) if entry.state == "on"]
    assert +fusion.declined == {f"gate_up: {fused_norm.NOT_TAKEN}": 1}


def layer_of(*sites: Site) -> SimpleNamespace:
    return SimpleNamespace(boundary_sites=sites)


def test_a_projection_of_another_site_takes_nothing(site):
    other = Site(fused_norm.FFN_INPUT, rms_norm(), {"gate_up": Projection(ROW)})
    y, _ = site.normalise(rows(), rows())
    other.linears["gate_up"](y)
    assert other.linears["gate_up"].given == [y] and other.taken == {}


def test_a_tensor_that_changed_since_is_an_error(site):
    y, _ = site.normalise(rows(), rows())
    y[3, 7] += 1.0
    with pytest.raises(RuntimeError, match="gate_up: its input changed after ffn_input had quantised it"):
        site.linears["gate_up"](y)


def gathered(site: Site) -> None:
    site.gathered = True


def without_projections(site: Site) -> None:
    site.linears = {}


def unquantised(site: Site) -> None:
    site.linears["gate_up"].quant_method = SimpleNamespace()


def no_common_layout(site: Site) -> None:
    site.linears["wq_b"] = Projection(PACKED)


def float32_norm(site: Site) -> None:
    site.norm.float()


@pytest.mark.parametrize(
    ("spoil", "x", "reason"),
    [
        (gathered, rows(), fused_norm.GATHERED),
        (without_projections, rows(), fused_norm.NO_PROJECTION),
        (unquantised, rows(), "gate_up: SimpleNamespace takes no FP8 input"),
        (no_common_layout, rows(), "the projections take no common scale layout"),
        (float32_norm, rows(dtype=torch.float32), "the activations are float32, not bfloat16"),
        (lambda site: None, rows(0), "no rows"),
        (lambda site: None, rows(dtype=torch.float32), "the activations are float32, not bfloat16"),
    ],
)
@pytest.mark.parametrize(("read", "stock"), READS)
def test_sglangs_norm_runs_where_the_site_declines(read, stock, spoil, x, reason, site, caplog):
    log_once.cache_clear()
    spoil(site)
    residual = x.flip(0)
    expected = stock.update_and_read(PLAIN_ADD, x.clone(), residual.clone(), site.norm)
    kept = x.clone()
    with caplog.at_level(logging.INFO, "sglang_glm53"):
        for _ in range(2):
            found = read.update_and_read(PLAIN_ADD, x, residual.clone(), site.norm)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    assert torch.equal(x, kept)
    assert not hasattr(found[0], fused_norm._CARRIER)
    assert (site.record.ran, site.record.declined) == ({}, {reason: 2})
    assert [record.getMessage() for record in caplog.records] == [
        f"fusion ffn_input leaves a call to SGLang: {reason}"
    ]


@pytest.mark.parametrize("named", [{"quant_format": "fp8"}, {"post_residual_addition": rows()}])
def test_a_call_that_asks_for_more_is_sglangs(named, site):
    read, x = AttentionRead(), rows()
    expected = NORM_QUANT_READOUT.update_and_read(PLAIN_ADD, x.clone(), rows(), site.norm, **named)
    found = read.update_and_read(PLAIN_ADD, x, rows(), site.norm, **named)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    assert (site.record.ran, site.record.declined) == ({}, {})


def test_a_sequence_parallel_projection_quantises_for_itself(site, monkeypatch):
    monkeypatch.setattr(fused_norm, "get_forward", lambda: SimpleNamespace(sp_active=True))
    assert site.normalise(rows(), rows()) is None
    assert site.record.declined == {"a sequence-parallel projection gathers its own rows": 1}


def test_a_traced_graph_is_sglangs(site):
    weight = rows(HIDDEN)
    linear = torch.nn.Linear(HIDDEN, HIDDEN, bias=False).bfloat16()
    linear.weight.data = weight
    linear.quant_method = SimpleNamespace(prequantised_layouts=(ROW,))
    traced = Site(fused_norm.FFN_INPUT, rms_norm(), {"gate_up": linear})

    def step(x, residual):
        y, residual = FfnRead().update_and_read(PLAIN_ADD, x, residual, traced.norm)
        return linear(y), residual

    compiled = torch.compile(step, backend="eager", fullgraph=True)
    out, residual = compiled(rows(), rows(6)[:5])
    y, expected = NORM_READOUT.update_and_read(PLAIN_ADD, rows(), rows(6)[:5], traced.norm)
    assert torch.equal(out, torch.nn.functional.linear(y, weight)) and torch.equal(residual, expected)
    assert (traced.record.ran, traced.taken, traced.record.declined) == ({}, {}, {})


def test_the_norm_with_a_site_of_its_own_is_sglangs_rms_norm(choose):
    x = rows(5, 2 * HIDDEN)[:, :HIDDEN]
    norm, stock = rms_norm(QuantisingNorm), rms_norm()
    assert list(norm.state_dict()) == list(stock.state_dict())
    assert torch.equal(norm(x), stock(x))
    q_b, wq_b = Projection(ROW), Projection(ROW)
    site = Site(fused_norm.Q_A, norm, {"q_b_proj": q_b, "indexer.wq_b": wq_b})
    y = norm(x)
    assert torch.equal(y, stock(x))
    q_b(y)
    wq_b(y)
    assert q_b.given[0][0] is wq_b.given[0][0]
    assert site.taken == {"q_b_proj": 1, "indexer.wq_b": 1}
    with_residual, stocks = norm(x, rows()), stock(x, rows())
    assert torch.equal(with_residual[0], stocks[0]) and torch.equal(with_residual[1], stocks[1])
    assert site.record.ran == {"torch": 1}


def decoder_layer(*, sparse: bool, full: bool, shared: bool = True) -> SimpleNamespace:
    attention = SimpleNamespace(
        q_a_layernorm=rms_norm(width=128),
        fused_qkv_a_proj_with_mqa=Projection(ROW),
        q_b_proj=Projection(ROW),
        indexer=SimpleNamespace(wq_b=Projection(ROW)) if full else None,
    )
    expert = SimpleNamespace(gate_up_proj=Projection(ROW)) if shared else None
    experts = SimpleNamespace(dispatcher=SimpleNamespace(_inners=[]))
    mlp = SimpleNamespace(shared_experts=expert, experts=experts) if sparse else expert
    return SimpleNamespace(
        self_attn=attention,
        mlp=mlp,
        is_layer_sparse=sparse,
        input_layernorm=rms_norm(),
        post_attention_layernorm=rms_norm(),
    )


@pytest.fixture
def parallel(monkeypatch):
    """This rank's parallel sizes, one each; a test sets what it needs."""
    sizes = SimpleNamespace(tp_size=1, attn_dp_size=1, attn_tp_size=1)
    monkeypatch.setattr(fused_norm, "get_parallel", lambda: sizes)
    monkeypatch.setattr(fused_norm, "is_dense_ffn_fully_dp", lambda: False)
    monkeypatch.setattr(fused_norm, "is_moe_input_scattered_across_dp_ranks", lambda: False)
    monkeypatch.setattr(fused_norm, "uses_cutedsl_ar_fusion", lambda: False)
    monkeypatch.setattr(fused_norm, "check_cuda_graph_backend", lambda phase, name: False)
    monkeypatch.setattr(fused_norm.add_norm, "flashinfer_ar_fusion_applies", lambda rows: False)
    return sizes


@pytest.mark.parametrize(
    ("kinds", "ffn", "q_a"),
    [
        ({"sparse": False, "full": True}, {"mlp.gate_up_proj"}, {"q_b_proj", "indexer.wq_b"}),
        ({"sparse": True, "full": False}, {"mlp.shared_experts.gate_up_proj"}, {"q_b_proj"}),
        ({"sparse": True, "full": False, "shared": False}, set(), {"q_b_proj"}),
    ],
)
def test_a_layers_sites_have_its_projections(kinds, ffn, q_a, choose, parallel):
    layer = decoder_layer(**kinds)
    fused_norm.bind(layer)
    sites = {site.record.name: site for site in layer.boundary_sites}
    assert {name: set(site.linears) for name, site in sites.items()} == {
        "attention_input": {"fused_qkv_a_proj_with_mqa"},
        "ffn_input": ffn,
        "q_a": q_a,
    }
    norms = [layer.input_layernorm, layer.post_attention_layernorm, layer.self_attn.q_a_layernorm]
    assert [site.norm for site in layer.boundary_sites] == norms
    assert norms[2].variance_epsilon == 1e-5 and norms[2].weight.shape == (128,)
    assert isinstance(sites["ffn_input"].layouts, tuple) == bool(ffn)


def test_switched_off_leaves_sglangs_layer(choose, parallel):
    choose(disable=",".join(fused_norm.NAMES))
    layer = decoder_layer(sparse=True, full=True)
    norm = layer.self_attn.q_a_layernorm
    fused_norm.bind(layer)
    declared = (declare_attn(), declare_ffn(sparse=False, exit_rows="rows"))
    assert fused_norm.with_reads(*declared) == declared
    assert layer.self_attn.q_a_layernorm is norm
    assert not layer.self_attn.q_b_proj._forward_pre_hooks
    assert fused_norm.fusions([layer]) == [Fusion.switched_off(name) for name in fused_norm.NAMES]


@pytest.mark.parametrize("off", fused_norm.NAMES)
def test_each_fusion_has_a_switch_of_its_own(off, choose, parallel):
    choose(disable=off)
    layer = decoder_layer(sparse=True, full=True)
    fused_norm.bind(layer)
    assert [site.record.name for site in layer.boundary_sites] == [n for n in fused_norm.NAMES if n != off]
    attention, ffn = fused_norm.with_reads(declare_attn(), declare_ffn(sparse=False, exit_rows="rows"))
    assert isinstance(attention.read, AttentionRead) == (off != fused_norm.ATTENTION_INPUT)
    assert isinstance(ffn.read, FfnRead) == (off != fused_norm.FFN_INPUT)
    assert isinstance(layer.self_attn.q_a_layernorm, QuantisingNorm) == (off != fused_norm.Q_A)
    assert {fusion.name: fusion.state for fusion in fused_norm.fusions([layer])}[off] == "off"


def test_switched_on_declares_the_reads_alone(choose):
    attention, ffn = declare_attn(), declare_ffn(sparse=True, exit_rows="rows")
    ours = fused_norm.with_reads(attention, ffn)
    assert (ours[0].read, ours[1].read) == (AttentionRead(), FfnRead())
    assert (ours[0].kind, ours[1].sparse, ours[1].exit_rows) == (attention.kind, True, "rows")


@pytest.mark.parametrize(
    ("dp", "tp", "own_rows", "gathered_after"),
    [(1, 1, False, False), (2, 1, False, True), (2, 1, True, False), (2, 2, False, False)],
)
@pytest.mark.parametrize("sparse", [True, False])
def test_rows_are_gathered_after_the_norm(sparse, dp, tp, own_rows, gathered_after, parallel, monkeypatch):
    parallel.attn_dp_size, parallel.attn_tp_size = dp, tp
    own = "is_moe_input_scattered_across_dp_ranks" if sparse else "is_dense_ffn_fully_dp"
    monkeypatch.setattr(fused_norm, own, lambda: own_rows)
    assert fused_norm._gathered_after_norm(sparse) == gathered_after


def test_the_status_counts_over_layers(site, parallel):
    declined = Site(fused_norm.FFN_INPUT, rms_norm(), {"gate_up": Projection(PACKED), "x": Projection(ROW)})
    for one in (site, site, declined):
        y, _ = one.normalise(rows(), rows()) or (None, None)
        if y is not None:
            site.linears["gate_up"](y)
    q_a = Site(fused_norm.Q_A, rms_norm(QuantisingNorm), {"q_b_proj": Projection(ROW)})
    found = {one.name: one for one in fused_norm.fusions([layer_of(site, q_a), layer_of(declined)])}
    reason = "the projections take no common scale layout"
    assert found["ffn_input"].describe() == {
        "state": "on",
        "reason": f"{reason} (1 of 2 layers)",
        "note": None,
        "layers": 1,
        "ran": {"torch": 2},
        "declined": {reason: 1},
        "taken": {"gate_up": 2},
    }
    assert found["q_a"].state == "on"


@pytest.mark.parametrize(
    ("tp", "owns", "cutedsl", "traced", "boundary_notes", "q_a_notes"),
    [
        (1, True, False, False, [], []),
        (2, False, False, False, [], []),
        (2, True, False, False, [ALL_REDUCE], []),
        (2, True, True, False, [CUTEDSL], []),
        (2, True, False, True, [ALL_REDUCE, TRACED], [TRACED]),
    ],
)
def test_the_notes_name_who_keeps_a_norm(
    tp, owns, cutedsl, traced, boundary_notes, q_a_notes, parallel, choose, monkeypatch
):
    parallel.tp_size = tp
    sites = [Site(fused_norm.FFN_INPUT, rms_norm(), named) for named in ({}, {"gate_up": Projection(ROW)})]
    monkeypatch.setattr(fused_norm.add_norm, "flashinfer_ar_fusion_applies", lambda rows: owns and rows == 1)
    monkeypatch.setattr(fused_norm, "uses_cutedsl_ar_fusion", lambda: cutedsl)
    asked = (Phase.PREFILL, Backend.TC_PIECEWISE)
    monkeypatch.setattr(fused_norm, "check_cuda_graph_backend", lambda *args: traced and args == asked)
    for fusion in (fused_norm.FFN_INPUT, fused_norm.ATTENTION_INPUT):
        assert fused_norm._notes(fusion, sites) == boundary_notes
    assert fused_norm._notes(fused_norm.Q_A, sites) == q_a_notes


@pytest.mark.parametrize(
    ("mode", "extend", "layout"),
    [
        (DeepEPMode.NORMAL, False, ROW),
        (DeepEPMode.AUTO, True, ROW),
        (DeepEPMode.AUTO, False, COLUMN),
        (DeepEPMode.LOW_LATENCY, True, COLUMN),
    ],
)
def test_the_normal_dispatch_chooses_the_layout(mode, extend, layout, choose, monkeypatch):
    monkeypatch.setattr(fused_norm, "get_deepep_mode", lambda: mode)
    monkeypatch.setattr(fused_norm, "get_is_extend_in_batch", lambda: extend)
    dispatcher = SimpleNamespace(dispatch_a=None)
    site = Site(
        fused_norm.FFN_INPUT, rms_norm(), {"gate_up": Projection(COLUMN, ROW)}, dispatchers=[dispatcher]
    )
    y, _ = site.normalise(rows(), rows())
    assert getattr(y, fused_norm._CARRIER)[1].layout is layout
