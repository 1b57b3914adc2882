"""Owns what the end-to-end tests share: the zygote, the oracle, the checkpoints and how a server starts."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sglang_glm53.testing import server
from sglang_glm53.testing.oracle import Oracle
from sglang_glm53.testing.server import Server, Zygote
from sglang_glm53.tiny.checkpoint import write
from tests.e2e.checkpoints import CHECKPOINTS, WITH_MTP

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """The session's folder for logs, answers and the servers' own temporary files."""
    return tmp_path_factory.mktemp("e2e")


@pytest.fixture(scope="session", autouse=True)
def ports() -> None:
    """Each of pytest-xdist's workers draws from its own: what is free now may be the other's in a second."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    share = len(server.PORTS) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    server.PORTS = server.PORTS[worker * share : (worker + 1) * share - max(server.PORT_SPAN)]


@pytest.fixture(scope="session")
def zygote(folder) -> Iterator[Zygote]:
    (folder / "tmp").mkdir()
    process = Zygote(
        [sys.executable, "-m", "tests.e2e.zygote"],
        {"TMPDIR": str(folder / "tmp")},
        folder / "zygote.log",
        ROOT,
    )
    yield process
    process.close()


@pytest.fixture(scope="session")
def oracle(folder) -> Iterator[Oracle]:
    (folder / "oracle").mkdir()
    with Oracle(folder / "oracle") as process:
        yield process


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> Callable[[str], Path]:
    """name -> a folder with one of CHECKPOINTS or WITH_MTP, written at its first use, from any thread."""
    written: dict[str, Path] = {}
    lock = threading.Lock()

    def folder_of(name: str) -> Path:
        with lock:
            if name not in written:
                written[name] = tmp_path_factory.mktemp(name)
                write((CHECKPOINTS | WITH_MTP)[name], written[name])
            return written[name]

    return folder_of


BASE_FLAGS = (
    "--model-impl",
    "glm53",
    "--skip-server-warmup",
    "--max-total-tokens",
    "8192",
    "--random-seed",
    "0",
)


@pytest.fixture(scope="session")
def serve(zygote, folder) -> Callable[..., Server]:
    """Start a server: serve(checkpoint folder, *flags, env={}, mutation="", port=None), to be entered with
    `with`.

    mutation: the name of a function in tests/e2e/mutations.py, or "module:function" in tests.e2e.
    port: a free one unless given.
    """
    count = itertools.count()

    def start(
        path: Path,
        *flags: str,
        env: dict[str, str] | None = None,
        mutation: str = "",
        port: int | None = None,
    ) -> Server:
        args = ["--model-path", str(path), *BASE_FLAGS, *flags]
        log = folder / f"server{next(count)}.log"
        module, _, name = mutation.rpartition(":")
        return zygote.start(args, log, env, mutation and f"tests.e2e.{module or 'mutations'}:{name}", port)

    return start
