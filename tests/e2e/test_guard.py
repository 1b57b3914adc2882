"""Owns the proof, in real processes, that the guard is inert when not asked for and refuses when it must."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sglang_glm53 import HTTP_APP, __version__, upstream
from sglang_glm53.serving import hooks
from sglang_glm53.serving.preflight import model_reasons
from sglang_glm53.testing.server import ENVIRONMENT, ServerError
from tests.configs import FP8, glm53, mtp
from tests.e2e.ahead import WORKERS

# A launch takes 25 s of CPU time, most of it SGLang's imports.
SECONDS = 600
GUARDED = [
    "sglang.srt.arg_groups.validation_hook.check_server_args",
    "sglang.srt.model_loader.utils.get_model_architecture",
]

# What a scheduler's process does until it builds its model; it prints what the plugin changed.
PROCESS = """
import json, pkgutil, sys
from types import SimpleNamespace
from sglang_glm53 import plugin
from sglang_glm53.serving import hooks

def attribute(target):
    owner, _, name = target.rpartition(".")
    return vars(pkgutil.resolve_name(owner))[name]

def changed(before):
    return sorted(target for target, value in before.items() if attribute(target) is not value)

import sglang.srt.managers.scheduler
from sglang.srt.model_loader import loader, utils
from sglang.srt.plugins import load_plugins

targets = [target for group in hooks.SEAMS for target, _ in hooks.hooked(group)] + json.loads(sys.argv[1])
before = {target: attribute(target) for target in targets}
load_plugins()
after_load = changed(before)

config = SimpleNamespace(**json.loads(sys.argv[2]))
def resolve(model_impl, get):
    model = SimpleNamespace(hf_config=config, model_impl=model_impl, is_draft_model=False, quantization=None)
    cls, architecture = get(model)
    return [cls.__module__, cls.__name__, architecture]

stock = resolve("auto", before[plugin._LOADER + ".get_model_architecture"])
auto = resolve("auto", loader.get_model_architecture)
after_auto = changed(before)
glm53 = resolve("glm53", loader.get_model_architecture)
print(json.dumps({
    "after_load": after_load, "stock": stock, "auto": auto, "after_auto": after_auto, "glm53": glm53,
    "after_glm53": changed(before),
    "one_guard": loader.get_model_architecture is utils.get_model_architecture,
}))
"""


def _environment(path: Path | None = None, **changes: str) -> dict[str, str]:
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("GLM53_", "SGLANG_"))
    }
    environ |= {**ENVIRONMENT, "PYTHONDONTWRITEBYTECODE": "1", **changes}
    return environ | ({"PYTHONPATH": str(path)} if path else {})


@pytest.fixture(scope="module")
def process():
    """What PROCESS printed, on a machine without our platform."""
    environ = _environment()
    del environ["SGLANG_PLATFORM"]
    command = [sys.executable, "-c", PROCESS, json.dumps(GUARDED), json.dumps(glm53())]
    run = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=SECONDS)
    assert run.returncode == 0, run.stderr[-4000:]
    return json.loads(run.stdout.splitlines()[-1])


def test_only_the_guards_and_their_hook_differ_from_stock(process):
    ahead = [target for target, _ in hooks.hooked("guard")]
    assert process["after_load"] == process["after_auto"] == sorted([*GUARDED, *ahead])
    assert process["one_guard"]


def test_another_implementation_gets_what_stock_returns(process):
    assert process["auto"] == process["stock"]
    assert process["stock"] == ["sglang.srt.models.glm4_moe", "GlmMoeDsaForCausalLM", "GlmMoeDsaForCausalLM"]


def test_ours_gets_our_class_and_the_hooks(process):
    assert process["glm53"] == ["sglang_glm53.model.model", "Glm53ForCausalLM", "GlmMoeDsaForCausalLM"]
    hooked = [target for group in ("guard", "model") for target, _ in hooks.hooked(group)]
    assert process["after_glm53"] == sorted([*GUARDED, *hooked])


def _edited_sglang(folder: Path, edits: dict[str, tuple[str, str]]) -> Path:
    """folder, holding an sglang of links to the installed one; edits: file -> (old text, new text)."""

    def link(source: Path, target: Path, inside: list[tuple[str, ...]]) -> None:
        target.mkdir()
        for entry in source.iterdir():
            deeper = [parts[1:] for parts in inside if parts[0] == entry.name and len(parts) > 1]
            if deeper:
                link(entry, target / entry.name, deeper)
            elif entry.name != "__pycache__":
                (target / entry.name).symlink_to(entry)

    link(upstream.root(), folder / "sglang", [Path(name).parts for name in edits])
    for name, (old, new) in edits.items():
        text = (upstream.root() / name).read_text()
        assert old in text
        (folder / "sglang" / name).unlink()
        (folder / "sglang" / name).write_text(text.replace(old, new))
    return folder


def _another_version(folder: Path) -> Path:
    info = folder / "sglang-0.5.24.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.24\n")
    return folder


def _failing_register(folder: Path) -> Path:
    source = (
        "from sglang_glm53 import plugin\n\n\ndef _prepare():\n    raise OSError('no space left')\n\n\n"
        "plugin._prepare = _prepare\n"
    )
    (folder / "sitecustomize.py").write_text(source)
    return folder


RENAMED_HOOK = {
    "srt/model_loader/loader.py": ("_validate_default_loader_extra_config", "_validate_extra_config")
}
RENAMED_GUARD = {
    "srt/arg_groups/validation_hook.py": ("def check_server_args(", "def check_arguments("),
    "srt/server_args.py": (
        "import check_server_args\n\n        check_server_args(",
        "import check_arguments\n\n        check_arguments(",
    ),
}
BROKEN = {
    "n_group": 8,
    "topk_group": 4,
    "index_topk": 4096,
    "indexer_types": ["shared"] + ["full"] * 77,
    "quantization_config": FP8 | {"weight_block_size": [64, 64]},
}
# mode -> how its folder of the path is prepared, and what its config.json has wrong.
MODES: dict[str, tuple[Callable[[Path], Path], dict]] = {
    "changed": (lambda folder: _another_version(_edited_sglang(folder, RENAMED_HOOK)), BROKEN),
    "register": (_failing_register, {}),
    "guard": (lambda folder: _edited_sglang(folder, RENAMED_GUARD), {}),
}


@pytest.fixture(scope="module")
def launches(tmp_path_factory):
    """mode -> exit code and output of a launch with --model-impl glm53 and a model without weights."""

    def launch(mode):
        prepare, changes = MODES[mode]
        model, path = tmp_path_factory.mktemp("model"), prepare(tmp_path_factory.mktemp(mode))
        (model / "config.json").write_text(json.dumps(glm53(**changes)))
        command = [
            sys.executable,
            "-m",
            "sglang.launch_server",
            "--model-impl",
            "glm53",
            "--model-path",
            str(model),
        ]
        run = subprocess.run(
            command,
            env=_environment(path),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
        )
        return run.returncode, run.stdout

    with ThreadPoolExecutor(WORKERS) as pool:
        return dict(zip(MODES, pool.map(launch, MODES), strict=True))


def _reasons(output: str) -> list[str]:
    """The numbered reasons that are the last thing in the output."""
    head, _, listed = output.partition("RefusedError: --model-impl glm53 cannot run this:\n")
    assert head and listed, output[-4000:]
    lines = listed.splitlines()
    assert [line.partition(". ")[0] for line in lines] == [f"  {n}" for n in range(1, len(lines) + 1)]
    return [line.partition(". ")[2] for line in lines]


@pytest.mark.parametrize("mode", MODES)
def test_the_exit_code_says_no(launches, mode):
    assert launches[mode][0] == 1


def test_a_process_says_what_is_on(launches):
    line = f"sglang-glm53 {__version__}: SGLang 0.5.24, seams "
    assert launches["changed"][1].count(line) == 1
    assert "hooks guard+model+cpu\n" in launches["changed"][1]


def test_a_wrong_version_a_missing_hook_target_and_every_fault_of_the_config(launches):
    target = "sglang.srt.model_loader.loader._validate_default_loader_extra_config"
    version, seam, hook, *model = _reasons(launches["changed"][1])
    assert version == (
        "SGLang 0.5.24: this package is written for 0.5.23: pip install sglang==0.5.23, "
        "or set GLM53_ALLOW_UNTESTED=1 to try as it is"
    )
    assert seam == (
        f"SGLang changed: {target}: expected function(*, extra_config, load_format), "
        "found nothing of that name: pip install --force-reinstall --no-deps sglang==0.5.23"
    )
    assert hook.startswith(
        f"{target}: the hook sglang_glm53.weights.loading:accept_extra_key is not in place"
    )
    assert model == model_reasons(glm53(**BROKEN))
    assert len(model) == 6


def test_register_raises(launches):
    failure, *missing = _reasons(launches["register"][1])
    assert failure == (
        "sglang-glm53 did not start: _prepare failed with OSError: no space left: run glm53 doctor"
    )
    unregistered = [target for group in ("guard", "cpu") for target, _ in hooks.hooked(group)]
    assert [reason.partition(": ")[0] for reason in missing] == unregistered


def test_no_guard_can_be_installed(launches):
    assert launches["guard"][1].splitlines()[-1] == (
        "SGLang cannot be guarded: sglang-glm53 did not start: _install_guard failed with AttributeError: "
        "module 'sglang.srt.arg_groups.validation_hook' has no attribute 'check_server_args': "
        "run glm53 doctor"
    )


NO_DRAFT = (
    "--speculative-algorithm: config.json: num_nextn_predict_layers is 0, num_hidden_layers 8: SGLang's MTP "
    "draft needs exactly 1, and at least 2: leave it out"
)
NO_MEMORY_SAVER = (
    "--enable-memory-saver: it frees CUDA's memory, and the reference platform holds none: leave it out"
)
NOT_DETERMINISTIC = (
    "--enable-deterministic-inference: SGLang has it for GPU attention backends; the reference platform sums "
    "in one order as it is: leave it out"
)


@pytest.mark.parametrize(
    ("flags", "env", "reason"),
    [
        (
            (),
            {"GLM53_KERNELS": "cuda"},
            "GLM53_KERNELS=cuda needs a GPU, not cpu: use auto, torch or emulated",
        ),
        (mtp(3), {}, NO_DRAFT),
        (
            ("--tokenizer-worker-num", "2"),
            {"SGLANG_HTTP_SERVER_APP_PATH": "mine:app"},
            "SGLANG_HTTP_SERVER_APP_PATH=mine:app with --tokenizer-worker-num 2: workers load this package "
            f"with {HTTP_APP} alone: unset it, or leave out the flag",
        ),
        (("--enable-memory-saver",), {}, NO_MEMORY_SAVER),
        (("--enable-deterministic-inference",), {}, NOT_DETERMINISTIC),
    ],
    ids=[
        "kernels of another device",
        "no MTP layer",
        "another application",
        "a CUDA allocator",
        "what SGLang blames on another",
    ],
)
def test_a_server_is_refused_before_weights_load(flags, env, reason, serve, checkpoint):
    with pytest.raises(ServerError) as error, serve(checkpoint("default"), *flags, env=env):
        pass
    assert _reasons(error.value.log.rstrip()) == [reason]
    assert "Load weight begin" not in error.value.log


def test_a_draft_folder_without_an_mtp_layer_is_refused_before_weights_load(serve, checkpoint):
    draft = checkpoint("default")
    flags = (*mtp(3), "--speculative-draft-model-path", str(draft))
    with pytest.raises(ServerError) as error, serve(checkpoint("mtp"), *flags):
        pass
    [reason] = _reasons(error.value.log.rstrip())
    assert reason.startswith(
        f"--speculative-draft-model-path {draft}: config.json: num_nextn_predict_layers is 0"
    )
    assert "Load weight begin" not in error.value.log
