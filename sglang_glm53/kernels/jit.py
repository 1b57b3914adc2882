"""Owns the way to the CUDA sources, in a wheel or beside the package, and their builds by SGLang's JIT."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

# Other projects install a stray `csrc` into site-packages too; this file tells ours from theirs.
_OURS = Path("include", "glm53", "device.cuh")
_PACKAGE = Path(__file__).resolve().parents[1]

# Multiply-adds stay two operations unless the source asks for one, as nvcc is asked by fmaf.
EMULATION_FLAGS = ("-ffp-contract=off", "-Wno-unknown-pragmas")
ARCHITECTURES = ("sm_90a", "sm_100a", "sm_103a")


def csrc_dir(package: Path = _PACKAGE) -> Path:
    """The folder that holds include/glm53 and the kernels.

    package: the folder of the sglang_glm53 package.
    Raises FileNotFoundError naming both places that were searched.
    """
    in_wheel, in_checkout = package / "csrc", package.parent / "csrc"
    for place in (in_wheel, in_checkout):
        if (place / _OURS).is_file():
            return place
    raise FileNotFoundError(
        f"the CUDA sources are missing: neither {in_wheel / _OURS} (an installed wheel) nor "
        f"{in_checkout / _OURS} (a checkout) exists; reinstall the "
        "wheel, or run `pip install --force-reinstall --no-deps .` in a whole checkout"
    )


def include_dirs() -> list[str]:
    """The folders that every build of our sources searches."""
    csrc = csrc_dir()
    return [str(csrc / "include"), str(csrc)]


@functools.cache
def cuda_module(stem: str) -> Any:
    """The compiled kernel of a stem for the current GPU: a tvm-ffi module with one function, of that name.

    SGLang's JIT compiles it on the first call and keeps it in its cache, $SGLANG_JIT_CACHE_DIR; raises
    RuntimeError with the compiler's output when that fails. Source: SGLang 0.5.23,
    kernels/jit/utils/compile/loader.py load_jit.
    """
    from sglang.kernels.jit.utils import load_jit

    source = str(csrc_dir() / "kernels" / f"{stem}_ffi.h")
    return load_jit(
        "glm53",
        stem,
        cuda_files=[source],
        cuda_wrappers=[(stem, f"::glm53::{stem}")],
        extra_include_paths=include_dirs(),
    )


@functools.cache
def emulated_module(stem: str) -> Any:
    """The same source for the CPU: the function takes CPU tensors, two more control the emulation.

    set_schedule(order, seed): "forward", "reversed" or "random", for the launches that follow.
    last_traffic(): a line for each buffer of the last launch, its name, bytes read and bytes written.
    """
    from sglang.kernels.jit.utils import load_jit

    source = str(csrc_dir() / "kernels" / f"{stem}_ffi.h")
    exports = [(stem, f"::glm53::{stem}")]
    exports += [(name, f"::glm53::emulation::{name}") for name in ("set_schedule", "last_traffic")]
    return load_jit(
        "glm53",
        stem,
        "emulated",
        cpp_files=[source],
        cpp_wrappers=exports,
        extra_cflags=list(EMULATION_FLAGS),
        extra_include_paths=include_dirs(),
    )


def build(stem: str, architecture: str) -> None:
    """Compile a stem for an architecture such as "sm_90a" into SGLang's JIT cache; needs no GPU.

    Call it in a process of its own for each architecture: SGLang keeps the first one that it meets.
    Raises ValueError for an architecture that is not one of ARCHITECTURES.
    """
    if architecture not in ARCHITECTURES:
        raise ValueError(f"architecture {architecture!r}: use one of {', '.join(ARCHITECTURES)}")
    from sglang.kernels.jit.utils import override_jit_cuda_arch

    [digits] = re.findall(r"\d+", architecture)
    with override_jit_cuda_arch(int(digits[:-1]), int(digits[-1])):
        cuda_module.__wrapped__(stem)
