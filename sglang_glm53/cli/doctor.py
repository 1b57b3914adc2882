"""Owns `glm53 doctor`: what can be known, without starting a server, about this machine and this install."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from types import MappingProxyType

from sglang_glm53 import __version__, config, upstream
from sglang_glm53.disaggregation import packages
from sglang_glm53.fusion import FUSIONS
from sglang_glm53.kernels import jit
from sglang_glm53.serving import hooks

OK, WARN, FAIL = "ok", "warn", "FAIL"
PLUGIN, PLATFORM = "glm53", "glm53_cpu"
# Run in a checkout; with a wheel its path stands for the dot.
REINSTALL = "pip install --force-reinstall --no-deps ."
INSTALL_SGLANG = f"pip install sglang=={upstream.VERSION}"
RESTORE_SGLANG = f"pip install --force-reinstall --no-deps sglang=={upstream.VERSION}"
ENTRY_POINTS = {
    "sglang.srt.plugins": (PLUGIN, "sglang_glm53.plugin:register"),
    "sglang.srt.platforms": (PLATFORM, "sglang_glm53.cpu:activate"),
}
COMPANIONS = (
    "torch",
    "transformers",
    "sglang-kernel",
    "flashinfer-python",
    "sgl-deep-ep",
    "sgl-deep-gemm",
    "sgl-flash-mla",
)
# Module, its distribution, and what a GPU server without it gives up: the first two serve every request.
GPU_LIBRARIES = (
    ("deep_gemm", "sgl-deep-gemm", FAIL),
    ("flash_mla", "sgl-flash-mla", FAIL),
    ("deep_ep", "sgl-deep-ep", WARN),
)
MIN_CAPABILITY = 9.0
IMPORT_SECONDS = 120
QUERY_SECONDS = 30


@dataclass(frozen=True)
class Check:
    """One line of the report. status: "ok", "warn" or "FAIL"; repair: a command, or empty."""

    status: str
    what: str
    repair: str = ""


def installed_version(distribution: str) -> str | None:
    """The installed version without its local part (2.14.1+cu130 satisfies a pin of 2.14.1), or None."""
    try:
        return metadata.version(distribution).partition("+")[0]
    except metadata.PackageNotFoundError:
        return None


def pins(distribution: str) -> dict[str, str]:
    """The versions that a distribution pins with == on every machine, by name; empty when it is missing."""
    try:
        requirements = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return {}
    found = {}
    for requirement in requirements:
        pin = re.fullmatch(r"([\w.-]+)(?:\[[^]]*\])?==([\w.+!]+)", requirement.replace(" ", ""))
        if pin:
            found[re.sub(r"[-_.]+", "-", pin[1]).lower()] = pin[2]
    return found


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Check:
    text = ".".join(map(str, version))
    if version >= (3, 11):
        return Check(OK, f"Python {text}")
    return Check(FAIL, f"Python {text}: 3.11 or newer is needed", "python3.11 -m venv .venv")


def check_sglang(found: str | None, allow_untested: bool = False) -> Check:
    """The SGLang that is installed against the one that this package is written for."""
    wanted = upstream.VERSION
    if found == wanted:
        return Check(OK, f"sglang {found}")
    if found is None:
        return Check(FAIL, f"sglang is not installed; {wanted} is needed", INSTALL_SGLANG)
    if allow_untested:
        text = f"sglang {found}, let through by GLM53_ALLOW_UNTESTED=1; tested: {wanted}"
        return Check(WARN, text, INSTALL_SGLANG)
    return Check(FAIL, f"sglang {found}: this package works with {wanted} only", INSTALL_SGLANG)


def check_companions(
    pinned: Mapping[str, str], version_of: Callable[[str], str | None] = installed_version
) -> Iterator[Check]:
    """The libraries whose versions SGLang's own metadata pins, each against what is installed."""
    if not pinned:
        yield Check(WARN, "pinned companions: not checked, for sglang is missing", INSTALL_SGLANG)
        return
    for name in COMPANIONS:
        wanted, found = pinned.get(name), version_of(name)
        if wanted is None:
            yield Check(WARN, f"{name} {found}: the installed sglang does not pin it", "pip check")
        elif found == wanted:
            yield Check(OK, f"{name} {found}")
        else:
            state = "is not installed" if found is None else f"is {found}"
            yield Check(FAIL, f"{name} {state}; sglang wants {wanted}", f"pip install {name}=={wanted}")


def check_entry_points(found: Mapping[str, Mapping[str, str]]) -> Iterator[Check]:
    """The entry points by which SGLang finds the package. found: for each group, value by name."""
    for group, (name, value) in ENTRY_POINTS.items():
        seen = found.get(group, {}).get(name)
        if seen == value:
            yield Check(OK, f"entry point {group}: {name}")
        else:
            state = "is missing" if seen is None else f"is {seen}"
            yield Check(FAIL, f"entry point {group}: {name} {state}; {value} is needed", REINSTALL)


def check_selection(environ: Mapping[str, str]) -> Iterator[Check]:
    """Whether SGLang's two selecting variables leave the plugin in.

    A variable that leaves it out makes SGLang serve its stock model under our name, which nothing inside
    that process can notice. Source: SGLang 0.5.23, srt/plugins/__init__.py load_plugins_by_group and
    _get_excluded_dists.
    """
    allowed = {name.strip() for name in environ.get("SGLANG_PLUGINS", "").split(",") if name.strip()}
    if allowed and PLUGIN not in allowed:
        text = f"SGLANG_PLUGINS={environ['SGLANG_PLUGINS']} leaves {PLUGIN} out: the stock model would serve"
        yield Check(FAIL, text, f"export SGLANG_PLUGINS={','.join([*sorted(allowed), PLUGIN])}")
    else:
        yield Check(OK, "SGLANG_PLUGINS lets the plugin in")
    chosen = environ.get("SGLANG_PLATFORM", "")
    if chosen not in ("", PLATFORM):
        text = f"SGLANG_PLATFORM={chosen} makes SGLang skip this package, the plugin too"
        yield Check(FAIL, text, "unset SGLANG_PLATFORM")
    else:
        yield Check(OK, f"SGLANG_PLATFORM lets the plugin in ({chosen or 'not set'})")


def check_environment(environ: Mapping[str, str]) -> tuple[Check, config.Config]:
    """The GLM53_* variables, and the settings they give (the defaults when one is wrong)."""
    try:
        return Check(OK, "GLM53_* variables"), config.read(FUSIONS, environ)
    except ValueError as error:
        wrong = re.findall(r"(?:^|; )(GLM53_\w+)", str(error))
        return Check(FAIL, str(error), f"unset {' '.join(wrong)}"), config.Config()


def check_seams(find_problems: Callable[[], list[str]] = hooks.problems) -> Iterator[Check]:
    """Every upstream attribute that the package uses, as the installed source spells it."""
    problems = find_problems()
    for problem in problems:
        yield Check(FAIL, f"seam: {problem}", RESTORE_SGLANG)
    if not problems:
        yield Check(OK, "seams: SGLang's source is what this package attaches to")


def check_sources(find: Callable[[], Path] = jit.csrc_dir) -> Check:
    try:
        return Check(OK, f"CUDA sources in {find()}")
    except FileNotFoundError as error:
        return Check(FAIL, str(error), REINSTALL)


def query_gpus() -> tuple[list[tuple[str, float]], str]:
    """Name and compute capability of each GPU, and why nvidia-smi told none (empty without nvidia-smi)."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return [], ""
    command = [smi, "--query-gpu=name,compute_cap", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_SECONDS)
    except subprocess.TimeoutExpired:
        return [], f"nvidia-smi took over {QUERY_SECONDS} s"
    gpus = re.findall(r"^(.+), *(\d+\.\d+)$", answer.stdout, re.MULTILINE)
    if answer.returncode or not gpus:
        return [], f"nvidia-smi says {(answer.stderr or answer.stdout).strip() or 'nothing'!r}"
    return [(name, float(capability)) for name, capability in gpus], ""


def check_gpus(gpus: list[tuple[str, float]], complaint: str, platform_name: str) -> Iterator[Check]:
    """The GPUs against the platform that SGLANG_PLATFORM selects. complaint: why nvidia-smi told none."""
    on_reference = platform_name == PLATFORM
    if complaint:
        yield Check(OK if on_reference else FAIL, f"GPU: none usable: {complaint}", "nvidia-smi")
    elif not gpus:
        repair = "" if on_reference else f"export SGLANG_PLATFORM={PLATFORM}"
        yield Check(OK if on_reference else WARN, "GPU: none: reference platform", repair)
    for (name, capability), count in {gpu: gpus.count(gpu) for gpu in gpus}.items():
        text = f"GPU: {count} x {name}, compute capability {capability}"
        if capability < MIN_CAPABILITY:
            yield Check(FAIL, f"{text}; SGLang's DSA kernels need {MIN_CAPABILITY}", "nvidia-smi -L")
        elif on_reference:
            yield Check(WARN, f"{text}, but the reference platform is selected", "unset SGLANG_PLATFORM")
        else:
            yield Check(OK, text)


def find_nvcc(environ: Mapping[str, str]) -> Path | None:
    """nvcc where SGLang's JIT looks for it: CUDA_HOME or CUDA_PATH, the PATH, /usr/local/cuda."""
    home = environ.get("CUDA_HOME") or environ.get("CUDA_PATH")
    on_path = shutil.which("nvcc", path=environ.get("PATH"))
    if home:
        nvcc = Path(home, "bin", "nvcc")
    else:
        nvcc = Path(on_path) if on_path else Path("/usr/local/cuda/bin/nvcc")
    return nvcc if nvcc.is_file() else None


def check_nvcc(nvcc: Path | None) -> Check:
    if nvcc:
        return Check(OK, f"nvcc: {nvcc}")
    text = "nvcc: not found; SGLang compiles kernels at start-up on a GPU"
    return Check(WARN, text, "export CUDA_HOME=/usr/local/cuda")


def import_errors(modules: list[str]) -> dict[str, str]:
    """Why modules do not import, each tried in a process of its own; those that do are left out."""
    runs = {
        module: subprocess.Popen(
            [sys.executable, "-c", f"import {module}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for module in modules
    }
    errors = {}
    for module, run in runs.items():
        try:
            _, complaint = run.communicate(timeout=IMPORT_SECONDS)
        except subprocess.TimeoutExpired:
            run.kill()
            run.communicate()
            errors[module] = f"importing took over {IMPORT_SECONDS} s"
            continue
        if run.returncode:
            errors[module] = (complaint.strip().splitlines() or [f"exit status {run.returncode}"])[-1]
    return errors


def check_gpu_libraries(
    has_gpu: bool,
    is_there: Callable[[str], bool] = lambda module: importlib.util.find_spec(module) is not None,
    failures: Callable[[list[str]], dict[str, str]] = import_errors,
    pinned: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Check]:
    """DeepGEMM, FlashMLA and DeepEP: there and, where there is a GPU for them to load on, importable."""
    present = [module for module, _, _ in GPU_LIBRARIES if is_there(module)]
    errors = failures(present) if has_gpu else {}
    for module, distribution, severity in GPU_LIBRARIES:
        name = f"{distribution}=={pinned[distribution]}" if distribution in pinned else distribution
        if module not in present:
            status = severity if has_gpu else WARN
            yield Check(status, f"{module}: not installed", f"pip install {name}")
        elif module in errors:
            repair = f"pip install --force-reinstall --no-deps {name}"
            yield Check(severity, f"{module}: does not import: {errors[module]}", repair)
        else:
            yield Check(OK, f"{module}: {'imports' if has_gpu else 'installed; it needs a GPU to import'}")


def check_pairs(missing: list[str]) -> Check:
    """Whether Mooncake can load its libraries. missing: the packages of those that it cannot."""
    if not missing:
        return Check(OK, "prefill/decode pairs: Mooncake's libraries are there")
    text = f"prefill/decode pairs: {' and '.join(missing)} missing, which Mooncake loads"
    return Check(WARN, text, packages.install_command(missing))


def _entry_points() -> dict[str, dict[str, str]]:
    return {
        group: {point.name: point.value for point in metadata.entry_points(group=group)}
        for group in ENTRY_POINTS
    }


def checks(environ: Mapping[str, str]) -> Iterator[Check]:
    """Every check, in the order in which its failure would hide the next one."""
    yield check_python()
    environment, settings = check_environment(environ)
    found = upstream.version()
    yield check_sglang(found, settings.allow_untested)
    pinned = pins("sglang")
    yield from check_companions(pinned)
    yield from check_entry_points(_entry_points())
    yield from check_selection(environ)
    yield environment
    if found is None:
        yield Check(WARN, "seams: not checked, for sglang is missing", INSTALL_SGLANG)
    else:
        yield from check_seams()
    yield check_sources()
    gpus, complaint = query_gpus()
    yield from check_gpus(gpus, complaint, environ.get("SGLANG_PLATFORM", ""))
    yield check_nvcc(find_nvcc(environ))
    yield from check_gpu_libraries(bool(gpus), pinned=pinned)
    yield check_pairs(packages.missing_packages())


def _print_line(check: Check, colour: bool) -> None:
    shade = {OK: "32", WARN: "33", FAIL: "31"}[check.status]
    label = f"[{check.status}]".ljust(6)
    print(f"\x1b[{shade}m{label}\x1b[0m" if colour else label, check.what, flush=True)
    if check.repair:
        print(f"       repair: {check.repair}", flush=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `glm53 doctor`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")


def run(args: argparse.Namespace) -> int:
    """Print every check; the exit status is 1 when one of them is FAIL, else 0."""
    found = []
    for check in checks(os.environ):
        found.append(check)
        if not args.json:
            _print_line(check, colour=sys.stdout.isatty())
    failed = any(check.status == FAIL for check in found)
    if args.json:
        machine = {"system": platform.system(), "machine": platform.machine()}
        report = {"version": __version__, "ok": not failed, **machine, "checks": [asdict(c) for c in found]}
        print(json.dumps(report, indent=2))
    return int(failed)
