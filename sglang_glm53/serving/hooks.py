"""Owns what this package changes in SGLang (HOOKS), and the check that SGLang still is what it expects."""

from __future__ import annotations

import hashlib
import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from sglang_glm53 import upstream
from sglang_glm53.serving.seams import SEAMS, Group

_FACTORY = "sglang.srt.speculative.draft_utils.DraftBackendFactory"
_DSA_UTILS = "sglang.srt.layers.attention.dsa.utils"
_SPECULATIVE = "sglang.kernels.ops.speculative"


@dataclass(frozen=True)
class Hook:
    """One change to SGLang.

    target: a row of SEAMS. kind: a value of SGLang's HookType. handler: "module:function", imported when the
    hook is registered; for "around" it is called with the original first, for "after" with the result first.
    """

    target: str
    kind: Literal["before", "after", "around", "replace"]
    handler: str


HOOKS: dict[Group, tuple[Hook, ...]] = {
    "guard": (
        Hook(
            "sglang.srt.arg_groups.model_hook._validate_dsa_tbo_index_sharing",
            "around",
            "sglang_glm53.serving.preflight:allow_overlap",
        ),
        Hook(
            "sglang.srt.arg_groups.pipeline.run_resolution_pipeline",
            "around",
            "sglang_glm53.serving.preflight:explain_resolution",
        ),
    ),
    "model": (
        Hook(
            "sglang.srt.model_loader.loader._validate_default_loader_extra_config",
            "around",
            "sglang_glm53.weights.loading:accept_extra_key",
        ),
        Hook(
            "sglang.srt.managers.scheduler.Scheduler.get_internal_state",
            "after",
            "sglang_glm53.serving.status:add_status",
        ),
        Hook(
            "sglang.srt.managers.tokenizer_manager.TokenizerManager._validate_one_request",
            "around",
            "sglang_glm53.serving.request_check:check_request",
        ),
        Hook(
            "sglang.srt.managers.communicator.FanOutCommunicator.__call__",
            "around",
            "sglang_glm53.serving.control_check:check_control",
        ),
        Hook(
            "sglang.srt.managers.scheduler.Scheduler.get_init_info",
            "before",
            "sglang_glm53.serving.status:log_status",
        ),
        Hook(
            "sglang.srt.layers.attention.dsa.dsa_topk_backend.DSATopKBackend.topk_transform",
            "around",
            "sglang_glm53.topk.selection:topk_transform",
        ),
        Hook(
            "sglang.srt.batch_overlap.operations_strategy.OperationsStrategy.init_new_tbo",
            "around",
            "sglang_glm53.overlap.strategy:init_new_tbo",
        ),
        Hook(
            "sglang.srt.disaggregation.common.conn.CommonKVManager._register_topology_row",
            "around",
            "sglang_glm53.disaggregation.exchange:send_contract",
        ),
        Hook(
            "sglang.srt.disaggregation.common.conn.CommonKVBootstrapServer._setup_routes",
            "after",
            "sglang_glm53.disaggregation.exchange:add_route",
        ),
        Hook(
            "sglang.srt.disaggregation.common.conn.CommonKVBootstrapServer._handle_route_put",
            "around",
            "sglang_glm53.disaggregation.exchange:keep_contract",
        ),
        Hook(
            "sglang.srt.disaggregation.common.conn.CommonKVManager.try_ensure_parallel_info",
            "around",
            "sglang_glm53.disaggregation.exchange:check_prefill",
        ),
        Hook(
            "sglang.srt.disaggregation.decode.DecodePreallocQueue._ensure_prefill_info",
            "around",
            "sglang_glm53.disaggregation.exchange:drop_refused",
        ),
        Hook(
            "sglang.srt.disaggregation.mooncake.conn.MooncakeKVManager.build_receiver_registration_message",
            "after",
            "sglang_glm53.disaggregation.exchange:state_contract",
        ),
        Hook(
            "sglang.srt.disaggregation.mooncake.conn.KVArgsRegisterInfo.from_zmq",
            "around",
            "sglang_glm53.disaggregation.exchange:read_registration",
        ),
        Hook(
            "sglang.srt.disaggregation.mooncake.conn.MooncakeKVManager._validate_peer_state_layout",
            "around",
            "sglang_glm53.disaggregation.exchange:check_registration",
        ),
    ),
    "cpu": (
        Hook(
            "sglang.srt.layers.rotary_embedding.factory.get_rope_wrapper",
            "around",
            "sglang_glm53.cpu.compat:rope_without_device",
        ),
        Hook(
            "sglang.srt.utils.numa_utils.init_threads_binding",
            "around",
            "sglang_glm53.cpu.compat:threads_for_rank",
        ),
        Hook(
            "sglang.srt.distributed.device_communicators.pynccl.PyNcclCommunicator",
            "replace",
            "sglang_glm53.cpu.collectives:GlooCommunicator",
        ),
        Hook(
            "sglang.srt.layers.moe.token_dispatcher.deepep.DeepEPDispatcher",
            "replace",
            "sglang_glm53.cpu.dispatcher:GlooDispatcher",
        ),
        Hook(
            "sglang.srt.state_capturer.indexer_topk.create_indexer_capturer",
            "replace",
            "sglang_glm53.cpu.compat:index_capturer",
        ),
        *(
            Hook(target, "replace", f"sglang_glm53.cpu.speculative:{handler}")
            for target, handler in (
                (f"{_FACTORY}._create_dsa_decode_backend", "decode_backend"),
                (f"{_FACTORY}._create_dsa_prefill_backend", "extend_backend"),
                (f"{_DSA_UTILS}.should_remap_pd_dsa_seed_to_local_slots", "remaps_seed"),
                ("sglang.srt.mem_cache.allocation.get_last_loc", "last_slots"),
                ("sglang.srt.mem_cache.allocation.assign_req_to_token_pool_func", "assign_slots"),
                (f"{_SPECULATIVE}.cache_locs.assign_draft_cache_locs_contiguous_func", "draft_locations"),
                (f"{_SPECULATIVE}.gather_spec_extras.gather_spec_extras", "gather_rows"),
                (f"{_SPECULATIVE}.spec_tree.build_tree_kernel_efficient_func", "build_chain"),
                (f"{_SPECULATIVE}.spec_tree.verify_tree_greedy_func", "verify_greedy"),
                (f"{_SPECULATIVE}.eagle.fill_bonus_tokens_func", "bonus_tokens"),
            )
        ),
    ),
}


def problems(groups: Iterable[Group] = ("guard", "model", "cpu")) -> list[str]:
    """Each seam that the installed SGLang lacks or declares otherwise, by name; empty when all hold."""
    package = upstream.root()
    if package is None:
        return ["sglang is not installed"]
    return upstream.differences([seam for group in groups for seam in SEAMS[group]], package)


def fingerprint() -> str:
    """Eight hex digits that change when the installed SGLang declares any seam otherwise."""
    package = upstream.root()
    rows = [seam for group in SEAMS.values() for seam in group]
    found = [f"{seam.target} {package and upstream.declaration(seam.target, package)}" for seam in rows]
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:8]


def register(group: Group) -> None:
    """Hand a group's hooks to SGLang's registry, whose apply_hooks() puts them in place.

    Raises ImportError or AttributeError when a handler is missing.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookSource, HookType

    source = HookSource("glm53", "sglang-glm53")
    for hook in HOOKS[group]:
        handler = pkgutil.resolve_name(hook.handler)
        HookRegistry.register(hook.target, handler, HookType(hook.kind), source=source)


def unapplied(group: Group) -> list[str]:
    """Each hook of a group that is not in place, by name; apply_hooks() only logs such a failure."""
    return [
        f"{hook.target}: the hook {hook.handler} is not in place; SGLang's log says why, or another plugin "
        "took the attribute first (SGLANG_PLUGINS=glm53 leaves others out)"
        for hook in HOOKS[group]
        if not _in_place(hook)
    ]


def _in_place(hook: Hook) -> bool:
    owner_name, _, name = hook.target.rpartition(".")
    try:
        attribute = vars(pkgutil.resolve_name(owner_name))[name]
    except (ImportError, AttributeError, KeyError):
        return False
    return _reaches(attribute, pkgutil.resolve_name(hook.handler))


def _reaches(attribute: Any, handler: Any) -> bool:
    """Whether handler is attribute or is held by one of the wrappers around it (hook_registry.py:354)."""
    while attribute is not None:
        cells = getattr(attribute, "__closure__", None) or ()
        if attribute is handler or any(cell.cell_contents is handler for cell in cells):
            return True
        attribute = getattr(attribute, "__wrapped__", None)
    return False
