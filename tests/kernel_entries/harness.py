"""Owns the way from a test to the recorder: the CUDA stubs are built, the cases run in another process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# The recorder replaces private parts of both, so it holds for these versions only.
PINNED = {"sglang": "0.5.23", "torch": "2.14.1"}
TIMEOUT_S = 300

Case = dict[str, Any]
Entries = list[dict[str, str]]


def unfit() -> str | None:
    """Why nothing can be recorded here; None when it can."""
    installed = {name: metadata.version(name).partition("+")[0] for name in PINNED}
    if installed != PINNED:
        return f"recorded entries: pinned to {PINNED}, installed are {installed}: check it, then move the pin"
    return None if shutil.which("cc") else "recorded entries: no C compiler: apt-get install gcc"


def build_stubs(folder: Path) -> dict[str, str]:
    """Compile both stubs into folder and give the environment in which a process finds them."""
    runtime = folder / "libcudart_stub.so"
    build = ["cc", "-Wall", "-Werror", "-shared", "-fPIC"]
    subprocess.run([*build, "-o", runtime, HERE / "stub_cudart.c"], check=True)
    driver = ["-Wl,-soname,libcuda.so.1", "-o", folder / "libcuda.so.1", HERE / "stub_driver.c"]
    subprocess.run([*build, *driver], check=True)
    return {
        "LD_PRELOAD": str(runtime),
        "LD_LIBRARY_PATH": str(folder),
        "OMP_NUM_THREADS": "1",
        # Both would wait for peers or compile for minutes.
        "SGLANG_USE_MESSAGE_QUEUE_BROADCASTER": "0",
        "SGLANG_JIT_DEEPGEMM_PRECOMPILE": "0",
    }


def record(capability: str, cases: list[Case], stubs: dict[str, str]) -> list[dict[str, Any]]:
    """The answers to the cases, in their order: {"entries": [...]} or {"error": ...}.

    capability: "9.0" or "10.0". Raises RuntimeError when the process fails outside a case.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GLM53_", "SGLANG_"))}
    run = subprocess.run(
        [sys.executable, "-m", "tests.kernel_entries.process", capability],
        input="".join(json.dumps(case) + "\n" for case in cases),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=kept | stubs,
        timeout=TIMEOUT_S,
    )
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    if len(answers) != len(cases):
        raise RuntimeError(f"{len(answers)} of {len(cases)} cases were answered:\n{run.stderr[-4000:]}")
    for answer in answers:
        if "error" in answer:
            answer["stderr"] = run.stderr
    return answers


def of_layer(entries: Entries, layer: int) -> Entries:
    """The entries of one decoder layer."""
    prefix = f"model.layers.{layer}"
    return [e for e in entries if e["module"] == prefix or e["module"].startswith(prefix + ".")]


def lines(entries: Entries) -> list[str]:
    """The entries as text, one a line: name, module, call site."""
    return [f"{e['name']} | {e['module']} | {e['site']}" for e in entries]


def change(before: Entries, after: Entries) -> tuple[list[str], list[str]]:
    """What after lacks and what it adds, as sorted "name at module"."""
    left = Counter(f"{e['name']} at {e['module']}" for e in before)
    right = Counter(f"{e['name']} at {e['module']}" for e in after)
    return sorted((left - right).elements()), sorted((right - left).elements())
