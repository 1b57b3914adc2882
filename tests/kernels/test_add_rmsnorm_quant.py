"""Owns the checks of add_rmsnorm_quant: the emulated CUDA kernel and the torch fallback, value by value."""

from dataclasses import replace

import pytest
import torch

from sglang_glm53.fusion import Declined
from sglang_glm53.geometry import HIDDEN
from sglang_glm53.kernels import backend
from sglang_glm53.kernels.add_rmsnorm_quant import CARD, add_rmsnorm_quant, declines
from sglang_glm53.kernels.fp8 import ScaleLayout
from sglang_glm53.testing.reference import add_rmsnorm_quant as reference
from tests.kernels.add_rmsnorm_quant_cases import EPS, Case, check_y
from tests.kernels.calls import as_bytes
from tests.kernels.conftest import COMPILERS
from tests.kernels.fp8_checks import LAYOUTS, check_quantised

STEM = "add_rmsnorm_quant"
SIZES = [512, 2048, HIDDEN, 7168]
# 128: less than a warp's share; 1152: a last warp with one group; 8192: the largest.
ODD_SIZES = [128, 1152, 8192]


def same_bytes(a, b):
    if a is None or b is None:
        return a is b
    return torch.equal(as_bytes(a), as_bytes(b))


def wanted_norm(x, residual, weight):
    """The sum and its norm in FP32, on the CPU."""
    return reference.norm(x.cpu(), None if residual is None else residual.cpu(), weight.cpu(), EPS)


def run(case):
    """Run a case, check the residual and y, and q against y. Returns the result and the residual."""
    x, residual, weight = case.inputs()
    before = None if residual is None else residual.clone()
    total, wanted = wanted_norm(x, before, weight)
    normed = add_rmsnorm_quant(x, residual, weight, EPS, case.layout, with_y=case.with_y)
    if residual is not None:
        assert torch.equal(residual.cpu(), total.bfloat16())
    if normed.y is not None:
        check_y(normed.y, wanted)
        if case.layout:
            check_quantised(normed.y, normed.q, normed.scale, case.layout)
    return normed, residual


@pytest.mark.parametrize("residual", [True, False], ids=["residual", "plain"])
@pytest.mark.parametrize("layout", [*LAYOUTS, None], ids=str)
@pytest.mark.parametrize("hidden", SIZES)
def test_values(source, hidden, layout, residual):
    for rows in range(1, 18):
        case = Case(rows, hidden, layout, residual, gap=64 * (rows % 2), seed=rows, device=source)
        normed, _ = run(case)
        if layout:
            alone, _ = run(replace(case, with_y=False))
            assert alone.y is None
            assert same_bytes(alone.q, normed.q)
            assert same_bytes(alone.scale, normed.scale)
    assert not backend.declined


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("hidden", ODD_SIZES)
def test_sizes_that_fill_no_warp_or_every_warp(kernels, hidden, layout):
    run(Case(5, hidden, layout, device=kernels))
    run(Case(1, hidden, layout, residual=False, gap=8, device=kernels))


@pytest.mark.parametrize("layout", [*LAYOUTS, None], ids=str)
def test_torch_values(choose, layout):
    choose("torch")
    for rows in (1, 4, 17):
        for residual in (True, False):
            run(Case(rows, 2048, layout, residual, gap=64, seed=rows))


@pytest.mark.parametrize("magnitude", [1e-20, 1e-3, 1e15])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_magnitudes(kernels, layout, magnitude):
    run(Case(9, 1152, layout, magnitude=magnitude, device=kernels))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_many_rows(source, layout):
    run(Case(130, HIDDEN, layout, gap=8, device=source))


def test_no_rows(kernels):
    normed = add_rmsnorm_quant(*Case(0, 512, device=kernels).inputs(), EPS, ScaleLayout.COLUMN_MAJOR)
    assert normed.y.shape == (0, 512)
    assert normed.q.shape == (0, 512)
    assert normed.scale.shape == (0, 4)


def test_bytes_of_the_card():
    row = HIDDEN * (2 + 2 + 2 + 2 + 1) + 48 * 4
    assert CARD.bytes_moved(1, CARD.sizes) == row + HIDDEN * 2
    assert CARD.bytes_moved(64, CARD.sizes) == 64 * row + HIDDEN * 2


@pytest.mark.parametrize("residual", [True, False], ids=["residual", "plain"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_bytes_are_the_cards(emulated, layout, residual):
    rows = 64
    module = emulated(STEM)
    run(Case(rows, HIDDEN, layout, residual))
    counted = {}
    for line in module.last_traffic().splitlines():
        name, read, written = line.split()
        counted[name] = (int(read), int(written))
    weight_read, weight_written = counted.pop("weight")
    assert (weight_read, weight_written) == (rows * HIDDEN * 2, 0)
    parts = [part for part in CARD.traffic if part.tensor != "weight"]
    if not residual:
        parts = [part for part in parts if part.tensor != "residual"]
    minimum = sum(part.moved(rows, {"H": HIDDEN}) for part in parts)
    packed = layout is ScaleLayout.PACKED_UE8M0
    scale_bytes = rows * HIDDEN // 128 * (1 if packed else 4)
    assert counted["scale"] == (0, scale_bytes)
    assert sum(map(sum, counted.values())) == minimum - (rows * HIDDEN // 128 * 3 if packed else 0)


def _special_row(kind, hidden):
    """x and residual whose sum is that kind of row."""
    x = Case(1, hidden, seed=3).inputs()[0]
    residual = torch.zeros_like(x)
    if kind == "zeros":
        x.zero_()
    elif kind == "negative zeros":
        x.fill_(-0.0)
    elif kind == "cancelled":
        residual = -x
    elif kind == "one group of zeros":
        x[:, 128:256] = 0
    elif kind == "infinity":
        x[:, 5] = -torch.inf
    elif kind == "nan":
        residual[:, 300] = torch.nan
    elif kind == "square overflow":
        x *= 2.0**100
    elif kind == "denormals":
        x *= 2.0**-130
    else:
        raise ValueError(kind)
    return x, residual


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize(
    ("kind", "nans", "zeros"),
    [
        ("zeros", 0, 512),
        ("negative zeros", 0, 512),
        ("cancelled", 0, 512),
        ("one group of zeros", 0, 128),
        ("infinity", 1, 511),
        ("nan", 512, 0),
        ("square overflow", 0, 512),
        ("denormals", 0, None),
    ],
)
def test_special_rows(kernels, kind, nans, zeros, layout):
    x, residual = (tensor.to(kernels) for tensor in _special_row(kind, 512))
    weight = torch.ones(512, dtype=torch.bfloat16, device=kernels)
    total, wanted = wanted_norm(x, residual, weight)
    normed = add_rmsnorm_quant(x, residual, weight, EPS, layout)
    assert same_bytes(residual.nan_to_num(nan=7.0), total.bfloat16().nan_to_num(nan=7.0))
    check_y(normed.y, wanted)
    assert int(normed.y.isnan().sum()) == nans
    assert zeros is None or int((normed.y == 0).sum()) == zeros
    check_quantised(normed.y, normed.q, normed.scale, layout)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("gain", [3.38e38, -3.38e38, 2.0**123, 1e-38])
def test_extreme_gains(kernels, gain, layout):
    """Infinite amax, an amax past SGLang's fast division, and y of denormals."""
    x, residual, weight = Case(2, 512, device=kernels).inputs()
    x[:, 201] = 20
    weight[200:203] = gain
    normed = add_rmsnorm_quant(x, residual, weight, EPS, layout)
    assert bool(normed.y.isinf().any()) == (abs(gain) > 1e38)
    check_quantised(normed.y, normed.q, normed.scale, layout)


def test_infinite_amax_is_visible_downstream(kernels):
    x, residual, weight = Case(1, 512, device=kernels).inputs()
    weight[130] = torch.inf
    normed = add_rmsnorm_quant(x, residual, weight, EPS, ScaleLayout.ROW_MAJOR)
    assert normed.scale[0].isinf().tolist() == [False, True, False, False]
    assert normed.q[0, 130].isnan()
    packed = add_rmsnorm_quant(x, residual, weight, EPS, ScaleLayout.PACKED_UE8M0)
    assert as_bytes(packed.scale).tolist()[0][1] == 255


def test_group_of_zeros_has_the_documented_scale(kernels):
    x = torch.zeros(1, 128, dtype=torch.bfloat16, device=kernels)
    weight = torch.ones(128, dtype=torch.bfloat16, device=kernels)
    row_major = add_rmsnorm_quant(x, None, weight, EPS, ScaleLayout.ROW_MAJOR)
    assert row_major.scale.tolist() == [[float(torch.tensor(1e-10) * torch.tensor(1 / 448))]]
    packed = add_rmsnorm_quant(x, None, weight, EPS, ScaleLayout.PACKED_UE8M0)
    assert packed.scale.tolist() == [[85]]
    assert not packed.q.view(torch.uint8).any()


def test_float32_runs_in_torch(emulated):
    x, residual, weight = (tensor.float() for tensor in Case(3, 256).inputs())
    total, wanted = reference.norm(x, residual, weight, EPS)
    normed = add_rmsnorm_quant(x, residual, weight, EPS)
    assert normed.y.dtype == torch.float32
    assert torch.equal(residual, total)
    torch.testing.assert_close(normed.y, wanted, atol=0, rtol=1e-6)
    assert backend.declined == {(STEM, CARD.declines["dtype"]): 1}


def _bf16(rows, width, columns=slice(None)):
    return torch.zeros(rows, width, dtype=torch.bfloat16)[:, columns]


@pytest.mark.parametrize(
    ("key", "x", "residual", "weight"),
    [
        (None, _bf16(2, 512), _bf16(2, 512), _bf16(1, 512)[0]),
        (None, _bf16(2, 512), None, _bf16(1, 512)[0]),
        (None, _bf16(1, 513, slice(512)), None, _bf16(1, 512)[0]),
        ("dtype", _bf16(2, 512), _bf16(2, 512).half(), _bf16(1, 512)[0]),
        ("dtype", _bf16(2, 512), None, _bf16(1, 512)[0].float()),
        ("hidden", _bf16(2, 500), None, _bf16(1, 500)[0]),
        ("hidden", _bf16(2, 8320), None, _bf16(1, 8320)[0]),
        ("columns", _bf16(512, 2).t(), None, _bf16(1, 512)[0]),
        ("columns", _bf16(2, 1024, slice(None, None, 2)), None, _bf16(1, 512)[0]),
        ("alignment", _bf16(2, 516, slice(512)), None, _bf16(1, 512)[0]),
        ("alignment", _bf16(2, 1024, slice(4, 516)), None, _bf16(1, 512)[0]),
        ("alignment", _bf16(2, 512), _bf16(2, 516, slice(512)), _bf16(1, 512)[0]),
        ("alignment", _bf16(2, 512), None, _bf16(1, 520)[0, 4:516]),
    ],
)
def test_declines(choose, key, x, residual, weight):
    choose("auto")
    assert declines(x, residual, weight) == (Declined(CARD.declines[key]) if key else None)


def test_declines_an_old_gpu(choose, monkeypatch):
    choose("auto")
    monkeypatch.setattr(backend, "is_supported", lambda device: False)
    assert declines(*Case(2, 512).inputs()) == Declined(CARD.declines["device"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (torch.zeros(512), None, torch.zeros(512), EPS),
            r"x has shape \(512,\): give it as \[rows, hidden\]",
        ),
        ((torch.zeros(2, 512), torch.zeros(1, 512), torch.zeros(512), EPS), r"residual has shape \(1, 512\)"),
        ((torch.zeros(2, 512), None, torch.zeros(2, 512), EPS), r"weight has shape \(2, 512\): give it 512"),
        ((torch.zeros(2, 512), None, torch.zeros(512, device="meta"), EPS), "weight is on meta, x on cpu"),
        ((torch.zeros(2, 500), None, torch.zeros(500), EPS, ScaleLayout.ROW_MAJOR), "x has 500 channels"),
    ],
)
def test_malformed_calls(arguments, message):
    with pytest.raises(ValueError, match=message):
        add_rmsnorm_quant(*arguments)


def test_a_call_without_output_is_malformed():
    with pytest.raises(ValueError, match="neither y nor q is asked for"):
        add_rmsnorm_quant(torch.zeros(2, 512), None, torch.zeros(512), EPS, with_y=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": torch.zeros(3, 512, dtype=torch.bfloat16)}, "expected 2 but got 3"),
        ({"y": torch.zeros(2, 512)}, "expected bfloat16 but got float32"),
        ({"scale": None}, "q and scale come together"),
        ({"scale": torch.zeros(2, 3)}, "expected 4 but got 3"),
        ({"y": None, "q": None, "scale": None}, "neither y nor q is asked for"),
        ({"x": torch.zeros(2, 516, dtype=torch.bfloat16)[:, :512]}, "not aligned to 16 bytes"),
        ({"x": torch.zeros(2, 320, dtype=torch.bfloat16)}, "hidden is 320: use a multiple of 128"),
    ],
)
def test_the_binding_refuses(emulated, change, message):
    x = torch.zeros(2, change["x"].shape[1] if "x" in change else 512, dtype=torch.bfloat16)
    tensors = {
        "x": x,
        "residual": None,
        "weight": torch.zeros(x.shape[1], dtype=torch.bfloat16),
        "y": torch.empty_like(x),
        "q": torch.empty_like(x, dtype=torch.float8_e4m3fn),
        "scale": torch.empty(2, 4),
    }
    if x.shape[1] % 128:
        tensors["q"] = tensors["scale"] = None
    with pytest.raises(RuntimeError, match=message):
        emulated(STEM).add_rmsnorm_quant(*(tensors | change).values(), EPS)


def test_compiled_without_a_graph_break(source):
    x, residual, weight = Case(3, 512, device=source).inputs()
    eager_residual, compiled_residual = residual.clone(), residual.clone()

    def layer(x, residual):
        normed = add_rmsnorm_quant(x * 2, residual, weight, EPS, ScaleLayout.PACKED_UE8M0)
        return normed.y + residual, normed.q.view(torch.uint8), normed.scale

    wanted = layer(x, eager_residual)
    found = torch.compile(layer, backend=COMPILERS[source], fullgraph=True)(x, compiled_residual)
    assert torch.equal(compiled_residual, eager_residual)
    assert all(map(same_bytes, found, wanted))
    assert not backend.declined
