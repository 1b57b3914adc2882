"""Owns `glm53 kernels`: the cards of this package's CUDA kernels, and compiling them ahead of serving."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict
from typing import Any

from sglang_glm53.kernels import jit
from sglang_glm53.kernels.cards import EXAMPLE_ROWS, KernelCard, cards, markdown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `glm53 kernels`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument("--markdown", action="store_true", help="print the whole document, docs/kernels.md")
    parser.add_argument(
        "--build",
        nargs="+",
        metavar="ARCH",
        choices=jit.ARCHITECTURES,
        help=f"compile the kernels into SGLang's JIT cache, without a GPU: {', '.join(jit.ARCHITECTURES)}",
    )


def _describe(card: KernelCard) -> dict[str, Any]:
    return {
        "stem": card.stem,
        "summary": card.summary,
        "replaces": list(card.replaces),
        "tensors": dict(card.tensors),
        "bytes": {str(rows): card.bytes_moved(rows, card.sizes) for rows in EXAMPLE_ROWS},
        "launches_removed": list(card.launches_removed),
        "numerics": list(card.numerics),
        "declines": dict(card.declines),
        "fallback": card.fallback,
        "off_switch": card.off_switch,
        "peers": dict(card.peers),
        "forms": {name: asdict(budget) for name, budget in card.forms.items()},
        "grid": [str(shape) for shape in card.grid],
        "measured": card.measured,
        "files": card.files(),
    }


def _print_card(card: KernelCard) -> None:
    moved = ", ".join(f"{card.bytes_moved(rows, card.sizes):,} at M = {rows}" for rows in EXAMPLE_ROWS)
    lines = [
        ("does", [card.summary]),
        ("replaces", card.replaces),
        ("removes", card.launches_removed),
        ("bytes", [moved]),
        ("measured", [card.measured]),
        ("declines", card.declines.values()),
        ("fallback", [card.fallback]),
        ("off switch", [card.off_switch]),
        ("source", [card.files()["kernel"]]),
    ]
    print(card.stem)
    for what, items in lines:
        for number, item in enumerate(items):
            print(f"  {'' if number else what:<11}{item}")


def _build(stem: str, architecture: str) -> tuple[float, str]:
    """Seconds, and the complaint when it did not compile."""
    code = f"from sglang_glm53.kernels import jit; jit.build({stem!r}, {architecture!r})"
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return time.monotonic() - start, done.stderr.strip() if done.returncode else ""


def _build_all(architectures: list[str], as_json: bool) -> int:
    built = []
    for stem in cards():
        for architecture in architectures:
            seconds, complaint = _build(stem, architecture)
            built.append({"stem": stem, "architecture": architecture, "seconds": round(seconds, 1)})
            built[-1] |= {"ok": not complaint, "complaint": complaint}
            if not as_json:
                status = "FAIL" if complaint else "ok"
                print(f"[{status}]".ljust(6), stem, architecture, f"{seconds:.0f} s", flush=True)
                if complaint:
                    print(complaint, flush=True)
    if as_json:
        print(json.dumps({"built": built}, indent=2))
    return int(any(not build["ok"] for build in built))


def run(args: argparse.Namespace) -> int:
    """Print the cards or compile the kernels; the exit status is 1 when one does not compile."""
    if args.build:
        return _build_all(args.build, args.json)
    if args.markdown:
        print(markdown(), end="")
    elif args.json:
        print(json.dumps({"kernels": [_describe(card) for card in cards().values()]}, indent=2))
    else:
        for card in cards().values():
            _print_card(card)
    return 0
