"""Owns the checks of `glm53 kernels`: the three printed forms, and builds in processes of their own."""

import argparse
import json
import subprocess

import pytest

from sglang_glm53.cli import kernels
from sglang_glm53.kernels.cards import CARDS, markdown


def _run(*flags):
    parser = argparse.ArgumentParser()
    kernels.add_arguments(parser)
    return kernels.run(parser.parse_args(flags))


def test_text(capsys):
    assert _run() == 0
    text = capsys.readouterr().out
    assert "add_rmsnorm_quant\n  does       residual += x;" in text
    assert "\n  bytes      67,776 at M = 1, 456,192 at M = 8, 3,563,520 at M = 64\n" in text
    assert "\n  off switch GLM53_DISABLE=attention_input,ffn_input,q_a\n" in text
    assert "not run on a GPU" in text


def test_json(capsys):
    assert _run("--json") == 0
    cards = json.loads(capsys.readouterr().out)["kernels"]
    assert [card["stem"] for card in cards] == ["add_rmsnorm_quant", "indexer_topk"]
    card = cards[0]
    assert card["bytes"] == {"1": 67776, "8": 456192, "64": 3563520}
    assert card["declines"] == dict(CARDS["add_rmsnorm_quant"].declines)
    assert card["files"]["kernel"] == "csrc/kernels/add_rmsnorm_quant.cuh"


def test_markdown(capsys):
    assert _run("--markdown") == 0
    assert capsys.readouterr().out == markdown(kernels.SIZES)


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
        for stem in CARDS
        for arch in ("sm_90a", "sm_103a")
    ]
    assert capsys.readouterr().out.splitlines()[0] == "[ok]   add_rmsnorm_quant sm_90a 0 s"


def test_a_failed_build_is_reported(builds, capsys):
    assert _run("--build", "sm_90a", "sm_100a") == 1
    assert capsys.readouterr().out.splitlines()[1:3] == ["[FAIL] add_rmsnorm_quant sm_100a 0 s", "nvcc: no"]
    assert _run("--json", "--build", "sm_100a") == 1
    built = json.loads(capsys.readouterr().out)["built"]
    assert [(build["stem"], build["ok"], build["complaint"]) for build in built] == [
        (stem, False, "nvcc: no") for stem in CARDS
    ]
