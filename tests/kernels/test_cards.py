"""Owns the checks of the kernel cards: their figures, what they cite, and the document made of them."""

import ast
import importlib
import re
from fractions import Fraction
from pathlib import Path

import pytest

from sglang_glm53 import config, upstream
from sglang_glm53.fusion import FUSIONS
from sglang_glm53.kernels.cards import Traffic, cards, markdown

ROOT = Path(__file__).resolve().parents[2]
every_card = pytest.mark.parametrize("card", cards().values(), ids=lambda card: card.stem)


def test_every_source_has_a_card_in_its_module():
    sources = sorted(path.stem for path in (ROOT / "csrc" / "kernels").glob("*.cuh"))
    assert list(cards()) == sources
    for stem in sources:
        assert importlib.import_module(f"sglang_glm53.kernels.{stem}").CARD.stem == stem


@every_card
def test_its_off_switch_names_fusions(card):
    assert config.read(FUSIONS, dict([card.off_switch.split("=")])).disabled == set(card.fusions) > set()


def test_traffic():
    assert Traffic("x", False, "H", Fraction(2)).moved(3, {"H": 100}) == 600
    assert Traffic("w", False, "H", Fraction(2), once=True).moved(3, {"H": 100}) == 200
    assert Traffic("s", True, "H", Fraction(4, 128)).moved(3, {"H": 256}) == 24


@every_card
def test_its_symbols_have_values(card):
    used = {part.size for part in card.traffic}
    assert used == set(card.sizes)
    assert all(used == set(shape.sizes) for shape in card.grid)


@every_card
def test_what_it_replaces_is_called_there(card):
    for text in card.replaces:
        name, path, caller = re.match(r"`(\w+)`, sglang/([\w/]+\.py) ([\w.]+)", text).groups()
        node: ast.AST = ast.parse((upstream.root() / path).read_text())
        for part in caller.split("."):
            [node] = [child for child in node.body if getattr(child, "name", None) == part]
        calls = {ast.unparse(n.func) for n in ast.walk(node) if isinstance(n, ast.Call)}
        assert name in calls, text


@every_card
def test_its_files_exist(card):
    assert [path for path in card.files().values() if not (ROOT / path).is_file()] == []


@every_card
def test_the_op_declines_by_its_keys(card):
    """Every reason of the card is one that the op can give, and the other way round."""
    tree = ast.parse((ROOT / card.files()["op"]).read_text())
    [function] = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "declines"]
    [held] = [n for n in ast.walk(function) if isinstance(n, ast.Dict)]
    assert [key.value for key in held.keys] == list(card.declines)


def test_the_document_is_fresh():
    assert (ROOT / "docs" / "kernels.md").read_text() == markdown(), (
        "run: glm53 kernels --markdown > docs/kernels.md"
    )
