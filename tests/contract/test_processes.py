"""Owns the list of every process that SGLang starts, and of every place where it loads plugins."""

import ast
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UPSTREAM = Path(importlib.util.find_spec("sglang").origin).parent
# What a process comes from, in SGLang's own code; psutil.Process reads one, subprocess runs tools.
STARTER = re.compile(
    r"(?<!psutil\.)\bProcess\b|\bProcessPoolExecutor|\bGranian\b|Multiprocess\b|\buvicorn\.run\b|\bray\.remote\b"
)
WORDS = (
    "Process(",
    ".Process)",
    "ProcessPool",
    "Granian",
    "Multiprocess",
    "uvicorn.run",
    "ray.remote",
)
# A decorator, and a class that is called by another name.
PASSED_ON = ("ray.remote", "Granian")
PLUGINS = re.compile(r"\bload_plugins\(")

LOADS = "loads plugins"
OURS = "imports sglang_glm53/http_app.py, which loads them"
HARMLESS = "builds no model and takes no request"
# The function or class that starts processes, and how each of them comes by this package.
PROCESSES = {
    "srt/entrypoints/engine.py:_launch_scheduler_processes": LOADS,
    "srt/managers/data_parallel_controller.py:launch_tensor_parallel_group": LOADS,
    # The router before several detokenizers loads none; it moves their messages.
    "srt/entrypoints/engine.py:_launch_detokenizer_subprocesses": LOADS,
    # launch_server in a child: Engine._launch_subprocesses loads plugins before the arguments are checked.
    "srt/entrypoints/http_server_engine.py:launch_server_process": LOADS,
    "srt/entrypoints/http_server.py:_setup_and_run_http_server": OURS,
    "srt/entrypoints/http_server.py:_ReusePortMultiprocess": OURS,
    "srt/entrypoints/http_server.py:_run_granian_server": OURS,
    "srt/weight_cache/daemon.py:spawn_weight_cache_daemon": "refused: --weight-cache-mode",
    "srt/ray/scheduler_actor.py:SchedulerActor": "refused: --use-ray",
    "srt/ray/engine.py:get_node_ip": "refused: --use-ray",
    # SGLang serves encoders of the models that it lists, GLM-5.3 not among them.
    "srt/disaggregation/encoder/grpc_server.py:serve_grpc_encoder": "refused: --encoder-only",
    "srt/disaggregation/encoder/http_server.py:launch_server": "refused: --encoder-only",
    "srt/disaggregation/encoder/runtime.py:launch_local_runtime": "refused: --encoder-only",
    "srt/disaggregation/encoder/runtime.py:launch_dp_runtime": "refused: --encoder-only",
    # The module that --sidecar names, a client of the gRPC port.
    "srt/entrypoints/sidecar.py:start_sidecar": HARMLESS,
    # Copies of the stored experts, by their names in the checkpoint.
    "srt/elastic_ep/expert_backup_manager.py:run_expert_backup_manager": HARMLESS,
    "srt/mem_cache/storage/hf3fs/mini_3fs_metadata_server.py:run": HARMLESS,
    "srt/distributed/device_communicators/custom_all_reduce_utils.py:can_actually_p2p": HARMLESS,
    "srt/model_executor/mindspore_runner.py:set_ms_parallel_env": HARMLESS,
    "srt/multimodal/processors/base_processor.py:_create_cpu_executor": HARMLESS,
    "srt/observability/trace_async.py:_TraceExporterProcess": HARMLESS,
}
LOADERS = {
    "launch_server.py:",
    "cli/serve.py:serve",
    "srt/entrypoints/engine.py:__init__",
    "srt/entrypoints/engine.py:_launch_subprocesses",
    "srt/managers/scheduler.py:run_scheduler_process",
    "srt/managers/data_parallel_controller.py:run_data_parallel_controller_process",
    "srt/managers/detokenizer_manager.py:run_detokenizer_process",
}


@cache
def sources() -> dict[str, str]:
    """SGLang's serving code by file: srt, the command line and launch_server."""
    files = [
        *(UPSTREAM / "srt").rglob("*.py"),
        *(UPSTREAM / "cli").rglob("*.py"),
        UPSTREAM / "launch_server.py",
    ]
    return {str(file.relative_to(UPSTREAM)): file.read_text(encoding="utf-8") for file in files}


def _inside(node: ast.AST, owner: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Every node with the name of the innermost function or class around it; a class's bases are its own."""
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        name = child.name if named else owner
        yield name, child
        yield from _inside(child, name)


def _owners(source: str, wanted: re.Pattern[str]) -> set[str]:
    """The functions and classes that call, derive from, or pass on what a pattern names."""
    found = set()
    for owner, node in _inside(ast.parse(source)):
        match node:
            case ast.Call():
                named, end = [node.func], "("
            case ast.ClassDef():
                named, end = node.bases, ""
            case ast.Attribute() | ast.Name():
                named, end = [node], ""
            case _:
                continue
        # Only a name whose last part the pattern holds is worth writing out.
        held = [each for each in named if getattr(each, "attr", getattr(each, "id", "")) in wanted.pattern]
        names = [ast.unparse(each) + end for each in held]
        if isinstance(node, ast.Attribute | ast.Name):
            names = [name for name in names if name in PASSED_ON]
        if any(wanted.search(name) for name in names):
            found.add(owner)
    return found


def _places(wanted: re.Pattern[str], words: tuple[str, ...]) -> set[str]:
    """Where SGLang does what a pattern names. words: what a file must hold one of to be parsed at all."""
    texts = {name: text for name, text in sources().items() if any(word in text for word in words)}
    return {f"{name}:{owner}" for name, text in texts.items() for owner in _owners(text, wanted)}


def test_every_process_that_sglang_starts_is_settled():
    assert _places(STARTER, WORDS) == set(PROCESSES)


def test_every_place_that_loads_plugins_is_known():
    assert _places(PLUGINS, ("load_plugins(",)) == LOADERS


def test_a_process_is_noticed():
    source = (
        "import multiprocessing as mp\nclass Exporter(mp.Process): ...\n"
        "class A:\n def start(self):\n  mp.get_context('spawn').Process(target=f).start()\n"
        "def look(): psutil.Process().parent()\n@ray.remote\ndef task(): ...\n"
    )
    assert _owners(source, STARTER) == {"Exporter", "start", "task"}


def test_the_document_names_every_flag_that_is_refused_for_its_processes():
    text = (ROOT / "docs" / "deploy.md").read_text().partition("## Where SGLang loads plugins")[2]
    flags = {how.partition(": ")[2] for how in PROCESSES.values() if how.startswith("refused: ")}
    assert [flag for flag in sorted(flags) if f"`{flag}`" not in text] == []
