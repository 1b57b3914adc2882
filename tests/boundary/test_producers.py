"""Which linear layers take FP8 input, which kernel makes it, and FlashInfer's and DeepEP's part in it."""

from __future__ import annotations

import functools
import inspect
from types import SimpleNamespace

import pytest
import torch
from flashinfer.norm import fused_add_rmsnorm_fp8_block_quant
from sglang.srt.layers import deep_gemm_wrapper
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.moe.token_dispatcher import deepep
from sglang.srt.layers.quantization import fp8_utils
from sglang.srt.layers.quantization.fp8 import Fp8LinearMethod

from sglang_glm53.boundary import fused_norm, producers
from sglang_glm53.boundary.fused_norm import Site
from sglang_glm53.boundary.producers import choose_maker, dispatch_layout, input_layouts, quantise
from sglang_glm53.cpu.fp8 import ReferenceFp8Config
from sglang_glm53.fusion import Declined
from sglang_glm53.kernels.fp8 import ScaleLayout

ROW, COLUMN, PACKED = ScaleLayout.ROW_MAJOR, ScaleLayout.COLUMN_MAJOR, ScaleLayout.PACKED_UE8M0
DEEPGEMM = fp8_utils.deepgemm_w8a8_block_fp8_linear_with_fallback
HIDDEN = 256


def rows(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(seed)).bfloat16()


def linear(product: object, shape: tuple[int, int] = (2624, 6144), **fields: object) -> SimpleNamespace:
    """A layer with SGLang's FP8 linear method, as its constructor leaves it on a GPU."""
    method = object.__new__(Fp8LinearMethod)
    known = {"use_marlin": False, "use_mxfp8": False, "block_fp8_as_mxfp8": False}
    for name, value in (known | {"weight_block_size": [128, 128]} | fields).items():
        setattr(method, name, value)
    method.w8a8_block_fp8_linear = product
    return SimpleNamespace(quant_method=method, weight=torch.empty(shape, device="meta"))


@pytest.mark.parametrize(
    ("packed", "layer", "expected"),
    [
        (False, linear(DEEPGEMM), (COLUMN, ROW)),
        (True, linear(DEEPGEMM), (PACKED,)),
        (False, linear(fp8_utils.triton_w8a8_block_fp8_linear), (ROW,)),
        (False, linear(DEEPGEMM, (2592, 6144)), "DeepGEMM leaves weights of 2592 x 6144 to Triton"),
        (
            False,
            linear(functools.partial(DEEPGEMM, act_scale_ue8m0=True)),
            "the FP8 backend deepgemm_w8a8_block_fp8_linear_with_fallback as configured takes no FP8 input",
        ),
        *(
            (False, linear(product), f"the FP8 backend {product.__name__} as configured takes no FP8 input")
            for product in (
                fp8_utils.flashinfer_gemm_w8a8_block_fp8_linear_with_fallback,
                fp8_utils.flashinfer_deepgemm_w8a8_block_fp8_linear_with_fallback,
                fp8_utils.cutlass_w8a8_block_fp8_linear_with_fallback,
            )
        ),
        *(
            (False, linear(DEEPGEMM, **{field: True}), "the weights are not served as FP8 blocks")
            for field in ("use_marlin", "use_mxfp8", "block_fp8_as_mxfp8")
        ),
        (False, linear(DEEPGEMM, weight_block_size=[32, 32]), "weight blocks of [32, 32]"),
        (False, linear(DEEPGEMM, weight_block_size=None), "weight blocks of None"),
        (False, SimpleNamespace(), "NoneType takes no FP8 input"),
    ],
)
def test_what_a_linear_layer_takes(packed, layer, expected, monkeypatch):
    monkeypatch.setattr(deep_gemm_wrapper, "DEEPGEMM_SCALE_UE8M0", packed)
    found = input_layouts(layer)
    assert (found.reason if isinstance(found, Declined) else found) == expected


def test_two_backends_refuse_fp8_input_by_an_assertion():
    """The reason for the list above; when this fails, SGLang may take it there too."""
    for product in (
        fp8_utils.flashinfer_gemm_w8a8_block_fp8_linear_with_fallback,
        fp8_utils.flashinfer_deepgemm_w8a8_block_fp8_linear_with_fallback,
    ):
        with pytest.raises(AssertionError):
            product(None, None, [128, 128], None, input_scale=torch.ones(1))


def test_the_reference_platform_serves_a_pair_as_it_serves_the_tensor():
    config = ReferenceFp8Config(is_checkpoint_fp8_serialized=True, weight_block_size=[128, 128])
    from sglang.srt.layers.linear import ReplicatedLinear

    layer = ReplicatedLinear(HIDDEN, 200, bias=False, quant_config=config, params_dtype=torch.bfloat16)
    layer.weight.data = rows(200, 1).to(torch.float8_e4m3fn)
    layer.weight_scale_inv.data.fill_(0.25)
    layer.quant_method.process_weights_after_loading(layer)
    assert input_layouts(layer) == (ROW,)
    x = rows(7)
    quantised = quantise(x, ROW)
    from_pair, from_tensor = layer((quantised.q, quantised.scales))[0], layer(x)[0]
    assert from_pair.dtype == torch.bfloat16
    assert torch.equal(from_pair, from_tensor)
    other = quantise(rows(7, 2), ROW)
    assert not torch.equal(layer((other.q, other.scales))[0], from_tensor)


def on_gpu(**changes: object) -> SimpleNamespace:
    """As much of a CUDA tensor as the choice looks at."""
    fields = {"dtype": torch.bfloat16, "shape": (5, HIDDEN), "is_cuda": True, "is_contiguous": lambda: True}
    return SimpleNamespace(**(fields | changes))


NORM = SimpleNamespace(weight=None)


@pytest.mark.parametrize(
    ("kernels", "x", "residual", "layout", "expected"),
    [
        ("auto", rows(5), None, ROW, "torch"),
        ("torch", on_gpu(), on_gpu(), COLUMN, "torch"),
        ("emulated", rows(5), None, ROW, "add_rmsnorm_quant"),
        ("auto", on_gpu(), on_gpu(), COLUMN, "flashinfer"),
        ("cuda", on_gpu(), on_gpu(), COLUMN, "add_rmsnorm_quant"),
        ("auto", on_gpu(), None, COLUMN, "add_rmsnorm_quant"),
        ("auto", on_gpu(), on_gpu(), PACKED, "add_rmsnorm_quant"),
        ("auto", on_gpu(), on_gpu(), ROW, "add_rmsnorm_quant"),
        ("auto", on_gpu(shape=(5, 128)), on_gpu(shape=(5, 128)), COLUMN, "add_rmsnorm_quant"),
        ("auto", on_gpu(shape=(5, 9216)), on_gpu(), COLUMN, "add_rmsnorm_quant"),
        ("auto", on_gpu(is_contiguous=lambda: False), on_gpu(), COLUMN, "add_rmsnorm_quant"),
    ],
)
def test_which_kernel_makes_it(kernels, x, residual, layout, expected, monkeypatch):
    monkeypatch.setattr(producers, "get_platform", lambda: SimpleNamespace(is_sm90=True))
    monkeypatch.setattr(producers.add_rmsnorm_quant, "declines", lambda *_: None)
    assert choose_maker(kernels, NORM, x, residual, [layout]) == (expected, layout)


def test_what_no_kernel_takes_is_left_to_sglang(monkeypatch):
    monkeypatch.setattr(producers, "get_platform", lambda: SimpleNamespace(is_sm90=False))
    monkeypatch.setattr(producers.add_rmsnorm_quant, "declines", lambda *_: Declined("an older GPU"))
    assert choose_maker("auto", NORM, on_gpu(), on_gpu(), [COLUMN]) == Declined("an older GPU")
    assert choose_maker("auto", NORM, on_gpu(shape=(5, 200)), None, [COLUMN]) == Declined(
        "200 channels are no multiple of 128"
    )
    monkeypatch.setattr(producers, "is_batch_invariant_mode_enabled", lambda: True)
    reason = "batch-invariant inference asks for SGLang's own norm"
    assert choose_maker("auto", NORM, on_gpu(), on_gpu(), [COLUMN]) == Declined(reason)


def test_flashinfers_function_is_the_expected_one():
    parameters = list(inspect.signature(fused_add_rmsnorm_fp8_block_quant).parameters)
    assert parameters[:7] == ["out", "block_scale", "normed_out", "input", "residual", "weight", "eps"]
    assert producers._flashinfer_kernel() is fused_add_rmsnorm_fp8_block_quant


@pytest.mark.parametrize("count", [1, 4, 5])
def test_flashinfers_buffers_become_sglangs_layout(count, monkeypatch):
    """With a stand-in that follows the documented contract; the kernel itself needs a GPU."""
    norm = RMSNorm(HIDDEN, eps=1e-5).bfloat16()

    def kernel(out, block_scale, normed_out, input, residual, weight, eps):
        assert block_scale.shape == (HIDDEN // 128, -(-count // 4) * 4) and block_scale.is_contiguous()
        assert (weight.data_ptr(), eps) == (norm.weight.data_ptr(), 1e-5)
        normed, total = RMSNorm.forward(norm, input, residual)
        made = quantise(normed, COLUMN)
        residual.copy_(total)
        normed_out.copy_(normed)
        out.copy_(made.q)
        block_scale.t()[:count].copy_(made.scales)

    monkeypatch.setattr(producers, "_flashinfer_kernel", lambda: kernel)
    x, residual = rows(count), rows(count, 1)
    expected = producers.make_in_torch(norm, x.clone(), residual.clone(), COLUMN)
    kept = x.clone()
    y, left, made = producers.make_by_flashinfer(norm, x, residual, COLUMN)
    assert left is residual and torch.equal(residual, expected[1]) and torch.equal(x, kept)
    assert torch.equal(y, expected[0])
    assert torch.equal(made.q.float(), expected[2].q.float())
    assert torch.equal(made.scales, expected[2].scales)
    assert made.scales.stride() == expected[2].scales.stride() == (1, -(-count // 4) * 4)


@pytest.mark.parametrize("with_residual", [True, False])
def test_the_own_op_gives_the_torch_makers_values(with_residual):
    norm = RMSNorm(HIDDEN, eps=1e-5).bfloat16()
    x, residual = rows(5), rows(5, 1) if with_residual else None
    expected = producers.make_in_torch(norm, rows(5), rows(5, 1) if with_residual else None, ROW)
    y, left, made = producers.make_by_own_kernel(norm, x, residual, ROW)
    assert left is (x if residual is None else residual) and torch.equal(left, expected[1])
    assert torch.equal(made.q.float(), quantise(y, ROW).q.float())
    # Another order of sums may move y by one unit in the last place of bf16.
    assert (y.float() - expected[0].float()).abs().max() <= expected[0].float().abs().max() * 2**-7


@pytest.fixture
def normal_dispatch(monkeypatch):
    """SGLang's own dispatcher for prefill, with stand-ins for its quantiser and DeepEP's event."""
    quantised: list[torch.Tensor] = []

    def quantiser(x, group, *, column_major_scales, scale_tma_aligned, scale_ue8m0):
        assert group == 128 and column_major_scales == scale_tma_aligned == scale_ue8m0
        quantised.append(x)
        made = quantise(x, PACKED if scale_ue8m0 else ROW)
        return made.q, made.scales

    monkeypatch.setattr(deepep, "sglang_per_token_group_quant_fp8", quantiser, raising=False)
    monkeypatch.setattr(deepep, "Buffer", SimpleNamespace(capture=lambda: "event"), raising=False)
    monkeypatch.setattr(deep_gemm_wrapper, "ENABLE_JIT_DEEPGEMM", True)
    dispatcher = object.__new__(deepep._DeepEPDispatcherImplNormal)
    dispatcher.async_finish, dispatcher.use_fp8 = True, True
    return SimpleNamespace(dispatcher=dispatcher, quantised=quantised)


def carrying(site: Site, layout: ScaleLayout) -> torch.Tensor:
    """A tensor with the FP8 form that this site's norm would attach."""
    y = rows(5)
    setattr(y, fused_norm._CARRIER, (site, quantise(y, layout)))
    return y


TOPK = SimpleNamespace(topk_ids=torch.arange(10, dtype=torch.int32).view(5, 2), topk_weights=torch.ones(5, 2))


@pytest.mark.parametrize("packed", [False, True], ids=["Hopper", "Blackwell"])
@pytest.mark.parametrize("async_finish", [False, True])
def test_the_normal_dispatch_returns_what_sglangs_does(packed, async_finish, normal_dispatch, monkeypatch):
    monkeypatch.setattr(deep_gemm_wrapper, "DEEPGEMM_SCALE_UE8M0", packed)
    dispatcher = normal_dispatch.dispatcher
    dispatcher.async_finish = async_finish
    expected = dispatcher.dispatch_a(hidden_states=rows(5), topk_output=TOPK)
    site = Site(fused_norm.FFN_INPUT, RMSNorm(HIDDEN), {}, dispatchers=[dispatcher])
    assert dispatch_layout() is (PACKED if packed else ROW)
    found = dispatcher.dispatch_a(hidden_states=carrying(site, dispatch_layout()), topk_output=TOPK)
    assert len(normal_dispatch.quantised) == 1
    for ours, theirs in zip((*found[0], found[1]), (*expected[0], expected[1]), strict=True):
        assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
        assert torch.equal(ours.float(), theirs.float())
    assert found[1].dtype == torch.int64
    assert found[2] is expected[2] and found[3] == expected[3] == ("event" if async_finish else None)
    assert (site.taken, site.record.declined) == ({fused_norm.DISPATCH: 1}, {})


@pytest.mark.parametrize(
    ("carried", "use_fp8", "fuses", "counted"),
    [
        (COLUMN, True, True, 1),
        (PACKED, True, True, 1),
        (None, True, True, 1),
        (None, True, False, 0),
        (ROW, False, True, 0),
    ],
)
def test_another_layout_is_quantised_by_the_dispatch(carried, use_fp8, fuses, counted, normal_dispatch):
    dispatcher = normal_dispatch.dispatcher
    dispatcher.use_fp8 = use_fp8
    site = Site(fused_norm.FFN_INPUT, RMSNorm(HIDDEN), {}, dispatchers=[dispatcher])
    site.layouts = (COLUMN, ROW) if fuses else "a reason"
    y = rows(5) if carried is None else carrying(site, carried)
    found = dispatcher.dispatch_a(hidden_states=y, topk_output=TOPK)
    if use_fp8:
        assert [one is y for one in normal_dispatch.quantised] == [True]
        assert torch.equal(found[0][1], quantise(y, ROW).scales)
    else:
        assert found[0] is y
    assert site.taken == {}
    assert site.record.declined.get(f"{fused_norm.DISPATCH}: {fused_norm.NOT_TAKEN}", 0) == counted
