"""Owns the reasons against flags by which a server's process would run without this package.

SGLang loads plugins in its launchers, schedulers, data-parallel controller and detokenizer; http_app.py loads
this one in tokenizer workers. tests/contract/test_processes.py lists every process that SGLang starts.
"""

from __future__ import annotations

from typing import Any

from sglang_glm53 import HTTP_APP


def reasons(flags: Any, http_app: str | None, rust_server: bool) -> list[str]:
    """Why a process of the server would build a model, or take requests, without this package.

    http_app: SGLANG_HTTP_SERVER_APP_PATH if set. rust_server: SGLANG_RUST_SERVER. Ray and the weight daemon
    build the stock model; the others pass a request on to the schedulers unchecked, and a bad one ends those.
    """
    found = []
    if flags.use_ray:
        found.append("--use-ray: SGLang's Ray actors load no plugin: leave it out")
    if flags.weight_cache_mode != "off":
        found.append(
            f"--weight-cache-mode {flags.weight_cache_mode}: its daemon loads no plugin: leave it out"
        )
    if flags.smg_grpc_mode or flags.grpc_mode:
        found.append(
            "--smg-grpc-mode or --grpc-mode: its servicer does not check requests, and a bad one ends the "
            "schedulers: use --grpc-port, whose requests are checked"
        )
    if rust_server:
        found.append(
            "SGLANG_RUST_SERVER=1: the Rust server does not check requests, and a bad one ends the "
            "schedulers: unset it"
        )
    if flags.tokenizer_worker_num > 1 and http_app not in (None, HTTP_APP):
        found.append(
            f"SGLANG_HTTP_SERVER_APP_PATH={http_app} with --tokenizer-worker-num "
            f"{flags.tokenizer_worker_num}: workers load this package with {HTTP_APP} alone: unset it, or "
            "leave out the flag"
        )
    return found
