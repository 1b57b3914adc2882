"""That hooks are put in place by SGLang's own registry, and that one which is not is reported."""

import logging
import sys
import types

import pytest

from sglang_glm53 import upstream
from sglang_glm53.serving import hooks
from sglang_glm53.serving.seams import SEAMS
from sglang_glm53.upstream import Hook, Seam


def around(original, *args, **kwargs):
    return ["around", original(*args, **kwargs)]


def after(result, *args, **kwargs):
    return ["after", result]


def before(*args, **kwargs):
    return ("before", *args[1:]), kwargs


def instead(*args, **kwargs):
    return "instead"


class Table:
    pass


class Wider(Table):
    pass


@pytest.fixture
def target(monkeypatch):
    """A module to change, as SGLang would hold it."""
    module = types.ModuleType("fake_target")

    class Worker:
        def run(self, x):
            return ["run", x]

        @classmethod
        def build(cls, x):
            return ["build", cls.__name__, x]

        @staticmethod
        def size(x):
            return ["size", x]

    module.Worker, module.Table = Worker, type("Table", (Table,), {})
    module.call = lambda x: ["call", x]
    monkeypatch.setitem(sys.modules, "fake_target", module)
    return module


def use(monkeypatch, *rows):
    seams = tuple(Seam(target, "field", "", Hook(kind, handler)) for target, kind, handler in rows)
    monkeypatch.setattr(hooks, "SEAMS", {"guard": (), "model": seams, "cpu": ()})


HERE = __name__
CALL = ("fake_target.call", "around", f"{HERE}:around")
CASES = [
    ("call", "around", "around", lambda module: module.call(1), ["around", ["call", 1]]),
    ("call", "replace", "instead", lambda module: module.call(1), "instead"),
    ("Worker.run", "after", "after", lambda module: module.Worker().run(2), ["after", ["run", 2]]),
    ("Worker.run", "before", "before", lambda module: module.Worker.run("self", 2), ["run", 2]),
    ("Worker.build", "around", "around", lambda m: m.Worker.build(3), ["around", ["build", "Worker", 3]]),
    ("Worker.size", "after", "after", lambda module: module.Worker.size(4), ["after", ["size", 4]]),
    ("Table", "replace", "Wider", lambda module: module.Table, Wider),
]


@pytest.mark.parametrize(("name", "kind", "handler", "call", "result"), CASES)
def test_a_hook_in_place(registry, target, monkeypatch, name, kind, handler, call, result):
    use(monkeypatch, (f"fake_target.{name}", kind, f"{HERE}:{handler}"))
    hooks.register("model")
    [problem] = hooks.unapplied("model")
    assert problem.startswith(f"fake_target.{name}: the hook {HERE}:{handler} is not in place")
    registry.apply_hooks()
    assert hooks.unapplied("model") == []
    assert call(target) == result


def test_the_source_is_named_to_sglang(registry, target, monkeypatch, caplog):
    use(monkeypatch, CALL)
    caplog.set_level(logging.INFO)
    hooks.register("model")
    registry.apply_hooks()
    assert "Applied 1 hook(s) to fake_target.call (from: plugin=glm53, dist=sglang-glm53)" in caplog.messages


@pytest.mark.parametrize("name", ["gone", "Worker.gone", "Gone.run"])
def test_a_missing_target_is_reported(registry, target, monkeypatch, name):
    use(monkeypatch, (f"fake_target.{name}", "around", f"{HERE}:around"), CALL)
    hooks.register("model")
    registry.apply_hooks()
    [problem] = hooks.unapplied("model")
    assert problem.startswith(f"fake_target.{name}: the hook {HERE}:around is not in place")


def test_a_missing_module_is_reported(registry, monkeypatch):
    use(monkeypatch, ("fake_absent.call", "around", f"{HERE}:around"))
    hooks.register("model")
    registry.apply_hooks()
    assert len(hooks.unapplied("model")) == 1


def test_a_target_that_another_plugin_took_first_is_reported(registry, target, monkeypatch):
    registry.register("fake_target.call", after)
    registry.apply_hooks()
    use(monkeypatch, CALL)
    hooks.register("model")
    registry.apply_hooks()
    [problem] = hooks.unapplied("model")
    assert "SGLANG_PLUGINS=glm53 leaves others out" in problem


def test_a_hook_below_another_plugins_is_in_place(registry, target, monkeypatch):
    use(monkeypatch, CALL)
    hooks.register("model")
    registry.register("fake_target.call", after)
    registry.apply_hooks()
    assert target.call(1) == ["after", ["around", ["call", 1]]]
    assert hooks.unapplied("model") == []


def test_a_missing_handler_raises(registry, target, monkeypatch):
    use(monkeypatch, ("fake_target.call", "around", f"{HERE}:absent"))
    with pytest.raises(AttributeError, match="absent"):
        hooks.register("model")


def test_problems_and_fingerprint_follow_the_seams(monkeypatch):
    seams = {**SEAMS, "guard": (Seam("sglang.srt.plugins.load_plugins", "function(group)", ""),)}
    before_change = hooks.fingerprint()
    assert hooks.problems(["model"]) == []
    monkeypatch.setattr(hooks, "SEAMS", seams)
    assert hooks.problems() == ["sglang.srt.plugins.load_plugins: expected function(group), found function()"]
    assert hooks.problems(["model", "cpu"]) == []
    assert hooks.fingerprint() != before_change
    assert len(before_change) == 8


def test_without_sglang(monkeypatch):
    monkeypatch.setattr(upstream, "root", lambda: None)
    assert hooks.problems() == ["sglang is not installed"]
    assert len(hooks.fingerprint()) == 8
