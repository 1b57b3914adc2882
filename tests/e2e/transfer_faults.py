"""Owns the faults of a prefill's transfers that a test asks for while the server runs.

A test asks by creating a file in the servers' temporary folder; the prefill that meets it takes it away, so
each file is one fault.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path
from typing import Any

# A transfer that fails; a transfer whose success the decode is never told; one that is lost without an error.
FAIL, UNTOLD, LOSE = "fail_transfer", "untold_transfer", "lose_transfer"
# Tiny rows cross in milliseconds; so long each transfer takes at most, for a fault to meet one.
SECONDS = 0.15
FAILED = -1


def _asked(name: str) -> bool:
    try:
        (Path(tempfile.gettempdir()) / name).unlink()
    except FileNotFoundError:
        return False
    return True


def install() -> None:
    """Slow every transfer of this process down, and fail those that a test asks for."""
    from sglang.srt.disaggregation.mooncake.conn import MooncakeKVManager as Manager

    transfer, tell = Manager._transfer_data, Manager.send_kv_status_message

    def transfer_data(self: Any, session: str, blocks: Any) -> int:
        time.sleep(random.uniform(0, SECONDS))
        if _asked(FAIL):
            return FAILED
        if _asked(LOSE):
            return 0
        result: int = transfer(self, session, blocks)
        return result

    def send_kv_status_message(self: Any, **named: Any) -> None:
        if not _asked(UNTOLD):
            tell(self, **named)

    Manager._transfer_data = transfer_data
    Manager.send_kv_status_message = send_kv_status_message
