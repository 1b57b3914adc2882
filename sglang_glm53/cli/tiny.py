"""Owns `glm53 tiny`: writes a small random checkpoint of the real architecture."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import fields
from pathlib import Path

from sglang_glm53.tiny.checkpoint import SpecError, TinySpec, Written, write
from sglang_glm53.tiny.sizes import flag

HELP = {
    "layers": "decoder layers; the first 3 are dense",
    "hidden": "hidden size, a multiple of 128",
    "heads": "attention heads",
    "q_lora": "query LoRA rank, a multiple of 128",
    "nope": "query and key dims without RoPE, per head",
    "v": "value dims, per head",
    "dense_intermediate": "intermediate size of the dense layers",
    "moe_intermediate": "intermediate size of one expert",
    "experts": "routed experts",
    "experts_per_token": "routed experts that one token uses",
    "vocab": "vocabulary size",
    "index_topk": "positions that the indexer selects",
    "index_heads": "indexer heads",
    "max_positions": "longest context, in tokens",
    "seed": "seed of the random weights; the same seed gives the same bytes",
    "shards": "safetensors files",
    "period": "repeat the context: each token is the one N positions back, which the MTP layer foresees",
    "schedule": "one letter a layer, F (full) or S (shared), as in FFFSSSFS (default: the published rule)",
    "mtp": "add the MTP layer",
    "mtp_copies": "with --mtp: also store the MTP layer's copies of embedding and head",
    "fp8": "FP8 weights in 128x128 blocks, and a bf16 twin with the same values",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags: one for each TinySpec field, and where to write."""
    parser.add_argument("out", type=Path, metavar="OUT", help="the checkpoint's folder")
    for field in fields(TinySpec):
        if isinstance(field.default, bool):
            parser.add_argument(flag(field.name), action="store_true", help=HELP[field.name])
        elif isinstance(field.default, int):
            text = f"{HELP[field.name]} (default: {field.default})"
            parser.add_argument(flag(field.name), type=int, metavar="N", default=field.default, help=text)
        else:
            parser.add_argument(flag(field.name), metavar="LETTERS", help=HELP[field.name])
    parser.add_argument("--twin", type=Path, metavar="DIR", help="the bf16 twin's folder (default: OUT-bf16)")
    parser.add_argument("--force", action="store_true", help="write into folders that hold files")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object and nothing else on stdout"
    )


def run(args: argparse.Namespace) -> int:
    """Write the checkpoint. Returns 0, or 2 when the flags or the folders do not allow it."""
    spec = TinySpec(**{field.name: getattr(args, field.name) for field in fields(TinySpec)})
    for warning in spec.warnings():
        print(f"glm53 tiny: warning: {warning}", file=sys.stderr)
    try:
        written = write(spec, args.out, twin=args.twin, force=args.force, progress=_show_progress)
    except (SpecError, OSError) as error:
        print(f"glm53 tiny: error: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(_report(spec, written)))
    else:
        print(_summary(spec, written))
    return 0


def _show_progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\rtensor {done} of {total}", end="\n" if done == total else "", file=sys.stderr, flush=True)


def _report(spec: TinySpec, written: Written) -> dict[str, object]:
    return {
        "path": str(written.path),
        "files": list(written.files),
        "bytes": written.bytes,
        "parameters": written.parameters,
        "seed": spec.seed,
        "schedule": written.schedule,
        "mtp": spec.mtp,
        "fp8": spec.fp8,
        "twin": None if written.twin is None else str(written.twin),
    }


def _summary(spec: TinySpec, written: Written) -> str:
    kind = ("FP8" if spec.fp8 else "bf16") + (", MTP layer" if spec.mtp else "")
    lines = [
        f"{written.path}: {written.parameters / 1e6:.1f} M parameters, {kind}, "
        f"{written.bytes / 1e6:.1f} MB in {len(written.files)} files",
        f"schedule {written.schedule}, seed {spec.seed}",
    ]
    if written.twin is not None:
        lines.append(f"{written.twin}: the same values in bf16")
    return "\n".join(lines)
