"""Owns the recording process: SGLang imported once on a faked GPU, then one forked child a case.

Started by `harness.record`: capability as "9.0" in argv, the cases as JSON on stdin, one JSON answer a line.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any


def run_case(recorder: Any, case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The recorded entries of one case, {"entries": [...]}, from a child of this process.

    A child that fails or dies answers {"error": ...}; its output went to this process's stderr.
    """
    read, write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            from tests.kernel_entries import step

            answer = json.dumps(step.record(recorder, case, folder))
            status = 0
        except Exception as problem:
            traceback.print_exc()
            answer = json.dumps({"error": f"{type(problem).__name__}: {problem}"})
        with os.fdopen(write, "w") as pipe:
            pipe.write(answer)
        sys.stderr.flush()
        os._exit(status)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return json.loads(answer) if answer else {"error": f"the recording process ended with status {code}"}


def main() -> None:
    """Import everything, then answer the cases."""
    major, minor = map(int, sys.argv[1].split("."))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # SGLang prints; only answers may reach the caller.
    from tests.kernel_entries import fake_cuda

    fake_cuda.install((major, minor))
    from tests.kernel_entries import recorder

    recorded = recorder.install()
    from tests.kernel_entries import preload  # noqa: F401

    with tempfile.TemporaryDirectory() as folder:
        for line in sys.stdin:
            answer = run_case(recorded, json.loads(line), Path(folder))
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
