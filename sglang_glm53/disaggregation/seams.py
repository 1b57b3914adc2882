"""Owns the seams of a prefill/decode pair: its contract, its exchange, and what its requests hold."""

from sglang_glm53.upstream import Seam

_PD = "sglang.srt.disaggregation"
_MANAGER = f"{_PD}.common.conn.CommonKVManager"
_BOOTSTRAP = f"{_PD}.common.conn.CommonKVBootstrapServer"
_ARGS = f"{_PD}.base.conn.KVArgs"
_QUEUE = f"{_PD}.decode.DecodePreallocQueue"
_MOONCAKE = f"{_PD}.mooncake.conn"
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_SLOTS = "sglang.srt.disaggregation.utils.ReqToMetadataIdxAllocator"

SEAMS = (
    Seam(
        f"{_MANAGER}._register_topology_row",
        "method",
        "(self, url, payload)",
        "hooked: a prefill rank registers with its contract",
    ),
    Seam(
        f"{_BOOTSTRAP}._setup_routes",
        "method",
        "(self)",
        "hooked: the prefill's bootstrap server answers for its contract",
    ),
    Seam(f"{_BOOTSTRAP}.app", "field", None, "takes that route"),
    Seam(
        f"{_BOOTSTRAP}._handle_route_put",
        "method",
        "(self, request)",
        "hooked: keeps the contract that a rank states",
    ),
    Seam(f"{_BOOTSTRAP}._is_ready", "method", "(self)", "tells whether every prefill rank has registered"),
    Seam(
        f"{_MANAGER}.try_ensure_parallel_info",
        "method",
        "(self, bootstrap_addr)",
        "hooked: a decode compares contracts before it pairs with a prefill",
    ),
    Seam(f"{_MANAGER}.prefill_info_table", "field", None, "tells which prefills it has paired with"),
    Seam(
        f"{_QUEUE}._ensure_prefill_info",
        "method",
        "(self, addr_to_reqs)",
        "hooked: fails the requests of a refused prefill by its reason",
    ),
    Seam(f"{_QUEUE}._ensure_last_attempt_time", "field", None, "lets the next request ask at once"),
    Seam(f"{_QUEUE}._ensure_retry_count", "field", None, "counts no refusal as a prefill out of reach"),
    Seam(f"{_MANAGER}.record_failure", "method", "(self, bootstrap_room, failure_reason)", "that reason"),
    Seam(f"{_MANAGER}.update_status", "method", "(self, bootstrap_room, status)", "that failure"),
    Seam(f"{_PD}.common.conn.CommonKVReceiver.conclude_state", "field", None, "that failure"),
    Seam(
        f"{_MOONCAKE}.MooncakeKVManager.build_receiver_registration_message",
        "method",
        "(self)",
        "hooked: a decode registers with its contract",
    ),
    Seam(
        f"{_MOONCAKE}.KVArgsRegisterInfo.from_zmq",
        "classmethod",
        "(cls, msg)",
        "hooked: a prefill reads it",
    ),
    Seam(
        f"{_MOONCAKE}.MooncakeKVManager._validate_peer_state_layout",
        "method",
        "(self, registration_info)",
        "hooked: a prefill compares contracts, or the bytes of a KV page with a stock decode's",
    ),
    Seam(f"{_MOONCAKE}.KVArgsRegisterInfo.dst_kv_item_len", "field", None, "those bytes"),
    Seam(
        f"{_MOONCAKE}.KVArgsRegisterInfo.requires_dcp_relayout",
        "field",
        None,
        "tells whether they are meant to differ",
    ),
    Seam(
        f"{_PD}.utils.get_dsa_seed_metadata_dim",
        "function",
        "(hf_config)",
        "the width of the selection that seeds MTP",
    ),
    Seam(f"{_PD}.base.conn.KVPoll", "class", "()", "names that failure"),
    Seam(f"{_PD}.base.conn.StateType.DSA", "field", None, "names the state that holds the index pages"),
    Seam(f"{_ARGS}.kv_item_lens", "field", None, "the bytes of a KV page in each layer"),
    Seam(f"{_ARGS}.num_draft_entries", "field", None, "how many of them are the draft model's"),
    Seam(f"{_ARGS}.state_types", "field", None, "what else crosses"),
    Seam(f"{_ARGS}.state_item_lens", "field", None, "the bytes of an index page in each layer"),
    Seam(f"{_ARGS}.aux_item_lens", "field", None, "the bytes of each field of a request's metadata"),
    Seam(f"{_ARGS}.kv_cache_dtype_str", "field", None, "the KV dtype that SGLang resolved"),
    Seam(f"{_ARGS}.page_size", "field", None, "the tokens of a page"),
    Seam(f"{_ARGS}.prefill_start_layer", "field", None, "a pipeline stage's first layer"),
    Seam(f"{_SCHEDULER}.disaggregation_mode", "field", None, "which half of a pair the status describes"),
    Seam(
        f"{_SCHEDULER}.req_to_metadata_buffer_idx_allocator",
        "field",
        None,
        "the metadata slots that the status counts",
    ),
    Seam(f"{_SLOTS}.size", "field", None, "how many there are"),
    Seam(f"{_SLOTS}.available_size", "method", "(self)", "how many are free"),
)
