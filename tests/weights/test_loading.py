"""A checkpoint goes through SGLang's own loader whole, or not at all."""

import logging
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from sglang_glm53.weights import loading
from sglang_glm53.weights.checks import WeightLoadError
from sglang_glm53.weights.loading import Source, accept_extra_key, load_strictly, runtime_source
from tests.weights.fake_model import BF16, CONFIG, Build, fake_model, stored_tensors

CHECKPOINT = stored_tensors()
NOWHERE = Source("somewhere/else", load_format="pt")
NORM = "model.norm.weight"


def save(folder, given, shards=2):
    """Write tensors into shards in name order, with no index. Returns tensor -> file name."""
    names = sorted(given)
    files = {}
    for shard in range(shards):
        file = f"model-{shard + 1}.safetensors"
        part = {name: given[name].contiguous() for name in names[shard::shards]}
        save_file(part, folder / file)
        files |= dict.fromkeys(part, file)
    return files


def load(build, given, *, source=NOWHERE, model=None):
    """Load into a fake model whose loader only counts. Returns what reached it."""
    reached = []
    model = model or fake_model(build)
    load_strictly(
        model,
        given.items(),
        lambda weights: reached.extend(name for name, _ in weights),
        draft=build.draft,
        source=source,
    )
    return reached


def problems(build, given, **options):
    with pytest.raises(WeightLoadError) as raised:
        load(build, given, **options)
    return list(raised.value.problems)


@pytest.mark.parametrize("build", [Build(), Build(draft=True), Build(stage=(3, 5))], ids=str)
def test_a_sound_checkpoint_reaches_the_loader_whole(build, tmp_path):
    save(tmp_path, CHECKPOINT)
    assert load(build, CHECKPOINT, source=Source(str(tmp_path))) == list(CHECKPOINT)


@pytest.mark.parametrize(
    ("build", "role"), [(Build(), "main"), (Build(draft=True), "MTP draft")], ids=["main", "draft"]
)
def test_the_error_says_which_model_and_where_from(build, role):
    with pytest.raises(
        WeightLoadError, match=f"^cannot load the {role} model's weights from somewhere/else:\n- "
    ):
        load(build, {})


def test_nothing_is_read_when_the_headers_show_a_fault(tmp_path):
    given = CHECKPOINT | {"stray": torch.zeros(1), NORM: torch.zeros(7)}
    files = save(tmp_path, given)

    def unread():
        raise AssertionError("read")
        yield

    model = fake_model(Build())
    with pytest.raises(WeightLoadError) as raised:
        load_strictly(model, unread(), list, source=Source(str(tmp_path)))
    assert raised.value.problems == (
        f"wrong shape (1): {NORM} in {files[NORM]} is [7], expected [256]",
        """extra tensors (--model-loader-extra-config '{"glm53_allow_extra": true}' skips them) (1): """
        f"stray in {files['stray']}",
    )


def test_a_cut_shard_is_named_before_it_is_read(tmp_path):
    files = save(tmp_path, CHECKPOINT)
    path = tmp_path / files[NORM]
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    (problem,) = problems(Build(), CHECKPOINT, source=Source(str(tmp_path)))
    assert problem.startswith(f"{files[NORM]} is cut short: {len(whole) // 2} of {len(whole)} bytes; model.")
    assert problem.endswith(" is the first tensor cut off")


def test_a_missing_shard_is_named_for_a_folder(tmp_path):
    save(tmp_path, CHECKPOINT)
    (tmp_path / "model.safetensors.index.json").write_text(
        f'{{"weight_map": {{"{NORM}": "gone.safetensors"}}}}'
    )
    assert problems(Build(), CHECKPOINT, source=Source(str(tmp_path))) == [
        f"model.safetensors.index.json puts {NORM} in gone.safetensors, which does not exist"
    ]


def hub_cache(folder):
    """An empty cached snapshot of org/glm, and its folder."""
    snapshot = folder / "models--org--glm" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (folder / "models--org--glm" / "refs").mkdir()
    (folder / "models--org--glm" / "refs" / "main").write_text("a" * 40)
    return snapshot


def test_a_shard_that_a_cache_lacks_may_still_be_downloaded(tmp_path):
    snapshot = hub_cache(tmp_path)
    (snapshot / "model.safetensors.index.json").write_text(
        f'{{"weight_map": {{"{NORM}": "later.safetensors"}}}}'
    )
    source = Source("org/glm", download_dir=str(tmp_path))
    assert load(Build(), CHECKPOINT, source=source) == list(CHECKPOINT)


def test_a_cached_checkpoint_is_checked_like_a_folder(tmp_path):
    files = save(hub_cache(tmp_path), CHECKPOINT | {"stray": torch.zeros(1)})
    (problem,) = problems(Build(), CHECKPOINT, source=Source("org/glm", download_dir=str(tmp_path)))
    assert problem.endswith(f"stray in {files['stray']}")


def test_a_bad_scale_names_tensor_and_file(tmp_path):
    name = "model.layers.1.self_attn.o_proj.weight_scale_inv"
    given = CHECKPOINT | {name: torch.full_like(CHECKPOINT[name], float("nan"))}
    files = save(tmp_path, given)
    (problem,) = problems(Build(), given, source=Source(str(tmp_path)))
    assert problem.startswith(f"bad FP8 scale (1): {name} in {files[name]} holds NaN")


def test_a_fault_that_only_the_stream_shows_is_raised_before_the_loader_goes_on():
    after = []

    def upstream(weights):
        for _ in weights:
            pass
        after.append("derived")

    given = {name: tensor for name, tensor in CHECKPOINT.items() if name != NORM}
    with pytest.raises(WeightLoadError, match="missing from the checkpoint"):
        load_strictly(fake_model(Build()), given.items(), upstream, source=NOWHERE)
    assert after == []


@pytest.mark.parametrize("error", [OSError("gone"), RuntimeError("bad shard"), ValueError("what")], ids=repr)
@pytest.mark.parametrize("first", [True, False])
def test_a_reader_that_fails_is_placed(error, first):
    def broken():
        if not first:
            yield NORM, CHECKPOINT[NORM]
        raise error

    with pytest.raises(WeightLoadError) as raised:
        load_strictly(fake_model(Build()), broken(), list, source=NOWHERE)
    where = "before the first tensor" if first else f"after {NORM}"
    assert raised.value.problems == (f"reading failed {where}: {type(error).__name__}: {error}",)
    assert raised.value.__cause__ is error


def test_what_was_found_before_the_reader_failed_is_told_too():
    def broken():
        yield NORM, torch.zeros(3)
        raise OSError("gone")

    with pytest.raises(WeightLoadError) as raised:
        load_strictly(fake_model(Build()), broken(), list, source=NOWHERE)
    assert raised.value.problems == (
        f"wrong shape (1): {NORM} is [3], expected [256]",
        f"reading failed after {NORM}: OSError: gone",
    )


def test_a_reader_that_fails_on_a_download_names_the_cut_shard(tmp_path):
    snapshot = hub_cache(tmp_path)

    def downloading():
        save(snapshot, {NORM: CHECKPOINT[NORM]}, shards=1)
        path = snapshot / "model-1.safetensors"
        path.write_bytes(path.read_bytes()[:-1])
        raise RuntimeError("incomplete")
        yield

    with pytest.raises(WeightLoadError) as raised:
        source = Source("org/glm", download_dir=str(tmp_path))
        load_strictly(fake_model(Build()), downloading(), list, source=source)
    first, second = raised.value.problems
    assert first.startswith("model-1.safetensors is cut short: ")
    assert first.endswith(f"; {NORM} is the first tensor cut off")
    assert second == "reading failed before the first tensor: RuntimeError: incomplete"


def test_extra_tensors_can_be_allowed_and_are_then_a_warning(caplog, tmp_path):
    given = CHECKPOINT | {"stray": torch.zeros(1)}
    files = save(tmp_path, given)
    with caplog.at_level(logging.WARNING, loading.__name__):
        reached = load(Build(), given, source=Source(str(tmp_path), allow_extra=True))
    assert reached == list(CHECKPOINT)
    (record,) = caplog.records
    assert record.getMessage() == (
        f"the main model's weights from {tmp_path}: skipped extra tensors (1): stray in {files['stray']}"
    )


def test_a_router_bias_that_lost_its_precision_is_named():
    model = fake_model(Build())
    gate = model.model.layers._modules["1"].mlp.gate
    gate.e_score_correction_bias = nn.Parameter(torch.zeros(4, dtype=BF16))
    assert problems(Build(), CHECKPOINT, model=model) == [
        "router bias not float32 (1): parameter model.layers.1.mlp.gate.e_score_correction_bias is bfloat16"
    ]


@pytest.mark.parametrize("byte", [0x7F, 0xFF])
@pytest.mark.parametrize(
    ("build", "parameter", "index", "brought"),
    [
        (Build(), "model.layers.0.self_attn.o_proj", (0, 0), "model.layers.0.self_attn.o_proj.weight"),
        (
            Build(),
            "model.layers.0.mlp.gate_up_proj",
            (300, 5),
            "model.layers.0.mlp.gate_proj.weight and model.layers.0.mlp.up_proj.weight",
        ),
        (
            Build(ep_rank=1, ep_size=2),
            "model.layers.1.mlp.experts.w2",
            (1, 7, 3),
            "model.layers.1.mlp.experts.3.down_proj.weight",
        ),
        (
            Build(draft=True, fuse_shared=True),
            "model.decoder.mlp.experts.w2",
            (4, 0, 0),
            "model.layers.5.mlp.shared_experts.down_proj.weight",
        ),
    ],
)
def test_nan_among_fp8_weights_is_traced_to_its_tensor(build, parameter, index, brought, byte):
    model = fake_model(build)
    name = parameter + ("_weight" if parameter.endswith("w2") else ".weight")
    weight = dict(model.named_parameters())[name]
    weight.data.view(torch.uint8)[index] = byte
    assert problems(build, CHECKPOINT, model=model) == [
        f"NaN in FP8 weights (1): parameter {name}, from {brought}"
    ]
    weight.data.view(torch.uint8)[index] = byte & 0xFE
    assert load(build, CHECKPOINT, model=model)


def test_a_loaded_model_takes_updates_in_parts(monkeypatch):
    model = fake_model(Build())
    load(Build(), CHECKPOINT, model=model)
    model.eval()
    monkeypatch.setattr(loading.parameter_map, "plan", None)  # an update must not plan again
    assert load(Build(), {NORM: CHECKPOINT[NORM]}, model=model) == [NORM]
    with pytest.raises(WeightLoadError, match=r"^cannot load an update of the main model's weights:\n- "):
        load(Build(), {NORM: torch.zeros(3)}, model=model)


def test_a_model_with_dummy_weights_takes_updates_in_parts(tmp_path):
    model = fake_model(Build()).eval()
    source = Source(str(tmp_path), load_format="dummy")
    assert load(Build(), {NORM: CHECKPOINT[NORM]}, model=model, source=source) == [NORM]
    stray = {"stray": torch.zeros(1)}
    assert "stray" in problems(Build(), stray, model=model, source=source)[0]


def test_a_failed_first_load_leaves_the_next_one_strict():
    model = fake_model(Build())
    assert problems(Build(), {}, model=model)
    assert problems(Build(), {NORM: CHECKPOINT[NORM]}, model=model)
    assert load(Build(), CHECKPOINT, model=model) == list(CHECKPOINT)


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        ({"num_nextn_predict_layers": 0}, "num_nextn_predict_layers is 0, num_hidden_layers 5"),
        ({"num_nextn_predict_layers": 2}, "num_nextn_predict_layers is 2, num_hidden_layers 5"),
        (
            {"num_hidden_layers": 1, "indexer_types": ["full"]},
            "num_nextn_predict_layers is 1, num_hidden_layers 1",
        ),
    ],
)
def test_a_draft_needs_one_mtp_layer_behind_several(change, counts):
    model = fake_model(Build(draft=True), CONFIG | change)
    assert problems(Build(draft=True), CHECKPOINT, model=model) == [
        f"{counts}: SGLang's MTP draft needs exactly 1, and at least 2"
    ]


def test_sizes_that_sglang_pads_on_a_cpu_are_checked_as_stored():
    padded = {"num_attention_heads": 4, "moe_intermediate_size": 256}
    model = fake_model(Build(), CONFIG | padded)
    originals = {f"original_{field}": CONFIG[field] for field in padded}
    model.config = SimpleNamespace(**CONFIG | padded | originals)
    assert load(Build(), CHECKPOINT, model=model) == list(CHECKPOINT)
    wrong = CHECKPOINT | stored_tensors(config=CONFIG | padded)
    assert problems(Build(), wrong, model=model)[0].startswith("wrong shape (")


BAGS = {
    "get_model": {
        "model_path": "/glm",
        "revision": "r1",
        "download_dir": "/cache",
        "load_format": "auto",
        "model_loader_extra_config": "{}",
    },
    "get_spec": {
        "speculative_draft_model_path": "/draft",
        "speculative_draft_model_revision": "r2",
        "speculative_draft_load_format": None,
    },
}


def runtime(monkeypatch, **changes):
    for getter, values in BAGS.items():
        bag = SimpleNamespace(**{key: changes.get(key, value) for key, value in values.items()})
        monkeypatch.setattr(loading, getter, lambda bag=bag: bag)


def test_the_source_is_what_the_running_server_says(monkeypatch):
    runtime(monkeypatch)
    assert runtime_source(False) == Source("/glm", "r1", "/cache", "auto", False)
    assert runtime_source(True) == Source("/draft", "r2", "/cache", "auto", False)
    runtime(monkeypatch, speculative_draft_load_format="dummy")
    assert runtime_source(True).load_format == "dummy"
    assert runtime_source(False).load_format == "auto"


@pytest.mark.parametrize(
    ("config", "allowed"),
    [
        ("{}", False),
        (None, False),
        ("", False),
        ('{"glm53_allow_extra": true, "num_threads": 3}', True),
        ('{"glm53_allow_extra": false}', False),
        ({"glm53_allow_extra": True}, True),
    ],
)
def test_the_override_is_read_from_json_or_a_dict(monkeypatch, config, allowed):
    runtime(monkeypatch, model_loader_extra_config=config)
    assert runtime_source(False).allow_extra is allowed
    assert runtime_source(True).allow_extra is allowed


BAD_VALUES = ["yes", 1, None, [True]]


@pytest.mark.parametrize("value", BAD_VALUES, ids=repr)
def test_an_override_that_is_no_bool_is_named(monkeypatch, value):
    runtime(monkeypatch, model_loader_extra_config={"glm53_allow_extra": value})
    text = f"glm53_allow_extra in --model-loader-extra-config is {value!r}: use true or false"
    with pytest.raises(ValueError) as raised:
        runtime_source(False)
    assert str(raised.value) == text
    with pytest.raises(ValueError) as raised:
        accept_extra_key(None, extra_config={"glm53_allow_extra": value}, load_format="auto")
    assert str(raised.value) == text
