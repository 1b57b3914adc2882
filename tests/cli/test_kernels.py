"""Owns the checks of `glm53 kernels`: the three printed forms, and builds in processes of their own."""

import argparse
import json
import subprocess

import pytest

from sglang_glm53.cli import kernels
from sglang_glm53.kernels.cards import Budget, cards, markdown


def _run(*flags):
    parser = argparse.ArgumentParser()
    kernels.add_arguments(parser)
    return kernels.run(parser.parse_args(flags))


def test_text(capsys):
    assert _run() == 0
    text = capsys.readouterr().out
    for card in cards().values():
        assert f"{card.stem}\n  does       {card.summary}\n" in text
        assert f"\n  off switch {card.off_switch}\n" in text
    assert "\n  bytes      67,776 at M = 1, 456,192 at M = 8, 3,563,520 at M = 64\n" in text
    assert "not run on a GPU" in text


def test_json(capsys):
    assert _run("--json") == 0
    found = json.loads(capsys.readouterr().out)["kernels"]
    assert [card["stem"] for card in found] == list(cards())
    assert found[0]["bytes"] == {"1": 67776, "8": 456192, "64": 3563520}
    for card, printed in zip(cards().values(), found, strict=True):
        assert printed["declines"] == card.declines
        assert printed["peers"] == card.peers
        assert printed["files"] == card.files()
        assert {name: Budget(**form) for name, form in printed["forms"].items()} == card.forms


def test_markdown(capsys):
    assert _run("--markdown") == 0
    assert capsys.readouterr().out == markdown()


def test_an_unknown_architecture_is_refused(capsys):
    with pytest.raises(SystemExit):
        _run("--build", "sm_80")
    assert "choose from" in capsys.readouterr().err


@pytest.fixture
def builds(monkeypatch):
    """Records the builds; the one for sm_100a fails."""
    seen = []

    def fake(command, **options):
        seen.append(command[2])
        failed = "sm_100a" in command[2]
        return subprocess.CompletedProcess(command, int(failed), "", "nvcc: no\n" if failed else "warning\n")

    monkeypatch.setattr(kernels.subprocess, "run", fake)
    return seen


def test_builds_each_kernel_for_each_architecture(builds, capsys):
    assert _run("--build", "sm_90a", "sm_103a") == 0
    assert builds == [
        f"from sglang_glm53.kernels import jit; jit.build('{stem}', '{arch}')"
        for stem in cards()
        for arch in ("sm_90a", "sm_103a")
    ]
    assert capsys.readouterr().out.splitlines()[0] == f"[ok]   {next(iter(cards()))} sm_90a 0 s"


def test_a_failed_build_is_reported(builds, capsys):
    assert _run("--build", "sm_90a", "sm_100a") == 1
    assert capsys.readouterr().out.splitlines()[1:3] == [
        f"[FAIL] {next(iter(cards()))} sm_100a 0 s",
        "nvcc: no",
    ]
    assert _run("--json", "--build", "sm_100a") == 1
    built = json.loads(capsys.readouterr().out)["built"]
    assert [(build["stem"], build["ok"], build["complaint"]) for build in built] == [
        (stem, False, "nvcc: no") for stem in cards()
    ]
