"""Owns the dependency direction: who may import whom and SGLang, where numbers and variables live."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "sglang_glm53"

LEAVES = {"geometry", "config", "capacity", "cards", "tensors", "upstream", "seams"}
CORE = LEAVES | {"jit", "ops", "hooks", "preflight"}
# What the modules of each layer may import of this package, besides their own layer.
ALLOWED = {
    "geometry": set(),
    "config": set(),
    "capacity": set(),
    "cards": set(),
    "upstream": set(),
    "tensors": {"geometry"},
    "seams_cpu": {"upstream"},
    "seams_boundary": {"upstream"},
    "seams_selection": {"upstream"},
    "seams_overlap": {"upstream"},
    "seams_pd": {"upstream"},
    "seams": {"upstream", "seams_boundary", "seams_cpu", "seams_overlap", "seams_pd", "seams_selection"},
    "jit": LEAVES,
    "ops": LEAVES | {"jit"},
    "hooks": LEAVES,
    "preflight": LEAVES | {"hooks"},
    "ledger": LEAVES,
    "runtime": CORE | {"overlap"},
    "overlap": CORE,
    "cpu": CORE | {"runtime", "overlap"},
    "plugin": CORE | {"runtime", "overlap", "cpu"},
    "testing": CORE | {"runtime", "overlap", "cpu", "ledger", "plugin"},
    "cli": CORE | {"runtime", "overlap", "cpu", "ledger", "plugin", "testing"},
}
MAY_IMPORT_SGLANG = {"runtime", "overlap", "cpu", "cli", "plugin", "hooks", "preflight"}
# GLM-5.3's sizes that mean nothing else: the KV row, the index page, hidden, vocabulary, the A projection.
GLM_NUMBERS = {656, 8448, 6144, 154880, 2624}
# What the package's own __init__.py defines.
OWN_NAMES = {"__version__", "IMPL"}
ENVIRONMENT_READERS = {"get", "getenv", "pop", "setdefault"}


def _layer(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imports(tree: ast.AST) -> set[str]:
    """Every imported dotted name, lazy imports included; `from a import b` counts as a.b."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


def _read_variables(tree: ast.AST) -> set[str]:
    """The variables that are looked up by a literal name: x["NAME"], x.get("NAME"), getenv("NAME")."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            keys = [node.slice]
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            keys = node.args[:1] if name in ENVIRONMENT_READERS else []
        else:
            continue
        found |= {key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
    return found


def _import_faults(layer: str, tree: ast.AST) -> list[str]:
    faults = []
    for name in sorted(_imports(tree)):
        parts = name.split(".")
        if name.startswith("."):
            faults.append(f"{layer} imports {name}: write absolute imports")
        elif parts[0] == "sglang_glm53" and parts[1] not in OWN_NAMES:
            if parts[1] not in ALLOWED[layer] | {layer}:
                faults.append(f"{layer} imports {name}")
        elif parts[:2] == ["sglang", "srt"] and layer not in MAY_IMPORT_SGLANG:
            faults.append(f"{layer} imports {name}")
        elif parts[:3] == ["sglang", "kernels", "jit"] and layer != "jit":
            faults.append(f"{layer} imports {name}: only jit.py calls SGLang's JIT loader")
    return faults


def _faults(layer: str, source: str) -> list[str]:
    """What a module of a layer does that its layer may not."""
    if layer not in ALLOWED:
        return [f"{layer} has no place in the layering"]
    tree = ast.parse(source)
    faults = _import_faults(layer, tree)
    if layer != "geometry":
        numbers = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and type(n.value) is int}
        faults += [
            f"{layer} states {number}: geometry.py owns it" for number in sorted(numbers & GLM_NUMBERS)
        ]
    if layer != "config":
        variables = sorted(name for name in _read_variables(tree) if name.startswith("GLM53_"))
        faults += [f"{layer} reads {name}: config.py owns it" for name in variables]
    return faults


MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module_keeps_to_its_layer(path):
    assert _faults(_layer(path), path.read_text()) == []


@pytest.mark.parametrize(
    ("layer", "source", "fault"),
    [
        ("geometry", "from sglang_glm53 import config", "geometry imports sglang_glm53.config"),
        ("ops", "from sglang_glm53.runtime.model import X", "ops imports sglang_glm53.runtime.model.X"),
        ("ops", "def f():\n import sglang.srt.utils", "ops imports sglang.srt.utils"),
        ("runtime", "import sglang_glm53.cpu.moe", "runtime imports sglang_glm53.cpu.moe"),
        ("cpu", "from sglang_glm53.testing import compare", "cpu imports sglang_glm53.testing.compare"),
        ("plugin", "from sglang_glm53 import cli", "plugin imports sglang_glm53.cli"),
        ("cpu", "from . import moe", "cpu imports ..moe: write absolute imports"),
        (
            "runtime",
            "from sglang.kernels.jit import load_jit",
            "runtime imports sglang.kernels.jit.load_jit: only jit.py calls SGLang's JIT loader",
        ),
        ("cpu", "ROW = 656", "cpu states 656: geometry.py owns it"),
        ("plugin", "os.environ.get('GLM53_X')", "plugin reads GLM53_X: config.py owns it"),
        ("plugin", "os.environ['GLM53_X']", "plugin reads GLM53_X: config.py owns it"),
        ("utils", "", "utils has no place in the layering"),
    ],
)
def test_a_breach_is_reported(layer, source, fault):
    assert _faults(layer, source) == [fault]


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("runtime", "from sglang_glm53 import geometry, __version__\nfrom sglang.srt import x"),
        ("jit", "from sglang.kernels.jit import load_jit"),
        ("cli", "from sglang_glm53.testing.server import Server"),
        ("testing", "env = {'GLM53_KERNELS': 'torch'}"),
    ],
)
def test_what_is_allowed_is_not_reported(layer, source):
    assert _faults(layer, source) == []


def _include_faults(folder: str, source: str) -> list[str]:
    """The includes that csrc may not have: torch or Python anywhere, kernels from the shared headers."""
    includes = re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', source, re.MULTILINE)
    banned = re.compile(r"^(torch/|ATen/|c10/|pybind11/|Python\.h)|^(\.\./)*kernels/")
    kernels_too = folder == "kernels"
    return [name for name in includes if banned.match(name) and not (kernels_too and "kernels/" in name)]


SOURCES = [path for path in sorted((ROOT / "csrc").rglob("*")) if path.is_file()]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_csrc_needs_no_torch(path):
    assert _include_faults(path.relative_to(ROOT / "csrc").parts[0], path.read_text()) == []


def test_a_banned_include_is_reported():
    source = '#pragma once\n#include <torch/extension.h>\n# include "kernels/topk.cuh"\n#include <cstdint>\n'
    assert _include_faults("include", source) == ["torch/extension.h", "kernels/topk.cuh"]
    assert _include_faults("kernels", source) == ["torch/extension.h"]


@pytest.mark.parametrize("module", ["sglang_glm53", "sglang_glm53.cli", "sglang_glm53.preflight"])
def test_import_needs_neither_torch_nor_sglang(module):
    code = f"import {module}, sys; print(sorted({{'torch', 'sglang', 'transformers'}} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "[]\n", run.stderr
