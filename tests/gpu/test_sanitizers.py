"""Owns the runs of the kernels under compute-sanitizer: memory, races in shared memory, barriers."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_glm53.kernels import jit
from sglang_glm53.kernels.cards import cards
from tests.gpu import sanitised

ROOT = Path(__file__).resolve().parents[2]
TOOLS = {"memcheck": ("--report-api-errors", "no"), "racecheck": (), "synccheck": ()}
SECONDS = 150


def _find():
    """compute-sanitizer of CUDA_HOME, of the PATH, or of NVIDIA's wheel, else None."""
    folders = [str(Path(os.environ["CUDA_HOME"], "bin"))] if "CUDA_HOME" in os.environ else []
    folders.append(os.environ.get("PATH", os.defpath))
    wheels = importlib.util.find_spec("nvidia")
    for place in wheels.submodule_search_locations if wheels else ():
        folders += map(str, Path(place).glob("*/bin"))
    return shutil.which("compute-sanitizer", path=os.pathsep.join(folders))


@pytest.fixture(scope="module")
def sanitizer():
    found = _find()
    if found is None:
        pytest.skip(
            "kernels under sanitizers: no compute-sanitizer: put CUDA's bin folder on the PATH, or "
            "pip install nvidia-cuda-sanitizer-api"
        )
    return found


@pytest.mark.parametrize("tool", TOOLS)
def test_nothing_is_reported(kernels, sanitizer, tool):
    for stem in cards():
        # Under the tool a compiler would be watched too, so it runs ahead.
        jit.cuda_module(stem)
    command = [sanitizer, "--tool", tool, "--error-exitcode", "99", "--kernel-name", "kns=glm53"]
    command += ["--target-processes", "application-only", *TOOLS[tool]]
    command += [sys.executable, "-m", "tests.gpu.sanitised"]
    # Torch's cache of memory would hide an access beside a tensor.
    environment = os.environ | {"GLM53_KERNELS": "cuda", "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-4000:]
    assert f"checked {len(sanitised.WATCHED)} calls" in output
    assert re.search(r"SUMMARY: 0 (?:errors|hazards)", output), output[-4000:]
