"""Owns putting the seams' hooks in place, and the check that SGLang still is what this package expects."""

from __future__ import annotations

import hashlib
import pkgutil
from collections.abc import Iterable
from typing import Any

from sglang_glm53 import upstream
from sglang_glm53.serving.seams import SEAMS, Group
from sglang_glm53.upstream import Hook


def hooked(group: Group) -> list[tuple[str, Hook]]:
    """The targets of a group's hooks, and the hooks."""
    return [(seam.target, seam.hook) for seam in SEAMS[group] if seam.hook]


def problems(groups: Iterable[Group] = ("guard", "model", "cpu")) -> list[str]:
    """Each seam that the installed SGLang lacks or declares otherwise, by name; empty when all hold."""
    package = upstream.root()
    if package is None:
        return ["sglang is not installed"]
    return list(map(str, upstream.changes((seam for group in groups for seam in SEAMS[group]), package)))


def fingerprint() -> str:
    """Eight hex digits that change when the installed SGLang declares any seam otherwise."""
    package = upstream.root()
    targets = sorted(seam.target for group in SEAMS.values() for seam in group)
    found = [f"{target} {package and upstream.declaration(target, package)}" for target in targets]
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:8]


def register(group: Group) -> None:
    """Hand a group's hooks to SGLang's registry, whose apply_hooks() puts them in place.

    Raises ImportError or AttributeError when a handler is missing.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookSource, HookType

    source = HookSource("glm53", "sglang-glm53")
    for target, hook in hooked(group):
        handler = pkgutil.resolve_name(hook.handler)
        HookRegistry.register(target, handler, HookType(hook.kind), source=source)


def unapplied(group: Group) -> list[str]:
    """Each hook of a group that is not in place, by name; apply_hooks() only logs such a failure."""
    return [
        f"{target}: the hook {hook.handler} is not in place; SGLang's log says why, or another plugin "
        "took the attribute first (SGLANG_PLUGINS=glm53 leaves others out)"
        for target, hook in hooked(group)
        if not _in_place(target, hook)
    ]


def _in_place(target: str, hook: Hook) -> bool:
    owner_name, _, name = target.rpartition(".")
    try:
        attribute = vars(pkgutil.resolve_name(owner_name))[name]
    except (ImportError, AttributeError, KeyError):
        return False
    return _reaches(attribute, pkgutil.resolve_name(hook.handler))


def _reaches(attribute: Any, handler: Any) -> bool:
    """Whether handler is attribute or is held by one of the wrappers around it (plugins/hook_registry.py)."""
    while attribute is not None:
        cells = getattr(attribute, "__closure__", None) or ()
        if attribute is handler or any(cell.cell_contents is handler for cell in cells):
            return True
        attribute = getattr(attribute, "__wrapped__", None)
    return False
