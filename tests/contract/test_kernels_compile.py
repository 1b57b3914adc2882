"""Owns the check that every kernel compiles for every architecture within its card's budget."""

import os
import re
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from sglang_glm53.kernels.cards import NVCC, cards
from sglang_glm53.kernels.jit import ARCHITECTURES, include_dirs

FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")


@dataclass(frozen=True)
class Usage:
    """What ptxas reports of one kernel."""

    registers: int
    shared_bytes: int
    stack_bytes: int
    spilled_bytes: int


def _find_nvcc():
    """nvcc of CUDA_HOME, else on the PATH, else None."""
    home = os.environ.get("CUDA_HOME")
    return (home and shutil.which("nvcc", path=str(Path(home, "bin")))) or shutil.which("nvcc")


def _version(nvcc):
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    return re.search(r"V(\d+\.\d+\.\d+)", text)[1]


def _plain_name(mangled):
    """A kernel's name as the budget has it: without return type and namespace."""
    text = subprocess.run(["c++filt", mangled], capture_output=True, text=True, check=True).stdout
    return re.sub(r"^void |glm53::", "", text.strip())


def _usages(report):
    """Usage by mangled name, from what ptxas prints."""
    found = {}
    for part in re.split(r"Compiling entry function '", report)[1:]:
        frame, used = FRAME.search(part), USED.search(part)
        spilled = int(frame[2]) + int(frame[3])
        found[part.partition("'")[0]] = Usage(int(used[1]), int(used[2] or 0), int(frame[1]), spilled)
    return found


def _breaches(usages, budgets):
    """Kernels without a budget or the other way round, and what each uses past its budget."""
    breaches = [f"{name}: only here or only in the budget" for name in sorted(set(usages) ^ set(budgets))]
    for name in sorted(set(usages) & set(budgets)):
        limits = budgets[name] | {"stack_bytes": 0, "spilled_bytes": 0}
        breaches += [
            f"{name}: {getattr(usages[name], what)} {what}, {limit} allowed"
            for what, limit in limits.items()
            if getattr(usages[name], what) > limit
        ]
    return breaches


@pytest.fixture(scope="module")
def nvcc():
    found = _find_nvcc()
    if found is None:
        pytest.skip("compile budgets: no nvcc: put CUDA's bin folder on the PATH or set CUDA_HOME")
    return found


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("stem", cards())
def test_kernels_keep_their_budget(nvcc, tmp_path, stem, architecture):
    unit = tmp_path / "unit.cu"
    unit.write_text(f"#include <kernels/{stem}.cuh>\n")
    target = f"arch=compute_{architecture.removeprefix('sm_')},code={architecture}"
    command = [nvcc, "-std=c++20", "-O3", "--expt-relaxed-constexpr", "-Werror=all-warnings", "-Xptxas=-v"]
    command += [f"-gencode={target}", "-cubin", "-o", str(tmp_path / "unit.cubin"), str(unit)]
    command += [f"-I{place}" for place in include_dirs()]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    usages = {_plain_name(name): usage for name, usage in _usages(done.stderr).items()}
    breaches = _breaches(usages, {name: asdict(budget) for name, budget in cards()[stem].forms.items()})
    assert not breaches, f"nvcc {_version(nvcc)}, budget of {NVCC}: {breaches}"


def test_breaches_are_reported():
    report = (
        "ptxas info    : Compiling entry function '_ZN5glm531kEv' for 'sm_90a'\n"
        "ptxas info    : Function properties for _ZN5glm531kEv\n"
        "    16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\n"
        "ptxas info    : Used 41 registers, used 1 barriers, 16 bytes cumulative stack size, 65 bytes smem\n"
        "ptxas info    : Compiling entry function '_Z4freev' for 'sm_90a'\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 12 registers\n"
    )
    usages = _usages(report)
    assert usages == {"_ZN5glm531kEv": Usage(41, 65, 16, 12), "_Z4freev": Usage(12, 0, 0, 0)}
    assert _breaches(usages, {"_ZN5glm531kEv": {"registers": 40, "shared_bytes": 64}, "gone": {}}) == [
        "_Z4freev: only here or only in the budget",
        "gone: only here or only in the budget",
        "_ZN5glm531kEv: 41 registers, 40 allowed",
        "_ZN5glm531kEv: 65 shared_bytes, 64 allowed",
        "_ZN5glm531kEv: 16 stack_bytes, 0 allowed",
        "_ZN5glm531kEv: 12 spilled_bytes, 0 allowed",
    ]


@pytest.mark.skipif(shutil.which("c++filt") is None, reason="budgets: no c++filt: apt-get install binutils")
def test_names_are_plain():
    mangled = "_ZN5glm531kILNS_6ScalesE2EEEvNS_6ParamsE"
    assert _plain_name(mangled) == "k<(Scales)2>(Params)"
