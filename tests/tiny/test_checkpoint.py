"""The files of a tiny checkpoint: what they hold, that they are the same each time, and that they matter."""

import dataclasses
import hashlib
import json
import os

import pytest
import torch
from safetensors import safe_open

from sglang_glm53.geometry import Geometry, schedule_problems
from sglang_glm53.kernels.fp8 import dequantise_blocks
from sglang_glm53.testing import oracle
from sglang_glm53.tiny.checkpoint import SpecError, TinySpec, write
from sglang_glm53.weights.stored_tensors import checkpoint_tensors

SMALL = TinySpec(
    layers=4, hidden=128, heads=2, dense_intermediate=128, moe_intermediate=128, experts=2, index_heads=8,
    vocab=292, mtp=True, shards=3,
)  # fmt: skip
BIAS = "e_score_correction_bias"
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32, "fp8": torch.float8_e4m3fn, "scale": torch.float32}


def tensors_of(folder):
    """Every tensor of a checkpoint's files, by name, read through its index."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    found = {}
    for name, file in index["weight_map"].items():
        with safe_open(folder / file, "pt") as shard:
            found[name] = shard.get_tensor(name)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in found.values())
    return found


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


@pytest.fixture(scope="module")
def fp8(tmp_path_factory):
    return write(dataclasses.replace(SMALL, fp8=True), tmp_path_factory.mktemp("fp8") / "tiny")


@pytest.fixture(scope="module")
def bf16(tmp_path_factory):
    return write(SMALL, tmp_path_factory.mktemp("bf16") / "tiny")


@pytest.mark.parametrize("kind", ["bf16", "fp8"])
def test_the_files_hold_exactly_the_models_tensors(request, kind):
    written = request.getfixturevalue(kind)
    geometry = Geometry.from_config(config_of(written.path))
    expected = {
        name: (spec.shape, DTYPES[spec.kind])
        for name, spec in checkpoint_tensors(geometry, fp8=kind == "fp8").items()
        if not spec.optional
    }
    found = tensors_of(written.path)
    assert {name: (tuple(t.shape), t.dtype) for name, t in found.items()} == expected
    weights = [t for name, t in found.items() if not name.endswith("_scale_inv")]
    assert written.parameters == sum(t.numel() for t in weights)
    assert written.files == tuple(sorted(path.name for path in written.path.iterdir()))
    assert written.bytes == sum(path.stat().st_size for path in written.path.iterdir())


def test_the_shards_are_numbered_as_the_published_ones(bf16):
    shards = [file for file in bf16.files if file.endswith(".safetensors")]
    assert shards == [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]


def test_the_twin_is_the_fp8_checkpoint_dequantised(fp8):
    assert fp8.twin == fp8.path.with_name("tiny-bf16")
    stored, twin = tensors_of(fp8.path), tensors_of(fp8.twin)
    scales = {name for name in stored if name.endswith("_scale_inv")}
    assert twin.keys() == stored.keys() - scales
    for name, tensor in twin.items():
        values = stored[name]
        if name + "_scale_inv" in scales:
            values = dequantise_blocks(values, stored[name + "_scale_inv"]).bfloat16()
        assert torch.equal(tensor, values), name
    partial = stored["model.layers.0.self_attn.kv_a_proj_with_mqa.weight_scale_inv"]
    assert partial.shape == (5, 1)
    assert all(torch.isfinite(stored[name]).all() and (stored[name] > 0).all() for name in scales)


def test_the_fp8_checkpoint_is_the_bf16_one_quantised(bf16, fp8):
    exact, twin = tensors_of(bf16.path), tensors_of(fp8.twin)
    assert exact.keys() == twin.keys()
    name = "model.layers.3.mlp.experts.1.up_proj.weight"
    error = (twin[name].float() - exact[name].float()).norm() / exact[name].float().norm()
    assert 0.01 < error < 0.05
    for name in ("lm_head.weight", "model.layers.3.mlp.gate.e_score_correction_bias"):
        assert torch.equal(twin[name], exact[name])


def test_only_the_fp8_config_states_a_quantisation(fp8, bf16):
    assert config_of(fp8.path)["quantization_config"]["weight_block_size"] == [128, 128]
    assert "quantization_config" not in config_of(fp8.twin)
    assert {k: v for k, v in config_of(fp8.path).items() if k != "quantization_config"} == config_of(
        bf16.path
    )


def test_the_same_spec_gives_the_same_bytes(tmp_path, bf16):
    again = write(SMALL, tmp_path / "again")
    assert digests(again.path) == digests(bf16.path)


def test_every_file_has_the_mode_that_the_umask_gives(tmp_path):
    """Group members too may read a checkpoint where the umask lets them."""
    before = os.umask(0o027)
    try:
        written = write(dataclasses.replace(SMALL, fp8=True), tmp_path / "ck")
    finally:
        os.umask(before)
    files = [*written.path.iterdir(), *written.twin.iterdir()]
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in files} == {
        path.name: "0o640" for path in files
    }


def test_another_seed_gives_other_weights(tmp_path, bf16):
    other = tensors_of(write(dataclasses.replace(SMALL, seed=1), tmp_path / "other").path)
    same = [name for name, tensor in tensors_of(bf16.path).items() if torch.equal(tensor, other[name])]
    assert same == []


def test_the_mtp_layer_changes_no_other_tensor(tmp_path, bf16):
    alone = tensors_of(write(dataclasses.replace(SMALL, mtp=False, shards=1), tmp_path / "alone").path)
    with_mtp = tensors_of(bf16.path)
    assert {name for name in with_mtp if name not in alone} == {
        name for name in with_mtp if name.startswith("model.layers.4.")
    }
    assert [name for name, tensor in alone.items() if not torch.equal(tensor, with_mtp[name])] == []


def test_the_mtp_copies_are_the_main_models_tensors(tmp_path):
    spec = dataclasses.replace(SMALL, mtp_copies=True)
    found = tensors_of(write(spec, tmp_path / "copies").path)
    assert torch.equal(found["model.layers.4.embed_tokens.weight"], found["model.embed_tokens.weight"])
    assert torch.equal(found["model.layers.4.shared_head.head.weight"], found["lm_head.weight"])


def test_the_stop_ids_are_the_tokenizers_own(bf16):
    ids = {
        token["content"]: token["id"]
        for token in json.loads((bf16.path / "tokenizer.json").read_text())["added_tokens"]
    }
    stops = [ids[token] for token in ("<|endoftext|>", "<|user|>", "<|observation|>")]
    assert config_of(bf16.path)["eos_token_id"] == stops
    generation = json.loads((bf16.path / "generation_config.json").read_text())
    assert (generation["eos_token_id"], generation["pad_token_id"]) == (stops, stops[0])


def test_a_schedule_decides_where_the_indexers_are(tmp_path):
    spec = dataclasses.replace(SMALL, layers=6, schedule="FSFSSF", mtp=False)
    written = write(spec, tmp_path / "tiny")
    found = tensors_of(written.path)
    assert written.schedule == "FSFSSF"
    assert {name.split(".")[2] for name in found if ".indexer.wk." in name} == {"0", "2", "5"}
    assert schedule_problems(config_of(written.path)) == []


@pytest.mark.parametrize("kind", ["bf16", "twin"])
def test_transformers_loads_every_tensor_but_the_mtp_layers(bf16, fp8, kind):
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = bf16.path if kind == "bf16" else fp8.twin
    assert AutoConfig.from_pretrained(folder).indexer_types == ["full", "full", "full", "shared"]
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
    assert type(model).__name__ == "GlmMoeDsaForCausalLM"
    assert not info["missing_keys"] and not info["mismatched_keys"] and not info["error_msgs"]
    stored = tensors_of(folder)
    mtp = {name for name in stored if name.startswith("model.layers.4.")}
    # transformers stacks the experts before it compares names, those of the ignored layer as well.
    assert {name.split(".experts.")[0] for name in info["unexpected_keys"]} == {
        name.split(".experts.")[0] for name in mtp
    }
    experts = model.model.layers[3].mlp.experts
    assert torch.equal(experts.down_proj[1], stored["model.layers.3.mlp.experts.1.down_proj.weight"])
    bias = model.model.layers[3].mlp.gate.e_score_correction_bias
    assert torch.equal(bias, stored["model.layers.3.mlp.gate.e_score_correction_bias"])


def test_a_bad_spec_writes_nothing(tmp_path):
    with pytest.raises(SpecError, match=r"--index-topk 0: .*; --hidden 100: "):
        write(TinySpec(hidden=100, index_topk=0), tmp_path / "tiny")
    with pytest.raises(SpecError, match=r"--twin: add --fp8"):
        write(SMALL, tmp_path / "tiny", twin=tmp_path / "twin")
    with pytest.raises(SpecError, match=r"--twin .*: choose another folder"):
        write(dataclasses.replace(SMALL, fp8=True), tmp_path / "tiny", twin=tmp_path / "x" / ".." / "tiny")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_files_is_left_alone_unless_forced(tmp_path):
    (tmp_path / "model-00001-of-00009.safetensors").write_text("old")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"is not empty: choose another folder or add --force"):
        write(SMALL, tmp_path)
    assert (tmp_path / "model-00001-of-00009.safetensors").read_text() == "old"
    written = write(SMALL, tmp_path, force=True)
    assert "model-00001-of-00009.safetensors" not in written.files
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_progress_counts_every_tensor_once(tmp_path):
    seen = []
    write(SMALL, tmp_path / "tiny", progress=lambda done, total: seen.append((done, total)))
    stored = tensors_of(tmp_path / "tiny")
    assert seen == [(at, len(stored)) for at in range(1, len(stored) + 1)]


# What follows holds the gains in tiny/weights.py to what they are for.


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """The oracle on the default checkpoint, 320 random tokens, and their logprobs."""
    folder = write(TinySpec(), tmp_path_factory.mktemp("default") / "tiny").path
    model = oracle.load(folder)
    tokens = torch.randint(0, 988, (320,), generator=torch.Generator().manual_seed(5)).tolist()
    return folder, model, tokens, oracle.score_sequence(model, tokens)


def mean_difference(scored, changed, first=200):
    """Mean |dlogprob| of the next token, at positions from first on."""
    _, _, tokens, expected = scored
    following = torch.tensor(tokens[1:])[:, None]
    return float((changed - expected)[:-1].gather(1, following)[first:].abs().mean())


def indexers(model):
    return [layer.self_attn.indexer for layer in model.model.layers if layer.self_attn.indexer is not None]


def dense_attention(model, monkeypatch):
    for indexer in indexers(model):
        monkeypatch.setattr(indexer, "index_topk", 1 << 20)


def index_norm_eps(model, monkeypatch):
    for indexer in indexers(model):
        monkeypatch.setattr(indexer.k_norm, "eps", 1e-5)


def no_routing_bias(model, monkeypatch):
    for layer in model.model.layers[3:]:
        buffers = layer.mlp.gate._buffers
        monkeypatch.setitem(buffers, BIAS, torch.zeros_like(buffers[BIAS]))


def half_split_rope(model, monkeypatch):
    from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa as modeling

    interleaved = modeling.apply_rotary_pos_emb_interleave

    def rotate(q, k, cos, sin, position_ids=None, unsqueeze_dim=1):
        if unsqueeze_dim == 1:  # attention; only the indexer has its heads behind the positions
            return interleaved(q, k, cos, sin, position_ids, unsqueeze_dim)
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        turned = [torch.cat((-x[..., 32:], x[..., :32]), -1) for x in (q, k)]
        return q * cos + turned[0] * sin, k * cos + turned[1] * sin

    monkeypatch.setattr(modeling, "apply_rotary_pos_emb_interleave", rotate)


def another_groups_selection(model, monkeypatch):
    original = type(model.model.layers[0].self_attn).forward
    selections = []

    def forward(self, *args, prev_topk_indices=None, **kwargs):
        wrong = selections[-2] if self.indexer is None else None
        result = original(self, *args, prev_topk_indices=wrong, **kwargs)
        if self.indexer is not None:
            selections.append(result[2])
        return result

    monkeypatch.setattr(type(model.model.layers[0].self_attn), "forward", forward)


@pytest.mark.parametrize(
    ("mutate", "at_least"),
    [
        (dense_attention, 0.1),
        (half_split_rope, 0.1),
        (another_groups_selection, 0.1),
        (index_norm_eps, 0.07),
        (no_routing_bias, 0.07),
    ],
)
def test_a_wrong_model_moves_logprobs(scored, monkeypatch, mutate, at_least):
    _, model, tokens, _ = scored
    mutate(model, monkeypatch)
    assert at_least < mean_difference(scored, oracle.score_sequence(model, tokens)) < 1


def test_a_rounded_routing_bias_shows(scored, monkeypatch):
    _, model, tokens, _ = scored
    for layer in model.model.layers[3:]:
        buffers = layer.mlp.gate._buffers
        monkeypatch.setitem(buffers, BIAS, buffers[BIAS].bfloat16().float())
    assert mean_difference(scored, oracle.score_sequence(model, tokens)) > 0.01


def test_bf16_arithmetic_moves_logprobs_little(scored):
    from transformers import AutoModelForCausalLM

    folder, _, tokens, _ = scored
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager")
    changed = oracle.score_sequence(model.eval(), tokens)
    assert 0 < mean_difference(scored, changed, first=0) < 0.05


def test_logits_are_neither_flat_nor_tied_nor_stuck(scored):
    _, _, _, logprobs = scored
    assert 1.2 < float(logprobs.std(-1).mean()) < 1.6
    best = logprobs.topk(2).values
    assert float(((best[:, 0] - best[:, 1]) < 1e-3).double().mean()) < 0.02
    assert logprobs.argmax(-1).unique().numel() > 160
