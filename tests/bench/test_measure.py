"""Owns the checks of the benchmark's measurement: a clock that is set by hand must give known figures."""

import json
from dataclasses import asdict

import pytest

from sglang_glm53.bench import measure
from sglang_glm53.bench.measure import MIN_CALLS, OURS, Floors, LeftOut, Row
from tests.bench.fake_bench import COPY_RATE, EMPTY, FakeDevice, contender, point

FLOORS = Floors(copy_bytes_per_second=1e9, empty_seconds=2e-6)


@pytest.fixture
def device():
    return FakeDevice()


def _measure(device, contenders, bytes_moved=400, repeats=3, floors=FLOORS):
    return measure.measure(point(contenders, bytes_moved), device, floors, repeats)


def test_floors_are_measured(device):
    floors = measure.measure_floors(device, 3)
    assert floors.copy_bytes_per_second == pytest.approx(COPY_RATE)
    assert floors.empty_seconds == pytest.approx(EMPTY)


@pytest.mark.parametrize(("moved", "seconds"), [(1, 2e-6), (2000, 2e-6), (2001, 2.001e-6), (10**6, 1e-3)])
def test_the_floor_is_the_copy_or_the_empty_launch(moved, seconds):
    assert FLOORS.seconds(moved) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("moved", "sets"), [(1, 2001), (400, 6), (399, 7), (1000, 3), (2000, 2), (2001, 2), (10**9, 2)]
)
def test_rotation_exceeds_the_l2_cache(moved, sets):
    assert measure.sets_beyond_l2(moved, 1000) == sets
    assert (sets - 1) * moved >= measure.L2_TURNS * 1000
    assert sets == 2 or (sets - 2) * moved < measure.L2_TURNS * 1000


def test_a_recording_runs_every_set_in_turn(device):
    _measure(device, {OURS: contender(device, 1e-6, name="a")})
    assert device.recordings == [[f"a{i}" for i in range(6)] * 6]
    assert len(device.recordings[0]) >= MIN_CALLS


def test_contenders_take_turns(device):
    contenders = {OURS: contender(device, 1e-6, name="a"), "B": contender(device, 2e-6, name="b")}
    contenders["C"] = contender(device, 3e-6, name="c")
    _measure(device, contenders, repeats=2)
    assert device.replayed == ["a0", "b0", "c0"] * 3


def test_known_figures(device):
    contenders = {OURS: contender(device, 4e-6), "slow": contender(device, 10e-6)}
    contenders["fast"] = contender(device, 6e-6)
    rows, left_out = _measure(device, contenders, bytes_moved=3000)
    assert left_out == []
    assert [row.contender for row in rows] == [OURS, "slow", "fast"]
    assert [row.us for row in rows] == pytest.approx([4, 10, 6])
    assert [row.gb_per_second for row in rows] == pytest.approx([0.75, 0.3, 0.5])
    # 3000 bytes at 1 GB/s take 3 us.
    assert [row.percent_of_floor for row in rows] == pytest.approx([75, 30, 50])
    # On our line the fastest peer's.
    assert [row.times_peer for row in rows] == pytest.approx([1.5, 2.5, 1.5])
    assert {(row.kernel, row.shape, row.sets, row.rotated_bytes) for row in rows} == {("k", "M=1", 2, 6000)}


def test_an_outlier_and_the_first_round_move_no_median(device):
    spikes = iter([90e-6, 5e-6, 50e-6, 4e-6, 6e-6, 5.5e-6])
    took = measure.take_turns({"a": lambda: next(spikes), "b": lambda: 1e-6}, 5)
    assert took == {"a": [5e-6, 50e-6, 4e-6, 6e-6, 5.5e-6], "b": [1e-6] * 5}
    [row] = measure._rows(point({}), 2, FLOORS, {OURS: took["a"]})
    assert (row.us, row.us_min, row.us_max) == pytest.approx((5.5, 4, 50))


def test_without_a_peer_there_is_no_ratio(device):
    [row], _ = _measure(device, {OURS: contender(device, 1e-6)})
    assert row.times_peer is None


def test_a_wrong_peer_is_refused_before_it_is_timed(device):
    contenders = {OURS: contender(device, 4e-6, name="a"), "B": contender(device, 1e-6, result=8, name="b")}
    rows, left_out = _measure(device, contenders)
    assert [(row.contender, row.times_peer) for row in rows] == [(OURS, None)]
    assert left_out == [LeftOut("k", "M=1", "B", "its result is not that of glm53: 8 is not 7", True)]
    assert {names[0] for names in device.recordings} == {"a0"}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            ModuleNotFoundError("No module named 'flashinfer'"),
            "ModuleNotFoundError: No module named 'flashinfer'",
        ),
        (OSError("libcuda.so.1: cannot open\nmore"), "OSError: libcuda.so.1: cannot open"),
        (NotImplementedError(), "NotImplementedError"),
    ],
)
def test_a_missing_peer_is_named(device, error, reason):
    def prepare(sets):
        raise error

    rows, left_out = _measure(device, {OURS: contender(device, 4e-6), "B": prepare})
    assert [row.contender for row in rows] == [OURS]
    assert left_out == [LeftOut("k", "M=1", "B", reason, False)]


def test_a_peer_that_cannot_be_recorded_is_named(device, monkeypatch):
    record = device.record

    def refuses(calls):
        if calls[0].name == "b0":
            raise RuntimeError("operation not permitted when stream is capturing")
        return record(calls)

    monkeypatch.setattr(device, "record", refuses)
    contenders = {OURS: contender(device, 4e-6), "B": contender(device, 1e-6, name="b")}
    rows, left_out = _measure(device, contenders)
    assert [row.contender for row in rows] == [OURS]
    assert [(absent.contender, absent.wrong) for absent in left_out] == [("B", False)]
    assert left_out[0].reason.startswith("not recorded: RuntimeError: operation not permitted")


def test_without_our_result_nothing_is_compared_or_timed(device):
    contenders = {OURS: contender(device, 4e-6, RuntimeError("no nvcc")), "B": contender(device, 1e-6)}
    rows, left_out = _measure(device, contenders)
    assert (rows, device.recordings) == ([], [])
    assert [(absent.contender, absent.reason, absent.wrong) for absent in left_out] == [
        (OURS, "RuntimeError: no nvcc", True),
        ("B", "there is no result of glm53 to compare with", False),
    ]


def test_a_failure_while_timing_leaves_all_out(device):
    contenders = {OURS: contender(device, 4e-6), "B": contender(device, 1e-6)}
    calls = iter(range(3))

    def breaks(calls_recorded):
        def replay():
            if next(calls) == 2:
                raise RuntimeError("an illegal memory access")
            return 1e-6

        return replay

    device.record = breaks
    rows, left_out = _measure(device, contenders)
    assert rows == []
    assert [(absent.contender, absent.wrong) for absent in left_out] == [(OURS, True), ("B", False)]
    assert {absent.reason for absent in left_out} == {"not timed: RuntimeError: an illegal memory access"}


def test_a_bug_is_not_taken_for_a_missing_peer(device):
    with pytest.raises(ZeroDivisionError):
        _measure(device, {OURS: contender(device, 1e-6), "B": lambda sets: 1 / 0})


def test_a_peer_is_loaded_by_name():
    assert measure.load(("json", "dumps")) is json.dumps
    with pytest.raises(AttributeError, match="no attribute 'gone'"):
        measure.load(("json", "gone"))
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        measure.load(("no_such_module", "gone"))


ROW = Row("k", "M=1", OURS, 4.567, 4.1, 5.25, 812.6, 74.6, 1.256, 6, 2400)


def test_table():
    peer = Row("k", "M=1", "a longer peer", 12.0, 11.0, 13.0, 99.0, 8.0, None, 6, 2400)
    assert measure.table([ROW, peer]) == [
        "kernel  shape  contender         us      min-max  GB/s  % of floor  x peer  sets",
        "k       M=1    glm53           4.57    4.10-5.25   813          75    1.26     6",
        "k       M=1    a longer peer  12.00  11.00-13.00    99           8       -     6",
    ]


def test_reasons_are_grouped():
    absent = [LeftOut("k", f"M={rows}", "B", "not installed", False) for rows in (1, 8)]
    absent.append(LeftOut("k", "M=8", "C", "too old", False))
    assert measure.reasons(absent) == [
        "k: B is left out at 2 points (M=1, ...): not installed",
        "k: C is left out at 1 point (M=8): too old",
    ]


def test_rows_survive_json():
    assert Row(**json.loads(json.dumps(asdict(ROW)))) == ROW
