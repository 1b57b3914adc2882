"""Owns the random weights of a tiny checkpoint: the scale of each tensor, and the draw behind each value."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch

# A matrix is drawn with standard deviation GAINS[module] / sqrt(inputs): an input of unit RMS leaves it with
# RMS GAINS[module], whatever the sizes. Two aims fix the gains. The selection must matter: a wrong one, or a
# wrong RoPE style, norm eps or routing, has to move logprobs far more than bf16 and FP8 index keys do. And
# the model must be calm: a selection and a routing decision are cliffs, where an error of relative size e at
# the input becomes one of sqrt(e) at the output, so layers that add much would make it grow at each.
# Measured against transformers in FP32, seeds 0 to 2, 448 random tokens, mean |dlogprob| past position 200:
# dense attention 0.17 to 0.18, half-split RoPE 0.17 to 0.18, another group's selection 0.16 to 0.18, index
# LayerNorm eps 1e-5 0.13, no routing bias 0.13 to 0.14; bf16 with FP8 index keys 0.05 (0.01 to 0.02 up to
# index_topk), no position over 0.4. All are proportional to lm_head's gain; their ratios hardly depend on it.
GAINS = {
    # A unit embedding dominates the residual stream, to which a layer adds 0.13 of RMS: the calm.
    "embed_tokens": 1.0,
    # Logits of standard deviation 1.4: the two best lie within 1e-3 of each other at 0.3 % of positions.
    "lm_head": 1.4,
    "q_a_proj": 1.0,
    # Attention logits of standard deviation 1: no token takes all the weight, so each selected one counts.
    "q_b_proj": 1.0,
    "kv_a_proj_with_mqa": 1.0,
    "kv_b_proj": 1.0,
    "o_proj": 0.25,
    "gate_proj": 1.0,
    "up_proj": 1.0,
    # Dense layers and the shared expert: no cliff, so this gain only balances attention.
    "down_proj": 0.2,
    # Routed experts. Smaller, since their weights add up to 2.5 and a near tie exchanges one of them.
    "experts.down_proj": 0.075,
    "gate": 1.0,
    "wq_b": 1.0,
    # The index key's variance before its LayerNorm is 6e-7, below eps 1e-6, so that eps 1e-5 shows.
    "wk": 8e-4,
    "weights_proj": 1.0,
    "eh_proj": 0.3,
}
# Norm weights are 1 + 0.1 z: one that is left out or taken from elsewhere shows.
NORM_SPREAD = 0.1
# Without a bias in the index LayerNorm, another eps would stretch all keys alike and reorder hardly any. A
# larger bias takes FP8 resolution from the part in which keys differ.
INDEX_BIAS = 0.6
# Near the spread of the scores it is added to (0.2, the sigmoid of unit logits): it decides for most tokens,
# and with its tails cut every expert still has some. The offset is the published checkpoints' own trait: in
# bf16 the spread would be a few steps wide (SGLang 0.5.23, models/deepseek_v2.py MoEGate).
ROUTER_BIAS, ROUTER_TAIL, ROUTER_OFFSET = 0.15, 1.5, 8.0
# The MTP layer's two copies are the main model's own tensors.
COPIES = {"embed_tokens.weight": "model.embed_tokens.weight", "shared_head.head.weight": "lm_head.weight"}


def normal(seed: int, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Standard normal values, FP32, fixed by seed, name and shape."""
    # NumPy's streams are the same on every machine; torch's depend on the vector width of the CPU.
    key = hashlib.sha256(f"{seed} {name}".encode()).digest()
    stream = np.random.Generator(np.random.PCG64(int.from_bytes(key[:16], "little")))
    return torch.from_numpy(stream.standard_normal(shape, dtype=np.float32))


def _module(name: str) -> str:
    module = name.split(".")[-2]
    return f"experts.{module}" if f"experts.{module}" in GAINS and ".mlp.experts." in name else module


def draw(seed: int, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The values of one stored tensor, FP32, before it is rounded to its storage type.

    They depend on seed, name and shape alone, so another layer or another file changes no other tensor.
    Raises KeyError for a tensor that has no scale here.
    """
    name = next((main for copy, main in COPIES.items() if name.endswith(f".{copy}")), name)
    z = normal(seed, name, shape)
    if name.endswith(".e_score_correction_bias"):
        return ROUTER_OFFSET + ROUTER_BIAS * z.clamp(-ROUTER_TAIL, ROUTER_TAIL)
    if name.endswith(".k_norm.bias"):
        return INDEX_BIAS * z
    if len(shape) == 1:
        return 1 + NORM_SPREAD * z
    module = _module(name)
    if module == "embed_tokens":
        return GAINS[module] * z
    values = z * (GAINS[module] / math.sqrt(shape[1]))
    if module == "eh_proj":
        # The draft sees the token's embedding, as the main model's residual stream does, and so agrees with
        # it at some positions: both the accepting and the rejecting path of speculative decoding run.
        values[:, : shape[0]] += torch.eye(shape[0])
    return values
