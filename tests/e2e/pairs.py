"""Owns the prefill/decode pairs that tests run: two servers, a client that speaks to both, and the router."""

from __future__ import annotations

import importlib
import importlib.util
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import requests

from sglang_glm53.disaggregation import packages
from sglang_glm53.testing.server import HOST, Server, free_port

TRANSFER = ("--disaggregation-transfer-backend", "mooncake_tcp")
# Mooncake offers its peer the address that SGLang finds for the host, which may reach no loopback.
ENVIRONMENT = {"SGLANG_HOST_IP": HOST}


def missing() -> str | None:
    """Why no pair can run here, with the repair; None when one can."""
    for module in ("mooncake", "sglang_router"):
        if importlib.util.find_spec(module) is None:
            return f"prefill/decode pairs: {module} is not installed: pip install 'sglang-glm53[pd]'"
    try:
        importlib.import_module("mooncake.engine")
    except ImportError as error:
        repair = packages.install_command(packages.missing_packages())
        return f"prefill/decode pairs: Mooncake does not load ({error}): {repair}"
    return None


Half = Literal["prefill", "decode"]


@dataclass
class Pair:
    """A running pair. port: of the prefill's bootstrap server. start: starts a half, at a port if given."""

    prefill: Server
    decode: Server
    port: int
    start: Callable[..., Server]

    def restart(self, half: Half) -> None:
        """Start a half anew with its flags and ports, killing it if it runs; wait until it is ready."""
        old: Server = getattr(self, half)
        old.kill()
        new = self.start(half, int(old.url.rpartition(":")[2]))
        setattr(self, half, new)
        new.wait_ready()

    def kill(self) -> None:
        """Kill both."""
        self.prefill.kill()
        self.decode.kill()

    def fields(self) -> dict[str, Any]:
        """The request fields by which both halves know a new request as one."""
        room = random.getrandbits(62)
        where = {"bootstrap_host": HOST, "bootstrap_port": self.port}
        return {**where, "bootstrap_room": room, "rid": f"r{room}"}

    def generate(self, prompt: Sequence[int], max_new_tokens: int = 8, **fields: Any) -> dict[str, Any]:
        """The decode's answer to one request, whose prompt the prefill computes.

        Raises requests.HTTPError with the decode's error.
        """
        ids = self.fields()
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
    env: Mapping[str, str] | None = None,
) -> Iterator[Pair]:
    """Run a pair. flags: both servers'; prefill and decode: one's own, which win. env: both servers'."""
    port = free_port()
    both = (*flags, *TRANSFER, "--disaggregation-bootstrap-port", str(port), "--disaggregation-mode")
    own = {"prefill": (prefill, prefill_mutation), "decode": (decode, decode_mutation)}

    def start(half: Half, at: int | None = None) -> Server:
        more, mutation = own[half]
        environment = {**ENVIRONMENT, **(env or {})}
        return serve(path, *both, half, *more, env=environment, mutation=mutation, port=at)

    running = Pair(start("prefill"), start("decode"), port, start)
    try:
        running.prefill.wait_ready()
        running.decode.wait_ready()
        yield running
    finally:
        running.kill()


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
