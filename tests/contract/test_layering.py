"""Owns the dependency direction: who may import whom and SGLang, where numbers and variables live."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "sglang_glm53"

# What each room of the package may import of it, besides itself. A room's line names only rooms above it,
# so there is no circle; `seams` stands for the seam table of every feature.
LEAVES = ("config", "fusion", "geometry", "upstream")
FEATURES = ("boundary", "disaggregation", "overlap", "speculative", "topk", "weights")
PACKAGE_ROOMS = {
    "config": (),
    "fusion": (),
    "geometry": (),
    "upstream": (),
    "kernels": LEAVES,
    **dict.fromkeys(FEATURES, (*LEAVES, "kernels")),
    "model": (*LEAVES, "kernels", *FEATURES),
    "cpu": (*LEAVES, "kernels", *FEATURES, "model"),
    "serving": (*LEAVES, "kernels", *FEATURES, "model", "cpu.seams"),
    "plugin": (*LEAVES, "serving"),
    "http_app": ("plugin", "serving"),
}
# What the command line and the tests use; nothing of the package imports it.
TOOL_ROOMS = {
    "testing": (*LEAVES, "kernels"),
    "tiny": ("geometry", "kernels.fp8", "weights.stored_tensors"),
    "bench": (*LEAVES, "kernels", "testing", "tiny"),
    "cli": (*LEAVES, "kernels", "disaggregation.packages", "serving", "testing", "tiny", "bench"),
}
ALLOWED = PACKAGE_ROOMS | TOOL_ROOMS
# A feature's seam table is data about SGLang's source: it imports this and nothing else.
SEAM_TABLES = dict.fromkeys(
    (f"{room}.seams" for room in (*FEATURES, "model", "cpu")), "sglang_glm53.upstream"
)
MAY_IMPORT_SGLANG = {*FEATURES, "model", "cpu", "serving", "plugin", "http_app", "cli"}
JIT = "kernels.jit"
# GLM-5.3's sizes that mean nothing else: the KV row, the index page, hidden, vocabulary, the A projection.
GLM_NUMBERS = {656, 8448, 6144, 154880, 2624}
# What the package's own __init__.py defines.
OWN_NAMES = {"__version__", "HTTP_APP", "IMPL", "PLATFORM_NAME"}
ENVIRONMENT_READERS = {"get", "getenv", "pop", "setdefault"}


def _module(path: Path) -> str:
    """A module's dotted name within the package; a room's __init__.py has the room's."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


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


def _may_import(room: str, name: str) -> bool:
    """Whether the table allows an imported dotted name; other distributions than the two are free."""
    package, _, inner = name.partition(".")
    if package == "sglang_glm53":
        return any(f"{inner}.".startswith(f"{allowed}.") for allowed in (room, *ALLOWED[room], *OWN_NAMES))
    return not f"{name}.".startswith("sglang.srt.") or room in MAY_IMPORT_SGLANG


def _import_faults(module: str, tree: ast.AST) -> list[str]:
    faults, room = [], module.partition(".")[0]
    for name in sorted(_imports(tree)):
        if name.startswith("."):
            faults.append(f"{module} imports {name}: write absolute imports")
        elif not f"{name}.".startswith(f"{SEAM_TABLES.get(module, name)}.") or not _may_import(room, name):
            faults.append(f"{module} imports {name}")
        elif name.startswith("sglang.kernels.jit") and module != JIT:
            faults.append(f"{module} imports {name}: only {JIT} calls SGLang's JIT loader")
    return faults


def _faults(module: str, source: str) -> list[str]:
    """What a module (dotted, within the package) does that its room may not."""
    if module.partition(".")[0] not in ALLOWED:
        return [f"{module} has no place in the layering"]
    tree = ast.parse(source)
    faults = _import_faults(module, tree)
    if module != "geometry":
        numbers = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and type(n.value) is int}
        faults += [
            f"{module} states {number}: geometry.py owns it" for number in sorted(numbers & GLM_NUMBERS)
        ]
    if module != "config":
        variables = sorted(name for name in _read_variables(tree) if name.startswith("GLM53_"))
        faults += [f"{module} reads {name}: config.py owns it" for name in variables]
    return faults


MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module_keeps_to_its_layer(path):
    assert _faults(_module(path), path.read_text()) == []


def test_the_table_names_what_exists_and_draws_no_circle():
    rooms = [path for path in PACKAGE.iterdir() if path.name not in ("__init__.py", "__pycache__")]
    assert set(ALLOWED) == {path.stem for path in rooms}
    above: list[str] = []
    for room, allowed in ALLOWED.items():
        # A feature's line is above those of the features after it, which may not name it all the same.
        assert {name.partition(".")[0] for name in allowed} <= set(above), room
        assert all(
            (PACKAGE / name.replace(".", "/")).with_suffix(".py").is_file() for name in allowed if "." in name
        )
        above.append(room)
    assert all((PACKAGE / f"{name.replace('.', '/')}.py").is_file() for name in SEAM_TABLES)
    assert not set(PACKAGE_ROOMS) & set(TOOL_ROOMS)
    assert not any(set(allowed) & set(TOOL_ROOMS) for allowed in PACKAGE_ROOMS.values())


@pytest.mark.parametrize(
    ("module", "source", "fault"),
    [
        ("geometry", "from sglang_glm53 import config", "geometry imports sglang_glm53.config"),
        (
            "kernels.x",
            "from sglang_glm53.model.model import X",
            "kernels.x imports sglang_glm53.model.model.X",
        ),
        ("kernels.x", "def f():\n import sglang.srt.utils", "kernels.x imports sglang.srt.utils"),
        ("model.moe", "import sglang_glm53.cpu.moe", "model.moe imports sglang_glm53.cpu.moe"),
        ("topk.x", "from sglang_glm53.overlap import carry", "topk.x imports sglang_glm53.overlap.carry"),
        ("serving.x", "from sglang_glm53.cpu import moe", "serving.x imports sglang_glm53.cpu.moe"),
        (
            "cpu.moe",
            "from sglang_glm53.testing import compare",
            "cpu.moe imports sglang_glm53.testing.compare",
        ),
        ("plugin", "from sglang_glm53 import cli", "plugin imports sglang_glm53.cli"),
        ("cpu.moe", "from . import moe", "cpu.moe imports ..moe: write absolute imports"),
        (
            "kernels.fp8",
            "from sglang.kernels.jit import load_jit",
            "kernels.fp8 imports sglang.kernels.jit.load_jit: only kernels.jit calls SGLang's JIT loader",
        ),
        ("cpu.moe", "ROW = 656", "cpu.moe states 656: geometry.py owns it"),
        ("plugin", "os.environ.get('GLM53_X')", "plugin reads GLM53_X: config.py owns it"),
        ("plugin", "os.environ['GLM53_X']", "plugin reads GLM53_X: config.py owns it"),
        ("topk.seams", "from sglang_glm53.kernels import jit", "topk.seams imports sglang_glm53.kernels.jit"),
        ("cpu.seams", "import torch", "cpu.seams imports torch"),
        ("utils", "", "utils has no place in the layering"),
    ],
)
def test_a_breach_is_reported(module, source, fault):
    assert _faults(module, source) == [fault]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("model.model", "from sglang_glm53 import geometry, __version__\nfrom sglang.srt import x"),
        ("serving.seams", "from sglang_glm53.cpu import seams"),
        ("topk.seams", "from sglang_glm53.upstream import Seam"),
        ("kernels.jit", "from sglang.kernels.jit import load_jit"),
        ("cli.doctor", "from sglang_glm53.testing.server import Server"),
        ("testing.server", "env = {'GLM53_KERNELS': 'torch'}"),
    ],
)
def test_what_is_allowed_is_not_reported(module, source):
    assert _faults(module, source) == []


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


@pytest.mark.parametrize("module", ["sglang_glm53", "sglang_glm53.cli", "sglang_glm53.serving.preflight"])
def test_import_needs_neither_torch_nor_sglang(module):
    code = f"import {module}, sys; print(sorted({{'torch', 'sglang', 'transformers'}} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "[]\n", run.stderr
