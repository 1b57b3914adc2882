"""Owns the exchange of a prefill/decode pair's contract, on SGLang's bootstrap, and the refusal of a pair.

The prefill states its contract where it registers, and its bootstrap server answers with it. The decode asks
before it takes a request's KV, and states its own where it registers in turn. A mismatch fails the requests
that name this prefill, with every difference, and leaves both servers up: another prefill may fit.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import requests
from aiohttp import web
from sglang.srt.arg_groups.model_override_base import model_config_of
from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.utils import get_dsa_seed_metadata_dim

from sglang_glm53.disaggregation import contract
from sglang_glm53.disaggregation.contract import Contract

logger = logging.getLogger("sglang_glm53")

ROUTE = "/glm53/contract"
KEY = "glm53_contract"
# SGLang's own limit on its question to the bootstrap server (disaggregation/common/conn.py
# CommonKVManager.try_ensure_parallel_info).
ASK_SECONDS = 5
_FRAME_HEAD = b"glm53 contract "
_UNCHECKED = "page size and KV dtype are compared, by SGLang; layers, scales and MTP cannot be"


def own_contract(manager: Any) -> Contract:
    """The contract of this rank. manager: SGLang's CommonKVManager."""
    config = model_config_of(manager.server_args).hf_config
    return contract.describe(manager.kv_args, config, get_dsa_seed_metadata_dim(config))


# The prefill server.


def send_contract(original: Callable[..., None], manager: Any, url: str, payload: dict[str, Any]) -> None:
    """AROUND CommonKVManager._register_topology_row: a prefill rank registers with its contract.

    A bootstrap server of stock SGLang ignores the key.
    """
    original(manager, url, {**payload, KEY: own_contract(manager).wire()})


def add_route(result: None, server: Any) -> None:
    """AFTER CommonKVBootstrapServer._setup_routes: answer a decode's question for the contract."""
    server.glm53_contracts = {}
    server.app.router.add_get(ROUTE, functools.partial(answer, server))


async def keep_contract(
    original: Callable[..., Awaitable[web.Response]], server: Any, request: web.Request
) -> web.Response:
    """AROUND CommonKVBootstrapServer._handle_route_put: keep what a rank states, under its address."""
    row = await request.json()
    response = await original(server, request)
    if response.status == 200:
        server.glm53_contracts[row["rank_ip"], row["rank_port"]] = row.get(KEY)
    return response


async def answer(server: Any, request: web.Request) -> web.Response:
    """The contract of every prefill rank, as a list; 503 until all of them are registered."""
    if not server._is_ready():
        return web.Response(text="not every prefill rank is registered yet", status=503)
    return web.json_response(list(server.glm53_contracts.values()))


def check_registration(
    original: Callable[..., tuple[bool, str | None]], manager: Any, registration: Any
) -> tuple[bool, str | None]:
    """AROUND MooncakeKVManager._validate_peer_state_layout: judge the decode that registers here.

    Returns SGLang's own (fully checked, reason): a reason fails every transfer to this decode.
    """
    checked, reason = original(manager, registration)
    stated = getattr(registration, KEY, None)
    if reason is None and stated is None:
        logger.warning("decode %s states no contract: %s", registration.endpoint, _UNCHECKED)
        if not registration.requires_dcp_relayout:
            reason = contract.row_difference(manager.kv_args, registration.dst_kv_item_len)
    elif reason is None:
        found = contract.differences(own_contract(manager), stated, ("prefill", "decode"))
        reason = "; ".join(found) or None
    return checked, reason


def read_registration(original: Callable[[type, list[bytes]], Any], cls: type, message: list[bytes]) -> Any:
    """AROUND KVArgsRegisterInfo.from_zmq: keep the contract that a decode put after SGLang's frames."""
    registration = original(cls, message)
    if message[-1].startswith(_FRAME_HEAD):
        text = message[-1].removeprefix(_FRAME_HEAD).decode(errors="replace")
        try:
            stated: Any = json.loads(text)
        except json.JSONDecodeError:
            stated = text
        setattr(registration, KEY, stated)
    return registration


# The decode server.


def state_contract(result: list[bytes], manager: Any) -> list[bytes]:
    """AFTER MooncakeKVManager.build_receiver_registration_message: add a frame, which stock never reads."""
    return [*result, _FRAME_HEAD + json.dumps(own_contract(manager).wire()).encode()]


def check_prefill(original: Callable[..., bool], manager: Any, address: str) -> bool:
    """AROUND CommonKVManager.try_ensure_parallel_info: compare contracts before the first request's KV.

    Returns False, as SGLang does while a prefill is not ready, for one that is refused too; `drop_refused`
    tells the two apart by manager.glm53_refused, {address: reason}.
    """
    if address in manager.prefill_info_table:
        return original(manager, address)
    try:
        response = requests.get(f"http://{address}{ROUTE}", timeout=ASK_SECONDS)
    except requests.RequestException as error:
        logger.error("the contract of prefill %s could not be read: %s", address, error)
        return False
    if response.status_code == 503:
        return False
    if response.status_code == 404:
        logger.warning("prefill %s states no contract: %s", address, _UNCHECKED)
        return original(manager, address)
    reasons = _reasons(own_contract(manager), response)
    if not reasons:
        return original(manager, address)
    refusal = f"prefill {address} and this decode server are no pair: {'; '.join(reasons)}"
    logger.error("%s", refusal)
    vars(manager).setdefault("glm53_refused", {})[address] = refusal
    return False


def _reasons(own: Contract, response: requests.Response) -> list[str]:
    """Why not to pair with the prefill that answered so; every rank's reasons, each once."""
    try:
        stated = response.json() if response.ok else None
    except requests.JSONDecodeError:
        stated = None
    if not isinstance(stated, list) or not stated:
        return [
            f"{ROUTE} answered {response.status_code} {response.text[:200]!r}: restart the prefill server"
        ]
    return list(dict.fromkeys(reason for one in stated for reason in contract.differences(own, one)))


def drop_refused(
    original: Callable[..., tuple[Any, list[Any]]], queue: Any, requests_of: dict[str, list[Any]]
) -> tuple[Any, list[Any]]:
    """AROUND DecodePreallocQueue._ensure_prefill_info: fail the requests of a refused prefill by its reason.

    The next request asks again, so a prefill that was restarted with the right flags is taken.
    """
    ready, remaining = original(queue, requests_of)
    refused = vars(queue.kv_manager).pop("glm53_refused", {})
    for address, reason in refused.items():
        for request in requests_of.get(address, []):
            _fail(queue.kv_manager, request.kv_receiver, reason)
        queue._ensure_last_attempt_time.pop(address, None)
        queue._ensure_retry_count.pop(address, None)
    failed = {id(request) for address in refused for request in requests_of.get(address, [])}
    return ready, [request for request in remaining if id(request) not in failed]


def _fail(manager: Any, receiver: Any, reason: str) -> None:
    # As CommonKVReceiver.init (disaggregation/common/conn.py) does for a mismatch that SGLang knows.
    if receiver is None:
        return
    manager.record_failure(receiver.bootstrap_room, reason)
    manager.update_status(receiver.bootstrap_room, KVPoll.Failed)
    receiver.conclude_state = KVPoll.Failed
