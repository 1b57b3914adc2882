"""Each variable, what it defaults to, and that every bad one is named at once."""

import pytest

from sglang_glm53.config import Config, read

FUSIONS = ("indexer_topk", "mla_kv_prep")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, Config("auto", frozenset(), False)),
        ({"GLM53_KERNELS": "emulated"}, Config("emulated", frozenset(), False)),
        ({"GLM53_DISABLE": " mla_kv_prep ,, indexer_topk"}, Config("auto", frozenset(FUSIONS), False)),
        ({"GLM53_DISABLE": ""}, Config("auto", frozenset(), False)),
        ({"GLM53_ALLOW_UNTESTED": "1"}, Config("auto", frozenset(), True)),
        ({"GLM53_ALLOW_UNTESTED": "0", "SGLANG_PLUGINS": "x"}, Config("auto", frozenset(), False)),
    ],
)
def test_read(environ, expected):
    assert read(FUSIONS, environ) == expected


def test_the_process_environment_is_the_default(monkeypatch):
    monkeypatch.setenv("GLM53_KERNELS", "torch")
    assert read(FUSIONS).kernels == "torch"


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({"GLM53_KERNELS": "triton"}, "GLM53_KERNELS='triton': use one of auto, torch, emulated, cuda"),
        ({"GLM53_KERNELS": ""}, "GLM53_KERNELS='': use one of auto, torch, emulated, cuda"),
        ({"GLM53_ALLOW_UNTESTED": "yes"}, "GLM53_ALLOW_UNTESTED='yes': use 0 or 1"),
        (
            {"GLM53_DISABLE": "indexer_topk,topk"},
            "GLM53_DISABLE names 'topk': use any of indexer_topk, mla_kv_prep",
        ),
        (
            {"GLM53_KERNEL": "torch"},
            "GLM53_KERNEL is not a variable of this package, "
            "which reads GLM53_ALLOW_UNTESTED, GLM53_DISABLE, GLM53_KERNELS",
        ),
    ],
)
def test_a_bad_variable_is_named_with_its_fix(environ, problem):
    with pytest.raises(ValueError) as error:
        read(FUSIONS, environ)
    assert str(error.value) == problem


def test_all_problems_at_once():
    with pytest.raises(ValueError) as error:
        read(
            FUSIONS, {"GLM53_KERNELS": "x", "GLM53_DISABLE": "y", "GLM53_ALLOW_UNTESTED": "z", "GLM53_W": ""}
        )
    assert [problem.split("=")[0].split(" ")[0] for problem in str(error.value).split("; ")] == [
        "GLM53_W",
        "GLM53_KERNELS",
        "GLM53_DISABLE",
        "GLM53_ALLOW_UNTESTED",
    ]
