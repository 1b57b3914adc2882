"""Owns the check of control requests: those that stock SGLang 0.5.23 passes on to a scheduler to end it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

# What the profiler takes from CUDA: a scheduler without a GPU raises there.
GPU_ACTIVITIES = ("MEM", "CUDA_PROFILER")


def recorder_problems(mode: str | None) -> list[str]:
    """Why the expert distribution cannot be recorded. mode: --expert-distribution-recorder-mode."""
    wanted = "start the server with --expert-distribution-recorder-mode stat"
    return [] if mode else [f"expert_distribution_record: this server has no recorder: {wanted}"]


def profile_problems(request: Any, device: str, default_folder: str) -> list[str]:
    """Why a profile cannot be taken, each with the field. request: SGLang's ProfileReq that starts one."""
    found = []
    activities = request.activities
    if activities is not None and device == "cpu":
        found += [
            f"activities holds {name}: it needs a GPU: use CPU"
            for name in activities
            if name in GPU_ACTIVITIES
        ]
        if "CPU" not in activities:
            found.append(f"activities is {activities}: a server without a GPU records CPU alone: add it")
    if "RPD" in (activities or ()):
        found.append("activities holds RPD: it is ROCm's: use CPU or GPU")
    folder = Path(request.output_dir or default_folder).expanduser()
    try:
        # As the scheduler does when the profile ends, and what it raises then ends it.
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        found.append(f"output_dir {folder} cannot be made ({error.strerror}): name another folder")
    else:
        if not os.access(folder, os.W_OK):
            found.append(f"output_dir {folder} cannot be written: name another folder")
    return found + [
        f"{field} {value!r} holds a slash: it is part of a file's name"
        for field in ("profile_id", "profile_prefix")
        if "/" in (value := getattr(request, field) or "")
    ]


def check_control(original: Callable[..., Any], communicator: Any, request: Any) -> Any:
    """AROUND FanOutCommunicator.__call__, through which every control request passes.

    Raises fastapi's HTTPException 400, which names every bad field. Without it the scheduler raises and ends
    the server. Source: SGLang 0.5.23, managers/scheduler_components/profiler_manager.py
    (SchedulerProfilerManager) and eplb/expert_distribution.py (ExpertDistributionRecorder).
    """
    from fastapi import HTTPException
    from sglang.srt.environ import envs
    from sglang.srt.managers.io_struct import ExpertDistributionReq, ProfileReq, ProfileReqType
    from sglang.srt.runtime_context import get_device, get_exec

    found = []
    if isinstance(request, ExpertDistributionReq):
        found = recorder_problems(get_exec().moe.expert_distribution_recorder_mode)
    elif isinstance(request, ProfileReq) and request.req_type is ProfileReqType.START_PROFILE:
        found = profile_problems(request, get_device().device, envs.SGLANG_TORCH_PROFILER_DIR.get())
    if found:
        raise HTTPException(400, "; ".join(found))
    return original(communicator, request)
