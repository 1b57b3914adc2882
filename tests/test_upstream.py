"""How declarations are read from a source tree, and that a change of any kind is reported by name."""

import sys
import tomllib
from pathlib import Path

import pytest

from sglang_glm53 import upstream
from sglang_glm53.upstream import Seam, changes, declaration, located, until

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"

SOURCE = """
import functools
from a import B as Base, helper

limit: int = 4
if FAST:
    def pick(a, /, b=1, *rest, c, d=2, **more): ...
else:
    def other(): ...
try:
    import fast as engine
except ImportError:
    engine = None


class Model(Base, functools.partial):
    width = 3
    depth: int

    def __init__(self, config, *, quant=None):
        self.config = config

    @classmethod
    def build(cls, path: str) -> "Model": ...

    @staticmethod
    @functools.cache
    def size(n: int = 1): ...

    @property
    def layers(self): ...

    async def serve(self, request): ...

    class Inner:
        def close(self): ...


class Plain: ...
"""

CASES = {
    "srt.models.m.pick": "function(a, /, b=..., *rest, c, d=..., **more)",
    "srt.models.m.other": "function()",
    "srt.models.m.Model": "class(Base, functools.partial)",
    "srt.models.m.Plain": "class()",
    "srt.models.m.Model.__init__": "method(self, config, *, quant=...)",
    "srt.models.m.Model.build": "classmethod(cls, path)",
    "srt.models.m.Model.size": "staticmethod(n=...)",
    "srt.models.m.Model.serve": "method(self, request)",
    "srt.models.m.Model.Inner.close": "method(self)",
    "srt.models.m.Model.layers": "field",
    "srt.models.m.Model.width": "field",
    "srt.models.m.Model.depth": "field",
    "srt.models.m.Model.config": "field",
    "srt.models.m.limit": "field",
    "srt.models.m.engine": "field",
    "srt.models.m.Base": "field",
    "srt.models.registry": "field",
}


@pytest.fixture
def tree(tmp_path):
    """A package with the module srt/models/m.py; calling it writes another text there."""
    models = tmp_path / "srt" / "models"
    models.mkdir(parents=True)
    (models / "__init__.py").write_text("registry = {}\n")

    def write(text):
        (models / "m.py").write_text(text)
        for cached in (upstream.declaration, upstream._parsed, upstream._instance_fields):
            cached.cache_clear()
        return tmp_path

    write(SOURCE)
    return write


@pytest.mark.parametrize(("target", "expected"), CASES.items())
def test_declaration(tree, target, expected):
    assert declaration(f"sglang.{target}", tree(SOURCE)) == expected


@pytest.mark.parametrize(
    "target",
    [
        "srt.models.m.absent",
        "srt.models.m.Model.absent",
        "srt.models.n.pick",
        "srt.models.m.pick.a",
        "srt.absent.x",
    ],
)
def test_what_is_not_there(tree, target):
    assert declaration(f"sglang.{target}", tree(SOURCE)) is None


def test_no_difference(tree):
    seams = [Seam(f"sglang.{target}", expected, "") for target, expected in CASES.items()]
    assert changes(seams, tree(SOURCE)) == []


@pytest.mark.parametrize(
    ("target", "old", "new", "found"),
    [
        ("Model.build", "path: str", "path: str, dtype", "classmethod(cls, path, dtype)"),
        ("Model.build", "path: str", "folder: str", "classmethod(cls, folder)"),
        ("Model.build", "path: str", "path: str = ''", "classmethod(cls, path=...)"),
        ("Model.build", "    @classmethod\n", "", "method(cls, path)"),
        ("Model.size", "@staticmethod", "@classmethod", "classmethod(n=...)"),
        ("Model.serve", "def serve", "def handle", "nothing of that name"),
        ("Model", "functools.partial", "dict", "class(Base, dict)"),
        ("Model.config", "self.config = config", "self.settings = config", "nothing of that name"),
        ("Model.layers", "    @property\n", "", "method(self)"),
        ("pick", "b=1, *rest", "*rest, b=1", "function(a, /, *rest, b=..., c, d=..., **more)"),
        ("limit", "limit: int = 4", "", "nothing of that name"),
        ("engine", "engine", "motor", "nothing of that name"),
    ],
)
def test_a_change_is_named(tree, target, old, new, found):
    name = f"srt.models.m.{target}"
    assert old in SOURCE
    [change] = changes([Seam(f"sglang.{name}", CASES[name], "")], tree(SOURCE.replace(old, new)))
    assert str(change) == f"sglang.{name}: expected {CASES[name]}, found {found}"


MOVED = """
from srt.layers.kept import helper

class Base:
    def run(self, x): ...

class Far(Base):
    width = 3

class Near(Base): ...
"""


@pytest.fixture
def moved(tree):
    """SOURCE, the module MOVED beside it, and a file of the same functions in another folder."""
    folder = tree(SOURCE)
    (folder / "srt" / "models" / "near.py").write_text(MOVED)
    (folder / "srt" / "layers").mkdir()
    (folder / "srt" / "layers" / "kept.py").write_text("def helper(a): ...\nlimit = 1\n\nclass Plain: ...\n")
    upstream._index.cache_clear()
    return folder


def _places(target, declared, package):
    [change] = changes([Seam(f"sglang.{target}", declared, "")], package)
    place = located(change, package)
    return place.kind, [name.removeprefix("sglang.") for name in place.places]


@pytest.mark.parametrize(
    ("target", "declared", "kind", "places"),
    [
        ("srt.models.near.helper", "function(a)", "moved", ["srt.layers.kept.helper: function(a)"]),
        ("srt.models.gone.helper", "function(b)", "moved", ["srt.layers.kept.helper: function(a)"]),
        (
            "srt.models.gone.Plain",
            "class()",
            "moved",
            ["srt.models.m.Plain: class()", "srt.layers.kept.Plain: class()"],
        ),
        (
            "srt.models.near.limit",
            "field",
            "moved",
            ["srt.models.m.limit: field", "srt.layers.kept.limit: field"],
        ),
        (
            "srt.models.near.Far.run",
            "method(self, x)",
            "moved",
            ["srt.models.near.Base.run: method(self, x)"],
        ),
        ("srt.models.m.Model.run", "method(self, x)", "moved", ["srt.models.near.Base.run: method(self, x)"]),
        ("srt.models.gone.Far.width", "field", "moved", ["srt.models.near.Far.width: field"]),
        ("srt.models.gone.Near.width", "field", "missing", []),
        ("srt.models.gone.Plain", "function()", "missing", []),
        ("srt.models.near.Base.walk", "method(self)", "missing", []),
        ("srt.models.near.Base.run", "method(self)", "signature", []),
        ("srt.models.near.Far", "class()", "signature", []),
        ("srt.models.near.Base.run", "staticmethod(x)", "kind", []),
    ],
)
def test_where_a_seam_has_gone(moved, target, declared, kind, places):
    assert _places(target, declared, moved) == (kind, places)


def test_seams_that_can_go_together():
    rows = until("upstream does it", Seam("sglang.a", "field", "why"), Seam("sglang.b", "field", "why"))
    assert [(row.target, row.remove_when) for row in rows] == [
        ("sglang.a", "upstream does it"),
        ("sglang.b", "upstream does it"),
    ]


def test_the_version_is_the_one_that_is_pinned():
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    assert project["dependencies"] == [f"sglang=={upstream.VERSION}"]
    assert upstream.version() == upstream.VERSION


def test_an_install_earlier_on_the_path_is_the_one_that_counts(tmp_path, monkeypatch):
    (tmp_path / "sglang-9.9.9.dist-info").mkdir()
    (tmp_path / "sglang-9.9.9.dist-info" / "METADATA").write_text("Name: sglang\nVersion: 9.9.9\n")
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
        monkeypatch.delitem(sys.modules, name)
    assert (upstream.version(), upstream.root()) == ("9.9.9", tmp_path / "sglang")


def test_without_sglang(monkeypatch):
    def none_found(name):
        raise upstream.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(upstream.metadata, "version", none_found)
    monkeypatch.setattr(upstream.importlib.util, "find_spec", lambda name: None)
    assert (upstream.version(), upstream.root()) == (None, None)
