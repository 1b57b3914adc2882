"""Owns the check that decode scales: a step's time at several batch sizes, measured side by side."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from sglang_glm53.testing.server import Server, spawn

SHORT, LONG = 8, 72


def _prompts(batch: int, context: int, seed: int) -> list[list[int]]:
    # Ids of ordinary tokens; every prompt differs, so that none shares another's pages.
    return [[5 + (seed + 31 * row + 7 * i) % 250 for i in range(context)] for row in range(batch)]


def step_milliseconds(server: Server, batch: int, context: int, seed: int) -> float:
    """Milliseconds of one decode step with `batch` requests of `context` tokens.

    The difference between a long and a short continuation of the same cached prompts, so that prefill, HTTP
    and scheduling of the first step cancel.
    """
    prompts = _prompts(batch, context, seed)
    server.generate(prompts, 1)
    seconds = []
    for tokens in (SHORT, LONG):
        start = time.perf_counter()
        server.generate(prompts, tokens)
        seconds.append(time.perf_counter() - start)
    return (seconds[1] - seconds[0]) / (LONG - SHORT) * 1000


def measure(server: Server, batches: list[int], context: int, rounds: int) -> dict[int, list[float]]:
    """Milliseconds per step of each batch size, one figure a round; the sizes take turns within a round."""
    found: dict[int, list[float]] = {batch: [] for batch in batches}
    for turn in range(rounds + 1):
        for batch in batches:
            took = step_milliseconds(server, batch, context, seed=turn * 1000 + batch)
            # The first round warms allocators and caches.
            if turn:
                found[batch].append(took)
    return found


def main(argv: list[str] | None = None) -> int:
    """Start a server on the reference platform, measure, print one line per batch size and the ratio."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--model-path", help="a checkpoint folder; a tiny one is made when left out")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--context", type=int, default=1024, help="tokens of every prompt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        model = args.model_path
        if model is None:
            from sglang_glm53.tiny.checkpoint import TinySpec, write

            model = str(Path(folder) / "tiny")
            write(TinySpec(), Path(model))
        flags = ["--model-path", model, "--model-impl", "glm53", "--dtype", args.dtype]
        with spawn(flags, Path(folder) / "server.log") as server:
            found = measure(server, args.batches, args.context, args.rounds)
    medians = {batch: statistics.median(times) for batch, times in found.items()}
    ratio = medians[args.batches[-1]] / medians[args.batches[0]]
    if args.json:
        print(json.dumps({"context": args.context, "milliseconds": found, "ratio": ratio}))
    else:
        for batch, times in found.items():
            spread = ", ".join(f"{took:.1f}" for took in times)
            print(f"batch {batch:3d}: {medians[batch]:6.1f} ms a step (rounds: {spread})")
        print(f"ratio {ratio:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
