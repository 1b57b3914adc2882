"""Owns the checks of the emulation's bf16 and e4m3: against torch, and against NVIDIA's own functions."""

import importlib.util
import os
import subprocess
from pathlib import Path

import numpy
import pytest
import torch


def _values():
    """Every bf16 as FP32, and random FP32 bits, dense around e4m3's range and bf16's ties."""
    every = (torch.arange(2**16, dtype=torch.int64) << 16).to(torch.int32)
    generator = torch.Generator().manual_seed(1)
    bits = torch.randint(-(2**31), 2**31, (200_000,), generator=generator).to(torch.int32)
    near = torch.randn(200_000, generator=generator) * 2.0 ** torch.randint(-12, 10, (200_000,))
    ties = ((torch.arange(2**16, dtype=torch.int64) << 16) | 0x8000).to(torch.int32)
    return torch.cat([every, bits, ties]).view(torch.float32), near


VALUES = torch.cat(_values())


def _table(program, values=VALUES):
    run = subprocess.run([program], input=values.numpy().tobytes(), capture_output=True, check=True)
    table = numpy.frombuffer(run.stdout, dtype=[("bf16", "<u2"), ("e4m3", "u1")])
    return torch.from_numpy(table["bf16"].astype("int32")), torch.from_numpy(table["e4m3"].astype("int32"))


def test_conversions_are_torchs(program):
    bf16, e4m3 = _table(program("numbers"))
    nan = VALUES.isnan()
    wide = VALUES.bfloat16().view(torch.int16).int() & 0xFFFF
    assert torch.equal(bf16, torch.where(nan, 0x7FFF, wide))
    narrow = VALUES.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8).int()
    assert torch.equal(e4m3, torch.where(nan, 0x7F, narrow))


def test_known_conversions(program):
    known = {1.0: (0x3F80, 0x38), -0.0: (0x8000, 0x80), 448.0: (0x43E0, 0x7E), 1e9: (0x4E6E, 0x7E)}
    known |= {2.0**-10: (0x3A80, 0), 2.0**-10 * 1.01: (0x3A81, 1), 17.0: (0x4188, 0x58), 19.0: (0x4198, 0x5A)}
    bf16, e4m3 = _table(program("numbers"), torch.tensor(list(known)))
    assert list(zip(bf16.tolist(), e4m3.tolist(), strict=True)) == list(known.values())


def _cuda_headers():
    """The folder of cuda_fp8.h: the toolkit's, or the one that torch's CUDA libraries brought."""
    places = [Path(os.environ["CUDA_HOME"], "include")] if "CUDA_HOME" in os.environ else []
    places.append(Path("/usr/local/cuda/include"))
    spec = importlib.util.find_spec("nvidia")
    places += sorted(
        p / "cu13" / "include" for p in map(Path, spec.submodule_search_locations if spec else [])
    )
    return next((place for place in places if (place / "cuda_fp8.h").is_file()), None)


def test_conversions_are_nvidias(program):
    headers = _cuda_headers()
    if headers is None:
        pytest.skip("NVIDIA's own conversions: no cuda_fp8.h: set CUDA_HOME to a CUDA toolkit")
    ours = _table(program("numbers"))
    theirs = _table(program("numbers", "plain", "-DGLM53_NVIDIA", f"-isystem{headers}"))
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine, other)
