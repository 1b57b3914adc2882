"""Owns the checks of `glm53 bench`: the table, the JSON and the exit status, by a clock set by hand."""

import argparse
import json

import pytest

from sglang_glm53.bench import device
from sglang_glm53.bench import points as bench_points
from sglang_glm53.bench.measure import OURS, Row
from sglang_glm53.cli import bench
from sglang_glm53.kernels.cards import cards
from tests.bench.fake_bench import COPY_RATE, EMPTY, FakeDevice, contender, point


def _run(*flags):
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return bench.run(parser.parse_args(flags))


class Session:
    """A run with two points for each kernel, of 400 bytes and of 16 MB. asked: what each grid was given."""

    def __init__(self):
        self.device = FakeDevice()
        self.contenders = {}
        self.asked = []
        self.add(OURS, 4e-6)

    def add(self, name, *arguments):
        self.contenders[name] = contender(self.device, *arguments)

    def points(self, card, quick, where):
        self.asked.append((card.stem, quick, where))
        return [point(self.contenders), point(self.contenders, bytes_moved=16_000_000)]


@pytest.fixture
def session(monkeypatch):
    session = Session()
    monkeypatch.setattr(device, "CudaDevice", lambda: session.device)
    monkeypatch.setattr(bench_points, "points", session.points)
    return session


def test_without_a_gpu_one_line_says_what_is_needed(capsys, monkeypatch):
    monkeypatch.setattr(device.torch.cuda, "is_available", lambda: False)
    assert _run() == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "glm53 bench: it needs an NVIDIA GPU of compute capability 9.0 or newer (Hopper), and torch finds no "
        "GPU here\n"
    )


def test_json(session, capsys):
    session.add("B", 6e-6)
    assert _run("--json", "--kernel", "indexer_topk") == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    rows = [Row(**row) for row in found["rows"]]
    assert [(row.contender, row.sets) for row in rows] == [(OURS, 6), ("B", 6), (OURS, 2), ("B", 2)]
    assert [row.us for row in rows] == pytest.approx([4, 6, 4, 6])
    assert [row.times_peer for row in rows] == pytest.approx([1.5] * 4)
    # 400 bytes cost an empty launch of 2 us, 16 MB at 2 TB/s 8 us.
    assert [row.percent_of_floor for row in rows] == pytest.approx([50, 100 / 3, 200, 400 / 3])
    assert found["floors"] == pytest.approx({"copy_bytes_per_second": COPY_RATE, "empty_seconds": EMPTY})
    assert found["machine"] == found["machine_at_the_end"] == {"name": "fake", "driver_version": "1.2"}
    assert (found["l2_bytes"], found["l2_turns"], found["repeats"]) == (1000, 2, bench.REPEATS)
    assert found["left_out"] == []
    assert printed.err.splitlines() == ["[1/2] k M=1", "[2/2] k M=1"]
    assert session.asked == [("indexer_topk", False, None)]


def test_text(session, capsys, monkeypatch):
    monkeypatch.setattr(bench.sys, "argv", ["/somewhere/glm53", "bench", "--quick"])
    session.add("B", 6e-6)
    session.add("C", 1e-6, ImportError("No module named 'c'"))
    assert _run("--quick") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("glm53 bench --quick  (sglang-glm53 0.1.0, 20")
    assert lines[1] == "machine: name fake, driver_version 1.2"
    assert lines[3] == "floor: the bytes at 2000 GB/s, the copy bandwidth, or an empty launch, 2.00 us"
    assert "medians of 7 turns" in lines[4]
    assert "others move 2 times the L2 cache, 0 MB, or more" in lines[4]
    assert lines[7].split()[:3] == ["kernel", "shape", "contender"]
    assert lines[8].split() == ["k", "M=1", OURS, "4.00", "4.00-4.00", "0", "50", "1.50", "6"]
    assert lines[-1] == ("k: C is left out at 4 points (M=1, ...): ImportError: No module named 'c'")


@pytest.mark.parametrize("quick", [True, False])
def test_every_kernel_is_measured_unless_one_is_chosen(session, quick, capsys):
    assert _run(*["--quick"] * quick) == 0
    assert session.asked == [(stem, quick, None) for stem in cards()]
    assert "[4/4]" in capsys.readouterr().err


def test_a_peer_with_another_result_fails_the_run(session, capsys):
    session.add("B", 6e-6, 8)
    assert _run() == 1
    assert "B is left out at 4 points (M=1, ...): its result is not that of glm53: 8 is not 7" in (
        capsys.readouterr().out
    )


def test_a_kernel_of_ours_that_does_not_run_fails_the_run(session, capsys):
    session.add(OURS, 1e-6, RuntimeError("nvcc failed"))
    assert _run("--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == []
    assert {(absent["contender"], absent["reason"]) for absent in found["left_out"]} == {
        (OURS, "RuntimeError: nvcc failed")
    }


def test_an_unknown_kernel_is_refused(capsys):
    with pytest.raises(SystemExit):
        _run("--kernel", "softmax")
    assert "no kernel is called 'softmax': choose from add_" in capsys.readouterr().err
