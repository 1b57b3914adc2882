"""Owns the work that is done ahead of the tests: a server keeps one core busy, and there are two.

Where pytest-xdist runs two workers, the other worker's server has the second core.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

WORKERS = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2


@contextmanager
def run_ahead(
    function: Callable[..., Any], wanted: Iterable[tuple[Hashable, ...]], workers: int = WORKERS
) -> Iterator[Callable[..., Any]]:
    """Start function(*arguments) for each wanted tuple once, in order; gives a function that waits for one.

    What a call raised, its test gets; a call that was not announced starts when it is asked for.
    """
    with ThreadPoolExecutor(workers) as pool:
        started: dict[tuple[Hashable, ...], Future[Any]] = {}

        def result(*arguments: Hashable) -> Any:
            if arguments not in started:
                started[arguments] = pool.submit(function, *arguments)
            return started[arguments].result()

        for arguments in dict.fromkeys(wanted):
            started[arguments] = pool.submit(function, *arguments)
        try:
            yield result
        finally:
            pool.shutdown(cancel_futures=True)


def parameters(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """The parameters of every test of the requesting module that this session runs, in order."""
    items = [item for item in request.session.items if item.module is request.module]
    return [item.callspec.params if hasattr(item, "callspec") else {} for item in items]
