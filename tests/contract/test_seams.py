"""Owns the checks of the seams and of docs/upstream.md against the installed SGLang's source."""

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sglang_glm53 import geometry, upstream
from sglang_glm53.cli.seams import markdown
from sglang_glm53.serving.seams import FEATURES, SEAMS
from tests.configs import glm53

ROOT = Path(__file__).resolve().parents[2]
SRT = Path(importlib.util.find_spec("sglang").origin).parent / "srt"
ROWS = [seam for group in SEAMS.values() for seam in group]
HOOKED = [seam for seam in ROWS if seam.hook]


def _function(path: Path, *names: str) -> ast.FunctionDef:
    node: ast.AST = ast.parse(path.read_text())
    for name in names:
        node = next(child for child in node.body if getattr(child, "name", None) == name)
    return node


def _calls(function: ast.FunctionDef) -> list[str]:
    """The methods of self that a function calls, in the order of its lines."""
    calls = [
        (node.lineno, node.func.attr)
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("self.")
    ]
    return [name for _, name in sorted(calls)]


@pytest.mark.parametrize("seam", ROWS, ids=lambda seam: seam.target)
def test_the_installed_sglang_has_it(seam):
    assert upstream.changes([seam], upstream.root()) == []


def test_no_row_twice():
    targets = [seam.target for seam in ROWS]
    assert sorted(targets) == sorted(set(targets))


def test_each_row_says_why_and_until_when():
    terse = [seam.target for seam in ROWS if len(seam.why.split()) < 3 or len(seam.remove_when.split()) < 3]
    assert terse == []


def test_the_groups_hold_every_feature_once():
    assert [seam for seams in FEATURES.values() for seam in seams] == ROWS


@pytest.mark.parametrize("seam", HOOKED, ids=lambda seam: seam.target)
def test_a_hook_has_its_handler(seam):
    module, _, name = seam.hook.handler.partition(":")
    source = (ROOT / f"{module.replace('.', '/')}.py").read_text()
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    found = {node.name for node in ast.parse(source).body if isinstance(node, kinds)}
    assert name in found


def test_the_document_is_fresh():
    assert (ROOT / "docs" / "upstream.md").read_text() == markdown(), (
        "run: glm53 seams --markdown > docs/upstream.md"
    )


def test_checking_imports_nothing_of_sglang():
    code = (
        "import sys; from sglang_glm53.serving import hooks; hooks.problems(); hooks.fingerprint(); "
        "from sglang_glm53.cli import seams; seams.compare(seams.upstream.root()); "
        "print(sorted({'sglang', 'torch', 'transformers'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "[]\n", run.stderr


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"indexer_types": ...},
        {"indexer_types": ..., "index_topk_freq": ...},
        {"indexer_types": ..., "index_skip_topk_offset": ...},
        {"indexer_types": ..., "index_topk_freq": 1},
        {"indexer_types": ..., "index_topk_freq": 3, "index_skip_topk_offset": 1},
        {"indexer_types": ..., "index_topk_freq": 5, "index_skip_topk_offset": 9},
        {"indexer_types": ..., "index_topk_pattern": "FFSFS" * 15},
        {"indexer_types": ["full", "shared"] * 39, "index_topk_pattern": "F"},
    ],
)
def test_the_schedule_is_sglangs(changes):
    function = _function(SRT / "configs" / "model_config.py", "dsa_layer_skips_topk")
    function.args.args[0].annotation = None
    names = {"is_deepseek_dsa": lambda config: True}
    exec(compile(ast.Module([function], []), "model_config.py", "exec"), names)
    config = SimpleNamespace(**glm53(**changes))
    assert geometry.schedule(config) == tuple(
        "shared" if names["dsa_layer_skips_topk"](config, layer) else "full" for layer in range(78)
    )


def test_the_processes_that_load_plugins_are_the_known_ones():
    """Others build the stock model: Ray's actors and the weight daemon, which preflight refuses."""
    callers = {
        str(path.relative_to(SRT))
        for path in SRT.rglob("*.py")
        if re.search(r"^\s+load_plugins\(\)$", path.read_text(), re.MULTILINE)
    }
    assert callers == {
        "entrypoints/engine.py",
        "managers/data_parallel_controller.py",
        "managers/detokenizer_manager.py",
        "managers/scheduler.py",
    }


def test_the_guard_comes_before_what_its_hooks_change():
    """A scheduler asks for the model's class, and so turns the hooks on, before it loads weights.

    Its request table, which binds get_internal_state, is made after that.
    """
    runner = _function(SRT / "model_executor" / "model_runner.py", "ModelRunner", "initialize")
    order = _calls(runner)
    assert order.index("maybe_init_expert_location_metadata") < order.index("load_model")
    resolver = _function(
        SRT / "eplb" / "expert_location.py", "ModelConfigForExpertLocation", "from_model_config"
    )
    assert "get_model_architecture(model_config)" in ast.unparse(resolver)
    scheduler = _calls(_function(SRT / "managers" / "scheduler.py", "Scheduler", "__init__"))
    assert scheduler.index("init_model_worker") < scheduler.index("init_request_dispatcher")


def test_the_launcher_checks_its_arguments_before_it_starts_a_process():
    launch = ast.unparse(_function(SRT / "entrypoints" / "engine.py", "Engine", "_launch_subprocesses"))
    assert launch.index("check_server_args()") < launch.index("_launch_scheduler_processes(")
    assert launch.index("check_server_args()") < launch.index("_launch_weight_cache_daemons(")


def test_the_loader_is_loaded_where_a_scheduler_starts():
    """So that registering there imports nothing that the scheduler would not have imported by then."""
    source = (SRT / "managers" / "scheduler.py").read_text()
    assert re.search(r"^from sglang\.srt\.model_loader\.utils import", source, re.MULTILINE)
