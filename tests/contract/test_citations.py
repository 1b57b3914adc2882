"""Owns the check that the functions and classes of SGLang and FlashInfer that the code cites exist."""

import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = [Path(importlib.util.find_spec(name).origin).parent for name in ("sglang", "flashinfer")]
CITING = sorted((ROOT / "sglang_glm53").rglob("*.py"))
# "<file> <name>", over the ends of a comment's and a string's lines too. A name is told from the sentence's
# next word by an underscore, a dot or a capital.
CITATION = re.compile(r'([\w/]+\.py)[\s#"]+(?=\w*[A-Z_.]\w)(?!SGLang)([A-Za-z_]\w*(?:\.\w+)*)')
DECLARED = re.compile(r"^\s*(?:(?:async )?(?:def|class) (\w+)|(\w+)(?::[^=\n]+)? = )", re.MULTILINE)


@cache
def _upstream() -> dict[str, list[Path]]:
    files: dict[str, list[Path]] = {}
    for package in PACKAGES:
        for path in package.rglob("*.py"):
            files.setdefault(path.name, []).append(path)
    return files


@cache
def _names(path: Path) -> set[str]:
    return {name for pair in DECLARED.findall(path.read_text()) for name in pair}


def _faults(text: str) -> list[str]:
    """Each citation "<file> <name>" whose file neither package has, or that declares no such name."""
    faults = []
    for file, name in CITATION.findall(text):
        paths = [path for path in _upstream().get(Path(file).name, ()) if f"/{path}".endswith(f"/{file}")]
        if not any(set(name.split(".")) <= _names(path) for path in paths):
            faults.append(f"{file} {name}")
    return faults


@pytest.mark.parametrize("path", CITING, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_cited_exists(path):
    assert _faults(path.read_text()) == []


def test_faults_are_reported():
    text = (
        "Source: models/deepseek_v2.py DeepseekV2AttentionMLA.op_gone, models/gone.py MoEGate,\n"
        "    models/deepseek_v2.py\n    # MoEGate and layers/linear.py of SGLang; comm/mnnvl.py all_gone.\n"
    )
    assert _faults(text) == [
        "models/deepseek_v2.py DeepseekV2AttentionMLA.op_gone",
        "models/gone.py MoEGate",
        "comm/mnnvl.py all_gone",
    ]
