"""The flags that the reference platform refuses, and when that is said."""

import sys
from types import SimpleNamespace

import pytest

from sglang_glm53.serving import preflight
from sglang_glm53.serving.preflight import RefusedError, platform_reasons
from tests.configs import FP8, HARMLESS, environ, glm53


@pytest.fixture
def on_platform(monkeypatch):
    """Sets the platform that SGLang runs on."""

    def platform_is(name):
        monkeypatch.setitem(sys.modules, "sglang.srt.environ", environ(SGLANG_PLATFORM=name))

    return platform_is


@pytest.mark.parametrize(("platform", "hicache"), [("glm53_cpu", False), ("", True), ("glm53_cpu", True)])
def test_flags_of_the_reference_platform(on_platform, platform, hicache):
    on_platform(platform)
    found = platform_reasons(SimpleNamespace(**HARMLESS | {"enable_hierarchical_cache": hicache}))
    assert [reason.partition(":")[0] for reason in found] == ["--enable-hierarchical-cache"] * (
        hicache and platform == "glm53_cpu"
    )


@pytest.mark.parametrize(
    ("platform", "impl", "hicache", "raised"),
    [
        ("glm53_cpu", "glm53", True, RefusedError),
        ("glm53_cpu", "glm53", False, AssertionError),
        ("glm53_cpu", "auto", True, AssertionError),
        ("", "glm53", True, AssertionError),
    ],
)
def test_a_refusal_comes_before_what_it_led_to(on_platform, platform, impl, hicache, raised):
    def resolution(server_args):
        raise AssertionError("blames another flag")

    on_platform(platform)
    requested = SimpleNamespace(model_impl=impl, **HARMLESS | {"enable_hierarchical_cache": hicache})
    with pytest.raises(raised):
        preflight.explain_resolution(resolution, requested)


def test_a_resolution_that_works_is_left_alone(on_platform):
    """Even with a refused flag: check_server_args lists it, with every other reason."""
    on_platform("glm53_cpu")
    seen = []
    requested = SimpleNamespace(model_impl="glm53", **HARMLESS | {"enable_hierarchical_cache": True})
    preflight.explain_resolution(seen.append, requested)
    assert seen == [requested]


@pytest.mark.parametrize("form", [dict, lambda config: SimpleNamespace(**config)], ids=["dict", "object"])
@pytest.mark.parametrize(("config", "refused"), [({}, True), ({"quantization_config": FP8}, False)])
def test_quantising_a_plain_checkpoint(on_platform, form, config, refused):
    on_platform("glm53_cpu")
    requested = SimpleNamespace(**HARMLESS | {"quantization": "fp8"})
    found = platform_reasons(requested, form(glm53(**config)))
    assert [reason.partition(":")[0] for reason in found] == ["--quantization fp8"] * refused
    assert platform_reasons(requested) == []
