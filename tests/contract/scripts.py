"""Owns the run of a launch script with stubs for the commands that it calls."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "launch"
LIBRARY = FOLDER / "lib.sh"
SCRIPTS = sorted(set(FOLDER.glob("*.sh")) - {LIBRARY})
# The router serves no model, and the smoke run starts others and ends.
NO_SERVERS = ("pd_router.sh", "pd_smoke.sh")
SERVERS = [script for script in SCRIPTS if script.name not in NO_SERVERS]
MODEL = "some/checkpoint"


@dataclass(frozen=True)
class Call:
    """A command that a script called: its words, the SGLANG_ variables that it saw, and its process."""

    words: list[str]
    environment: dict[str, str]
    process: int

    @property
    def flags(self) -> list[str]:
        """What follows --model-path and --model-impl in a server's words."""
        return self.words[self.words.index("--model-impl") + 2 :]


@dataclass(frozen=True)
class Run:
    """A script's calls in order, its exit status, its own process, and what it wrote to stderr."""

    calls: list[Call]
    status: int
    process: int
    said: str


def arguments(script: Path) -> list[str]:
    """The words that a script needs before SGLang's flags."""
    return ["1", "head:5000", MODEL] if "NODE_RANK" in script.read_text() else [MODEL]


def run(
    script: Path, folder: Path, words: list[str], doctor: int = 0, python: str = "exit 0", **given: str
) -> Run:
    """Run a script with a stub glm53 and a stub python in folder.

    words: the script's arguments. doctor: the exit status of the stub glm53. python: what the stub python
    runs, in sh, after it has told of itself. given: environment variables.
    """
    log = folder / "log"
    log.write_text("")
    for name, then in (("glm53", f"exit {doctor}"), ("python", python)):
        stub = folder / name
        told = f'told=$(printf "%s\\n" $$ {name} "$@"; env | grep ^SGLANG_; echo ---)'
        # In one piece, as others may write beside it.
        stub.write_text(f'#!/bin/sh\n{told}\necho "$told" >>{log}\n{then}\n')
        stub.chmod(0o755)
    process = subprocess.Popen(
        ["bash", str(script), *words],
        env={"PATH": f"{folder}:/usr/bin:/bin"} | given,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    _, said = process.communicate()
    calls = []
    for block in log.read_text().split("---\n")[:-1]:
        number, *lines = block.splitlines()
        variables = [line for line in lines if line.startswith("SGLANG_")]
        told = dict(line.split("=", 1) for line in variables)
        calls.append(Call(lines[: len(lines) - len(variables)], told, int(number)))
    return Run(calls, process.returncode, process.pid, said)


def server(name: str, folder: Path, **given: str) -> Call:
    """The call by which the script of that name becomes the server, run with its least arguments."""
    script = FOLDER / name
    return run(script, folder, arguments(script), **given).calls[-1]
