"""What the reference platform refuses of SGLang's flags, before what they lead to."""

import sys
from types import SimpleNamespace

import pytest

from sglang_glm53.serving import platform_flags
from sglang_glm53.serving.preflight import RefusedError, explain_resolution, platform_reasons
from tests.configs import FP8, glm53

PLAIN = {field: served[0] for field, (served, _) in platform_flags.SERVED.items()}


def as_object(config):
    return SimpleNamespace(**config)


@pytest.mark.parametrize("field", platform_flags.SERVED)
def test_a_value_that_is_not_served(field):
    """Alone, with its fix; every served value, none."""
    served, why = platform_flags.SERVED[field]
    other = "another" if isinstance(served[-1], str) else 7 if isinstance(served[0], int) else True
    if served == (False,):
        other = True
    (reason,) = platform_flags.reasons(SimpleNamespace(**PLAIN | {field: other}))
    assert reason.startswith(f"--{field.replace('_', '-')}") and why in reason
    assert reason.endswith("leave it out")
    for value in served:
        assert platform_flags.reasons(SimpleNamespace(**PLAIN | {field: value})) == []


def test_the_fix_names_what_is_served():
    (reason,) = platform_flags.reasons(SimpleNamespace(**PLAIN | {"kv_cache_dtype": "fp8_e5m2"}))
    assert reason == (
        "--kv-cache-dtype fp8_e5m2: the reference platform's pools hold bf16 or FP8 (fp8_e4m3), or FP32 with "
        "--dtype float32: use auto or bf16 or bfloat16 or fp8_e4m3, or leave it out"
    )


@pytest.fixture
def on_platform(monkeypatch):
    """Sets the platform that SGLang runs on."""

    def platform_is(name):
        envs = SimpleNamespace(SGLANG_PLATFORM=SimpleNamespace(get=lambda: name))
        monkeypatch.setitem(sys.modules, "sglang.srt.environ", SimpleNamespace(envs=envs))

    return platform_is


@pytest.mark.parametrize(("platform", "hicache"), [("glm53_cpu", False), ("", True), ("glm53_cpu", True)])
def test_flags_of_the_reference_platform(on_platform, platform, hicache):
    on_platform(platform)
    found = platform_reasons(SimpleNamespace(**PLAIN | {"enable_hierarchical_cache": hicache}))
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
    requested = SimpleNamespace(model_impl=impl, **PLAIN | {"enable_hierarchical_cache": hicache})
    with pytest.raises(raised):
        explain_resolution(resolution, requested)


def test_a_resolution_that_works_is_left_alone(on_platform):
    """Even with a refused flag: check_server_args lists it, with every other reason."""
    on_platform("glm53_cpu")
    seen = []
    requested = SimpleNamespace(model_impl="glm53", **PLAIN | {"enable_hierarchical_cache": True})
    explain_resolution(seen.append, requested)
    assert seen == [requested]


@pytest.mark.parametrize("form", [dict, as_object], ids=["dict", "object"])
@pytest.mark.parametrize(("config", "refused"), [({}, True), ({"quantization_config": FP8}, False)])
def test_quantising_a_plain_checkpoint(on_platform, form, config, refused):
    on_platform("glm53_cpu")
    requested = SimpleNamespace(**PLAIN | {"quantization": "fp8"})
    found = platform_reasons(requested, form(glm53(**config)))
    assert [reason.partition(":")[0] for reason in found] == ["--quantization fp8"] * refused
    assert platform_reasons(requested) == []
