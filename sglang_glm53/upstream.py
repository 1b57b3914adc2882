"""Owns what a source of SGLang tells without being imported: its version and its declarations."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Literal

VERSION = "0.5.23"


@dataclass(frozen=True)
class Hook:
    """What is put in place at a seam.

    kind: a value of SGLang's HookType. handler: "module:function", imported when the hook is registered; for
    "around" it is called with the original first, for "after" with the result first.
    """

    kind: Literal["before", "after", "around", "replace"]
    handler: str


@dataclass(frozen=True)
class Seam:
    """One upstream attribute that this package relies on.

    target: dotted path. declared: its kind (function, class, method, classmethod, staticmethod, or field for
    any other name of a module, class or instance), then the parameters without annotations,
    "method(self, x, y=...)", or a class's bases; nothing for a field. why: what breaks here when it moves.
    remove_when: what lets the row go, upstream's issue where there is one; "never: " and why, where nothing
    does.
    """

    target: str
    declared: str
    why: str
    hook: Hook | None = None
    remove_when: str = ""


@dataclass(frozen=True)
class Change:
    """A seam that a source declares otherwise.

    found: how it declares the target, None when it does not. places: where else it declares a thing of that
    name and kind, nearest first, "dotted path: declaration"; with any, the seam has moved.
    """

    seam: Seam
    found: str | None
    places: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """missing, moved, kind or signature (of a class, its bases)."""
        if self.places:
            return "moved"
        if self.found is None:
            return "missing"
        return "signature" if _kind(self.found) == _kind(self.seam.declared) else "kind"

    def __str__(self) -> str:
        return (
            f"{self.seam.target}: expected {self.seam.declared}, found {self.found or 'nothing of that name'}"
        )


def until(remove_when: str, *seams: Seam) -> tuple[Seam, ...]:
    """The seams that can go together, once remove_when holds."""
    return tuple(replace(seam, remove_when=remove_when) for seam in seams)


def version() -> str | None:
    """The installed SGLang's version, or None when there is none."""
    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError:
        return None


def root() -> Path | None:
    """The folder of the package `sglang` that an import would take, or None."""
    spec = importlib.util.find_spec("sglang")
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


@cache
def declaration(target: str, package: Path) -> str | None:
    """How the source under the folder package (root()) declares target, as Seam.declared; None: not at all.

    Inherited attributes are not followed: a target names the class that declares it.
    """
    names = target.split(".")[1:]
    folder = package
    while names and (folder / names[0]).is_dir():
        folder /= names.pop(0)
    file = folder / f"{names[0]}.py" if names else folder / "__init__.py"
    if file.is_file():
        names = names[1:]
    else:
        file = folder / "__init__.py"
    return _declared(_parsed(file), names) if names and file.is_file() else None


def changes(seams: Iterable[Seam], package: Path) -> list[Change]:
    """The seams that the source under package lacks or declares otherwise; none is looked for elsewhere."""
    listed = list(seams)
    # File by file first, since few stay parsed: in the table's order each would be parsed several times.
    for target in sorted(seam.target for seam in listed):
        declaration(target, package)
    found = [(seam, declaration(seam.target, package)) for seam in listed]
    return [Change(seam, declared) for seam, declared in found if declared != seam.declared]


def located(change: Change, package: Path) -> Change:
    """The change with the places where the source under package declares the seam's name now.

    Looked for are the whole name (the function, or the class and its attribute) in any module, and a class's
    attribute in the classes of its module and in its bases.
    """
    kind = _kind(change.seam.declared)
    if change.found is not None and (kind == "field" or _kind(change.found) != "field"):
        return change
    *module, last = change.seam.target.split(".")
    first = next((i for i, part in enumerate(module) if part.lstrip("_")[:1].isupper()), len(module))
    names, module = [*module[first:], last], module[:first]
    files = _index(package)
    home = package.joinpath(*module[1:]).with_suffix(".py")
    found: dict[str, str] = {}

    def look(file: Path, names: list[str]) -> None:
        declared = _declared(_parsed(file), names)
        if declared and _kind(declared) == kind:
            dotted = ["sglang", *file.relative_to(package).with_suffix("").parts, *names]
            found[".".join(dotted).replace(".__init__.", ".")] = declared

    if len(names) == 2 and home.is_file():
        for scope in _parsed(home).body:
            if isinstance(scope, ast.ClassDef):
                look(home, [scope.name, last])
                bases = scope.bases if scope.name == names[0] else ()
                for base in (ast.unparse(base).rpartition(".")[2] for base in bases):
                    for file in files.get(base, ()):
                        look(file, [base, last])
    for file in files.get(names[0], ()):
        look(file, names)
    near = sorted(found, key=lambda place: -_shared_parts(place, change.seam.target))
    return replace(change, places=tuple(f"{place}: {found[place]}" for place in near))


def _kind(declared: str) -> str:
    return declared.partition("(")[0]


def _shared_parts(one: str, other: str) -> int:
    pairs = zip(one.split("."), other.split("."), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


@lru_cache(maxsize=1)
def _index(package: Path) -> dict[str, list[Path]]:
    """The files that declare each function, class and module's variable of the source under package."""
    files: dict[str, list[Path]] = {}
    pattern = re.compile(r"^(?:\s*(?:async )?(?:def|class) (\w+)|(\w+)(?::[^=\n]+)? = )", re.MULTILINE)
    for file in sorted(package.rglob("*.py")):
        for name in {one or other for one, other in pattern.findall(file.read_text(encoding="utf-8"))}:
            files.setdefault(name, []).append(file)
    return files


# Few at a time: the garbage collector would walk a hundred thousand nodes again and again.
@lru_cache(maxsize=2)
def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that bind names here, those under a platform's `if` or an import's `try` included."""
    for statement in body:
        if isinstance(statement, ast.If):
            yield from _statements(statement.body + statement.orelse)
        elif isinstance(statement, ast.Try):
            yield from _statements(statement.body + statement.orelse + statement.finalbody)
        else:
            yield statement


def _declared(scope: ast.Module | ast.ClassDef, names: list[str]) -> str | None:
    name, inner = names[0], names[1:]
    for statement in _statements(scope.body):
        if isinstance(statement, ast.ClassDef) and statement.name == name:
            if inner:
                return _declared(statement, inner)
            return f"class({', '.join(map(ast.unparse, statement.bases))})"
        if inner:
            continue
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and statement.name == name:
            kind = _callable_kind(statement, isinstance(scope, ast.ClassDef))
            return kind if kind == "field" else kind + _parameters(statement.args)
        if name in _bound(statement):
            return "field"
    if not inner and isinstance(scope, ast.ClassDef) and name in _instance_fields(scope):
        return "field"
    return None


def _callable_kind(function: ast.FunctionDef | ast.AsyncFunctionDef, in_class: bool) -> str:
    decorators = {ast.unparse(decorator) for decorator in function.decorator_list}
    if "property" in decorators:
        return "field"
    if not in_class:
        return "function"
    return next((kind for kind in ("classmethod", "staticmethod") if kind in decorators), "method")


def _bound(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.partition(".")[0] for alias in statement.names}
    if isinstance(statement, ast.Assign):
        return {target.id for target in statement.targets if isinstance(target, ast.Name)}
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return {statement.target.id}
    return set()


@lru_cache(maxsize=2)
def _instance_fields(scope: ast.ClassDef) -> set[str]:
    return {
        node.attr
        for node in ast.walk(scope)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def _parameters(args: ast.arguments) -> str:
    positional = [*args.posonlyargs, *args.args]
    required = len(positional) - len(args.defaults)
    parts = [arg.arg + ("" if i < required else "=...") for i, arg in enumerate(positional)]
    if args.posonlyargs:
        parts.insert(len(args.posonlyargs), "/")
    if args.vararg:
        parts.append(f"*{args.vararg.arg}")
    elif args.kwonlyargs:
        parts.append("*")
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        parts.append(arg.arg + ("" if default is None else "=..."))
    if args.kwarg:
        parts.append(f"**{args.kwarg.arg}")
    return f"({', '.join(parts)})"
