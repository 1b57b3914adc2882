"""With several tokenizer workers, each loads this package and refuses what would end the scheduler."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.e2e.asking import prompt

WORKERS = 2
# Two workers import SGLang at once, which takes longer than uvicorn waits for a sign of life.
PATIENCE = {"SGLANG_UVICORN_WORKER_HEALTHCHECK_TIMEOUT": "300"}


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def test_each_worker_checks_requests(serve, checkpoint):
    flags = ("--dtype", "float32", "--tokenizer-worker-num", str(WORKERS))
    bad = {"input_ids": [40, 10**6], "sampling_params": {"max_new_tokens": 2}}
    with serve(checkpoint("default"), *flags, env=PATIENCE) as server:
        # The first one to listen answers for all.
        wait_until(lambda: server.log_text().count("Application startup complete") == WORKERS)
        healthy = server.generate(prompt(90))["output_ids"]
        # The kernel deals connections out; of so many at once each worker gets some.
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda _: server.post("/generate", json=bad), range(64)))
        assert {answer.status_code for answer in answers} == {400}
        assert all("input_ids holds 1000000" in answer.text for answer in answers)
        assert server.generate(prompt(90))["output_ids"] == healthy
