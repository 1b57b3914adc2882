"""Owns the checks on each checkpoint tensor on its way into a model, and on what is missing at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from sglang_glm53.weights.parameter_map import MERGED_INDEX, Plan
from sglang_glm53.weights.stored_tensors import SCALE_SUFFIX, TensorSpec

EXTRA_KEY = "glm53_allow_extra"
FP8 = torch.float8_e4m3fn
FP8_KINDS = (FP8, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)
NAMED = 10

UNFILLED = "parameters without a tensor"
MISSING = "missing from the checkpoint"
SHARED = "indexer tensors on shared layers, which have no indexer"
EXTRA = "extra tensors"
TWICE = "stored twice"
SHAPE = "wrong shape"
DTYPE = "wrong dtype"
SCALE = "bad FP8 scale"
NAN = "NaN in FP8 weights"
BIAS = "router bias not float32"


class WeightLoadError(RuntimeError):
    """Weights that cannot be served. problems: one line for each kind, with a count and at most ten names."""

    def __init__(self, what: str, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n- ".join((f"cannot load {what}:", *self.problems)))


def line(kind: str, items: list[str]) -> str:
    """One problem line: the kind, how many, and the first ten."""
    rest = f"; and {len(items) - NAMED} more" if len(items) > NAMED else ""
    return f"{kind} ({len(items)}): {'; '.join(items[:NAMED])}{rest}"


def short(dtype: torch.dtype) -> str:
    """A dtype's name as checkpoints and errors show it."""
    return str(dtype).removeprefix("torch.")


def scale_fault(scale: torch.Tensor) -> str | None:
    """What is wrong with the values of a block-scale tensor of any floating dtype and shape, or None."""
    values = scale.float()
    # One pass for the usual case: a NaN fails both comparisons.
    if bool(((values > 0) & (values < torch.inf)).all()):
        return None
    if bool(values.isnan().any()):
        return "NaN"
    if bool(values.isinf().any()):
        return "an infinite value"
    return "zero" if bool((values == 0).any()) else "a negative value"


def dtype_fault(spec: TensorSpec, dtype: torch.dtype, parameter: str, held: torch.dtype) -> str | None:
    """Why a stored tensor of this dtype must not be copied into a parameter that holds another, or None.

    A copy between FP8 and any other dtype drops the scale without a word; other float pairs convert.
    """
    if not dtype.is_floating_point or (spec.kind == "scale" and dtype in FP8_KINDS):
        return f"is {short(dtype)}, and a {'scale' if spec.kind == 'scale' else 'weight'} cannot be"
    # After loading, SGLang may have repacked a parameter into integers, which say nothing about its source.
    if spec.kind == "scale" or not held.is_floating_point:
        return None
    if dtype not in FP8_KINDS:
        return f"is {short(dtype)}, but parameter {parameter} is {short(held)}" if held in FP8_KINDS else None
    dequantised = parameter.endswith(MERGED_INDEX) and spec.kind == "fp8"
    if dtype == FP8 and (held == FP8 or dequantised):
        return None
    return (
        f"is {short(dtype)}, but parameter {parameter} is {short(held)} "
        "(does quantization_config in config.json match the checkpoint?)"
    )


class Intake:
    """Checks one pass over a checkpoint's tensors against a plan; finds every problem before it reports.

    files: tensor -> file name, for the messages. complete: False when the pass may bring a part of the model
    only (a later weight update). allow_extra: extra tensors are no problem.
    """

    def __init__(
        self, plan: Plan, files: Mapping[str, str], *, complete: bool = True, allow_extra: bool = False
    ) -> None:
        self.plan, self.files = plan, files
        self.complete, self.allow_extra = complete, allow_extra
        self.extra: list[str] = []
        self._found: dict[str, list[str]] = {}
        self._seen: dict[str, torch.dtype] = {}
        for sentence in plan.unfilled if complete else ():
            self._report(UNFILLED, sentence)

    def take(self, name: str, tensor: torch.Tensor) -> bool:
        """Check one tensor with its values; False when SGLang's loader must not see it."""
        if not self.admit(name, tuple(tensor.shape), tensor.dtype):
            return False
        members, spec = self._resolve(name)
        if spec is None or spec.kind != "scale":
            return True
        # Another rank checks its own. Not so in an update: experts may have moved since the plan was made.
        if self.complete and not any(member in self.plan.homes for member in members):
            return True
        fault = scale_fault(tensor)
        if fault:
            self._report(SCALE, f"{self.place(name)} holds {fault}; scales must be finite and above zero")
        return fault is None

    def admit(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
        """Check one tensor by its name, shape and dtype; False when SGLang's loader must not see it."""
        if self.plan.ignored(name):
            return True
        members, spec = self._resolve(name)
        if spec is None:
            return self._unknown(name)
        if any(member in self._seen for member in members):
            self._report(TWICE, self.place(name))
            return False
        self._seen.update(dict.fromkeys(members, dtype))
        if shape != spec.shape:
            self._report(SHAPE, f"{self.place(name)} is {list(shape)}, expected {list(spec.shape)}")
            return False
        homes = sorted({self.plan.homes[member] for member in members if member in self.plan.homes})
        if not homes:
            return all(map(self.plan.elsewhere, members)) or self._homeless(name, spec)
        for home in homes:
            fault = dtype_fault(spec, dtype, home, self.plan.dtypes[home])
            if fault:
                self._report(DTYPE, f"{self.place(name)} {fault}")
                return False
        return True

    def place(self, name: str) -> str:
        """A tensor's name with its file, as far as that is known."""
        return f"{name} in {self.files[name]}" if name in self.files else name

    def problems(self, *, ended: bool = True) -> list[str]:
        """Every problem of the pass so far, one line for each kind. ended: what has not come is missing."""
        found = {kind: list(items) for kind, items in self._found.items()}
        if self.complete and ended:
            self._add_absent(found)
        if self.extra and not self.allow_extra:
            found[f"{EXTRA} (--model-loader-extra-config '{{\"{EXTRA_KEY}\": true}}' skips them)"] = (
                self.extra
            )
        return [line(kind, items) for kind, items in found.items()]

    def _report(self, kind: str, sentence: str) -> None:
        self._found.setdefault(kind, []).append(sentence)

    def _resolve(self, name: str) -> tuple[tuple[str, ...], TensorSpec | None]:
        """The known tensors that this one brings, and what its shape must be; None for an unknown one."""
        if name in self.plan.known:
            return (name,), self.plan.known[name]
        return self.plan.unpack(name) or ((name,), None)

    def _unknown(self, name: str) -> bool:
        if self.plan.on_shared_layer(name):
            self._report(SHARED, self.place(name))
        else:
            self.extra.append(self.place(name))
        return False

    def _homeless(self, name: str, spec: TensorSpec) -> bool:
        """A tensor of this rank that fills nothing: a scale of a weight that is not FP8, or an extra one."""
        weight = name.removesuffix(SCALE_SUFFIX)
        if spec.kind == "scale" and weight in self.plan.homes:
            home = self.plan.homes[weight]
            held = short(self.plan.dtypes[home])
            self._report(DTYPE, f"{self.place(name)} is a scale, but parameter {home} is {held}, not FP8")
        else:
            self.extra.append(self.place(name))
        return False

    def _add_absent(self, found: dict[str, list[str]]) -> None:
        """Add what a complete pass must bring and did not."""
        for name, home in self.plan.homes.items():
            weight = name.removesuffix(SCALE_SUFFIX)
            optional = home.endswith(MERGED_INDEX) and name != weight
            if optional and name in self._seen and self._seen.get(weight, FP8) != FP8:
                stored = short(self._seen[weight])
                found.setdefault(DTYPE, []).append(f"{self.place(name)} is a scale, but {weight} is {stored}")
            if name in self._seen or (optional and self._seen.get(weight) != FP8):
                continue
            where = f" (the index puts it in {self.files[name]})" if name in self.files else ""
            found.setdefault(MISSING, []).append(f"{name}, which fills parameter {home}{where}")
