"""Owns builds of emulated kernels as programs, plain or under the sanitizers, and their runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sglang_glm53.kernels import jit

# address: AddressSanitizer and UBSan. thread: ThreadSanitizer, which sees each CUDA thread as one of its own.
CHECKS = {
    "plain": ("-O2",),
    "address": (
        "-O1",
        "-g1",
        "-fsanitize=address,undefined,float-cast-overflow",
        "-fno-sanitize=vptr",
        "-fno-sanitize-recover=all",
    ),
    "thread": ("-O1", "-g1", "-fsanitize=thread"),
}
WARNINGS = ("-Wall", "-Wextra", "-Werror")
BUILD_SECONDS, RUN_SECONDS = 600, 300
# What a refused launch leaves on its fibers' stacks is lost, and no leak of the kernel's.
SANITIZER_OPTIONS = {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "report_signal_unsafe=0"}


@dataclass(frozen=True)
class Outcome:
    """How a run ended. status: the exit status, negative for a signal. output: stdout and stderr."""

    status: int
    output: str


def compiler() -> str | None:
    """The host C++ compiler, or None."""
    return shutil.which(os.environ.get("CXX", "c++"))


def build(
    source: Path, folder: Path, checks: str = "plain", flags: Sequence[str] = (), csrc: Path | None = None
) -> Path:
    """Compile a program over the emulation into folder; returns it.

    checks: one of CHECKS. csrc: where the kernels come from, by default this package's.
    Raises RuntimeError with the compiler's output when it does not compile.
    """
    found = compiler()
    if found is None:
        raise RuntimeError("no host C++ compiler: install g++ 12 or newer, or set CXX")
    sources = csrc or jit.csrc_dir()
    program = folder / f"{source.stem}-{checks}"
    command = [found, "-std=c++20", *CHECKS[checks], *WARNINGS, *jit.EMULATION_FLAGS, *flags]
    command += [f"-I{sources}", f"-I{sources / 'include'}", str(source), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return program


def run(program: Path, *arguments: str, order: str = "forward", seed: int = 0) -> Outcome:
    """Run a program whose last two arguments are the schedule: forward, reversed or random, and its seed."""
    done = subprocess.run(
        [str(program), *arguments, order, str(seed)],
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        env=os.environ | SANITIZER_OPTIONS,
    )
    return Outcome(done.returncode, done.stdout + done.stderr)
