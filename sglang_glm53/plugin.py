"""Owns the way into SGLang: the guard on two of its functions, and the hooks that the guard turns on.

SGLang logs and swallows what a plugin raises, and would then serve its stock model under this package's name.
So register() installs the guard first, and every later failure becomes a reason that the guard raises.
The package's other modules are imported where they are used: an import that fails must be such a reason too.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import logging
import multiprocessing
import pkgutil
import sys
from collections.abc import Callable
from typing import Any

from sglang_glm53 import HTTP_APP, IMPL, PLATFORM_NAME

CLASSES = {
    "GlmMoeDsaForCausalLM": "sglang_glm53.model.model:Glm53ForCausalLM",
    "GlmMoeDsaForCausalLMNextN": "sglang_glm53.model.nextn:Glm53ForCausalLMNextN",
}
_LOADER = "sglang.srt.model_loader.utils"

logger = logging.getLogger("sglang_glm53")

_guarded: set[str] = set()
_failures: list[str] = []


def requested(argv: list[str]) -> bool:
    """Whether a command line asks for this implementation. Spawned processes inherit their parent's."""
    return f"--model-impl={IMPL}" in argv or ("--model-impl", IMPL) in itertools.pairwise(argv)


def register() -> None:
    """SGLang's entry point, called once in every process, before it reads its arguments.

    Raises SystemExit, which SGLang does not swallow, when not even the guard can be installed and the
    command line asks for this implementation.
    """
    _attempt(_install_guard)
    if _failures:
        if requested(sys.argv):
            raise SystemExit(f"SGLang cannot be guarded: {_failures[0]}")
        return
    _attempt(_prepare)


def _attempt(step: Callable[[], None]) -> None:
    """Run a step of the start; the one place where any exception becomes a reason for the guard to raise."""
    try:
        step()
    except Exception as error:
        logger.exception("sglang-glm53: %s failed", step.__name__)
        problem = f"{step.__name__} failed with {type(error).__name__}: {error}"
        _failures.append(f"sglang-glm53 did not start: {problem}: run glm53 doctor")


def _install_guard() -> None:
    _guard("sglang.srt.arg_groups.validation_hook", "check_server_args", _check_server_args)
    # A launcher must not import the loader before it has read its arguments: they decide what that import
    # fixes for good. It builds no model, and select() comes back for it.
    if _LOADER in sys.modules or multiprocessing.parent_process() is not None:
        _guard(_LOADER, "get_model_architecture", _get_model_architecture)


def _guard(module_name: str, name: str, guard: Callable[..., Any]) -> None:
    """Call guard(original, argument) in place of a function, wherever SGLang has imported it by now."""
    if name in _guarded:
        return
    original = getattr(importlib.import_module(module_name), name)
    guarded = functools.wraps(original)(functools.partial(guard, original))
    for module in [module for key, module in sys.modules.items() if key.startswith("sglang.")]:
        for alias in [key for key, value in vars(module).items() if value is original]:
            setattr(module, alias, guarded)
    _guarded.add(name)


def _check_server_args(original: Callable[[Any], Any], server_args: Any) -> Any:
    if server_args.model_impl == IMPL:
        from sglang_glm53.serving import preflight

        preflight.refuse_if([*select(), *preflight.server_reasons(server_args)])
        _hook_tokenizer_workers()
    return original(server_args)


def _hook_tokenizer_workers() -> None:
    """Have SGLang's tokenizer workers, if it starts any, load this package with their application."""
    from sglang.srt.environ import envs

    envs.SGLANG_HTTP_SERVER_APP_PATH.set(HTTP_APP)


def _get_model_architecture(original: Callable[[Any], Any], model_config: Any) -> Any:
    stock, architecture = original(model_config)
    is_draft = model_config.is_draft_model
    if model_config.model_impl != IMPL:
        return stock, architecture
    from sglang_glm53.serving import preflight

    preflight.refuse_if([*select(), *preflight.model_reasons(model_config.hf_config, is_draft=is_draft)])
    ours = pkgutil.resolve_name(CLASSES[architecture]) if architecture in CLASSES else object
    if not issubclass(ours, stock):
        found = f"{stock.__module__}.{stock.__qualname__}"
        preflight.refuse_if(
            [f"SGLang resolves the model to {found}, not to its own GLM-5.3 class: the log says why"]
        )
    return ours, architecture


@functools.cache
def select() -> tuple[str, ...]:
    """Turn on what --model-impl glm53 needs, once per process; every reason against it."""
    _attempt(_turn_on)
    return tuple(_failures)


def _turn_on() -> None:
    from sglang_glm53.serving import hooks, preflight

    announce()
    _failures.extend(preflight.package_reasons(_groups()))
    from sglang.srt.plugins.hook_registry import HookRegistry

    _guard(_LOADER, "get_model_architecture", _get_model_architecture)
    hooks.register("model")
    HookRegistry.apply_hooks()
    _failures.extend(reason for group in _groups() for reason in hooks.unapplied(group))


def _prepare() -> None:
    """Register what must be in place while arguments are resolved; SGLang applies it next."""
    from sglang_glm53.serving import hooks

    hooks.register("guard")
    if "cpu" in _groups():
        hooks.register("cpu")
    if requested(sys.argv):
        announce()


def _groups() -> list[Any]:
    from sglang.srt.environ import envs

    return ["guard", "model", "cpu"] if envs.SGLANG_PLATFORM.get() == PLATFORM_NAME else ["guard", "model"]


@functools.cache
def announce() -> None:
    """Say once per process what is on; a server's process on stderr, for SGLang configures its log later."""
    from sglang_glm53 import __version__, upstream
    from sglang_glm53.serving import hooks, preflight

    line = (
        f"sglang-glm53 {__version__}: SGLang {upstream.version()}, seams {hooks.fingerprint()}, "
        f"kernels {preflight.settings()[0].kernels}, hooks {'+'.join(_groups())}"
    )
    if requested(sys.argv) and not logger.isEnabledFor(logging.INFO):
        print(line, file=sys.stderr, flush=True)
    else:
        logger.info("%s", line)
