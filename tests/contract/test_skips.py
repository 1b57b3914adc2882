"""Owns the promise that a test run names each feature it skipped, and what repairs it."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUN = """
import pytest

@pytest.mark.parametrize("n", range(3))
def test_pair(n):
    pytest.skip("pairs: no library: apt-get install it")

@pytest.mark.skipif(True, reason="budgets: no nvcc: set CUDA_HOME")
def test_budget(): ...

def test_other(): ...
"""


def test_each_skipped_feature_is_one_line_with_its_repair(tmp_path):
    (tmp_path / "test_some.py").write_text(RUN)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-c", "/dev/null", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    said = run.stdout.partition("not tested here")[2].splitlines()
    assert run.returncode == 0, run.stdout + run.stderr
    assert said[1:3] == [
        "budgets: no nvcc: set CUDA_HOME (1 skipped)",
        "pairs: no library: apt-get install it (3 skipped)",
    ]


def _written_reasons(source: str) -> list[str]:
    """The reasons of the skips in a test's source, as they are written there; not those of a variable."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    skips = [call for call in calls if ast.unparse(call.func) in ("pytest.skip", "pytest.mark.skipif")]
    values = [value for call in skips for value in (*call.args, *(word.value for word in call.keywords))]
    text = [value for value in values if isinstance(value, ast.JoinedStr | ast.Constant)]
    return [ast.unparse(value) for value in text]


def test_every_reason_names_the_feature_the_lack_and_the_repair():
    sources = [path.read_text() for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    reasons = [reason for source in sources for reason in _written_reasons(source)]
    assert len(reasons) > 5
    assert [reason for reason in reasons if reason.count(": ") < 2] == []
