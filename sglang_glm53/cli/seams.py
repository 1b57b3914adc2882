"""Owns `glm53 seams`: the seams beside another SGLang's source, and the document that is made of them."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

from sglang_glm53 import upstream
from sglang_glm53.serving.seams import FEATURES
from sglang_glm53.upstream import Change, Seam

NEVER = "never: "
HOOKED = {"replace": "replaced by"}  # Any other kind is "hooked" and its name.
HEADER = f"""# What this package uses of SGLang

Every attribute of SGLang {upstream.VERSION} that this package calls, overrides, wraps or reads from outside
its public interface, by feature. `glm53 seams --markdown` writes this file from the features' tables, such as
`sglang_glm53/topk/seams.py`. At a start with `--model-impl glm53` each attribute is compared with the
installed source, without importing it; one that moved, or whose kind or parameters changed, is named and the
start refused. `glm53 doctor` makes the same comparison.

*Hooked* and *replaced* mean SGLang's own `HookRegistry`; *guarded* means a plain assignment that
`sglang_glm53/plugin.py` makes before anything else; *overridden* and *base of* mean an ordinary subclass;
*set* means a variable of a module or an object that is assigned. The list is meant to shrink: the
last column says when a row can go.

The move to another SGLang starts with the list of what changed there. `glm53 seams --against PATH` makes it
without importing or installing that SGLang; PATH is a wheel, a checkout or any folder that holds `sglang/`:

```bash
pip download --no-deps sglang==0.5.22
glm53 seams --against sglang-0.5.22-*.whl
```
"""
TITLES = {
    "guard": "What the guard stands on. Without these rows it cannot refuse: a start that asks for `glm53`\n"
    "ends in `SystemExit` or in the exception itself.",
    "serving": "From here on checked, and hooked where a row says so, once `--model-impl glm53` is seen.",
    "cpu": "The reference platform: checked and hooked only with `SGLANG_PLATFORM=glm53_cpu`.",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `glm53 seams`."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--against",
        type=Path,
        metavar="PATH",
        help="compare with this SGLang, by default with the installed one: a wheel, a checkout, or a folder "
        "that holds sglang/",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    what.add_argument("--markdown", action="store_true", help="print the whole document, docs/upstream.md")


def run(args: argparse.Namespace) -> int:
    """Print what changed, or the document; the exit status is 1 when a seam changed, 2 without an SGLang."""
    if args.markdown:
        print(markdown(), end="")
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        try:
            package = _package(args.against, Path(scratch))
            changed = compare(package)
        except (ValueError, OSError, SyntaxError, zipfile.BadZipFile) as error:
            print(f"glm53 seams: {error}", file=sys.stderr)
            return 2
        version = _version(package) if args.against else upstream.version()
    if args.json:
        print(json.dumps(_report(version, args.against or package, changed), indent=2))
    else:
        _print(version, args.against or package, changed)
    return int(any(changed.values()))


def compare(package: Path) -> dict[str, list[Change]]:
    """By feature, the seams that the source under package declares otherwise, and where it has them now."""
    return {
        feature: [upstream.located(change, package) for change in upstream.changes(seams, package)]
        for feature, seams in FEATURES.items()
    }


def _package(path: Path | None, scratch: Path) -> Path:
    """The folder of the package sglang at a path (see --against); a wheel's sources are unpacked to scratch.

    Raises ValueError where there is none.
    """
    if path is None:
        installed = upstream.root()
        if installed is None:
            raise ValueError("sglang is not installed: give --against PATH")
        return installed
    if not path.exists():
        raise ValueError(f"--against {path}: no such file or folder")
    if path.is_file():
        if not zipfile.is_zipfile(path):
            raise ValueError(f"--against {path}: neither a wheel nor a folder")
        with zipfile.ZipFile(path) as wheel:
            wheel.extractall(
                scratch, [name for name in wheel.namelist() if name.endswith((".py", "/METADATA"))]
            )
    root = scratch if path.is_file() else path
    for package in (root / "sglang", root / "python" / "sglang"):
        if (package / "srt").is_dir():
            return package
    raise ValueError(f"--against {path}: holds no sglang/srt; give the folder that holds sglang/, or a wheel")


def _version(package: Path) -> str | None:
    """What the metadata beside a package says, None where there is not exactly one."""
    found = [folder.stem.removeprefix("sglang-") for folder in package.parent.glob("sglang-*.dist-info")]
    return found[0] if len(found) == 1 else None


def _waiting() -> dict[str, Counter[str]]:
    """By feature, what its rows wait for, and how many do."""
    waiting = {feature: Counter(seam.remove_when for seam in seams) for feature, seams in FEATURES.items()}
    return {
        feature: Counter({when: rows for when, rows in counts.items() if not when.startswith(NEVER)})
        for feature, counts in waiting.items()
    }


def _hook(seam: Seam) -> str | None:
    return f"{seam.hook.kind} {seam.hook.handler}" if seam.hook else None


def _report(version: str | None, path: Path, changed: dict[str, list[Change]]) -> dict[str, Any]:
    return {
        "version": version,
        "path": str(path),
        "expected_version": upstream.VERSION,
        "seams": sum(map(len, FEATURES.values())),
        "changed": [
            {
                "feature": feature,
                "target": change.seam.target,
                "change": change.kind,
                "expected": change.seam.declared,
                "found": change.found,
                "places": list(change.places),
                "hook": _hook(change.seam),
                "why": change.seam.why,
                "remove_when": change.seam.remove_when,
            }
            for feature, changes in changed.items()
            for change in changes
        ],
        "remove_when": {feature: dict(counts) for feature, counts in _waiting().items()},
    }


def _print(version: str | None, path: Path, changed: dict[str, list[Change]]) -> None:
    every = [change for changes in changed.values() for change in changes]
    hooked = sum(change.seam.hook is not None for change in every)
    total = sum(map(len, FEATURES.values()))
    print(f"SGLang {version or 'of unknown version'}, {path}")
    print(f"{len(every)} of {total} seams differ from SGLang {upstream.VERSION}, {hooked} of them hooked")
    for kind, count in Counter(change.kind for change in every).items():
        print(f"  {count:>3} {kind}")
    for feature, changes in changed.items():
        if changes:
            print(f"\n{feature}: {len(changes)} of {len(FEATURES[feature])}")
        for change in changes:
            _print_change(change)
    print("\nRows that may go, should this SGLang do what they wait for:")
    for feature, counts in _waiting().items():
        for when, rows in counts.items():
            print(f"  {feature:<15}{rows:>3}  {when}")


def _print_change(change: Change) -> None:
    seam = change.seam
    print(f"  {change.kind:<11}{seam.target}")
    lines = [("expected", seam.declared), ("found", change.found or "nothing of that name")]
    lines += [("now", place) for place in change.places]
    lines += [("hook", _hook(seam) or "none"), ("why", seam.why), ("remove when", seam.remove_when)]
    for what, text in lines:
        print(f"    {what:<13}{text}")


def _how(seam: Seam) -> str:
    if seam.hook is None:
        return seam.why
    kind = HOOKED.get(seam.hook.kind, f"hooked ({seam.hook.kind}) by")
    return f"{kind} `{seam.hook.handler.removeprefix('sglang_glm53.')}`: {seam.why}"


def markdown() -> str:
    """docs/upstream.md."""
    text = HEADER
    for feature, seams in FEATURES.items():
        text += f"\n## {feature}\n" + (f"\n{TITLES[feature]}\n" if feature in TITLES else "")
        text += "\n| attribute | how and why | remove when |\n|---|---|---|\n"
        text += "".join(f"| `{seam.target}` | {_how(seam)} | {seam.remove_when} |\n" for seam in seams)
    return text
