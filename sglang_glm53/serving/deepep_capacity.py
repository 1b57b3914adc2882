"""Owns the rows that one rank sends through DeepEP in one step, and whether DeepEP's buffers hold them.

DeepEP's low-latency kernels have room for a fixed number of rows on each rank; one row more ends the server.
SGLang 0.5.23 sizes that room by an environment variable and compares it with no flag.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

VARIABLE = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
# SGLang asserts it: the kernels tag a finished sender with 1024 (layers/moe/token_dispatcher/deepep.py
# _DeepEPDispatcherImplBase).
LIMIT = 1024
# FP8 dispatch asserts that ranks x capacity is a multiple of it (sgl-deep-ep 0.1.2, low_latency_dispatch).
MULTIPLE = 4
SPARE_BYTES_WORTH_A_WORD = 1 << 30


@dataclass(frozen=True)
class Step:
    """A kind of step that dispatches with low latency.

    unit: what it is counted in, "requests" or "tokens". units: the most of them in one attention-DP group;
    None when no flag bounds them. rows_per_unit: the rows of one. ranks: how many ranks share a group's rows.
    quantum: SGLang rounds units up to a multiple of it. flag: what bounds units. groups: among how many
    groups SGLang divides the flag's value.
    """

    name: str
    unit: str
    units: int | None
    rows_per_unit: int
    ranks: int
    quantum: int
    flag: str
    groups: int

    @property
    def rows(self) -> int | None:
        """The most rows that one rank dispatches; None when no flag bounds them."""
        return None if self.units is None else -(-self.units * self.rows_per_unit // self.ranks)

    def highest(self, capacity: int) -> int:
        """The highest value of the flag that keeps a rank within capacity rows; 0 when none does."""
        units = capacity * self.ranks // self.rows_per_unit
        return units // self.quantum * self.quantum * self.groups

    def __str__(self) -> str:
        each = f" of {self.rows_per_unit} tokens" if self.rows_per_unit > 1 else ""
        shared = f" over {self.ranks} ranks" if self.ranks > 1 else ""
        made_of = f"{self.units} {self.unit}{each}{shared}"
        return f"a {self.name} step has up to {self.rows} rows on a rank ({made_of})"


def uses_deepep(flags: Any) -> bool:
    """Whether resolved server flags make the model or its draft dispatch through DeepEP."""
    draft = flags.speculative_moe_a2a_backend if flags.speculative_algorithm else None
    return "deepep" in (flags.moe_a2a_backend, draft)


def steps(flags: Any, draft_tokens: int | None, chunk_tokens: int) -> tuple[Step, ...]:
    """The kinds of step that dispatch with low latency, by resolved server flags.

    Mode auto takes the normal kernels whenever any rank has a prefill, normal takes them always, low_latency
    never. draft_tokens: the most tokens that one request verifies, None without speculation.
    chunk_tokens: the most tokens of a prefill in one attention-DP group, 0 without chunks.
    Source: SGLang 0.5.23, layers/moe/utils.py DeepEPMode.resolve, managers/scheduler_components/dp_attn.py
    MLPSyncBatchInfo.all_gather.
    """
    if not uses_deepep(flags) or flags.deepep_mode == "normal":
        return ()
    decode = () if flags.disaggregation_mode == "prefill" else (_decode(flags, draft_tokens),)
    if flags.deepep_mode == "auto" or flags.disaggregation_mode == "decode":
        return decode
    return decode + _prefill(flags, chunk_tokens)


def _decode(flags: Any, draft_tokens: int | None) -> Step:
    """Decode, verify and draft: every request of a rank at once, in an eager step or in a graph's bucket.

    Two-batch overlap halves no bound: a draft model, a step of unlike ranks and the layers before the overlap
    dispatch whole batches. Source: SGLang 0.5.23, model_executor/runner/base_cuda_graph_runner.py
    get_batch_sizes_to_capture.
    """
    width = flags.tp_size // flags.attn_dp_size // flags.attn_cp_size
    ranks = 1 if flags.disable_attn_tp_gather and flags.attn_dp_size == 1 else width
    bucket = width * (2 if flags.enable_two_batch_overlap else 1)
    graph = _graph_size(flags, "decode")
    requests = None
    if flags.max_running_requests is not None:
        requests = max(1, flags.max_running_requests // flags.attn_dp_size)
        requests = max(requests, min(graph, -(-requests // bucket) * bucket))
    rows = max(draft_tokens or 1, flags.speculative_eagle_topk or 1) if flags.speculative_algorithm else 1
    quantum = bucket if graph else 1
    return Step(
        "decode", "requests", requests, rows, ranks, quantum, "--max-running-requests", flags.attn_dp_size
    )


def _prefill(flags: Any, chunk_tokens: int) -> tuple[Step, ...]:
    """Prefill, decoding rows of a mixed chunk included, and the buckets of its graphs."""
    ranks, groups = flags.tp_size // flags.attn_dp_size, flags.attn_dp_size
    chunk = Step(
        "prefill", "tokens", chunk_tokens or None, 1, ranks, flags.page_size, "--chunked-prefill-size", groups
    )
    bucket = _graph_size(flags, "prefill")
    if bucket <= chunk_tokens:
        return (chunk,)
    return chunk, Step("prefill", "tokens", bucket, 1, ranks, 1, "--cuda-graph-max-bs-prefill", 1)


def _graph_size(flags: Any, phase: str) -> int:
    """The largest batch of a phase's CUDA graphs; 0 when it has none."""
    graphs = getattr(flags.cuda_graph_config, phase, None)
    return 0 if graphs is None or graphs.backend == "disabled" else graphs.max_bs or 0


def reasons(found: Iterable[Step], capacity: int) -> list[str]:
    """Why a server with these steps and this value of VARIABLE would end, each with the value to set."""
    listed = []
    if capacity > LIMIT:
        listed.append(f"{VARIABLE}={capacity}: DeepEP takes at most {LIMIT}: set it to {LIMIT} or less")
    room = min(capacity, LIMIT)
    for step in found:
        lower = f"{step.flag} to at most {step.highest(room)}"
        if step.rows is None:
            listed.append(
                f"{step.flag} bounds no {step.name} step, and DeepEP's low-latency kernels have room for "
                f"{room} rows on a rank: set {lower}, or raise {VARIABLE} with it"
            )
        elif step.rows > LIMIT:
            lower = f"{step.flag} to at most {step.highest(LIMIT)}"
            listed.append(f"{step}, and DeepEP's low-latency kernels take at most {LIMIT}: set {lower}")
        elif step.rows > capacity:
            value = padded(step.rows)
            listed.append(f"{VARIABLE}={capacity}, but {step}: set it to {value}, or {lower}")
    return listed


def padded(rows: int) -> int:
    """The least value of VARIABLE that holds rows."""
    return max(1, -(-rows // MULTIPLE)) * MULTIPLE


def low_latency_bytes(capacity: int, hidden: int, experts: int) -> int:
    """The bytes that DeepEP's low-latency buffers take on each rank, whatever the number of ranks.

    capacity: rows. hidden: elements of a row, at least 512. experts: of all ranks, with the redundant ones.
    There are two sets of buffers, used in turn. A set has room for one message of every row to every expert,
    once to send and once to receive, and a 4-byte count for every expert. The longest message is a bf16 row
    that comes back with a minimum and a maximum of each 128 elements.
    Source: sgl-deep-ep 0.1.2, get_low_latency_rdma_size_hint, with which a test compares it.
    """
    message = 2 * hidden + 4 * (hidden // 128)
    counts = -(-4 * experts // 128) * 128
    total = 2 * (2 * capacity * experts * message + counts)
    return (total // 128 + 1) * 128


def spare(found: Iterable[Step], capacity: int, hidden: int, experts: int) -> str | None:
    """A word on a capacity that is at least twice what the steps need and wastes memory; None without one."""
    most = [step.rows for step in found if step.rows is not None]
    if not most:
        return None
    needed = padded(max(most))
    saved = low_latency_bytes(capacity, hidden, experts) - low_latency_bytes(needed, hidden, experts)
    if capacity < 2 * needed or saved < SPARE_BYTES_WORTH_A_WORD:
        return None
    return (
        f"{VARIABLE}={capacity}, but no step has more than {max(most)} rows on a rank: {needed} would free "
        f"{saved} bytes ({saved / (1 << 30):.1f} GiB) on each GPU"
    )
