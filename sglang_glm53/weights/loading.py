"""Owns strict weight loading: SGLang's loader skips what it does not know, this module raises instead."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from sglang.srt.eplb.expert_location import get_global_expert_location_metadata
from sglang.srt.runtime_context import get_model, get_spec

from sglang_glm53.geometry import Geometry
from sglang_glm53.weights import parameter_map, safetensors_files
from sglang_glm53.weights.checks import BIAS, EXTRA, EXTRA_KEY, FP8, NAN, Intake, WeightLoadError, line, short
from sglang_glm53.weights.parameter_map import Plan

logger = logging.getLogger(__name__)

# The load formats in which SGLang reads a folder's safetensors files (model_loader/loader.py
# DefaultModelLoader._prepare_weights).
SAFETENSORS_FORMATS = ("auto", "safetensors", "fastsafetensors", "instanttensor")
READ_ERRORS = (OSError, RuntimeError, ValueError, SafetensorError)
Weights = Iterable[tuple[str, torch.Tensor]]


@dataclass(frozen=True)
class Source:
    """Where the weights come from. model: a path or a Hugging Face name. allow_extra: see EXTRA_KEY."""

    model: str
    revision: str | None = None
    download_dir: str | None = None
    load_format: str = "auto"
    allow_extra: bool = False

    def checkpoint(self) -> safetensors_files.Checkpoint | None:
        """The files, when they are safetensors on this machine.

        None when they are not, or when a Hugging Face cache lacks some, which SGLang then downloads.
        """
        if self.load_format not in SAFETENSORS_FORMATS:
            return None
        folder = safetensors_files.local_folder(self.model, self.revision, self.download_dir)
        if folder is None:
            return None
        found = safetensors_files.read(folder)
        incomplete_cache = bool(found.missing) and not Path(self.model).is_dir()
        return None if incomplete_cache or not (found.entries or found.broken or found.missing) else found


def _extra_allowed(config: Any) -> bool:
    """The value of EXTRA_KEY in --model-loader-extra-config, a JSON string or a dict; False when absent."""
    settings = json.loads(config) if config and isinstance(config, str) else config or {}
    value = settings.get(EXTRA_KEY, False)
    if not isinstance(value, bool):
        raise ValueError(f"{EXTRA_KEY} in --model-loader-extra-config is {value!r}: use true or false")
    return value


def _format_name(load_format: Any) -> str:
    """A load format's name; SGLang passes a string or its LoadFormat."""
    return str(getattr(load_format, "value", load_format))


def runtime_source(draft: bool) -> Source:
    """Where the running server loads from.

    Source: SGLang 0.5.23, managers/tp_worker.py TpModelWorker._init_model_config.
    """
    model, path, revision, load_format = get_model(), None, None, None
    if draft:
        spec = get_spec()
        path, revision = spec.speculative_draft_model_path, spec.speculative_draft_model_revision
        load_format = spec.speculative_draft_load_format
    return Source(
        model=path or model.model_path,
        revision=revision if draft else model.revision,
        download_dir=model.download_dir,
        load_format=_format_name(load_format or model.load_format),
        allow_extra=_extra_allowed(model.model_loader_extra_config),
    )


def accept_extra_key(
    original: Callable[..., None], *, extra_config: dict[str, Any], load_format: Any
) -> None:
    """AROUND hook that lets EXTRA_KEY through; every other key is SGLang's to judge.

    Raises ValueError when the value is not a bool, or with instanttensor, which takes every key for its own.
    Source: SGLang 0.5.23, model_loader/loader.py _validate_default_loader_extra_config.
    """
    if EXTRA_KEY in extra_config:
        _extra_allowed(extra_config)
        if _format_name(load_format) == "instanttensor":
            raise ValueError(
                f"{EXTRA_KEY} cannot be used with --load-format instanttensor: use --load-format safetensors"
            )
        extra_config = {key: value for key, value in extra_config.items() if key != EXTRA_KEY}
    original(extra_config=extra_config, load_format=load_format)


def load_strictly(
    model: Any,
    weights: Weights,
    load: Callable[[Weights], None],
    *,
    draft: bool = False,
    source: Source | None = None,
) -> None:
    """Load weights through SGLang's loader, with every tensor checked and every parameter accounted for.

    model: SGLang's causal LM, main or (draft) MTP. load: the upstream load_weights, which gets the tensors
    that pass. source: where the weights come from; by default, what the running server says.

    The first load must be complete. SGLang's loaders put a model into eval mode when they are done with it
    (model_loader/loader.py DefaultModelLoader.load_model, and DummyModelLoader.load_model for dummy weights),
    so a model in eval mode is being updated: each tensor is then checked, but an update may bring any part of
    the model.
    Raises WeightLoadError with all problems; those that headers show are raised before any data is read.
    """
    source = source or runtime_source(draft)
    first = model.training
    role = "MTP draft model" if draft else "main model"
    what = f"the {role}'s weights from {source.model}" if first else f"an update of the {role}'s weights"
    # An update reuses the first plan: updates come in many small parts, and a plan takes a second or more.
    if first or not hasattr(model, "glm53_plan"):
        model.glm53_plan = _plan(model, draft, what)
    plan: Plan = model.glm53_plan
    files = _inspect(plan, source, what) if first else {}
    intake = Intake(plan, files, complete=first, allow_extra=source.allow_extra)
    load(_checked(weights, intake, source if first else None, what))
    problems = loaded_problems(model, intake) if first else []
    if problems:
        raise WeightLoadError(what, problems)


class _Unpadded:
    """A config as the checkpoint has it: on a CPU, SGLang pads sizes and keeps each as original_<field>.

    Source: SGLang 0.5.23, configs/update_config.py adjust_config_with_unaligned_cpu_tp.
    """

    def __init__(self, config: Any) -> None:
        self._config = config

    def __getattr__(self, name: str) -> Any:
        padded = getattr(self._config, name)
        return getattr(self._config, f"original_{name}", padded)


def _plan(model: Any, draft: bool, what: str) -> Plan:
    geometry = Geometry.from_config(_Unpadded(model.config))
    if draft and geometry.draft_problem:
        raise WeightLoadError(what, [geometry.draft_problem])
    return parameter_map.plan(model, geometry, draft=draft, location=get_global_expert_location_metadata())


def _inspect(plan: Plan, source: Source, what: str) -> dict[str, str]:
    """Check the headers of local files, before any data is read. Returns tensor -> file."""
    checkpoint = source.checkpoint()
    if checkpoint is None:
        return {}
    if checkpoint.missing or checkpoint.broken:
        raise WeightLoadError(what, checkpoint.missing + checkpoint.broken)
    files = checkpoint.files()
    intake = Intake(plan, files, allow_extra=source.allow_extra)
    for entries in checkpoint.entries.values():
        for entry in entries:
            intake.admit(entry.name, entry.shape, entry.dtype)
    problems = intake.problems()
    if problems:
        raise WeightLoadError(what, problems)
    return files


def _checked(
    weights: Weights, intake: Intake, source: Source | None, what: str
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that pass; raises at the end, before SGLang derives anything from what was loaded."""
    tensors = iter(weights)
    last = ""
    while True:
        try:
            name, tensor = next(tensors)
        except StopIteration:
            break
        except READ_ERRORS as error:
            raise WeightLoadError(what, _read_problems(source, intake, last, error)) from error
        last = name
        if intake.take(name, tensor):
            yield name, tensor
    problems = intake.problems()
    if problems:
        raise WeightLoadError(what, problems)
    if intake.extra:
        logger.warning("%s: %s", what, line(f"skipped {EXTRA}", intake.extra))


def _read_problems(source: Source | None, intake: Intake, last: str, error: BaseException) -> list[str]:
    """Why SGLang's reader failed, and what was found until then.

    Broken files are looked for again: a download may have brought them.
    """
    checkpoint = source.checkpoint() if source else None
    broken = checkpoint.missing + checkpoint.broken if checkpoint else []
    after = f"after {intake.place(last)}" if last else "before the first tensor"
    failure = f"reading failed {after}: {type(error).__name__}: {error}"
    return [*intake.problems(ended=False), *broken, failure]


def loaded_problems(model: Any, intake: Intake) -> list[str]:
    """What the loaded parameters themselves show: a router bias that lost its FP32, NaN among FP8 weights.

    FP8 is scanned here and not as tensors arrive: a rank would read the whole checkpoint for its share of it.
    """
    found: dict[str, list[str]] = {}
    for name, parameter in model.named_parameters():
        if name.endswith(".e_score_correction_bias") and parameter.dtype != torch.float32:
            found.setdefault(BIAS, []).append(f"parameter {name} is {short(parameter.dtype)}")
        if parameter.dtype == FP8:
            found.setdefault(NAN, []).extend(_nan_sources(intake, name, parameter.data))
    return [line(kind, items) for kind, items in found.items() if items]


def _nan_sources(intake: Intake, name: str, weight: torch.Tensor) -> Iterator[str]:
    """The tensors that brought NaN (bytes 0x7f, 0xff) into an e4m3 parameter, [rows, ...] or [slots, ...]."""
    magnitude = weight.view(torch.uint8).bitwise_and(0x7F)
    rows = (magnitude.flatten(1).amax(dim=1) == 0x7F).nonzero().flatten().tolist()
    if not rows:
        return
    brought = [stored for stored, home in intake.plan.homes.items() if home == name]
    if weight.dim() == 3:
        brought = [stored for stored in brought if not set(rows).isdisjoint(intake.plan.slots_of(stored))]
    yield f"parameter {name}, from {' and '.join(map(intake.place, brought))}"
