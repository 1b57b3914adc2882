"""Owns the choice of implementation in these tests."""

import pytest

from sglang_glm53.ops import backend


@pytest.fixture
def choose(monkeypatch):
    """choose(kernels, disable) sets the two variables until the test ends."""

    def set_choice(kernels="auto", disable=""):
        monkeypatch.setenv("GLM53_KERNELS", kernels)
        monkeypatch.setenv("GLM53_DISABLE", disable)
        backend.settings.cache_clear()

    set_choice()
    yield set_choice
    monkeypatch.undo()
    backend.settings.cache_clear()
