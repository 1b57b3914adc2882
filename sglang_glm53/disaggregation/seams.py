"""Owns the seams of a prefill/decode pair: its contract, its exchange, and what its requests hold."""

from sglang_glm53.upstream import Hook, Seam, until

_PD = "sglang.srt.disaggregation"
_MANAGER = f"{_PD}.common.conn.CommonKVManager"
_BOOTSTRAP = f"{_PD}.common.conn.CommonKVBootstrapServer"
_ARGS = f"{_PD}.base.conn.KVArgs"
_QUEUE = f"{_PD}.decode.DecodePreallocQueue"
_MOONCAKE = f"{_PD}.mooncake.conn"
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_SLOTS = "sglang.srt.disaggregation.utils.ReqToMetadataIdxAllocator"

SEAMS = (
    *until(
        "SGLang compares the layouts of a prefill/decode pair before its first request",
        Seam(
            f"{_MANAGER}._register_topology_row",
            "method(self, url, payload)",
            "a prefill rank registers with its contract",
            Hook("around", "sglang_glm53.disaggregation.exchange:send_contract"),
        ),
        Seam(
            f"{_BOOTSTRAP}._setup_routes",
            "method(self)",
            "the prefill's bootstrap server answers for its contract",
            Hook("after", "sglang_glm53.disaggregation.exchange:add_route"),
        ),
        Seam(f"{_BOOTSTRAP}.app", "field", "takes the route that answers for the contract"),
        Seam(
            f"{_BOOTSTRAP}._handle_route_put",
            "method(self, request)",
            "keeps the contract that a rank states",
            Hook("around", "sglang_glm53.disaggregation.exchange:keep_contract"),
        ),
        Seam(f"{_BOOTSTRAP}._is_ready", "method(self)", "tells whether every prefill rank has registered"),
        Seam(
            f"{_MANAGER}.try_ensure_parallel_info",
            "method(self, bootstrap_addr)",
            "a decode compares contracts before it pairs with a prefill",
            Hook("around", "sglang_glm53.disaggregation.exchange:check_prefill"),
        ),
        Seam(f"{_MANAGER}.prefill_info_table", "field", "tells which prefills a decode has paired with"),
        Seam(
            f"{_QUEUE}._ensure_prefill_info",
            "method(self, addr_to_reqs)",
            "fails the requests of a refused prefill by its reason",
            Hook("around", "sglang_glm53.disaggregation.exchange:drop_refused"),
        ),
        Seam(f"{_QUEUE}._ensure_last_attempt_time", "field", "lets the next request ask at once"),
        Seam(f"{_QUEUE}._ensure_retry_count", "field", "counts no refusal as a prefill out of reach"),
        Seam(
            f"{_MANAGER}.record_failure",
            "method(self, bootstrap_room, failure_reason)",
            "gives a refused request its reason",
        ),
        Seam(f"{_MANAGER}.update_status", "method(self, bootstrap_room, status)", "fails a refused request"),
        Seam(
            f"{_PD}.common.conn.CommonKVReceiver.conclude_state",
            "field",
            "ends the receiver of a refused request",
        ),
        Seam(
            f"{_MOONCAKE}.MooncakeKVManager.build_receiver_registration_message",
            "method(self)",
            "a decode registers with its contract",
            Hook("after", "sglang_glm53.disaggregation.exchange:state_contract"),
        ),
        Seam(
            f"{_MOONCAKE}.KVArgsRegisterInfo.from_zmq",
            "classmethod(cls, msg)",
            "a prefill reads the contract that a decode registers with",
            Hook("around", "sglang_glm53.disaggregation.exchange:read_registration"),
        ),
        Seam(
            f"{_MOONCAKE}.MooncakeKVManager._validate_peer_state_layout",
            "method(self, registration_info)",
            "a prefill compares contracts, or the bytes of a KV page with a stock decode's",
            Hook("around", "sglang_glm53.disaggregation.exchange:check_registration"),
        ),
        Seam(f"{_MOONCAKE}.KVArgsRegisterInfo.dst_kv_item_len", "field", "the bytes of a decode's KV page"),
        Seam(
            f"{_MOONCAKE}.KVArgsRegisterInfo.requires_dcp_relayout",
            "field",
            "tells whether a pair's KV pages are meant to differ",
        ),
        Seam(
            f"{_PD}.utils.get_dsa_seed_metadata_dim",
            "function(hf_config)",
            "the width of the selection that seeds MTP",
        ),
    ),
    *until(
        "never: SGLang's description of a transfer",
        Seam(f"{_PD}.base.conn.KVPoll", "class()", "names the state of a refused request"),
        Seam(f"{_PD}.base.conn.StateType.DSA", "field", "names the state that holds the index pages"),
        Seam(f"{_ARGS}.kv_item_lens", "field", "the bytes of a KV page in each layer"),
        Seam(f"{_ARGS}.num_draft_entries", "field", "how many of the KV pages' layers are the draft model's"),
        Seam(f"{_ARGS}.state_types", "field", "what else crosses than KV pages"),
        Seam(f"{_ARGS}.state_item_lens", "field", "the bytes of an index page in each layer"),
        Seam(f"{_ARGS}.aux_item_lens", "field", "the bytes of each field of a request's metadata"),
        Seam(f"{_ARGS}.kv_cache_dtype_str", "field", "the KV dtype that SGLang resolved"),
        Seam(f"{_ARGS}.page_size", "field", "the tokens of a page"),
        Seam(f"{_ARGS}.prefill_start_layer", "field", "a pipeline stage's first layer"),
    ),
    *until(
        "SGLang shows the metadata slots in use",
        Seam(f"{_SCHEDULER}.disaggregation_mode", "field", "which half of a pair the status describes"),
        Seam(
            f"{_SCHEDULER}.req_to_metadata_buffer_idx_allocator",
            "field",
            "the metadata slots that the status counts",
        ),
        Seam(f"{_SLOTS}.size", "field", "how many metadata slots there are"),
        Seam(f"{_SLOTS}.available_size", "method(self)", "how many metadata slots are free"),
    ),
)
