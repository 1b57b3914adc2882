"""Owns the random weights of a tiny checkpoint: the scale of each tensor, and the draw behind each value."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch

# A matrix is drawn with standard deviation GAINS[module] / sqrt(inputs), so that an input of unit RMS leaves
# with RMS GAINS[module]. What the numbers are for, in two words: *matter* and *calm*. A wrong selection, RoPE
# style, norm eps or routing must move logprobs far more than bf16 and FP8 index keys do. Every selection and
# every routing decision is a cliff that turns a small error into a larger one, so each layer adds only a
# little to the residual stream and eight cliffs in a row stay calm.
GAINS = {
    # A unit token embedding dominates the residual stream: a layer cannot amplify what it barely changes.
    "embed_tokens": 1.0,
    # Logits of standard deviation 1.5: a tie of the two best tokens within 1e-3 is rare (0.2 % of positions),
    # and bf16 logits stay below 8, where one step is 0.03.
    "lm_head": 1.4,
    "q_a_proj": 1.0,
    # Attention logits of standard deviation 1: no token takes all the weight, so each selected one counts.
    "q_b_proj": 1.0,
    "kv_a_proj_with_mqa": 1.0,
    "kv_b_proj": 1.0,
    # The mean of 64 random values is small; with this gain an attention layer adds about 4 % of RMS.
    "o_proj": 0.25,
    "gate_proj": 1.0,
    "up_proj": 1.0,
    # Dense layers and the shared expert, which always run.
    "down_proj": 0.2,
    # A routed expert's weight is about 1.25 (2.5 over two of them) and the choice between experts is a cliff.
    "experts.down_proj": 0.075,
    "gate": 1.0,
    "wq_b": 1.0,
    # The index key's variance before its LayerNorm is 1e-6, the LayerNorm's eps: eps 1e-5 shows at once.
    "wk": 8e-4,
    "weights_proj": 1.0,
    "eh_proj": 0.3,
}
# Norm weights are 1 + 0.1 z: one that is dropped or taken from another layer shows.
NORM_SPREAD = 0.1
# With no bias, a wrong eps would only stretch the index keys and hardly reorder them. Half the size of the
# normalised key: a larger one costs FP8 precision where the keys differ.
INDEX_BIAS = 0.6
# The spread of the router's scores, sigmoid of unit logits, is 0.2: a bias of that size changes the choice
# for most tokens and leaves no expert without work. The offset is the published checkpoints' trait that
# bf16 would keep only a few steps of the spread (SGLang 0.5.23, models/deepseek_v2.py:519).
ROUTER_BIAS, ROUTER_OFFSET = 0.15, 8.0
# The MTP layer's two copies are the main model's own tensors.
COPIES = {"embed_tokens.weight": "model.embed_tokens.weight", "shared_head.head.weight": "lm_head.weight"}


def _normal(seed: int, name: str, shape: tuple[int, ...]) -> torch.Tensor:
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
    z = _normal(seed, name, shape)
    if name.endswith(".e_score_correction_bias"):
        return ROUTER_OFFSET + ROUTER_BIAS * z
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
