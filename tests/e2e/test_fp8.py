"""FP8 block checkpoints on the reference platform, against the oracle on their dequantised twin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sglang_glm53.testing.compare import check_logprobs, logprob_figures
from sglang_glm53.testing.server import ServerError
from sglang_glm53.tiny.checkpoint import TinySpec, write
from sglang_glm53.weights.stored_tensors import SCALE_SUFFIX
from tests.e2e.asking import generate_all, prompt, score_all, tokens
from tests.e2e.checkpoints import spoil

SPEC = TinySpec(fp8=True)
PROMPTS = [prompt(length, vocab=SPEC.vocab) for length in (20, 64, 65, 130, 260)]
NEW_TOKENS = 16
# Weights are those of the twin; only the inputs of the FP8 products are rounded beyond it.
FLOAT32 = ("--dtype", "float32")


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[Path, Path]:
    """The FP8 checkpoint and its twin."""
    out = tmp_path_factory.mktemp("fp8") / "checkpoint"
    write(SPEC, out)
    return out, out.with_name(out.name + "-bf16")


@pytest.fixture(scope="module")
def scores(serve, folders, oracle) -> Callable[..., tuple[list[list[float]], list[list[float]]]]:
    """(the server's, the oracle's) logprobs of the oracle's continuations."""
    continuations = oracle.greedy(folders[1], PROMPTS, NEW_TOKENS)
    whole = [[*one, *after.tokens] for one, after in zip(PROMPTS, continuations, strict=True)]
    scored = zip(PROMPTS, oracle.score(folders[1], whole), strict=True)
    expected = [row[len(one) - 1 :] for one, row in scored]

    def ask(*flags: str, mutation: str = "") -> tuple[list[list[float]], list[list[float]]]:
        with serve(folders[0], *FLOAT32, *flags, mutation=mutation) as server:
            return score_all(server, PROMPTS, continuations), expected

    return ask


def test_logprobs_stay_near_the_twins(scores):
    check_logprobs(logprob_figures(*scores()), mean=0.25)


def test_a_wrong_scale_of_the_inputs_is_noticed(scores):
    own, faulty = logprob_figures(*scores()), logprob_figures(*scores(mutation="one_scale_for_all_groups"))
    print(f"own {own}; with one scale for all groups {faulty}")
    assert faulty.mean >= 2 * own.mean


def test_two_ranks_split_the_blocks(serve, folders):
    answers = []
    for flags in ((), ("--tp-size", "2"), ("--tp-size", "2", "--ep-size", "2")):
        with serve(folders[0], *FLOAT32, *flags) as server:
            answers.append(tokens(generate_all(server, PROMPTS[:3], 4)))
    assert answers[1] == answers[0] and answers[2] == answers[0]


@pytest.mark.parametrize(("value", "named"), [(float("nan"), "NaN"), (0.0, "zero")])
def test_a_bad_scale_is_refused_with_tensor_and_file(value, named, serve, folders, tmp_path):
    name = "model.layers.4.mlp.experts.1.up_proj.weight" + SCALE_SUFFIX

    def edit(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        tensors[name][0, 0] = value
        return tensors

    file = spoil(folders[0], tmp_path / "spoiled", name, edit)
    with (
        pytest.raises(ServerError, match=rf"bad FP8 scale \(1\): {name} in {file} holds {named}"),
        serve(tmp_path / "spoiled", *FLOAT32),
    ):
        pass
