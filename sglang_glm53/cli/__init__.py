"""Owns the glm53 command: one module here for each subcommand, imported when it is asked for."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from sglang_glm53 import __version__
from sglang_glm53.upstream import VERSION

# Each module has add_arguments(parser) and run(args) -> exit status.
COMMANDS = {
    "bench": "measure the kernels beside their peers",
    "doctor": "check whether this machine and this install can serve GLM-5.3",
    "kernels": "print the kernel cards, or compile the kernels ahead of serving",
    "seams": "compare what is used of SGLang with any SGLang, or list it",
    "tiny": "write a small random checkpoint of the real architecture",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; argv is sys.argv[1:] by default.

    Returns its exit status. Raises SystemExit(2) on an unknown subcommand or flag, naming the known ones.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(words)
    except ModuleNotFoundError as missing:
        command = " ".join(["glm53", *words[:1]])
        print(f"{command}: {missing.name} is not installed: pip install sglang=={VERSION}", file=sys.stderr)
        return 1


def _run(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="glm53", description="Tools for serving GLM-5.3 through SGLang.")
    parser.add_argument("--version", action="version", version=f"sglang-glm53 {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    asked = next((word for word in words if word in COMMANDS), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        if name == asked:
            module = importlib.import_module(f"{__name__}.{name}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    args = parser.parse_args(words)
    status: int = args.run(args)
    return status
