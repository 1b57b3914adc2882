"""Owns the part of the seam table that tells what a prefill/decode pair's requests hold."""

from sglang_glm53.upstream import Seam

_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_SLOTS = "sglang.srt.disaggregation.utils.ReqToMetadataIdxAllocator"

FAULT_SEAMS = (
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
