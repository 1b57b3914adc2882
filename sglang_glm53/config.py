"""Owns the environment: the three GLM53_* variables, read once and checked."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

KERNEL_CHOICES = ("auto", "torch", "emulated", "cuda")
PREFIX = "GLM53_"


@dataclass(frozen=True)
class Config:
    """The environment's settings.

    kernels: GLM53_KERNELS, which implementation of our ops runs (default "auto").
    disabled: GLM53_DISABLE, comma list of the names of fusions that stay off.
    allow_untested: GLM53_ALLOW_UNTESTED=1 turns the SGLang version check, and only that, into a warning.
    """

    kernels: str = "auto"
    disabled: frozenset[str] = frozenset()
    allow_untested: bool = False


def read(fusions: Iterable[str], environ: Mapping[str, str] | None = None) -> Config:
    """Read and check the environment.

    fusions: the names that GLM53_DISABLE may hold. environ: the variables, os.environ by default.
    Raises ValueError, naming every bad variable and the values it takes.
    """
    env = os.environ if environ is None else environ
    known = {"GLM53_KERNELS", "GLM53_DISABLE", "GLM53_ALLOW_UNTESTED"}
    problems = [
        f"{name} is not a variable of this package, which reads {', '.join(sorted(known))}"
        for name in sorted(env)
        if name.startswith(PREFIX) and name not in known
    ]
    kernels = env.get("GLM53_KERNELS", "auto")
    if kernels not in KERNEL_CHOICES:
        problems.append(f"GLM53_KERNELS={kernels!r}: use one of {', '.join(KERNEL_CHOICES)}")
    disabled = frozenset(name.strip() for name in env.get("GLM53_DISABLE", "").split(",") if name.strip())
    choice = ", ".join(fusions)
    problems += [
        f"GLM53_DISABLE names {name!r}: use any of {choice}" for name in sorted(disabled.difference(fusions))
    ]
    allow = env.get("GLM53_ALLOW_UNTESTED", "0")
    if allow not in ("0", "1"):
        problems.append(f"GLM53_ALLOW_UNTESTED={allow!r}: use 0 or 1")
    if problems:
        raise ValueError("; ".join(problems))
    return Config(kernels, disabled, allow == "1")


def kernels_reason(kernels: str, device: str) -> str | None:
    """Why a choice of GLM53_KERNELS cannot run on a device, such as "cpu" or "cuda:0"; None where it can."""
    on_gpu = device.partition(":")[0] == "cuda"
    if kernels == "emulated" and device != "cpu":
        return f"GLM53_KERNELS=emulated runs on the CPU, not on {device}: use auto, torch or cuda"
    if kernels == "cuda" and not on_gpu:
        return f"GLM53_KERNELS=cuda needs a GPU, not {device}: use auto, torch or emulated"
    return None
