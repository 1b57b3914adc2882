"""Owns `glm53 bench`: this package's CUDA kernels against their peers, on the GPU of this machine."""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sglang_glm53 import __version__
from sglang_glm53.kernels.cards import KernelCard, cards

if TYPE_CHECKING:
    from sglang_glm53.bench.device import CudaDevice

REPEATS, REPEATS_QUICK = 15, 7


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `glm53 bench`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--kernel", metavar="STEM", type=_card, help=f"only {' or '.join(cards())}")
    parser.add_argument("--quick", action="store_true", help="a small grid, and fewer repeats")


def _card(stem: str) -> KernelCard:
    if stem not in cards():
        raise argparse.ArgumentTypeError(f"no kernel is called {stem!r}: choose from {', '.join(cards())}")
    return cards()[stem]


def _measure(args: argparse.Namespace, device: CudaDevice) -> dict[str, Any]:
    """Everything that is printed, as the JSON object; progress goes to stderr."""
    from sglang_glm53.bench import measure
    from sglang_glm53.bench.points import points as points_of

    chosen = [args.kernel] if args.kernel else cards().values()
    points = [point for card in chosen for point in points_of(card, args.quick, device.device)]
    repeats = REPEATS_QUICK if args.quick else REPEATS
    started = datetime.datetime.now(datetime.UTC)
    floors = measure.measure_floors(device, repeats)
    machine = device.describe()
    rows, left_out = [], []
    for number, point in enumerate(points, 1):
        print(f"[{number}/{len(points)}] {point.kernel} {point.shape}", file=sys.stderr, flush=True)
        found, missing = measure.measure(point, device, floors, repeats)
        rows += found
        left_out += missing
    seconds = (datetime.datetime.now(datetime.UTC) - started).total_seconds()
    return {
        "command": shlex.join(["glm53", *sys.argv[1:]]),
        "version": __version__,
        "date": started.isoformat(timespec="seconds"),
        "seconds": round(seconds),
        "machine": machine,
        "machine_at_the_end": device.describe(),
        "l2_bytes": device.l2_bytes,
        "l2_turns": measure.L2_TURNS,
        "repeats": repeats,
        "floors": asdict(floors),
        "rows": [asdict(row) for row in rows],
        "left_out": [asdict(absent) for absent in left_out],
    }


def _print(found: dict[str, Any]) -> None:
    from sglang_glm53.bench import measure

    floors = found["floors"]
    print(f"{found['command']}  (sglang-glm53 {found['version']}, {found['date']}, {found['seconds']} s)")
    for when in ("machine", "machine_at_the_end"):
        said = ", ".join(f"{key} {value}" for key, value in found[when].items())
        print(f"{when.replace('_', ' ')}: {said}")
    bandwidth, empty = floors["copy_bytes_per_second"] / 1e9, floors["empty_seconds"] * 1e6
    print(f"floor: the bytes at {bandwidth:.0f} GB/s, the copy bandwidth, or an empty launch, {empty:.2f} us")
    print(
        f"replayed CUDA graphs, medians of {found['repeats']} turns; between two uses of a set of buffers "
        f"the others move {found['l2_turns']} times the L2 cache, {found['l2_bytes'] / 1e6:.0f} MB, or more"
    )
    print("x peer: a peer's time over ours; on our own line the fastest peer's")
    print()
    print("\n".join(measure.table(measure.Row(**row) for row in found["rows"])))
    missing = measure.reasons(measure.LeftOut(**absent) for absent in found["left_out"])
    if missing:
        print()
        print("\n".join(missing))


def run(args: argparse.Namespace) -> int:
    """Measure and print.

    The exit status is 1 without a GPU for it, when a kernel of ours did not run, and when a peer has another
    result; a peer that is missing is only named.
    """
    from sglang_glm53.bench import device as bench_device

    try:
        device = bench_device.CudaDevice()
    except ValueError as unfit:
        print(f"glm53 bench: {unfit}", file=sys.stderr)
        return 1
    found = _measure(args, device)
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        _print(found)
    return int(any(absent["wrong"] for absent in found["left_out"]))
