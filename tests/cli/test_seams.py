"""Owns the checks of `glm53 seams`: what changed in another SGLang's source, and what cannot be compared."""

import argparse
import json
import zipfile

import pytest

from sglang_glm53 import upstream
from sglang_glm53.cli import seams
from sglang_glm53.upstream import Hook, Seam, until

FEATURES = {
    "topk": until(
        "upstream selects alike",
        Seam("sglang.srt.a.Model.run", "method(self, x)", "runs it", Hook("around", "sglang_glm53.x:run")),
        Seam("sglang.srt.a.limit", "field", "bounds it"),
    ),
    "cpu": until(
        "never: ours",
        Seam("sglang.srt.a.pick", "function(a, b)", "picks", Hook("replace", "sglang_glm53.x:pick")),
    ),
}
SAME = "limit = 1\n\ndef pick(a, b): ...\n\nclass Model:\n    def run(self, x): ...\n"
OTHER = "def pick(a): ...\n\nclass Model:\n    def go(self, x): ...\n"


@pytest.fixture(autouse=True)
def features(monkeypatch):
    monkeypatch.setattr(seams, "FEATURES", FEATURES)


@pytest.fixture
def site(tmp_path):
    """A site-packages with SGLang 9.9.9; calling it writes its one module and another."""

    def write(text, elsewhere=""):
        folder = tmp_path / "site"
        (folder / "sglang" / "srt").mkdir(parents=True, exist_ok=True)
        (folder / "sglang-9.9.9.dist-info").mkdir(exist_ok=True)
        (folder / "sglang-9.9.9.dist-info" / "METADATA").write_text("Name: sglang\nVersion: 9.9.9\n")
        (folder / "sglang" / "srt" / "a.py").write_text(text)
        (folder / "sglang" / "srt" / "b.py").write_text(elsewhere)
        for cached in (upstream.declaration, upstream._parsed, upstream._instance_fields, upstream._index):
            cached.cache_clear()
        return folder

    return write


def _wheel(folder):
    path = folder.parent / "sglang-9.9.9-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file in folder.rglob("*"):
            if file.is_file():
                wheel.write(file, file.relative_to(folder))
    return path


def _run(*flags):
    parser = argparse.ArgumentParser()
    seams.add_arguments(parser)
    return seams.run(parser.parse_args(list(map(str, flags))))


@pytest.mark.parametrize("form", ["site-packages", "wheel", "checkout"])
def test_the_same_declarations(site, capsys, form):
    folder = site(SAME)
    if form == "checkout":
        (folder.parent / "repo").mkdir()
        folder = folder.rename(folder.parent / "repo" / "python").parent
    path = _wheel(folder) if form == "wheel" else folder
    assert _run("--against", path) == 0
    assert capsys.readouterr().out.startswith(
        f"SGLang 9.9.9, {path}\n0 of 3 seams differ from SGLang 0.5.23, 0 of"
    )


def test_changes_as_json(site, capsys):
    path = _wheel(site(OTHER, "limit: int = 2\n"))
    assert _run("--against", path, "--json") == 1
    report = json.loads(capsys.readouterr().out)
    head = {"version": "9.9.9", "path": str(path), "expected_version": upstream.VERSION, "seams": 3}
    assert {key: report[key] for key in head} == head
    assert report["remove_when"] == {"topk": {"upstream selects alike": 2}, "cpu": {}}
    run, limit, pick = report["changed"]
    assert run == {
        "feature": "topk",
        "target": "sglang.srt.a.Model.run",
        "change": "missing",
        "expected": "method(self, x)",
        "found": None,
        "places": [],
        "hook": "around sglang_glm53.x:run",
        "why": "runs it",
        "remove_when": "upstream selects alike",
    }
    assert (limit["change"], limit["places"], limit["hook"]) == ("moved", ["sglang.srt.b.limit: field"], None)
    assert (pick["feature"], pick["change"], pick["found"]) == ("cpu", "signature", "function(a)")


def test_changes_as_text(site, capsys):
    assert _run("--against", site(OTHER, "limit: int = 2\n")) == 1
    text = capsys.readouterr().out
    assert "\n3 of 3 seams differ from SGLang 0.5.23, 2 of them hooked\n" in text
    assert "\n    1 missing\n    1 moved\n    1 signature\n" in text
    assert "\ntopk: 2 of 2\n  missing    sglang.srt.a.Model.run\n" in text
    assert "\n    now          sglang.srt.b.limit: field\n" in text
    assert "\n    expected     function(a, b)\n    found        function(a)\n" in text
    assert text.endswith(
        "should this SGLang do what they wait for:\n  topk             2  upstream selects alike\n"
    )


def test_the_installed_sglang_is_the_default(capsys, monkeypatch):
    monkeypatch.setattr(
        seams, "FEATURES", {"x": (Seam("sglang.srt.plugins.load_plugins", "function()", ""),)}
    )
    assert _run() == 0
    assert capsys.readouterr().out.startswith(f"SGLang {upstream.VERSION}, {upstream.root()}\n0 of 1 seams")


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda path: None, "no such file or folder"),
        (lambda path: path.mkdir(), "holds no sglang/srt; give the folder that holds sglang/, or a wheel"),
        (lambda path: path.write_text("no zip"), "neither a wheel nor a folder"),
        (lambda path: zipfile.ZipFile(path, "w").close(), "holds no sglang/srt"),
    ],
    ids=["absent", "empty folder", "text file", "another wheel"],
)
def test_a_path_without_sglang(make, complaint, tmp_path, capsys):
    path = tmp_path / "given"
    make(path)
    assert _run("--against", path) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"glm53 seams: --against {path}: {complaint}")


def test_a_source_that_python_does_not_read(site, capsys):
    assert _run("--against", site("def pick(a b)")) == 2
    assert "a.py, line 1)" in capsys.readouterr().err


def test_a_damaged_wheel(site, capsys):
    path = _wheel(site(SAME))
    path.write_bytes(path.read_bytes().replace(b"limit = 1", b"limit = 2"))
    assert _run("--against", path) == 2
    assert capsys.readouterr().err.startswith("glm53 seams: Bad CRC-32 for file 'sglang/srt/a.py'")


def test_without_sglang(capsys, monkeypatch):
    monkeypatch.setattr(upstream, "root", lambda: None)
    assert _run() == 2
    assert capsys.readouterr().err == "glm53 seams: sglang is not installed: give --against PATH\n"


def test_markdown(capsys):
    assert _run("--markdown") == 0
    text = capsys.readouterr().out
    assert text == seams.markdown()
    assert (
        "| `sglang.srt.a.Model.run` | hooked (around) by `x:run`: runs it | upstream selects alike |\n"
        in text
    )
    assert "| `sglang.srt.a.pick` | replaced by `x:pick`: picks | never: ours |\n" in text
    assert "| `sglang.srt.a.limit` | bounds it | upstream selects alike |\n" in text
