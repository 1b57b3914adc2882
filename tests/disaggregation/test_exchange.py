"""The exchange of contracts over SGLang's own bootstrap server, and what a mismatch does to a request."""

from __future__ import annotations

import dataclasses
import json
import logging
import struct
import threading
import time
from types import SimpleNamespace

import pytest
import requests
from aiohttp import web
from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.common.conn import CommonKVBootstrapServer, CommonKVManager, CommonKVReceiver
from sglang.srt.disaggregation.mooncake.conn import KVArgsRegisterInfo

from sglang_glm53.disaggregation import exchange
from sglang_glm53.testing.server import HOST, free_port
from tests.disaggregation.test_contract import OWN

OTHER = dataclasses.replace(OWN, layers=77)
REASON = "layers: prefill has 77, decode has 78: serve the same checkpoint on both servers"
PAGE_BYTES = 41984


class Bootstrap(CommonKVBootstrapServer):
    """SGLang's server with this package's three hooks, as the registry would put them."""

    def _setup_routes(self):
        super()._setup_routes()
        exchange.add_route(None, self)

    async def _handle_route_put(self, request):
        return await exchange.keep_contract(CommonKVBootstrapServer._handle_route_put, self, request)


@pytest.fixture
def bootstrap():
    """start(class) -> the address of a bootstrap server that answers."""
    servers = []

    def start(kind=Bootstrap):
        port = free_port()
        servers.append(kind(HOST, port))
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                requests.get(f"http://{HOST}:{port}/health", timeout=1)
                return f"{HOST}:{port}"
            except requests.ConnectionError:
                time.sleep(0.02)
        raise AssertionError("the bootstrap server does not answer")

    yield start
    for server in servers:
        server.close()


@pytest.fixture(autouse=True)
def own(monkeypatch):
    """Every manager's contract is its field `contract`."""
    monkeypatch.setattr(exchange, "own_contract", lambda manager: manager.contract)


def register(address, rank=0, contract=OWN, ranks=1):
    """A prefill rank registers as SGLang does, contract None as stock does."""
    sizes = {"attn_tp_size": ranks, "attn_cp_size": 1, "attn_dp_size": 1, "pp_size": 1, "system_dp_size": 1}
    ranked = {"attn_tp_rank": rank, "attn_cp_rank": 0, "attn_dp_rank": 0, "pp_rank": 0, "system_dp_rank": 0}
    there = {"rank_ip": HOST, "rank_port": 9000 + rank}
    row = {**sizes, **ranked, **there, "page_size": 64, "kv_cache_dtype": "fp8_e4m3"}
    manager = SimpleNamespace(
        contract=contract, _register_topology_row=CommonKVManager._register_topology_row
    )

    def put(_, url, payload):
        assert requests.put(url, json=payload, timeout=5).status_code == 200

    if contract is None:
        put(manager, f"http://{address}/route", row)
    else:
        exchange.send_contract(put, manager, f"http://{address}/route", row)


def told(caplog):
    """What this package logged; a bootstrap server of another test may log its end meanwhile."""
    return [record.getMessage() for record in caplog.records if record.name == "sglang_glm53"]


def decode(contract=OWN):
    """A decode's manager, as far as the hooks touch it."""
    manager = SimpleNamespace(contract=contract, prefill_info_table={}, failures={}, statuses={})
    manager.record_failure = lambda room, reason: manager.failures.update({room: reason})
    manager.update_status = lambda room, status: manager.statuses.update({room: status})
    return manager


def sglangs_own(manager, address):
    """Stands for try_ensure_parallel_info after every check of SGLang's."""
    manager.prefill_info_table[address] = "info"
    return True


def test_a_pair_that_agrees_is_taken_and_asked_once(bootstrap):
    address = bootstrap()
    register(address)
    manager = decode()
    assert exchange.check_prefill(sglangs_own, manager, address) is True
    assert manager.prefill_info_table == {address: "info"}
    manager.contract = OTHER
    assert exchange.check_prefill(sglangs_own, manager, address) is True


def test_what_a_rank_registers_is_what_the_server_states(bootstrap):
    address = bootstrap()
    register(address, 0, OWN, ranks=2)
    assert requests.get(f"http://{address}{exchange.ROUTE}", timeout=5).status_code == 503
    register(address, 1, OTHER, ranks=2)
    stated = requests.get(f"http://{address}{exchange.ROUTE}", timeout=5).json()
    assert stated == [OWN.wire(), OTHER.wire()]
    # SGLang's own answer has no field that its decode would not know.
    answer = requests.get(
        f"http://{address}/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1",
        timeout=5,
    )
    assert answer.json()["page_size"] == 64 and exchange.KEY not in answer.json()


def test_a_rank_that_registers_again_replaces_its_contract(bootstrap):
    address = bootstrap()
    register(address, 0, OTHER)
    register(address, 0, OWN)
    assert requests.get(f"http://{address}{exchange.ROUTE}", timeout=5).json() == [OWN.wire()]


@pytest.mark.parametrize("ranks", [(OTHER,), (OWN, OTHER), (OTHER, OTHER)])
def test_a_mismatch_of_any_rank_refuses_the_pair(bootstrap, caplog, ranks):
    address = bootstrap()
    for rank, contract in enumerate(ranks):
        register(address, rank, contract, len(ranks))
    manager = decode()
    with caplog.at_level(logging.ERROR):
        assert exchange.check_prefill(sglangs_own, manager, address) is False
    refusal = f"prefill {address} and this decode server are no pair: {REASON}"
    assert manager.glm53_refused == {address: refusal}
    assert told(caplog) == [refusal]
    assert manager.prefill_info_table == {}


def test_a_rank_without_a_contract_among_others_refuses_the_pair(bootstrap):
    address = bootstrap()
    register(address, 0, OWN, 2)
    register(address, 1, None, 2)
    manager = decode()
    assert exchange.check_prefill(sglangs_own, manager, address) is False
    assert "the prefill server states null for its contract" in manager.glm53_refused[address]


def test_a_stock_prefill_is_taken_with_a_warning(bootstrap, caplog):
    address = bootstrap(CommonKVBootstrapServer)
    register(address)
    with caplog.at_level(logging.WARNING):
        assert exchange.check_prefill(sglangs_own, decode(), address) is True
    assert told(caplog) == [
        f"prefill {address} states no contract: page size and KV dtype are compared, by SGLang; "
        "layers, scales and MTP cannot be"
    ]


def test_a_prefill_that_is_not_ready_is_asked_again(bootstrap):
    address = bootstrap()
    manager = decode()
    assert exchange.check_prefill(sglangs_own, manager, address) is False
    register(address)
    assert exchange.check_prefill(sglangs_own, manager, address) is True


def test_a_prefill_out_of_reach_is_not_refused(caplog):
    manager, address = decode(), f"{HOST}:{free_port()}"
    with caplog.at_level(logging.ERROR):
        assert exchange.check_prefill(sglangs_own, manager, address) is False
    assert not hasattr(manager, "glm53_refused")
    assert told(caplog)[0].startswith(f"the contract of prefill {address} could not be read: ")


@pytest.mark.parametrize(
    ("status", "text"), [(200, "[]"), (200, "{}"), (200, "none"), (500, json.dumps([OWN.wire()]))]
)
def test_a_malformed_answer_refuses_the_pair(bootstrap, status, text):
    class Broken(CommonKVBootstrapServer):
        def _setup_routes(self):
            super()._setup_routes()
            self.app.router.add_get(exchange.ROUTE, self.malformed)

        async def malformed(self, request):
            return web.Response(text=text, status=status)

    address = bootstrap(Broken)
    manager = decode()
    assert exchange.check_prefill(sglangs_own, manager, address) is False
    assert f"{exchange.ROUTE} answered {status} {text!r}"[:60] in manager.glm53_refused[address]


def queue_of(manager, *rooms):
    """A decode's queue whose requests' receivers know their room, and its requests by address."""
    waiting = [SimpleNamespace(kv_receiver=SimpleNamespace(bootstrap_room=room)) for room in rooms]
    queue = SimpleNamespace(
        kv_manager=manager,
        _ensure_last_attempt_time={"refused": 1.0, "late": 1.0},
        _ensure_retry_count={"refused": 1, "late": 1},
    )
    return queue, waiting


def test_the_requests_of_a_refused_prefill_fail_by_its_reason():
    manager = decode()
    manager.glm53_refused = {"refused": REASON}
    queue, (bad, worse, late, good) = queue_of(manager, 1, 2, 3, 4)
    gone = SimpleNamespace(kv_receiver=None)
    asked = {"refused": [bad, worse, gone], "late": [late], "ready": [good]}
    ready, remaining = exchange.drop_refused(
        lambda _, requests_of: ({"ready": [good]}, [bad, worse, gone, late]), queue, asked
    )
    assert (ready, remaining) == ({"ready": [good]}, [late])
    assert manager.failures == {1: REASON, 2: REASON}
    assert manager.statuses == {1: KVPoll.Failed, 2: KVPoll.Failed}
    assert bad.kv_receiver.conclude_state == KVPoll.Failed
    # The next request asks at once, and no refusal counts as a prefill out of reach.
    assert (queue._ensure_last_attempt_time, queue._ensure_retry_count) == ({"late": 1.0}, {"late": 1})
    assert exchange.drop_refused(lambda *_: ({}, [late]), queue, asked) == ({}, [late])


def test_a_failed_request_tells_the_reason_as_sglang_does():
    manager = decode()
    manager.failure_lock, manager.failure_records = threading.Lock(), {}
    manager.record_failure = CommonKVManager.record_failure.__get__(manager)
    receiver = SimpleNamespace(
        bootstrap_room=7, kv_mgr=manager, clear=lambda: None, conclude_state=None, _prefill_wait_start=None
    )
    exchange._fail(manager, receiver, REASON)
    assert CommonKVReceiver._poll(receiver) == KVPoll.Failed
    with pytest.raises(Exception, match="layers: prefill has 77, decode has 78"):
        CommonKVReceiver.failure_exception(receiver)


def registration(*extra):
    """SGLang's frames of a decode that registers, and more behind them."""
    frames = [
        b"None",
        HOST.encode(),
        b"9000",
        b"session",
        b"",
        b"",
        b"",
        b"0",
        b"1",
        str(PAGE_BYTES).encode(),
    ]
    frames += [b""] * 6 + [b"1", b"0", b"", struct.pack("1Q", PAGE_BYTES)]
    read = KVArgsRegisterInfo.from_zmq.__func__
    return exchange.read_registration(read, KVArgsRegisterInfo, [*frames, *extra])


def test_a_decodes_contract_follows_sglangs_frames():
    frames = exchange.state_contract([b"None", b"frame"], decode())
    assert frames[:2] == [b"None", b"frame"] and len(frames) == 3
    found = registration(frames[2])
    assert getattr(found, exchange.KEY) == OWN.wire()
    assert found.dst_kv_item_lens == [PAGE_BYTES]


def check(found, contract=OWN, page=PAGE_BYTES, stock=(True, None)):
    manager = SimpleNamespace(contract=contract, kv_args=SimpleNamespace(kv_item_lens=[page] * 3))
    return exchange.check_registration(lambda *_: stock, manager, found)


@pytest.mark.parametrize(
    ("contract", "reason"),
    [
        (OWN, None),
        (OTHER, "layers: decode has 78, prefill has 77: serve the same checkpoint on both servers"),
    ],
)
def test_a_prefill_judges_the_decode_that_registers(contract, reason):
    (frame,) = exchange.state_contract([], decode())
    assert check(registration(frame), contract) == (True, reason)


def test_a_malformed_registration_fails_the_transfers_not_the_thread():
    _, reason = check(registration(b"glm53 contract {oops\xff"))
    assert reason is not None and reason.startswith("the decode server states ")


def test_sglangs_own_reason_stands():
    (frame,) = exchange.state_contract([], decode())
    stock = (False, "item length mismatch")
    assert check(registration(frame), OTHER, stock=stock) == stock


@pytest.mark.parametrize(("page", "refused"), [(PAGE_BYTES, False), (2 * PAGE_BYTES, True)])
def test_a_stock_decode_is_taken_with_a_warning_if_its_kv_pages_fit(page, refused, caplog):
    with caplog.at_level(logging.WARNING):
        checked, reason = check(registration(), page=page)
    assert checked and (reason is not None) == refused
    assert told(caplog)[0].startswith(f"decode {HOST} states no contract: ")


def test_a_decode_with_context_parallel_pages_is_left_to_sglang():
    found = registration()
    found.requires_dcp_relayout = True
    assert check(found, page=2 * PAGE_BYTES) == (True, None)
