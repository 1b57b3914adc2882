"""Owns the walk of SGLang's flags on the reference platform: a verdict for each, and the refusals heard."""

import shlex
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from sglang_glm53.serving import platform_flags
from tests.contract.resolver import REFERENCE

ROOT = Path(__file__).resolve().parents[2]
VERDICTS = tomllib.loads(Path(__file__).with_name("platform_flags.toml").read_text())
REFUSED, UPSTREAM = VERDICTS["refused"], VERDICTS["upstream"]
LISTS = {name: section["flags"].split() for name, section in VERDICTS.items() if "flags" in section}
DEFAULTS = {field: served[0] for field, (served, _) in platform_flags.SERVED.items()}


def _fields():
    """Every field that has a verdict, once for each verdict."""
    return [*REFUSED, *UPSTREAM, *(field for fields in LISTS.values() for field in fields)]


def test_each_flag_has_one_verdict(sglang_parser):
    given = _fields()
    assert sorted(given) == sorted(set(given))
    assert set(given) == set(sglang_parser.fields.values()) - {"help"}


def test_the_refusals_are_the_platforms():
    assert set(REFUSED) == set(platform_flags.SERVED)


def test_sglangs_defaults_are_served(sglang_parser):
    """Both ways: the first value of a row is SGLang's default, and no default is refused."""
    defaults = sglang_parser.defaults
    assert {field: defaults[field] for field in DEFAULTS} == DEFAULTS
    assert platform_flags.reasons(SimpleNamespace(**DEFAULTS)) == []


@pytest.fixture(scope="module")
def resolve(resolver):
    """Flags -> what SGLang's resolution and this package's check say to them on the reference platform."""
    return lambda flags: resolver(REFERENCE).resolve(shlex.split(flags), machine=None)


def _reasons(error):
    head, _, listed = error.partition("RefusedError: --model-impl glm53 cannot run this:\n")
    assert not head and listed, error
    return [line.partition(". ")[2] for line in listed.splitlines()]


def test_every_refusal_is_raised_at_once_with_its_fix(resolve):
    """All in one start, some of whose flags SGLang's own resolution fails on."""
    argv = list(REFUSED.values())
    reasons = _reasons(resolve(" ".join(argv))["error"])
    assert sorted(reason.partition(":")[0] for reason in reasons) == sorted(argv)
    assert all(reason.endswith("leave it out") for reason in reasons)


@pytest.mark.parametrize("field", ["enable_deterministic_inference", "enable_memory_saver"])
def test_one_refusal_is_raised_alone(resolve, field):
    """The first before SGLang's resolution blames an attention backend that nobody chose."""
    answer = resolve(REFUSED[field])
    found = answer.get("reasons") or _reasons(answer["error"])
    assert [reason.partition(":")[0] for reason in found] == [REFUSED[field]]


@pytest.mark.parametrize("field", UPSTREAM)
def test_sglang_names_what_it_refuses_itself(resolve, field):
    flags, words = UPSTREAM[field]
    assert words in resolve(flags)["error"]


def test_plain_flags_resolve(resolve):
    """So that the errors above are the flags' own."""
    assert resolve("")["reasons"] == []


def test_what_works_by_a_test_is_in_one():
    files = [*(ROOT / "tests" / "e2e").glob("*.py"), ROOT / "tests" / "configs.py"]
    sources = "".join(path.read_text() for path in files)
    missing = [field for field in LISTS["tested"] if f'"--{field.replace("_", "-")}"' not in sources]
    assert missing == []
