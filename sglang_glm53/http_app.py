"""Owns the HTTP application that SGLang's tokenizer workers import: SGLang's own, with this package's hooks.

With --tokenizer-worker-num over 1 each worker is a process of its own, in which SGLang loads no plugin; it
imports the application that SGLANG_HTTP_SERVER_APP_PATH names. plugin.py points that variable here. Source:
SGLang 0.5.23, srt/entrypoints/http_server, _setup_and_run_http_server and _run_granian_server.
"""

from __future__ import annotations

from sglang.srt.entrypoints.http_server import app
from sglang.srt.plugins import load_plugins

from sglang_glm53 import plugin
from sglang_glm53.serving import preflight

__all__ = ["app"]

load_plugins()
preflight.refuse_if(plugin.select())
