"""The oracle is what it says: complete, with SGLang's epsilon, sure of itself, and asked only once."""

import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from sglang_glm53.testing import oracle
from sglang_glm53.testing.oracle import Oracle, OracleError
from sglang_glm53.tiny.checkpoint import TinySpec, write

SPEC = TinySpec(layers=4, index_topk=16, vocab=512)
PROMPTS = [list(range(40, 40 + length)) for length in (5, 15, 16, 17, 40)]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    write(SPEC, folder)
    return folder


@pytest.fixture(scope="module")
def model(path):
    return oracle.load(path)


def test_every_norm_has_the_configs_epsilon(model):
    names = ("q_a_layernorm", "kv_a_layernorm")
    found = {
        getattr(layer.self_attn, name).variance_epsilon for layer in model.model.layers for name in names
    }
    assert found == {model.config.rms_norm_eps} == {1e-5}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_scores_are_normalised_logprobs_that_depend_on_the_past_alone(model):
    scores = oracle.score_sequence(model, PROMPTS[-1])
    assert scores.shape == (40, SPEC.vocab)
    assert torch.allclose(scores.exp().sum(-1), torch.ones(40, dtype=torch.float64))
    shorter = oracle.score_sequence(model, PROMPTS[-1][:17])
    assert float((scores[:17] - shorter).abs().max()) < 1e-4


def test_a_greedy_token_is_the_best_by_its_gap(model):
    found = oracle.greedy_one(model, PROMPTS[-1], 6)
    scores = oracle.score_sequence(model, [*PROMPTS[-1], *found.tokens])[39:-1]
    assert found.tokens == tuple(scores.argmax(-1).tolist())
    best = scores.topk(2).values
    assert found.gaps == pytest.approx((best[:, 0] - best[:, 1]).tolist())


def test_two_passes_that_disagree_are_an_error(model, monkeypatch):
    right = oracle.score_sequence

    def wrong(model, tokens):
        return right(model, tokens).roll(1, dims=-1)

    monkeypatch.setattr(oracle, "score_sequence", wrong)
    with pytest.raises(OracleError, match=r"prompt of 40 tokens: decoding chose \d+ at step 0"):
        oracle.greedy_one(model, PROMPTS[-1], 3)


def test_the_process_answers_like_the_model_and_each_question_once(model, path, tmp_path):
    whole = [[*prompt, 50, 51] for prompt in PROMPTS]
    with Oracle(tmp_path) as asked:
        greedy, scores = asked.greedy(path, PROMPTS, 3), asked.score(path, whole)
    for prompt, found in zip(PROMPTS, greedy, strict=True):
        expected = oracle.greedy_one(model, prompt, 3)
        assert found.tokens == expected.tokens
        assert found.gaps == pytest.approx(expected.gaps, abs=1e-4)
    for sequence, row in zip(whole, scores, strict=True):
        scored = oracle.score_sequence(model, sequence)[:-1]
        assert row == pytest.approx([float(scored[i, t]) for i, t in enumerate(sequence[1:])], abs=1e-4)
        assert all(math.isfinite(value) and value < 0 for value in row)
    # The second one starts no process: all it needs is on disk.
    with Oracle(tmp_path) as again:
        assert again.greedy(path, PROMPTS, 3) == greedy
        assert again.score(path, whole) == scores
        assert again._process is None


def test_a_checkpoint_that_does_not_fill_it_is_refused(path, tmp_path):
    for file in path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (shard,) = tmp_path.glob("*.safetensors")
    tensors = load_file(shard)
    del tensors["model.layers.3.self_attn.q_a_layernorm.weight"]
    save_file(tensors, shard, metadata={"format": "pt"})
    cache = tmp_path / "cache"
    cache.mkdir()
    with (
        Oracle(cache) as asked,
        pytest.raises(OracleError, match=r"(?s)does not fill the oracle: model\.layers\.3.*q_a_layernorm"),
    ):
        asked.score(tmp_path, [[40, 41]])
