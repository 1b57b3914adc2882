"""The harness ends what it starts and shows why a server failed; here with stand-ins for the server."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests

from sglang_glm53.testing.server import PORT_SPAN, PORTS, Server, ServerError, Zygote, first_error, free_port

SCHEDULER_DIED = """\
[2026-11-29 21:23:53] server_args={...}
[2026-11-29 21:23:54] post-warmup freeze_gc failed
Traceback (most recent call last):
requests.exceptions.ConnectionError: a warning's
[2026-11-29 21:23:55 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "loader.py", line 1, in load
    raise ValueError(message)
ValueError: 2 problems:
  model.norm.weight is missing

[2026-11-29 21:23:55] Received sigquit from a child process. It usually means the child failed.
Traceback (most recent call last):
RuntimeError: a later one
"""


def test_the_first_error_is_the_first_traceback_with_its_whole_message():
    shown = first_error(SCHEDULER_DIED)
    assert shown.startswith("[2026-11-29 21:23:55 TP0] Scheduler hit an exception")
    assert shown.endswith("ValueError: 2 problems:\n  model.norm.weight is missing")


def test_a_traceback_that_no_process_logged_is_shown_too():
    log = "warning: x\nTraceback (most recent call last):\n  File\nValueError: no such flag\n"
    assert first_error(log) == "Traceback (most recent call last):\n  File\nValueError: no such flag"


@pytest.mark.parametrize("log", ["Killed", "", "x" * 9000], ids=["short", "empty", "long"])
def test_without_a_traceback_the_logs_end_is_shown(log):
    assert first_error(log) == log[-4000:]


def test_a_port_is_free_with_the_ones_derived_from_it():
    port = free_port()
    assert port in PORTS
    assert PORT_SPAN[0] == 0
    assert 233 in PORT_SPAN


STAND_IN = """
import http.server, mmap, os, subprocess, sys
port, shared, pids = int(sys.argv[1]), sys.argv[2], sys.argv[3]
with open(shared, "wb") as file:
    file.write(bytes(4096))
mapped = mmap.mmap(os.open(shared, os.O_RDWR), 4096)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(pids, "w").write(str(child.pid))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/die":
            raise SystemExit
        self.send_response(200 if self.path == "/ready" else 418)
        self.end_headers()
    def do_POST(self):
        os._exit(3)
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def stand_in(tmp_path: Path, code: str = STAND_IN) -> tuple[Server, Path]:
    port, shared = free_port(), Path(f"/dev/shm/glm53_test_{os.getpid()}")
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(port), str(shared), str(tmp_path / "pids")],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Server(process, port, tmp_path / "log"), shared


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_leaving_ends_the_whole_group_and_its_shared_memory(tmp_path):
    server, shared = stand_in(tmp_path)
    with server:
        child = int((tmp_path / "pids").read_text())
        assert runs(child)
        assert shared.exists()
        assert 0 < server.startup_seconds < 60
        first, *others = server.cpu_seconds()
        assert 0 < first < 60
        assert len(others) == 1
        assert server.get("/other").status_code == 418
    deadline = time.monotonic() + 10
    while runs(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not runs(child)
    assert not shared.exists()
    with pytest.raises(requests.ConnectionError):
        requests.get(f"{server.url}/ready", timeout=5)


def test_a_server_that_ends_at_start_shows_its_exception(tmp_path):
    server, _ = stand_in(tmp_path, "print('starting'); raise ValueError('the reason')")
    begun = time.monotonic()
    with pytest.raises(ServerError, match=r"(?s)exit code 1\nTraceback.*ValueError: the reason") as caught:
        server.__enter__()
    assert time.monotonic() - begun < 60
    assert caught.value.log.startswith("starting\n")


def test_a_server_that_is_never_ready_is_named_so(tmp_path):
    server, _ = stand_in(tmp_path, "import time; print('loading', flush=True); time.sleep(600)")
    try:
        with pytest.raises(ServerError, match=r"not ready within 2 s\nloading"):
            server.wait_ready(timeout=2)
    finally:
        server.kill()


def test_a_request_to_a_server_that_dies_says_so(tmp_path):
    server, shared = stand_in(tmp_path)
    with server, pytest.raises(ServerError, match="the server ended with exit code 3"):
        server.post("/generate")
    assert not shared.exists()


ZYGOTE = """
import json, os, sys
sys.stdout.write(json.dumps({"answer": os.getpid()}) + "\\n"); sys.stdout.flush()
for line in sys.stdin:
    if json.loads(line)["do"] == "start":
        raise RuntimeError("the zygote's reason")
"""


@pytest.mark.parametrize(
    "code", [ZYGOTE, 'raise RuntimeError("the zygote\'s reason")'], ids=["later", "at start"]
)
def test_a_zygote_that_ends_shows_its_exception(tmp_path, code):
    with pytest.raises(ServerError, match=r"(?s)the zygote ended with exit code 1.*the zygote's reason"):
        Zygote([sys.executable, "-c", code], {}, tmp_path / "zygote.log", tmp_path).start(
            [], tmp_path / "log"
        )
