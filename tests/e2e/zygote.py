"""Owns the process that imports SGLang once and forks real servers from it, a few seconds each.

Started by `sglang_glm53.testing.server.Zygote`: one JSON command a line on stdin, one JSON answer a line on
stdout. It runs no tensor code itself: a thread pool that a forked child inherits without its threads hangs.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import multiprocessing
import os
import random
import signal
import sys
import time
import traceback
from typing import Any

PR_SET_PDEATHSIG = 1
# Seconds; a forward of the smallest checkpoint takes ten times as long.
PAUSE = 0.002


def preload() -> None:
    """Import all that a server's three kinds of process use, plugins first, as sglang.launch_server does."""
    import sglang.launch_server
    import torch
    from sglang.srt.plugins import load_plugins

    from sglang_glm53.serving import hooks

    # ATen's pool does not survive a fork; a pool of one needs no threads.
    torch.set_num_threads(1)
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))
    sys.argv = [sglang.launch_server.__file__]
    load_plugins()
    for module in (
        "sglang.srt.entrypoints.http_server",
        "sglang.srt.managers.scheduler",
        "sglang.srt.managers.detokenizer_manager",
        "sglang.srt.managers.data_parallel_controller",
        "sglang.srt.model_executor.model_runner",
        "sglang.srt.models.deepseek_nextn",
        "sglang.srt.models.registry",
    ):
        importlib.import_module(module)
    # Every server asks how SGLang declares each seam: 1.5 s of parsing, whose answers a fork inherits.
    hooks.fingerprint()
    find_methods_in_classes()
    pause_when_idle()
    fork_schedulers()
    # SGLang collects garbage before it measures memory: a million objects, 0.7 s, of which none is garbage.
    gc.collect()
    gc.freeze()


def find_methods_in_classes() -> None:
    """SGLang looks for each hooked function in every module, 0.06 s a hook. Of 14 hooks 13 are on methods,
    which no module holds."""
    from sglang.srt.plugins import hook_registry

    original = hook_registry._propagate_patch

    def propagate(function: Any, wrapped: Any, owner: Any) -> int:
        return 0 if isinstance(owner, type) else original(function, wrapped, owner)

    hook_registry._propagate_patch = propagate


def pause_when_idle() -> None:
    """SGLang's idle schedulers and its controller of data ranks ask for requests without a pause: each would
    take one of two cores from a server that works."""
    from sglang.srt.managers import data_parallel_controller
    from sglang.srt.managers.scheduler import Scheduler

    receive = data_parallel_controller.sock_recv

    def receive_or_wait(socket: Any, flags: int = 0) -> Any:
        socket.poll(round(1000 * PAUSE))
        return receive(socket, flags=flags)

    data_parallel_controller.sock_recv = receive_or_wait
    Scheduler.maybe_sleep_on_idle = lambda self: time.sleep(PAUSE)


def fork_schedulers() -> None:
    """SGLang spawns its schedulers, which import everything again: 8 to 10 s each. Fork them too."""
    from sglang.srt.entrypoints import engine

    original = engine._set_envs_and_config

    def set_envs_and_fork(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        multiprocessing.set_start_method("fork", force=True)

    engine._set_envs_and_config = set_envs_and_fork


def serve(command: dict[str, Any]) -> None:
    """Become a server: never returns to the command loop. The log gets stdout and stderr."""
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    log = os.open(command["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(command["env"])
    # The same seed in every child would make SGLang try the same ports.
    random.seed()
    sys.argv = [sys.argv[0], *command["args"]]
    if command["mutation"]:
        module, _, name = command["mutation"].partition(":")
        getattr(importlib.import_module(module), name)()
    run_server(prepare_server_args(command["args"]))


def fork_server(command: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        serve(command)
        code = 0
    except BaseException:  # a forked child must not fall back into the parent's command loop
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def exit_code(pid: int) -> int | None:
    """None while the process runs; its code once it ended, reaping it."""
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    running: dict[int, int | None] = {}

    def handle(command: dict[str, Any]) -> Any:
        match command["do"]:
            case "start":
                pid = fork_server(command)
                running[pid] = None
                return pid
            case "poll":
                pid = command["pid"]
                if running[pid] is None:
                    running[pid] = exit_code(pid)
                return running[pid]
        raise ValueError(f"unknown command {command['do']!r}")

    preload()
    print(json.dumps({"answer": os.getpid()}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps({"answer": handle(json.loads(line))}), file=answers, flush=True)


if __name__ == "__main__":
    main()
