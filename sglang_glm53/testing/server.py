"""Owns the servers that tests run: started, watched, spoken to over HTTP, and always killed."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import requests

# Text, token ids, or token ids of several prompts.
Prompt = str | Sequence[int] | Sequence[Sequence[int]]

HOST = "127.0.0.1"
# What a server on the reference platform needs around it, whichever way it starts.
ENVIRONMENT = {
    "SGLANG_PLATFORM": "glm53_cpu",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
# SGLang derives further ports from the first one under attention DP; server_args.py, ZMQ_TCP_PORT_DELTA.
PORT_SPAN = (0, *range(233, 250))
# Below the range that bind(0) and SGLang itself draw from.
PORTS = range(12000, 21000)

# A process that dies says "hit an exception"; without one, a traceback may be only a warning's.
_TRACEBACKS = (
    re.compile(r"^.* hit an exception: Traceback \(most recent call last\):", re.M),
    re.compile(r"^.*Traceback \(most recent call last\):", re.M),
)
_LOG_PREFIX = re.compile(r"^\[\d{4}-\d\d-\d\d ", re.M)


class ServerError(RuntimeError):
    """The server ended, or was not ready in time. The message holds its first traceback; log has it all."""

    def __init__(self, what: str, log: str) -> None:
        super().__init__(f"{what}\n{first_error(log)}")
        self.log = log


def first_error(log: str) -> str:
    """A log's first traceback, of a process that died if one did, up to the next log line; else its end."""
    found = next(filter(None, (pattern.search(log) for pattern in _TRACEBACKS)), None)
    if found is None:
        return log[-4000:]
    rest = log[found.start() :]
    end = _LOG_PREFIX.search(rest, found.end() - found.start())
    return rest[: end.start()].rstrip() if end else rest.rstrip()


def free_port() -> int:
    """A port that is free together with those that SGLang derives from it."""
    for port in random.sample(PORTS, 200):
        with suppress(OSError):
            for offset in PORT_SPAN:
                with socket.socket() as probe:
                    probe.bind((HOST, port + offset))
            return port
    raise RuntimeError(f"no free port in {PORTS.start}..{PORTS.stop - 1}")


def _shared_memory(group: int) -> set[Path]:
    """The /dev/shm files that the processes of a group have mapped."""
    found: set[Path] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            if os.getpgid(int(maps.parent.name)) == group:
                found |= {Path(path) for path in re.findall(r"/dev/shm/\S+", maps.read_text())}
    return found


class Process(Protocol):
    """A server's process, the leader of its own process group."""

    pid: int

    def poll(self) -> int | None:
        """None while it runs, else its exit code."""


class _Forked:
    def __init__(self, zygote: Zygote, pid: int) -> None:
        self._zygote = zygote
        self.pid = pid

    def poll(self) -> int | None:
        code: int | None = self._zygote.ask(do="poll", pid=self.pid)
        return code


class Zygote:
    """A process that has imported everything; servers forked from it start in 2 to 3 s.

    command: starts the process (it answers JSON commands, see tests/e2e/zygote.py). env: added to this
    process's environment, cwd: its folder. log: the file for what the process itself prints.
    Raises ServerError when it does not come up.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path, cwd: Path) -> None:
        self._log = log
        self._turn = threading.Lock()
        with log.open("w") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={**os.environ, **ENVIRONMENT, **env},
                cwd=cwd,
                text=True,
                start_new_session=True,
            )
        self._answer()

    def ask(self, **command: Any) -> Any:
        """Send one command and wait for its answer; threads take turns."""
        assert self._process.stdin is not None
        with self._turn:
            with suppress(BrokenPipeError):
                print(json.dumps(command), file=self._process.stdin, flush=True)
            return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ServerError(
                f"the zygote ended with exit code {self._process.wait()}",
                self._log.read_text(errors="replace"),
            )
        return json.loads(line)["answer"]

    def start(
        self,
        args: Sequence[str],
        log: Path,
        env: Mapping[str, str] | None = None,
        mutation: str = "",
        port: int | None = None,
    ) -> Server:
        """Fork a server. args: sglang.launch_server's, without host and port. mutation: "module:function",
        called in the child before the server starts. port: a free one unless given. Does not wait until it
        is ready."""
        port = port or free_port()
        pid = self.ask(
            do="start", args=_full_args(args, port), env=dict(env or {}), log=str(log), mutation=mutation
        )
        return Server(_Forked(self, pid), port, log)

    def close(self) -> None:
        """End it; servers that still run die with it."""
        self._process.kill()
        self._process.wait()


def spawn(args: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> Server:
    """Start `python -m sglang.launch_server` the stock way. args, env: as for `Zygote.start`."""
    port = free_port()
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "sglang.launch_server", *_full_args(args, port)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **ENVIRONMENT, **(env or {})},
            start_new_session=True,
        )
    return Server(process, port, log)


def _full_args(args: Sequence[str], port: int) -> list[str]:
    return [*args, "--host", HOST, "--port", str(port)]


class Server:
    """A running server. A context manager: entering waits until it is ready, leaving kills it.

    process: the leader of the process group that holds the whole server. log: its stdout and stderr.
    ready: the path that answers once requests are taken.
    """

    def __init__(self, process: Process, port: int, log: Path, ready: str = "/ready") -> None:
        self._process = process
        self._log = log
        self._ready = ready
        self._started = time.monotonic()
        self.url = f"http://{HOST}:{port}"
        self.startup_seconds = 0.0
        self._shared_memory: set[Path] = set()

    def __enter__(self) -> Self:
        try:
            self.wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def wait_ready(self, timeout: float = 300.0) -> None:
        """Wait until requests are taken; raises ServerError when it ended or after timeout seconds."""
        while time.monotonic() < self._started + timeout:
            if (code := self._process.poll()) is not None:
                raise ServerError(f"the server ended with exit code {code}", self.log_text())
            # A server that dies on its own takes the list of its shared memory with it.
            self._shared_memory |= _shared_memory(self._process.pid)
            with suppress(requests.ConnectionError, requests.Timeout):
                if requests.get(self.url + self._ready, timeout=5).ok:
                    self.startup_seconds = time.monotonic() - self._started
                    return
            time.sleep(0.1)
        raise ServerError(f"the server was not ready within {timeout:g} s", self.log_text())

    def kill(self) -> None:
        """Kill every process of the server, wait for the first one's end, and remove its shared memory,
        up to 25 MB a server, which a killed process cannot remove itself."""
        self._shared_memory |= _shared_memory(self._process.pid)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        while self._process.poll() is None:
            time.sleep(0.02)
        for path in self._shared_memory:
            path.unlink(missing_ok=True)

    def cpu_seconds(self) -> list[float]:
        """The CPU time that each process of the server has used so far, the first process's first."""
        used: dict[int, float] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            pid = int(stat.parent.name)
            with suppress(OSError):
                if os.getpgid(pid) == self._process.pid:
                    # After the name in parentheses, fields 14 and 15 are user and system time in ticks.
                    ticks = sum(map(int, stat.read_text().rpartition(")")[2].split()[11:13]))
                    used[pid] = ticks / os.sysconf("SC_CLK_TCK")
        return [used.pop(self._process.pid, 0.0), *used.values()]

    def log_text(self) -> str:
        """All that the server has printed."""
        return self._log.read_text(errors="replace")

    def request(self, method: str, path: str, *, timeout: float = 120.0, **kwargs: Any) -> requests.Response:
        """One HTTP request (kwargs: those of requests.request). Raises ServerError when the server ended."""
        try:
            return requests.request(method, self.url + path, timeout=timeout, **kwargs)
        except requests.ConnectionError:
            time.sleep(0.5)
            if (code := self._process.poll()) is not None:
                raise ServerError(f"the server ended with exit code {code}", self.log_text()) from None
            raise

    def get(self, path: str, **kwargs: Any) -> requests.Response:
        """A GET request."""
        return self.request("GET", path, **kwargs)

    def post(self, path: str, **kwargs: Any) -> requests.Response:
        """A POST request."""
        return self.request("POST", path, **kwargs)

    def generate(self, prompt: Prompt, max_new_tokens: int = 8, **fields: Any) -> Any:
        """A greedy /generate request that ignores EOS. fields: further request fields. Returns the answer, a
        list of them for several prompts. Raises requests.HTTPError with the server's answer."""
        answer: Any = self._checked(
            self.post("/generate", json=_generate_body(prompt, max_new_tokens, fields))
        )
        return answer

    def stream(self, prompt: Prompt, max_new_tokens: int = 8, **fields: Any) -> Iterator[dict[str, Any]]:
        """As `generate`, streamed: each event as it comes. Closing the iterator drops the connection."""
        body = _generate_body(prompt, max_new_tokens, fields) | {"stream": True}
        with self.post("/generate", json=body, stream=True) as response:
            response.raise_for_status()
            for line in response.iter_lines():
                if line.startswith(b"data: ") and line != b"data: [DONE]":
                    yield json.loads(line[len(b"data: ") :])

    def server_info(self) -> dict[str, Any]:
        """/server_info."""
        answer: dict[str, Any] = self._checked(self.get("/server_info"))
        return answer

    def flush_cache(self) -> None:
        """Drop every cached prefix. Raises requests.HTTPError when requests still run after 10 s: with
        speculative decoding an answer may be there before its last batch has ended."""
        self.post("/flush_cache", params={"timeout": 10}).raise_for_status()

    @staticmethod
    def _checked(response: requests.Response) -> Any:
        if not response.ok:
            raise requests.HTTPError(f"{response.status_code}: {response.text[:2000]}", response=response)
        return response.json()


def _generate_body(prompt: Prompt, max_new_tokens: int, fields: Mapping[str, Any]) -> dict[str, Any]:
    text = {"text": prompt} if isinstance(prompt, str) else {"input_ids": list(prompt)}
    sampling = {"max_new_tokens": max_new_tokens, "temperature": 0, "ignore_eos": True}
    return {**text, "sampling_params": sampling, **fields}
