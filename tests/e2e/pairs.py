"""Owns the prefill/decode pairs that tests run: two servers, a client that speaks to both, and the router."""

from __future__ import annotations

import importlib
import importlib.util
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from sglang_glm53.testing.server import HOST, Server, free_port

TRANSFER = ("--disaggregation-transfer-backend", "mooncake_tcp")
# Mooncake offers its peer the address that SGLang finds for the host, which may reach no loopback.
ENVIRONMENT = {"SGLANG_HOST_IP": HOST}


def missing() -> str | None:
    """Why no pair can run here, with the repair; None when one can."""
    for module in ("mooncake", "sglang_router"):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed: pip install 'sglang-glm53[pd]'"
    try:
        importlib.import_module("mooncake.engine")
    except ImportError as error:
        return f"Mooncake does not load ({error}): apt-get install libibverbs1 librdmacm1"
    return None


@dataclass(frozen=True)
class Pair:
    """A running pair. port: of the prefill's bootstrap server."""

    prefill: Server
    decode: Server
    port: int

    def generate(self, prompt: Sequence[int], max_new_tokens: int = 8, **fields: Any) -> dict[str, Any]:
        """The decode's answer to one request, whose prompt the prefill computes.

        Raises requests.HTTPError with the decode's error.
        """
        room = random.getrandbits(62)
        ids = {"bootstrap_host": HOST, "bootstrap_port": self.port, "bootstrap_room": room, "rid": f"r{room}"}
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(self.prefill.generate, prompt, max_new_tokens, **ids, **fields)
            try:
                answer: dict[str, Any] = self.decode.generate(prompt, max_new_tokens, **ids, **fields)
            except requests.HTTPError:
                # The prefill waits for a decode that will not come; a router drops its request likewise.
                self.prefill.post("/abort_request", json={"rid": ids["rid"]})
                with suppress(requests.HTTPError):
                    first.result()
                raise
            first.result()
        return answer

    def flush_cache(self) -> None:
        """Drop every cached prefix of both."""
        self.prefill.flush_cache()
        self.decode.flush_cache()


@contextmanager
def pair(
    serve: Callable[..., Server],
    path: Path,
    *flags: str,
    prefill: Sequence[str] = (),
    decode: Sequence[str] = (),
    prefill_mutation: str = "",
    decode_mutation: str = "",
) -> Iterator[Pair]:
    """Run a pair. flags: both servers'; prefill and decode: one's own, which win."""
    port = free_port()
    both = (*flags, *TRANSFER, "--disaggregation-bootstrap-port", str(port), "--disaggregation-mode")
    first = serve(path, *both, "prefill", *prefill, env=ENVIRONMENT, mutation=prefill_mutation)
    second = serve(path, *both, "decode", *decode, env=ENVIRONMENT, mutation=decode_mutation)
    try:
        with first, second:
            yield Pair(first, second, port)
    finally:
        # Entering the first may have failed.
        second.kill()


@contextmanager
def router(running: Pair, log: Path) -> Iterator[Server]:
    """SGLang's router before a pair, ready for requests. log: for what it prints."""
    port = free_port()
    command = [sys.executable, "-m", "sglang_router.launch_router", "--pd-disaggregation"]
    command += ["--prefill", running.prefill.url, str(running.port), "--decode", running.decode.url]
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "--host", HOST, "--port", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    with Server(process, port, log, "/readiness") as ready:
        yield ready
