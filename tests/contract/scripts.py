"""Owns the run of a launch script with stubs for the commands that it calls."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "launch"
SCRIPTS = sorted(FOLDER.glob("*.sh"))
# The router serves no model, and the smoke run starts others and ends.
NO_SERVERS = ("pd_router.sh", "pd_smoke.sh")
SERVERS = [script for script in SCRIPTS if script.name not in NO_SERVERS]
MODEL = "some/checkpoint"


@dataclass(frozen=True)
class Call:
    """A command that a script called: its words, and the SGLANG_ variables that it saw."""

    words: list[str]
    environment: dict[str, str]


def arguments(script: Path) -> list[str]:
    """The words that a script needs before SGLang's flags."""
    return ["1", "head:5000", MODEL] if "NODE_RANK" in script.read_text() else [MODEL]


def run(
    script: Path, folder: Path, words: list[str], doctor: int = 0, **given: str
) -> tuple[list[Call], int]:
    """Run a script with a stub glm53 and a stub python in folder: the calls they saw, and the exit status.

    words: the script's arguments. doctor: the exit status of the stub glm53. given: environment variables.
    """
    log = folder / "log"
    log.write_text("")
    for name, status in (("glm53", doctor), ("python", 0)):
        stub = folder / name
        call = f'printf "%s\\n" {name} "$@" >>{log}; env | grep ^SGLANG_ >>{log}; echo --- >>{log}'
        stub.write_text(f"#!/bin/sh\n{call}\nexit {status}\n")
        stub.chmod(0o755)
    command = ["bash", str(script), *words]
    ended = subprocess.run(command, env={"PATH": f"{folder}:/usr/bin:/bin"} | given, capture_output=True)
    calls = []
    for block in log.read_text().split("---\n")[:-1]:
        lines = block.splitlines()
        variables = [line for line in lines if line.startswith("SGLANG_")]
        calls.append(Call(lines[: len(lines) - len(variables)], dict(v.split("=", 1) for v in variables)))
    return calls, ended.returncode
