"""Owns the check that what the documents cite exists: paths, flags, make targets, subcommands, variables."""

import argparse
import importlib
import importlib.util
import re
from pathlib import Path

import pytest

from sglang_glm53 import cli

ROOT = Path(__file__).resolve().parents[2]
DATED = re.compile(r"\d{4}-\d\d-\d\d-")
UPSTREAM = Path(importlib.util.find_spec("sglang").origin).parent
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    # A dated measurement stays as it was written, whatever has moved since.
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if not DATED.match(path.name)),
    *sorted((ROOT / "launch").iterdir()),
]
README_LINES = 120
# Flags of other programs that the documents quote.
FOREIGN_FLAGS = {
    "--no-deps",  # pip
    "--force-reinstall",  # pip
    "--config",  # any
    "--basetemp",  # pytest
    # sglang_router
    "--pd-disaggregation",
    "--prefill",
    "--decode",
    "--disable-circuit-breaker",
}
# The files of the contributor's worked example; tests/contract/test_new_kernel.py makes them.
TOY = set(re.findall(r"^`(\S*doubled\S*)`:$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE))
FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")
VARIABLE = re.compile(r"\bGLM53(?:_[A-Z]+)+\b")
SUFFIXES = (".py", ".md", ".sh", ".cuh", ".toml")


def _code(text: str) -> str:
    """The fenced blocks and code spans of a document, one a line."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    prose = re.sub(r"^```\w*\n.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return "\n".join(blocks + re.findall(r"`([^`\n]+)`", prose))


def _own_flags() -> set[str]:
    flags = {"--version", "--help"}
    for name in cli.COMMANDS:
        parser = argparse.ArgumentParser()
        importlib.import_module(f"sglang_glm53.cli.{name}").add_arguments(parser)
        flags |= set(parser._option_string_actions)
    return flags


def _cited_paths(text: str) -> set[str]:
    """The links, and the code words that look like a file or folder of this repository or of SGLang."""
    links = {link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link}
    words = {word.rstrip(".,:;)").partition(":")[0] for word in _code(text).split()}
    folders = {path.name for path in ROOT.iterdir() if path.is_dir()}
    return links | {
        word
        for word in words
        if re.fullmatch(r"[\w./-]+", word)
        and (word.endswith(SUFFIXES) or ("/" in word and word.partition("/")[0] in folders))
    }


def _exists(path: str, document: Path) -> bool:
    places = (ROOT, document.parent, ROOT / "sglang_glm53", UPSTREAM.parent, UPSTREAM, UPSTREAM / "srt")
    return any((place / path).exists() for place in places)


def _faults(document: Path, text: str, sglang_flags: set[str]) -> list[str]:
    """What a document cites and nothing has. Of a script every line counts, of a document only its code."""
    code = _code(text) if document.suffix == ".md" else text
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    variables = set(VARIABLE.findall((ROOT / "sglang_glm53" / "config.py").read_text()))
    commands = set(re.findall(r"(?<!model-impl )(?<![\w-])glm53 ([a-z]+)", code))
    faults = {
        "flag": set(FLAG.findall(code)) - sglang_flags - _own_flags() - FOREIGN_FLAGS,
        "make target": set(re.findall(r"\bmake ([a-z]+)", code)) - targets,
        "subcommand": commands - set(cli.COMMANDS),
        "variable": set(VARIABLE.findall(text)) - variables,
    }
    if document.suffix == ".md":
        faults["path"] = {path for path in _cited_paths(text) if not _exists(path, document)} - TOY
    return [f"{kind} {name}" for kind, names in faults.items() for name in sorted(names)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_everything_cited_exists(document, sglang_parser):
    assert _faults(document, document.read_text(), sglang_parser.options) == []


def test_readme_is_short_and_names_the_two_commands():
    text = (ROOT / "README.md").read_text()
    assert text.count("\n") <= README_LINES
    assert {"make demo", "make test"} <= set(_code(text).splitlines())


def test_every_launch_script_is_in_its_table():
    table = (ROOT / "launch" / "README.md").read_text()
    assert [s.name for s in sorted((ROOT / "launch").glob("*.sh")) if s.name not in table] == []


def test_faults_are_reported(sglang_parser):
    text = (
        "See [a](docs/gone.md), `sglang_glm53/gone.py:f`, `srt/plugins/__init__.py:f` and `config.py`.\n"
        "Set `GLM53_TURBO=1` or GLM53_KERNELS, run `make coffee` or `make test`.\n"
        "```bash\nglm53 fly --json\nglm53 doctor --jsn\n"
        "python -m sglang.launch_server --model-impl glm53 --nsa-prefill-backend x --tp-size 8\n```\n"
    )
    assert _faults(ROOT / "README.md", text, sglang_parser.options) == [
        "flag --jsn",
        "flag --nsa-prefill-backend",
        "make target coffee",
        "subcommand fly",
        "variable GLM53_TURBO",
        "path docs/gone.md",
        "path sglang_glm53/gone.py",
    ]
