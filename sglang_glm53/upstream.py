"""Owns what the installed SGLang tells without being imported: its version and its declarations."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Literal

VERSION = "0.5.23"

Kind = Literal["function", "class", "method", "classmethod", "staticmethod", "field"]


@dataclass(frozen=True)
class Seam:
    """One upstream attribute that this package relies on.

    target: dotted path. kind: how it is declared; "field" is any other name of a module, class or instance.
    signature: the parameters without annotations, "(self, x, y=...)"; a class's bases; None for a field.
    why: what breaks here when it moves.
    """

    target: str
    kind: Kind
    signature: str | None
    why: str


@dataclass(frozen=True)
class Declaration:
    """How the source declares an attribute; the fields are Seam's."""

    kind: str
    signature: str | None

    def __str__(self) -> str:
        return self.kind + (self.signature or "")


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
def declaration(target: str, package: Path) -> Declaration | None:
    """How the source under the folder package (root()) declares target, or None when it does not.

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


def differences(seams: Iterable[Seam], package: Path) -> list[str]:
    """Each seam that the source under package lacks or declares otherwise: its name, expected and found."""
    problems, listed = [], list(seams)
    # File by file first, since few stay parsed: in the table's order each would be parsed several times.
    for target in sorted(seam.target for seam in listed):
        declaration(target, package)
    for seam in listed:
        wanted, found = Declaration(seam.kind, seam.signature), declaration(seam.target, package)
        if found != wanted:
            problems.append(f"{seam.target}: expected {wanted}, found {found or 'nothing of that name'}")
    return problems


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


def _declared(scope: ast.Module | ast.ClassDef, names: list[str]) -> Declaration | None:
    name, inner = names[0], names[1:]
    for statement in _statements(scope.body):
        if isinstance(statement, ast.ClassDef) and statement.name == name:
            if inner:
                return _declared(statement, inner)
            return Declaration("class", f"({', '.join(map(ast.unparse, statement.bases))})")
        if inner:
            continue
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and statement.name == name:
            kind = _callable_kind(statement, isinstance(scope, ast.ClassDef))
            return Declaration(kind, None if kind == "field" else _parameters(statement.args))
        if name in _bound(statement):
            return Declaration("field", None)
    if not inner and isinstance(scope, ast.ClassDef) and name in _instance_fields(scope):
        return Declaration("field", None)
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
