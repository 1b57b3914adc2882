"""The routed experts against one loop over tokens."""

import pytest
import torch
import torch.nn.functional as F

from sglang_glm53.cpu.moe import routed_experts


def one_by_one(x, weights, ids, w13, w2):
    out = torch.zeros_like(x)
    for token in range(x.shape[0]):
        for weight, expert in zip(weights[token], ids[token].tolist(), strict=True):
            if 0 <= expert < w13.shape[0]:
                gate, up = (w13[expert] @ x[token]).chunk(2)
                out[token] += weight * (w2[expert] @ (F.silu(gate) * up))
    return out


@pytest.mark.parametrize("tokens", [0, 1, 33])
def test_routed_experts(tokens):
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, 16, generator=generator)
    w13, w2 = torch.randn(5, 24, 16, generator=generator), torch.randn(5, 16, 12, generator=generator)
    weights = torch.rand(tokens, 3, generator=generator)
    # -1 and 5 belong to other ranks; expert 4 gets no token at all.
    ids = torch.tensor([-1, 0, 1, 2, 3, 5])[torch.randint(0, 6, (tokens, 3), generator=generator)]
    torch.testing.assert_close(routed_experts(x, weights, ids, w13, w2), one_by_one(x, weights, ids, w13, w2))


def test_a_token_with_no_expert_of_ours_gets_nothing():
    x, w13, w2 = torch.ones(1, 8), torch.ones(2, 8, 8), torch.ones(2, 8, 4)
    out = routed_experts(x, torch.ones(1, 2), torch.tensor([[-1, 7]]), w13, w2)
    assert out.tolist() == [[0.0] * 8]
