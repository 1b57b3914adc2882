"""Owns the checks of size and wording that ruff has no rule for."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_LINES = {".py": 400, ".cuh": 600, ".h": 600}
MAX_FUNCTION_LINES = 50
HOSTS = {"127.0.0.1", "localhost", "github.com", "www.apache.org", "keepachangelog.com", "semver.org"}
# Folders of one machine, spelled so that this file does not hold them.
MACHINE_PATH = re.compile(r"(?<![\w.$}])/(?:work|root|tmp/helpers|home/\w+)(?:/|\b)|\.\./shar" + "ed")
# Lines move with every release; a function's or a class's name lasts. A dated measurement stays as it was.
LINE_CITATION = re.compile(r"[\w/]+\.(?:py|cuh?|h|hpp|cpp):\d+|\blines? \d{3,}\b")
DATED = re.compile(r"\d{4}-\d\d-\d\d-")
LEFTOVER = re.compile(r"\b(?:TO" + "DO|FIX" + "ME|XX" + r"X)\b")


def _files() -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [ROOT / name for name in names if (ROOT / name).is_file()]


FILES = _files()
PYTHON = [path for path in FILES if path.suffix == ".py"]


def _text_faults(name: str, text: str) -> list[str]:
    """What no file of the repository may hold, and the files that are too long."""
    faults = []
    limit, lines = MAX_LINES.get(Path(name).suffix), text.count("\n")
    if limit and lines > limit:
        faults.append(f"{lines} lines, {limit} allowed")
    faults += [f"names a machine's folder: {found}" for found in MACHINE_PATH.findall(text)]
    faults += [f"holds a leftover: {found}" for found in LEFTOVER.findall(text)]
    cited = [] if DATED.match(name) else LINE_CITATION.findall(text)
    faults += [f"cites {found}: name the function or class" for found in cited]
    hosts = set(re.findall(r"https?://([\w.-]+)", text)) - HOSTS
    return faults + [f"names the host {host}" for host in sorted(hosts)]


def _python_faults(text: str) -> list[str]:
    """Modules without a first docstring line, long functions, and handlers of every exception."""
    tree = ast.parse(text)
    docstring = ast.get_docstring(tree) or ""
    faults = [] if docstring.partition("\n")[0].strip() or not text.strip() else ["has no docstring"]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = node.end_lineno - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                faults.append(f"{node.name} has {length} lines, {MAX_FUNCTION_LINES} allowed")
        elif isinstance(node, ast.ExceptHandler) and node.type is None:
            faults.append(f"line {node.lineno}: a bare except")
    return faults


def _broad_handlers(text: str) -> int:
    """How many handlers take any exception and do not raise it again."""
    return sum(
        isinstance(node, ast.ExceptHandler)
        and isinstance(node.type, ast.Name)
        and node.type.id in ("Exception", "BaseException")
        and not isinstance(node.body[-1], ast.Raise)
        for node in ast.walk(ast.parse(text))
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_text(path):
    assert _text_faults(path.name, path.read_text()) == []


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: str(path.relative_to(ROOT)))
def test_python(path):
    assert _python_faults(path.read_text()) == []


def test_at_most_one_boundary_catches_everything():
    package = [path for path in PYTHON if path.is_relative_to(ROOT / "sglang_glm53")]
    counts = {path.name: count for path in package if (count := _broad_handlers(path.read_text()))}
    assert sum(counts.values()) <= 1, counts


def test_text_faults_are_reported():
    text = "see /wor" + "k/main and ../shar" + "ed/x\n# TO" + "DO later\nhttps:/" + "/files.example.org/x\n"
    assert _text_faults("a.md", text) == [
        "names a machine's folder: /wor" + "k/",
        "names a machine's folder: ../shar" + "ed",
        "holds a leftover: TO" + "DO",
        "names the host files.example.org",
    ]
    cited = "see layers/x.py" + ":12, :34 and, in csrc/y.cuh" + ":5, line" + " 678\nFile 'x.py', line 1\n"
    assert _text_faults("a.txt", cited) == [
        f"cites {found}: name the function or class"
        for found in ("layers/x.py" + ":12", "csrc/y.cuh" + ":5", "line" + " 678")
    ]
    assert _text_faults("2026-11-29-a.md", cited) == []
    assert _text_faults("a.py", "\n" * 401) == ["401 lines, 400 allowed"]
    assert _text_faults("a.cuh", "\n" * 601) == ["601 lines, 600 allowed"]
    assert _text_faults("a.md", "\n" * 601) == []


def test_python_faults_are_reported():
    long = "def f():\n" + "    x = 1\n" * 50
    assert _python_faults(long) == ["has no docstring", "f has 51 lines, 50 allowed"]
    bare = '"""Owns x."""\ntry:\n    f()\nexcept:\n    pass\n'
    assert _python_faults(bare) == ["line 4: a bare except"]
    assert _broad_handlers(bare.replace("except", "except Exception")) == 1
    assert _broad_handlers(bare.replace("except", "except OSError")) == 0
    assert _broad_handlers(bare.replace("except", "except Exception").replace("pass", "raise")) == 0
