"""The guard: inert unless asked for, then all or nothing; on stand-ins for what it changes."""

import logging
import sys
import types
from types import SimpleNamespace

import pytest

import sglang_glm53
from sglang_glm53 import plugin, serving, upstream
from sglang_glm53.serving import hooks
from sglang_glm53.serving.preflight import RefusedError
from sglang_glm53.upstream import Hook
from tests.configs import HARMLESS, environ, glm53

HERE = __name__
CHECK = "sglang.srt.arg_groups.validation_hook"
LOADER = "sglang.srt.model_loader.utils"
ARGV = ["launch", "--model-impl", "glm53"]


class Stock: ...


class Ours(Stock): ...


class StockDraft: ...


class OursDraft(StockDraft): ...


REGISTERED = {
    "GlmMoeDsaForCausalLM": Stock,
    "GlmMoeDsaForCausalLMNextN": StockDraft,
    "LlamaForCausalLMEagle3": Stock,
    "Qwen3ForCausalLM": Stock,
}

CLASSES = {"GlmMoeDsaForCausalLM": f"{HERE}:Ours", "GlmMoeDsaForCausalLMNextN": f"{HERE}:OursDraft"}


def marked(original, *args):
    return ["hooked", original(*args)]


def server_args(model_impl="glm53", **changes):
    return SimpleNamespace(model_impl=model_impl, config=SimpleNamespace(**glm53(**changes)), **HARMLESS)


def model_config(architecture="GlmMoeDsaForCausalLM", model_impl="glm53", is_draft=False, **changes):
    hf_config = SimpleNamespace(**glm53(architectures=[architecture], **changes))
    return SimpleNamespace(hf_config=hf_config, model_impl=model_impl, is_draft_model=is_draft)


class Fake:
    """The stand-in modules, and what was called."""

    def __init__(self, monkeypatch):
        self._monkeypatch = monkeypatch
        self.checked = []
        self.platform = ""
        self.check = self.module(CHECK, check_server_args=lambda args: self.checked.append(args) or "checked")
        self.target = self.module("fake_target", model=lambda: "stock", cpu=lambda: "stock")
        accessors = {
            "model_config_of": lambda args: SimpleNamespace(hf_config=args.config),
            "resolving_view": lambda args: args,
        }
        self.module("sglang.srt.arg_groups.model_override_base", **accessors)
        self.envs = environ().envs
        self.envs.SGLANG_PLATFORM = SimpleNamespace(get=lambda: self.platform)
        self.module("sglang.srt.environ", envs=self.envs)

    def module(self, name, **attributes):
        module = types.ModuleType(name)
        vars(module).update(attributes)
        self._monkeypatch.setitem(sys.modules, name, module)
        return module

    def load_loader(self):
        """What importing the loader leaves behind: the module, and a module that took the name from it."""

        def resolve(config):
            architecture = config.hf_config.architectures[0]
            return REGISTERED[architecture], architecture

        self.loader = self.module(LOADER, get_model_architecture=resolve)
        self.importer = self.module("sglang.srt.importer", architecture_of=resolve)
        self.bystander = self.module("elsewhere.importer", get_model_architecture=resolve)
        return resolve


@pytest.fixture
def fake(monkeypatch, registry):
    for name in [name for name in sys.modules if name.startswith("sglang.")]:
        if not name.endswith("hook_registry"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(plugin, "_guarded", set())
    monkeypatch.setattr(plugin, "_failures", [])
    plugin.select.cache_clear()
    plugin.announce.cache_clear()
    monkeypatch.setattr(plugin, "CLASSES", CLASSES)
    rows = {group: [(f"fake_target.{group}", Hook("around", f"{HERE}:marked"))] for group in ("model", "cpu")}
    monkeypatch.setattr(hooks, "hooked", {"guard": [], **rows}.__getitem__)
    monkeypatch.setattr(sys, "argv", ["launch"])
    return Fake(monkeypatch)


def load_plugins(registry):
    plugin.register()
    registry.apply_hooks()


@pytest.mark.parametrize(
    ("argv", "asked"),
    [
        ([], False),
        (["--model-impl"], False),
        (["--model-impl", "auto"], False),
        (["glm53"], False),
        (["--served-model-name", "glm53"], False),
        (["--model-impl", "glm53"], True),
        (["-m", "x", "--model-impl=glm53", "--tp", "8"], True),
        (["--model-impl=glm53x"], False),
    ],
)
def test_requested(argv, asked):
    assert plugin.requested(argv) is asked


def test_nothing_changes_for_another_implementation(fake, registry, caplog):
    caplog.set_level(logging.INFO, logger="sglang_glm53")
    stock = fake.load_loader()
    load_plugins(registry)
    args = server_args("auto", n_group=8)
    assert fake.check.check_server_args(args) == "checked"
    assert fake.checked == [args]
    for name, registered in REGISTERED.items():
        assert fake.loader.get_model_architecture(model_config(name, "auto")) == (registered, name)
    assert fake.loader.get_model_architecture.__wrapped__ is stock
    assert (fake.target.model(), fake.target.cpu()) == ("stock", "stock")
    assert registry._hooks == {}
    assert caplog.records == []


def test_a_server_of_ours(fake, registry):
    fake.load_loader()
    load_plugins(registry)
    assert fake.target.model() == "stock"
    args = server_args()
    assert fake.check.check_server_args(args) == "checked"
    assert fake.checked == [args]
    assert (fake.target.model(), fake.target.cpu()) == (["hooked", "stock"], "stock")


@pytest.mark.parametrize(
    ("architecture", "is_draft", "served"),
    [
        ("GlmMoeDsaForCausalLM", False, Ours),
        ("GlmMoeDsaForCausalLMNextN", True, OursDraft),
    ],
)
def test_the_class_is_swapped_and_the_architecture_kept(fake, registry, architecture, is_draft, served):
    fake.load_loader()
    load_plugins(registry)
    for get in (fake.loader.get_model_architecture, fake.importer.architecture_of):
        assert get(model_config(architecture, is_draft=is_draft)) == (served, architecture)
    assert fake.bystander.get_model_architecture(model_config()) == (Stock, "GlmMoeDsaForCausalLM")


def test_building_a_model_turns_the_hooks_on_in_a_process_that_checked_no_arguments(fake, registry):
    fake.load_loader()
    load_plugins(registry)
    fake.loader.get_model_architecture(model_config())
    assert fake.target.model() == ["hooked", "stock"]


def test_a_launcher_does_not_import_the_loader(fake):
    plugin.register()
    assert LOADER not in sys.modules
    stock = fake.load_loader()
    fake.check.check_server_args(server_args("auto"))
    assert fake.loader.get_model_architecture is stock
    fake.check.check_server_args(server_args())
    assert fake.loader.get_model_architecture(model_config())[0] is Ours


def test_a_child_process_guards_the_loader_at_once(fake, monkeypatch):
    imported = []

    def import_module(name):
        imported.append(name)
        if name == LOADER:
            fake.load_loader()
        return sys.modules[name]

    monkeypatch.setattr(plugin.importlib, "import_module", import_module)
    monkeypatch.setattr(plugin.multiprocessing, "parent_process", lambda: object())
    plugin.register()
    assert imported == [CHECK, LOADER]
    assert fake.loader.get_model_architecture(model_config())[0] is Ours


def test_registering_twice_guards_once(fake):
    fake.load_loader()
    plugin.register()
    guard = fake.loader.get_model_architecture
    plugin.register()
    assert fake.loader.get_model_architecture is guard


def test_the_reference_platforms_hooks_need_the_reference_platform(fake, registry):
    fake.platform = "glm53_cpu"
    load_plugins(registry)
    assert (fake.target.model(), fake.target.cpu()) == ("stock", ["hooked", "stock"])


def test_every_reason_is_raised_at_once_and_before_sglangs_own_check(fake, registry, monkeypatch):
    monkeypatch.setattr(upstream, "version", lambda: "0.5.24")
    monkeypatch.setenv("GLM53_KERNELS", "triton")
    monkeypatch.setattr(hooks, "problems", lambda groups: ["f: gone"] if "model" in groups else [])
    fake.load_loader()
    load_plugins(registry)
    del fake.target.model
    args = server_args(n_group=8, topk_group=4)
    args.use_ray = True
    with pytest.raises(RefusedError) as error:
        fake.check.check_server_args(args)
    assert [reason.split(":")[0] for reason in error.value.reasons] == [
        "GLM53_KERNELS='triton'",
        "SGLang 0.5.24",
        "SGLang changed",
        "fake_target.model",
        "config.json",
        "config.json",
        "--use-ray",
    ]
    assert fake.checked == []


def test_a_model_that_is_not_ours_is_refused_where_it_is_built(fake, registry):
    fake.load_loader()
    load_plugins(registry)
    with pytest.raises(RefusedError, match="architecture Qwen3ForCausalLM: this package serves Glm"):
        fake.loader.get_model_architecture(model_config("Qwen3ForCausalLM"))
    with pytest.raises(RefusedError, match="index_topk=4096"):
        fake.loader.get_model_architecture(
            model_config("GlmMoeDsaForCausalLMNextN", is_draft=True, index_topk=4096)
        )
    with pytest.raises(RefusedError, match="--speculative-draft-model-path: architecture LlamaForCausalLMEa"):
        fake.loader.get_model_architecture(model_config("LlamaForCausalLMEagle3", is_draft=True))


def test_tokenizer_workers_import_an_application_that_loads_the_package(fake, registry):
    """Those of a server of ours alone; http_app.py's own test imports it."""
    fake.load_loader()
    load_plugins(registry)
    for model_impl, app in (("auto", "stock:app"), ("glm53", sglang_glm53.HTTP_APP)):
        fake.check.check_server_args(server_args(model_impl))
        assert fake.envs.SGLANG_HTTP_SERVER_APP_PATH.get() == app


@pytest.mark.parametrize("classes", [CLASSES, {}], ids=["replaced", "not-registered"])
def test_a_model_that_sglang_resolves_to_another_class_is_refused(fake, registry, monkeypatch, classes):
    """As when a package registers its own model, or when SGLang's model file fails to import."""
    fake.load_loader()
    load_plugins(registry)
    monkeypatch.setitem(REGISTERED, "GlmMoeDsaForCausalLM", int)
    monkeypatch.setattr(plugin, "CLASSES", classes)
    with pytest.raises(RefusedError) as error:
        fake.loader.get_model_architecture(model_config())
    assert error.value.reasons == (
        "SGLang resolves the model to builtins.int, not to its own GLM-5.3 class: the log says why",
    )


@pytest.mark.parametrize("step", ["_prepare", "_turn_on"])
def test_a_failing_step_is_a_reason(fake, registry, monkeypatch, step):
    def failing():
        raise KeyError("lost")

    failing.__name__ = step
    monkeypatch.setattr(plugin, step, failing)
    fake.load_loader()
    load_plugins(registry)
    reason = f"sglang-glm53 did not start: {step} failed with KeyError: 'lost': run glm53 doctor"
    for call in (
        lambda: fake.check.check_server_args(server_args()),
        lambda: fake.loader.get_model_architecture(model_config()),
    ):
        with pytest.raises(RefusedError) as error:
            call()
        assert error.value.reasons == (reason,)
    assert fake.check.check_server_args(server_args("auto")) == "checked"


def test_what_is_known_before_a_step_fails_is_listed_too(fake, registry, monkeypatch):
    monkeypatch.setattr(upstream, "version", lambda: "0.5.24")
    load_plugins(registry)
    fake.module(LOADER)
    with pytest.raises(RefusedError) as error:
        fake.check.check_server_args(server_args(topk_group=2))
    version, step, model = error.value.reasons
    assert version.startswith("SGLang 0.5.24: ")
    assert step == (
        "sglang-glm53 did not start: _turn_on failed with AttributeError: "
        f"module '{LOADER}' has no attribute 'get_model_architecture': run glm53 doctor"
    )
    assert model.startswith("config.json: topk_group=2: ")


def test_a_handler_that_does_not_import_is_a_reason(fake, registry, monkeypatch):
    row = "fake_target.model", Hook("around", f"{HERE}:absent")
    monkeypatch.setattr(hooks, "hooked", {"guard": [], "model": [row], "cpu": []}.__getitem__)
    load_plugins(registry)
    fake.load_loader()
    with pytest.raises(
        RefusedError, match=f"_turn_on failed with AttributeError: module '{HERE}' has no attribute"
    ):
        fake.check.check_server_args(server_args())


def test_a_module_of_ours_that_does_not_import_stops_the_start(fake, registry, monkeypatch):
    monkeypatch.delattr(serving, "preflight")
    monkeypatch.setitem(sys.modules, "sglang_glm53.serving.preflight", None)
    fake.load_loader()
    load_plugins(registry)
    for call in (
        lambda: fake.check.check_server_args(server_args()),
        lambda: fake.loader.get_model_architecture(model_config()),
    ):
        with pytest.raises(ImportError, match="preflight"):
            call()
    assert fake.check.check_server_args(server_args("auto")) == "checked"


def test_without_a_guard_the_process_ends(fake, monkeypatch):
    del fake.check.check_server_args
    monkeypatch.setattr(sys, "argv", ARGV)
    with pytest.raises(SystemExit) as stop:
        plugin.register()
    assert str(stop.value).startswith(
        "SGLang cannot be guarded: sglang-glm53 did not start: _install_guard failed"
    )


def test_without_a_guard_another_implementation_is_served_as_it_is(fake, registry, caplog):
    del fake.check.check_server_args
    fake.platform = "glm53_cpu"
    load_plugins(registry)
    assert fake.target.cpu() == "stock"
    assert "sglang-glm53: _install_guard failed" in caplog.messages


LINE = f"sglang-glm53 {sglang_glm53.__version__}: SGLang {upstream.VERSION}, seams "


def test_a_server_process_says_what_is_on_before_sglang_configures_its_log(
    fake, registry, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "argv", ARGV)
    monkeypatch.setenv("GLM53_KERNELS", "torch")
    fake.platform = "glm53_cpu"
    fake.load_loader()
    load_plugins(registry)
    fake.check.check_server_args(server_args())
    assert capsys.readouterr().err.splitlines() == [
        f"{LINE}{hooks.fingerprint()}, kernels torch, hooks guard+model+cpu"
    ]


def test_an_engine_without_a_command_line_says_it_in_the_log(fake, registry, caplog, capsys):
    caplog.set_level(logging.INFO, logger="sglang_glm53")
    fake.load_loader()
    load_plugins(registry)
    assert caplog.messages == []
    for _ in range(2):
        fake.loader.get_model_architecture(model_config())
    assert [(record.name, record.getMessage()) for record in caplog.records] == [
        ("sglang_glm53", f"{LINE}{hooks.fingerprint()}, kernels auto, hooks guard+model")
    ]
    assert capsys.readouterr().err == ""
