"""The flags by which a process of the server would run without this package."""

from types import SimpleNamespace

import pytest

from sglang_glm53 import HTTP_APP
from sglang_glm53.serving.processes import reasons
from tests.configs import HARMLESS

APP, OWN_APP = "SGLANG_HTTP_SERVER_APP_PATH", "mine:app"


@pytest.mark.parametrize(
    ("flags", "http_app", "rust_server", "reason"),
    [
        ({}, None, False, None),
        ({"use_ray": True}, None, False, "--use-ray: SGLang's Ray actors load no plugin: leave it out"),
        (
            {"weight_cache_mode": "client"},
            None,
            False,
            "--weight-cache-mode client: its daemon loads no plugin: leave it out",
        ),
        ({"smg_grpc_mode": True}, None, False, "--smg-grpc-mode or --grpc-mode: its servicer does not check"),
        ({"grpc_mode": True}, None, False, "--smg-grpc-mode or --grpc-mode: its servicer does not check"),
        ({}, None, True, "SGLANG_RUST_SERVER=1: the Rust server does not check requests"),
        ({"tokenizer_worker_num": 4}, None, False, None),
        ({"tokenizer_worker_num": 4}, HTTP_APP, False, None),
        ({"tokenizer_worker_num": 4}, OWN_APP, False, f"{APP}={OWN_APP} with --tokenizer-worker-num 4: "),
        ({}, OWN_APP, False, None),
    ],
)
def test_processes_without_this_package(flags, http_app, rust_server, reason):
    found = reasons(SimpleNamespace(**HARMLESS | flags), http_app, rust_server)
    assert len(found) == (reason is not None)
    assert all(listed.startswith(reason) for listed in found)
