"""Owns the measurement of a kernel beside its peers: rotation, turns, medians and floors, on any device."""

from __future__ import annotations

import importlib
import statistics
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

OURS = "glm53"
# A set of buffers is used again when so many times the L2 cache has passed since.
L2_TURNS = 2
# Calls in one recording at least, so that its start and end are a small part.
MIN_CALLS = 32
# What a library that is missing, too old or unfit for this GPU or shape raises: a line of the report.
FAILURES = (
    *(AssertionError, AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError),
    subprocess.SubprocessError,
)

Call = Callable[[], object]


class Device(Protocol):
    """What runs the calls and tells the time.

    l2_bytes: the cache that rotation must exceed. copy: calls that each move copy_bytes, read and written.
    empty: a call that launches nothing to do.
    """

    l2_bytes: int
    copy: Sequence[Call]
    copy_bytes: int
    empty: Call

    def record(self, calls: Sequence[Call]) -> Callable[[], float]:
        """Keep the calls; what it returns runs them once, in order, and gives the seconds they took."""
        ...


@dataclass(frozen=True)
class Prepared:
    """A contender's buffers at one point.

    calls: one for each set of buffers. result: what the first call left, in the form that the point compares.
    """

    calls: Sequence[Call]
    result: Callable[[], Any]


@dataclass(frozen=True)
class Point:
    """One place of the grid.

    bytes_moved: what a call must read and write. contenders: by name, ours first; each is given the number
    of sets of buffers and raises one of FAILURES when it cannot take part. check: given a peer's result and
    ours, raises AssertionError when they do not agree.
    """

    kernel: str
    shape: str
    bytes_moved: int
    contenders: Mapping[str, Callable[[int], Prepared]]
    check: Callable[[Any, Any], None]


@dataclass(frozen=True)
class Floors:
    """What no kernel beats, measured in the same run."""

    copy_bytes_per_second: float
    empty_seconds: float

    def seconds(self, bytes_moved: int) -> float:
        """The time to copy those bytes, or that of an empty launch where it is longer."""
        return max(bytes_moved / self.copy_bytes_per_second, self.empty_seconds)


@dataclass(frozen=True)
class Row:
    """One contender at one point.

    us: the median over the repeats, microseconds of one call; us_min, us_max: the extremes.
    percent_of_floor: 100 is at the floor, less is slower. times_peer: a peer's time over ours; on our own row
    the fastest peer's, None when none ran. sets: of buffers, rotated_bytes in all.
    """

    kernel: str
    shape: str
    contender: str
    us: float
    us_min: float
    us_max: float
    gb_per_second: float
    percent_of_floor: float
    times_peer: float | None
    sets: int
    rotated_bytes: int


@dataclass(frozen=True)
class LeftOut:
    """A contender that has no row at a point, and why. wrong: it ran and disagreed, or it is ours."""

    kernel: str
    shape: str
    contender: str
    reason: str
    wrong: bool


def load(place: tuple[str, str]) -> Callable[..., Any]:
    """A peer's function, by module and name; raises ImportError, OSError or AttributeError without it."""
    module, name = place
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def sets_beyond_l2(bytes_moved: int, l2_bytes: int) -> int:
    """How many sets of buffers: between two uses of one, the others move L2_TURNS times the L2 cache."""
    return -(-L2_TURNS * l2_bytes // bytes_moved) + 1


def _one_line(error: BaseException) -> str:
    """The first line of an error, after its type."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def record(device: Device, calls: Sequence[Call]) -> Callable[[], float]:
    """Keep the calls, MIN_CALLS at least; what it returns gives the seconds of one call, on average."""
    many = list(calls) * -(-MIN_CALLS // len(calls))
    replay = device.record(many)
    return lambda: replay() / len(many)


def take_turns(replays: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """A figure of each for each repeat, in the order A, B, C, A, B, C; a round ahead does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in replays}
    for turn in range(repeats + 1):
        for name, replay in replays.items():
            took = replay()
            if turn:
                seconds[name].append(took)
    return seconds


def measure_floors(device: Device, repeats: int) -> Floors:
    """The copy bandwidth, and the time of an empty launch."""
    calls = {"copy": device.copy, "empty": [device.empty]}
    took = take_turns({name: record(device, each) for name, each in calls.items()}, repeats)
    return Floors(device.copy_bytes / statistics.median(took["copy"]), statistics.median(took["empty"]))


def _enter(point: Point, device: Device, sets: int) -> tuple[dict[str, Callable[[], float]], list[LeftOut]]:
    """Run each contender once, hold it against ours, and record those that may be timed."""
    replays: dict[str, Callable[[], float]] = {}
    left_out: list[LeftOut] = []
    ours: Any = None

    def leave(name: str, reason: str, wrong: bool) -> None:
        left_out.append(LeftOut(point.kernel, point.shape, name, reason, wrong))

    for name, prepare in point.contenders.items():
        if name != OURS and OURS not in replays:
            leave(name, f"there is no result of {OURS} to compare with", False)
            continue
        try:
            prepared = prepare(sets)
            prepared.calls[0]()
            found = prepared.result()
        except FAILURES as error:
            leave(name, _one_line(error), name == OURS)
            continue
        if name == OURS:
            ours = found
        else:
            try:
                point.check(found, ours)
            except AssertionError as difference:
                leave(name, f"its result is not that of {OURS}: {difference}", True)
                continue
        try:
            replays[name] = record(device, prepared.calls)
        except FAILURES as error:
            leave(name, f"not recorded: {_one_line(error)}", name == OURS)
    return replays, left_out


def _rows(point: Point, sets: int, floors: Floors, took: Mapping[str, Sequence[float]]) -> list[Row]:
    medians = {name: statistics.median(times) for name, times in took.items()}
    peers = [median for name, median in medians.items() if name != OURS]
    floor = floors.seconds(point.bytes_moved)
    rows = []
    for name, median in medians.items():
        other = median if name != OURS else min(peers, default=None)
        row = Row(
            kernel=point.kernel,
            shape=point.shape,
            contender=name,
            us=1e6 * median,
            us_min=1e6 * min(took[name]),
            us_max=1e6 * max(took[name]),
            gb_per_second=point.bytes_moved / median / 1e9,
            percent_of_floor=100 * floor / median,
            times_peer=None if other is None else other / medians[OURS],
            sets=sets,
            rotated_bytes=sets * point.bytes_moved,
        )
        rows.append(row)
    return rows


def measure(point: Point, device: Device, floors: Floors, repeats: int) -> tuple[list[Row], list[LeftOut]]:
    """The point's rows, ours first, and who is left out; a peer with another result is not timed."""
    sets = sets_beyond_l2(point.bytes_moved, device.l2_bytes)
    replays, left_out = _enter(point, device, sets)
    if not replays:
        return [], left_out
    try:
        took = take_turns(replays, repeats)
    except FAILURES as error:
        # Which of them broke the GPU is not known, so none has a figure.
        reason = f"not timed: {_one_line(error)}"
        left_out += [LeftOut(point.kernel, point.shape, name, reason, name == OURS) for name in replays]
        return [], left_out
    return _rows(point, sets, floors, took), left_out


def _cells(row: Row) -> tuple[str, ...]:
    return (
        *(row.kernel, row.shape, row.contender),
        f"{row.us:.2f}",
        f"{row.us_min:.2f}-{row.us_max:.2f}",
        f"{row.gb_per_second:.0f}",
        f"{row.percent_of_floor:.0f}",
        "-" if row.times_peer is None else f"{row.times_peer:.2f}",
        f"{row.sets}",
    )


def table(rows: Iterable[Row]) -> list[str]:
    """The rows as lines of aligned columns, after a line of their names."""
    head = ("kernel", "shape", "contender", "us", "min-max", "GB/s", "% of floor", "x peer", "sets")
    lines = [head, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place < 3 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def reasons(left_out: Iterable[LeftOut]) -> list[str]:
    """A line for each kernel, contender and reason, with the number of points and the first of them."""
    shapes: dict[tuple[str, str, str], list[str]] = {}
    for absent in left_out:
        shapes.setdefault((absent.kernel, absent.contender, absent.reason), []).append(absent.shape)
    return [
        f"{kernel}: {contender} is left out at {len(where)} "
        f"{'point' if len(where) == 1 else 'points'} ({where[0]}{', ...' if where[1:] else ''}): {reason}"
        for (kernel, contender, reason), where in shapes.items()
    ]
